"""Driver-side state beside everything that one would use instead: full save, deltas, restore, and bytes.

Each begins with the records as a Python dict and ends with them durable; and back, with every record as Python objects.
What a restore gives is compared with what was saved, each time. Deltas are several of each size in a row; the first
stands by itself, since a keyed state then looks once more at every value that the caller held during the full save.
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
from benchmarks.measure import Finding, Grid, Target, Times, rotated, written
from benchmarks.stores import folder

T = TypeVar("T")

SHARES = {"1 %": 100, "0.1 %": 1000}
"""Every how many keys one is changed."""

TOO_SLOW = 5
"""Contenders that take so many times as long as we do for a full save are left out of the next size, and named."""

STEPS = ("full save", "first delta", *(f"delta {share}" for share in SHARES), "restore")

TARGETS = [step for step in STEPS if step != "first delta"]


class Found:
    """Seconds and bytes of each step of a contender."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {step: [] for step in STEPS}
        self.bytes: dict[str, list[int]] = {step: [] for step in STEPS}
        self._written = 0

    def begin(self) -> None:
        self._written = written()

    def measure(self, step: str, work: Callable[[], T]) -> T:
        """What is written in the background since the step before counts for this one."""
        gc.collect()
        start = time.perf_counter()
        result = work()
        self.seconds[step].append(time.perf_counter() - start)
        now = written()
        self.bytes[step].append(now - self._written)
        self._written = now
        return result

    def mean(self, step: str) -> float:
        """Not the median: what is folded or compacted now and then has its share."""
        return statistics.mean(self.seconds[step])

    def spread(self, step: str) -> str:
        times = Times(tuple(self.seconds[step]))
        return f"{times.spread:.0%} of {len(times.seconds)}" if len(times.seconds) > 1 else "measured once"


def run(quick: bool) -> list[Finding]:
    sizes = [(100_000, 1, 5)] if quick else [(1_000_000, 3, 5), (10_000_000, 1, 3)]
    findings: list[Finding] = []
    contenders, slow = list(CONTENDERS), list[type[Contender]]()
    for keys, repetitions, rounds in sizes:
        found = {contender: Found() for contender in contenders}
        for number in range(repetitions):
            for contender in rotated(contenders, number):
                with folder() as base:
                    _measure(contender, base, plain(keys), rounds, found[contender])
        findings += _findings(keys, found, slow)
        most = TOO_SLOW * found[Ours].mean("full save")
        slow += [contender for contender in contenders if found[contender].mean("full save") > most]
        contenders = [contender for contender in contenders if contender not in slow]
    return findings


def _measure(contender: type[Contender], base: Path, state: State, rounds: int, found: Found) -> None:
    with closing(contender(base)) as one:
        given = plain(len(state))  # which nobody holds any more once it was taken over
        found.begin()
        found.measure("full save", partial(one.save, given))
        del given
        deltas = [(f"delta {share}", every, step) for share, every in SHARES.items() for step in range(rounds)]
        for name, every, step in [("first delta", *deltas[0][1:]), *deltas[1:]]:
            found.measure(name, partial(one.change, _changes(len(state), every, step)))
            state |= _changes(len(state), every, step)
        restored = found.measure("restore", one.restore)
        if restored != state:
            raise AssertionError(f"{contender.name}: what was restored is not what was saved")


def _changes(keys: int, every: int, step: int) -> State:
    return {f"N{number:07d}": value(number + step + every) for number in range(step, keys, every)}


def _findings(keys: int, found: dict[type[Contender], Found], slow: list[type[Contender]]) -> list[Finding]:
    ours = found[Ours]
    rows = []
    for contender, one in found.items():
        times = [f"{one.mean(step) / ours.mean(step):.2f}" for step in STEPS]
        sizes = [f"{statistics.mean(one.bytes[step]) / keys:.2f}" for step in STEPS[:-1]]
        rows.append([contender.name, *times, "yes" if contender.verifies else "no", *sizes])
    columns = ["contender", *STEPS, "verified", *(f"bytes: {step}" for step in STEPS[:-1])]
    rows += [[contender.name, "left out: too slow", *[""] * (len(columns) - 2)] for contender in slow]
    grid = Grid(f"{keys:,} records: time as a multiple of ours, and bytes written for each record", columns, rows)
    targets = []
    for step in TARGETS:
        peers = [
            contender
            for contender in found
            if contender not in (Ours, ByHand) and (contender.verifies or step.startswith("delta"))
        ]
        best = min(peers, key=lambda contender: found[contender].mean(step))
        detail = f"{best.name}; spread {ours.spread(step)} / {found[best].spread(step)}"
        others = "the fastest other" if step.startswith("delta") else "the fastest other that verifies"
        ratio = ours.mean(step) / found[best].mean(step)
        targets.append(Target(f"{keys:,} records: {step} / {others}", ratio, 1.0, detail))
    return [grid, *targets]
