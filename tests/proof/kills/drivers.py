"""Runs of the streaming job that die: their drivers, or the executors below them."""

import json
import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from itertools import islice
from pathlib import Path

import pytest

from examples.flights.process import JobFailedError, JobProcess, Limit
from pyspark_checkpointer.client._sync_checkpoint import Restored
from tests.proof.kills.stream import FIRES_AFTER, MINUTE, OPTIONS, START, write_input
from tests.proof.kills.writers import Place

AHEAD = 6
"""Batches that a life finds to do, more than it gets done before it is killed."""

EVENTS = 8
"""A life tells at least the first of so many events, and is killed before the last."""

HOURS = 3 * 3600.0


def start(place: Place, folder: Path, master: str) -> JobProcess:
    # With the seed of `spark-submit`, so that functions are called in the driver too.
    variables = {OPTIONS: json.dumps(place.storage_options), "PYTHONHASHSEED": "0"}
    arguments = [place.url, str(folder), master]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        return JobProcess("tests.proof.kills.stream", arguments, folder / "log", Limit.begin(HOURS))


def kill_drivers(place: Place, folder: Path, kills: int, numbers: random.Random) -> tuple[int, int, int]:
    """Kill and start again, then let it end. Returns the batches there were, kills, and lives that failed."""
    written = killed = needed_a_hand = 0
    for life in range(kills + 1):
        done = len(list((folder / "spark" / "commits").glob("[0-9]*")))
        write_input(folder, written, done + AHEAD - written)
        written = max(written, done + AHEAD)
        with start(place, folder, "local[2]") as job:
            try:
                for _ in islice(job.events(), numbers.randrange(1, EVENTS) if life < kills else None):
                    pass
            except JobFailedError as error:
                print(error)
                needed_a_hand += 1
                continue
            if life < kills:
                time.sleep(numbers.uniform(0, 0.3))
                killed += job.kill()
    return written, killed, needed_a_hand


def kill_executors(job: JobProcess, kills: int, numbers: random.Random) -> tuple[int, int]:
    """Kill executors of a running job while its batches come, until it has ended. Returns how many, and failed jobs."""
    killed = 0
    try:
        for event in job.events():
            if event["event"] == "batch" and killed < kills:
                time.sleep(numbers.uniform(0, 0.6))
                running = _executors(job.pid)
                if running:
                    with suppress(ProcessLookupError):
                        os.kill(numbers.choice(running), signal.SIGKILL)
                        killed += 1
    except JobFailedError as error:
        print(error)
        return killed, 1
    return killed, 0


def _executors(group: int) -> list[int]:
    """The executor processes of a job, which are all in its process group."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            if b"CoarseGrainedExecutorBackend" in path.read_bytes() and os.getpgid(int(path.parent.name)) == group:
                found.append(int(path.parent.name))
    return found


def rows(restored: Restored | None, folder: Path) -> list[str]:
    """Each row as often as it was counted, by the map, by both tables and by what was emitted alike."""
    assert restored is not None
    seen = Counter(dict(restored.keyed("seen")))
    table = Counter({row["row"]: row["times"] for row in restored.table("rows").to_pylist()})
    assert table == seen, "one checkpoint, two stories"
    applied = sorted(restored.table("applied").to_pylist(), key=lambda row: str(row["row"]))
    assert Counter({row["row"]: row["times"] for row in applied}) == seen
    lines = [line for path in (folder / "emitted").glob("*/*.json") for line in path.read_text().splitlines()]
    # With the number that the call made: what was emitted is what the call wrote into the state, and no other call's.
    assert sorted(map(json.loads, lines), key=lambda row: str(row["row"])) == applied
    return sorted(seen.elements(), key=lambda row: int(row.partition("-")[2]))


def timers(restored: Restored | None, folder: Path, batches: int) -> int:
    """Compare the timers that fired, and those still to fire, with those that had to. Returns how many fired."""
    assert restored is not None
    fired = {
        int(path.name): [json.loads(line) for part in path.glob("*.json") for line in part.read_text().splitlines()]
        for path in (folder / "fired").iterdir()
    }
    for batch in range(batches):
        number = batch - FIRES_AFTER
        at = START + number * MINUTE
        due = [{"row": f"row-{number}", "at": f"{at:%Y-%m-%dT%H:%M:%S}.000Z"}] if number >= 0 else []
        assert fired.pop(batch) == due, batch
    assert fired == {}
    left = sorted(row["row"] for row in restored.table("timers").to_pylist())
    assert left == sorted(f"row-{number}" for number in range(max(0, batches - FIRES_AFTER), batches))
    return max(0, batches - FIRES_AFTER)
