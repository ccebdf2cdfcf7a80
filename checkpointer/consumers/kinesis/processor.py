"""Define the interface of a record processor.

The names and the order of the calls are those of the Kinesis Client Library.

initialize ─> process_records* ─> shard_ended                        all was read: checkpoint the end
                               ─> shutdown_requested ─> lease_lost   checkpoint what is done
                               ─> lease_lost                         another worker has it: checkpoint nothing
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark_checkpointer.consumers.kinesis.checkpointer import RecordCheckpointer
from pyspark_checkpointer.consumers.kinesis.sequence import ExtendedSequenceNumber


@dataclass(frozen=True, slots=True)
class InitializationInput:
    """The place where a processor begins.

    It begins after this number, unless it commits what an earlier owner left pending:

    def initialize(self, start):
        if start.pending_checkpoint_sequence_number is not None and self.did(start.pending_checkpoint_state):
            start.checkpointer.pending.checkpoint()
    """

    shard_id: str
    """The id of the shard."""
    extended_sequence_number: ExtendedSequenceNumber
    """The last checkpoint, or the place to begin."""
    pending_checkpoint_sequence_number: ExtendedSequenceNumber | None
    """The checkpoint that was prepared and not made, or None."""
    pending_checkpoint_state: bytes | None
    """The bytes that the application kept with it, or None."""
    checkpointer: RecordCheckpointer
    """The checkpointer of the shard."""


@dataclass(frozen=True, slots=True)
class ProcessRecordsInput:
    """The next records of the shard, at least one."""

    records: Sequence[Any]
    """The records that `fetch` returned, in the order of the shard."""
    checkpointer: RecordCheckpointer
    """The checkpointer of the shard."""


@dataclass(frozen=True, slots=True)
class LeaseLostInput:
    """The message that the shard belongs to another worker.

    There is no checkpointer, because nothing may be recorded.
    """


@dataclass(frozen=True, slots=True)
class ShardEndedInput:
    """The message that everything in the shard was delivered."""

    checkpointer: RecordCheckpointer
    """The checkpointer of the shard."""


@dataclass(frozen=True, slots=True)
class ShutdownRequestedInput:
    """The message that this worker is about to release the shard."""

    checkpointer: RecordCheckpointer
    """The checkpointer of the shard."""


class RecordProcessor(Protocol):
    """A processor of the records of one shard, while one worker has it.

    One thread calls it.

    Examples:
        A worker makes these calls. The examples of the methods go on from here.

        >>> from pyspark_checkpointer.consumers.kinesis import RecordProcessor, ShardLeases, Worker
        >>> class Processor(RecordProcessor):
        ...     def process_records(self, given):
        ...         print([record["data"] for record in given.records])
        ...         given.checkpointer.checkpoint()
        >>> records = [{"sequence_number": "41", "data": "a"}, {"sequence_number": "42", "data": "b"}]
        >>> def fetch(shard_id, after):
        ...     return ([], False) if after.is_record else (records, False)
        >>> leases = ShardLeases("state/positions", "orders", "worker-1")
        >>> leases.create(["shard-0"])
        >>> Worker(leases, fetch, Processor).run_once()
        ['a', 'b']
        True
    """

    def initialize(self, initialize_input: InitializationInput, /) -> None:
        """Begin. This is the first call.

        Args:
            initialize_input: The shard, and the place where it begins.

        Examples:
            >>> class Resuming(Processor):
            ...     def initialize(self, start):
            ...         print(start.shard_id, "after", start.extended_sequence_number)
            >>> Worker(leases, fetch, Resuming).run_once()
            shard-0 after 42
            False
        """

    def process_records(self, process_records_input: ProcessRecordsInput, /) -> None:
        """Process records, in the order of the shard.

        An error that is raised here ends the worker's run.

        Args:
            process_records_input: The records, at least one, and the checkpointer of the shard.

        Examples:
            >>> class Counting(RecordProcessor):
            ...     def process_records(self, given):
            ...         print(len(given.records))
            ...         given.checkpointer.checkpoint_by_record(given.records[-1])
            >>> more = [{"sequence_number": "43"}, {"sequence_number": "44"}]
            >>> Worker(leases, lambda shard_id, after: (more, False), Counting).run_once()
            2
            True
        """

    def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """Stop, because the shard is not this worker's any more.

        This is the last call, also after a call that raised. A lease can be lost at any moment, so this may follow
        `initialize`, or be the only call.

        Args:
            lease_lost_input: It holds nothing, because nothing may be recorded.

        Examples:
            >>> class Closing(Processor):
            ...     def lease_lost(self, given):
            ...         print("close the files")
            >>> worker = Worker(leases, fetch, Closing)
            >>> busy = worker.run_once()
            >>> worker.stop()
            >>> worker.run()  # releases the shard
            close the files
        """

    def shard_ended(self, shard_ended_input: ShardEndedInput, /) -> None:
        """Checkpoint the end of the shard, by `checkpoint()` or at the last record.

        This is the last call. If the shard was split, add its children with `create` before `checkpoint()` or
        `prepare_checkpoint()`: once the end is recorded, nobody calls this again.

        Args:
            shard_ended_input: The checkpointer of the shard.

        Examples:
            >>> class Ending(Processor):
            ...     def shard_ended(self, given):
            ...         given.checkpointer.checkpoint()
            ...         print(given.checkpointer.position)
            >>> busy = Worker(leases, lambda shard_id, after: ([], True), Ending).run_once()
            SHARD_END
        """

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput, /) -> None:
        """Checkpoint the records that are done.

        The shard goes to another worker, or this one stops. `lease_lost` follows.

        Args:
            shutdown_requested_input: The checkpointer of the shard.

        Examples:
            >>> class Leaving(Processor):
            ...     def shutdown_requested(self, given):
            ...         given.checkpointer.checkpoint()
            ...         print("leave at", given.checkpointer.position)
            >>> worker = Worker(leases, fetch, Leaving)
            >>> busy = worker.run_once()
            >>> worker.stop()
            >>> worker.run()
            leave at 42
        """
