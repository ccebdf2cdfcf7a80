"""Repair roots: nothing is chosen or lost by itself, and the new commit is whole and newest."""

import asyncio
import json
import logging
from collections.abc import Callable
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import AsyncCheckpointer, Checkpointer, RetentionPolicy, runtime
from pyspark_checkpointer.admin.candidate import Candidate
from pyspark_checkpointer.admin.retention.plan import CleanupPlan
from pyspark_checkpointer.checkpoint import commit
from pyspark_checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
    StoreRefusedError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.manifest_json import decode_pointer, encode_pointer
from pyspark_checkpointer.manifests.model import CheckpointId, Job
from pyspark_checkpointer.storage.base import SWAP_LIMIT
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.testing.requests import CrashError
from tests.checkpoint.test_intact import own, spoil
from tests.conftest import Root
from tests.damage import everything, fill
from tests.world import World, attempt, contents, got, latest, line, put

pytestmark = pytest.mark.usefixtures("small_manifests")


def missing(world: World) -> None:
    world.delete(object_paths.LATEST)


def flipped(world: World) -> None:
    spoil(world, object_paths.LATEST)


def cut(world: World) -> None:
    replace_latest(world, world.latest()[:-7])


def emptied(world: World) -> None:
    replace_latest(world, b"")


def swollen(world: World) -> None:
    replace_latest(world, world.latest() + bytes(2 << 20))


def replace_latest(world: World, data: bytes) -> None:
    world.delete(object_paths.LATEST)
    runtime.run_sync(world.store.put(object_paths.LATEST, data))


LOSSES = [missing, flipped, cut, emptied, swollen]


def objects_of(world: World) -> dict[str, Any]:
    assert isinstance(world.store, MemoryStore)
    return world.store.objects


def sequences(world: World) -> list[int]:
    return [owner.sequence for path in world.objects() if (owner := object_paths.owner(path)) is not None]


# ---- candidates ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_every_manifest_is_a_candidate_with_its_evidence(world: World, loss: Callable[[World], None]) -> None:
    client = world.actor()
    ids = [fill(client, number, many=number == 0) for number in range(3)]
    client.savepoint("first", ids[0])
    whole = client.load_manifest(ids[1])
    abandoned = attempt(world.actor(), b"never committed")
    runtime.run_sync(commit._write(abandoned.attempt))
    loss(world)
    found = world.actor().repair_candidates()
    assert {candidate.id for candidate in found} == {*ids, abandoned.id}
    assert all(candidate.problems == () for candidate in found)
    by_id = {candidate.id: candidate for candidate in found}
    assert [by_id[known].children for known in ids] == [1, 1, 1]
    assert by_id[abandoned.id].children == 0
    assert not by_id[abandoned.id].proven
    assert [by_id[known].epoch for known in ids] == [0, 1, 2]
    assert by_id[ids[0]].savepoints == ("first",)
    assert [by_id[known].catalogs for known in ids] == [1, 0, 0]
    assert by_id[ids[1]].created == whole.created
    named = loss in (flipped, cut, swollen)
    assert [known for known in ids if by_id[known].committed] == ids[2:] * named
    assert found[0].id == (ids[2] if named else abandoned.id)
    assert [candidate.id for candidate in found if candidate.id in ids] == ids[::-1]
    assert all(str(candidate.id) in str(candidate) for candidate in found)


def test_of_equals_the_proven_one_comes_first(world: World) -> None:
    line(world.actor(), 1)
    attempts = [attempt(world.actor(), b"%d" % number) for number in range(6)]
    for one in attempts:
        runtime.run_sync(commit._write(one.attempt))
    committed = put(world.actor(), b"2")
    world.actor().savepoint("s")
    missing(world)
    first, *rest = world.actor().repair_candidates()
    assert (first.id, first.proven) == (committed, True)
    assert {candidate.id for candidate in rest[:6]} == {one.id for one in attempts}


def test_what_is_not_whole_comes_last_and_says_why(world: World) -> None:
    client = world.actor()
    ids = [fill(client, number) for number in range(3)]
    gone = own_of(world, ids[2], "artifacts/own/")
    world.delete(gone)
    spoil(world, object_paths.manifest(ids[1]))
    missing(world)
    first, second, third = world.actor().repair_candidates()
    assert (first.id, first.problems) == (ids[0], ())
    assert (second.id, third.id) == (ids[2], ids[1])
    assert gone in second.problems[0]
    assert "found no object" in second.problems[0]
    assert object_paths.manifest(ids[1]) in third.problems[0]
    for candidate in (second, third):
        with pytest.raises(CorruptionError, match="choose another"):
            world.actor().repair(candidate.id)
    assert object_paths.LATEST not in world.objects()


