"""Checkpoint one shard.

Record processors get it, as they do in the Kinesis Client Library.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyspark_checkpointer.consumers.kinesis.sequence import SHARD_END, ExtendedSequenceNumber, number_of
from pyspark_checkpointer.consumers.kinesis.state import ShardState, checkpointed, coalesced, decode, encode, prepared
from pyspark_checkpointer.consumers.lease import Lease, Value
from pyspark_checkpointer.consumers.write_behind import WriteBehind, write_each
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

Step = Callable[[ShardState], ShardState]
"""Function that returns the state after one checkpoint.

The function raises if the checkpoint is not allowed. It may be called again on a newer state.
"""


class RecordCheckpointer(NotPicklable):
    """The recorder of the position in one shard, as long as its lease is held.

    Any thread may call it.

    A checkpoint may be any number from the last checkpoint up to the largest record that was delivered. It is durable
    on return, unless checkpoints are delayed. After the lease was lost or released, every call raises `ShutdownError`.

    Raises:
        IllegalArgumentError: The number is out of range, or no sequence number of a record.
        ShutdownError: The shard belongs to another owner, or did in between. Stop processing.
        ThrottlingError, DependencyError: The store did not take the checkpoint, or did not answer. Call again: the same
            checkpoint twice counts once.
        InvalidStateError: The stored position does not allow it.

    Examples:
        The examples of the methods go on from here.

        >>> from pyspark_checkpointer.consumers.kinesis import ShardLeases
        >>> leases = ShardLeases("state/positions", "orders", "worker-1")
        >>> leases.create(["shard-0"])
        >>> checkpointer = leases.take("shard-0")
        >>> leases.deliver(checkpointer, [{"sequence_number": "41"}, {"sequence_number": "42"}])
        >>> checkpointer.checkpoint_by_sequence_number("41")
        >>> str(checkpointer.position), str(checkpointer.seen)
        ('41', '42')
    """

    # _recorded        the state in the store, with delayed checkpoints applied to it
    # _is_current      whether that is sure; not after a write whose outcome is unknown
    # _delivered       the largest number that was delivered, or the place to begin
    # _last_record     the largest number when the shard ended; None before. A checkpoint there is one at SHARD_END.

    _instead = "checkpoint where its lease is held, at the sequence numbers that the others return"

    def __init__(
        self, lease: Lease, initial: ExtendedSequenceNumber, write_behind: WriteBehind["RecordCheckpointer", ShardState]
    ) -> None:
        self._lease = lease
        self._initial, self._write_behind = initial, write_behind
        self._recorded = self._decode(lease.value_when_taken)
        self._is_current = True
        self._begin = self._delivered = self._recorded.initial or initial
        self._last_record: ExtendedSequenceNumber | None = None
        self._step_lock = asyncio.Lock()
        lease.flush = self._flush
        lease.flush_kept = lambda: write_behind.flush_for_read(lambda one: one is self)

    def __repr__(self) -> str:
        return f"<RecordCheckpointer of {self._lease!r}: {self.position}>"

    # ---- state ---------------------------------------------------------------------------------------------------

    @property
    def shard_id(self) -> str:
        """The shard that is checkpointed."""
        return self._lease.partition

    @property
    def lost(self) -> bool:
        """Return whether the lease is known to be lost or released."""
        return self._lease.lost

    @property
    def position(self) -> ExtendedSequenceNumber:
        """The last checkpoint, or the place to begin if there is none."""
        return self._recorded.checkpoint

    @property
    def seen(self) -> ExtendedSequenceNumber:
        """The largest sequence number delivered; records after it are next.

        It is SHARD_END after the shard has ended.
        """
        return self._largest_record if self._last_record is None else SHARD_END

    @property
    def pending(self) -> "PreparedCheckpointer | None":
        """The checkpoint that was prepared and not made, or None.

        An earlier owner of the shard may have prepared it.
        """
        pending = self._recorded.pending
        return None if pending is None else PreparedCheckpointer(pending.number, self._redeem)

    @property
    def pending_state(self) -> bytes | None:
        """The state that the application keeps with the pending checkpoint."""
        return None if self._recorded.pending is None else self._recorded.pending.state

    # ---- checkpoints ---------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """Checkpoint at the last record delivered, or at the end of an ended shard.

        If nothing was delivered, nothing changes: what an earlier owner prepared stays pending.

        Raises:
            ShutdownError: The lease was lost or released. Stop processing.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.
            InvalidStateError: The stored position does not allow it, or the leases were closed.

        Examples:
            >>> checkpointer.checkpoint()
            >>> str(checkpointer.position)
            '42'
        """
        self._lease.check()
        self._write_behind.check_open()
        if self._delivered != self._begin or self._last_record is not None:
            self._checkpoint(self.seen)

    def checkpoint_by_record(self, record: Any) -> None:
        """Checkpoint at a record.

        Args:
            record: An object or mapping with `sequence_number`, and perhaps `sub_sequence_number`.

        Raises:
            IllegalArgumentError: The number is out of range, or no sequence number of a record.
            ShutdownError: The lease was lost or released. Stop processing.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.
            InvalidStateError: The stored position does not allow it, or the leases were closed.

        Examples:
            >>> checkpointer.checkpoint_by_record({"sequence_number": "42"})
            >>> str(checkpointer.position)
            '42'
        """
        self._checkpoint(self._of_record(record))

    def checkpoint_by_sequence_number(self, sequence_number: str) -> None:
        """Checkpoint at a sequence number.

        Args:
            sequence_number: The number in digits, or `SHARD_END`.

        Raises:
            IllegalArgumentError: The number is out of range, or no sequence number of a record.
            ShutdownError: The lease was lost or released. Stop processing.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.
            InvalidStateError: The stored position does not allow it, or the leases were closed.

        Examples:
            >>> checkpointer.checkpoint_by_sequence_number("42")
            >>> str(checkpointer.position)
            '42'
        """
        self._checkpoint(self._number(sequence_number, 0))

    def checkpoint_by_sequence_number_ex(self, sequence_number: str, sub_sequence_number: int) -> None:
        """Checkpoint at a record within an aggregated one.

        Args:
            sequence_number: The number of the aggregated record, in digits.
            sub_sequence_number: The number of the record within it, from 0.

        Raises:
            IllegalArgumentError: The number is out of range, or no sequence number of a record.
            ShutdownError: The lease was lost or released. Stop processing.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.
            InvalidStateError: The stored position does not allow it, or the leases were closed.

        Examples:
            >>> checkpointer.checkpoint_by_sequence_number_ex("41", 2)
            >>> str(checkpointer.position)
            '41:2'
        """
        self._checkpoint(self._number(sequence_number, sub_sequence_number))

    # ---- prepared checkpoints ------------------------------------------------------------------------------------

    def prepare_checkpoint(self, *, application_state: bytes | None = None) -> "PreparedCheckpointer":
        """Prepare a checkpoint at the last record delivered.

        The last checkpoint does not move. If this owner ends before it checkpoints, the next owner finds the pending
        checkpoint, with `application_state`, and can make it. Another prepared checkpoint replaces it, and any
        checkpoint ends it. The pending checkpoint is always durable on return.

        Args:
            application_state: Bytes of your own to keep with it, such as the id of a transaction.

        Returns:
            The prepared checkpoint.

        Raises:
            IllegalArgumentError: `application_state` is not bytes.
            ShutdownError: The lease was lost or released. Stop processing.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.
            InvalidStateError: The stored position does not allow it, or the leases were closed.

        Examples:
            >>> prepared = checkpointer.prepare_checkpoint(application_state=b"transaction 7")
            >>> str(checkpointer.position), checkpointer.pending_state
            ('41', b'transaction 7')
            >>> prepared.checkpoint()
            >>> str(checkpointer.position)
            '42'
        """
        return self._prepare(self.seen, application_state)

    def prepare_checkpoint_by_record(
        self, record: Any, *, application_state: bytes | None = None
    ) -> "PreparedCheckpointer":
        """Prepare a checkpoint at a record.

        Args:
            record: As in `checkpoint_by_record`.
            application_state: As in `prepare_checkpoint`.

        Returns:
            The prepared checkpoint.

        Raises:
            IllegalArgumentError: The number is out of range, or no sequence number of a record; or `application_state`
                is not bytes.
            ShutdownError: The lease was lost or released. Stop processing.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.
            InvalidStateError: The stored position does not allow it, or the leases were closed.

        Examples:
            >>> prepared = checkpointer.prepare_checkpoint_by_record({"sequence_number": "42"})
            >>> str(prepared.pending_checkpoint)
            '42'
        """
        return self._prepare(self._of_record(record), application_state)

    def prepare_checkpoint_by_sequence_number(
        self, sequence_number: str, *, application_state: bytes | None = None
    ) -> "PreparedCheckpointer":
        """Prepare a checkpoint at a sequence number.

        Args:
            sequence_number: The number in digits, or `SHARD_END`.
            application_state: As in `prepare_checkpoint`.

        Returns:
            The prepared checkpoint.

        Raises:
            IllegalArgumentError: The number is out of range, or no sequence number of a record; or `application_state`
                is not bytes.
            ShutdownError: The lease was lost or released. Stop processing.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.
            InvalidStateError: The stored position does not allow it, or the leases were closed.

        Examples:
            >>> prepared = checkpointer.prepare_checkpoint_by_sequence_number("42")
            >>> str(prepared.pending_checkpoint)
            '42'
        """
        return self._prepare(self._number(sequence_number, 0), application_state)

    def prepare_checkpoint_by_sequence_number_ex(
        self, sequence_number: str, sub_sequence_number: int, *, application_state: bytes | None = None
    ) -> "PreparedCheckpointer":
        """Prepare a checkpoint at a record within an aggregated one.

        Args:
            sequence_number: The number of the aggregated record, in digits.
            sub_sequence_number: The number of the record within it, from 0.
            application_state: As in `prepare_checkpoint`.

        Returns:
            The prepared checkpoint.

        Raises:
            IllegalArgumentError: The number is out of range, or no sequence number of a record; or `application_state`
                is not bytes.
            ShutdownError: The lease was lost or released. Stop processing.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.
            InvalidStateError: The stored position does not allow it, or the leases were closed.

        Examples:
            >>> prepared = checkpointer.prepare_checkpoint_by_sequence_number_ex("41", 2)
            >>> str(prepared.pending_checkpoint)
            '41:2'
        """
        return self._prepare(self._number(sequence_number, sub_sequence_number), application_state)

    def flush(self) -> None:
        """Write the delayed checkpoints of this shard.

        Raises:
            ShutdownError: The lease was lost or released. Stop processing.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.
            InvalidStateError: The stored position does not allow it.

        Examples:
            >>> waiting = ShardLeases("state/positions", "orders", "worker-1", max_updates=100)
            >>> delayed = waiting.take("shard-0")
            >>> waiting.deliver(delayed, [{"sequence_number": "43"}])
            >>> delayed.checkpoint()
            >>> delayed.flush()
            >>> str(leases.take("shard-0").position)
            '43'
        """
        run_in_contract(self._flush())

    # ---- steps ---------------------------------------------------------------------------------------------------

    def _checkpoint(self, number: ExtendedSequenceNumber) -> None:
        new, seen = self._target(number), self._max_allowed(number)
        self._record(lambda recorded: checkpointed(recorded, new, seen), at_once=new == SHARD_END)

    def _redeem(self, number: ExtendedSequenceNumber) -> None:
        new, seen = self._target(number), self._max_allowed(number)
        self._record(lambda recorded: checkpointed(recorded, new, seen), at_once=True)

    def _prepare(self, number: ExtendedSequenceNumber, state: bytes | None) -> "PreparedCheckpointer":
        if state is not None and not isinstance(state, bytes):
            raise IllegalArgumentError(f"application_state: expected bytes, got {type(state).__name__}")
        new, seen = self._target(number), self._max_allowed(number)
        # Never delayed: the next owner has to find it, even if this process ends right after the call.
        self._record(lambda recorded: prepared(recorded, new, seen, state), at_once=True)
        return PreparedCheckpointer(new, self._redeem)

    def _target(self, number: ExtendedSequenceNumber) -> ExtendedSequenceNumber:
        """Return the number to record: the end of the shard, for its last record."""
        return SHARD_END if number == self._last_record else number

    def _max_allowed(self, number: ExtendedSequenceNumber) -> ExtendedSequenceNumber:
        """Return the largest number that may be recorded when `number` is asked for.

        The end of a shard may be recorded after it was announced. No other number above the last record may be
        recorded.
        """
        return self.seen if self._target(number) == SHARD_END else self._largest_record

    @property
    def _largest_record(self) -> ExtendedSequenceNumber:
        # A pending checkpoint of an earlier owner, once it is made, is above everything delivered here.
        return max(self._delivered, self._recorded.checkpoint)

    def _of_record(self, record: Any) -> ExtendedSequenceNumber:
        self._lease.check()
        return number_of(record)

    def _number(self, sequence_number: str, sub_sequence_number: int) -> ExtendedSequenceNumber:
        self._lease.check()
        number = ExtendedSequenceNumber(sequence_number, sub_sequence_number)
        if number.is_start:
            raise IllegalArgumentError(f"sequence number {number}: is a place to begin, not the number of a record")
        return number

    def _record(self, step: Step, *, at_once: bool) -> None:
        run_in_contract(self._take_step(step, at_once))

    async def _take_step(self, step: Step, at_once: bool) -> None:
        self._lease.check()
        # One step at a time: each is checked against the outcome of the one before.
        async with self._step_lock:
            self._write_behind.check_open()
            # A delayed checkpoint is checked against the recorded state, so that has to be sure.
            if at_once or not self._is_current or not self._write_behind.coalesces:
                await self._write_step(step)
            # The step raises for a checkpoint that is refused, so nothing of that is put.
            elif (after := step(self._recorded)) != self._recorded:
                self._write_behind.put(self, after)
                self._recorded = after

    async def _write_step(self, step: Step) -> None:
        # Delayed checkpoints come first. Until the answer is there, nobody knows what the store holds.
        await self._flush_own()
        self._is_current = False
        self._recorded = self._decode(await self._lease.write(self._change(step)))
        self._is_current = True

    def _change(self, step: Step) -> Callable[[Value | None], Value | None]:
        def change(value: Value | None) -> Value | None:
            before = self._decode(value)
            # The step is checked again on what is stored now: a swap of this lease may have taken effect since the
            # caller looked.
            after = step(before)
            # A checkpoint that is recorded already costs no write.
            return None if after == before else encode(after)

        return change

    def _decode(self, value: Value | None) -> ShardState:
        return decode(self.shard_id, value, self._initial)

    async def _flush(self) -> None:
        await self._flush_own()
        self._lease.check()

    async def _flush_own(self) -> None:
        await self._write_behind.flush(lambda one: one is self)

    async def _write_delayed(self, recorded: ShardState) -> None:
        """Write delayed checkpoints.

        Without a lease the checkpoints are given up silently: every later call raises the reason.
        """
        with contextlib.suppress(ShutdownError):
            await self._lease.write(self._change(lambda before: coalesced(before, recorded)))


@dataclass(frozen=True, slots=True)
class PreparedCheckpointer(NotPicklable):
    """A checkpoint that was prepared, for the present owner of the shard."""

    _instead = "redeem it there; the next owner of the shard finds it as `checkpointer.pending`"

    pending_checkpoint: ExtendedSequenceNumber
    """The sequence number that it was prepared at."""
    _redeem: Callable[[ExtendedSequenceNumber], None] = field(repr=False)

    def checkpoint(self) -> None:
        """Make the prepared checkpoint, as `checkpoint_by_sequence_number()` would.

        This ends the pending checkpoint. If several checkpoints were prepared, this process may make them in their
        order. A prepared checkpoint below the last checkpoint is refused.

        Raises:
            IllegalArgumentError: The number is below the last checkpoint.
            ShutdownError: The lease was lost or released. Stop processing.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.
            InvalidStateError: The stored position does not allow it, or the leases were closed.

        Examples:
            >>> from pyspark_checkpointer.consumers.kinesis import ShardLeases
            >>> leases = ShardLeases("state/positions", "orders", "worker-1")
            >>> leases.create(["shard-0"])
            >>> checkpointer = leases.take("shard-0")
            >>> leases.deliver(checkpointer, [{"sequence_number": "42"}])
            >>> prepared = checkpointer.prepare_checkpoint()
            >>> prepared.checkpoint()
            >>> str(checkpointer.position)
            '42'
        """
        self._redeem(self.pending_checkpoint)


# ---- for `ShardLeases`: these are no methods, since a processor is handed the contract and no more -------------------


def lease_of(checkpointer: RecordCheckpointer) -> Lease:
    """Return the lease that a checkpointer writes under."""
    return checkpointer._lease


def is_written_by(checkpointer: RecordCheckpointer, write_behind: WriteBehind[RecordCheckpointer, ShardState]) -> bool:
    """Return whether a checkpointer delays its checkpoints in `write_behind`.

    All checkpointers of one `ShardLeases` share one.
    """
    return checkpointer._write_behind is write_behind


def deliver(checkpointer: RecordCheckpointer, records: Iterable[Any]) -> None:
    """Allow checkpoints at these records, which are about to be processed."""
    if checkpointer._last_record is not None:
        raise IllegalArgumentError(
            f"shard {checkpointer.shard_id!r:.60}: records were delivered after its end was announced: "
            "deliver them before"
        )
    # Never lower than before: what was delivered once may be checkpointed from then on.
    if numbers := [*map(number_of, records)]:
        checkpointer._delivered = max([checkpointer.seen, *numbers])


def end(checkpointer: RecordCheckpointer) -> None:
    """Note that everything was delivered.

    From now on, a checkpoint at the last record is one at the end of the shard.
    """
    if checkpointer._last_record is None:
        checkpointer._last_record = checkpointer.seen  # One assignment, since other threads may checkpoint meanwhile.


write_all = write_each(RecordCheckpointer._write_delayed)
"""The `Write` of the delayed checkpoints of all shards, which runs concurrently."""


def run_in_contract(coro: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine.

    Raise only errors that `RecordCheckpointer` documents.
    """
    try:
        return run_sync(coro)
    except (RetryableError, ShutdownError, InvalidStateError, IllegalArgumentError):
        raise
    # The contract knows no unknown outcome. It is told as an error to retry, since the same checkpoint twice counts
    # once.
    except OutcomeUnknownError as error:
        throttled = isinstance(error.__cause__, ThrottlingError)
        raise (ThrottlingError if throttled else DependencyError)(f"{error}") from error
    # What is left, such as a damaged position, is not mended by trying again.
    except CheckpointError as error:
        raise InvalidStateError(f"{error}") from error
