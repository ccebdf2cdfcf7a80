"""The checkpointer of one shard, as the Kinesis Client Library hands it to a record processor."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyspark_checkpointer.consumers.kinesis.sequence import SHARD_END, ExtendedSequenceNumber, number_of
from pyspark_checkpointer.consumers.kinesis.state import Recorded, checkpointed, coalesced, decode, encode, prepared
from pyspark_checkpointer.consumers.lease import Lease, Value
from pyspark_checkpointer.consumers.write_behind import Coalescer, each
from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
    RetryableError,
    ShutdownError,
    ThrottlingError,
)
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.runtime.not_picklable import NotPicklable

T = TypeVar("T")

Step = Callable[[Recorded], Recorded]


class RecordCheckpointer(NotPicklable):
    """Records how far one shard is, for as long as its lease is held. Any thread may call it.

    A checkpoint is taken from the last one up to the largest record delivered; it is durable on return, unless
    updates are coalesced. Every later call raises `ShutdownError` once the lease was lost or released.

    Raises, each saying whether to retry:
        IllegalArgumentError: It is out of range, or no sequence number of a record.
        ShutdownError: The shard belongs to another owner, or did meanwhile. Stop processing.
        ThrottlingError, DependencyError: The store did not take it, or did not say so. Call again: the same
            checkpoint twice is one.
        InvalidStateError: What the store holds does not allow it.
    """

    _instead = "checkpoint where its lease is held, at the sequence numbers that the others return"

    def __init__(
        self, lease: Lease, initial: ExtendedSequenceNumber, waiting: Coalescer["RecordCheckpointer", Recorded]
    ) -> None:
        self._lease, self._initial, self._waiting = lease, initial, waiting
        self._recorded = self._decode(lease.found)
        self._delivered = initial
        self._last: ExtendedSequenceNumber | None = None  # what was seen when the shard ended
        self._known = True
        self._turn = asyncio.Lock()
        lease.flush = self._flush

    def __repr__(self) -> str:
        return f"<RecordCheckpointer of {self._lease!r}: {self.position}>"

    # ---- what it knows -------------------------------------------------------------------------------------------

    @property
    def shard_id(self) -> str:
        return self._lease.partition

    @property
    def lost(self) -> bool:
        """Whether the lease is known to be lost or released."""
        return self._lease.lost

    @property
    def position(self) -> ExtendedSequenceNumber:
        """The last checkpoint, or the place to begin where there is none."""
        return self._recorded.checkpoint

    @property
    def seen(self) -> ExtendedSequenceNumber:
        """The largest sequence number delivered: records after it are next. SHARD_END once the shard has ended."""
        return self._largest_record if self._last is None else SHARD_END

    @property
    def pending(self) -> "PreparedCheckpointer | None":
        """What is prepared and not checkpointed, by an earlier owner of the shard too."""
        pending = self._recorded.pending
        return None if pending is None else PreparedCheckpointer(pending.number, self)

    @property
    def pending_state(self) -> bytes | None:
        """What the application keeps with the pending checkpoint."""
        return None if self._recorded.pending is None else self._recorded.pending.state

    # ---- what it is told -----------------------------------------------------------------------------------------

    def _deliver(self, records: Iterable[Any]) -> None:
        """Let these records be checkpointed from now on: they are about to be handed to the record processor."""
        if self._last is not None:
            raise IllegalArgumentError(
                f"shard {self.shard_id!r:.60}: records were delivered after its end was announced: deliver them before"
            )
        self._delivered = max([self.seen, *map(number_of, records)])

    def _end(self) -> None:
        """Everything in the shard was delivered: from now on, the last record stands for the end of the shard."""
        if self._last is None:
            self._last = self.seen  # one assignment: other threads compare meanwhile

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """At the last record delivered; once the shard has ended, at its end. Nothing delivered: nothing new."""
        self._checkpoint(self.seen)

    def checkpoint_by_record(self, record: Any) -> None:
        """At `record`: an object or mapping with a `sequence_number`, and a `sub_sequence_number` if aggregated."""
        self._checkpoint(self._of_record(record))

    def checkpoint_by_sequence_number(self, sequence_number: str) -> None:
        self._checkpoint(self._number(sequence_number, 0))

    def checkpoint_by_sequence_number_ex(self, sequence_number: str, sub_sequence_number: int) -> None:
        self._checkpoint(self._number(sequence_number, sub_sequence_number))

    # ---- prepared checkpoints ------------------------------------------------------------------------------------

    def prepare_checkpoint(self, *, application_state: bytes | None = None) -> "PreparedCheckpointer":
        """Record that a checkpoint at the last record delivered is intended, without moving the last one.

        If this owner goes before it checkpoints, the next one is handed what is pending, with `application_state`,
        and can checkpoint it. It replaces what was prepared before; any checkpoint ends it. Always durable on return.
        """
        return self._prepare(self.seen, application_state)

    def prepare_checkpoint_by_record(
        self, record: Any, *, application_state: bytes | None = None
    ) -> "PreparedCheckpointer":
        return self._prepare(self._of_record(record), application_state)

    def prepare_checkpoint_by_sequence_number(
        self, sequence_number: str, *, application_state: bytes | None = None
    ) -> "PreparedCheckpointer":
        return self._prepare(self._number(sequence_number, 0), application_state)

    def prepare_checkpoint_by_sequence_number_ex(
        self, sequence_number: str, sub_sequence_number: int, *, application_state: bytes | None = None
    ) -> "PreparedCheckpointer":
        return self._prepare(self._number(sequence_number, sub_sequence_number), application_state)

    def flush(self) -> None:
        """Make durable what was checkpointed."""
        in_contract(self._flush())

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _checkpoint(self, number: ExtendedSequenceNumber) -> None:
        new, seen = self._target(number), self._permitted(number)
        self._record(lambda recorded: checkpointed(recorded, new, seen), at_once=new == SHARD_END)

    def _redeem(self, number: ExtendedSequenceNumber) -> None:
        new, seen = self._target(number), self._permitted(number)
        self._record(lambda recorded: checkpointed(recorded, new, seen), at_once=True)

    def _prepare(self, number: ExtendedSequenceNumber, state: bytes | None) -> "PreparedCheckpointer":
        if state is not None and not isinstance(state, bytes):
            raise IllegalArgumentError(f"application_state: expected bytes, got {type(state).__name__}")
        new, seen = self._target(number), self._permitted(number)
        self._record(lambda recorded: prepared(recorded, new, seen, state), at_once=True)
        return PreparedCheckpointer(new, self)

    def _target(self, number: ExtendedSequenceNumber) -> ExtendedSequenceNumber:
        return SHARD_END if number == self._last else number

    def _permitted(self, number: ExtendedSequenceNumber) -> ExtendedSequenceNumber:
        """Return the largest number that may be recorded. The end of a shard permits no number above its records."""
        return self.seen if self._target(number) == SHARD_END else self._largest_record

    @property
    def _largest_record(self) -> ExtendedSequenceNumber:
        return max(self._delivered, self._recorded.checkpoint)  # what an earlier owner prepared may be checkpointed

    def _of_record(self, record: Any) -> ExtendedSequenceNumber:
        self._lease.check()
        return number_of(record)

    def _number(self, sequence_number: str, sub_sequence_number: int) -> ExtendedSequenceNumber:
        self._lease.check()
        number = ExtendedSequenceNumber(sequence_number, sub_sequence_number)
        if number.is_start:
            raise IllegalArgumentError(f"sequence number {number}: is a place to begin, and no record's")
        return number

    def _record(self, step: Step, *, at_once: bool) -> None:
        in_contract(self._take_step(step, at_once))

    async def _take_step(self, step: Step, at_once: bool) -> None:
        self._lease.check()
        async with self._turn:
            self._waiting.check_open()
            if at_once or not self._known or not self._waiting.coalesces:
                await self._write_step(step)
            elif (after := step(self._recorded)) != self._recorded:
                self._waiting.put(self, after)
                self._recorded = after

    async def _write_step(self, step: Step) -> None:
        await self._flush_own()
        self._known = False
        self._recorded = self._decode(await self._lease.write(self._change(step)))
        self._known = True

    def _change(self, step: Step) -> Callable[[Value | None], Value | None]:
        def change(value: Value | None) -> Value | None:
            before = self._decode(value)
            after = step(before)
            return None if after == before else encode(after)

        return change

    def _decode(self, value: Value | None) -> Recorded:
        return decode(self.shard_id, value, self._initial)

    async def _flush(self) -> None:
        await self._flush_own()
        self._lease.check()

    async def _flush_own(self) -> None:
        await self._waiting.flush(lambda one: one is self)

    async def _write_waiting(self, recorded: Recorded) -> None:
        """Write what was coalesced. Without a lease it is given up, as every later call says."""
        with contextlib.suppress(ShutdownError):
            await self._lease.write(self._change(lambda before: coalesced(before, recorded)))


@dataclass(frozen=True, slots=True)
class PreparedCheckpointer(NotPicklable):
    """A checkpoint that was prepared, for whoever has the shard now."""

    _instead = "redeem it there; the next owner of the shard finds it as `checkpointer.pending`"

    pending_checkpoint: ExtendedSequenceNumber
    _checkpointer: RecordCheckpointer = field(repr=False)

    def checkpoint(self) -> None:
        """Make it the checkpoint, as `checkpoint_by_sequence_number()` would; this ends whatever is pending.

        One that was prepared before others may be redeemed before them: they stay redeemable in this process. It is
        refused once a checkpoint stands above it.
        """
        self._checkpointer._redeem(self.pending_checkpoint)


write_all = each(RecordCheckpointer._write_waiting)
"""Writes what was coalesced, of all shards at once."""


def in_contract(coro: Coroutine[Any, Any, T]) -> T:
    """Run it, and raise nothing but the errors that the contract names."""
    try:
        return run_sync(coro)
    except (RetryableError, ShutdownError, InvalidStateError, IllegalArgumentError):
        raise
    except OutcomeUnknownError as error:
        throttled = isinstance(error.__cause__, ThrottlingError)
        raise (ThrottlingError if throttled else DependencyError)(f"{error}") from error
    except CheckpointError as error:
        raise InvalidStateError(f"{error}") from error
