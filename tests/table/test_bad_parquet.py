"""Damaged Parquet files whose digests are right: each is refused by name, in bounded time and memory, in every way to
read."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.proof.load.gauges import MIB, needs_proc
from tests.table.bad_parquet import NAMED

pytestmark = needs_proc

ROOT = Path(__file__).parents[2]
SECONDS, MEMORY = 20, 64 * MIB

VALID = {"indices_of_no_bits"}
"""Unusual, and right: all values are the dictionary's first."""

CONTENT = ("body ", "element: 9=")
"""What says nothing but other values, or that a column is another one: only a digest can tell."""


def read_all(share: float) -> list[dict[str, Any]]:
    """Return what came of each case, in a process that may die of it."""
    command = [sys.executable, "-m", "tests.table.bad_parquet", str(share)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (told[-1:], done.stderr[-2000:])
    return [one for one in told if "outcome" in one]


def test_each_kind_of_damage_is_refused_by_name(effort: Callable[[float, float], float], figures: Counter[str]) -> None:
    read = read_all(effort(0.1, 1.0))
    named = {damage.__name__ for damage in NAMED}
    for one in read:
        if one["case"] in VALID or one["case"].startswith(CONTENT):
            assert one["outcome"] in ("MalformedError", "sound", "other rows"), one
        elif one["case"] in named:
            assert one["outcome"] == "MalformedError", one
        else:
            assert one["outcome"] in ("MalformedError", "sound"), one
        assert one["seconds"] < SECONDS, one
        assert one["bytes"] < MEMORY, one
        figures[f"bad files: {one['outcome']}"] += 1
    assert named <= {one["case"] for one in read}
    assert len(read) > 3 * len(named)


@pytest.mark.parametrize("way", ["read_whole", "read_pack", "read_groups"])
def test_what_the_generator_puts_together_is_what_it_took_apart(way: str) -> None:
    from tests.table import bad_parquet

    form, read = next(pair for pair in bad_parquet.WAYS if pair[1].__name__ == way)
    assert bad_parquet.outcome(read, bad_parquet.ParquetFile(bad_parquet.SOUND[form]).build()) == "sound"
