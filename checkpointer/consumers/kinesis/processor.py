"""The interface of a record processor.

The names and the order of the calls are those of the Kinesis Client Library.

initialize ─> process_records* ─> shard_ended                        all was read: checkpoint the end
                               ─> shutdown_requested ─> lease_lost   checkpoint what is done
                               ─> lease_lost                         another worker has it: checkpoint nothing
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

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
    extended_sequence_number: ExtendedSequenceNumber
    pending_checkpoint_sequence_number: ExtendedSequenceNumber | None
    pending_checkpoint_state: bytes | None
    checkpointer: RecordCheckpointer

    @classmethod
    def of(cls, checkpointer: RecordCheckpointer) -> Self:
        """Return the message for a shard, as its checkpointer knows it.

        For `Worker`.
        """
        pending = checkpointer.pending
        number = None if pending is None else pending.pending_checkpoint
        return cls(checkpointer.shard_id, checkpointer.position, number, checkpointer.pending_state, checkpointer)


@dataclass(frozen=True, slots=True)
class ProcessRecordsInput:
    """The next records of the shard, at least one."""

    records: Sequence[Any]
    checkpointer: RecordCheckpointer


@dataclass(frozen=True, slots=True)
class LeaseLostInput:
    """The message that the shard belongs to another worker.

    There is no checkpointer, because nothing may be recorded.
    """


@dataclass(frozen=True, slots=True)
class ShardEndedInput:
    """The message that everything in the shard was delivered."""

    checkpointer: RecordCheckpointer


@dataclass(frozen=True, slots=True)
class ShutdownRequestedInput:
    """The message that this worker is about to release the shard."""

    checkpointer: RecordCheckpointer


class RecordProcessor(Protocol):
    """A processor of the records of one shard, while one worker has it.

    One thread calls it.
    """

    def initialize(self, initialize_input: InitializationInput, /) -> None:
        """Begin. This is the first call."""

    def process_records(self, process_records_input: ProcessRecordsInput, /) -> None:
        """Process records, in the order of the shard.

        An error that is raised here ends the worker's run.
        """

    def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """Stop, because the shard is not this worker's any more.

        This is the last call, also after a call that raised. A lease can be lost at any moment, so this may follow
        `initialize`, or be the only call.
        """

    def shard_ended(self, shard_ended_input: ShardEndedInput, /) -> None:
        """Checkpoint the end of the shard, by `checkpoint()` or at the last record.

        This is the last call.
        """

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput, /) -> None:
        """Checkpoint what is done.

        The shard goes to another worker, or this one stops. `lease_lost` follows.
        """
