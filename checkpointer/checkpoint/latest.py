"""Read `_latest`, swap it, and learn the outcome.

Everything that makes a checkpoint live or dead goes through `cas_loop`, so there is one total order of what happened to
a store. The rules, each with the history it prevents, are in `manifests/PROTOCOL.md`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    CorruptionError,
    InvalidStateError,
    OutcomeUnknownError,
    UnsupportedFormatError,
    UntrustedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.manifest_json import decode_pointer, encode_pointer
from pyspark_checkpointer.manifests.model import CatalogRef, CheckpointId, Pointer, Ref, Retired, Writer
from pyspark_checkpointer.storage.base import (
    SWAP_LIMIT,
    Blob,
    ObjectNotFoundError,
    ObjectRefusedError,
    Store,
    UndecryptableError,
)
from pyspark_checkpointer.storage.compare_and_swap import READ_FAILURES, UndecidedError, find_object, swap_until_decided

T = TypeVar("T")

ROUNDS = 1000
"""Largest number of times that an operation plans again.

It plans again when others moved the pointer. Each round means that somebody made progress.
"""

MAX_POINTER = 1 << 20

UNREADABLE = (UndecryptableError, UntrustedError)
"""Errors of an object that exists but cannot be decrypted or trusted.

Without a version, it concerns another object, such as the list of signers: a repair of `_latest` does not help.
"""


@dataclass(frozen=True, slots=True)
class Head:
    """One version of `_latest`: its content, and the version for a swap.

    On a new root both are None.
    """

    pointer: Pointer | None = None
    version: str | None = None
    committed: Ref | None = field(init=False, default=None, compare=False, repr=False)
    prepared: Ref | None = field(init=False, default=None, compare=False, repr=False)
    writer: Writer | None = field(init=False, default=None, compare=False, repr=False)
    sequence: int = field(init=False, default=0, compare=False, repr=False)
    """The committed sequence; 0 before the first commit."""

    def __post_init__(self) -> None:
        """Copy the fields of the pointer that each step of a commit needs."""
        if self.pointer is not None:
            for name in ("committed", "prepared", "writer"):
                object.__setattr__(self, name, getattr(self.pointer, name))
        if self.committed is not None:
            object.__setattr__(self, "sequence", self.committed.id.sequence)

    @property
    def boundary(self) -> int:
        """The lowest sequence of the history; 0 on a new root."""
        return 0 if self.pointer is None else self.pointer.boundary

    @property
    def catalog(self) -> CatalogRef | None:
        return None if self.pointer is None else self.pointer.catalog

    @property
    def retired(self) -> tuple[Retired, ...]:
        return () if self.pointer is None else self.pointer.retired


PlanSwap = Callable[[Head], Awaitable[Pointer | None]]
"""Plan a swap on a version: return the pointer to write.

Returns None if there is nothing left to do.

