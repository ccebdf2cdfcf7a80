"""Many actors on one root, on stores that fail, drop answers and crash: nothing acknowledged is lost, nothing refused
is there."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise

import pytest

from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    DependencyError,
    InvalidStateError,
    NotFoundError,
    OutcomeUnknownError,
)
from pyspark_checkpointer.testing.requests import CrashError
from tests.proof.checker import Checker
from tests.proof.histories import History, Operation, digest, seen
from tests.world import Actor, World, attempt, line, put

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


@dataclass(frozen=True, slots=True)
class Recorded:
    """A client, and what is recorded of its operations."""

    client: Actor
    history: History
    process: int

    def asks(self, kind: str, **fields: object) -> AbstractContextManager[Operation]:
        return self.history.operation(self.process, kind, session=self.client.session.owner.instance, **fields)


def write(recorded: Recorded, name: str, numbers: random.Random, outcomes: Outcomes) -> None:
    """Read what is there and add a token to it, by one of the ways to commit."""
    client, asks = recorded.client, recorded.asks
    with asks("restore") as asked:
        restored = client.restore()
        asked.result = seen(restored)
        found = tokens(restored)
        asked.result["content"] = digest(json.dumps(found).encode())
    assert restored is not None
    if restored.prepared is not None and numbers.random() < 0.8:
        promote = numbers.random() >= 0.5
        with asks("promote" if promote else "abort", id=str(restored.prepared.id)):
            restored.prepared.commit() if promote else restored.prepared.abort()
        return
    cp, content = client.begin(), json.dumps([*found, name]).encode()
    cp.snapshot("op", 0, content)
    attempted = {"parent": str(restored.id), "id": str(cp.id), "content": digest(content)}
    try:
        if numbers.random() < 0.7:
            with asks("commit", **attempted):
                cp.commit()
        else:
            with asks("prepare", **attempted):
                prepared = cp.prepare()
            if numbers.random() < 0.7:
                with asks("promote", id=str(prepared.id)):
                    prepared.commit()
            else:
                outcomes.unknown.append(name)  # left for another to decide
                return
    except REFUSED:
        # A prepare that was recorded may have been promoted by somebody else before this one lost its place.
        (outcomes.refused if cp.attempt.prepared is None else outcomes.unknown).append(name)
        raise
    except (OutcomeUnknownError, DependencyError, CrashError):
        outcomes.unknown.append(name)
        raise
    outcomes.added.append(name)


def tidy(recorded: Recorded, numbers: random.Random) -> None:
    """What a command line does meanwhile."""
    client, asks = recorded.client, recorded.asks
    name = f"s{numbers.randrange(3)}"
    match numbers.randrange(3):
        case 0:
            with asks("savepoint", name=name) as asked:
                asked.result = {"id": str(client.savepoint(name).id)}
        case 1:
            with asks("delete_savepoint", name=name):
                client.delete_savepoint(name)
        case 2:
            with asks("list") as asked:
                listed = client.list_checkpoints()
                asked.result = {"ids": [str(one) for one in listed]}
            which = numbers.choice(listed)
            with asks("delete", target=str(which)):
                client.delete_checkpoint(which)


@pytest.mark.parametrize("seed", range(6))
def test_actors_on_a_failing_store_lose_nothing_that_was_acknowledged(seed: int) -> None:
    world, history = World(), History()
    first = Recorded(world.actor(), history, 0)
    with first.asks("restore") as asked:
        asked.result = seen(first.client.restore())
    cp = attempt(first.client, b"[]")
    with first.asks("commit", parent="", id=str(cp.id), content=digest(b"[]")):
        cp.commit()
    outcomes, lock = Outcomes(), threading.Lock()

    def work(number: int) -> None:
        numbers = random.Random(seed * 100 + number)
        client = world.actor(retries=number % 2 == 0, seed=numbers.randrange(1000))
        for step in range(25):
            mine = Outcomes()
            recorded = Recorded(client, history, number + 1)
            try:
                if number < 3:
                    write(recorded, f"{number}.{step}", numbers, mine)
                else:
                    tidy(recorded, numbers)
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
    with Recorded(reader, history, 0).asks("restore") as asked:
        restored = reader.restore()
        asked.result = seen(restored)
        found = tokens(restored)
        asked.result["content"] = digest(json.dumps(found).encode())
    if checker := Checker.find():
        verdict = checker.judge(history.operations)
        assert verdict.is_linearizable, "\n".join([str(verdict), *(one.line() for one in history.operations)])
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
