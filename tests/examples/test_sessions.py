"""Sessions that timers close, by a job whose processes are killed: each is emitted once."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from examples.flights.data import Day, read_days
from examples.sessions import GROUND, expected, walk
from tests.docs.shared_spark import SharedSpark
from tests.examples.test_flights import processes

REPOSITORY = Path(__file__).parents[2]


def start(folder: Path, days: int, environment: Mapping[str, str] = os.environ) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "examples.sessions", str(days), str(folder)]
    # A group of its own: the JVM is killed with its driver, at the same moment.
    return subprocess.Popen(
        command,
        cwd=REPOSITORY,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def batches(folder: Path) -> int:
    """How many batches have begun to write sessions."""
    written = folder / "sessions"
    return len(list(written.iterdir())) if written.exists() else 0


def test_sessions_are_exact_over_kills(
    tmp_path: Path, effort: Callable[[Any, Any], Any], one_spark: SharedSpark
) -> None:
    folder, killed, days = tmp_path / "sessions", 0, effort(3, 6)
    # In the short run tests/proof/test_kills_spark.py kills a job with timers.
    kills = effort([], [(2, 0.0), (3, 0.4), (4, 0.2)])
    for until, pause in kills:
        job, deadline = start(folder, days), time.monotonic() + 120
        while batches(folder) < until and time.monotonic() < deadline and job.poll() is None:
            time.sleep(0.02)
        time.sleep(pause)  # in the middle of a batch, at different places
        assert job.poll() is None, "the job ended before it was killed"
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        killed += batches(folder) < days
    assert killed == len(kills)
    job = start(folder, days, os.environ | one_spark.environment)  # nobody kills this one
    said, _ = job.communicate(timeout=480)
    assert "exactly those of a plain loop" in said, said
    assert job.returncode == 0
    assert [line for line in processes() if str(folder) in line] == []


def test_a_walk_ends_a_session_after_twelve_hours_on_the_ground() -> None:
    (day,) = read_days(1)
    names = day.header.strip().split(",")

    def line(departure: str, air_time: str) -> str:
        row = dict.fromkeys(names, "0") | {
            "tailnum": "N1",
            "dep_time": departure,
            "air_time": air_time,
            "distance": "7",
        }
        return ",".join(row.values()) + "\n"

    def days(*departures: tuple[int, str]) -> list[Day]:
        first = date(2013, 1, 1)
        return [Day(first + timedelta(days=n), day.header, (line(departure, "60"),)) for n, departure in departures]

    midnight = int(datetime(2013, 1, 1, tzinfo=UTC).timestamp()) // 60
    # Lands at 6:00, and leaves at 18:00: twelve hours. One minute earlier it would be the same session.
    assert expected(days((0, "500"), (0, "1800"))) == [
        ("N1", midnight + 300, midnight + 360, 1, 7),
        ("N1", midnight + 1080, midnight + 1140, 1, 7),
    ]
    assert expected(days((0, "500"), (0, "1759"))) == [("N1", midnight + 300, midnight + 1139, 2, 14)]
    assert expected(days((0, "2300"), (1, "0"), (2, "500"))) == [
        ("N1", midnight + 1380, midnight + 1500, 2, 14),
        ("N1", midnight + 3180, midnight + 3240, 1, 7),
    ]
    assert timedelta(hours=12) == GROUND


@pytest.mark.parametrize("hours", [11, 12, 13])
def test_the_function_and_the_loop_agree_on_the_limit(hours: int) -> None:
    first = datetime(2013, 1, 1, 5, tzinfo=UTC)
    flights = [
        {"departure": first, "air_time": 60, "distance": 1},
        {"departure": first + timedelta(hours=1 + hours), "air_time": 60, "distance": 1},
    ]
    made = walk(("N1",), flights, None)
    assert len(made.output) == (hours >= 12)
    assert made.upserts["flights"] == (1 if hours >= 12 else 2)
