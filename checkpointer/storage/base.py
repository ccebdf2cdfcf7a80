"""Define the contract of a store: coroutines over whole objects.

Objects are named by paths relative to the root. Objects are written once and never changed, except those written by
`compare_and_swap`. Paths come from `manifests/object_paths.py` only. A store raises errors of the tree
(`checkpointer/errors.py`) and four signals of its own, which the layers above turn into an outcome:

* `ObjectNotFoundError`: nothing has this path;
* `ObjectExistsError`: `put` found something at the path;
* `PreconditionFailedError`: `compare_and_swap` found another version. The answered request wrote nothing, but an
  earlier, unanswered request of the same caller may be what moved the version: read back before judging.
* `UndecryptableError`: `get` found an object that cannot be decrypted.

If `compare_and_swap` raises `RetryableError`, nobody knows whether it took effect. If it raises `OutcomeUnknownError`,
the bytes may be in place, but the disk has not confirmed them. Reading them back proves nothing.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Protocol, TypeVar

from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    CorruptionError,
    IllegalArgumentError,
    NotFoundError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests.digest import Bytes, sha256

UNFENCED = 'fencing="none", or --fencing none on the command line (of a target --target-fencing none)'
"""The advice of errors for accepting a store without conditional writes."""

# A swap is always one request: an upload in parts would lose the condition with some clients (s3fs from 100 MiB up).
# The limit is the size of the largest object that is swapped, the ownership of a group of consumers.
SWAP_LIMIT = 16 << 20
"""Largest object, in bytes, that can be written or replaced by `compare_and_swap`."""


class ObjectNotFoundError(NotFoundError):
    """No object has this path."""


class ObjectExistsError(ConflictError):
    """An object already has this path."""


class PreconditionFailedError(ConflictError):
    """The object has another version than the caller expected."""


class ObjectRefusedError(StoreRefusedError):
    """The store cannot show this object, whoever asks; others may be intact."""


DAMAGE = (CorruptionError, ObjectNotFoundError, ObjectRefusedError)
"""Errors of one object that is gone or that nobody can read."""


class UndecryptableError(CorruptionError):
    """The object is there, and cannot be decrypted."""

    version: str | None = None
    """The version of what is there, on which a repair can swap."""


Range = tuple[int, int]
"""A part of an object: its first byte and its length."""


@dataclass(frozen=True, slots=True)
class Blob:
    """An object as read: its bytes, and the store's name of this version.

    `tag` is None if the store has no names of versions. `at` is the time when the store began to answer, in whole
    seconds since the epoch, by the clock of its server. It is None if there is no server, or if the server did not
    tell. It is not compared: two reads of one version are equal.
    """

    data: bytes = field(repr=False)
    tag: str | None = None
    at: float | None = field(default=None, compare=False, repr=False)

    @property
    def version(self) -> str:
        """Return the condition for a swap: the tag, or the bytes' digest."""
        return sha256(self.data) if self.tag is None else self.tag


class ByteSink(Protocol):
    """A consumer of an object's bytes, piece by piece, such as a hash of `hashlib`."""

    def update(self, piece: bytes, /) -> None: ...


S = TypeVar("S", bound=ByteSink)


@dataclass(frozen=True, slots=True)
class SinkRead(Generic[S]):
    """A read of an object into a sink, as the arguments of `Store.read_into`."""

    path: str
    make: Callable[[], S]
    limit: int


@dataclass(frozen=True, slots=True)
class ListedObject:
    """An object as listed: path relative to the root, size in bytes.

    `blob` is the object itself, if the listings of the store have small objects. It is as fresh as the listing.
    """

    path: str
    size: int
    blob: Blob | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class ListingPage:
    """A part of a listing, in no particular order.

    `more` asks for the next page, and is None on the last one.
    """

    entries: Sequence[ListedObject]
    more: object | None


@dataclass(frozen=True, slots=True)
class Settings:
    """The options of the caller for opening a root, for every kind of store.

    `open_store` checked the values.
    """

    fencing: bool
    """True if writes must be conditional."""
    concurrency: int
    """Large requests that may run at the same time."""
    timeout: float
    """Seconds for one small request."""


@dataclass(frozen=True, slots=True)
class WriteLeftover:
    """The remains of an interrupted write of `path`.

    They are a temporary file, or the parts of an upload.

    `token` names them to the store: the path of the file, or the id of the upload.
    """

    path: str
    token: str


