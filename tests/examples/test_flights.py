"""The demo, from end to end, and what it is made of."""

import csv
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import pytest

from examples.flights.data import KEYS, SUMS, Day, read_days, write_days
from examples.flights.expected import batch_maps, batch_tables
from examples.flights.pauses import POINTS, parse
from examples.flights.readback import tables_state
from examples.flights.report import compare
from tests.servers import Server

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


class TestTheFirstJob:
    # In the short run the second job below is killed, and tests/proof/test_kills_spark.py kills one with maps.
    @pytest.mark.prove  # eighty days of flights (`make demo` has all of the year), and four starts of Spark
    def test_every_total_is_right_after_three_kills(self, tmp_path: Path) -> None:
        done = run_demo("--job", "maps", "--days", "80", "--folder", str(tmp_path / "flights"))
        assert done.returncode == 0
        assert done.stderr == ""
        assert done.stdout.isascii()
        assert "\x1b" not in done.stdout
        lines = done.stdout.splitlines()
        assert sum(line.startswith("SIGKILL") for line in lines) == 3
        assert sum(line.startswith("start ") for line in lines) == 4
        assert sum(line.startswith("batch ") for line in lines) == 16 + 3
        for words in (
            "while batch 4 uploads its state",
            "the state is that of batch 3, Spark's last batch is 3",
            "computed again: half an upload is nothing",
            "after batch 8 uploaded its state",
            "the state is that of batch 7, Spark's last batch is 7",
            "computed again: what nothing names does not count",
            "after the swap in batch 12",
            "the state is that of batch 12, Spark's last batch is 11",
            "Spark replayed it; the state had it already: skipped",
            "16 checkpoints of aircraft + months: each was restored just now",
            "71,590 flights, 3,536 aircraft",
            "every total is the same",
        ):
            assert words in done.stdout
        assert lines[-1].startswith("EQUAL")

    @pytest.mark.prove  # in the short run `TestTheComparison` finds what differs
    def test_a_batch_that_counts_twice_is_found(self, tmp_path: Path) -> None:
        module = "tests.examples.doubling_job"
        arguments = ("--job", "maps", "--days", "20", "--module", module)
        done = run_demo(*arguments, "--folder", str(tmp_path / "flights"))
        assert done.returncode == 1
        assert "wrong  aircraft:" in done.stdout
        assert "totals differ" in done.stdout
        assert "wrong  batches with a checkpoint: [0, 1, 2, 3, 3], not [0, 1, 2, 3]" in done.stdout
        assert "wrong  batches that were skipped: [], not [3]" in done.stdout
        assert done.stdout.splitlines()[-1].startswith("NOT EQUAL")


class TestTheSecondJob:
    def test_every_column_of_every_row_is_right_after_two_kills(self, tmp_path: Path) -> None:
        done = run_demo("--job", "tables", "--days", "90", "--folder", str(tmp_path / "flights"))
        assert done.returncode == 0
        assert done.stderr == ""
        assert done.stdout.isascii()
        lines = done.stdout.splitlines()
        assert sum(line.startswith("SIGKILL") for line in lines) == 2
        assert sum(line.startswith("start ") for line in lines) == 3
        assert sum(line.startswith("batch ") for line in lines) == 3 + 2
        for words in (
            "while batch 1 uploads its state",
            "the state is that of batch 0, Spark's last batch is 0",
            "computed again: half an upload is nothing",
            "after the swap in batch 2",
            "the state is that of batch 2, Spark's last batch is 1",
            "Spark replayed it; the state had it already: skipped",
            "3 checkpoints of aircraft + routes: each was restored just now",
            "| 4 + 4      |",
            "80,789 flights, 3,576 aircraft",
            "every column of every row",
        ):
            assert words in done.stdout
        assert lines[-1].startswith("EQUAL  tables")


class TestElsewhere:
    @pytest.mark.prove  # three starts of Spark; tests/spark/test_buckets.py has tasks that write to a bucket
    def test_the_state_may_be_in_a_bucket(
        self, tmp_path: Path, gcs_server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_server.storage_options["endpoint_url"])
        root = f"{gcs_server.url}/flights"
        done = run_demo("--job", "tables", "--days", "90", "--folder", str(tmp_path / "flights"), "--root", root)
        assert (done.returncode, done.stderr) == (0, "")
        assert f"but the state in {root}" in done.stdout
        assert "80,789 flights, 3,576 aircraft" in done.stdout
        assert done.stdout.splitlines()[-1].startswith("EQUAL  tables")
        assert not (tmp_path / "flights" / "tables" / "state").exists()


