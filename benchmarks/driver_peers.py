"""Driver-side state beside everything that one would use instead: full save, deltas, restore, and bytes.

Each begins with the records as a Python dict and ends with them durable; and back, with every record as Python objects.
What a restore gives is compared with what was saved, each time. Deltas are several of each size in a row.
"""

import gc
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.contenders import CONTENDERS, ByHand, Contender, Ours, State
from benchmarks.driver_state import plain, value
from benchmarks.measure import Finding, Grid, Target, Times, written
from benchmarks.stores import folder

T = TypeVar("T")

SHARES = {"1 %": 100, "0.1 %": 1000}
"""Every how many keys one is changed."""

TOO_SLOW = 20
"""Contenders that take so many times as long as we do for a full save are left out of the largest size."""

STEPS = ("full save", *(f"delta {share}" for share in SHARES), "restore")


class Found:
    """Seconds and bytes of each step of a contender."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {step: [] for step in STEPS}
        self.bytes: dict[str, list[int]] = {step: [] for step in STEPS}

    def measure(self, step: str, work: Callable[[], T]) -> T:
        gc.collect()
        before, start = written(), time.perf_counter()
        result = work()
        self.seconds[step].append(time.perf_counter() - start)
        self.bytes[step].append(written() - before)
        return result

    def times(self, step: str) -> Times:
        return Times(tuple(self.seconds[step]))


def run(quick: bool) -> list[Finding]:
    sizes = [(100_000, 1, 5)] if quick else [(1_000_000, 3, 5), (10_000_000, 1, 2)]
    findings: list[Finding] = []
    contenders = CONTENDERS
    for keys, repetitions, rounds in sizes:
        found = {contender: Found() for contender in contenders}
        for _ in range(repetitions):
            for contender in contenders:
                with folder() as base:
                    _measure(contender, base, plain(keys), rounds, found[contender])
        findings += _findings(keys, found)
        most = TOO_SLOW * found[Ours].times("full save").median
        contenders = tuple(contender for contender in contenders if found[contender].times("full save").median <= most)
    return findings


def _measure(contender: type[Contender], base: Path, state: State, rounds: int, found: Found) -> None:
    with closing(contender(base)) as one:
        given = plain(len(state))  # which nobody holds any more once it was taken over
        found.measure("full save", partial(one.save, given))
        del given
        for share, every in SHARES.items():
            for step in range(rounds):
                found.measure(f"delta {share}", partial(one.change, _changes(len(state), every, step)))
                state |= _changes(len(state), every, step)
        restored = found.measure("restore", one.restore)
        if restored != state:
            raise AssertionError(f"{contender.name}: what was restored is not what was saved")


def _changes(keys: int, every: int, step: int) -> State:
    return {f"N{number:07d}": value(number + step + every) for number in range(step, keys, every)}


def _findings(keys: int, found: dict[type[Contender], Found]) -> list[Finding]:
    ours = found[Ours]
    rows = []
    for contender, one in found.items():
        times = [f"{one.times(step).median / ours.times(step).median:.2f}" for step in STEPS]
        sizes = [f"{statistics.median(one.bytes[step]) / keys:.2f}" for step in STEPS[:-1]]
        rows.append([contender.name, *times, "yes" if contender.verifies else "no", *sizes])
    columns = ["contender", *STEPS, "verified", *(f"bytes: {step}" for step in STEPS[:-1])]
    grid = Grid(f"{keys:,} records: time as a multiple of ours, and bytes written for each record", columns, rows)
    targets = []
    for step in STEPS:
        peers = [
            contender
            for contender in found
            if contender not in (Ours, ByHand) and (contender.verifies or step.startswith("delta"))
        ]
        best = min(peers, key=lambda contender: found[contender].times(step).median)
        mine, other = ours.times(step), found[best].times(step)
        detail = f"{best.name}; spread {mine.spread:.0%} / {other.spread:.0%}"
        others = "the fastest other" if step.startswith("delta") else "the fastest other that verifies"
        targets.append(Target(f"{keys:,} records: {step} / {others}", mine.median / other.median, 1.0, detail))
    return [grid, *targets]
