"""A worker in a process of its own, to be killed: `python -m tests.consumers.kinesis.kinesis_job ROOT EFFECTS [FATAL]`.

It reads SHARDS of LENGTH records each. Of each batch it prepares a checkpoint, has its effect, one line for each record
in the file EFFECTS, and commits; so whoever comes after it can tell whether the effect of what is pending was had. At
the record FATAL of a shard it kills itself between the effect and the commit.
"""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark_checkpointer.consumers.kinesis import (
    TRIM_HORIZON,
    ExtendedSequenceNumber,
    InitializationInput,
    LeaseLostInput,
    ProcessRecordsInput,
    ShardEndedInput,
    ShardLeases,
    ShutdownRequestedInput,
    Worker,
)

SHARDS = ("a", "b", "c", "d")
LENGTH = 60
BATCH = 5
DURATION = 1.5


def fetch(shard_id: str, after: ExtendedSequenceNumber) -> tuple[list[dict[str, Any]], bool]:
    first = 1 if after == TRIM_HORIZON else int(after.sequence_number) + 1
    last = min(first + BATCH - 1, LENGTH)
    time.sleep(0.01)
    return [{"SequenceNumber": str(number)} for number in range(first, last + 1)], last == LENGTH


class Processor:
    def __init__(self, effects: Path, fatal: str | None) -> None:
        self.effects, self.fatal = effects, fatal

    def initialize(self, start: InitializationInput) -> None:
        self.shard = start.shard_id
        pending, state = start.checkpointer.pending, start.pending_checkpoint_state
        if pending is not None and state is not None and state.decode() in self.effects.read_text():
            pending.checkpoint()
            self.write(f"# pending {self.shard} {pending.pending_checkpoint}\n")

    def process_records(self, given: ProcessRecordsInput) -> None:
        numbers = [record["SequenceNumber"] for record in given.records]
        effect = "".join(f"{self.shard} {number}\n" for number in numbers)
        prepared = given.checkpointer.prepare_checkpoint(application_state=effect.encode())
        self.write(effect)
        if self.fatal in numbers:
            os.kill(os.getpid(), signal.SIGKILL)
        prepared.checkpoint()

    def shard_ended(self, given: ShardEndedInput) -> None:
        given.checkpointer.checkpoint()

    def shutdown_requested(self, given: ShutdownRequestedInput) -> None:
        pass

    def lease_lost(self, given: LeaseLostInput) -> None:
        pass

    def write(self, text: str) -> None:
        with self.effects.open("ab", buffering=0) as file:
            file.write(text.encode())


def main(root: str, effects: str, fatal: str | None = None) -> None:
    with ShardLeases(root, "job", duration=DURATION) as leases:
        leases.create(SHARDS)
        worker = Worker(leases, fetch, lambda: Processor(Path(effects), fatal))
        while not all(row.finished for row in leases.rows().values()):
            if not worker.run_once():
                time.sleep(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