class TestTheDemo:
    def test_a_job_that_cannot_start_is_told_with_its_log(self, tmp_path: Path) -> None:
        arguments = ("--job", "maps", "--days", "20", "--module", "examples.nothing")
        done = run_demo(*arguments, "--folder", str(tmp_path / "flights"))
        assert done.returncode == 1
        assert "FAILED  maps: The job ended with status 1" in done.stdout
        assert "No module named examples.nothing" in done.stdout

    def test_it_runs_both_jobs_and_fails_each_by_name_that_takes_too_long(self, tmp_path: Path) -> None:
        done = run_demo("--days", "90", "--limit", "1", "--folder", str(tmp_path / "flights"))
        assert done.returncode == 1
        for name in ("maps", "tables"):
            assert f"Job {name} reads" in done.stdout
            assert f"FAILED  {name}: The job is not done after 1 seconds, its limit" in done.stdout
        assert done.stdout.splitlines()[-1].startswith("NOT EQUAL  maps failed, tables failed")

    def test_so_few_days_that_a_kill_has_no_batch_are_refused(self, tmp_path: Path) -> None:
        done = run_demo("--job", "tables", "--days", "89", "--folder", str(tmp_path / "flights"))
        assert done.returncode == 2
        assert "--days: expected 90 to 365" in done.stderr

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
        totals = batch_maps(days)
        assert (len(totals["aircraft"]), len(totals["months"])) == (4_044, 37_988)
        assert totals["aircraft"][None]["flights"] == 2_512
        every = list(rows(days))
        for tail in ("N14228", "D942DN", None):
            flights = [row for row in every if row["tailnum"] == (tail or "NA")]
            expected = {name: sum(number(row[column]) for row in flights) for name, column in SUMS.items()}
            assert totals["aircraft"][tail] == {"flights": len(flights), **expected}
        assert sum(month["flights"] for month in totals["months"].values()) == 336_776

    def test_the_tables_to_compare_with_are_plain_sums_and_extremes(self, days: list[Day]) -> None:
        tables = batch_tables(days)
        assert {name: len(tables[name]) for name in KEYS} == {"aircraft": 4_044, "routes": 224}
        every = list(rows(days))
        for table, key in (
            ("aircraft", "N14228"),
            ("aircraft", "N347SW"),  # never arrived: no time in the air, no delay
            ("aircraft", None),
            ("routes", ("EWR", "LGA")),  # one flight, which was cancelled
            ("routes", ("JFK", "LAX")),
        ):
            parts = [part or "NA" for part in (key if isinstance(key, tuple) else (key,))]
            flights = [row for row in every if [row[column] for column in KEYS[table]] == parts]
            flown = [int(row["air_time"]) for row in flights if row["air_time"] != "NA"]
            late = [int(row["arr_delay"]) for row in flights if row["arr_delay"] != "NA"]
            dates = [date(int(row["year"]), int(row["month"]), int(row["day"])) for row in flights]
            assert tables[table][key] == {
                "flights": len(flights),
                "miles": sum(int(row["distance"]) for row in flights),
                "late": sum(late) if late else None,
                "first_day": min(dates),
                "last_day": max(dates),
                "quickest": min(flown, default=None),
                "longest": max(flown, default=None),
            }
        assert tables["totals"]["aircraft"] == tables["totals"]["routes"]
        assert tables["totals"]["aircraft"] == {
            "flights": 336_776,
            "miles": sum(int(row["distance"]) for row in every),
            "late": sum(number(row["arr_delay"]) for row in every),
        }


class TestTheComparison:
    ROWS: ClassVar[dict[Any, dict[str, Any]]] = {
        None: {"flights": 3, "late": None},
        ("EWR", "LGA"): {"flights": 1, "late": -4},
    }

    def test_equal_rows_have_nothing_wrong(self) -> None:
        assert compare("routes", self.ROWS, {key: dict(row) for key, row in self.ROWS.items()}) == []

    @pytest.mark.parametrize(
        ("key", "row", "wrong"),
        [
            (None, {"flights": 4, "late": None}, "1 of 2 totals differ in flights, such as None: 4, not 3"),
            (None, {"flights": 3, "late": 0}, "1 of 2 totals differ in late, such as None: 0, not None"),
            (None, {"flights": 3}, "1 of 2 totals differ in late, such as None: nothing, not None"),
            ("N1", {"flights": 1}, "1 of 2 are too many, such as N1"),
        ],
    )
    def test_a_row_that_differs_is_told(self, key: Any, row: dict[str, Any], wrong: str) -> None:
        assert compare("routes", self.ROWS | {key: row}, self.ROWS) == [f"routes: {wrong}"]

    def test_a_row_that_is_missing_is_told(self) -> None:
        assert compare("routes", {None: self.ROWS[None]}, self.ROWS) == [
            "routes: 1 of 2 are missing, such as ('EWR', 'LGA')"
        ]

    def test_a_key_that_a_table_has_twice_shows_in_what_it_adds_up_to(self) -> None:
        row = {"tailnum": None, "flights": 1, "miles": 5, "late": None}
        once, twice = (tables_state({"aircraft": [row] * times, "routes": []}) for times in (1, 2))
        assert once["aircraft"] == twice["aircraft"] == {None: {"flights": 1, "miles": 5, "late": None}}
        assert once["totals"]["aircraft"] == {"flights": 1, "miles": 5, "late": 0}
        assert compare("totals", twice["totals"], once["totals"]) != []


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