def test_a_manifest_that_its_child_knows_otherwise_is_no_good(world: World) -> None:
    ids = line(world.actor(), 2)
    path = object_paths.manifest(ids[0])
    changed = world.read(path).replace(b'"epoch":null', b'"epoch":1234')
    world.delete(path)
    runtime.run_sync(world.store.put(path, changed))
    missing(world)
    newest, older = world.actor().repair_candidates()
    assert newest.problems == ()
    assert "expected SHA-256" in older.problems[0]


def own_of(world: World, checkpoint: CheckpointId, prefix: str) -> str:
    (path,) = [path for path in world.objects(prefix) if str(checkpoint) in path]
    return path


def test_segments_and_what_they_name_are_looked_at(world: World) -> None:
    client = world.actor()
    fill(client, 0)
    (segment,) = world.objects(object_paths.SEGMENTS)
    missing(world)
    sound = objects_of(world)[segment]
    for damage in (lambda: spoil(world, segment), lambda: world.delete(segment)):
        damage()
        (candidate,) = world.actor().repair_candidates()
        assert segment in candidate.problems[0]
        objects_of(world)[segment] = sound
    world.delete(*world.objects("artifacts/many/"))
    (candidate,) = world.actor().repair_candidates()
    assert "artifacts/many/" in candidate.problems[0]


def test_an_empty_root_has_no_candidates(world: World) -> None:
    assert world.actor().repair_candidates() == []
    with pytest.raises(CheckpointNotFoundError, match="repair_candidates"):
        world.actor().repair("0000000001-00000000")


def test_a_newer_format_is_never_repaired(world: World) -> None:
    ids = line(world.actor(), 2)
    replace_latest(world, world.latest().replace(b'"format_version":1', b'"format_version":2'))
    before = world.latest()
    for verb in (lambda c: c.repair_candidates(), lambda c: c.repair(ids[0])):
        with pytest.raises(UnsupportedFormatError, match="version 2"):
            verb(world.actor())
    assert world.latest() == before
    missing(world)
    path = object_paths.manifest(ids[1])
    data = world.read(path)
    world.delete(path)
    runtime.run_sync(world.store.put(path, data.replace(b'"format_version":1', b'"format_version":2')))
    with pytest.raises(UnsupportedFormatError):
        world.actor().repair_candidates()


def test_spark_s_own_log_is_evidence(world: World, tmp_path: Path) -> None:
    client = world.actor()
    for batch, query in enumerate(["q", "q", "q", "other"]):
        with client.begin_batch(batch, Job(query, "run", batch)) as cp:
            cp.snapshot("op", 0, b"%d" % batch)
    missing(world)
    with pytest.raises(IllegalArgumentError, match="checkpointLocation"):
        world.actor().repair_candidates(spark_checkpoint=tmp_path)
    (tmp_path / "commits").mkdir()
    (tmp_path / "metadata").write_text(json.dumps({"id": "q"}))
    for name in ("0", "1", ".1.crc"):
        (tmp_path / "commits" / name).write_text("v1\n{}")
    for text in ("[" * 100_000, '{"id": 1}', "{}", "1"):
        (tmp_path / "metadata").write_text(text)
        with pytest.raises(IllegalArgumentError, match="checkpointLocation"):
            world.actor().repair_candidates(spark_checkpoint=tmp_path)
    (tmp_path / "metadata").write_text(json.dumps({"id": "q"}))
    found = world.actor().repair_candidates(spark_checkpoint=tmp_path)
    assert {candidate.epoch: candidate.batch_done for candidate in found} == {0: True, 1: True, 2: False, 3: False}
    assert {candidate.batch_done for candidate in world.actor().repair_candidates()} == {None}


