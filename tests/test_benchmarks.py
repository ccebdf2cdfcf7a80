"""The benchmarks measure what they say. What they find is compared with the documents in tests/test_readme.py."""

import re
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.lake_sparks import LAKES, Lake
from benchmarks.lakes import FULL, Size
from benchmarks.measure import Target
from benchmarks.micro_batches import FIRST, WARM
from benchmarks.quotes import measured
from benchmarks.spark_versions import NEWER, OLDER
from benchmarks.stores import most_in_a_row
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


@pytest.mark.parametrize(
    ("spans", "count"),
    [
        ([], 0),
        ([(0, 2)], 1),
        ([(0, 2), (1, 3), (0.5, 2.5)], 1),  # at the same time
        ([(0, 2), (2, 3), (1, 4), (5, 6)], 3),
        ([(5, 6), (0, 4), (3, 5)], 2),  # in any order
    ],
)
def test_requests_in_a_row_are_those_of_which_one_began_after_the_other(
    spans: list[tuple[float, float]], count: int
) -> None:
    assert most_in_a_row(spans) == count


def test_the_ratios_of_all_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "__file__", str(tmp_path / "report.py"))
    for ratio in (0.5, 2.0, 1.25):
        results = report.Results("quick", ["part"])
        results.write("part", [Target("ours / theirs", ratio, 1.0, "detail")])
    page = (tmp_path / "results" / "quick" / "README.md").read_text()
    assert "| ours / theirs | 1.250 | ≤ 1 | **no** | detail | 0.5 to 2 in 3 |" in page
    assert measured(page) == {"ours / theirs": (1.25, "detail")}


def test_a_run_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "__file__", str(tmp_path / "report.py"))

    def results(version: str | None) -> report.Results:
        monkeypatch.setattr(report, "_version", lambda: version)
        return report.Results("quick", ["a", "b"])

    results("old").write("a", [])
    results("new").write("b", [])
    assert results("new").left() == ["a"]
    assert results("old").left() == ["b"]
    assert results("newer").left() == results("new-dirty").left() == results(None).left() == ["a", "b"]
    assert not results("new").missed()
    results("new").write("a", [Target("ours / theirs", 2.0, 1.0, "detail")])
    assert results("new").left() == ["a", "b"]  # all were measured, so that this is another run
    assert [results("new").missed(parts) for parts in (None, ["a"], ["b"])] == [True, True, False]


@pytest.mark.parametrize("line", [OLDER, NEWER])
def test_the_running_sum_is_measured_on_lines_of_spark_that_are_supported(line: str) -> None:
    assert any(version.startswith(f"{line}.") for version in SUPPORTED)
