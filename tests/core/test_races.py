"""Many actors on one root, on stores that fail, drop answers and crash: nothing acknowledged is lost, nothing refused
is there."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from checkpointer.errors import (
    CheckpointError,
    ConflictError,
    DependencyError,
    InvalidStateError,
    NotFoundError,
    OutcomeUnknownError,
)
from checkpointer.sync_handles import Restored
from checkpointer.testing.requests import CrashError
from tests.core.world import Actor, World, attempt, line, put

REFUSED = (ConflictError, InvalidStateError)
"""What says for certain that a commit did not happen."""


class Outcomes:
    """What the actors were told about the tokens they tried to add."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.refused: list[str] = []
        self.unknown: list[str] = []


def tokens(restored: Restored | None) -> list[str]:
    assert restored is not None
    (data,) = restored.operator("op").partition(0)
    return json.loads(data)


def write(client: Actor, name: str, numbers: random.Random, outcomes: Outcomes) -> None:
    """Read what is there and add a token to it, by one of the ways to commit."""
    restored = client.restore()
    if restored is not None and restored.prepared is not None and numbers.random() < 0.8:
        restored.prepared.abort() if numbers.random() < 0.5 else restored.prepared.commit()
        return
    cp = client.begin()
    cp.snapshot("op", 0, json.dumps([*tokens(restored), name]).encode())
    try:
        if numbers.random() < 0.7:
            cp.commit()
        else:
            prepared = cp.prepare()
            if numbers.random() < 0.7:
                prepared.commit()
            else:
                outcomes.unknown.append(name)  # left for another to decide
                return
    except REFUSED:
        # A prepare that was recorded may have been promoted by somebody else before this one lost its place.
        (outcomes.refused if cp._draft._prepared is None else outcomes.unknown).append(name)
        raise
    except (OutcomeUnknownError, DependencyError, CrashError):
        outcomes.unknown.append(name)
        raise
    outcomes.added.append(name)


def tidy(client: Actor, numbers: random.Random) -> None:
    """What a command line does meanwhile."""
    name = f"s{numbers.randrange(3)}"
    match numbers.randrange(3):
        case 0:
            client.savepoint(name)
        case 1:
            client.delete_savepoint(name)
        case 2:
            listed = client.list_checkpoints()
            client.delete_checkpoint(numbers.choice(listed))


@pytest.mark.parametrize("seed", range(6))
def test_actors_on_a_failing_store_lose_nothing_that_was_acknowledged(seed: int) -> None:
    world = World()
    put(world.actor(), b"[]")
    outcomes, lock = Outcomes(), threading.Lock()

    def work(number: int) -> None:
        numbers = random.Random(seed * 100 + number)
        client = world.actor(retries=number % 2 == 0, seed=numbers.randrange(1000))
        for step in range(25):
            mine = Outcomes()
            try:
                if number < 3:
                    write(client, f"{number}.{step}", numbers, mine)
                else:
                    tidy(client, numbers)
            except (CheckpointError, CrashError) as error:
                if number < 3 and isinstance(error, NotFoundError):
                    raise
                if numbers.random() < 0.3 or isinstance(error, CrashError | ConflictError):
                    client = world.actor(retries=number % 2 == 0, seed=numbers.randrange(1000))
                    if numbers.random() < 0.3:
                        client.faults.crash(numbers.randrange(3, 12), after=numbers.random() < 0.5)
            with lock:
                outcomes.added += mine.added
                outcomes.refused += mine.refused
                outcomes.unknown += mine.unknown

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(work, range(5)))

    reader = world.actor()
    restored = reader.restore()
    found = tokens(restored)
    if restored.prepared is not None:
        restored.prepared.abort()
    assert len(set(found)) == len(found)
    assert set(outcomes.added) <= set(found)
    assert not set(outcomes.refused) & set(found)
    assert set(found) <= set(outcomes.added) | set(outcomes.unknown)
    assert outcomes.added
    # Each live checkpoint is whole, and holds what the ones before it held.
    views = [json.loads(contents["op"][0][0]) for contents in world.contents().values()]
    assert all(later[: len(earlier)] == earlier for earlier, later in pairwise(views))
    put(reader, b"on it goes")


def test_where_nothing_can_be_read_after_a_lost_answer_nobody_says_that_it_failed(world: World) -> None:
    """The swap landed, its answer was lost, another built on it, and then what would tell cannot be read."""
    client, other = world.actor(retries=False), world.actor()
    line(client, 2)
    cp = attempt(client, b"3")
    client.faults.drop_answer("swap")

    def build_on_it(_: object) -> None:
        other.restore()
        put(other, b"4")

    client.faults.call(build_on_it, "get", path="_latest")
    client.faults.fail("get", path="manifests/", times=100)
    with pytest.raises(OutcomeUnknownError):
        cp.commit()
    assert cp.id in world.actor().list_checkpoints()
    with pytest.raises(InvalidStateError, match="restore"):
        client.begin()