# ---- repair ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_a_copy_above_everything_is_committed(world: World, loss: Callable[[World], None], caplog: Any) -> None:
    client = world.actor()
    ids = [fill(client, number) for number in range(3)]
    wanted = everything(world.actor().restore(ids[1]))
    client.save_snapshot(CheckpointId(70, "0badcafe"), "own", 0, b"of an attempt")
    loss(world)
    before = {path: world.read(path) for path in world.objects() - {object_paths.LATEST}}
    actor = world.actor()
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        new = actor.repair(str(ids[1]))
    assert str(new) in caplog.text
    assert new.sequence == 71 == max(sequences(world))
    assert everything(world.actor().restore()) == wanted
    pointer = world.pointer()
    assert (pointer.boundary, pointer.catalog, pointer.prepared, pointer.retired) == (71, None, None, ())
    assert pointer.writer.epoch >= 71
    manifest = world.actor().restore().manifest
    assert manifest.parent is None
    owners = {
        a.path: object_paths.owner(a.path) for op in manifest.operators.values() for c in op.chains.values() for a in c
    }
    owners |= {s.path: object_paths.owner(s.path) for op in manifest.operators.values() for s in op.segments}
    assert set(owners.values()) == {new}
    assert all(world.read(path) == data for path, data in before.items())
    assert world.actor().list_checkpoints() == [new]
    assert world.actor().verify()
    fill(actor, 3)
    fill(world.actor(), 4)
    assert len(world.actor().list_checkpoints()) == 3


def test_on_every_kind_of_store(any_root: Root) -> None:
    with Checkpointer(any_root.url, any_root.storage_options or None) as ck:
        put(ck, b"1")
        put(ck, b"2")
        store = ck.session.store
        runtime.run_sync(store.delete([object_paths.LATEST]))
        runtime.run_sync(store.put(object_paths.LATEST, b"damaged"))
        (newest, _) = ck.repair_candidates()
        ck.repair(newest.id)
        assert latest(ck) == b"2"
        put(ck, b"3")
        runtime.run_sync(store.delete([object_paths.LATEST]))
        ck.repair(ck.repair_candidates()[0].id)
        assert latest(ck) == b"3"


def test_savepoints_are_copied_too(world: World, caplog: Any) -> None:
    client = world.actor()
    ids = [fill(client, number, many=False) for number in range(4)]
    for name, known in (("a", ids[0]), ("b", ids[1]), ("lost", ids[2])):
        client.savepoint(name, known)
    client.delete_savepoint("a")
    made = {savepoint.name: savepoint for savepoint in client.savepoints()}
    wanted = {known: everything(world.actor().restore(known)) for known in ids}
    spoil(world, own_of(world, ids[2], "artifacts/own/"))
    missing(world)
    before = world.objects()
    with pytest.raises(CorruptionError, match="savepoint 'lost' is damaged: choose another candidate"):
        world.actor().repair(ids[3])
    assert world.actor().repair_plan(ids[3]).savepoints == ("lost",)
    assert world.objects() == before
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        repairer = world.actor()
        new = repairer.repair(ids[3], accept_loss=True)
    assert "savepoint 'lost'" in caplog.text
    puts = repairer.faults.paths("put")
    assert len(puts) == len(set(puts))
    actor = world.actor()
    assert everything(actor.restore()) == wanted[ids[3]]
    assert everything(actor.restore(savepoint="b")) == wanted[ids[1]]
    # Which of the catalogs of one sequence was the last is not known: rather one too many than one too few.
    assert everything(actor.restore(savepoint="a")) == wanted[ids[0]]
    assert [savepoint.name for savepoint in actor.savepoints()] == ["a", "b"]
    assert {s.created for s in actor.savepoints() if s.name == "b"} == {made["b"].created}
    assert actor.verify()
    assert len(actor.list_checkpoints()) == 3
    assert actor.list_checkpoints()[-1] == new
    actor.clean()
    assert min(sequences(world)) > 4  # a copy needs nothing of what it was made of
    assert everything(world.actor().restore(savepoint="b")) == wanted[ids[1]]
    assert everything(world.actor().restore()) == wanted[ids[3]]
    actor.delete_savepoint("b")
    actor.savepoint("b")


def test_savepoints_that_later_catalogs_do_not_have_stay_deleted(world: World) -> None:
    client = world.actor()
    put(client, b"1")
    client.savepoint("gone")
    put(client, b"2")
    client.savepoint("kept")
    client.delete_savepoint("gone")
    last = put(client, b"3")
    client.savepoint("newest")
    missing(world)
    world.actor().repair(last)
    assert [savepoint.name for savepoint in world.actor().savepoints()] == ["kept", "newest"]


