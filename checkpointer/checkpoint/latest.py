"""The state machine of `_latest`: reading it, swapping it, and finding out what became of a swap.

Everything that makes a checkpoint live or dead goes through `cas_loop`, so there is one total order of what happened
to a store. The rules, each with the history it prevents, are in `manifests/SPEC.md`.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from pyspark_checkpointer.errors import (
    ConflictError,
    CorruptionError,
    OutcomeUnknownError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.manifest_json import decode_pointer, encode_pointer
from pyspark_checkpointer.manifests.model import Pointer, Ref, Writer
from pyspark_checkpointer.storage.base import SWAP_LIMIT, Blob, ObjectNotFoundError, Store
from pyspark_checkpointer.storage.compare_and_swap import READ_FAILURES, UndecidedError, decide, find

T = TypeVar("T")

ROUNDS = 1000
"""How often an operation plans again because others moved the pointer. Each round means somebody made progress."""

MAX_POINTER = 1 << 20


@dataclass(frozen=True, slots=True)
class Head:
    """One reading of `_latest`: what it says, and the version a swap is conditioned on. Both None: no store yet."""

    pointer: Pointer | None = None
    version: str | None = None

    @property
    def committed(self) -> Ref | None:
        return None if self.pointer is None else self.pointer.committed

    @property
    def prepared(self) -> Ref | None:
        return None if self.pointer is None else self.pointer.prepared

    @property
    def sequence(self) -> int:
        """The committed sequence; 0 before the first commit."""
        return 0 if self.committed is None else self.committed.id.sequence

    @property
    def writer(self) -> Writer | None:
        return None if self.pointer is None else self.pointer.writer


Step = Callable[[Head], Awaitable[Pointer | None]]
"""Plan a swap on the version given: the pointer to write, or None where there is nothing left to do.

Called again, on the new version, whenever the old one is gone; it checks everything anew and raises to give up.
"""


async def read_head(store: Store) -> Head:
    return _decode(await find(store, object_paths.LATEST, SWAP_LIMIT))


async def read_damaged(store: Store) -> tuple[Head, bytes]:
    """What is there of `_latest`, with its bytes. Where they say nothing the head has their version alone, to swap on.

    A newer format is no damage: `UnsupportedFormatError`.
    """
    blob = await find(store, object_paths.LATEST, SWAP_LIMIT)
    try:
        return _decode(blob), b"" if blob is None else blob.data
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
        raise type(error)(
            f"{error}: repair_candidates(), or `checkpointer repair`, lists what the root can be repaired to"
        ) from None


async def cas_loop(store: Store, head: Head, step: Step) -> Head:
    """Swap what `step` plans on `head`; where somebody else moved first, let it plan on what is there now.

    Returns the version on which the operation stands. Raises what `step` raises, or `OutcomeUnknownError`: also where,
    after a swap whose answer was lost, what would tell cannot be read.
    """
    sent: Pointer | None = None
    for _ in range(ROUNDS):
        try:
            try:
                planned = await step(head)
            except ObjectNotFoundError as error:
                head = await refresh(store, head, error)
                continue
        except (*READ_FAILURES, CorruptionError) as error:
            if sent is None:
                raise
            raise _unknown(store, sent) from error
        if planned is None:
            return head
        sent = planned
        head = await _swap(store, head, planned)
        if head.pointer is not None and head.pointer.nonce == planned.nonce:
            return head
    raise ConflictError(f"{store.url}: others moved _latest {ROUNDS} times in a row: try again later")


async def _swap(store: Store, head: Head, planned: Pointer) -> Head:
    """The version after the swap was decided: `planned` itself, or what somebody else wrote."""
    data = encode_pointer(planned)
    try:
        blob = await decide(store, object_paths.LATEST, data, head.version, SWAP_LIMIT)
        # Where it took effect there is nothing to decode; what was there before, repair cannot decode.
        return Head(planned, blob.version) if blob is not None and blob.data == data else _decode(blob)
    except UndecidedError as error:
        raise _unknown(store, planned) from error.__cause__
    except CorruptionError as error:  # of what was read back, which may be the planned one with a wrong bit
        raise _unknown(store, planned) from error


def _unknown(store: Store, planned: Pointer) -> OutcomeUnknownError:
    return OutcomeUnknownError(
        f"{store.url}: a swap of _latest (nonce {planned.nonce}) was sent and nothing proves whether it took effect: "
        "call restore(), which tells, and go on from there; on the command line `checkpointer list` tells"
    )


def successor(head: Head, writer: Writer, nonce: str) -> Pointer:
    """Return the pointer of `head` under `writer`, for the caller to change further. The boundary never moves back."""
    if head.pointer is None:
        return Pointer(writer=writer, committed=None, prepared=None, boundary=1, catalog=None, retired=(), nonce=nonce)
    return replace(head.pointer, writer=writer, nonce=nonce)


async def read_consistent(store: Store, read: Callable[[Head], Awaitable[T]]) -> T:
    """What `read` makes of `_latest`, from the start again where what it names went away meanwhile."""
    head = await read_head(store)
    while True:
        try:
            return await read(head)
        except ObjectNotFoundError as error:
            head = await refresh(store, head, error)


async def refresh(store: Store, head: Head, missing: ObjectNotFoundError) -> Head:
    """A newer version of `_latest` than the one that names a missing object; without one, the store is damaged."""
    now = await read_head(store)
    if now.version == head.version:
        raise CorruptionError(
            f"{store.url}: _latest reaches an object that is not there: {missing}: "
            "restore a savepoint, which needs only its own objects"
        ) from None
    return now
