"""Measure state on the driver beside its alternatives: full save, deltas, restore, and bytes.

Each contender begins with the records as a Python dict and ends with them durable; a restore ends with every record as
Python objects. Each restore is compared with what was saved. All contenders save the same deltas, one after the other,
with the compaction that comes due: with `CYCLE` of 1 %, a keyed state writes each partition anew once. The first of all
and the first of another share are listed separately: in them a keyed state looks again at every value that the caller
held during the save before, which was larger.

Most batches of a job read what they change. So a batch is measured too that reads 1 % or 0.1 % of the records, changes
each, and saves them. A contender reads in the fastest way that it has for many keys. The first batch of each share is
not counted for anybody.

A keyed state is measured twice: for a caller that holds the values of a change until it is saved, and for one that does
not. `driver_state` measures what compaction adds over a longer time.
"""

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from benchmarks.contenders import CONTENDERS, COUNTED, ByHand, Contender, Ours, OursGiven
from benchmarks.driver_state import CYCLE, State, plain, value
from benchmarks.measure import Finding, Grid, Target, Times, rotated, written
from benchmarks.stores import folder

T = TypeVar("T")

SHARES = {"1 %": 100, "0.1 %": 1000}
"""For each share of changed keys, the distance between two changed keys."""

SIZES = [(100_000, 1, CYCLE), (1_000_000, 3, CYCLE), (10_000_000, 1, 12)]
"""Records, repetitions, and deltas of each share. Of the largest maps a whole cycle would take half an hour."""

QUICK = [(20_000, 1, 3)]
"""The same of a quick run."""

LARGE = 1_000_000
"""Records of a map from which on only those are measured with more that were the first of the others in some row."""

TOO_SLOW = 5
"""Contenders that take this many times as long as ours for a full save or a delta of 1 % are left out of large maps."""

BATCH_COUNT = 20
"""Batches of each share that are measured."""

BLOCKED_COUNT = 3
"""Saves in the background that are measured."""

BLOCKED = "blocked by delta 1 %"
"""The time for which a caller is blocked who leaves as much as possible to the background."""

BATCHES = {share: f"read, change and save {share}" for share in SHARES}
"""The name of the batch for each share of keys."""

FIRST = {"1 %": "first delta", "0.1 %": "first delta 0.1 %"}
"""The name of the first delta of each share."""

WRITTEN = ("full save", *(name for share in SHARES for name in (FIRST[share], f"delta {share}")))
"""The steps that write values which the caller has already."""

STEPS = (*WRITTEN, *BATCHES.values(), BLOCKED, "restore")

LIMITS = {
    "full save": 1.2,
    "delta 1 %": 1.2,
    "delta 0.1 %": 1.2,
    **dict.fromkeys(BATCHES.values(), 1.0),
    BLOCKED: 1.0,
    "restore": 1.0,
}
"""The targets. The first delta after a larger save has none."""

OURS: dict[type[Contender], tuple[str, Sequence[str]]] = {
    Ours: ("", STEPS),
    # What is restored is the same. In the full save, the records of the caller are freed too.
    OursGiven: (", values that nobody holds", ("delta 1 %", "delta 0.1 %", BLOCKED)),
}
"""Name each contender that is ours, and the steps in which it is compared."""


