"""SIGKILL at random moments of a streaming job: of its driver, and of the executors below it."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proof.effort import SUMMARY
from tests.proof.kills.counting import Figures, judge_all, new_place
from tests.proof.kills.drivers import kill_drivers, kill_executors, rows, start
from tests.proof.kills.stream import write_input

Effort = Callable[[int, int], int]


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("kind", ["local"] if SUMMARY is None else ["local", "s3", "azure"])
def test_a_driver_in_foreachbatch(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, seed: int, effort: Effort, figures: Figures
) -> None:
    """What is counted at the end is what a run that never failed would have counted: every row once."""
    kills = effort(1, 60 if kind == "local" else 20)
    server = None if kind == "local" else request.getfixturevalue(f"{kind}_server")
    place = new_place(tmp_path, server, empty=True)
    batches, killed, needed_a_hand = kill_drivers(place, tmp_path, kills, random.Random(seed))
    with place.open() as client:
        found = rows(client.restore())
    figures["driver: kills"] += killed
    assert killed > kills // 2
    judge_all(figures, "driver", place, found, needed_a_hand)
    assert found == [f"row-{number}" for number in range(batches)]


if SUMMARY is not None:  # in the short run tests/spark/test_cluster.py kills one

    @pytest.mark.parametrize("seed", [1])
    def test_an_executor_while_its_tasks_write(tmp_path: Path, seed: int, figures: Figures) -> None:
        kills = 50
        place = new_place(tmp_path, None, empty=True)
        write_input(tmp_path, 0, kills * 2)
        with start(place, tmp_path, "local-cluster[2,1,1024]") as job:
            killed, needed_a_hand = kill_executors(job, kills, random.Random(seed))
        with place.open() as client:
            found = rows(client.restore())
        figures["executor: kills"] += killed
        judge_all(figures, "executor", place, found, needed_a_hand)
        assert killed > kills // 2
        assert found == [f"row-{number}" for number in range(kills * 2)]
