"""The page as text: bounded, escaped, and its drawings in proportion."""

import json
import re
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.checkpoint.verification import Finding
from pyspark_checkpointer.cli import report_document
from pyspark_checkpointer.cli.report_page import charts, page
from pyspark_checkpointer.cli.report_page.model import OperatorRow, Report
from pyspark_checkpointer.display import duration
from pyspark_checkpointer.manifests.model import CheckpointId, Cost
from tests.cli.report_page.conftest import HOSTILE, SCRIPT, report_on


@pytest.fixture(scope="module")
def report(hostile_root: Path) -> Report:
    return report_on(hostile_root)


def grown(report: Report) -> Report:
    """A thousand checkpoints, operators, savepoints and findings."""
    row, operator = report.checkpoints[0], report.operators[0]
    ids = [CheckpointId(number, "0" * 8) for number in range(1, 1001)]
    findings = tuple(Finding(f"artifacts/{known}", f"artifacts/{known}: gone", tuple(ids), True) for known in ids)
    cost = Cost(5, 2, 100, 2000, 1000)
    return replace(
        report,
        checkpoints=tuple(replace(row, id=known, own_bytes=known.sequence, cost=cost) for known in ids),
        operators=tuple(replace(operator, name=f"op {known}") for known in ids),
        savepoints=tuple(replace(report.savepoints[0], name=str(known)) for known in ids),
        verification=replace(report.verification, findings=findings),
    )


def test_a_large_store_makes_a_page_of_bounded_size_that_says_what_it_leaves_out(report: Report) -> None:
    large = grown(report)
    shown = page.render(large)
    assert len(shown) < 250_000
    for what in ("checkpoints", "operators", "savepoints", "findings"):
        assert f"{page.MAX_ROWS} of 1,000 {what} shown" in shown
    assert "and 995 older ones" in shown
    assert "A bar is the average of several" in shown
    assert len(report_document.report(large)["checkpoints"]) == 1000


def test_everything_from_the_store_is_escaped(report: Report) -> None:
    shown = page.render(report)
    assert HOSTILE not in shown
    assert SCRIPT not in shown
    assert shown.count("&lt;img src=x onerror=") >= 4
    assert "<script" not in shown
    assert "<img" not in shown
    assert not re.search(r"\b(?:https?:|src=\"|href=|url\()", shown)


def test_the_document_is_json_with_what_the_page_says(report: Report) -> None:
    document = json.loads(json.dumps(report_document.report(report)))
    assert document["verdict"] == "Nothing is wrong"
    assert document["checkpoints"][-1]["state"] == "prepared"
    assert document["operators"][0]["chain_counts"]
    assert document["committed"]["properties"][SCRIPT] == SCRIPT
    assert document["verification"]["findings"] == []
    assert document["made"].endswith("Z")


def test_bars_stand_for_what_they_say(report: Report) -> None:
    rows = [
        replace(
            report.checkpoints[0], id=CheckpointId(n, "0" * 8), own_bytes=own, snapshot_bytes=full, delta_bytes=delta
        )
        for n, (own, full, delta) in enumerate([(100, 60, 30), (50, 0, 50), (None, None, None)], 1)
    ]
    chart = charts.bytes_chart(rows)
    assert chart is not None
    assert [[(part.style, part.y, part.height) for part in bar.parts] for bar in chart.bars] == [
        [("full", 40.0, 60.0), ("delta", 10.0, 30.0), ("other", 0.0, 10.0)],
        [("full", 100.0, 0.0), ("delta", 50.0, 50.0), ("other", 50.0, 0.0)],
    ]
    assert (chart.top, chart.middle, chart.first, chart.last) == ("100 B", "50 B", "1", "2")
    assert charts.bytes_chart(rows[2:]) is None
    slow = [replace(row, cost=Cost(1, 1, 1, 4000 + row.id.sequence, 1000)) for row in rows]
    chart = charts.time_chart(slow)
    assert chart is not None
    assert [part.style for part in chart.bars[0].parts] == ["blocked", "other"]
    assert chart.bars[0].label == "1: 1 ms the job was held up, 3 ms the job itself went on"


def test_many_values_share_bars_without_losing_the_peak(report: Report) -> None:
    rows = [
        replace(report.checkpoints[0], id=CheckpointId(n, "0" * 8), cost=Cost(1, 1, 1, 9000 if n == 700 else 10, 0))
        for n in range(1, 1001)
    ]
    chart = charts.time_chart(rows)
    assert chart is not None
    assert len(chart.bars) <= charts.MAX_BARS
    assert chart.top == "9 ms"
    assert chart.bars[-1].x + chart.bars[-1].width <= 100
    assert (chart.first, chart.last) == ("1 to 17", "987 to 1000")
    lengths = charts.lengths_chart([(n, 10) for n in range(1, 31)])
    assert lengths is not None
    assert lengths.bars[0].label == "1 to 3: 30 partitions"


@pytest.mark.parametrize(
    ("microseconds", "said"),
    [
        (None, "?"),
        (0, "0 µs"),
        (999, "999 µs"),
        (1000, "1 ms"),
        (999_499, "999 ms"),
        (999_500, "1.0 s"),
        (59_949_999, "59.9 s"),
        (59_950_000, "1 min 0 s"),
        (3_725_000_000, "62 min 5 s"),
    ],
)
def test_times_as_people_say_them(microseconds: int | None, said: str) -> None:
    assert duration(microseconds) == said


def test_a_store_that_says_little_still_has_a_page(report: Report) -> None:
    bare = OperatorRow("bare", "raw", "explicit", 1, None, replace(report.operators[0].size, chain=None), (), None)
    row = replace(report.checkpoints[0], epoch=None, created=None, cost=None, bytes=None, own_bytes=None)
    little = replace(report, operators=(bare,), biggest=(), checkpoints=(row,), committed=None, savepoints=())
    assert "of unknown age" in page.render(little)


def test_a_lost_catalog_hurts_all_that_it_names(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "root") as client:
        for epoch in range(3):
            with client.begin(epoch=epoch) as cp:
                cp.snapshot("op", 0, b"%d" % epoch)
            if not epoch:
                client.savepoint("first")
        client.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    (catalog,) = (tmp_path / "root" / "catalog").iterdir()
    catalog.unlink()
    shown = page.render(report_on(tmp_path / "root"))
    assert "every checkpoint that only this catalog names, such as savepoints" in shown
    assert "savepoints cannot be read" in shown
    assert "no checkpoint" not in shown


def test_what_is_only_compared_as_stored_is_said(report: Report) -> None:
    seen = replace(report, verification=replace(report.verification, unread=3))
    assert "3 objects of them are compared as stored" in " ".join(page.looked_at(seen))
    assert "as stored" not in " ".join(page.looked_at(report))
