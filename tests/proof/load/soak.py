"""A job that commits over and over, with readers and a cleanup beside it, and samples of all that could leak.

Two roots, one for each face of the library, and on each three clients that live as long as the program, and one that
lives for one round. In a round all of them do something at the same time; a sample is taken when they are at rest.
"""

import asyncio
import threading
import time
from array import array
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, field, fields
from datetime import timedelta
from typing import Any

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, RetentionPolicy, runtime
from pyspark_checkpointer.errors import RetiredError
from pyspark_checkpointer.storage import open_store
from tests.proof.load import leaks
from tests.proof.load.faces import settled
from tests.proof.load.gauges import Sample, answer, sample
from tests.proof.load.readers import CommitClock

COMMITS = 5
"""Commits of one root in one round."""

KEYS, CHANGED = 200, 5
GAUGES = len(fields(Sample))

LARGE = 300 << 10
"""Bytes of a snapshot that is an object of its own."""

POLICY = RetentionPolicy(keep_last=5, grace=timedelta(seconds=10))
"""The clock of the cleanup counts commits."""


@dataclass(slots=True)
class Side:
    """One root, and who uses it."""

    face: type[Any]
    url: str
    options: dict[str, Any] | None
    clients: dict[str, Any] = field(default_factory=dict)
    clock: CommitClock = field(default_factory=CommitClock)
    state: KeyedState = field(default_factory=KeyedState)
    reads: int = 0
    wrong: int = 0
    outlived: int = 0
    swept: int = 0

    def __post_init__(self) -> None:
        self.clients = {who: self.client() for who in ("writer", "reader", "cleaner")}
        self.clients["cleaner"].session.host = self.clock

    @property
    def commits(self) -> int:
        return self.clock.commits

    def client(self) -> Any:
        return self.face(self.url, self.options)


def large(number: int) -> bytes:
    return b"%08d" % number * (LARGE // 8)


def entries(number: int) -> dict[str, bytes]:
    """The keyed state of commit `number`: each commit changes a few keys, the next one the next few."""
    rounds = KEYS // CHANGED
    return {
        str(key): b"%0100d" % last for key in range(KEYS) if (last := number - (number - key // CHANGED) % rounds) >= 0
    }


async def write(side: Side) -> None:
    for _ in range(COMMITS):
        number = side.commits
        for key in range(KEYS):
            if key // CHANGED == number % (KEYS // CHANGED):
                side.state[str(key)] = b"%0100d" % number
        cp = await settled(side.clients["writer"].begin(number))
        await settled(cp.save("keyed", side.state))
        await settled(cp.snapshot("raw", 0, large(number)))
        log = cp.snapshot if number % 25 == 0 else cp.delta
        await settled(log("log", 0, b"%08d" % number))
        await settled(cp.commit())
        side.clock.commits += 1


async def read(side: Side) -> None:
    await check(side, side.clients["reader"])


async def visit(side: Side) -> None:
    """A client that comes for one look and goes."""
    client = side.client()
    await check(side, client)
    await settled(client.close())


async def check(side: Side, client: Any) -> None:
    restored = await settled(client.restore())
    if restored is None:
        return
    number = restored.epoch
    try:
        found = dict(await settled(restored.keyed("keyed"))) == entries(number)
        found &= await settled(restored.operator("raw").partition(0)) == [large(number)]
        log = await settled(restored.operator("log").partition(0))
        found &= log == [b"%08d" % n for n in range(number - number % 25, number + 1)]
    except RetiredError:
        side.outlived += 1
        return
    side.reads += 1
    side.wrong += not found


async def clean(side: Side) -> None:
    side.swept += (await settled(side.clients["cleaner"].clean(POLICY))).deleted.objects


JOBS: tuple[Callable[[Side], Awaitable[None]], ...] = (write, read, visit, clean)


def soak(
    urls: list[str],
    options: dict[str, Any] | None,
    rounds: int | None = None,
    seconds: float = 0,
    planted: list[str] | None = None,
) -> dict[str, Any]:
    """Samples of so many rounds, or of so many seconds; with the leaks that are `planted`, by name."""
    for leak in planted or ():
        getattr(leaks, leak)()
    plain, awaited = sides = [
        Side(face, u, options) for face, u in zip((Checkpointer, AsyncCheckpointer), urls, strict=True)
    ]
    stores = [open_store(url, options) for url in urls]

    def count_roots() -> tuple[int, int]:
        objects = sum(len(runtime.run_sync(store.list(""))) for store in stores)
        return objects, sum(len(runtime.run_sync(store.leftovers())) for store in stores)

    samples = array("q")  # which takes no blocks of memory that would have to be told from leaked ones
    start = time.monotonic()
    with ThreadPoolExecutor(len(JOBS)) as pool, asyncio.Runner() as runner:
        fill_pools(pool)
        while len(samples) < rounds * GAUGES if rounds is not None else time.monotonic() < start + seconds:
            running = [pool.submit(lambda job=job: asyncio.run(job(plain))) for job in JOBS]
            runner.run(at_once(awaited))
            for done in running:
                done.result()
            samples.extend(astuple(sample(count_roots)))
    sums = {name: sum(getattr(s, name) for s in sides) for name in ("commits", "reads", "wrong", "outlived", "swept")}
    return sums | {"samples": [samples[at : at + GAUGES].tolist() for at in range(0, len(samples), GAUGES)]}


async def at_once(side: Side) -> None:
    await asyncio.gather(*(job(side) for job in JOBS))


def fill_pools(pool: ThreadPoolExecutor) -> None:
    """Start every thread that a pool may ever have, so that their number can be compared."""
    for workers, start in (
        (len(JOBS), lambda barrier: pool.submit(barrier.wait)),
        (runtime.FILE_THREADS, lambda barrier: runtime.submit(runtime.in_thread(barrier.wait))),
        (runtime.pools.cpu_pool.workers, lambda barrier: runtime.submit(runtime.on_cpu(barrier.wait))),
    ):
        barrier = threading.Barrier(workers)
        for waiting in [start(barrier) for _ in range(workers)]:
            waiting.result()


if __name__ == "__main__":
    answer(soak)
