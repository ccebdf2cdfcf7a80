"""Measure state on the driver beside its alternatives: full save, deltas, restore, and bytes.

Each contender begins with the records as a Python dict and ends with them durable; a restore ends with every record as
Python objects. Each restore is compared with what was saved. The deltas are the first few after a full save. The very
first is listed separately: in it, a keyed state looks again at every value that the caller held during the full save.
`driver_state` measures what compaction adds over a longer time.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.contenders import CONTENDERS, ByHand, Contender, Ours
from benchmarks.driver_state import State, plain, value
from benchmarks.measure import Finding, Grid, Target, Times, rotated, written
from benchmarks.stores import folder

T = TypeVar("T")

SHARES = {"1 %": 100, "0.1 %": 1000}
"""For each share of changed keys, the distance between two changed keys."""

TOO_SLOW = 5
"""Contenders whose full save takes this many times as long as ours are left out of the next size, with a note."""

BLOCKED = "blocked by delta 1 %"
"""The time for which a caller is blocked who leaves as much as possible to the background."""

STEPS = ("full save", "first delta", *(f"delta {share}" for share in SHARES), BLOCKED, "restore")

WRITTEN = STEPS[:-2]


class Found:
    """The seconds and bytes of each step of a contender."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {step: [] for step in STEPS}
        self.bytes: dict[str, list[int]] = {step: [] for step in STEPS}
        self._written = 0

    def begin(self) -> None:
        self._written = written()

    def measure(self, step: str, work: Callable[[], T]) -> T:
        """Measure a step. Bytes that were written in the background since the last step count for this one."""
        gc.collect()
        start = time.perf_counter()
        result = work()
        self.seconds[step].append(time.perf_counter() - start)
        now = written()
        self.bytes[step].append(now - self._written)
        self._written = now
        return result

    def mean(self, step: str) -> float:
        """Return the mean and not the median, so that occasional compaction counts."""
        return statistics.mean(self.seconds[step])

    def spread(self, step: str) -> str:
        times = Times(tuple(self.seconds[step]))
        return f"{times.spread:.0%} of {len(times.seconds)}" if len(times.seconds) > 1 else "measured once"


def run(quick: bool) -> list[Finding]:
    sizes = [(100_000, 1, 5)] if quick else [(1_000_000, 2, 5), (10_000_000, 1, 3)]
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
        found.measure(BLOCKED, partial(one.change_meanwhile, _changes(len(state), 100, rounds)))
        state |= _changes(len(state), 100, rounds)
        one.settle()
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
        sizes = [f"{statistics.mean(one.bytes[step]) / _records(step, keys):.1f}" for step in WRITTEN]
        rows.append([contender.name, *times, "yes" if contender.verifies else "no", *sizes])
    columns = ["contender", *STEPS, "verified", *(f"bytes: {step}" for step in WRITTEN)]
    rows += [[contender.name, "left out: too slow", *[""] * (len(columns) - 2)] for contender in slow]
    title = (
        f"{keys:,} records: mean time as a multiple of ours, and bytes written for each record that is new or changed"
    )
    grid = Grid(title, columns, rows)
    return [grid, *(target for step in STEPS for target in _targets(keys, step, found, slow))]


def _targets(
    keys: int, step: str, found: dict[type[Contender], Found], slow: list[type[Contender]]
) -> Iterator[Target]:
    """Return the targets. The first delta after a full save has none."""
    ours, verifies = found[Ours], step in ("full save", "restore")
    peers = [one for one in found if one not in (Ours, ByHand) and (one.verifies or not verifies)]
    if peers:
        best = min(peers, key=lambda one: found[one].mean(step))
        left_out = "".join(f"; {one.name} was left out" for one in slow)
        detail = f"{best.name}; spread {ours.spread(step)} / {found[best].spread(step)}{left_out}"
        others = "the fastest other that verifies" if verifies else "the fastest other"
        ratio, limit = ours.mean(step) / found[best].mean(step), None if step == "first delta" else 1.0
        yield Target(f"{keys:,} records: {step} / {others}", ratio, limit, detail)
    by_hand = f"spread {ours.spread(step)} / {found[ByHand].spread(step)}"
    yield Target(f"{keys:,} records: {step} / by hand", ours.mean(step) / found[ByHand].mean(step), None, by_hand)


def _records(step: str, keys: int) -> int:
    """Return how many records are new or changed."""
    return keys if step == "full save" else keys // SHARES.get(step.removeprefix("delta "), SHARES["1 %"])
