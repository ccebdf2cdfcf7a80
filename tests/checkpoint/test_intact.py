"""`restore(on_corruption="previous")` gives one whole checkpoint, bit for bit, and says which it left out, and why."""

import asyncio
import logging
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, KeyedState, runtime
from pyspark_checkpointer.checkpoint.metadata import objects_of
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.map_expiry import micros
from pyspark_checkpointer.manifests.model import CheckpointId, Clock, Ref
from pyspark_checkpointer.testing.requests import CrashError
from tests.checkpoint.test_verify import live_ids, live_paths
from tests.damage import DAMAGE, everything, fill, flip
from tests.manifests.samples import AT
from tests.world import World, got, latest, line, put

pytestmark = pytest.mark.usefixtures("small_manifests")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory, small_manifests: None) -> Path:
    """Live are checkpoints 1 and 2 by name, and 4 to 6 in the ancestry, of which 5 has a name too."""
    root = tmp_path_factory.mktemp("fallback") / "root"
    with Checkpointer(root) as ck:
        ids = [fill(ck, number) for number in range(6)]
        ck.savepoint("first", ids[0])
        ck.savepoint("second", ids[1])
        ck.savepoint("fifth", ids[4])
        ck.delete_checkpoint(ids[2])
    return root


@pytest.fixture(scope="module")
def sound(original: Path) -> dict[CheckpointId, Any]:
    return {known: everything(Checkpointer(original).restore(known)) for known in live_ids(original)}


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "root"))


def manifest_of(root: Path, checkpoint: CheckpointId) -> Path:
    return root / object_paths.manifest(checkpoint)


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
def test_damage_to_any_live_object_gives_the_newest_whole_checkpoint(
    root: Path, damage: Any, sound: dict[CheckpointId, Any]
) -> None:
    ids, ck = live_ids(root), Checkpointer(root)
    needs = {known: objects_of(Ref(known, ""), ck.load_manifest(known)) for known in ids}
    beyond = []
    for path in sorted(live_paths(root) - {object_paths.LATEST}):
        if damage is not flip and random.Random(path).random() > 0.3:
            continue
        before = (root / path).read_bytes()
        damage(root / path)
        intact = [known for known in ids if path not in needs[known]]
        if intact:
            restored = Checkpointer(root).restore(on_corruption="previous")
            assert restored.id == intact[-1]
            newer = tuple(known for known in ids if known > restored.id)
            assert [(finding.path, finding.checkpoints) for finding in restored.skipped] == [(path, newer)] * bool(
                newer
            )
            if damage is flip:
                assert everything(restored) == sound[restored.id]
        else:
            beyond.append(path)
            with pytest.raises(CorruptionError, match="repair_candidates"):
                Checkpointer(root).restore(on_corruption="previous")
        (root / path).write_bytes(before)
    restored = Checkpointer(root).restore(on_corruption="previous")
    assert (restored.id, restored.skipped) == (ids[-1], ())
    assert beyond or damage is not flip


def test_several_damages_are_stepped_over(root: Path, sound: dict[CheckpointId, Any], caplog: Any) -> None:
    ids = live_ids(root)
    for known in ids[2:]:
        (path,) = [path for path in root.glob("artifacts/own/**/*") if str(known) in path.name]
        flip(path)
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        restored = Checkpointer(root).restore(on_corruption="previous")
    assert restored.id == ids[1]
    assert everything(restored) == sound[ids[1]]
    assert [finding.checkpoints for finding in restored.skipped] == [(known,) for known in reversed(ids[2:])]
    (record,) = caplog.records
    assert record.name == "pyspark_checkpointer"
    assert all(str(known) in record.getMessage() for known in ids[1:])


def test_a_broken_ancestry_leaves_what_the_catalog_proves(root: Path, sound: dict[CheckpointId, Any]) -> None:
    ids = live_ids(root)
    flip(manifest_of(root, ids[-1]))
    restored = Checkpointer(root).restore(on_corruption="previous")
    assert restored.id == ids[-2]  # a savepoint
    assert everything(restored) == sound[ids[-2]]
    manifest_of(root, ids[-2]).unlink()
    assert Checkpointer(root).restore(on_corruption="previous").id == ids[1]


def test_all_damaged_says_what_was_tried(root: Path) -> None:
    ids = live_ids(root)
    for known in ids:
        flip(manifest_of(root, known))
    with pytest.raises(CorruptionError, match="repair_candidates") as raised:
        Checkpointer(root).restore(on_corruption="previous")
    # All but one in the ancestry, which nothing leads to any more.
    assert [known for known in ids if str(known) not in str(raised.value)] == [ids[2]]


