"""Many readers while a writer commits and a cleanup deletes what it retired: what each of them got.

Time is counted in commits, for cleanup too: a grace period of so many seconds is over after as many commits. So how
fast the machine is decides nothing, and a reader that was slower than the grace period can be told from one that was
wronged.
"""

import asyncio
import multiprocessing
import random
import time
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, RetentionPolicy
from pyspark_checkpointer.errors import CheckpointNotFoundError, RetiredError
from pyspark_checkpointer.runtime.host import SystemHost
from tests.proof.load.faces import settled
from tests.proof.load.gauges import answer

Face = type[Checkpointer] | type[AsyncCheckpointer]

EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
KEEP = 3
PARTITIONS = 4
STOP = 1 << 60
"""The number of the commit that tells readers to stop."""

KINDS = ("right", "wrong", "not there", "outlived", "wronged")
"""What a reader got: what was committed, or not that; or an error, which says that what it asked for is not live any
more, that it was retired after a grace period, or before that was over."""

PATIENCE = 1800.0
"""Seconds after which a reader does not wait for its writer any more."""


class CommitClock(SystemHost):
    """A clock that moves by a second with each commit."""

    def __init__(self) -> None:
        self.commits = 0

    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.commits)


@dataclass(frozen=True, slots=True)
class Reading:
    """How the readers go about it."""

    url: str
    options: dict[str, Any] | None
    commits: int
    grace: int
    """Commits for which nothing that was retired is deleted."""


def data(number: int, partition: int) -> bytes:
    """What commit `number` holds: one partition that is an object of its own, and some that share one."""
    noise = random.Random(number * PARTITIONS + partition).randbytes(1 << 10)
    return noise if partition else noise * 260


def write(reading: Reading) -> int:
    """Commit many times, clean up all the while in another thread; how many objects that deleted."""
    clock, writer, cleaner = CommitClock(), client(Checkpointer, reading), client(Checkpointer, reading)
    cleaner.session.host = clock
    policy = RetentionPolicy(keep_last=KEEP, grace=timedelta(seconds=reading.grace))
    deleted = 0
    with ThreadPoolExecutor(1) as pool, writer, cleaner:
        cleaning: Future[int] | None = None
        for number in range(reading.commits):
            commit(writer, number)
            clock.commits += 1
            if cleaning is None or cleaning.done():
                deleted += 0 if cleaning is None else cleaning.result()
                cleaning = pool.submit(lambda: cleaner.clean(policy).deleted.objects)
        commit(writer, STOP)
        return deleted + (cleaning.result() if cleaning else 0)


def commit(writer: Checkpointer, number: int) -> None:
    with writer.begin(number) as cp:
        for partition in range(PARTITIONS):
            cp.snapshot("op", partition, data(number, partition))


def client(face: Face, reading: Reading) -> Any:
    return face(reading.url, reading.options, timeout=600.0)


# ---- readers: what each of them got, counted -------------------------------------------------------------------------


async def read(face: Face, reading: Reading, slow: bool) -> Counter[str]:
    """Restore the latest, or the oldest that is listed, and read all of it, again and again, until the writer is done.

    Who is `slow` waits in between, for half of the grace period, or until what was restored is surely retired.
    """
    found, deadline, reader = Counter[str](), time.monotonic() + PATIENCE, client(face, reading)
    pause = max(reading.grace // 2, KEEP + 2) if slow else 0
    while time.monotonic() < deadline:
        latest = await settled(reader.restore())
        if latest is None:
            continue
        if latest.epoch == STOP:
            await settled(reader.close())
            return found
        try:
            oldest = None if found.total() % 2 else (await settled(reader.list_checkpoints()))[0]
            restored = latest if oldest is None else await settled(reader.restore(oldest))
            while (await settled(reader.read_latest())).sequence < min(latest.id.sequence + pause, reading.commits):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            parts = [await settled(restored.operator("op").partition(partition)) for partition in range(PARTITIONS)]
        except CheckpointNotFoundError:
            found["not there"] += 1
        except RetiredError:
            found[lost(reading, latest.id.sequence, (await settled(reader.read_latest())).sequence)] += 1
        else:
            found[verdict_on(restored.epoch, parts)] += 1
    raise AssertionError("the writer never ended")


def verdict_on(number: int, parts: Iterable[list[bytes]]) -> str:
    return "right" if list(parts) == [[data(number, partition)] for partition in range(PARTITIONS)] else "wrong"


def lost(reading: Reading, first: int, last: int) -> str:
    """Whether a reader that was told to restore again had been given the time that the grace period promises.

    The cleanup's clock may be a commit behind.
    """
    return "outlived" if last - first >= reading.grace - 1 else "wronged"


def read_in_threads(reading: Reading, readers: int) -> Counter[str]:
    """Every second one is slow."""
    with ThreadPoolExecutor(readers) as pool:
        each = [pool.submit(lambda n=n: asyncio.run(read(Checkpointer, reading, n % 2 > 0))) for n in range(readers)]
        return sum((one.result() for one in each), Counter[str]())


def read_in_tasks(reading: Reading, readers: int) -> Counter[str]:
    async def at_once() -> Counter[str]:
        each = [read(AsyncCheckpointer, reading, n % 2 > 0) for n in range(readers)]
        return sum(await asyncio.gather(*each), Counter[str]())

    return asyncio.run(at_once())


def measure_readers(
    url: str, options: dict[str, Any] | None, commits: int, grace: int, readers: int, how: str, processes: int = 0
) -> dict[str, Any]:
    """What `readers` in threads, in tasks of one loop, or in threads of so many processes were given, by kind."""
    reading = Reading(url, options, commits, grace)
    if how == "processes":
        others: Executor = ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn"))
        each = [others.submit(read_in_threads, reading, readers // processes) for _ in range(processes)]
    else:
        each = [ThreadPoolExecutor(1).submit(read_in_tasks if how == "tasks" else read_in_threads, reading, readers)]
    writing = ThreadPoolExecutor(1).submit(write, reading)
    wait([writing, *each], return_when=FIRST_EXCEPTION)  # without a writer its readers would never end
    deleted, found = writing.result(), sum((one.result() for one in each), Counter[str]())
    return {"deleted": deleted, **{kind: found[kind] for kind in KINDS}}


if __name__ == "__main__":
    answer(measure_readers)
