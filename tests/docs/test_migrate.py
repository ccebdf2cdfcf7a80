"""Each migration guide shows a job before and after. Both give the same, and the state can be carried over.

All programs of all guides run in one process, with one Spark, in the JVM of all pages. Each guide is played in three
folders:

* `old`: the job as it was, over all input; then its last batch is repeated, as after a crash.
* `new`: the job as it is after the migration, over all input; then its last batch is repeated.
* `moved`: the old job over the first file, then the new job with its changes for the first start over the second.
"""

import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.quotes import RANDOM_KEYS
from pyspark_checkpointer import Checkpointer
from tests.docs import shared_spark
from tests.docs.pages import DOCS, TIMEOUT_SECONDS, Block, blocks, changed
from tests.docs.shared_spark import SharedSpark

Steps = list[tuple[str, str]]
Rows = dict[Any, Any]


@dataclass(frozen=True, slots=True)
class Guide:
    """A page of `docs/migrate`, and what its programs are tried with."""

    page: str
    folder: str
    """Where its programs look for everything."""
    files: tuple[str, str]
    result: Rows
    """The state after both files."""
    twice: Rows | None
    """The state of the old job that has counted the second file twice; None where Spark's own state prevents that."""
    read_old: Callable[[Path], Rows]
    read_new: Callable[[Path], Rows]

    @property
    def blocks(self) -> list[Block]:
        return blocks(DOCS / "migrate" / f"{self.page}.md")

    def block(self, language: str, title: str | None) -> str:
        """Return the text of a block that there is once."""
        (found,) = (block.text for block in self.blocks if (block.language, block.title) == (language, title))
        return found

    def steps(self) -> Steps:
        """Return what is done, in order."""
        before, after = self.block("python", "before.py"), self.block("python", "after.py")
        first_start = changed(after, self.block("diff", "after.py"))
        moves = [("sh", block.text) for block in self.blocks if block.language == "sh"]
        return [
            *self._in("old", [self._file(0), self._file(1), ("python", before)]),
            *self._in("new", [self._file(0), self._file(1), ("python", after)]),
            *self._in("moved", [self._file(0), ("python", before), *moves, self._file(1), ("python", first_start)]),
            *self._in("old", [*self._repeat("spark"), ("python", before)] if self.twice else []),
            *self._in("new", [*self._repeat("spark*"), ("python", after)]),
        ]

    def _in(self, folder: str, steps: Steps) -> Steps:
        """Let steps work in a folder of their own. All programs share the working directory of one Spark."""
        return [(language, text.replace(f"{self.folder}/", f"{folder}/{self.folder}/")) for language, text in steps]

    def _file(self, number: int) -> tuple[str, str]:
        inbox = f"{self.folder}/inbox"
        return "sh", f"mkdir -p {inbox}; sleep 0.1; printf '{self.files[number]}' > {inbox}/{number}.csv"

    def _repeat(self, spark: str) -> Steps:
        """Return a step that deletes Spark's commit file of batch 1, so that Spark repeats the batch."""
        commits = f"{self.folder}/{spark}/commits"
        return [("sh", f"test -f {commits}/1; rm {commits}/1 {commits}/.1.crc")]


def table(root: Path, name: str, key: str) -> Rows:
    """Return the rows of a table by key."""
    restored = Checkpointer(root).restore()
    assert restored is not None
    return {row.pop(key): row for row in restored.table(name).to_pylist()}


def parquet(folder: Path, key: str) -> Rows:
    return {row.pop(key): row for row in pq.read_table(folder).to_pylist()}


def users_of(root: Path) -> Rows:
    restored = Checkpointer(root).restore()
    assert restored is not None
    return restored.keyed("users").to_dict()


def outputs(folder: Path) -> Rows:
    """Return what a job over sensors wrote last for each of them."""
    return {key: row for batch in sorted(folder.iterdir()) for key, row in parquet(batch, "sensor").items()}


def unpickled(file: Path) -> Rows:
    loaded: Rows = pickle.loads(file.read_bytes())
    return loaded