def test_writes_that_may_still_end_are_below_it_too(folder: World) -> None:
    ids = line(folder.actor(), 2)
    unfinished = Path(folder.store.url) / "manifests" / ".0000000090-0badcafe.json.0123456789abcdef.tmp"
    unfinished.write_bytes(b"")
    missing(folder)
    assert folder.actor().repair(ids[1]).sequence == 91


def test_who_may_not_list_broken_writes_still_repairs(world: World) -> None:
    client = world.actor()
    ids = line(client, 3)
    missing(world)
    client.faults.fail("leftovers", times=9, error=StoreRefusedError)
    assert [found.id for found in client.repair_candidates()] == ids[::-1]
    assert client.repair(ids[1]).sequence == ids[-1].sequence + 2, "an attempt that nobody sees may have one more"


def test_a_savepoint_can_be_repaired_to(world: World) -> None:
    client = world.actor()
    ids = line(client, 3)
    client.savepoint("s", ids[0])
    missing(world)
    (chosen,) = [candidate for candidate in world.actor().repair_candidates() if candidate.savepoints == ("s",)]
    world.actor().repair(chosen.id)
    assert latest(world.actor()) == b"1"
    assert got(world.actor().restore(savepoint="s")) == b"1"


def test_awaitable(world: World) -> None:
    line(world.actor(), 2)
    missing(world)

    async def repair() -> list[Candidate]:
        async with AsyncCheckpointer(world.store.url) as ck:
            found = await ck.repair_candidates()
            await ck.repair(found[0].id)
            return found

    assert len(asyncio.run(repair())) == 2
    assert latest(world.actor()) == b"2"


def test_damage_that_only_reading_shows_stops_it_before_the_swap(world: World) -> None:
    ids = line(world.actor(), 2)
    spoil(world, own(world, ids[1]))
    missing(world)
    assert world.actor().repair_candidates()[0].problems == ()
    with pytest.raises(CorruptionError, match="expected SHA-256"):
        world.actor().repair(ids[1])
    assert object_paths.LATEST not in world.objects()
    world.actor().repair(ids[0])
    assert latest(world.actor()) == b"1"


# ---- a repair that does not end --------------------------------------------------------------------------------------


def with_old_savepoints(world: World) -> list[CheckpointId]:
    """Commit checkpoints, of which the oldest ones are savepoints."""
    client = world.actor()
    ids = [fill(client, number, many=False) for number in range(5)]
    client.savepoint("a", ids[0])
    client.savepoint("b", ids[1])
    return ids


def killed(world: World, chosen: CheckpointId, nth: int = 1, path: str = "") -> None:
    """Begin a repair in a process that dies at its nth PUT of a path."""
    client = world.actor(retries=False)

    def die(request: object) -> None:
        client.faults.dead = True
        raise CrashError(f"died at {request}")

    client.faults.call(die, "put", nth, path=path)
    with pytest.raises(CrashError):
        client.repair(chosen)


def puts_of_repair(loss: Callable[[World], None]) -> int:
    """Count the PUTs of a whole repair."""
    world = World()
    ids = with_old_savepoints(world)
    loss(world)
    client = world.actor()
    client.repair(ids[-1])
    return client.faults.counts["put"]


@pytest.mark.parametrize("loss", [missing, cut])
def test_wherever_a_repair_is_killed_the_newest_stays_the_best_candidate(loss: Callable[[World], None]) -> None:
    for nth in range(1, puts_of_repair(loss) + 1):
        world = World()
        ids = with_old_savepoints(world)
        loss(world)
        killed(world, ids[-1], nth)
        found = world.actor().repair_candidates()
        assert found[0].id == ids[-1], nth
        left = [candidate for candidate in found if candidate.id not in ids]
        assert all("a repair that may not have ended" in str(candidate) for candidate in left)
        world.actor().repair("latest" if loss is cut else ids[-1])
        assert world.actor().restore().epoch == 4
        assert [savepoint.name for savepoint in world.actor().savepoints()] == ["a", "b"]


