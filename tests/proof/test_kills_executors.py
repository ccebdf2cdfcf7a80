"""SIGKILL at random moments of the executors of a streaming job, while their tasks write."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proof.kills.counting import Figures, judge_all, new_place
from tests.proof.kills.drivers import kill_executors, rows, start, timers
from tests.proof.kills.stream import write_input
from tests.servers import Server


@pytest.mark.prove  # in the short run tests/spark/test_cluster.py kills one
@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("kind", ["local", "s3", "azure"])
def test_an_executor_while_its_tasks_write(
    kind: str, server_of: Callable[[str], Server | None], tmp_path: Path, seed: int, figures: Figures
) -> None:
    kills = 50 if kind == "local" else 20
    place = new_place(tmp_path, server_of(kind), empty=True)
    write_input(tmp_path, 0, kills * 2)
    with start(place, tmp_path, "local-cluster[2,1,1024]") as job:
        killed, needed_a_hand = kill_executors(job, kills, random.Random(seed))
    with place.open() as client:
        found = rows(client.restore(), tmp_path)
        figures["executor: timers fired"] += timers(client.restore(), tmp_path, kills * 2)
    figures["executor: kills"] += killed
    judge_all(figures, "executor", place, found, needed_a_hand)
    assert killed > kills // 2
    assert found == [f"row-{number}" for number in range(kills * 2)]
