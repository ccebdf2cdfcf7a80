"""Read a stream in shards, keep state, and count every record once, although workers die.

A lease says which worker reads a shard. The checkpoint makes the count exact: the totals of a shard and their position
are committed together, so they always agree. A worker that was thought dead and comes back cannot commit on top of its
successor.

    python -m examples.sharded_source [--folder FOLDER] [--workers 3] [--kills 6]

writes some shards of clicks, starts workers that share them, kills one after the other, and counts.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.consumers.kinesis import (
    SHARD_END,
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
from pyspark_checkpointer.errors import ConflictError, InvalidStateError

SHARDS = [f"shard-{number}" for number in range(6)]
RECORDS = 1000
FIRST = 49590338271490256608559692538361571095921575989136588898
"""Kinesis numbers records with integers of this size."""

LEASE = 1.5
BATCH = 20
PAUSE = 0.04


class Clicks:
    """A record processor that counts the clicks of one shard by user. Each lease makes a new one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._close = ExitStack()

    def initialize(self, start: InitializationInput) -> None:
        self._shard = start.shard_id
        self._state = self._close.enter_context(Checkpointer(self._folder / "state" / start.shard_id))
        lease = start.extended_sequence_number
        self._totals, self._position = load(self._state, self._shard, lease, self._folder)

    def process_records(self, delivered: ProcessRecordsInput) -> None:
        # The worker fetches from the lease's checkpoint, which may be one batch behind the state's own position.
        new = [
            record for record in delivered.records if ExtendedSequenceNumber(record["SequenceNumber"]) > self._position
        ]
        if new:
            for record in new:
                self._totals[record["user"]] = self._totals.get(record["user"], 0) + 1
            self._commit(ExtendedSequenceNumber(new[-1]["SequenceNumber"]))
        delivered.checkpointer.checkpoint()

    def shard_ended(self, ended: ShardEndedInput) -> None:
        self._commit(SHARD_END)  # totals that are rolled back later lack it
        ended.checkpointer.checkpoint()
        self._close.close()

    def shutdown_requested(self, asked: ShutdownRequestedInput) -> None:
        asked.checkpointer.checkpoint()

    def lease_lost(self, lost: LeaseLostInput) -> None:
        self._close.close()

    def _commit(self, position: ExtendedSequenceNumber) -> None:
        with self._state.begin() as cp:  # totals and position, or neither
            cp.save("totals", self._totals)
            cp.positions["clicks"] = {self._shard: str(position)}
        self._position = position


def load(
    state: Checkpointer, shard: str, lease: ExtendedSequenceNumber, folder: Path
) -> tuple[KeyedState, ExtendedSequenceNumber]:
    """Return the totals of a shard and their position. Raise `InvalidStateError` if the lease is beyond it.

    The lease's position is written last, so no crash does this. The totals were rolled back, which leaves the lease as
    it is. The worker would go on from the lease's position, and the records before it would be in no total.
    """
    restored = state.restore()
    totals = restored.keyed("totals") if restored else KeyedState()
    position = ExtendedSequenceNumber(restored.positions["clicks"][shard]) if restored else TRIM_HORIZON
    if lease > position:
        raise InvalidStateError(
            f"shard {shard!r}: its totals are at {position}, and its lease is at {lease}: the totals were rolled back: "
            f"stop the workers, and delete {folder}/leases/progress/kinesis/clicks/positions/{shard}.json; if the "
            "shard is finished, also call forget() and create() of the leases"
        )
    return totals, position


def fetch_from(folder: Path) -> Callable[[str, ExtendedSequenceNumber], tuple[list[Any], bool]]:
    """Read the next records of a shard, a few at a time, from its file."""

    def fetch(shard: str, after: ExtendedSequenceNumber) -> tuple[list[Any], bool]:
        time.sleep(PAUSE)
        lines = (folder / "clicks" / shard).read_text().splitlines()
        records = [json.loads(line) for line in lines]
        left = [record for record in records if ExtendedSequenceNumber(record["SequenceNumber"]) > after]
        return left[:BATCH], len(left) <= BATCH

    return fetch


def work(folder: Path) -> None:
    """Read the shards that this worker gets, until all have ended."""
    with ShardLeases(folder / "leases", "clicks", duration=LEASE) as leases:
        leases.create(SHARDS)
        for shard, row in leases.rows().items():
            if row.finished:  # nobody reads it again, and so nobody else would notice
                load(Checkpointer(folder / "state" / shard), shard, SHARD_END, folder)
        worker = Worker(leases, fetch_from(folder), lambda: Clicks(folder), idle=0.1)
        while not all(row.finished for row in leases.rows().values()):
            try:
                busy = worker.run_once()
            except ConflictError:
                continue  # a shard's owner before committed once more after this one had restored: begin again
            if not busy:
                time.sleep(0.1)


def write_clicks(folder: Path) -> Counter[str]:
    """Write a file for each shard. Return the clicks of each user in all."""
    source, total = random.Random(7), Counter[str]()
    (folder / "clicks").mkdir(parents=True)
    for shard in SHARDS:
        users = [f"user-{source.randrange(50):02}" for _ in range(RECORDS)]
        total.update(users)
        records = [{"SequenceNumber": str(FIRST + 3 * number), "user": user} for number, user in enumerate(users)]
        (folder / "clicks" / shard).write_text("".join(json.dumps(record) + "\n" for record in records))
    return total


def read_totals(folder: Path) -> Counter[str]:
    """Return what the workers counted, from the state of every shard."""
    total = Counter[str]()
    for shard in SHARDS:
        restored = Checkpointer(folder / "state" / shard).restore()
        if restored:
            total.update(dict(restored.keyed("totals")))
    return total


def run(folder: Path, workers: int, kills: int) -> bool:
    """Start workers, kill some of them, and start others, until everything is read.

    Return whether the count is exact.
    """
    expected = write_clicks(folder)
    command = [sys.executable, "-m", "examples.sharded_source", "--folder", str(folder), "--work"]
    running, failed = [subprocess.Popen(command) for _ in range(workers)], []
    for kill in range(kills):
        time.sleep(random.uniform(0.8, 2.0))
        victim = running.pop(random.randrange(workers))
        victim.send_signal(signal.SIGKILL)
        if victim.wait() not in (0, -signal.SIGKILL):  # it had ended before, with an error
            failed.append(victim.pid)
        counted = read_totals(folder).total()
        print(f"kill {kill + 1}: worker {victim.pid} died, {counted:,} of {expected.total():,} records are counted")
        running.append(subprocess.Popen(command))
    failed += [worker.pid for worker in running if worker.wait() != 0]
    found = read_totals(folder)
    print(
        f"{found.total():,} records counted, {expected.total():,} written: {'exact' if found == expected else 'WRONG'}"
    )
    return found == expected and not failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="examples.sharded_source", description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, help="an empty folder; a temporary one by default")
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--work", action="store_true", help="be one of the workers")
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments.folder)
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        return 0 if run(arguments.folder or Path(temporary), arguments.workers, arguments.kills) else 1


if __name__ == "__main__":
    sys.exit(main())