@pytest.mark.parametrize("size", [SWAP_LIMIT + 1, 64 << 20])
def test_a_pointer_that_is_too_large_to_be_read_is_moved_away_first(tmp_path: Path, size: int) -> None:
    client = Checkpointer(tmp_path)
    client.begin(epoch=0).commit()
    ids = [candidate.id for candidate in client.repair_candidates()]
    with (tmp_path / object_paths.LATEST).open("wb") as file:
        file.truncate(size)
    for use in (client.repair_candidates, lambda: client.repair(ids[0])):
        with pytest.raises(CorruptionError, match=r"_latest: expected at most .*move `_latest` away, and call this"):
            use()
    (tmp_path / object_paths.LATEST).unlink()
    client.repair(ids[0])
    assert Checkpointer(tmp_path).restore().epoch == 0  # type: ignore[union-attr]


def test_a_root_that_is_sound_again_needs_no_repair(world: World) -> None:
    ids = with_old_savepoints(world)
    path = world.pointer().catalog.path
    catalog = world.read(path)
    world.delete(path)
    killed(world, ids[-1], path=object_paths.CATALOGS)
    assert len(world.objects(object_paths.MANIFESTS)) > 5
    runtime.run_sync(world.store.put(path, catalog))
    assert world.actor().verify()
    with pytest.raises(InvalidStateError, match="nothing to repair"):
        world.actor().repair(ids[0])


def test_a_copy_that_was_built_upon_is_a_candidate_like_any_other(world: World) -> None:
    ids = line(world.actor(), 3)
    missing(world)
    copied = world.actor().repair(ids[1])
    last = put(world.actor(), b"4")
    missing(world)
    found = world.actor().repair_candidates()
    assert [candidate.id for candidate in found[:2]] == [last, copied]
    assert "may not have ended" not in str(found[1])


def test_a_root_with_nothing_but_a_copy_is_no_new_root(world: World) -> None:
    ids = line(world.actor(), 3)
    missing(world)
    world.actor().repair(ids[1])
    world.actor().clean()
    missing(world)
    with pytest.raises(InvalidStateError, match="was lost"):
        world.actor().restore()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("path", ["artifacts/", object_paths.MANIFESTS, object_paths.CATALOGS, object_paths.LATEST])
def test_a_repair_that_fails_leaves_nothing_behind(world: World, loss: Callable[[World], None], path: str) -> None:
    ids = with_old_savepoints(world)
    loss(world)
    before = world.objects()
    kind = "swap" if path == object_paths.LATEST else "put"
    for after in (False, kind == "put"):
        client = world.actor(retries=False)
        client.faults.fail(kind, path=path, after=after, times=99, error=StoreRefusedError)
        with pytest.raises(StoreRefusedError):
            client.repair(ids[-1])
        assert world.objects() == before
    world.actor().repair(ids[-1])


