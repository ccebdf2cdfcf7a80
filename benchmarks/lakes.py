"""Measure what most people do today: MERGE into a table of a lake in each batch, beside `upsert` into a table.

Each lake runs on the newest Spark that it supports, and so do this library and the aggregation without state that it is
compared with. Each job is a process with a JVM of its own, and two cores.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean, median

from benchmarks.lake_sparks import LAKES, Lake
from benchmarks.measure import Finding, Grid, Note, Target
from benchmarks.streaming import job
from tests.servers import ServerUnavailableError

LEAST = {"Delta": 6, "Delta with deletion vectors": 6, "Iceberg": 5}
"""How many times the time of this library a MERGE has to take."""


@dataclass(frozen=True, slots=True)
class Size:
    """Say how large the tables are, how many batches there are, and in which of them small files are compacted."""

    keys: int
    changed: int
    turns: int
    batches: int
    every: int

    @property
    def what(self) -> str:
        return f"{self.changed:,} of {self.keys:,} keys, {self.turns * self.batches} batches"


QUICK = (Size(10_000, 1_000, 1, 1, 2),)
FULL = (Size(1_000_000, 20_000, 4, 25, 20), Size(10_000_000, 20_000, 4, 25, 20))


def run(lake: str, quick: bool) -> list[Finding]:
    return list(_measure(lake, QUICK if quick else FULL))


def _measure(lake: str, sizes: tuple[Size, ...]) -> Iterator[Finding]:
    try:
        spark = LAKES[lake].install()
    except ServerUnavailableError as unavailable:
        yield Note(f"{unavailable}: MERGE into {LAKES[lake].name} was not measured")
        return
    for size in sizes:
        found = job("lakes_job", lake, size.keys, size.changed, size.turns, size.batches, size.every, spark=spark)
        times = {name: _Batches(tuple(seconds), tuple(compacted)) for name, (seconds, compacted) in found.items()}
        yield _grid(LAKES[lake], size, times)
        yield from _targets(size, times)


@dataclass(frozen=True, slots=True)
class _Batches:
    """The seconds of the batches of a contender, and of the compactions that are within them."""

    seconds: tuple[float, ...]
    compacted: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Return the mean and not the median, so that what is done in few batches counts."""
        return mean(self.seconds)

    @property
    def late(self) -> float:
        """Return the mean of the last half, when Java has compiled most of what runs."""
        return mean(self.seconds[len(self.seconds) // 2 :])

    @property
    def growth(self) -> float:
        """Return how much longer the last tenth of the batches takes than the first."""
        tenth = max(1, len(self.seconds) // 10)
        return median(self.seconds[-tenth:]) / median(self.seconds[:tenth])

    def __str__(self) -> str:
        compacted = f", {sum(self.compacted) / len(self.seconds):.2f} s of it compaction" if self.compacted else ""
        return f"{self.mean:.2f} s{compacted}"


def _grid(lake: Lake, size: Size, times: dict[str, _Batches]) -> Grid:
    title = f"{size.what}: mean time of a batch with {lake.name} {lake.release} on Spark {lake.spark}"
    ours = times["ours"]
    rows = [
        [
            name,
            str(one),
            f"{median(one.seconds):.2f} s",
            f"{one.mean / ours.mean:.1f}",
            f"{one.late / ours.late:.1f}",
            f"{one.growth:.2f}",
        ]
        for name, one in times.items()
    ]
    columns = ["contender", "mean", "median", "multiple of ours", "the same of the last half", "last tenth / first"]
    return Grid(title, columns, rows)


def _targets(size: Size, times: dict[str, _Batches]) -> Iterator[Target]:
    ours = times["ours"]
    for name, one in times.items():
        if name in LEAST:
            question = f"upsert, {size.what} / MERGE into {name}"
            yield Target(question, ours.mean / one.mean, 1 / LEAST[name], f"{ours} / {one}")
    noop = times["noop"]
    on = " and ".join(name for name in times if name in LEAST)
    yield Target(f"upsert, {size.what}, beside {on} / noop", ours.mean / noop.mean, None, f"{ours} / {noop}")