def test_a_damaged_pointer_is_for_repair(root: Path) -> None:
    flip(root / object_paths.LATEST)
    with pytest.raises(CorruptionError, match="repair_candidates"):
        Checkpointer(root).restore(on_corruption="previous")


def test_only_the_latest_steps_back(root: Path) -> None:
    ck, some = Checkpointer(root), live_ids(root)[0]
    for which in ({"id": some}, {"epoch": 1}, {"savepoint": "first"}):
        with pytest.raises(IllegalArgumentError, match="latest"):
            ck.restore(**which, on_corruption="previous")  # type: ignore[arg-type]
    with pytest.raises(IllegalArgumentError, match="on_corruption"):
        ck.restore(on_corruption="next")  # type: ignore[arg-type]


def test_awaitable(root: Path) -> None:
    flip(manifest_of(root, live_ids(root)[-1]))

    async def restore() -> tuple[CheckpointId | None, int]:
        async with AsyncCheckpointer(root) as ck:
            restored = await ck.restore(on_corruption="previous")
            assert restored is not None
            return restored.id, len(restored.skipped)

    assert asyncio.run(restore())[1] == 1


# ---- in memory: what a session may do afterwards ---------------------------------------------------------------------


def spoil(world: World, path: str) -> None:
    """Write other bytes of the same length in the place of an object."""
    data = world.read(path)
    world.delete(path)
    runtime.run_sync(world.store.put(path, bytes([data[0] ^ 1]) + data[1:]))


def own(world: World, checkpoint: CheckpointId) -> str:
    (path,) = [path for path in world.objects(object_paths.ARTIFACTS) if str(checkpoint) in path]
    return path


def test_a_checkpoint_keeps_its_own_schema_beside_one_with_the_same_segments(world: World) -> None:
    """A map that takes a rule to expire writes no object, so that both checkpoints name the same segments."""
    client, state = world.actor(), KeyedState({n: n for n in range(200)}, partitions=20)
    with client.begin() as cp:
        cp.save("s", state)
    state.set_rule(5, micros(AT))
    with client.begin() as cp:
        cp.attempt.clock = Clock(AT, "job")
        cp.save("s", state)
        cp.snapshot("other", 0, b"x")
    first, second = client.list_checkpoints()
    before, after = (client.load_manifest(known).operators["s"] for known in (first, second))
    assert before.segments == after.segments != ()
    assert before.schema != after.schema
    spoil(world, own(world, second))
    restored = world.actor().restore(on_corruption="previous")
    assert restored is not None
    assert (restored.id, restored.manifest.operators["s"].schema) == (first, before.schema)
    assert restored.keyed("s").to_dict() == {n: n for n in range(200)}


def test_without_damage_it_is_a_restore_like_any_other(world: World) -> None:
    client = world.actor()
    assert client.restore(on_corruption="previous") is None
    line(client, 2)
    client = world.actor()
    assert got(client.restore(on_corruption="previous")) == b"2"
    put(client, b"3")
    assert latest(world.actor()) == b"3"


def test_a_fallback_can_be_read_and_rolled_back_to_and_nothing_else(world: World) -> None:
    ids = line(world.actor(), 3)
    spoil(world, own(world, ids[2]))
    before = world.latest()
    client = world.actor()
    restored = client.restore(on_corruption="previous")
    assert (restored.id, got(restored)) == (ids[1], b"2")
    for verb in (client.begin, client.new_id, lambda: client.update_latest(client.read_latest())):
        with pytest.raises(InvalidStateError, match="rollback"):
            verb()  # type: ignore[operator]
    assert world.latest() == before
    new = client.rollback(to=restored.id)
    assert latest(client) == b"2"
    put(client, b"4")
    assert world.actor().list_checkpoints()[:4] == [*ids, new]
    assert latest(world.actor()) == b"4"


@pytest.mark.parametrize("how", ["fallback", "at once"])
def test_a_rollback_gets_over_a_damaged_committed_manifest(world: World, how: str) -> None:
    ids = line(world.actor(), 3)
    world.actor().savepoint("kept", ids[1])
    spoil(world, object_paths.manifest(ids[2]))
    client = world.actor()
    if how == "fallback":
        assert client.restore(on_corruption="previous").id == ids[1]
    with pytest.raises(CorruptionError):
        client.rollback(to=ids[0])  # nothing proves any more that it is live
    client.rollback(to="kept")
    put(client, b"4")
    assert latest(world.actor()) == b"4"


