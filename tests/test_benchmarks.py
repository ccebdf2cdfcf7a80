"""The benchmarks measure what they say. What they find is compared with the documents in tests/test_readme.py."""

import re

import pytest

from benchmarks.lake_sparks import LAKES, Lake
from benchmarks.lakes import FULL, Size
from benchmarks.micro_batches import FIRST, WARM
from benchmarks.spark_versions import NEWER, OLDER
from tests.sparks import SUPPORTED


@pytest.mark.parametrize("size", FULL, ids=lambda size: size.what)
def test_every_compaction_of_a_lake_is_in_a_batch_that_counts(size: Size) -> None:
    """Batches that do not count begin a query. A compaction there would cost the lake nothing."""
    turns = [
        range(FIRST + turn * (WARM + size.batches), FIRST + (turn + 1) * (WARM + size.batches))
        for turn in range(size.turns)
    ]
    counted = [batch for turn in turns for batch in turn[WARM:]]
    compacted = [batch for batch in range(1, turns[-1].stop) if batch % size.every == 0]
    assert set(compacted) <= set(counted)
    assert len(compacted) * size.every == len(counted)


@pytest.mark.parametrize("lake", LAKES.values(), ids=lambda lake: lake.name)
def test_a_lake_runs_on_the_spark_that_its_release_is_for(lake: Lake) -> None:
    (spark,) = re.findall(r"[-_](\d+\.\d+)_2\.13:", lake.package)
    assert lake.spark.startswith(f"{spark}.")


@pytest.mark.parametrize("line", [OLDER, NEWER])
def test_the_running_sum_is_measured_on_lines_of_spark_that_are_supported(line: str) -> None:
    assert any(version.startswith(f"{line}.") for version in SUPPORTED)
