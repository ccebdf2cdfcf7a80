"""Every request of every operation is a place to crash: what was acknowledged is there, the rest is absent or whole.

An operation is played once to count its requests. Then it is played again for each of them, which fails before or after
it took effect: as a crash that ends the process, as an answer that the session sees, or as one that is tried again.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from checkpointer import Checkpointer, KeyedState, RetentionPolicy, runtime
from checkpointer.errors import CheckpointError, DependencyError, OutcomeUnknownError
from checkpointer.history import read_history
from checkpointer.pointer import read_head
from checkpointer.store.memory import MemoryStore
from checkpointer.testing.requests import CrashError
from checkpointer.testing.store import FaultyStore
from manifests.model import CheckpointId, Manifest
from tests.core.world import Actor, Contents, World, read_whole

LENGTH = 5
"""Checkpoints in the history that an operation finds."""

Step = Callable[[Checkpointer, dict[str, Any]], object]
"""One acknowledged part of an operation; the dict carries what a later part needs."""


@dataclass(frozen=True, slots=True)
class View:
    """What a store holds, by content: ids differ from run to run."""

    latest: Contents
    live: list[Contents]
    savepoints: dict[str, Contents]
    prepared: Contents | None


def fill(client: Checkpointer, number: int) -> Any:
    """Begin a checkpoint that changes a bit of everything."""
    cp = client.begin(epoch=number)
    cp.snapshot("single", 0, b"single %d" % number)
    for partition in range(3):
        cp.snapshot("packed", partition, b"packed %d %d" % (partition, number))
    cp.snapshot("chain", 0, b"0") if number == 1 else cp.delta("chain", 0, b"%d" % number)
    if number % 2:
        cp.snapshot("kept", 0, b"kept %d" % number)
    return cp


def commit(client: Checkpointer, number: int) -> CheckpointId:
    return fill(client, number).commit()


def history(client: Checkpointer, length: int = LENGTH) -> None:
    for number in range(1, length + 1):
        commit(client, number)


def with_savepoints(client: Checkpointer) -> None:
    history(client)
    ids = client.list_checkpoints()
    client.savepoint("first", ids[0])
    client.savepoint("fourth", ids[3])


def with_garbage(client: Checkpointer) -> None:
    with_savepoints(client)
    fill(client, LENGTH + 1).prepare().abort()
    commit(client, LENGTH + 1)


NOW = RetentionPolicy(keep_last=2, grace=timedelta(0))
LATER = RetentionPolicy(keep_last=2)


def prepared_by_another(client: Checkpointer) -> None:
    history(client)
    fill(client, LENGTH + 1).prepare()


def prepare(client: Checkpointer, notes: dict[str, Any]) -> None:
    notes["prepared"] = fill(client, LENGTH + 1).prepare()


def by_hand(client: Checkpointer, notes: dict[str, Any]) -> None:
    """A commit through the verbs that write one object each."""
    restored = client.restore()
    assert restored is not None
    checkpoint = client.new_id()
    artifact = client.save_snapshot(checkpoint, "single", 0, b"by hand")
    operators = dict(restored.manifest.operators)
    operators["single"] = replace(operators["single"], chains={0: (artifact,)})
    client.save_manifest(Manifest(checkpoint, parent=client._session._base.parent, operators=operators))
    client.update_latest(checkpoint)


def keyed(client: Checkpointer, notes: dict[str, Any]) -> None:
    restored = client.restore()
    assert restored is not None
    if "map" not in restored.operators:
        state = KeyedState({n: [n] for n in range(100)}, partitions=2)
    else:
        state = restored.keyed("map")
        state[5].append("more")
    with client.begin() as cp:
        cp.save("map", state)


def nothing(client: Checkpointer) -> None:
    pass


OPERATIONS: dict[str, tuple[Callable[[Checkpointer], None], list[Step]]] = {
    "first commit": (nothing, [lambda c, _: commit(c, 1)]),
    "first prepare": (nothing, [lambda c, n: n.update(p=fill(c, 1).prepare()), lambda _, n: n["p"].commit()]),
    "takeover": (history, [lambda c, _: commit(c, LENGTH + 1)]),
    "two commits": (history, [lambda c, _: commit(c, LENGTH + 1), lambda c, _: commit(c, LENGTH + 2)]),
    "prepare, commit": (history, [prepare, lambda _, n: n["prepared"].commit()]),
    "prepare, abort": (history, [prepare, lambda _, n: n["prepared"].abort()]),
    "promote another's": (prepared_by_another, [lambda c, _: c.restore().prepared.commit()]),
    "drop another's": (prepared_by_another, [lambda c, _: c.restore().prepared.abort()]),
    "savepoint": (with_savepoints, [lambda c, _: c.savepoint("new", c.list_checkpoints()[1])]),
    "delete the oldest": (history, [lambda c, _: c.delete_checkpoint(c.list_checkpoints()[0])]),
    "delete a middle one": (with_savepoints, [lambda c, _: c.delete_checkpoint(c.list_checkpoints()[2])]),
    "delete_savepoint": (with_savepoints, [lambda c, _: c.delete_savepoint("first")]),
    "rollback": (with_savepoints, [lambda c, _: c.rollback("first"), lambda c, _: commit(c, LENGTH + 2)]),
    "rollback over a prepared one": (prepared_by_another, [lambda c, _: c.rollback(c.list_checkpoints()[0])]),
    "update_latest": (history, [by_hand]),
    "keyed state": (history, [keyed, keyed]),
    "clean at once": (with_garbage, [lambda c, _: c.clean(NOW)]),
    "clean with grace": (with_garbage, [lambda c, _: c.clean(LATER)]),
}


class Place:
    """A root whose contents can be put back."""

    def __init__(self, setup: Callable[[Checkpointer], None]) -> None:
        world = World()
        setup(world.actor())
        self._objects = dict(objects_of(world))

    def world(self) -> World:
        world = World()
        objects_of(world).update(self._objects)
        return world


def objects_of(world: World) -> dict[str, Any]:
    assert isinstance(world.store, MemoryStore)
    return world.store._space.objects


def view(world: World) -> View:
    return runtime.run_sync(_view(world))


async def _view(world: World) -> View:
    session = world.actor(retries=False)._session
    head = await read_head(world.store)
    history = await read_history(world.store, head)
    found = {ref: await read_whole(session, ref) for ref in history.refs().values()}
    return View(
        latest={} if head.committed is None else found[head.committed],
        live=list(found.values()),
        savepoints={entry.name: found[entry.ref] for entry in history.entries if entry.name is not None},
        prepared=None if head.prepared is None else await read_whole(session, head.prepared),
    )


def play(client: Checkpointer, steps: list[Step]) -> tuple[int, Exception | None]:
    """How many steps were acknowledged, and what ended the play."""
    notes: dict[str, Any] = {}
    for number, step in enumerate(steps):
        try:
            step(client, notes)
        except (CheckpointError, CrashError) as error:
            return number, error
    return len(steps), None


def requests(place: Place, steps: list[Step]) -> tuple[int, list[View]]:
    """How many requests the steps take, and what the store holds before, between and after them."""
    world = place.world()
    client, notes, views = world.actor(), {}, [view(world)]
    for step in steps:
        step(client, notes)
        views.append(view(world))
    return len(client.faults.requests), views


def check_and_go_on(world: World, client: Actor, allowed: list[View], acknowledged: int) -> None:
    found = view(world)
    assert found in allowed, f"after {acknowledged} acknowledged steps"
    restored = client.restore()
    if restored is not None and restored.prepared is not None:
        restored.prepared.abort() if acknowledged % 2 else restored.prepared.commit()
        found = replace(view(world), prepared=None)
    commit(client, 77) if "chain" in found.latest else commit(client, 1)
    after = view(world)
    assert after.live[:-1] == found.live
    assert after.latest == after.live[-1]
    assert after.savepoints == found.savepoints


def places(name: str) -> Iterator[tuple[World, list[Step], list[View], int, bool]]:
    setup, steps = OPERATIONS[name]
    place = Place(setup)
    count, views = requests(place, steps)
    assert count >= 2
    for number in range(1, count + 1):
        for after in (False, True):
            yield place.world(), steps, views, number, after


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_crash_at_any_request_leaves_what_was_acknowledged_and_nothing_in_part(name: str) -> None:
    for world, steps, views, number, after in places(name):
        client = world.actor()
        client.faults.crash(number, after=after)
        acknowledged, error = play(client, steps)
        if error is not None:
            assert isinstance(error, CrashError), error
        check_and_go_on(world, world.actor(), views[acknowledged : acknowledged + 2], acknowledged)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_error_of_any_request_leaves_a_session_that_can_go_on(name: str) -> None:
    for world, steps, views, number, after in places(name):
        client = world.actor(retries=False)
        client.faults.fail(nth=number, after=after)
        acknowledged, error = play(client, steps)
        if error is not None:
            assert isinstance(error, DependencyError | OutcomeUnknownError), error
        check_and_go_on(world, client, views[acknowledged : acknowledged + 2], acknowledged)


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_gets_over_one_failure_of_any_request(name: str) -> None:
    for world, steps, views, number, after in places(name):
        client = world.actor()
        client.faults.fail(nth=number, after=after)
        acknowledged, error = play(client, steps)
        assert (acknowledged, error) == (len(steps), None), f"request {number}, {'after' if after else 'before'}"
        check_and_go_on(world, client, views[-1:], acknowledged)


@pytest.mark.parametrize("seed", range(5))
def test_a_job_on_a_store_that_fails_at_random_loses_nothing(seed: int) -> None:
    world = World()
    client = world.actor(seed=seed)
    for number in range(1, 60):
        while epoch(world) != number:
            with suppress(CheckpointError):
                client.restore()
                commit(client, number)
    reader = world.actor()
    assert [reader.load_manifest(checkpoint).epoch for checkpoint in reader.list_checkpoints()] == list(range(1, 60))
    assert reader.restore().operator("chain").partition(0) == [b"0", *(b"%d" % number for number in range(2, 60))]


def epoch(world: World) -> int | None:
    restored = world.actor().restore()
    return None if restored is None else restored.epoch


def test_the_faulty_store_fails_as_it_is_told() -> None:
    world = World()
    store = FaultyStore(world.store)
    assert store.url == world.store.url
    client = Actor(world.store, retries=False)
    client.faults.fail("put", 2)
    with pytest.raises(DependencyError):
        commit(client, 1)
    assert client.faults.counts["put"] == 2
    client.faults.crash(1)
    for _ in range(2):
        with pytest.raises(CrashError):
            client.read_latest()
