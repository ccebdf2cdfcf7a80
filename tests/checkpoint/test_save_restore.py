"""What is saved comes back, and what a checkpoint costs follows what changed."""

import random
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.checkpoint import metadata, save_bytes
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.compaction import INLINE
from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    IllegalArgumentError,
    InvalidStateError,
    SavepointNotFoundError,
)
from pyspark_checkpointer.manifests import json_text, object_paths
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, CheckpointId
from pyspark_checkpointer.runtime import run_sync
from tests.world import Actor, World, attempt, contents, got, latest, line, put

BIG = b"\x00" * (1 << 20) + b"big"


def restored(client: Checkpointer, **which: Any) -> Restored:
    found = client.restore(**which)
    assert found is not None
    return found


# ---- what comes back -------------------------------------------------------------------------------------------------


def test_an_empty_root_restores_to_none(world: World) -> None:
    client = world.actor()
    assert client.restore() is None
    assert client.read_latest() is None
    assert client.list_checkpoints() == []
    assert client.savepoints() == []


@pytest.mark.parametrize("data", [b"", b"x", b"\x00\xff" * 700, BIG, bytearray(b"array"), memoryview(b"view")])
def test_bytes_come_back_as_given(world: World, data: Any) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.snapshot("op", 7, data)
        cp.delta("op", 7, data)
    found = restored(world.actor()).operator("op")
    assert (found.partitions, found.partition(7)) == ([7], [bytes(data)] * 2)


@pytest.mark.parametrize("change", ["one", "all"])
def test_a_map_that_is_dropped_while_it_is_saved_is_not_saved_in_part(world: World, change: str) -> None:
    """A capture has what differs from the operator below it. Without that, keys that did not change would be lost."""
    client = world.actor()
    state = KeyedState({f"k{number}": number for number in range(100)}, partitions=4)
    with client.begin() as cp:
        cp.save("m", state)
    state.update({"k0": "new"} if change == "one" else {f"k{number}": "new" for number in range(50)})
    with client.begin() as cp:
        captured = cp.attempt.capture("m", state)
        cp.drop("m")
        with pytest.raises(InvalidStateError, match="dropped or replaced while it was being saved: save it again"):
            run_sync(cp.attempt.save("m", captured))
        cp.save("m", state)
    assert restored(world.actor()).keyed("m") == state
    state["k1"] = "later"
    with client.begin() as cp:
        cp.save("m", state)
    assert restored(world.actor()).keyed("m") == state


def test_a_new_map_is_refused_where_another_was_saved_and_dropped_meanwhile(world: World) -> None:
    client = world.actor()
    first, second = KeyedState({"a": 1}), KeyedState({"b": 2})
    with client.begin() as cp:
        captured = cp.attempt.capture("m", first)
        cp.save("m", second)
        with pytest.raises(IllegalArgumentError, match="already written"):
            run_sync(cp.attempt.save("m", captured))
        cp.drop("m")
        run_sync(cp.attempt.save("m", captured))
    assert restored(world.actor()).keyed("m") == first


def test_a_buffer_may_be_used_again_at_once(world: World) -> None:
    client = world.actor()
    buffer = bytearray(b"before")
    with client.begin() as cp:
        cp.snapshot("op", 0, buffer)
        buffer[:] = b"after!"
    assert latest(world.actor()) == b"before"