GUIDES = (
    Guide(
        page="merge",
        folder="orders",
        files=("ann,30\\nbob,20\\nann,5\\n", "bob,10\\ncid,70\\n"),
        result={"ann": {"total": 35}, "bob": {"total": 30}, "cid": {"total": 70}},
        twice={"ann": {"total": 35}, "bob": {"total": 40}, "cid": {"total": 140}},
        read_old=lambda folder: parquet(folder / "orders" / "table", "customer"),
        read_new=lambda folder: table(folder / "orders" / "state", "totals", "customer"),
    ),
    Guide(
        page="pickle",
        folder="visits",
        files=("ann,home,1\\nann,shop,2\\nbob,home,3\\n", "bob,help,4\\ncid,home,5\\n"),
        result={
            "ann": {"visits": 2, "page": "shop"},
            "bob": {"visits": 2, "page": "help"},
            "cid": {"visits": 1, "page": "home"},
        },
        twice={
            "ann": {"visits": 2, "page": "shop"},
            "bob": {"visits": 3, "page": "help"},
            "cid": {"visits": 2, "page": "home"},
        },
        read_old=lambda folder: unpickled(folder / "visits" / "users.pickle"),
        read_new=lambda folder: users_of(folder / "visits" / "state"),
    ),
    Guide(
        page="apply-in-pandas-with-state",
        folder="sensors",
        files=("a,2,2.5\\na,1,1.5\\nb,3,9.0\\n", "b,5,8.0\\na,4,3.5\\nb,6,9.5\\nc,7,1.0\\n"),
        result={"a": {"last": 3.5, "rises": 2}, "b": {"last": 9.5, "rises": 1}, "c": {"last": 1.0, "rises": 0}},
        twice=None,
        read_old=lambda folder: outputs(folder / "sensors" / "output"),
        read_new=lambda folder: table(folder / "sensors" / "state", "sensors", "sensor"),
    ),
)


@pytest.fixture(scope="module")
def played(one_spark: SharedSpark) -> Path:
    """Return the folder in which all programs were run."""
    folder = one_spark.empty()
    steps = [step for guide in GUIDES for step in guide.steps()]
    done = subprocess.run(
        [sys.executable, shared_spark.__file__, Path(__file__).with_name("play.py")],
        input=json.dumps(steps),
        cwd=folder,
        env=_environment(os.environ | one_spark.environment),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return folder


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith("CHECKPOINTER_")}


every_guide = pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.page)


@every_guide
def test_both_programs_give_the_same_and_the_new_one_also_when_a_batch_is_repeated(guide: Guide, played: Path) -> None:
    assert guide.read_old(played / "old") == (guide.twice or guide.result)
    assert guide.read_new(played / "new") == guide.result


@every_guide
def test_the_state_is_carried_over(guide: Guide, played: Path) -> None:
    assert guide.read_new(played / "moved") == guide.result


def test_the_sensors_write_the_same_output(played: Path) -> None:
    (of_query,) = (played / "new" / "sensors" / "output-2").iterdir()
    assert outputs(of_query) == outputs(played / "old" / "sensors" / "output")


def test_the_new_job_leaves_the_output_of_the_old_one(played: Path) -> None:
    (before,) = (played / "moved" / "sensors" / "output").iterdir()
    assert parquet(before, "sensor") == parquet(played / "old" / "sensors" / "output" / "0", "sensor")


def test_every_guide_is_played() -> None:
    assert {file.stem for file in (DOCS / "migrate").glob("*.md")} == {guide.page for guide in GUIDES}


def test_the_figures_are_those_of_the_benchmark() -> None:
    summary = (DOCS.parent / "benchmarks" / "results" / "full" / "summary.md").read_text()
    rows = {row[1].strip(): row for row in (line.split("|") for line in summary.splitlines()) if len(row) > 5}

    def ratio(question: str) -> str:
        return f"{float(rows[question][2]):.2f}"

    merge, apply = (" ".join((DOCS / "migrate" / f"{GUIDES[n].page}.md").read_text().split()) for n in (0, 2))
    micro_batch = rows["table: micro-batch of a running sum / only aggregating"][5]
    ours, delta = re.findall(r"(?:ours|delta-rs) ([\d.]+) s", micro_batch)
    assert f"took {ratio('table: upsert of 100,000 into 10,000,000 / delta-rs merge')} of the time" in merge
    assert f"took {delta} seconds with delta-rs and {ours} seconds with this library" in merge
    assert f"read {ratio(RANDOM_KEYS)} of the table" in apply
    assert f"took {ratio('table: micro-batch of a running sum / RocksDB')} of the time" in apply
