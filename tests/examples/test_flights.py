"""The demo, from end to end, and what it is made of."""

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from examples.flights.data import SUMS, Day, read_days, write_days
from examples.flights.expected import batch_totals
from examples.flights.pauses import POINTS, parse

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def days() -> list[Day]:
    return read_days()


def run_demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the demo without a terminal, and see that none of its processes is left."""
    command = [sys.executable, "-m", "examples.flights", *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    folder = arguments[arguments.index("--folder") + 1]
    assert [line for line in processes() if folder in line] == []
    return done


def processes() -> list[str]:
    """The command line of every process."""
    if not Path("/proc/self/cmdline").exists():
        listed = subprocess.run(["ps", "-e", "-ww", "-o", "args="], capture_output=True, text=True, check=True)
        return listed.stdout.splitlines()
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return lines


class TestTheDemo:
    # The slowest test of all: a year of flights and four starts of Spark, 70 seconds on two idle processors.
    def test_every_total_is_right_after_three_kills(self, tmp_path: Path) -> None:
        done = run_demo("--folder", str(tmp_path / "flights"))
        assert done.returncode == 0
        assert done.stderr == ""
        assert done.stdout.isascii()
        assert "\x1b" not in done.stdout
        lines = done.stdout.splitlines()
        assert sum(line.startswith("SIGKILL") for line in lines) == 3
        assert sum(line.startswith("start ") for line in lines) == 4
        assert sum(line.startswith("batch ") for line in lines) == 73 + 3
        for words in (
            "while batch 18 uploads its state",
            "the state is that of batch 17, Spark's last batch is 17",
            "computed again: half an upload is nothing",
            "after batch 36 uploaded its state",
            "the state is that of batch 35, Spark's last batch is 35",
            "computed again: what nothing names does not count",
            "after the swap in batch 54",
            "the state is that of batch 54, Spark's last batch is 53",
            "Spark replayed it; the state had it already: skipped",
            "73 checkpoints of aircraft + months: each was restored just now",
            "336,776 flights, 4,044 aircraft",
            "every total is the same",
        ):
            assert words in done.stdout
        assert lines[-1].startswith("EQUAL")

    def test_a_batch_that_counts_twice_is_found(self, tmp_path: Path) -> None:
        job = "tests.examples.doubling_job"
        done = run_demo("--days", "20", "--job", job, "--folder", str(tmp_path / "flights"))
        assert done.returncode == 1
        assert "wrong  aircraft:" in done.stdout
        assert "totals differ" in done.stdout
        assert "wrong  batches with a checkpoint: [0, 1, 2, 3, 3], not [0, 1, 2, 3]" in done.stdout
        assert "wrong  batches that were skipped: [], not [3]" in done.stdout
        assert done.stdout.splitlines()[-1].startswith("NOT EQUAL")

    def test_a_job_that_cannot_start_is_told_with_its_log(self, tmp_path: Path) -> None:
        done = run_demo("--days", "20", "--job", "examples.nothing", "--folder", str(tmp_path / "flights"))
        assert done.returncode == 1
        assert "FAILED" in done.stdout
        assert "No module named examples.nothing" in done.stdout

    def test_a_folder_with_something_in_it_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("mine")
        assert run_demo("--folder", str(tmp_path)).returncode == 2
        assert (tmp_path / "thesis.txt").read_text() == "mine"


class TestTheFlights:
    def test_a_file_for_each_day_holds_the_lines_of_the_package(self, days: list[Day], tmp_path: Path) -> None:
        write_days(tmp_path / "flights", days)
        files = sorted((tmp_path / "flights").iterdir(), key=lambda path: path.stat().st_mtime)
        assert [path.name for path in files] == sorted(os.listdir(tmp_path / "flights"))
        assert [path.stem for path in files] == [str(day.date) for day in days]
        assert len(files) == 365
        assert sum(len(path.read_text().splitlines()) - 1 for path in files) == 336_776

    def test_the_totals_to_compare_with_are_plain_sums(self, days: list[Day]) -> None:
        totals = batch_totals(days)
        assert (len(totals["aircraft"]), len(totals["months"])) == (4_044, 37_988)
        assert totals["aircraft"][None]["flights"] == 2_512
        every = list(rows(days))
        for tail in ("N14228", "D942DN", None):
            flights = [row for row in every if row["tailnum"] == (tail or "NA")]
            expected = {name: sum(number(row[column]) for row in flights) for name, column in SUMS.items()}
            assert totals["aircraft"][tail] == {"flights": len(flights), **expected}
        assert sum(month["flights"] for month in totals["months"].values()) == 336_776


def rows(days: list[Day]) -> Iterator[dict[str, str]]:
    yield from csv.DictReader([days[0].header, *(line for day in days for line in day.lines)])


def number(text: str) -> int:
    return 0 if text == "NA" else int(text)


@pytest.mark.parametrize("point", POINTS)
def test_a_stop_is_a_point_and_a_batch(point: str) -> None:
    assert parse(f"{point}:17") == (point, 17)


@pytest.mark.parametrize("text", ["", "uploading", "uploading:", "somewhere:3", "swapped:x"])
def test_any_other_stop_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse(text)