def test_what_is_not_mentioned_is_kept_and_what_is_dropped_is_gone(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        for operator in ("a", "b", "c"):
            for partition in range(3):
                cp.snapshot(operator, partition, f"{operator}{partition}".encode())
    with client.begin() as cp:
        cp.snapshot("a", 1, b"new")
        cp.delta("a", 2, b"more")
        cp.drop("a", 0)
        cp.keep("b")
        cp.keep("c", 2)
        cp.drop("b", 2)
    expected = {
        "a": {1: [b"new"], 2: [b"a2", b"more"]},
        "b": {0: [b"b0"], 1: [b"b1"]},
        "c": {0: [b"c0"], 1: [b"c1"], 2: [b"c2"]},
    }
    assert contents(world.actor().restore()) == expected
    with client.begin() as cp:
        cp.drop("c")
        cp.drop("a")
        cp.snapshot("a", 5, b"again")
    assert contents(world.actor().restore()) == {"a": {5: [b"again"]}, "b": expected["b"]}


def test_keep_and_drop_refuse_what_is_not_there(world: World) -> None:
    client = world.actor()
    put(client, b"1")
    cp = client.begin()
    for refused in (cp.keep, cp.drop):
        with pytest.raises(IllegalArgumentError, match="none"):
            refused("nowhere")
        with pytest.raises(IllegalArgumentError, match="no partition"):
            refused("op", 5)


def test_a_delta_without_a_snapshot_below_is_refused_and_leaves_no_trace(world: World) -> None:
    client = world.actor()
    put(client, b"1")
    with client.begin() as cp:
        for operator, partition in (("new", 0), ("op", 1)):
            with pytest.raises(IllegalArgumentError, match="needs a snapshot below"):
                cp.delta(operator, partition, b"x")
    assert contents(world.actor().restore()) == {"op": {0: [b"1"]}}
    with client.begin() as cp:
        cp.drop("op", 0)
        with pytest.raises(IllegalArgumentError, match="needs a snapshot below"):
            cp.delta("op", 0, b"x")


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".hidden", "a/b", "a\\b", "a\x00b", "a\nb", "\ud800", "ü" * 60, 5, None]
)
def test_names_that_cannot_be_part_of_a_path_are_refused(world: World, name: Any) -> None:
    client = world.actor()
    cp = client.begin()
    with pytest.raises(IllegalArgumentError):
        cp.snapshot(name, 0, b"x")
    with pytest.raises(IllegalArgumentError):
        cp.save(name, KeyedState())
    with pytest.raises(IllegalArgumentError):
        client.save_snapshot(cp.id, name, 0, b"x")
    cp.abort()
    assert world.objects() == set()


@pytest.mark.parametrize("name", ["packs", "a b", "50%", "%2e%2e", "été", "a:b*?", "0", "~", "_latest"])
def test_any_other_name_comes_back_as_given(world: World, name: str) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.snapshot(name, 0, b"raw")
        cp.snapshot(name, 1, BIG)
    assert contents(world.actor().restore()) == {name: {0: [b"raw"], 1: [BIG]}}


@pytest.mark.parametrize("partition", [-1, 2**31, True, "0", 1.0, None])
def test_a_partition_is_a_number(world: World, partition: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="partition"):
        world.actor().begin().snapshot("op", partition, b"x")


@pytest.mark.parametrize("data", ["text", None, 5, [1], KeyedState()])
def test_only_bytes_are_stored_as_bytes(world: World, data: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="bytes"):
        world.actor().begin().snapshot("op", 0, data)


def test_several_operators_of_both_kinds_live_side_by_side(world: World) -> None:
    client = world.actor()
    state = KeyedState({"a": [1]})
    with client.begin(epoch=4) as cp:
        cp.save("map", state)
        cp.snapshot("raw", 0, b"r")
    found = restored(world.actor())
    assert (found.operators, found.epoch) == (["map", "raw"], 4)
    assert dict(found.keyed("map")) == {"a": [1]}
    with client.begin() as cp:
        cp.drop("map")
        cp.snapshot("map", 0, b"bytes now")
    assert contents(world.actor().restore()) == {"map": {0: [b"bytes now"]}, "raw": {0: [b"r"]}}