The function is called again on the new version whenever the old one is gone. It then checks everything again. It raises
an error to give up.
"""


NEWEST = 10**10 - 1
"""The highest sequence that an id can have."""


async def read_head(store: Store) -> Head:
    """Return the content of `_latest`; an empty head before the first commit.

    Raises `InvalidStateError` where `_latest` is missing though commits were made. If a writer thought that such a root
    is empty, it would begin a new history at sequence 1, and the next cleanup would delete the old history.
    """
    head = await find_head(store)
    if head.version is None and (newest := await newest_above(store, head)):
        head = await find_head(store)  # several commits may have been made between the two requests
        if head.version is None:
            raise InvalidStateError(
                f"{store.url}: has no {object_paths.LATEST}, though manifests up to {newest} are there: it was lost. "
                "repair_candidates(), or `checkpointer repair`, lists what it can be repaired to; to begin anew, "
                "choose an empty root"
            )
    return head


async def find_head(store: Store) -> Head:
    """Return the content of `_latest`; an empty head if it is missing.

    It does not matter what else the root holds. This is for callers that look after a damaged root, and for those that
    have proven that a root is new.
    """
    try:
        blob = await find_object(store, object_paths.LATEST, SWAP_LIMIT)
    except UNREADABLE as error:
        raise (error if error.version is None else _repairable(error)) from None
    return _decode(blob)


async def newest_above(store: Store, head: Head) -> CheckpointId | None:
    """Return the newest manifest above all attempts on this version, or None.

    An attempt on this version has the sequence after the committed one, 1 if nothing is committed. So a manifest with a
    higher one proves that `_latest` was lost, or that an old copy of it was put back.
    """
    above = await list_sizes(store, head.sequence + 2, NEWEST)
    return above[-1][0] if above else None


async def list_sizes(store: Store, oldest: int, newest: int) -> list[tuple[CheckpointId, int]]:
    """Return the ids of the manifests in the store, in order, with their sizes.

    Nothing says yet which of them count.
    """
    return [
        (owner, entry.size)
        for entry in await store.list(object_paths.manifests(oldest, newest))
        if (owner := object_paths.owner(entry.path)) is not None
        # The listed prefix is the longest that the sequences share, so it can bring others, and segments, which carry
        # an id too.
        and entry.path == object_paths.manifest(owner)
        and oldest <= owner.sequence <= newest
    ]


async def read_damaged(store: Store) -> tuple[Head, bytes]:
    """Return the readable part of `_latest`, and its bytes.

    If the bytes are damaged, the head has only their version, so that a repair can swap on it. A newer format is not
    damage: it raises `UnsupportedFormatError`. Raises `ObjectRefusedError` where the store shows `_latest` to nobody,
    and `CorruptionError` where it is too large to be read.
    """
    try:
        blob = await find_object(store, object_paths.LATEST, SWAP_LIMIT)
    except UNREADABLE as error:  # nothing of it can be read, but a repair can still swap on it
        if error.version is None:
            raise
        return Head(None, error.version), b""
    except UnsupportedFormatError:
        raise
    except (ObjectRefusedError, CorruptionError) as error:  # there is no version to swap on
        raise type(error)(
            f"{error}; if that does not change, move `{object_paths.LATEST}` away, and call this again: a root without "
            "it can be repaired"
        ) from None
    try:
        return _decode(blob), b"" if blob is None else blob.data
    # It is a `CorruptionError` as well. A repair that took a newer format for damage would destroy a sound root.
    except UnsupportedFormatError:
        raise
    except CorruptionError:
        assert blob is not None
        return Head(None, blob.version), blob.data


def _decode(blob: Blob | None) -> Head:
    if blob is None:
        return Head()
    try:
        if len(blob.data) > MAX_POINTER:
            raise CorruptionError(
                f"{object_paths.LATEST}: expected at most {MAX_POINTER} bytes, found {len(blob.data)}"
            )
        return Head(decode_pointer(blob.data), blob.version)
    except UnsupportedFormatError:
        raise
    except CorruptionError as error:
        raise _repairable(error) from None


def _repairable(error: CorruptionError) -> CorruptionError:
    """Return the error of a damaged `_latest`, with the next step."""
    return type(error)(
        f"{error}: repair_candidates(), or `checkpointer repair`, lists what the root can be repaired to"
    )


async def cas_loop(store: Store, head: Head, plan_swap: PlanSwap) -> Head:
    """Swap what `plan_swap` plans on `head`.

    If somebody else moved the pointer first, `plan_swap` plans again on the new version.

    Returns the version in which the operation is done. Raises what `plan_swap` raises, or `OutcomeUnknownError` if a
    swap was sent and its result cannot be read back.
    """
    sent: Pointer | None = None
    for left in reversed(range(ROUNDS + 1)):
        try:
            try:
                planned = await plan_swap(head)
            # A cleanup may have swept what this version names, after others moved the pointer. It is damage only if
            # they did not.
            except ObjectNotFoundError as error:
                head = await _read_after(store, sent, refresh(store, head, error))
                continue
        except (*READ_FAILURES, CorruptionError, UndecidedError) as error:
            # Once a swap was sent, only the history tells whether it landed. A plan that cannot read it has proven no
            # failure.
            if sent is None:
                raise
            raise _unknown(store, sent) from error
        if planned is None:
            return head
        if not left:
            # This plan was made on a version that is there in place of our last swap, so that swap did not take effect.
            raise ConflictError(f"{store.url}: other writers changed _latest {ROUNDS} times in a row: try again later")
        sent = planned
        head = await _swap(store, head, planned)
        # The nonce and not the content: another writer can plan the same content.
        if head.pointer is not None and head.pointer.nonce == planned.nonce:
            return head
        if head.version is None:  # somebody removed `_latest` since it was read
            head = await _read_after(store, sent, read_head(store))
    # Nothing was planned on what is there now.
    if sent is not None:
        raise _unknown(store, sent)
    raise ConflictError(f"{store.url}: others changed what _latest names {ROUNDS} times in a row: try again later")


async def _read_after(store: Store, sent: Pointer | None, read: Awaitable[Head]) -> Head:
    """Return what is read of `_latest`; a failure says nothing of a sent swap."""
    try:
        return await read
    except CheckpointError as error:
        # That the pointer was lost is more than that it cannot be read.
        if sent is None or isinstance(error, InvalidStateError):
            raise
        raise _unknown(store, sent) from error


async def _swap(store: Store, head: Head, planned: Pointer) -> Head:
    """Send a swap and return the version that it led to.

    This is `planned`, or what another writer wrote first.
    """
    data = encode_pointer(planned)
    if len(data) > MAX_POINTER:
        raise InvalidStateError(
            f"{store.url}: _latest would have {len(data)} bytes, and at most {MAX_POINTER} can be read, so it stays as "
            "it is: clean() with a shorter grace takes entries out of its `retired`"
        )
    try:
        blob = await swap_until_decided(store, object_paths.LATEST, data, head.version, SWAP_LIMIT)
        if blob is not None and blob.data == data:
            return Head(planned, blob.version)
        return _decode(blob)
    except UndecidedError as error:
        raise _unknown(store, planned) from error.__cause__
    except CorruptionError as error:  # of what was read back, which may be the planned one with a wrong bit
        raise _unknown(store, planned) from error


def _unknown(store: Store, planned: Pointer) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{store.url}: a swap of _latest (nonce {planned.nonce}) was sent and nothing proves whether it took effect: "
        "call restore() to find out, and go on from there; on the command line use `checkpointer list`"
    )


async def read_consistent(store: Store, read: Callable[[Head], Awaitable[T]]) -> T:
    """Return the result of `read` on `_latest`.

    Starts again on the new version if an object that the old one names was deleted meanwhile.
    """
    head = await read_head(store)
    # This ends, since `refresh` raises unless somebody moved the pointer.
    while True:
        try:
            return await read(head)
        except ObjectNotFoundError as error:
            head = await refresh(store, head, error)


async def refresh(store: Store, head: Head, missing: ObjectNotFoundError) -> Head:
    """Return a newer version of `_latest` than `head`, which names a missing object.

    Raise `CorruptionError` if there is none: then the store is damaged.
    """
    now = await read_head(store)
    # Missing is not empty: a sweep that took a missing catalog for an empty one deleted a live savepoint.
    if now.version == head.version:
        raise CorruptionError(
            f"{store.url}: _latest leads to an object that is missing: {missing}: `checkpointer verify` says which "
            "checkpoints need it; bring it back from a copy, or delete these with `checkpointer delete` (if their "
            "manifest is missing, older ones go too); if the newest one is among them, "
            "restore(on_corruption='previous') goes back, or else `checkpointer repair`"
        ) from None
    return now
