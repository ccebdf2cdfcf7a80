"""SIGKILL at random moments, in real processes: nothing acknowledged is lost, nothing counts twice, nothing refused is
there, and whoever starts anew needs no hand.

The moments are random, and so is what the processes do; the seed of both is in the name of the test that fails.
"""

import random
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.checkpoint.latest import read_head
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.runtime import run_sync
from tests.proof.kills import writers
from tests.proof.kills.counting import Figures, acknowledged, count, new_place, told
from tests.proof.kills.ledger import ANEW
from tests.proof.kills.lives import Slot, kill_at_random, stop, until
from tests.proof.kills.writers import KEEP, Place
from tests.servers import Server
from tests.world import live_objects

Effort = Callable[[int, int], int]
NewSlot = Callable[..., Slot]

ALONE = RetentionPolicy(keep_last=1, grace=timedelta(0))

FULL = "No space left on device"

EVERYWHERE = ["local", "s3", "azure", "gcs"]

# In the short run tests/storage/test_concurrency.py has processes that compete on the other kinds of stores.
COMPETING = [kind if kind in ("local", "s3") else pytest.param(kind, marks=pytest.mark.prove) for kind in EVERYWHERE]


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
def place(request: pytest.FixtureRequest, server_of: Callable[[str], Server | None], tmp_path: Path) -> Place:
    """A root of the kind that the test is parametrised with, with a first checkpoint."""
    return new_place(tmp_path, server_of(request.param))


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("place", COMPETING, indirect=True)
def test_eight_that_compete_for_one_root(
    place: Place, new_slot: NewSlot, seed: int, effort: Effort, figures: Figures
) -> None:
    """Each is fenced all the time by the others, some are stopped and go on as zombies, and all of them die."""
    slots = [new_slot(place, f"w{number}", seed, writers.compete) for number in range(8)]
    kill_at_random(slots, effort(8, 200), random.Random(seed), pauses=True)
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
    kill_at_random(slots, effort(12, 200), random.Random(seed))
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
        store, host = client.session.store, client.session.host
        live = run_sync(live_objects(store, host, run_sync(read_head(store))))
        assert {entry.path for entry in run_sync(store.list(""))} == live
        assert list(run_sync(store.leftovers())) == []
    assert figures["cleanup: objects deleted"] > 0


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("kind", ["s3", "azure"])  # the server of gcs loses what it is writing over when it ends
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
    for _ in range(effort(2, 40)):
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
        """Of commits, and of decisions about what was prepared: where there is no room for either, nobody commits."""
        return [line.note for line in told(place) if line.kind == ANEW and FULL in line.note]

    with place.open() as cleanup:
        for _ in range(effort(4, 100)):
            enough = len(refusals()) + 3
            until(lambda least=enough: len(refusals()) >= least, "the disk to be full", slots)  # type: ignore[misc]
            figures["full disk: times full"] += 1
            enough = acknowledged(place) + 1
            until(lambda: made_room(cleanup), "a cleanup to come between the writers", slots)
            until(lambda least=enough: acknowledged(place) >= least, "the writers to go on", slots)  # type: ignore[misc]
        stop(place, slots)
        assert list(run_sync(cleanup.session.store.leftovers())) == []
        cleanup.clean(ALONE)
    count(figures, "full disk", place, slots)
    assert all("free space there" in note for note in refusals())
