"""What is interrupted: an abort beside a commit, a save that did not end, an exception while changes are taken in."""

import asyncio
import concurrent.futures
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, KeyedState, runtime
from pyspark_checkpointer.checkpoint import commit
from pyspark_checkpointer.checkpoint.upload import UploadQueue
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    StoreRefusedError,
)
from pyspark_checkpointer.keyed import partition
from pyspark_checkpointer.keyed.changes import PartitionChange
from pyspark_checkpointer.manifests.model import SNAPSHOT
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore
from tests.world import Actor, World, latest, line, put


@pytest.fixture
def client(world: World) -> Iterator[Actor]:
    client = world.actor()
    line(client, 1)
    yield client
    client.faults.clear()


def keyed(world: World, name: str = "s") -> dict[Any, Any]:
    restored = world.actor().restore()
    assert restored is not None
    return dict(restored.keyed(name))


def save(client: Actor, state: KeyedState, name: str = "s") -> None:
    with client.begin() as cp:
        cp.save(name, state)


# ---- an abort beside a commit ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["artifacts/", "manifests/"])
def test_an_abort_beside_a_commit_leaves_nothing_visible(world: World, client: Actor, path: str) -> None:
    gate = client.faults.hold("put", path=path)
    with client.begin(background=True) as cp:
        cp.snapshot("op", 0, b"2")
    gate.wait()
    cp.abort()
    gate.open()
    with pytest.raises(InvalidStateError, match="aborted"):
        client.read_latest()
    assert latest(world.actor()) == b"1"
    put(client, b"3")
    assert latest(world.actor()) == b"3"


def test_an_abort_once_the_swap_is_sent_changes_nothing(world: World, client: Actor) -> None:
    gate = client.faults.hold("swap")
    with client.begin(background=True) as cp:
        cp.snapshot("op", 0, b"2")
    gate.wait()
    cp.abort()
    gate.open()
    assert client.read_latest() == cp.id
    assert latest(world.actor()) == b"2"


def test_an_abort_beside_a_prepare_leaves_nothing_visible(world: World, client: Actor) -> None:
    gate = client.faults.hold("put", path="manifests/")
    cp = client.begin()
    cp.snapshot("op", 0, b"2")
    preparing = runtime.submit(commit.prepare(cp.attempt))
    gate.wait()
    cp.abort()
    gate.open()
    with pytest.raises(InvalidStateError, match="aborted"):
        preparing.result()
    restored = world.actor().restore()
    assert restored is not None
    assert restored.prepared is None
    put(client, b"3")
    assert latest(world.actor()) == b"3"


def test_an_abort_while_a_new_root_is_tried_leaves_nothing_visible(world: World) -> None:
    client = world.actor()
    gate = client.faults.hold("swap")  # of a probe: the store was never written to
    with client.begin(background=True) as cp:
        cp.snapshot("op", 0, b"1")
    gate.wait()
    cp.abort()
    gate.open()
    with pytest.raises(InvalidStateError, match="aborted"):
        client.read_latest()
    assert world.actor().restore() is None


def test_an_abort_while_a_commit_waits_its_turn_leaves_nothing_visible(world: World, client: Actor) -> None:
    gate = client.faults.hold("swap")
    first, second = client.begin(), client.begin()
    first.snapshot("op", 0, b"2")
    second.snapshot("op", 0, b"never")
    commits = [runtime.submit(commit.commit(first.attempt))]
    gate.wait()
    commits.append(runtime.submit(commit.commit(second.attempt)))
    second.abort()
    gate.open()
    commits[0].result()
    with pytest.raises(InvalidStateError, match="aborted"):
        commits[1].result()
    assert latest(world.actor()) == b"2"
    put(client, b"3")
    assert latest(world.actor()) == b"3"


