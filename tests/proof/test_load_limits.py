"""The largest loads that are promised: eight drivers, a thousand operators, 100,000 partitions, ten million keys of a
map, a table partition of 2 GiB.

Each program that is measured is a process of its own, as in test_load.py. The short run has the same limits for each
key, operator or byte.
"""

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.proof.kills.counting import count, new_place, told
from tests.proof.kills.ledger import ADDED
from tests.proof.kills.lives import Slot, stop, until
from tests.proof.kills.writers import compete
from tests.proof.load.gauges import MIB, available, measure, needs_proc
from tests.proof.load.partitions import TOUCHED

Effort = Callable[[Any, Any], Any]
Figures = Counter[str]


# ---- eight drivers ---------------------------------------------------------------------------------------------------

DRIVERS = 8

TRIGGER = 4.0
"""Seconds within which the next batch of a driver comes. Without any pause whoever won last would win again."""


def test_eight_drivers_of_one_root_all_get_on(tmp_path: Path, effort: Effort, figures: Figures) -> None:
    """Each takes over from the others all the time. No commit is lost, and none of them is kept out for long."""
    place, spans, seconds = new_place(tmp_path, None), effort(1, 2), effort(4, 300)
    slots = [Slot(place, f"d{number}", 1, compete, trigger=TRIGGER) for number in range(DRIVERS)]

    def committed() -> Counter[str]:
        return Counter(line.token.partition("-")[0] for line in told(place) if line.kind == ADDED)

    try:
        for _ in range(spans):
            before = committed()
            time.sleep(seconds)
            until(lambda old=before: all(committed()[s.name] > old[s.name] for s in slots), "each to commit", slots)  # type: ignore[misc]
        stop(place, slots)
    finally:
        for slot in slots:
            slot.end()
    found = count(figures, f"{DRIVERS} drivers", place, slots)
    each = Counter(token.partition("-")[0] for token in found)
    assert each.keys() == {slot.name for slot in slots}, each
    figures[f"{DRIVERS} drivers: seconds"] += spans * seconds
    figures[f"{DRIVERS} drivers: commits of the one that had fewest"] += min(each.values())
    figures[f"{DRIVERS} drivers: commits of the one that had most"] += max(each.values())


# ---- a thousand operators --------------------------------------------------------------------------------------------

OPERATOR = 320
"""Bytes of a manifest for each operator, touched or not."""


@needs_proc
def test_a_thousand_operators_in_one_checkpoint(tmp_path: Path, effort: Effort, figures: Figures) -> None:
    number, commits = effort((200, 10), (1000, 100))
    report = measure("operators", folder=str(tmp_path / "root"), count=number, commits=commits)
    assert (report["wrong"], report["findings"], report["retired"]) == (0, 0, commits)
    assert report["restore"] == {"get": 2}
    read = sum(cost.pop("get", 0) for cost in report["commits"])
    assert all(cost == {"put": TOUCHED + 1, "swap": 1} for cost in report["commits"]), "an object for each, a manifest"
    assert read <= TOUCHED * commits, "deltas of bytes are folded now and then, each of them about once"
    assert max(report["metadata"]) < 8192 + OPERATOR * number
    assert report["job"] < 32 * MIB + 32 * 1024 * number
    assert report["verify"] < 32 * MIB + OPERATOR * 8 * number * commits
    figures["operators"] += number
    figures["operators: commits"] += commits
    figures["operators: bytes of metadata of a commit, for each operator, at most"] += max(report["metadata"]) // number
    figures["operators: wrong restores"] += report["wrong"]
    for what in ("job", "verify"):
        figures[f"operators: MiB at most: {what}"] += report[what] // MIB


# ---- 100,000 partitions ----------------------------------------------------------------------------------------------


@needs_proc
@pytest.mark.parametrize("form", ["raw", "keyed"])
def test_a_hundred_thousand_partitions(tmp_path: Path, form: str, effort: Effort, figures: Figures) -> None:
    """What test_load.py says of fewer, at the most that is promised."""
    number, commits = effort((4000, 5), (100_000, 20))
    report = measure("partitions", folder=str(tmp_path / "root"), form=form, count=number, commits=commits)
    assert (report["wrong"], report["findings"], report["retired"]) == (0, 0, commits)
    assert report["job"] < 32 * MIB + 16 * 1024 * number
    assert report["commits"][0] == {"put": 3, "swap": 1}
    figures[f"{form} partitions"] += number
    figures[f"{form} partitions: bytes of metadata for a changed one"] += report["metadata"] // (TOUCHED * commits)
    figures[f"{form} partitions: wrong restores"] += report["wrong"]
    for what in ("job", "verify", "clean"):
        figures[f"{form} partitions: MiB at most: {what}"] += report[what] // MIB


# ---- ten million keys ------------------------------------------------------------------------------------------------

PROCESS = 128 * MIB
"""What a process has without any state."""

KEYS = 10_000_000
MEMORY = 4 << 30


@needs_proc
def test_ten_million_keys_of_a_map_within_four_gibibytes(tmp_path: Path, effort: Effort, figures: Figures) -> None:
    """The whole process: the map, what saving it takes, a few changes; and the restore of the next run."""
    number = effort(200_000, KEYS)
    if available() < number * MEMORY // KEYS + PROCESS:
        pytest.skip(f"{available() // MIB:,} MiB of memory are free: {number:,} keys may need more")
    for step in ("save", "restore"):
        report = measure("keys", url=str(tmp_path / "root"), count=number, partitions=64, step=step)
        assert report["right"], step
        assert report["peak"] < (MEMORY if number == KEYS else PROCESS + number * MEMORY // KEYS), step
        figures[f"{number:,} keys: MiB of the process at most: {step}"] += report["peak"] // MIB
        figures[f"{number:,} keys: seconds: {step}"] += round(report["seconds"])


# ---- a table partition of 2 GiB --------------------------------------------------------------------------------------

FIXED = 32 * MIB
"""Memory beside the rows: the pieces under way."""

WHOLE = 128 * MIB
"""A partition up to this size may be handled as a whole, which takes two copies more."""


def most(size: int) -> int:
    """Return the most bytes of memory that a task may take for this number of bytes of rows."""
    return FIXED + 2 * size + 2 * min(size, WHOLE)


@needs_proc
def test_a_large_partition_of_a_table_is_written_folded_and_read(
    tmp_path: Path, effort: Effort, figures: Figures
) -> None:
    size = effort(96 * MIB, 2048 * MIB)
    if available() < 5 * size:
        pytest.skip(f"{available() // MIB:,} MiB of memory are free: {size // MIB:,} MiB of rows need more")
    report = measure("table_partition", folder=str(tmp_path / "root"), size=size)
    assert report["right"]
    assert report["write"] <= FIXED + 2 * min(size, WHOLE), "the rows are not counted: the caller has them"
    assert all(peak <= most(stored) for peak, stored in report["folds"]), report["folds"]
    assert report["read"] <= most(report["stored"])
    name = f"table partition of {size // MIB:,} MiB"
    figures[f"{name}: MiB at most: write"] += report["write"] // MIB
    figures[f"{name}: MiB at most: fold"] += max(peak for peak, _ in report["folds"]) // MIB
    figures[f"{name}: MiB at most: read"] += report["read"] // MIB
    figures[f"{name}: folds"] += len(report["folds"])
