"""Measure in alternating repetitions, with medians and spread.

Machines vary, so only ratios of one run are reported.
"""

import gc
import math
import os
import re
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Times:
    """The seconds of several repetitions."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def mean(self) -> float:
        """Return the mean, where work that is done in few repetitions has to count."""
        return statistics.mean(self.seconds)

    @property
    def spread(self) -> float:
        """Return the range of the repetitions as a share of their median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of two measurements, and its limit; `limit` is None if it is only reported."""

    question: str
    ratio: float
    limit: float | None
    detail: str

    @property
    def holds(self) -> bool:
        return self.limit is None or self.ratio <= self.limit


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of contenders, or of other things to compare."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Plot:
    """Lines of measured points. `name` is that of its files."""

    name: str
    title: str
    x: str
    y: str
    lines: Mapping[str, Sequence[tuple[float, float]]]
    logarithmic: bool = field(default=True, kw_only=True)

    def slope(self, line: str) -> float:
        """Return the slope of the line that fits best. Of logarithms, it is the power of x with which y grows."""
        points = self.lines[line]
        if self.logarithmic:
            points = [(math.log(x), math.log(y)) for x, y in points]
        return statistics.linear_regression(*zip(*points, strict=True)).slope


@dataclass(frozen=True, slots=True)
class Note:
    """What was left out, with the reason."""

    text: str


Finding = Target | Grid | Plot | Note


def grows(plot: Plot, line: str, limit: float | None) -> Target:
    """Return the power of x with which a line may grow."""
    points = plot.lines[line]
    values = [f"{y * 1000:,.2f} ms" if "(s)" in plot.y else f"{y:,.0f} B" for _, y in points]
    detail = ", ".join(f"{value} at {x:,.10g}" for (x, _), value in zip(points, values, strict=True))
    where = ", in memory" if "in memory" in plot.title else ""
    return Target(f"{line}{where}, over {plot.x}: power", plot.slope(line), limit, detail)


def alternate(repetitions: int, **contenders: Callable[[], float]) -> dict[str, Times]:
    """Run the contenders in turn, several times. Another one is first each time. A contender returns its seconds."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(repetitions):
        for name in rotated(contenders, number):
            gc.collect()
            found[name].append(contenders[name]())
    return {name: Times(tuple(seconds)) for name, seconds in found.items()}


def rotated(names: Iterable[T], number: int) -> list[T]:
    """Return the items in the same order, beginning with another one."""
    listed = list(names)
    first = number % len(listed)
    return listed[first:] + listed[:first]


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def in_threads(work: Callable[..., object], *items: Iterable[Any]) -> float:
    """Return the seconds to process all items, in as many threads as there are processors."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return timed(lambda: list(pool.map(work, *items)))


def written() -> int:
    """Return the bytes that this process has written since it began."""
    found = re.search(r"wchar: (\d+)", Path("/proc/self/io").read_text())
    assert found is not None
    return int(found[1])