class Found:
    """The seconds and bytes of each step of a contender."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[list[float]]] = {step: [] for step in STEPS}
        self.bytes: dict[str, list[int]] = {step: [] for step in STEPS}
        self._written = 0

    def begin(self) -> None:
        """Begin another repetition."""
        self._written = written()
        for repetitions in self.seconds.values():
            repetitions.append([])

    def measure(self, step: str, work: Callable[[], T]) -> T:
        """Measure a step.

        Bytes that were written in the background since the last step count for this one.
        """
        gc.collect()
        start = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - start
        now = written()
        self.seconds[step][-1].append(seconds)
        self.bytes[step].append(now - self._written)
        self._written = now
        return result

    def typical(self, step: str) -> float:
        """Return the median of the repetitions. Each is the mean of its deltas, so that compaction counts."""
        return statistics.median(statistics.mean(seconds) for seconds in self.seconds[step])

    def spread(self, step: str) -> str:
        """Return the spread of the repetitions, and how many measurements they are."""
        times = Times(tuple(statistics.mean(seconds) for seconds in self.seconds[step]))
        measured = sum(map(len, self.seconds[step]))
        if len(times.seconds) > 1:
            return f"{times.spread:.0%} of {len(times.seconds)}"
        return "measured once" if measured == 1 else f"one mean of {measured}"


def run(quick: bool) -> list[Finding]:
    findings: list[Finding] = []
    contenders, left_out = list(CONTENDERS), list[type[Contender]]()
    for keys, repetitions, deltas in QUICK if quick else SIZES:
        found = {contender: Found() for contender in contenders}
        for number in range(repetitions):
            for contender in rotated(contenders, number):
                with folder() as base:
                    _measure(contender, base, keys, deltas, found[contender])
        findings += _findings(keys, found, left_out)
        left_out += [one for one in contenders if one not in _staying(keys, found)]
        contenders = [one for one in contenders if one not in left_out]
    return findings


def _measure(contender: type[Contender], base: Path, keys: int, deltas: int, found: Found) -> None:
    state = plain(keys)
    with closing(contender(base)) as one:
        given = plain(keys)  # which nobody holds any more once it was taken over
        found.begin()
        found.measure("full save", partial(one.save, given))
        del given
        for share, every in SHARES.items():
            for step in range(deltas + 1):
                name = f"delta {share}" if step else FIRST[share]
                found.measure(name, partial(one.change, _changes(keys, every, step)))
                state |= _changes(keys, every, step)
        for share, every in SHARES.items():
            for step in range(min(BATCH_COUNT, deltas) + 1):
                batch = [f"N{number:07d}" for number in range(step, keys, every)]
                if step:
                    found.measure(BATCHES[share], partial(one.increase, batch))
                else:
                    one.increase(batch)
                for key in batch:
                    state[key][COUNTED] += 1
        for step in range(CYCLE + 1, CYCLE + 1 + BLOCKED_COUNT):
            found.measure(BLOCKED, partial(one.change_meanwhile, _changes(keys, 100, step)))
            state |= _changes(keys, 100, step)
            one.settle()
        restored = found.measure("restore", one.restore)
        if restored != state:
            raise AssertionError(f"{contender.name}: what was restored is not what was saved")


def _changes(keys: int, every: int, step: int) -> State:
    return {f"N{number:07d}": value(number + step + every) for number in range(step, keys, every)}


def _staying(keys: int, found: Mapping[type[Contender], Found]) -> set[type[Contender]]:
    """Return the contenders that are measured with more keys too, which takes long."""
    if keys < LARGE:
        ours, steps = found[Ours], ("full save", "delta 1 %")
        return {
            one for one in found if all(found[one].typical(step) <= TOO_SLOW * ours.typical(step) for step in steps)
        }
    return {Ours, ByHand, *(best for step in LIMITS for best in [_best(found, step)] if best is not None)}


def _best(found: Mapping[type[Contender], Found], step: str) -> type[Contender] | None:
    """Return the fastest of the others; of those that verify, where that counts."""
    peers = [one for one in found if one not in (*OURS, ByHand) and (one.verifies or not _verifies(step))]
    return min(peers, key=lambda one: found[one].typical(step), default=None)


def _verifies(step: str) -> bool:
    return step in ("full save", "restore")


def _findings(keys: int, found: Mapping[type[Contender], Found], left_out: list[type[Contender]]) -> Iterator[Finding]:
    ours = found[Ours]
    rows = []
    for contender, one in found.items():
        times = [f"{one.typical(step) / ours.typical(step):.2f}" for step in STEPS]
        sizes = [f"{statistics.mean(one.bytes[step]) / _records(step, keys):.1f}" for step in WRITTEN]
        rows.append([contender.name, *times, "yes" if contender.verifies else "no", *sizes])
    columns = ["contender", *STEPS, "verified", *(f"bytes: {step}" for step in WRITTEN)]
    rows += [[one.name, "left out", *[""] * (len(columns) - 2)] for one in left_out]
    title = f"{keys:,} records: time as a multiple of ours, and bytes written for each record that is new or changed"
    yield Grid(title, columns, rows)
    for step in STEPS:
        yield from _targets(keys, step, found)


def _targets(keys: int, step: str, found: Mapping[type[Contender], Found]) -> Iterator[Target]:
    others = "the fastest other that verifies" if _verifies(step) else "the fastest other"
    for ours, (how, steps) in OURS.items():
        if ours not in found or step not in steps:
            continue
        mine, spread = found[ours].typical(step), found[ours].spread(step)
        if best := _best(found, step):
            other = found[best].typical(step)
            detail = f"{best.name}; {_ms(mine)} / {_ms(other)}, spread {spread} / {found[best].spread(step)}"
            yield Target(f"{keys:,} records: {step}{how} / {others}", mine / other, LIMITS.get(step), detail)
        by_hand = f"spread {spread} / {found[ByHand].spread(step)}"
        yield Target(f"{keys:,} records: {step}{how} / by hand", mine / found[ByHand].typical(step), None, by_hand)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


def _records(step: str, keys: int) -> int:
    """Return how many records are new or changed."""
    if step == "full save":
        return keys
    return keys // next((every for share, every in SHARES.items() if step.endswith(f" {share}")), SHARES["1 %"])