@dataclass(frozen=True, slots=True)
class Signed:
    """Who signed the last commit of an object, and when by the clock of the signer.

    Each commit is later than the ones before it. A swap by a signer without the role "commit" is not a commit: it is a
    savepoint or a cleanup.
    """

    at: datetime
    signer: str
    """The name and the key of the signer, as messages show them."""


ArtifactCheck = Callable[[str, int], Awaitable[None]]
"""A function that checks that an object is stored as it was written, without its content.

It is given the path and the size of the content. It raises as `Store.get` does.
"""


@dataclass(frozen=True, slots=True)
class BucketRule:
    """A setting of the bucket or container of a root.

    `checkpointer doctor` shows it.
    """

    name: str
    """The setting, such as "versioning"."""
    found: str
    """The setting as the store tells it, or why it is not known."""
    advice: str | None = None
    """Something to change, or None."""
    harmful: bool = False
    """True if a root cannot live with this setting."""


def check_path(path: str) -> str:
    """Return `path` after checking that it stays inside the root.

    Raises `IllegalArgumentError` where the path may lead out of the root.
    """
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path or "\\" in path:
        raise IllegalArgumentError(f"{path!r:.200}: not a path inside a store")
    return path


def check_swap_size(name: str, data: bytes) -> None:
    """Raise `IllegalArgumentError` where `data` is too large for `compare_and_swap`."""
    if len(data) > SWAP_LIMIT:
        raise IllegalArgumentError(f"{name}: {len(data)} bytes are too many to swap")