def test_a_commit_that_takes_too_long_for_its_caller_is_whole_or_nothing(world: World) -> None:
    put(world.actor(), b"1")

    async def impatient() -> None:
        other = AsyncCheckpointer(world.store.url)
        faults = Faults()
        other.session.store = FaultyStore(world.store, faults)
        gate = faults.hold("put", path="artifacts/")
        with pytest.raises(asyncio.CancelledError):
            async with other.begin() as cp:
                await cp.snapshot("op", 0, b"2")
                waiting = asyncio.ensure_future(cp.commit())
                await asyncio.to_thread(gate.wait)
                waiting.cancel()
                await waiting
        gate.open()
        async with other.begin() as cp:
            await cp.snapshot("other", 0, b"3")

    asyncio.run(impatient())
    assert latest(world.actor()) == b"1"


def test_a_save_that_comes_too_late_for_its_commit_is_refused_and_changes_stay_changes(
    world: World, client: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state is packed in the caller's thread, while another commits."""
    state = KeyedState({"k": [1]})
    save(client, state)
    state["k"].append(2)
    cp = client.begin()
    cp.snapshot("op", 0, b"2")
    capture = KeyedState.capture_for_checkpoint

    def slow(self: KeyedState, *arguments: Any) -> Any:
        taken = capture(self, *arguments)
        cp.commit()
        return taken

    with monkeypatch.context() as patch, pytest.raises(InvalidStateError, match="was committed"):
        patch.setattr(KeyedState, "capture_for_checkpoint", slow)
        cp.save("s", state)
    assert latest(world.actor()) == b"2"
    save(client, state)
    assert keyed(world) == {"k": [1, 2]}


@pytest.mark.parametrize("change", ["rest", "delete", "pack", "clear"])
@pytest.mark.parametrize("undone", [True, False])
@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("where", ["dirty", "data"])
def test_a_change_between_two_dictionaries_is_interrupted(
    world: World, client: Actor, change: str, undone: bool, after: bool, where: str
) -> None:
    state = KeyedState({"k": 1} | dict.fromkeys(range(200), 2), partitions=1)  # large enough for deltas
    save(client, state)
    (part,) = state._parts
    if change == "pack":
        state["k"] = [1, 2]
    setattr(part, where, Interrupted(getattr(part, where), after))
    with suppress(MemoryError):  # to clear, a new dictionary takes the place of `data`
        if change == "rest":
            state["k"] = 3
        elif change == "delete":
            del state["k"]
        elif change == "clear":
            state.clear()
        else:
            save(client, state)
    part.data, part.dirty = dict(part.data), dict(part.dirty)
    if undone:
        state["k"] = 1
    save(client, state)
    assert keyed(world) == dict(state)
    if undone:
        assert state["k"] == 1


class Interrupted(dict[Any, Any]):
    """Fails once at each kind of change, before or after it."""

    def __init__(self, known: dict[Any, Any], after: bool) -> None:
        super().__init__(known)
        self._after = after

    def _change(self, change: Any) -> None:
        if self._after:
            change()
        raise MemoryError("planted")

    def __setitem__(self, key: Any, value: Any) -> None:
        self._change(lambda: super(Interrupted, self).__setitem__(key, value))

    def __delitem__(self, key: Any) -> None:
        self._change(lambda: super(Interrupted, self).__delitem__(key))

    def update(self, other: Any) -> None:  # type: ignore[override]
        self._change(lambda: super(Interrupted, self).update(other))


def test_nothing_is_added_to_a_commit_that_is_under_way(world: World, client: Actor) -> None:
    state = KeyedState({"k": [1]})
    save(client, state)
    state["k"].append(2)
    gate = client.faults.hold("put", path="manifests/")
    with client.begin(background=True) as cp:
        cp.snapshot("op", 0, b"2")
    gate.wait()
    for late in (lambda: cp.save("s", state), lambda: cp.snapshot("op", 1, b"late")):
        with pytest.raises(InvalidStateError, match="being committed"):
            late()
    gate.open()
    save(client, state)
    assert keyed(world) == {"k": [1, 2]}


def test_a_commit_in_the_background_that_cannot_begin_is_given_up(world: World, client: Actor) -> None:
    state = KeyedState({"k": [1]})
    with pytest.raises(IllegalArgumentError, match="positions"), client.begin(background=True) as cp:
        cp.save("s", state)
        cp.positions["x"] = object()
    with pytest.raises(InvalidStateError, match="aborted"):
        cp.commit()
    save(client, state)
    assert keyed(world) == {"k": [1]}


# ---- a save that did not end -----------------------------------------------------------------------------------------


def test_a_save_that_was_interrupted_is_not_committed_in_part(
    world: World, client: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyspark_checkpointer.checkpoint.encode.ENCODE_BATCH", 1)
    state = KeyedState({n: n for n in range(100)})

    begun: list[int] = []
    begin = UploadQueue.submit

    async def submit(self: UploadQueue, write: Any, size: int) -> None:
        begun.append(size)
        if len(begun) == 2:
            write.close()
            raise asyncio.CancelledError
        await begin(self, write, size)

    cp = client.begin()
    with monkeypatch.context() as patch, pytest.raises(concurrent.futures.CancelledError):
        patch.setattr(UploadQueue, "submit", submit)
        cp.save("s", state)
    assert len(begun) == 2  # of eight partitions
    with pytest.raises(InvalidStateError, match="interrupted"):
        cp.commit()
    assert latest(world.actor()) == b"1"
    save(client, state)
    assert keyed(world) == {n: n for n in range(100)}


# ---- what a state takes in, and gives away ---------------------------------------------------------------------------


def failing(*_: Any) -> Any:
    raise MemoryError("planted")


def test_a_deletion_that_one_operator_has_no_use_for_is_saved_in_another(world: World, client: Actor) -> None:
    state = KeyedState({"k": 1}, partitions=1)
    save(client, state, "a")
    del state["k"]
    save(client, state, "b")
    save(client, state, "a")
    assert keyed(world, "a") == {}


def test_a_deletion_in_an_attempt_without_its_operator_is_saved_by_the_next(world: World, client: Actor) -> None:
    state = KeyedState({"k": 1, "other": 2}, partitions=4)
    save(client, state)
    del state["k"]
    with suppress(ZeroDivisionError), client.begin() as cp:
        cp.drop("s")
        cp.save("s", state)
        raise ZeroDivisionError
    save(client, state)
    assert keyed(world) == {"other": 2}


def test_a_value_survives_a_partition_that_cannot_be_copied(
    world: World, client: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = KeyedState({"k": {"n": 0}}, partitions=1)
    save(client, state)
    held = state["k"]
    held["n"] = 42
    state["new"] = [1]
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(partition.MapPartition, "_writable", failing)
        save(client, state)
    del held
    save(client, state)
    assert keyed(world) == dict(state) == {"k": {"n": 42}, "new": [1]}


@pytest.mark.parametrize("change", ["rest", "delete"])
def test_a_change_that_fails_leaves_the_value_as_it_was(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    state = KeyedState({"k": 1}, partitions=1)
    state["k"] = [1]
    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        assert len(state) == 1
        state._parts[0]._readers.add(PartitionChange(0, SNAPSHOT, 0, {}, 0, {}, set()))  # a capture is being read
        patch.setattr(partition.MapPartition, "_writable", failing)
        if change == "rest":
            state["k"] = 2
        else:
            del state["k"]
    assert state["k"] == [1]
    assert len(state) == 1


def test_changes_survive_a_capture_that_fails_at_a_later_partition(
    world: World, client: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = KeyedState(dict.fromkeys(range(100), 0))
    save(client, state)
    for n in range(100):
        state[n] = 1
    capture, seen = partition.MapPartition.capture, []

    def fail_at_the_last(self: Any, number: int, *arguments: Any) -> Any:
        seen.append(number)
        return failing() if number == state.partitions - 1 else capture(self, number, *arguments)

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(partition.MapPartition, "capture", fail_at_the_last)
        save(client, state)
    assert len(seen) == state.partitions
    save(client, state)
    assert keyed(world) == dict.fromkeys(range(100), 1)


def test_an_outcome_that_is_learned_twice_is_learned_once(
    world: World, client: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = KeyedState(dict.fromkeys(range(100), 0), partitions=4)
    save(client, state)
    state[0] = 1
    save(client, state)
    state[1] = 1
    saved = partition.MapPartition.mark_saved

    def fail_after(self: Any, *arguments: Any) -> Any:
        saved(self, *arguments)
        failing()

    with monkeypatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(partition.MapPartition, "mark_saved", fail_after)
        save(client, state)
    for turn in range(2, 30):
        state[turn] = 1
        save(client, state)
    assert keyed(world) == {n: int(n < 30) for n in range(100)}


def test_an_attempt_that_was_aborted_is_learned_of_once_however_often_that_fails(
    world: World, client: Actor, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = KeyedState(dict.fromkeys(range(1000), 0), partitions=4)  # large enough for deltas
    save(client, state)
    for n in range(20):
        state[n] = 1
    cp = client.begin()
    cp.save("s", state)
    cp.abort()
    del state[0]
    again, told = partition.MapPartition.mark_dirty_again, 0

    def fail_after(self: Any, *arguments: Any) -> Any:
        nonlocal told
        again(self, *arguments)
        told += 1
        if told in (2, 5):  # half way, and half way once more
            failing()

    with monkeypatch.context() as patch:
        patch.setattr(partition.MapPartition, "mark_dirty_again", fail_after)
        for _ in range(2):
            with pytest.raises(MemoryError):
                save(client, state)
            state[999] = told  # what changes meanwhile is newer than what is learned again
        save(client, state)
    assert told > 5
    assert keyed(world) == {n: int(n < 20) for n in range(1, 999)} | {999: 5}


def test_a_value_that_holds_itself_is_refused_when_it_is_saved_and_harms_no_other(world: World, client: Actor) -> None:
    state = KeyedState(partitions=1)
    endless: list[Any] = []
    endless.append(endless)
    state["endless"] = [endless]
    del endless
    for n in range(1000):
        state[n] = [n]
    assert state[999] == [999]
    with pytest.raises(IllegalArgumentError, match="endless"):
        save(client, state)
    del state["endless"]
    save(client, state)
    assert keyed(world) == {n: [n] for n in range(1000)}


@pytest.mark.parametrize("bad", [("b",), 3, None])
def test_a_list_with_a_pair_that_is_none_sets_nothing(bad: Any) -> None:
    state = KeyedState()
    with pytest.raises((TypeError, ValueError)):
        state.update([("a", [1]), bad, ("c", [3])])
    assert dict(state) == {}


@pytest.mark.parametrize("how", ["block", "background", "prepare", "async"])
def test_a_new_root_that_is_refused_is_left_empty(world: World, how: str) -> None:
    client = world.actor()
    client.faults.fail("swap", path="_probe", error=StoreRefusedError)

    async def block() -> None:
        other = AsyncCheckpointer(world.store.url)
        other.session.store = client.session.store
        async with other.begin() as cp:
            await cp.snapshot("large", 0, b"x" * 300_000)

    with pytest.raises(StoreRefusedError, match="failed by the test"):
        if how == "async":
            asyncio.run(block())
        else:
            with client.begin(background=how == "background") as cp:
                cp.snapshot("large", 0, b"x" * 300_000)
                if how == "prepare":
                    cp.prepare()
            client.read_latest()
    for late in (lambda: cp.snapshot("op", 0, b"1"), cp.commit) if how != "async" else ():
        with pytest.raises(InvalidStateError):
            late()
    assert world.objects() == set()


@pytest.mark.parametrize(("whole", "left"), [(b"whole", None), (b"whole", b"shor"), (b"", None), (b"", b"more")])
def test_what_an_attempt_did_not_write_whole_is_not_committed(
    world: World, client: Actor, whole: bytes, left: bytes | None
) -> None:
    cp = client.begin()
    cp.snapshot("op", 0, whole)
    client.faults.fail("swap", error=CheckpointError)
    with suppress(CheckpointError):
        cp.commit()
    (path,) = [path for path in world.objects() if str(cp.id) in path and path.startswith("artifacts/")]
    world.delete(path)
    if left is not None:
        run_sync(world.store.put(path, left))
    client.restore()
    with pytest.raises(InvalidStateError if left is None else CorruptionError, match=path):
        client.update_latest(cp.id)
    assert latest(world.actor()) == b"1"
