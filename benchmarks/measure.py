"""Alternating repetitions, medians and spread: machines are noisy, so only ratios of one run are reported."""

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of several repetitions."""

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> float:
        """The range of the repetitions as a share of their median."""
        return (max(self.seconds) - min(self.seconds)) / self.median


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of two measurements, and the most it may be; `limit` is None where it is only reported."""

    question: str
    ratio: float
    limit: float | None
    detail: str

    @property
    def holds(self) -> bool:
        return self.limit is None or self.ratio <= self.limit


def alternate(repetitions: int, **contenders: Callable[[], float]) -> dict[str, Times]:
    """Run each contender in turn, again and again. A contender returns the seconds it measured."""
    found: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, contender in contenders.items():
            gc.collect()
            found[name].append(contender())
    return {name: Times(tuple(seconds)) for name, seconds in found.items()}


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