def test_a_failed_rollback_leaves_the_fallback_as_it_was(world: World) -> None:
    ids = line(world.actor(), 2)
    spoil(world, own(world, ids[1]))
    client = world.actor()
    client.restore(on_corruption="previous")
    with pytest.raises(CheckpointError):
        client.rollback(to="nothing")
    with pytest.raises(InvalidStateError, match="rollback"):
        client.begin()


@pytest.mark.parametrize("damaged", [None, "committed", "prepared"])
def test_a_prepared_checkpoint_is_handed_on_only_where_all_is_whole(world: World, damaged: str | None) -> None:
    writer = world.actor()
    ids = line(writer, 2)
    cp = writer.begin()
    cp.snapshot("op", 0, b"3")
    prepared = cp.prepare()
    if damaged:
        spoil(world, own(world, ids[1] if damaged == "committed" else prepared.id))
    client = world.actor()
    restored = client.restore(on_corruption="previous")
    if damaged is None:
        assert restored.prepared.id == prepared.id
        restored.prepared.commit()
        assert latest(world.actor()) == b"3"
        return
    assert restored.prepared is None
    assert restored.id == (ids[0] if damaged == "committed" else ids[1])
    assert len(restored.skipped) == 1
    with pytest.raises(InvalidStateError, match="because a newer one is damaged"):
        client.begin()
    client.rollback(to=restored.id)
    assert world.actor().restore().prepared is None
    put(client, b"on it goes")


def test_what_was_looked_at_is_not_read_again(world: World) -> None:
    client = world.actor()
    with client.begin() as cp:
        cp.snapshot("base", 0, b"shared")
    ids = line(client, 5)
    for known in ids[1:]:
        spoil(world, own(world, known))
    reader = world.actor()
    assert reader.restore(on_corruption="previous").id == ids[0]
    gets = reader.faults.paths("get")
    assert len([path for path in gets if path.startswith("artifacts/base/")]) == 1
    assert len(gets) <= 1 + 5 + 5 + 1 + 1  # the pointer, manifests, what is new in each, what they share


def test_what_was_retired_meanwhile_is_no_damage(world: World) -> None:
    writer = world.actor()
    line(writer, 2)
    reader = world.actor()

    def more(_: object) -> None:
        put(writer, b"3")
        world.actor().delete_checkpoint(world.actor().list_checkpoints()[1])

    reader.faults.call(more, "get", path="artifacts/")
    restored = reader.restore(on_corruption="previous")
    assert got(restored) == b"3"
    assert restored.skipped == ()
    put(reader, b"4")


def test_a_missing_object_is_damage_also_while_a_job_commits(world: World) -> None:
    writer = world.actor()
    ids = line(writer, 2)
    world.delete(own(world, ids[1]))
    reader = world.actor()
    reader.faults.call(lambda _: put(writer, b"3"), "get", path="artifacts/")
    assert reader.restore(on_corruption="previous").id == ids[0]


# ---- a crash at every request ----------------------------------------------------------------------------------------


def places() -> Iterator[tuple[World, list[CheckpointId], int, bool]]:
    number, count = 0, 1
    while number < count:
        number += 1
        for after in (False, True):
            world = World()
            ids = line(world.actor(), 4)
            world.actor().savepoint("kept", ids[1])
            spoil(world, object_paths.manifest(ids[3]))
            if number == 1:
                played = world.actor()
                roll_back(played)
                count = len(played.faults.requests)
                continue
            yield world, ids, number - 1, after


def roll_back(client: Checkpointer) -> None:
    client.rollback(to=client.restore(on_corruption="previous").id)


@pytest.mark.parametrize("how", ["crash", "error", "retried"])
def test_a_rollback_after_a_fallback_is_done_or_not_wherever_it_fails(how: str) -> None:
    for world, ids, number, after in places():
        client = world.actor(retries=how == "retried")
        if how == "crash":
            client.faults.crash(number, after=after)
        else:
            client.faults.fail(nth=number, after=after)
        error = None
        try:
            roll_back(client)
        except (CheckpointError, CrashError) as caught:
            error = caught
        assert isinstance(error, CrashError | DependencyError | OutcomeUnknownError | None), error
        assert how != "retried" or error is None
        after_it = world.actor() if how == "crash" else client
        if world.actor().read_latest() == ids[3]:
            assert error is not None
            roll_back(after_it)
        elif error is not None:
            after_it.restore()
        assert latest(world.actor()) == b"2"
        put(after_it, b"5")
        assert latest(world.actor()) == b"5"
