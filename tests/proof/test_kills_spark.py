"""SIGKILL at random moments of the driver of a streaming job. What it does is counted once, whatever was done twice."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.proof.effort import SUMMARY
from tests.proof.kills.counting import Figures, judge_all, new_place
from tests.proof.kills.drivers import kill_drivers, rows, timers
from tests.servers import Server

Effort = Callable[[int, int], int]


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("kind", ["local"] if SUMMARY is None else ["local", "s3", "azure"])
def test_a_driver_in_foreachbatch(
    kind: str,
    server_of: Callable[[str], Server | None],
    tmp_path: Path,
    seed: int,
    effort: Effort,
    figures: Figures,
) -> None:
    """What is counted, emitted and fired is what a run that never failed would have: every row and timer once."""
    kills = effort(1, 60 if kind == "local" else 20)
    place = new_place(tmp_path, server_of(kind), empty=True)
    batches, killed, needed_a_hand = kill_drivers(place, tmp_path, kills, random.Random(seed))
    with place.open() as client:
        found = rows(client.restore(), tmp_path)
        figures["driver: timers fired"] += timers(client.restore(), tmp_path, batches)
    figures["driver: kills"] += killed
    assert killed > kills // 2
    judge_all(figures, "driver", place, found, needed_a_hand)
    assert found == [f"row-{number}" for number in range(batches)]
