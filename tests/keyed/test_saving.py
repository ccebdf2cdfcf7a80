"""What is being written stays as it was, and what becomes of a save."""

import asyncio
import copy
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from pyspark_checkpointer import KeyedState, runtime
from pyspark_checkpointer.checkpoint.encode import ENCODE_INLINE
from pyspark_checkpointer.checkpoint.upload import UploadQueue
from pyspark_checkpointer.errors import DependencyError, IllegalArgumentError
from pyspark_checkpointer.keyed import packing
from pyspark_checkpointer.keyed import partition as partition_module
from pyspark_checkpointer.keyed import state as state_module
from pyspark_checkpointer.manifests import codecs
from pyspark_checkpointer.manifests.keyed_records import place_key
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT
from pyspark_checkpointer.manifests.msgpack_values import pack_some, unpack_all
from pyspark_checkpointer.runtime.host import SystemHost
from tests.keyed.states import failing_save, filled, kinds, save, saved
from tests.world import Actor, World

# ---- what is being written stays as it was ---------------------------------------------------------------------------


@pytest.mark.parametrize("saved_before", [False, True])
def test_a_change_made_while_a_dict_is_made_does_not_reach_it(
    world: World, saved_before: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.actor()
    state = KeyedState({n: {"n": n} for n in range(100)}, partitions=4)
    if saved_before:
        save(client, state)

    def change_first(packed: Any) -> Any:
        monkeypatch.undo()
        for n in range(100):
            state[n]["n"] = "changed"
        save(client, state)
        state[2], state[200] = "set", ["added"]
        del state[3]
        save(client, state)
        return unpack_all(packed)

    monkeypatch.setattr(state_module, "unpack_all", change_first)
    assert state.to_dict() == {n: {"n": n} for n in range(100)}
    assert (state[1], state[2], state[200], 3 in state) == ({"n": "changed"}, "set", ["added"], False)
    assert saved(world) == dict(state)
    # Nobody reads any more, so nothing is copied for the next change.
    before = [part.data for part in state._parts]
    state.update(dict.fromkeys(range(100), 7))
    assert all(part.data is data for part, data in zip(state._parts, before, strict=True))


@pytest.mark.parametrize("kind", [SNAPSHOT, DELTA])
@pytest.mark.parametrize("background", [True, False])
def test_a_change_made_while_a_save_is_written_does_not_reach_it(world: World, kind: str, background: bool) -> None:
    client = world.actor()
    state = filled(a=[1], b={"x": [1]}, c=1)
    held = state["a"], state["b"]["x"]
    if kind == DELTA:
        save(client, state)
        held[0].append(2)
        state["c"] = 2
        state["d"] = 1
    expected = copy.deepcopy(dict(state))
    gate = client.faults.hold("put", path="artifacts/")
    cp = client.begin(background=background)
    with cp:
        cp.save("s", state)
        if not background:
            changed(state, held)
            gate.open()
    if background:
        gate.wait()
        changed(state, held)
        gate.open()
        client.read_latest()
    assert saved(world) == expected
    assert kinds(client)[-1] == kind
    after = copy.deepcopy(dict(state))
    client.restore()
    save(client, state)
    assert saved(world) == after


class SlowHost(SystemHost):
    """Computes nothing before it is told to."""

    def __init__(self) -> None:
        self.go = threading.Event()

    async def run(self, compute: Callable[[], Any]) -> Any:
        assert await asyncio.to_thread(self.go.wait, 30)
        return compute()


@pytest.mark.parametrize("kind", [SNAPSHOT, DELTA])
@pytest.mark.parametrize("again", [False, True])
def test_a_change_made_before_a_save_is_encoded_does_not_reach_it(world: World, kind: str, again: bool) -> None:
    client = world.actor()
    state = filled(a=[1], b={"x": [1]}, c=1)
    held = state["a"], state["b"]["x"]
    if kind == DELTA:
        save(client, state)
        held[0].append(2)
        state["c"] = 2
        state["d"] = 1
    expected = copy.deepcopy(dict(state))
    client.session.host = host = SlowHost()
    with client.begin(background=True) as cp:
        cp.save("s", state)
        if again:
            cp.save("t", state)  # two captures read the same values
    changed(state, held)
    after = copy.deepcopy(dict(state))
    host.go.set()
    client.read_latest()
    assert saved(world) == expected
    assert not again or dict(client.restore().keyed("t")) == expected
    client.restore()
    save(client, state)
    assert saved(world) == after


def changed(state: KeyedState, held: tuple[list[Any], list[Any]]) -> None:
    """Every kind of change at once."""
    held[0].append("leak")
    held[1].append("leak")
    state["c"] = "leak"
    state["new"] = ["leak"]
    state["bulk 1"] = "leak"
    state["a"].append("leak")
    del state["bulk 2"]
    state.pop("bulk 3")


def test_clearing_while_a_save_is_written_does_not_reach_it(world: World) -> None:
    client = world.actor()
    state = filled(partitions=3)
    expected = dict(state)
    gate = client.faults.hold("put", path="artifacts/")
    with client.begin(background=True) as cp:
        cp.save("s", state)
    state.clear()
    state["after"] = 1
    gate.open()
    client.read_latest()
    assert saved(world) == expected
    save(client, state)
    assert saved(world) == {"after": 1}


def test_a_save_is_taken_before_the_call_returns_even_where_encoding_waits(world: World) -> None:
    client = world.actor()
    state = filled(a=[1])
    with client.begin() as cp:
        cp.save("s", state)
        state["a"].append(2)
        state["bulk 0"] = "later"
    assert saved(world)["a"] == [1]
    assert saved(world)["bulk 0"] == f"{0:032}"


# ---- what becomes of a save ------------------------------------------------------------------------------------------


def test_partitions_are_packed_in_turns_for_the_sake_of_the_cache(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions: list[int] = []

    def pack(values: list[Any]) -> list[bytes]:
        partitions.append(place_key(values[0]["key"], 2)[0])
        return pack_some(values)

    values = {key: {"key": key} for key in range(2000)}
    state = KeyedState(values, partitions=2)
    monkeypatch.setattr(packing, "pack_some", pack)
    save(world.actor(), state)
    assert partitions == [0, 1] * 4
    assert saved(world) == values


def test_a_value_that_is_refused_keeps_all_live_values_of_its_partition(world: World) -> None:
    client = world.actor()
    values: dict[int, Any] = {key: {"key": key} for key in range(2000)}
    state = KeyedState(values, partitions=2)
    for key in (1500, 1501, 1502, 1503):
        values[key]["bad"] = object()
    with pytest.raises(IllegalArgumentError, match=r"key 150\d: a value of type object"):
        save(client, state)
    for value in values.values():
        value.pop("bad", None)
        value["late"] = 1
    save(client, state)
    assert saved(world) == values


@pytest.mark.parametrize("how", ["raise", "abort", "store", "abort the prepared", "never ended"])
def test_the_changes_of_a_save_that_came_to_nothing_are_in_the_next(world: World, how: str) -> None:
    client = world.actor()
    state = filled(a=[1], gone=1)
    save(client, state)
    state["a"].append(2)
    del state["gone"]
    state["plain"] = 1
    if how != "raise":
        cp = client.begin()
        cp.save("s", state)
    match how:
        case "raise":
            failing_save(client, state)
        case "abort":
            cp.abort()
        case "store":
            client.faults.fail("put", times=12)
            with pytest.raises(DependencyError):
                cp.commit()
        case "abort the prepared":
            cp.prepare().abort()
    state["later"] = 1
    state["plain"] = 2  # once more, and not as the save that came to nothing had it
    save(client, state)
    assert saved(world) == dict(state)
    assert saved(world)["a"] == [1, 2]
    assert saved(world)["plain"] == 2
    assert "gone" not in saved(world)
    assert kinds(client) == [SNAPSHOT, DELTA]


def test_after_a_rollback_a_state_is_saved_whole(world: World) -> None:
    client = world.actor()
    state = filled(a=[1])
    save(client, state)
    first = client.read_latest()
    state["a"].append(2)
    save(client, state)
    client.rollback(first)
    state["b"] = 1
    save(client, state)
    assert saved(world) == dict(state)
    assert kinds(client) == [SNAPSHOT]


def test_one_state_saved_under_two_names_is_whole_under_both(world: World) -> None:
    client = world.actor()
    state = filled(a=[1])
    for number in range(3):
        state["a"].append(number)
        with client.begin() as cp:
            cp.save("s", state)
            cp.save("t", state)
    restored = world.actor().restore()
    assert dict(restored.keyed("s")) == dict(restored.keyed("t")) == dict(state)


def test_another_state_under_the_name_replaces_the_first(world: World) -> None:
    client = world.actor()
    save(client, filled(a=1, partitions=8))
    save(client, KeyedState({"b": 2}, partitions=3))
    assert saved(world) == {"b": 2}
    assert client.restore().manifest.operators["s"].partitions == 3


@pytest.mark.parametrize("partitions", [1, 3, 16])
def test_a_state_can_be_restored_into_another_number_of_partitions(world: World, partitions: int) -> None:
    client = world.actor()
    state = filled(partitions=8, a=[1])
    save(client, state)
    state["a"].append(2)
    save(client, state)
    again = client.restore().keyed("s", partitions)
    assert (again.partitions, dict(again)) == (partitions, dict(state))
    again["a"].append(3)
    save(client, again)
    again["b"] = 1
    save(client, again)
    assert saved(world) == {**dict(state), "a": [1, 2, 3], "b": 1}
    assert len(client.restore().manifest.operators["s"].chains) <= partitions


def test_an_emptied_state_is_restored_empty(world: World) -> None:
    client = world.actor()
    state = filled(partitions=2)
    save(client, state)
    state.clear()
    save(client, state)
    assert saved(world) == {}
    save(client, KeyedState())
    assert saved(world) == {}


# ---- where it is encoded ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grows", ["keys", "values", "folded"])
@pytest.mark.parametrize("again", [False, True])
def test_what_is_large_is_encoded_beside_the_event_loop(
    world: World, grows: str, again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    large: list[bool] = []
    encode = codecs.MSGPACK.encode

    def watched(records: Any) -> tuple[bytes, int]:
        stored, raw_size = encode(records)
        if raw_size > 4 * ENCODE_INLINE:
            large.append(runtime.on_loop())
        return stored, raw_size

    client, state = world.actor(max_chain=2), KeyedState({"k": "small"}, partitions=1)
    monkeypatch.setitem(codecs.PURE_CODECS, codecs.MSGPACK.name, replace(codecs.MSGPACK, encode=watched))
    if again:
        save(client, state)
    if grows == "keys":
        state.update((n, "v") for n in range(100_000))
    elif grows == "values":
        state.update((n, "v" * 10_000) for n in range(100))
    else:
        state.update((n, "v" * 1000) for n in range(10_000))
        save(client, state)
        for n in range(200):
            state[n] = "w" * 1000
            if n % 10 == 0:
                save(client, state)
    save(client, state)
    assert large
    assert not any(large)
    assert saved(world) == dict(state)


@pytest.mark.parametrize("how", ["delta", "attach"])
def test_what_is_folded_counts_as_under_way(world: World, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fold reads all that it joins: many at once would not fit into memory."""
    sizes: list[int] = []
    begin = UploadQueue.submit

    async def submit(self: UploadQueue, write: Any, size: int) -> None:
        sizes.append(size)
        await begin(self, write, size)

    client = world.actor(max_chain=3)
    with client.begin() as cp:
        cp.snapshot("op", 0, b"s" * 10_000)
    monkeypatch.setattr(UploadQueue, "submit", submit)
    for _ in range(6):
        with client.begin() as cp:
            if how == "delta":
                cp.delta("op", 0, b"d" * 1000)
            else:
                cp.attach(client.save_delta(cp.id, "op", 0, b"d" * 1000))
    assert max(sizes) >= 4000


# ---- background ------------------------------------------------------------------------------------------------------


def failing_in_background(client: Actor, state: KeyedState) -> None:
    client.faults.fail("put", path="manifests/", times=12)
    with client.begin(background=True) as cp:
        cp.save("s", state)


@pytest.mark.parametrize("call", ["begin", "restore", "read_latest", "list_checkpoints", "savepoints", "new_id"])
def test_a_failure_in_the_background_is_raised_once_by_the_next_call(world: World, call: str) -> None:
    client = world.actor()
    state = filled(a=[1])
    save(client, state)
    state["a"].append(2)
    failing_in_background(client, state)
    with pytest.raises(DependencyError, match="manifests/"):
        getattr(client, call)()
    getattr(client, call)()
    save(client, state)
    assert saved(world)["a"] == [1, 2]
    client.close()


def test_a_failure_in_the_background_is_raised_by_close(world: World) -> None:
    client = world.actor()
    failing_in_background(client, filled())
    with pytest.raises(DependencyError):
        client.close()
    client.close()


def test_a_failure_in_the_background_is_raised_at_the_end_of_the_clients_block(world: World) -> None:
    with pytest.raises(DependencyError), world.actor() as client:
        failing_in_background(client, filled())


def test_saves_in_the_background_are_committed_in_their_order(world: World) -> None:
    client = world.actor()
    state = filled()
    for number in range(10):
        state["n"] = number
        with client.begin(epoch=number, background=True) as cp:
            cp.save("s", state)
    client.close()
    assert saved(world)["n"] == 9
    epochs = [world.actor().restore(checkpoint).epoch for checkpoint in client.list_checkpoints()]
    assert epochs == list(range(10))


def test_all_keys_with_smaller_values_are_a_snapshot_and_not_a_delta(world: World) -> None:
    client, state = world.actor(), filled()
    save(client, state)
    state.update(dict.fromkeys(list(state)[1:], "small"))
    save(client, state)
    assert kinds(client) == [SNAPSHOT, DELTA]
    state.update(dict.fromkeys(list(state), "smaller"))
    save(client, state)
    assert kinds(client) == [SNAPSHOT]
    assert saved(world) == dict.fromkeys(state, "smaller")


@pytest.mark.parametrize("change", ["delete", "set and delete", "delete before a save that fails"])
def test_a_deletion_in_a_partition_of_few_keys_is_a_delta(world: World, change: str) -> None:
    client, state = world.actor(), KeyedState({"model": "m" * 1_000_000, "x": 1}, partitions=1)
    save(client, state)
    if change == "set and delete":
        state["x"] = state["y"] = 2
        del state["y"]
    else:
        del state["x"]
    if change == "delete before a save that fails":
        failing_save(client, state)
    save(client, state)
    assert kinds(client) == [SNAPSHOT, DELTA]
    assert saved(world) == state.to_dict()


def test_a_key_that_was_noted_and_not_set_is_noted_as_deleted_in_a_copy() -> None:
    """So it is left by an exception of a signal handler between the two."""
    (part,) = filled()._parts
    part.listed()
    part.is_new = False
    part.dirty["new"] = b"\x01"
    copied = part.copied()
    assert copied.dirty == {"new": None}
    assert (part.has_deletions, copied.has_deletions) == (False, True)


@pytest.mark.parametrize("deletes", [False, True])
def test_sizes_are_compared_only_where_keys_were_deleted(
    world: World, deletes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To add up the sizes of a million values takes as long as the rest of a capture."""
    looks: list[int] = []
    sizes = partition_module._sizes_of_parts

    def counted(records: dict[Any, bytes | None]) -> Iterator[int]:
        looks.append(len(records))
        yield from sizes(records)

    client, state = world.actor(), filled()
    save(client, state)
    monkeypatch.setattr(partition_module, "_sizes_of_parts", counted)
    state.update(dict.fromkeys(state, "changed"))
    if deletes:
        del state["bulk 7"]
    save(client, state)
    assert kinds(client) == [SNAPSHOT]
    assert bool(looks) is deletes
    assert saved(world) == state.to_dict()


def test_the_few_keys_that_are_left_by_many_deletions_are_a_snapshot(world: World) -> None:
    client, state = world.actor(), filled()
    save(client, state)
    for key in list(state)[3:]:
        del state[key]
    save(client, state)
    assert kinds(client) == [SNAPSHOT]
    assert saved(world) == state.to_dict()
    assert len(state) == 3


def test_a_snapshot_that_was_encoded_and_not_committed_is_in_the_next_save(world: World) -> None:
    client, state = world.actor(), filled()
    save(client, state)
    restored = client.restore()
    assert restored is not None
    state.update(dict.fromkeys(state, "changed"))
    lost = state.capture_for_checkpoint({0: restored.operator("s").chain(0)}, max_chain=10)
    assert [change.kind for change in lost.changes] == [SNAPSHOT]
    lost.changes[0].release()
    lost.record_outcome(None)
    save(client, state)
    assert saved(world) == dict(state) == dict.fromkeys(state, "changed")
    assert kinds(client) == [SNAPSHOT]


@pytest.mark.parametrize("key", ["text", ("a float", 1.5)], ids=["usual keys", "mixed keys"])
def test_a_map_that_was_never_saved_notes_no_changes(world: World, key: Any) -> None:
    client, state = world.actor(), KeyedState(partitions=1)
    state[key] = 0
    for number in range(1000):
        state[number] = number
    for number in range(0, 1000, 2):
        del state[number]
    (part,) = state._parts
    assert part.dirty == {}
    save(client, state)
    assert saved(world) == state.to_dict() == {key: 0, **{number: number for number in range(1, 1000, 2)}}
    state[1] = "changed"
    del state[3]
    assert part.dirty.keys() == {1, 3}
    save(client, state)
    assert kinds(client) == [SNAPSHOT, DELTA]
    assert saved(world) == state.to_dict()