class Store(Protocol):
    """A root on some object store.

    All coroutines run on the library's own event loop (`runtime/event_loop.py`).
    """

    @property
    def url(self) -> str:
        """Return the root as a user would write it, without secrets."""

    @property
    def fencing(self) -> bool:
        """Return whether `put` and `compare_and_swap` are atomic for all other clients."""

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        """Read an object in one request, or raise `ObjectNotFoundError`.

        An object of more than `limit` bytes raises `CorruptionError` before its body is read into memory.
        """

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        """Read an object as `get` does, but feed it piece by piece to a sink from `make`.

        Return the sink. The sink works in a thread. Few pieces are in memory at a time. A request that is tried again
        feeds the object to a new sink, from its beginning.
        """

    @property
    def reads_at_once(self) -> int:
        """Return how many small objects one call of `read_each_into` may read.

        The number is 1 unless reading several at once takes less time.
        """

    async def read_each_into(self, reads: Sequence[SinkRead[S]]) -> list[S | CheckpointError]:
        """Read objects as `read_into` does, at most `reads_at_once`.

        Return for each its sink, or the error that `read_into` would raise.
        """

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset`, fewer where the object ends before.

        `length` is at least 1. Raises `ObjectNotFoundError`.
        """

    @property
    def reads_ranges(self) -> bool:
        """Return whether `get_ranges` is one request, and can be called. See `ranges.py`."""

    async def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        """Read some ranges as `get_range` reads one, all of them in one request."""

    async def put(self, path: str, data: Bytes) -> None:
        """Write an object that is complete and durable once this returns.

        The object is never visible in part.

        Raises `ObjectExistsError` if the store sees that an object is at the path already. A store may not see that for
        a large object and overwrite it, so names must be unique to their content.
        """

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        """Replace the object if its version is `expected`, and return the new version.

        If `expected` is None, there must be no object.

        The store makes one attempt and never repeats it. Raises `PreconditionFailedError` if the version differs.
        `data` and the object that it replaces have at most `SWAP_LIMIT` bytes.
        """

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        """Return a page of the objects whose path starts with `prefix`.

        It is the first page, or the page that `more` asks for. It never comes from a cache. Temporary files of writers
        are left out. Objects that are written or deleted meanwhile may be in it or not. `more` belongs to one listing
        in one process.
        """

    @property
    def lists_whole_folders(self) -> bool:
        """Return whether the listing of a prefix reads all of its folder."""

    async def list(self, prefix: str) -> list[ListedObject]:
        """Return all pages, in order of path. Use it only for short listings."""

    async def folders(self, prefix: str) -> Sequence[str]:
        """Return the folders directly in the folder `prefix`, in order.

        Each is a prefix itself. `prefix` is empty or ends with a slash, as the results do.
        """

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete objects, in bulk where the store can. A missing object is no error."""

    async def leftovers(self) -> Sequence[WriteLeftover]:
        """Return the leftovers of interrupted writes, and of writes that still run."""

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        """Remove leftovers of writes that are known to be over.

        A write that is still running fails.
        """

    async def bucket_rules(self) -> Sequence[BucketRule]:
        """Return the settings of the bucket that matter to a root; None if it has none.

        The bucket may be a container. A setting that may not be read is in the result, and says so.
        """

    async def signed(self, path: str) -> Signed | None:
        """Return who signed the last commit of an object that is replaced.

        Return None in a root that is not signed.
        """

    async def artifact_check(self) -> ArtifactCheck | None:
        """Return what checks artifacts and packs of which this client can read nothing.

        Return None for a client that can read them, as nearly all can. The client of a cleaner of an encrypted root
        cannot.
        """

    async def close(self) -> None:
        """Release connections. The store opens them again when it is used again."""


class PagedStore:
    """Base class of stores, whose requests are for one page, one object or one range.

    It completes `list` from `list_page`, and `read_each_into` from `read_into`. It knows no bucket.
    """

    @property
    def reads_ranges(self) -> bool:
        return False

    async def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        raise NotImplementedError

    @property
    def reads_at_once(self) -> int:
        return 1

    @property
    def lists_whole_folders(self) -> bool:
        return False

    async def bucket_rules(self) -> Sequence[BucketRule]:
        return ()

    async def signed(self, path: str) -> Signed | None:
        return None

    async def artifact_check(self) -> ArtifactCheck | None:
        return None

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        raise NotImplementedError

    async def read_each_into(self, reads: Sequence[SinkRead[S]]) -> list[S | CheckpointError]:
        return [await read_or_error(self, read) for read in reads]

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        raise NotImplementedError

    async def list(self, prefix: str) -> list[ListedObject]:
        found = [entry async for entries in pages(self, prefix) for entry in entries]
        return sorted(found, key=lambda entry: entry.path)


async def read_or_error(store: PagedStore | Store, read: SinkRead[S]) -> S | CheckpointError:
    """Return the sink of one read, or its error."""
    try:
        return await store.read_into(read.path, read.make, limit=read.limit)
    except CheckpointError as error:
        return error


async def pages(store: PagedStore | Store, prefix: str) -> AsyncIterator[Sequence[ListedObject]]:
    """Yield a listing page by page, for listings that may be too long for memory."""
    page = await store.list_page(prefix)
    yield page.entries
    while page.more is not None:
        page = await store.list_page(prefix, page.more)
        yield page.entries


async def is_empty(store: PagedStore | Store, prefix: str) -> bool:
    """Return whether no object has a path that starts with `prefix`.

    The first page of a listing does not tell: it may be empty although others are not.
    """
    async for entries in pages(store, prefix):
        if entries:
            return False
    return True


async def holds(store: PagedStore | Store, wanted: Callable[[str], bool]) -> bool:
    """Return whether an object has a path of which `wanted` is true."""
    # Page by page until one is found: a store may leave out of a page all that it has, such as temporary files, or give
    # an empty one before others.
    async for entries in pages(store, ""):
        if any(wanted(entry.path) for entry in entries):
            return True
    return False


PROBE, DOCTOR = "_probe-", "_doctor-"
"""Beginnings of the names of objects with which a first commit and `doctor` try a store.

One that was left behind says nothing of a root.
"""


async def holds_beside(store: PagedStore | Store, name: str) -> bool:
    """Return whether a root holds anything but `name` and leftovers of trials."""
    return await holds(store, lambda path: path != name and not path.startswith((PROBE, DOCTOR)))


class WrappedStore(PagedStore):
    """Base class of stores that hand requests on to another store, `inner`.

    They have the root of `inner`.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner

    def __repr__(self) -> str:
        return repr(self.inner)

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def fencing(self) -> bool:
        return self.inner.fencing

    @property
    def lists_whole_folders(self) -> bool:
        return self.inner.lists_whole_folders

    async def bucket_rules(self) -> Sequence[BucketRule]:
        return await self.inner.bucket_rules()

    async def artifact_check(self) -> ArtifactCheck | None:
        return await self.inner.artifact_check()

    async def close(self) -> None:
        await self.inner.close()