@pytest.mark.parametrize("path", [object_paths.CATALOGS, object_paths.MANIFESTS, object_paths.ARTIFACTS])
def test_a_repair_that_is_killed_while_it_gives_up_leaves_no_savepoint_without_objects(world: World, path: str) -> None:
    ids = with_old_savepoints(world)
    missing(world)
    client = world.actor(retries=False)
    client.faults.fail("swap", path=object_paths.LATEST, times=99, error=StoreRefusedError)

    async def die(request: Any, send: Any) -> None:
        paths = request.path.split()  # a store may delete one after the other
        await world.store.delete(paths[: len(paths) // 2])
        client.faults.dead = True
        raise CrashError(f"died within {request}")

    client.faults.apply(die, "delete", path=path)
    with pytest.raises(CrashError):
        client.repair(ids[-1])
    world.actor().repair(ids[-1])
    assert {one.name for one in world.actor().savepoints()} == {"a", "b"}
    assert world.actor().verify()


def test_a_repair_that_is_cancelled_leaves_nothing_behind(world: World) -> None:
    ids = with_old_savepoints(world)
    missing(world)
    before = world.objects()
    client = world.actor(retries=False)

    async def cancel(request: Any, send: Any) -> Any:
        raise asyncio.CancelledError

    client.faults.apply(cancel, "put", path=object_paths.MANIFESTS, nth=2)
    with pytest.raises(CancelledError):
        client.repair(ids[-1])
    assert world.objects() == before


def test_a_repair_that_may_have_taken_effect_keeps_what_it_wrote(world: World) -> None:
    ids = with_old_savepoints(world)
    missing(world)
    client = world.actor(retries=False)
    client.faults.fail("swap", path=object_paths.LATEST, after=True, times=99, error=StoreRefusedError)
    with suppress(CheckpointError):
        client.repair(ids[-1])
    assert world.actor().restore().epoch == 4
    assert world.actor().verify()


@pytest.mark.parametrize("sequence", [9_999_999_999, 9_999_999_990])
def test_an_object_that_leaves_no_ids_for_a_repair_is_named(world: World, sequence: int) -> None:
    """No job gets so far. What a person has to delete is told before anything is written."""
    ids = line(world.actor(), 2)
    missing(world)
    planted = f"artifacts/op/0/{sequence}-aaaaaaaa.snapshot.{'0' * 64}.raw"
    runtime.run_sync(world.store.put(planted, b""))
    before = world.objects()
    for verb in (lambda c: c.repair_plan(ids[1]), lambda c: c.repair(ids[1])):
        with pytest.raises(InvalidStateError, match=f"{planted}.* keep a copy of it, delete it, and repair then"):
            verb(world.actor())
    assert world.objects() == before
    world.delete(planted)
    world.actor().repair(ids[1])
    assert latest(world.actor()) == b"2"


# ---- where `_latest` is there ----------------------------------------------------------------------------------------


def test_a_sound_root_is_not_repaired(world: World) -> None:
    ids = line(world.actor(), 3)
    before = world.latest()
    with pytest.raises(InvalidStateError, match="rollback"):
        world.actor().repair(ids[0])
    assert world.actor().repair_candidates()[0].committed
    spoil(world, own(world, ids[2]))  # what restore(on_corruption="previous") is for
    with pytest.raises(InvalidStateError, match=str(ids[1])):
        world.actor().repair(ids[0])
    assert world.latest() == before


@pytest.mark.parametrize("damage", [spoil, World.delete])
@pytest.mark.parametrize("which", [2, 1])
def test_where_the_chain_is_broken_it_begins_anew(world: World, damage: Any, which: int) -> None:
    client = world.actor()
    ids = line(client, 3)
    client.savepoint("s", ids[0])
    damage(world, object_paths.manifest(ids[which]))
    with pytest.raises(CorruptionError):
        world.actor().list_checkpoints()
    writer = world.pointer().writer
    new = world.actor().repair(ids[0])
    assert latest(world.actor()) == b"1"
    assert world.actor().list_checkpoints() == [ids[0], new]  # the catalog could be read
    assert got(world.actor().restore(savepoint="s")) == b"1"
    assert world.pointer().writer.epoch > writer.epoch
    assert world.pointer().boundary == new.sequence
    put(world.actor(), b"4")
    assert world.actor().verify()


def test_where_the_catalog_is_damaged_its_remains_are_copied(world: World) -> None:
    client = world.actor()
    ids = line(client, 2)
    client.savepoint("s", ids[0])
    client.savepoint("t", ids[0])
    spoil(world, world.pointer().catalog.path)
    new = world.actor().repair(ids[1])
    assert latest(world.actor()) == b"2"
    assert [savepoint.name for savepoint in world.actor().savepoints()] == ["s"]
    assert world.actor().list_checkpoints()[-1] == new


def test_where_nothing_live_is_intact_what_is_not_live_can_be_chosen(world: World) -> None:
    client = world.actor()
    ids = line(client, 3)
    saved = dict(objects_of(world))
    client.delete_checkpoint(ids[0])
    objects_of(world).update({path: saved[path] for path in saved if path != object_paths.LATEST})  # not swept yet
    for known in ids[1:]:
        spoil(world, own(world, known))
    with pytest.raises(CorruptionError, match="repair_candidates"):
        world.actor().restore(on_corruption="previous")
    world.actor().repair(ids[0])
    assert latest(world.actor()) == b"1"


# ---- others meanwhile ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
def test_a_writer_from_before_can_neither_commit_nor_undo_it(folder: World, loss: Callable[[World], None]) -> None:
    zombie = folder.actor()
    ids = line(zombie, 2)
    running = attempt(zombie, b"3, of a zombie")
    late = zombie.faults.late(times=100)
    other = attempt(zombie, b"another 3")
    with pytest.raises(OutcomeUnknownError):
        other.commit()
    loss(folder)
    folder.actor().repair(ids[0])
    before = folder.latest()
    assert not any(swap.land() for swap in late)
    with pytest.raises(CheckpointError):
        running.commit()
    assert folder.latest() == before
    assert latest(folder.actor()) == b"1"
    zombie.restore()


def test_of_two_repairs_one_wins(world: World) -> None:
    ids = line(world.actor(), 2)
    for loss in (missing, flipped):
        loss(world)
        one = world.actor()
        one.faults.call(lambda _: world.actor().repair(ids[0]), "swap", path=object_paths.LATEST)
        with pytest.raises(OutcomeUnknownError):  # the other one could have buried it
            one.repair(ids[1])
        assert latest(world.actor()) == b"1"
        one.restore()
        assert latest(one) == b"1"


def test_another_candidate_is_chosen_after_the_wrong_one_once_the_pointer_is_deleted(world: World) -> None:
    client = world.actor()
    ids = line(client, 3)
    client.savepoint("s", ids[0])
    missing(world)
    world.actor().repair(ids[1])
    with pytest.raises(InvalidStateError, match="nothing to repair"):
        world.actor().repair(ids[2])
    missing(world)
    world.actor().repair(ids[2])
    assert latest(world.actor()) == b"3"
    assert got(world.actor().restore(savepoint="s")) == b"1"


def test_what_became_of_the_catalog_meanwhile_counts(world: World) -> None:
    client = world.actor()
    ids = line(client, 3)
    client.savepoint("s", ids[0])
    spoil(world, object_paths.manifest(ids[1]))
    pointer = world.latest()
    one = world.actor()

    def moves(_: object) -> None:
        """Replace the catalog as deleting a savepoint would, where the history can be read."""
        replace_latest(world, encode_pointer(replace(decode_pointer(pointer), nonce="other", catalog=None)))

    one.faults.call(moves, "swap", path=object_paths.LATEST)
    one.repair(ids[0])
    assert world.pointer().catalog is None
    assert latest(world.actor()) == b"1"


# ---- an old copy ----------------------------------------------------------------------------------------------------


def test_an_old_copy_of_the_pointer_is_found_and_repaired(world: World) -> None:
    client = world.actor()
    line(client, 3)
    old = world.latest()
    ids = line(client, 3)
    world.delete("_latest")
    runtime.run_sync(world.store.compare_and_swap("_latest", old, None))
    operator = world.actor()
    (finding,) = operator.verify().findings
    assert (finding.path, finding.checkpoints) == ("_latest", ())
    assert str(ids[-1]) in finding.problem
    new = operator.repair(ids[-1])
    assert new.sequence == 7
    assert latest(world.actor()) == b"3"
    assert world.actor().verify()


@pytest.mark.parametrize("had_catalog", [False, True])
def test_savepoints_that_an_old_copy_of_the_pointer_does_not_know_are_kept(world: World, had_catalog: bool) -> None:
    client = world.actor()
    line(client, 3)
    if had_catalog:
        client.savepoint("deleted since")
    old = world.latest()
    put(client, b"4")
    if had_catalog:
        client.delete_savepoint("deleted since")
    client.savepoint("since")
    ids = [put(client, b"5"), put(client, b"6")]
    world.delete("_latest")
    runtime.run_sync(world.store.compare_and_swap("_latest", old, None))
    world.actor().repair(ids[-1])
    actor = world.actor()
    assert [savepoint.name for savepoint in actor.savepoints()] == ["since"]
    actor.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    assert contents(world.actor().restore(savepoint="since")) == {"op": {0: [b"4"]}}


def test_attempts_at_the_next_sequence_are_no_sign_of_an_old_pointer(world: World) -> None:
    client = world.actor()
    line(client, 3)
    attempt(client, b"given up").prepare().abort()
    assert world.actor().verify()
    with pytest.raises(InvalidStateError, match="nothing to repair"):
        world.actor().repair(client.list_checkpoints()[-1])


NEWEST = RetentionPolicy(keep_last=1, grace=timedelta(0))


def put_back(world: World, old: bytes) -> None:
    """Put an old copy of `_latest` in its place."""
    world.delete("_latest")
    runtime.run_sync(world.store.compare_and_swap("_latest", old, None))


@pytest.mark.parametrize(
    "verb",
    [
        lambda client, ids, plan: client.rollback(ids[0]),
        lambda client, ids, plan: client.delete_checkpoint(ids[0]),
        lambda client, ids, plan: client.clean(NEWEST),
        lambda client, ids, plan: client.clean(),
        lambda client, ids, plan: client.plan(),
        lambda client, ids, plan: client.apply(plan),
    ],
    ids=["rollback", "delete", "clean with a policy", "clean", "plan", "apply"],
)
def test_what_deletes_or_buries_is_refused_on_an_old_copy(
    world: World, verb: Callable[[Checkpointer, list[CheckpointId], CleanupPlan], object]
) -> None:
    client = world.actor()
    ids = line(client, 3)
    old, plan = world.latest(), client.plan(NEWEST)
    newer = line(client, 3)
    client.savepoint("since", ids[1])
    put_back(world, old)
    before = world.objects()
    with pytest.raises(InvalidStateError, match=f"old copy.*{newer[-1]}.*checkpointer repair"):
        verb(world.actor(), ids, plan)
    assert (world.objects(), world.latest()) == (before, old)
    world.actor().repair(newer[-1])
    assert [savepoint.name for savepoint in world.actor().savepoints()] == ["since"]
    assert latest(world.actor()) == b"3"
    world.actor().clean()


def test_a_saved_plan_is_refused_on_an_older_copy(world: World, tmp_path: Path) -> None:
    client = world.actor()
    ids = line(client, 3)
    old = world.latest()
    ids.append(put(client, b"4"))
    client.plan(RetentionPolicy(keep_last=2, grace=timedelta(0))).save(tmp_path / "plan")
    client.savepoint("since", ids[1])
    newest = line(client, 3)[-1]
    put_back(world, old)
    before = world.objects()
    operator = world.actor()
    with pytest.raises(InvalidStateError, match=f"old copy.*{newest}"):
        operator.apply(operator.load_plan(tmp_path / "plan"))
    assert (world.objects(), world.latest()) == (before, old)


@pytest.mark.parametrize("ends", ["crash", "abort", "prepare", "zombie", "repair"])
def test_what_attempts_and_repairs_leave_is_no_old_copy(world: World, ends: str) -> None:
    client = world.actor()
    ids = line(client, 3)
    zombies = [world.actor() for _ in range(3)]
    attempts = [attempt(zombie, b"lost") for zombie in zombies]
    for one in attempts:
        if ends == "abort":
            attempt(world.actor(), b"given up").prepare().abort()
        elif ends == "zombie":
            runtime.run_sync(commit._write(one.attempt))
            put(world.actor(), b"4")
        elif ends == "crash":
            runtime.run_sync(commit._write(one.attempt))
    if ends == "prepare":
        attempts[0].prepare()
    if ends == "repair":
        path = savepoint_catalog(world)
        data = world.read(path)
        world.delete(path)
        killed(world, ids[-1], path=object_paths.CATALOGS)
        runtime.run_sync(world.store.put(path, data))
    world.actor().delete_checkpoint(ids[1])
    world.actor().clean()
    assert world.actor().plan() is not None
    world.actor().rollback(ids[0])
    assert world.actor().verify()


def savepoint_catalog(world: World) -> str:
    """Make savepoints, and return the path of their catalog."""
    client = world.actor()
    oldest = client.list_checkpoints()[0]
    for name in ("a", "b"):
        client.savepoint(name, oldest)
    catalog = world.pointer().catalog
    assert catalog is not None
    return catalog.path


def test_commits_meanwhile_are_no_old_copy(world: World) -> None:
    client = world.actor()
    ids = line(client, 3)
    for verb in (lambda c: c.delete_checkpoint(ids[0]), lambda c: c.clean(), lambda c: c.plan()):
        other = world.actor()
        other.faults.call(lambda _: line(world.actor(), 3), "list")
        verb(other)
    other = world.actor()
    other.faults.call(lambda _: line(world.actor(), 3), "list")
    with suppress(CheckpointError):
        other.rollback(ids[2])
    assert world.actor().verify()


def test_a_repair_does_not_drop_what_its_client_prepared_since_the_call(world: World) -> None:
    """Its caller may have given it up, and another system may have committed in trust of what was prepared."""
    client = world.actor()
    (first,) = line(client, 1)
    spoil(world, own_of(world, first, "artifacts/op/"))
    prepared: list[Any] = []
    client.faults.call(lambda _: prepared.append(attempt(client, b"2").prepare()), "get", path="artifacts/")
    with pytest.raises(InvalidStateError, match="another call of this client"):
        client.repair(first, accept_loss=True)
    prepared[0].commit()
    assert latest(world.actor()) == b"2"
