"""What a record processor is, and what it is told. Names and order are the Kinesis Client Library's.

initialize ─> process_records* ─> shard_ended                  everything was read: checkpoint the end
                               ─> shutdown_requested ─> lease_lost   checkpoint what is done
                               ─> lease_lost                   somebody else has the shard: checkpoint nothing
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from pyspark_checkpointer.consumers.kinesis.checkpointer import RecordCheckpointer
from pyspark_checkpointer.consumers.kinesis.sequence import ExtendedSequenceNumber


@dataclass(frozen=True, slots=True)
class InitializationInput:
    """Where a processor begins: after this number, unless it commits what an earlier owner left pending.

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
        pending = checkpointer.pending
        number = None if pending is None else pending.pending_checkpoint
        return cls(checkpointer.shard_id, checkpointer.position, number, checkpointer.pending_state, checkpointer)


@dataclass(frozen=True, slots=True)
class ProcessRecordsInput:
    records: Sequence[Any]
    checkpointer: RecordCheckpointer


@dataclass(frozen=True, slots=True)
class LeaseLostInput:
    pass


@dataclass(frozen=True, slots=True)
class ShardEndedInput:
    checkpointer: RecordCheckpointer


@dataclass(frozen=True, slots=True)
class ShutdownRequestedInput:
    checkpointer: RecordCheckpointer


class RecordProcessor(Protocol):
    """Processes the records of one shard, while one worker has it. Called by one thread."""

    def initialize(self, initialize_input: InitializationInput, /) -> None:
        """Before anything else."""

    def process_records(self, process_records_input: ProcessRecordsInput, /) -> None:
        """At least one record, in the order of the shard. What it raises ends the worker."""

    def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """The last call where the shard is not this worker's any more, also after a call that raised.

        That may be `initialize`, or even have been none: a lease can be lost at any moment.
        """

    def shard_ended(self, shard_ended_input: ShardEndedInput, /) -> None:
        """The last call where everything was read. It has to checkpoint, by `checkpoint()` or the last record."""

    def shutdown_requested(self, shutdown_requested_input: ShutdownRequestedInput, /) -> None:
        """The shard is about to go to another worker, or this one stops. `lease_lost` follows."""