def test_after_the_block_a_checkpoint_takes_nothing_more(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.snapshot("op", 0, b"x")
    for late in (
        lambda: cp.snapshot("op", 0, b"y"),
        lambda: cp.drop("op"),
        lambda: cp.keep("op"),
        cp.prepare,
        cp.commit,
    ):
        with pytest.raises(InvalidStateError, match="begin another"):
            late()
    cp.abort()
    assert latest(world.actor()) == b"x"


def test_an_exception_in_the_block_leaves_nothing_visible(world: World) -> None:
    client = world.actor()
    line(client, 1)
    with suppress(ZeroDivisionError), client.begin() as cp:
        cp.snapshot("op", 0, b"2")
        cp.snapshot("op", 1, BIG)
        raise ZeroDivisionError
    assert contents(world.actor().restore()) == {"op": {0: [b"1"]}}
    assert object_paths.manifest(cp.id) not in world.objects()
    put(client, b"2")
    assert latest(world.actor()) == b"2"


# ---- positions, properties, watermark --------------------------------------------------------------------------------


def test_positions_properties_and_watermark_are_those_of_the_parent_until_changed(world: World) -> None:
    client = world.actor()
    with client.begin(epoch=1) as cp:
        cp.positions["topic"] = {"0": "1031"}
        cp.properties["model"] = "v7"
        cp.watermark = "2026-01-01"
    with client.begin(epoch=2) as cp:
        assert cp.positions == {"topic": {"0": "1031"}}
        cp.positions["topic"] = {"0": "1032"}
    found = restored(world.actor())
    assert (found.positions, found.properties, found.watermark) == (
        {"topic": {"0": "1032"}},
        {"model": "v7"},
        "2026-01-01",
    )
    first = restored(world.actor(), epoch=1)
    assert first.positions == {"topic": {"0": "1031"}}
    assert first.epoch == 1
    assert first.created is not None
    assert first.created.utcoffset().total_seconds() == 0


def test_positions_of_an_aborted_attempt_do_not_leak(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.positions["topic"] = {"partitions": [1]}
    aborted = client.begin()
    aborted.positions["topic"]["partitions"].append(2)
    aborted.properties["x"] = 1
    aborted.abort()
    with client.begin() as cp:
        pass
    found = restored(client)
    found.positions["topic"]["partitions"].append(3)  # the caller's own copy
    with client.begin() as cp:
        pass
    assert restored(world.actor()).positions == {"topic": {"partitions": [1]}}
    assert restored(world.actor()).properties == {}


def test_positions_changed_after_a_background_block_do_not_reach_the_checkpoint(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.positions["topic"] = {"0": 1}
        cp.watermark = [1]
        cp.attempt.freeze()  # what the end of a background block does; the commit may begin much later
        cp.positions["topic"]["0"] = 777
        cp.properties["late"] = True
        cp.watermark.append(2)
        cp.watermark = "late"
    found = restored(world.actor())
    assert (found.positions, found.properties, found.watermark) == ({"topic": {"0": 1}}, {}, [1])


@pytest.mark.parametrize("value", [{1: "x"}, (1, 2), {1}, b"x", float("nan"), object(), "\ud800", float("inf")])
@pytest.mark.parametrize("field", ["positions", "properties", "watermark"])
def test_what_json_cannot_carry_is_refused_by_name(world: World, field: str, value: Any) -> None:
    client = world.actor()
    line(client, 1)
    cp = client.begin()
    if field == "watermark":
        cp.watermark = value
    else:
        getattr(cp, field)["k"] = value
    with pytest.raises(IllegalArgumentError, match=field):
        cp.commit()
    assert latest(world.actor()) == b"1"
    put(client, b"2")


def nested(levels: int) -> Any:
    """Lists and dicts inside each other."""
    value: Any = []  # a list without a value is a level too
    for level in range(1, levels):
        value = {"k": value} if level % 2 else [value]
    return value


@pytest.mark.parametrize("levels", [250, 251, 600])
@pytest.mark.parametrize("field", ["positions", "properties", "watermark"])
def test_a_value_that_is_nested_too_deeply_to_be_read_is_refused(world: World, field: str, levels: int) -> None:
    client = world.actor()
    put(client, b"1")
    value: Any = nested(levels) if field == "watermark" else {"flat": 1, "deep": nested(levels)}
    cp = attempt(client, b"2")
    if field == "watermark":
        cp.watermark = value
    else:
        getattr(cp, field).update(value)
    if levels > 250:
        with pytest.raises(IllegalArgumentError, match=f"{field}: .* more than 250 levels"):
            cp.commit()
    else:
        cp.commit()
        assert getattr(restored(world.actor()), field) == value
        assert getattr(client.begin(), field) == value
    put(client, b"3")


def test_a_value_that_is_stored_already_may_be_nested_more_deeply(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A root of another writer is not given up: what a reader takes can be brought back, copied and got rid of."""
    client, deep = world.actor(), nested(260)
    with monkeypatch.context() as patched:
        patched.setattr(json_text, "MAX_LEVELS", 300)
        for function in (json_text.check_json, json_text.check_json_fields):
            patched.setattr(function, "__kwdefaults__", function.__kwdefaults__ and {"max_levels": 300})
            patched.setattr(function, "__defaults__", function.__defaults__ and (300,))
        cp = attempt(client, b"1")
        save_bytes.declare(cp.attempt, "other", deep)
        cp.snapshot("other", 0, b"1")
        cp.positions["deep"], cp.properties["deep"], cp.watermark = deep, deep, deep
        cp.commit()
        put(client, b"2")
    client = world.actor()
    client.rollback(cp.id)
    found = restored(world.actor())
    assert (found.positions["deep"], found.properties["deep"], found.watermark) == (deep, deep, deep)
    copy = World()
    client.export(None, copy.store.url)
    assert contents(restored(copy.actor())) == contents(found)
    with pytest.raises(IllegalArgumentError, match=r"positions: .* more than 250 levels"):
        put(client, b"3")
    cp = attempt(client, b"3")
    del cp.positions["deep"], cp.properties["deep"]
    cp.watermark = None
    cp.commit()
    assert latest(world.actor()) == b"3"


@pytest.mark.parametrize("epoch", [2**63, "1", 1.0, True])
def test_an_epoch_is_a_number(world: World, epoch: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="epoch"):
        world.actor().begin(epoch)


# ---- which checkpoint ------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_restored_by_id_epoch_or_savepoint(world: World) -> None:
    client = world.actor()
    ids = [put(client, b"%d" % number, epoch=epoch) for number, epoch in enumerate((5, 6, 6, 7, 8, 8, 9))]
    client.savepoint("six", ids[1])
    client.delete_checkpoint(ids[3])  # what is older is in the catalog now
    reader = world.actor()
    assert got(reader.restore(ids[0])) == got(reader.restore(str(ids[0]))) == got(reader.restore(epoch=5)) == b"0"
    assert restored(reader, epoch=6).id == ids[2], "the newest of that epoch"
    assert restored(reader, savepoint="six").id == ids[1]
    assert restored(reader, epoch=8).id == ids[5], "the newest of that epoch"
    assert got(reader.restore(epoch=9)) == b"6"
    for which, error in (
        ({"epoch": 7}, CheckpointNotFoundError),
        ({"id": ids[3]}, CheckpointNotFoundError),
        ({"savepoint": "seven"}, SavepointNotFoundError),
        ({"id": "no id"}, SavepointNotFoundError),
        ({"id": 4}, IllegalArgumentError),
        ({"id": ids[0], "epoch": 5}, IllegalArgumentError),
    ):
        with pytest.raises(error):
            reader.restore(**which)


# ---- packs and what is written twice ---------------------------------------------------------------------------------


def test_two_hundred_small_partitions_make_one_object(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        for partition in range(200):
            cp.snapshot("op", partition, b"%d" % partition * 10)
    (path,) = world.objects("artifacts/")
    assert "/packs/" in path
    found = restored(world.actor()).operator("op")
    assert [found.partition(partition) for partition in found.partitions] == [[b"%d" % p * 10] for p in range(200)]


def test_a_large_partition_is_an_object_of_its_own_named_by_its_digest(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.snapshot("op", 0, BIG)
        cp.snapshot("op", 1, b"small")
        cp.snapshot("op", 2, b"also small")
    assert sorted(path.split("/")[2] for path in world.objects("artifacts/")) == ["0", "packs"]
    artifact = restored(client).operator("op").chain(0)[0]
    assert client.load_artifact(artifact) == client.load_artifact(artifact.path) == BIG
    assert artifact.digest in artifact.path


@pytest.mark.parametrize("data", [b"small", BIG])
def test_a_snapshot_with_the_bytes_of_the_parents_is_not_written_again(world: World, data: bytes) -> None:
    client = world.actor()
    put(client, data)
    before = world.objects("artifacts/")
    put(client, data)
    assert world.objects("artifacts/") == before
    put(client, data + b"!")
    put(client, data)  # only the parent counts: what is older may be swept any moment
    assert len(world.objects("artifacts/")) == 3
    assert latest(world.actor()) == data


def test_an_unchanged_state_writes_nothing_but_its_manifest(world: World) -> None:
    client = world.actor()
    state = KeyedState({n: n for n in range(100)})
    for _ in range(3):
        with client.begin() as cp:
            cp.save("s", state)
    again = restored(client).keyed("s")
    before = world.objects("artifacts/")
    with client.begin() as cp:
        cp.save("s", again)
    assert world.objects("artifacts/") == before


# ---- chains ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_chain", [2, 3, 10])
def test_a_chain_of_bytes_stays_within_max_chain_objects_and_gives_back_every_delta(
    world: World, max_chain: int
) -> None:
    client = world.actor(max_chain=max_chain)
    expected = [b"snapshot"]
    put(client, b"snapshot")
    for number in range(60):
        with client.begin() as cp:
            for _ in range(number % 3 + 1):
                expected.append(b"delta %d %d" % (number, len(expected)))
                cp.delta("op", 0, expected[-1])
        found = restored(world.actor()).operator("op")
        assert found.partition(0) == expected
        # The second delta of a checkpoint is written beside the first; the next checkpoint folds both.
        assert len({artifact.path for artifact in found.chain(0)}) <= max_chain + (number % 3 > 0)
        assert [artifact.kind for artifact in found.chain(0)] == [SNAPSHOT] + [DELTA] * (len(expected) - 1)


@pytest.mark.parametrize("same", [b"", b"same", BIG])
def test_equal_deltas_are_all_given_back_also_once_they_are_folded(world: World, same: bytes) -> None:
    client = world.actor(max_chain=2)
    put(client, b"snapshot")
    for number in range(1, 4):
        with client.begin() as cp:
            cp.delta("op", 0, same)
            cp.delta("op", 0, same)
        assert restored(world.actor()).operator("op").partition(0) == [b"snapshot", *[same] * 2 * number]


def test_what_folding_writes_stays_a_few_times_the_deltas(world: World) -> None:
    client = world.actor(max_chain=10)
    put(client, b"snapshot")
    client.faults.forget()
    for number in range(200):
        with client.begin() as cp:
            cp.delta("op", 0, random.Random(number).randbytes(1000))
    written = sum(r.size for r in client.faults.requests if r.path.startswith("artifacts/"))
    assert written <= 6 * 200 * 1000


def test_too_many_deltas_of_bytes_are_refused_and_a_snapshot_begins_anew(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.snapshot("op", 0, b"snapshot")
        for number in range(1000):
            cp.delta("op", 0, b"%d" % number)
        with pytest.raises(IllegalArgumentError, match="save a snapshot"):
            cp.delta("op", 0, b"one more")
    assert len(restored(world.actor()).operator("op").partition(0)) == 1001
    put(client, b"anew")
    with client.begin() as cp:
        cp.delta("op", 0, b"and on")
    assert restored(world.actor()).operator("op").partition(0) == [b"anew", b"and on"]


@pytest.mark.parametrize("max_chain", [2, 4, 10])
def test_a_keyed_chain_stays_within_max_chain_and_its_deltas_within_half_the_snapshot(
    world: World, max_chain: int
) -> None:
    client = world.actor(max_chain=max_chain)
    numbers = random.Random(max_chain)
    state = KeyedState({n: numbers.randbytes(30) for n in range(500)}, partitions=1)
    model, snapshots = dict(state), 0
    for step in range(80):
        for _ in range(10):
            key = numbers.randrange(700)
            if key % 9:
                state[key] = model[key] = numbers.randbytes(30)
            else:
                assert state.pop(key, None) == model.pop(key, None)
        with client.begin() as cp:
            cp.save("s", state)
        chain = restored(client).operator("s").chain(0)
        assert len(chain) <= max_chain
        assert [artifact.kind for artifact in chain[1:]] == [DELTA] * (len(chain) - 1)
        # The size of a delta to come is estimated: a little more than half may stand.
        assert 2 * sum(artifact.raw_size for artifact in chain[1:]) <= 1.2 * chain[0].raw_size
        if len(chain) == 1:
            snapshots += 1
        if step % 10 == 0:
            assert dict(restored(world.actor()).keyed("s")) == model
    assert dict(restored(world.actor()).keyed("s")) == model
    assert 3 <= snapshots <= 8, "about one for each half of the state that was written as deltas"


def test_what_a_small_change_writes_follows_the_change(world: World) -> None:
    client = world.actor()
    numbers = random.Random(1)
    state = KeyedState({n: numbers.randbytes(60) for n in range(10_000)}, partitions=4)
    with client.begin() as cp:
        cp.save("s", state)
    full = written(client)
    client.faults.forget()
    for _ in range(120):
        for key in numbers.sample(range(10_000), 100):
            state[key] = numbers.randbytes(60)
        with client.begin() as cp:
            cp.save("s", state)
    assert written(client) / 120 <= 0.05 * full
    assert dict(restored(world.actor()).keyed("s")) == dict(state)


def written(client: Actor) -> int:
    return sum(r.size for r in client.faults.requests if r.kind == "put")


# ---- many partitions -------------------------------------------------------------------------------------------------


def test_more_partitions_than_a_manifest_holds_stand_in_segments(world: World) -> None:
    client = world.actor()
    model: dict[int, list[bytes]] = {}
    numbers = random.Random(7)
    with client.begin() as cp:
        for partition in range(INLINE + 300):
            model[partition] = [b"%d" % partition]
            cp.snapshot("op", partition, model[partition][0])
    assert len(world.objects("manifests/segments/")) == 1
    views = {cp.id: dict(model)}
    for step in range(12):
        client = client if step % 3 else world.actor()  # what was restored is what was written
        with client.begin() as cp:
            for partition in numbers.sample(sorted(model), 5):
                model[partition] = [*model[partition], b"d%d" % step]
                cp.delta("op", partition, b"d%d" % step)
            gone = numbers.choice(sorted(model))
            cp.drop("op", gone)
            del model[gone]
            cp.snapshot("op", 2000 + step, b"new")
            model[2000 + step] = [b"new"]
        views[cp.id] = dict(model)
    reader = world.actor()
    for checkpoint, view in list(views.items())[::4]:
        found = restored(reader, id=checkpoint).operator("op")
        assert found.partitions == sorted(view)
        for partition in numbers.sample(sorted(view), 30):
            assert found.partition(partition) == view[partition]
    assert contents(world.actor().restore()) == {"op": model}
    manifest = object_paths.manifest(cp.id)
    assert len(world.read(manifest)) < 3000


def test_segments_survive_a_rollback_and_a_delete(world: World) -> None:
    client = world.actor()
    with client.begin() as first:
        for partition in range(INLINE + 1):
            first.snapshot("op", partition, b"%d" % partition)
    with client.begin() as second:
        second.snapshot("op", 0, b"changed")
    with client.begin() as third:
        third.delta("op", 1, b"more")
    client.rollback(first.id)
    with client.begin() as cp:
        cp.snapshot("op", 2, b"after")
    client.delete_checkpoint(first.id)
    client.delete_checkpoint(second.id)
    client.delete_checkpoint(third.id)
    found = contents(world.actor().restore())["op"]
    assert len(found) == INLINE + 1
    assert (found[0], found[1], found[2]) == ([b"0"], [b"1"], [b"after"])
    with world.actor().begin() as cp:
        cp.drop("op", 5)
    assert len(contents(world.actor().restore())["op"]) == INLINE
    assert world.objects("manifests/segments/")  # of the one before


def test_update_latest_takes_a_manifest_with_many_partitions(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        for partition in range(INLINE + 1):
            cp.snapshot("op", partition, b"%d" % partition)
    old = restored(client).manifest
    checkpoint = client.new_id()
    artifact = client.save_snapshot(checkpoint, "op", 3, b"by hand")
    operator = replace(old.operators["op"], chains={**old.operators["op"].chains, 3: (artifact,)})
    client.save_manifest(replace(old, id=checkpoint, parent=client.session.restored.parent, operators={"op": operator}))
    client.update_latest(checkpoint)
    with client.begin() as cp:
        cp.delta("op", 3, b"and on")
    assert contents(world.actor().restore())["op"][3] == [b"by hand", b"and on"]


# ---- artifacts written elsewhere -------------------------------------------------------------------------------------


def test_an_artifact_written_by_another_process_is_attached(world: World) -> None:
    client, task = world.actor(), world.actor()
    put(client, b"1")
    with client.begin() as cp:
        cp.attach(task.save_delta(cp.id, "op", 0, b"by a task"))
        cp.attach(task.save_snapshot(cp.id, "new", 4, b""))
    assert contents(world.actor().restore()) == {"op": {0: [b"1", b"by a task"]}, "new": {4: [b""]}}


def test_an_artifact_of_another_attempt_is_not_attached(world: World) -> None:
    client = world.actor()
    put(client, b"1")
    old = restored(client).operator("op").chain(0)[0]
    cp = client.begin()
    with pytest.raises(IllegalArgumentError, match="not an artifact"):
        cp.attach(old)
    with pytest.raises(IllegalArgumentError, match="snapshot below"):
        cp.attach(client.save_delta(cp.id, "nowhere", 0, b"x"))
    cp.commit()
    assert contents(world.actor().restore()) == {"op": {0: [b"1"]}}


def test_attached_deltas_fold_as_others_do(world: World) -> None:
    client = world.actor(max_chain=3)
    put(client, b"snapshot")
    expected = [b"snapshot"]
    for number in range(12):
        with client.begin() as cp:
            cp.attach(client.save_delta(cp.id, "op", 0, b"%d" % number))
        expected.append(b"%d" % number)
        found = restored(world.actor()).operator("op")
        assert found.partition(0) == expected
        assert len({artifact.path for artifact in found.chain(0)}) <= 3


# ---- going back ------------------------------------------------------------------------------------------------------


def test_a_rollback_brings_back_everything_of_the_old_checkpoint(world: World) -> None:
    client = world.actor()
    state = KeyedState({"a": [1]})
    with client.begin(epoch=1) as first:
        first.snapshot("op", 0, b"1")
        first.save("s", state)
        first.positions["t"] = 1
    state["a"].append(2)
    with client.begin(epoch=2) as cp:
        cp.delta("op", 0, b"2")
        cp.save("s", state)
        cp.positions["t"] = 2
        cp.properties["x"] = 1
    client.rollback(first.id)
    found = restored(world.actor())
    assert (found.epoch, found.positions, found.properties) == (1, {"t": 1}, {})
    assert found.operator("op").partition(0) == [b"1"]
    assert dict(found.keyed("s")) == {"a": [1]}


def test_a_checkpoint_taken_by_hand_is_committed_or_dropped(world: World) -> None:
    client = world.actor()
    cp = attempt(client, b"1")
    assert cp.commit() == cp.id
    attempt(client, b"2").abort()
    assert latest(world.actor()) == b"1"


@pytest.mark.parametrize("verb", ["commit", "prepare"])
def test_a_manifest_that_nobody_could_read_is_not_written(
    world: World, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    client = world.actor()
    put(client, b"1")
    monkeypatch.setattr(metadata, "MAX_MANIFEST", 4096)
    before = world.objects(), world.latest()
    cp = attempt(client, b"2")
    cp.properties["large"] = "x" * 4096
    with pytest.raises(
        InvalidStateError, match=r"at most 4,096 can be read: .*, or spread the state over fewer operators"
    ):
        getattr(cp, verb)()
    assert (world.objects(), world.latest()) == before
    put(client, b"3")
    assert latest(world.actor()) == b"3"


def test_an_operator_whose_first_delta_was_refused_may_be_saved_otherwise(world: World) -> None:
    client, state = world.actor(), KeyedState({"k": 1})
    with client.begin() as cp:
        with pytest.raises(IllegalArgumentError, match="needs a snapshot"):
            cp.delta("op", 0, b"x")
        cp.save("op", state)
    restored = world.actor().restore()
    assert restored is not None
    assert dict(restored.keyed("op")) == {"k": 1}


@pytest.mark.parametrize("name", [5, "", None, ["t"], b"t"])
@pytest.mark.parametrize("verb", ["snapshot", "delta", "save", "drop", "keep"])
def test_a_name_that_is_no_text_is_refused_by_every_verb(world: World, verb: str, name: Any) -> None:
    more: dict[str, tuple[Any, ...]] = {"snapshot": (0, b""), "delta": (0, b""), "save": (KeyedState(),)}
    cp = world.actor().begin()
    with pytest.raises(IllegalArgumentError, match="operator: expected a name of at least one character, got"):
        getattr(cp, verb)(name, *more.get(verb, ()))


@pytest.mark.parametrize("given", ["x", ["x"], {"x"}, 5])
def test_storage_options_that_are_no_dict_are_refused_without_being_shown(given: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="storage_options: expected a dict") as raised:
        Checkpointer("s3://bucket/root", given)
    assert str(raised.value).endswith(f"not {type(given).__name__}")


class Part(int, Enum):  # Not an IntEnum, which is its number also by `str`.
    A, B = 1, 2


@pytest.fixture
def segments(tmp_path: Path) -> Path:
    """A root with an operator whose chains stand in a segment."""
    with Checkpointer(tmp_path).begin() as cp:
        for number in range(INLINE + 1):
            cp.snapshot("op", number, b"%d" % number)
    return tmp_path


@pytest.mark.parametrize("partition", [True, 1.0])
def test_a_partition_that_only_equals_a_number_is_refused(segments: Path, partition: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="expected an integer"), Checkpointer(segments).begin() as cp:
        cp.drop("op", partition)
        cp.snapshot("op", 1, b"new")
    restored = Checkpointer(segments).restore()
    assert restored is not None
    assert restored.operator("op").partition(1) == [b"1"]


def test_members_of_an_enum_are_their_numbers(segments: Path) -> None:
    with Checkpointer(segments).begin() as cp:
        cp.snapshot("op", Part.A, b"a")
        cp.snapshot("op", Part.B, b"b")
    restored = Checkpointer(segments).restore()
    assert restored is not None
    assert restored.operator("op").read([1, 2]) == {1: [b"a"], 2: [b"b"]}


@pytest.mark.parametrize("id", ["0000000000-1a2b3c4d", CheckpointId(7, "ABCDEF01"), CheckpointId(10**10, "1a2b3c4d")])
def test_an_id_that_no_checkpoint_can_have_is_refused(tmp_path: Path, id: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="no checkpoint can have this id"):
        Checkpointer(tmp_path).save_snapshot(id, "totals", 0, b"1")
    assert [*tmp_path.rglob("*.snapshot.*")] == []
