"""What every store offers: coroutines over whole objects, named by paths relative to the root.

Objects are written once and never changed, except those written by `compare_and_swap`. Paths come from
`manifests/object_paths.py` only. A store raises errors of the tree (`checkpointer/errors.py`) and three signals of its
own, which the layers above turn into an outcome:

* `ObjectNotFoundError`: nothing has this path;
* `ObjectExistsError`: `put` found something at the path;
* `PreconditionFailedError`: `compare_and_swap` found another version. Nothing was written by the answered
  request, but an earlier, unanswered request of the same caller may be what moved the version: read back
  before judging.

`RetryableError` from `compare_and_swap` means that nobody knows whether it took effect.
`OutcomeUnknownError` from it means that the bytes are in place but the disk has not confirmed them: reading
back shows them and proves nothing.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pyspark_checkpointer.errors import ConflictError, IllegalArgumentError, NotFoundError
from pyspark_checkpointer.manifests.digest import Bytes, sha256

UNFENCED = 'fencing="none", or --fencing none on the command line (of a target --target-fencing none)'
"""How a user accepts a store without conditions on writes, as errors say it."""

SWAP_LIMIT = 16 << 20
"""Largest object, in bytes, that can be written or replaced by `compare_and_swap`."""


class ObjectNotFoundError(NotFoundError):
    """No object has this path."""


class ObjectExistsError(ConflictError):
    """An object already has this path."""


class PreconditionFailedError(ConflictError):
    """The object has another version than the caller expected."""


@dataclass(frozen=True, slots=True)
class Blob:
    """An object as read: its bytes, and what the store calls this version of it, where it has names for versions.

    `at` is when the store began to answer, to the second, since the epoch by the clock of its server; None where there
    is none, or it did not tell. It is no part of the object: two reads of one version are equal.
    """

    data: bytes = field(repr=False)
    tag: str | None = None
    at: float | None = field(default=None, compare=False, repr=False)

    @property
    def version(self) -> str:
        """What a swap can be conditioned on. Without a tag it is the digest, made only for those who ask."""
        return sha256(self.data) if self.tag is None else self.tag


class Sink(Protocol):
    """What takes an object in pieces, one after the other, as the hashes of `hashlib` do."""

    def update(self, piece: bytes, /) -> None: ...


S = TypeVar("S", bound=Sink)


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as listed: path relative to the root, size in bytes."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a listing, in no particular order; `more` asks for the next one, and is None after the last."""

    entries: Sequence[Entry]
    more: object | None


@dataclass(frozen=True, slots=True)
class Settings:
    """How the caller wants a root opened, whatever store it is on. `open_store` checked the values."""

    fencing: bool
    concurrency: int
    timeout: float


@dataclass(frozen=True, slots=True)
class Leftover:
    """What an interrupted write of `path` left behind: a temporary file, or the parts of an upload."""

    path: str
    token: str


def check_path(path: str) -> str:
    """`path` as given, or `IllegalArgumentError` if it is not one that a layout would make."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\0" in path or "\\" in path:
        raise IllegalArgumentError(f"{path!r:.200}: not a path inside a store")
    return path


class Listing:
    """Whole listings, for whoever gives pages."""

    async def list_page(self, prefix: str, more: object | None = None) -> Page:
        raise NotImplementedError

    async def list(self, prefix: str) -> list[Entry]:
        found = [entry async for entries in pages(self, prefix) for entry in entries]
        return sorted(found, key=lambda entry: entry.path)


async def pages(store: "Listing | Store", prefix: str) -> AsyncIterator[Sequence[Entry]]:
    """Yield a listing page by page, for what may be too much for memory."""
    page = await store.list_page(prefix)
    yield page.entries
    while page.more is not None:
        page = await store.list_page(prefix, page.more)
        yield page.entries


class Store(Protocol):
    """A root on some object store. All coroutines run on the library's own event loop
    (`pyspark_checkpointer.runtime`)."""

    @property
    def url(self) -> str:
        """The root as a user would write it, without secrets."""

    @property
    def fencing(self) -> bool:
        """Whether `put` and `compare_and_swap` are atomic against every other client of the root."""

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        """Read an object in one request, or raise `ObjectNotFoundError`.

        An object of more than `limit` bytes raises `CorruptionError` before its body is read into memory.
        """

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        """Read an object as `get` does, but hand it piece by piece to a sink from `make`, in a thread. Return the sink.

        For what needs the bytes only as they go by: few of them are in memory at a time. After a failure that can be
        tried again, another sink gets the object from its beginning.
        """

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        """Read `length` bytes from `offset` (fewer where the object ends before), or raise
        `ObjectNotFoundError`.

        `length` is at least 1.
        """

    async def put(self, path: str, data: Bytes) -> None:
        """Write an object that is complete and durable once this returns, and never visible in part.

        Raises `ObjectExistsError` where something is at the path already, as far as the store can tell: a
        large object may be written over one of the same name, so names must be unique to their content.
        """

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        """Replace the object if its version is `expected` (None: if there is none). Return the new version.

        One attempt, never repeated by the store. Raises `PreconditionFailedError` when the version differs.
        `data` and what it replaces have at most `SWAP_LIMIT` bytes.
        """

    async def list_page(self, prefix: str, more: object | None = None) -> Page:
        """The next page of the objects whose path starts with `prefix`: the first, or what `more` of a page asks for.

        Never from a cache. Temporary files of writers are left out. What is written or deleted meanwhile may be there
        or not. `more` belongs to one listing in one process.
        """

    async def list(self, prefix: str) -> list[Entry]:
        """Return all pages, in order of path. For what is known to be little."""

    async def folders(self, prefix: str) -> Sequence[str]:
        """The folders directly in the folder `prefix` (with its slash, or empty), each a prefix itself, in order."""

    async def delete(self, paths: Sequence[str]) -> None:
        """Delete objects, in bulk where the store can. What is not there is no error."""

    async def leftovers(self) -> Sequence[Leftover]:
        """Return what interrupted writes left behind, and what running writes have not finished yet."""

    async def discard(self, leftovers: Sequence[Leftover]) -> None:
        """Remove leftovers of writes that are known to be over: a write whose leftover goes meanwhile
        fails."""

    async def close(self) -> None:
        """Release connections. The store opens them again when it is used again."""
