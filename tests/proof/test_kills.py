"""SIGKILL at random moments, in real processes: nothing acknowledged is lost, nothing counts twice, nothing refused is
there, and whoever starts anew needs no hand.

The moments are random, and so is what the processes do; the seed of both is in the name of the test that fails.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from checkpointer import Checkpointer, RetentionPolicy
from checkpointer.errors import InvalidStateError
from checkpointer.pointer import read_head
from checkpointer.runtime import run_sync
from tests.core.world import live_objects
from tests.proof.effort import SUMMARY
from tests.proof.kills import writers
from tests.proof.kills.drivers import kill_drivers, kill_executors, rows, start
from tests.proof.kills.ledger import ADDED, REFUSED, Told, judge, read
from tests.proof.kills.lives import Slot, kill_at_random, stop, until
from tests.proof.kills.stream import write_input
from tests.proof.kills.writers import KEEP, Place
from tests.servers import Server

Effort = Callable[[int, int], int]
Figures = Counter[str]
NewSlot = Callable[..., Slot]

ALONE = RetentionPolicy(keep_last=1, grace=timedelta(0))

FULL = "No space left on device"

EVERYWHERE = ["local", "s3", "azure"]


@pytest.fixture
def new_slot() -> Iterator[NewSlot]:
    """Makes processes that do not outlive the test, whatever becomes of it."""
    slots: list[Slot] = []

    def make(*arguments: Any, **options: Any) -> Slot:
        slots.append(Slot(*arguments, **options))
        return slots[-1]

    yield make
    for slot in slots:
        slot.end()


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """A root of the kind that the test is parametrised with, with a first checkpoint."""
    return new_place(tmp_path, None if request.param == "local" else request.getfixturevalue(f"{request.param}_server"))


def new_place(folder: Path, server: Server | None, *, empty: bool = False) -> Place:
    ledgers = folder / "ledgers"
    ledgers.mkdir()
    place = Place(f"{server.url}/{folder.name}", server.storage_options, ledgers) if server else None
    place = place or Place(str(folder / "root"), {}, ledgers)
    if not empty:
        writers.begin(place)
    return place


def told(place: Place) -> list[Told]:
    return [line for path in sorted(place.ledgers.glob("*.jsonl")) for line in read(path)]


def acknowledged(place: Place) -> int:
    return sum(line.kind == ADDED for line in told(place))


def count(figures: Figures, area: str, place: Place, slots: list[Slot]) -> list[str]:
    """After all have stopped, go on as the next run would, and count. Returns the tokens of the state."""
    with place.open() as client:
        restored = client.restore()
        if restored is not None and restored.prepared is not None:
            restored.prepared.commit()
            restored = client.restore()
        found = writers.tokens(restored)
        with client.begin() as cp:
            cp.keep("tokens")
    figures[f"{area}: kills"] += sum(slot.kills for slot in slots)
    judge_all(figures, area, place, found, sum(slot.needed_a_hand for slot in slots))
    return found


def judge_all(figures: Figures, area: str, place: Place, found: list[str], needed_a_hand: int) -> None:
    """Compare what was told with what was found, and count it."""
    everything = told(place)
    verdict = judge(everything, found)
    figures[f"{area}: acknowledged commits"] += verdict.acknowledged
    figures[f"{area}: commits refused"] += verdict.refused
    figures[f"{area}: lost"] += len(verdict.lost)
    figures[f"{area}: doubled"] += len(verdict.doubled)
    figures[f"{area}: restarts that needed a hand"] += needed_a_hand
    assert verdict.broken == []
    assert needed_a_hand == 0, [line.note for line in everything if line.kind == "died"]
    with place.open() as client:
        assert client.verify().findings == ()
    assert verdict.acknowledged > 0


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
def test_eight_that_compete_for_one_root(
    place: Place, new_slot: NewSlot, seed: int, effort: Effort, figures: Figures
) -> None:
    """Each is fenced all the time by the others, some are stopped and go on as zombies, and all of them die."""
    slots = [new_slot(place, f"w{number}", seed, writers.compete) for number in range(8)]
    kill_at_random(slots, effort(20, 300), random.Random(seed), pauses=True)
    stop(place, slots)
    found = count(figures, "competing", place, slots)
    assert len({token.partition("-")[0] for token in found}) > 1, "they never met: this proves nothing"


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("place", EVERYWHERE, indirect=True)
def test_a_cleanup_beside_a_writer(
    place: Place, new_slot: NewSlot, seed: int, effort: Effort, figures: Figures
) -> None:
    """Both die, the cleanup more often; what was saved is there, and what they left goes by one cleanup."""
    slots = [
        new_slot(place, "writer", seed, writers.compete, span=40, savepoints=True),
        new_slot(place, "cleanup", seed, writers.clean, span=4),
    ]
    kill_at_random(slots, effort(12, 300), random.Random(seed))
    stop(place, slots)
    found = count(figures, "cleanup", place, slots)
    everything = told(place)
    figures["cleanup: objects deleted"] += sum(int(line.note) for line in everything if line.kind == "cleaned")
    with place.open() as client:
        for line in everything:
            if line.kind == "saved":
                figures["cleanup: savepoints"] += 1
                assert writers.tokens(client.restore(savepoint=line.token)) == found[: int(line.note)]
        client.clean(KEEP)
        store, host = client._session.store, client._session.host
        live = run_sync(live_objects(store, host, run_sync(read_head(store))))
        assert {entry.path for entry in run_sync(store.list(""))} == live
        assert list(run_sync(store.leftovers())) == []
    assert figures["cleanup: objects deleted"] > 0


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("kind", ["s3", "azure"])
def test_a_server_that_goes_and_comes_back(
    kind: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    new_slot: NewSlot,
    seed: int,
    effort: Effort,
    figures: Figures,
) -> None:
    """Nobody kills the writers: what they cannot do fails, or waits, and then they go on."""
    server: Server = request.getfixturevalue(f"{kind}_server")
    place, numbers = new_place(tmp_path, server), random.Random(seed)
    slots = [new_slot(place, f"w{number}", seed, writers.compete) for number in range(3)]
    for _ in range(effort(3, 60)):
        enough = acknowledged(place) + numbers.randrange(1, 10)
        until(lambda least=enough: acknowledged(place) >= least, "the writers to go on", slots)  # type: ignore[misc]
        numbers.choice([server.stop, server.kill])()
        time.sleep(numbers.uniform(0, 1))
        server.start()
        figures["server stops: times the server went"] += 1
    enough = acknowledged(place) + 3
    until(lambda: acknowledged(place) >= enough, "the writers to go on", slots)
    stop(place, slots)
    count(figures, "server stops", place, slots)


def made_room(cleanup: Checkpointer) -> bool:
    """Whether a cleanup succeeded: its swap needs some bytes, which the writers take and give back all the time."""
    try:
        cleanup.clean(ALONE)
    except InvalidStateError as error:
        assert FULL in str(error)  # noqa: PT017
        return False
    return True


@pytest.mark.parametrize("seed", [1])
def test_a_full_disk(
    small_disk: Path, tmp_path: Path, new_slot: NewSlot, seed: int, effort: Effort, figures: Figures
) -> None:
    """Writers fill it, a cleanup makes room, and they go on, again and again."""
    place = Place(str(small_disk / "root"), {}, tmp_path / "ledgers")
    place.ledgers.mkdir()
    writers.begin(place)
    slots = [new_slot(place, f"w{number}", seed, writers.compete, padding=60_000) for number in range(3)]

    def refusals() -> list[str]:
        return [line.note for line in told(place) if line.kind == REFUSED and FULL in line.note]

    with place.open() as cleanup:
        for _ in range(effort(4, 200)):
            enough = len(refusals()) + 3
            until(lambda least=enough: len(refusals()) >= least, "the disk to be full", slots)  # type: ignore[misc]
            figures["full disk: times full"] += 1
            enough = acknowledged(place) + 1
            until(lambda: made_room(cleanup), "a cleanup to come between the writers", slots)
            until(lambda least=enough: acknowledged(place) >= least, "the writers to go on", slots)  # type: ignore[misc]
        stop(place, slots)
        assert list(run_sync(cleanup._session.store.leftovers())) == []
        cleanup.clean(ALONE)
    count(figures, "full disk", place, slots)
    assert all("free space there" in note for note in refusals())


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("kind", ["local"] if SUMMARY is None else EVERYWHERE)
def test_a_driver_in_foreachbatch(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, seed: int, effort: Effort, figures: Figures
) -> None:
    """What is counted at the end is what a run that never failed would have counted: every row once."""
    kills = effort(1, 100 if kind == "local" else 50)
    server = None if kind == "local" else request.getfixturevalue(f"{kind}_server")
    place = new_place(tmp_path, server, empty=True)
    batches, killed, needed_a_hand = kill_drivers(place, tmp_path, kills, random.Random(seed))
    with place.open() as client:
        found = rows(client.restore())
    figures["driver: kills"] += killed
    judge_all(figures, "driver", place, found, needed_a_hand)
    assert found == [f"row-{number}" for number in range(batches)]


if SUMMARY is not None:  # in the short run tests/spark/test_cluster.py kills one

    @pytest.mark.parametrize("seed", [1])
    def test_an_executor_while_its_tasks_write(tmp_path: Path, seed: int, figures: Figures) -> None:
        kills = 100
        place = new_place(tmp_path, None, empty=True)
        write_input(tmp_path, 0, kills * 2)
        with start(place, tmp_path, "local-cluster[2,1,1024]") as job:
            killed, needed_a_hand = kill_executors(job, kills, random.Random(seed))
        with place.open() as client:
            found = rows(client.restore())
        figures["executor: kills"] += killed
        judge_all(figures, "executor", place, found, needed_a_hand)
        assert killed > 0
        assert found == [f"row-{number}" for number in range(kills * 2)]
