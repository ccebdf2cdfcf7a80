"""The guide of five operators: in one Spark ours emit what the page says, and in the long run what Spark's emit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs import shared_spark
from tests.docs.pages import DOCS, TIMEOUT_SECONDS, blocks
from tests.docs.shared_spark import SharedSpark

FILES = (
    "ann,2024-01-01 10:00:00,50\nbob,2024-01-01 10:01:00,150\nann,2024-01-01 10:05:00,-7\nbob,2024-01-01 10:06:00,20\n",
    "ann,2024-01-01 10:20:00,120\ncid,2024-01-01 10:21:00,200\ncid,2024-01-01 10:22:00,300\n",
    "bob,2024-01-01 11:00:00,101\nann,2024-01-01 11:01:00,130\nbob,2024-01-01 11:45:00,30\n",
    "dan,2024-01-01 13:00:00,1\n",
)

Emitted = dict[int, list[dict[str, Any]]]

NAMES = ("totals", "first", "latest", "alarm", "sessions")


def event(user: str, at: str, amount: int) -> dict[str, Any]:
    return {"user": user, "at": f"2024-01-01T{at}:00.000Z", "amount": amount}


def total(user: str, events: int, amount: int) -> dict[str, Any]:
    return {"user": user, "events": events, "total": amount}


def session(user: str, started: str, last: str, events: int) -> dict[str, Any]:
    first, latest = (f"2024-01-01T{at}:00.000Z" for at in (started, last))
    return {"user": user, "started": first, "last": latest, "events": events}


@pytest.fixture(scope="module")
def folder(one_spark: SharedSpark) -> Path:
    """Return where both programs run. Each has a folder of its own for all but its input."""
    inbox = one_spark.empty() / "events" / "inbox"
    inbox.mkdir(parents=True)
    for number, text in enumerate(FILES):
        path = inbox / f"{number}.csv"
        path.write_text(text)
        os.utime(path, (1_700_000_000 + number,) * 2)
    return one_spark.folder


@pytest.fixture(scope="module")
def ours(folder: Path, one_spark: SharedSpark) -> Path:
    """Return the folder in which the programs with this library have emitted."""
    return play("ours", folder, one_spark)


@pytest.fixture(scope="module")
def spark(folder: Path, one_spark: SharedSpark) -> Path:
    """Return the folder in which the programs with Spark's own operators have emitted."""
    return play("spark", folder, one_spark)


def play(whose: str, folder: Path, one_spark: SharedSpark) -> Path:
    """Run the five programs in one Spark, and return the folder in which they have emitted."""
    titles = [(block.title, block.text) for block in blocks(DOCS / "operators.md") if block.language == "python"]
    program = "\n".join(text for title, text in titles if title in ("head.py", f"{whose}.py"))
    done = subprocess.run(
        [sys.executable, shared_spark.__file__, Path(__file__).with_name("play.py")],
        input=json.dumps([("python", program)]),
        cwd=folder,
        env=os.environ | one_spark.environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return folder / "events" / whose


def emitted(folder: Path) -> Emitted:
    """What each batch emitted. Spark has a batch without rows at the end, which moves its watermark."""
    found: Emitted = {}
    for part in folder.rglob("*.json"):
        lines = part.read_text().splitlines()
        found.setdefault(int(part.parent.name), []).extend(json.loads(line) for line in lines)
    return {batch: sorted(rows, key=str) for batch, rows in sorted(found.items()) if rows}


@pytest.mark.prove  # five queries of Spark's own; what ours emit is compared with literals below
@pytest.mark.parametrize("name", NAMES[:-1])
def test_both_programs_emit_the_same_in_each_batch(name: str, ours: Path, spark: Path) -> None:
    assert emitted(spark / name) == emitted(ours / name)


@pytest.mark.parametrize("whose", ["ours", pytest.param("spark", marks=pytest.mark.prove)])
def test_the_program_ends_these_sessions(whose: str, request: pytest.FixtureRequest) -> None:
    played: Path = request.getfixturevalue(whose)
    expected = [
        session("ann", "10:00", "10:20", 3),
        session("ann", "11:01", "11:01", 1),
        session("bob", "10:01", "10:06", 2),
        session("bob", "11:00", "11:00", 1),
        session("bob", "11:45", "11:45", 1),
        session("cid", "10:21", "10:22", 2),
    ]
    rows = [row for batch in emitted(played / "sessions").values() for row in batch]
    assert sorted(map(json.dumps, map(sorted_row, rows))) == sorted(map(json.dumps, map(sorted_row, expected)))


def sorted_row(row: dict[str, Any]) -> dict[str, Any]:
    return dict(sorted(row.items()))


def test_what_ours_emit_is_what_the_page_says(ours: Path) -> None:
    first = [event("ann", "10:00", 50), event("bob", "10:01", 150)]
    latest = [event("ann", "10:00", 50), event("bob", "10:06", 20)]
    dan = [event("dan", "13:00", 1)]
    assert {name: emitted(ours / name) for name in NAMES[:-1]} == {
        "totals": {
            0: [total("ann", 2, 43), total("bob", 2, 170)],
            1: [total("ann", 3, 163), total("cid", 2, 500)],
            2: [total("ann", 4, 293), total("bob", 4, 301)],
            3: [total("dan", 1, 1)],
        },
        "first": {0: first, 1: [event("cid", "10:21", 200)], 3: dan},
        "latest": {
            0: latest,
            1: [event("ann", "10:20", 120), event("cid", "10:22", 300)],
            2: [event("ann", "11:01", 130), event("bob", "11:45", 30)],
            3: dan,
        },
        "alarm": {1: [event("cid", "10:22", 300)], 2: [event("ann", "11:01", 130)]},
    }


def test_every_operator_is_played() -> None:
    sections = {block.section for block in blocks(DOCS / "operators.md") if block.title == "spark.py"}
    assert len(sections) == len(NAMES) == 5
