"""Savepoints, deleting, going back: what is live, what each operation plans again, and what a reader may see."""

from dataclasses import replace

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.checkpoint.metadata import read_catalog
from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptionError,
    FencedError,
    IllegalArgumentError,
    InvalidStateError,
    MalformedError,
    RetiredError,
    SavepointNotFoundError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Catalog, CheckpointId, Manifest, Ref
from tests.world import Actor, World, attempt, contents, got, latest, line, put


def catalog_of(world: World) -> Catalog:
    catalog = runtime.run_sync(read_catalog(world.store, world.pointer().catalog))
    assert catalog is not None
    return catalog


# ---- what is live ----------------------------------------------------------------------------------------------------


@pytest.fixture
def abandoned(world: World) -> CheckpointId:
    """An attempt whose manifest stands at a good sequence and which was never committed: 1, 2, (this), 3."""
    writer, other = world.actor(), world.actor()
    line(writer, 1)
    running = attempt(writer, b"abandoned")
    put(other, b"2")
    with pytest.raises(FencedError):
        running.commit()
    put(other, b"3")
    assert object_paths.manifest(running.id) in world.objects()
    return running.id


def test_an_abandoned_attempt_is_not_listed(world: World, abandoned: CheckpointId) -> None:
    assert abandoned not in world.actor().list_checkpoints()
    assert len(world.actor().list_checkpoints()) == 3


@pytest.mark.parametrize("verb", ["restore", "savepoint", "rollback", "delete_checkpoint", "update_latest"])
def test_an_abandoned_attempt_is_no_checkpoint(world: World, abandoned: CheckpointId, verb: str) -> None:
    verbs = {
        "restore": lambda client: client.restore(abandoned),
        "savepoint": lambda client: client.savepoint("s", abandoned),
        "rollback": lambda client: client.rollback(abandoned),
        "delete_checkpoint": lambda client: client.delete_checkpoint(abandoned),
        "update_latest": lambda client: client.update_latest(abandoned),
    }
    before = world.latest()
    with pytest.raises(CheckpointNotFoundError):
        verbs[verb](world.actor())
    assert world.latest() == before
    assert object_paths.manifest(abandoned) in world.objects()


def test_an_abandoned_attempt_on_a_long_line_is_not_listed(world: World, abandoned: CheckpointId) -> None:
    other = world.actor()
    for number in range(4, 10):
        put(other, str(number).encode())  # long enough that the history is listed and not walked
    listed = world.actor().list_checkpoints()
    assert [checkpoint.sequence for checkpoint in listed] == list(range(1, 10))
    assert abandoned not in listed
    with pytest.raises(CheckpointNotFoundError):
        world.actor().restore(abandoned)


def test_a_prepared_checkpoint_is_protected_and_not_listed(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    prepared = attempt(writer, b"2").prepare()
    reader = world.actor()
    assert len(reader.list_checkpoints()) == 1
    with pytest.raises(CheckpointNotFoundError):
        reader.restore(prepared.id)
    with pytest.raises(CheckpointNotFoundError):
        reader.savepoint("s", prepared.id)
    with pytest.raises(InvalidStateError, match="prepared"):
        reader.delete_checkpoint(prepared.id)
    with pytest.raises(CheckpointNotFoundError):
        reader.rollback(prepared.id)


def test_a_dropped_prepare_is_no_checkpoint(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    prepared = attempt(writer, b"2").prepare()
    prepared.abort()
    with pytest.raises(CheckpointNotFoundError):
        world.actor().restore(prepared.id)


# ---- manifests -------------------------------------------------------------------------------------------------------


def test_a_manifest_is_created_only_if_absent(world: World) -> None:
    writer = world.actor()
    writer.restore()
    checkpoint = writer.new_id()
    manifest = Manifest(checkpoint, properties={"n": 1}, created=writer.session.host.now())
    writer.save_manifest(manifest)
    writer.save_manifest(manifest)  # the same bytes are no error
    with pytest.raises(MalformedError, match="used before"):
        writer.save_manifest(Manifest(checkpoint, properties={"n": 2}, created=manifest.created))
    writer.update_latest(checkpoint)
    assert world.actor().restore().properties == {"n": 1}


def test_a_manifest_whose_answer_was_lost_is_sent_again_as_it_was(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    writer.faults.forget()
    writer.faults.drop_answer("put", path="manifests/")
    put(writer, b"2")
    assert latest(world.actor()) == b"2"
    assert len(writer.faults.paths("put")) == 3
    assert len({r.size for r in writer.faults.requests if r.kind == "put" and r.path.startswith("manifests/")}) == 1


def test_every_object_of_an_attempt_carries_its_id_and_every_attempt_another(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    before = world.objects()
    ids = []
    for _ in range(3):
        running = attempt(writer, b"2")
        running.snapshot("more", 0, b"x" * (2 << 20))
        for partition in range(600):
            running.snapshot("many", partition, b"%d" % partition)
        ids.append(running.id)
        running.prepare().abort()
    assert len(set(ids)) == 3
    assert {object_paths.owner(path) for path in world.objects() - before} == set(ids)


# ---- catalogs --------------------------------------------------------------------------------------------------------


def test_a_catalog_is_written_under_a_new_id_above_the_committed_one(world: World) -> None:
    writer = world.actor()
    ids = line(writer, 3)
    writer.savepoint("old", ids[0])
    catalog = catalog_of(world)
    assert catalog.id.sequence == 4
    assert catalog.id not in ids
    writer.savepoint("older", ids[0])
    assert catalog_of(world).id.sequence == 4
    assert catalog_of(world).id != catalog.id


def test_a_savepoint_planned_again_writes_its_catalog_under_yet_another_id(world: World) -> None:
    writer, other = world.actor(), world.actor()
    ids = line(writer, 2)
    # The same content both times: only the committed checkpoint moves between the two plans.
    other.faults.call(lambda _: put(writer, b"3"), "swap")
    other.savepoint("s", ids[0])
    catalogs = {object_paths.owner(path) for path in world.objects("catalog/")}
    assert len(catalogs) == 2
    assert catalog_of(world).id.sequence == 4


# ---- plans are made again, wholly ------------------------------------------------------------------------------------


def test_two_savepoints_at_once_are_both_kept(world: World) -> None:
    writer, other = world.actor(), world.actor()
    ids = line(writer, 2)
    other.faults.call(lambda _: writer.savepoint("a", ids[0]), "swap")
    other.savepoint("b", ids[1])
    assert [(s.name, s.id) for s in world.actor().savepoints()] == [("a", ids[0]), ("b", ids[1])]


def test_a_savepoint_whose_answer_was_lost_is_made_once(world: World) -> None:
    writer = world.actor()
    (first,) = line(writer, 1)
    writer.faults.drop_answer()
    writer.faults.call(lambda _: world.actor().savepoint("other"), "get", path="_latest", nth=2)
    assert writer.savepoint("s").id == first
    assert [s.name for s in world.actor().savepoints()] == ["other", "s"]


def test_a_savepoint_keeps_what_was_committed_when_it_was_asked_for(world: World) -> None:
    writer, other = world.actor(), world.actor()
    (first,) = line(writer, 1)
    other.faults.call(lambda _: put(writer, b"2"), "swap")
    assert other.savepoint("s").id == first
    assert got(world.actor().restore(savepoint="s")) == b"1"


def test_a_savepoint_of_what_was_deleted_meanwhile_is_refused(world: World) -> None:
    writer, other = world.actor(), world.actor()
    ids = line(writer, 2)
    other.faults.call(lambda _: writer.delete_checkpoint(ids[0]), "swap")
    with pytest.raises(RetiredError):
        other.savepoint("s", ids[0])
    assert world.actor().savepoints() == []
    assert world.actor().list_checkpoints() == ids[1:]


def test_a_name_taken_meanwhile_is_refused(world: World) -> None:
    writer, other = world.actor(), world.actor()
    ids = line(writer, 2)
    other.faults.call(lambda _: writer.savepoint("s", ids[0]), "swap")
    with pytest.raises(IllegalArgumentError, match="taken"):
        other.savepoint("s", ids[1])
    assert [(s.name, s.id) for s in world.actor().savepoints()] == [("s", ids[0])]


def test_a_delete_planned_again_keeps_a_savepoint_made_meanwhile(world: World) -> None:
    writer, other = world.actor(), world.actor()
    ids = line(writer, 4)
    other.faults.call(lambda _: writer.savepoint("s", ids[0]), "swap")
    other.delete_checkpoint(ids[1])
    assert [(s.name, s.id) for s in world.actor().savepoints()] == [("s", ids[0])]
    assert sorted(world.contents()) == [ids[0], *ids[2:]]


def test_a_delete_is_refused_where_a_savepoint_took_the_checkpoint_meanwhile(world: World) -> None:
    writer, other = world.actor(), world.actor()
    ids = line(writer, 3)
    other.faults.call(lambda _: writer.savepoint("s", ids[1]), "swap")
    with pytest.raises(InvalidStateError, match="savepoint"):
        other.delete_checkpoint(ids[1])
    assert sorted(world.contents()) == ids


def test_a_delete_is_refused_where_the_rollback_made_it_the_committed_one_again(world: World) -> None:
    writer, other = world.actor(), world.actor()
    ids = line(writer, 2)
    other.faults.call(lambda _: writer.rollback(ids[0]), "swap")
    other.delete_checkpoint(ids[0])  # the rollback is a new checkpoint: the old one may go, its objects stay
    assert latest(world.actor()) == b"1"
    assert ids[0] not in world.contents()


@pytest.mark.parametrize(("first", "second"), [(1, 3), (3, 1), (1, 1)])
def test_the_boundary_never_moves_back(world: World, first: int, second: int) -> None:
    writer, other = world.actor(), world.actor()
    ids = line(writer, 5)
    other.faults.call(lambda _: writer.delete_checkpoint(ids[first]), "swap")
    other.delete_checkpoint(ids[second])
    assert world.pointer().boundary == max(first, second) + 2
    gone = {ids[first], ids[second]}
    assert sorted(world.contents()) == [checkpoint for checkpoint in ids if checkpoint not in gone]
    assert not {object_paths.manifest(checkpoint) for checkpoint in gone} & world.objects()


def test_delete_savepoint_takes_the_entry_it_saw_and_not_a_new_one_of_that_name(world: World) -> None:
    writer, other = world.actor(), world.actor()
    ids = line(writer, 2)
    writer.savepoint("s", ids[0])

    def renewed(_: object) -> None:
        writer.delete_savepoint("s")
        writer.savepoint("s", ids[1])

    other.faults.call(renewed, "swap")
    other.delete_savepoint("s")
    assert [(s.name, s.id) for s in world.actor().savepoints()] == [("s", ids[1])]


def test_delete_savepoint_keeps_a_savepoint_made_meanwhile(world: World) -> None:
    writer, other = world.actor(), world.actor()
    ids = line(writer, 2)
    writer.savepoint("s", ids[0])
    other.faults.call(lambda _: writer.savepoint("t", ids[1]), "swap")
    other.delete_savepoint("s")
    assert [s.name for s in world.actor().savepoints()] == ["t"]
    with pytest.raises(SavepointNotFoundError):
        world.actor().delete_savepoint("s")


@pytest.mark.parametrize("to", [None, 5, b"s"])
def test_a_rollback_to_nothing_is_refused(world: World, to: object) -> None:
    client = world.actor()
    line(client, 2)
    before = world.latest()
    with pytest.raises(IllegalArgumentError):
        client.rollback(to)  # type: ignore[arg-type]
    assert world.latest() == before


def test_a_savepoint_cannot_have_the_name_of_a_checkpoint(world: World) -> None:
    client = world.actor()
    ids = line(client, 2)
    for name in (str(ids[0]), "0000000099-ffffffff"):
        with pytest.raises(IllegalArgumentError, match="reads like the id"):
            client.savepoint(name)


def test_a_rollback_to_what_was_deleted_meanwhile_is_refused(world: World) -> None:
    writer = world.actor()
    ids = line(writer, 3)
    writer.faults.call(lambda _: world.actor().delete_checkpoint(ids[0]), "swap")
    with pytest.raises(RetiredError):
        writer.rollback(ids[0])
    assert latest(world.actor()) == b"3"


def test_update_latest_again_is_no_success_once_more_was_committed_on_top(world: World) -> None:
    writer, other = world.actor(), world.actor()
    line(writer, 1)
    checkpoint = put(writer, b"2")
    assert writer.update_latest(checkpoint) == checkpoint
    other.restore()
    put(other, b"3")
    with pytest.raises(ConflictError):
        writer.update_latest(checkpoint)
    assert latest(world.actor()) == b"3"


def test_a_rollback_to_what_was_committed_since_the_restore_is_refused(world: World) -> None:
    reader, writer = world.actor(), world.actor()
    line(writer, 1)
    reader.restore()
    second = put(writer, b"2")
    with pytest.raises(ConflictError, match=rf"{second} was committed since .*restore\(\) first"):
        reader.rollback(second)
    reader.restore()
    reader.rollback(second)
    assert latest(world.actor()) == b"2"


def test_a_rollback_to_what_was_swept_while_it_was_read_is_refused(world: World) -> None:
    writer = world.actor()
    ids = line(writer, 3)
    manifest = object_paths.manifest(ids[0])
    writer.faults.call(lambda _: world.actor().delete_checkpoint(ids[0]), "get", path=manifest)
    with pytest.raises(CheckpointNotFoundError):
        writer.rollback(ids[0])
    assert latest(world.actor()) == b"3"


def test_a_rollback_is_a_new_checkpoint_on_top(world: World) -> None:
    writer = world.actor()
    ids = line(writer, 3)
    new = writer.rollback(ids[0])
    assert new.sequence == 4
    assert latest(writer) == b"1"
    assert world.actor().list_checkpoints() == [*ids, new]
    put(writer, b"5")
    assert writer.rollback(new).sequence == 6
    world.actor().savepoint("s", ids[1])
    writer.rollback("s")
    assert latest(world.actor()) == b"2"


# ---- deleting --------------------------------------------------------------------------------------------------------


def test_what_is_committed_prepared_or_a_savepoint_cannot_be_deleted(world: World) -> None:
    writer = world.actor()
    ids = line(writer, 3)
    writer.savepoint("s", ids[0])
    prepared = attempt(writer, b"4").prepare()
    before = world.objects()
    for checkpoint, why in ((ids[2], "committed"), (ids[0], "savepoint"), (prepared.id, "prepared")):
        with pytest.raises(InvalidStateError, match=why):
            world.actor().delete_checkpoint(checkpoint)
    assert world.objects() == before


def test_a_delete_sweeps_exactly_what_nothing_else_names(world: World) -> None:
    writer = world.actor()
    with writer.begin() as one:
        one.snapshot("shared", 0, b"shared")
        one.snapshot("big", 0, b"1" * (2 << 20))
        for partition in range(5):
            one.snapshot("packed", partition, b"first %d" % partition)
    with writer.begin() as two:
        two.snapshot("big", 0, b"2" * (2 << 20))
        two.snapshot("packed", 0, b"second")
        two.delta("shared", 0, b"more")
    with writer.begin() as three:
        three.snapshot("big", 0, b"3" * (2 << 20))
        three.snapshot("packed", 0, b"third")
    written = {
        cp.id: {path for path in world.objects() if object_paths.owner(path) == cp.id} for cp in (one, two, three)
    }

    writer.delete_checkpoint(two.id)
    left = world.objects()
    # The delta on "shared" is named by the third; the manifest, the big one and the lone partition only by the second.
    assert {path.split("/")[1] for path in written[two.id] & left} == {"shared"}
    assert written[one.id] <= left
    assert written[three.id] <= left

    writer.delete_checkpoint(one.id)
    left = world.objects()
    # One pack holds all five partitions; the third names four of them.
    assert sorted(path.split("/")[1] for path in written[one.id] & left) == ["packed", "shared"]
    found = contents(world.actor().restore())
    assert found["packed"] == {0: [b"third"], **{p: [b"first %d" % p] for p in range(1, 5)}}
    assert found["shared"] == {0: [b"shared", b"more"]}


def test_a_delete_leaves_alone_what_a_savepoint_or_a_prepared_checkpoint_names(world: World) -> None:
    writer = world.actor()
    with writer.begin() as cp:
        cp.snapshot("a", 0, b"a")
        cp.snapshot("b", 0, b"b")
    with writer.begin() as middle:
        middle.keep("a")
        middle.snapshot("b", 0, b"b2")
    writer.savepoint("s", cp.id)
    with writer.begin() as last:
        last.drop("a")  # from here on only the savepoint has it
        last.snapshot("op", 0, b"3")
    prepared = attempt(writer, b"4").prepare()
    world.actor().delete_checkpoint(middle.id)
    assert contents(world.actor().restore(savepoint="s")) == {"a": {0: [b"a"]}, "b": {0: [b"b"]}}
    prepared.commit()
    assert contents(world.actor().restore()) == {"b": {0: [b"b2"]}, "op": {0: [b"4"]}}


def test_objects_of_a_running_attempt_are_not_swept(world: World) -> None:
    writer = world.actor()
    ids = line(writer, 2)
    running = writer.begin()
    running.snapshot("big", 0, b"x" * (2 << 20))
    world.actor().delete_checkpoint(ids[0])
    running.commit()
    assert contents(world.actor().restore())["big"] == {0: [b"x" * (2 << 20)]}


def test_a_delete_that_two_ask_for_at_once_succeeds_for_both(world: World) -> None:
    one, two = world.actor(), world.actor()
    ids = line(world.actor(), 3)
    one.faults.call(lambda _: two.delete_checkpoint(ids[0]), "swap")
    one.delete_checkpoint(ids[0])
    assert sorted(world.contents()) == ids[1:]


def test_a_sweep_that_was_overtaken_by_another_is_no_error(world: World) -> None:
    one, two = world.actor(), world.actor()
    ids = line(world.actor(), 4)
    # Between the swap of the first and its sweep, another deletes the next one and sweeps.
    one.faults.call(lambda _: two.delete_checkpoint(ids[1]), "swap", after=True)
    one.delete_checkpoint(ids[0])
    assert sorted(world.contents()) == ids[2:]
    assert not {object_paths.manifest(checkpoint) for checkpoint in ids[:2]} & world.objects()


@pytest.mark.parametrize("verb", ["savepoint", "delete_checkpoint", "delete_savepoint", "list_checkpoints"])
def test_a_missing_catalog_is_damage_and_never_an_empty_one(world: World, verb: str) -> None:
    writer = world.actor()
    ids = line(writer, 6)
    writer.savepoint("s", ids[0])
    writer.delete_checkpoint(ids[2])
    path = world.pointer().catalog.path
    world.delete(path)
    before, pointer = world.objects(), world.latest()
    verbs = {
        "savepoint": lambda: world.actor().savepoint("t"),
        "delete_checkpoint": lambda: world.actor().delete_checkpoint(ids[4]),
        "delete_savepoint": lambda: world.actor().delete_savepoint("s"),
        "list_checkpoints": lambda: world.actor().list_checkpoints(),
    }
    with pytest.raises(CorruptionError, match=path):
        verbs[verb]()
    assert (world.objects(), world.latest()) == (before, pointer)


# ---- update_latest ---------------------------------------------------------------------------------------------------


def saved(client: Actor, **changes: object) -> CheckpointId:
    """A manifest on top of what was restored, saved and not committed."""
    checkpoint = client.new_id()
    fields = {"parent": client.session.restored.parent, **changes}
    client.save_manifest(Manifest(checkpoint, **fields))
    return checkpoint


def test_update_latest_commits_a_saved_manifest_on_the_restored_one(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    old = writer.restore().manifest
    checkpoint = saved(writer, operators=old.operators, properties={"by": "hand"})
    assert writer.read_latest() == old.id
    assert writer.update_latest(checkpoint) == checkpoint
    assert writer.update_latest(checkpoint) == checkpoint  # it is: nothing to do
    assert world.actor().restore().properties == {"by": "hand"}
    assert latest(world.actor()) == b"1"


def test_update_latest_refuses_a_manifest_that_is_not_there(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    with pytest.raises(CheckpointNotFoundError, match="save_manifest"):
        writer.update_latest(writer.new_id())


def test_update_latest_refuses_another_parent(world: World) -> None:
    writer = world.actor()
    line(writer, 2)
    parent = writer.restore().manifest.parent
    for changes in ({"parent": parent}, {"parent": None}, {"parent": Ref(writer.read_latest(), "0" * 64)}):
        checkpoint = saved(writer, **changes)
        with pytest.raises(InvalidStateError, match="parent"):
            writer.update_latest(checkpoint)
    assert latest(world.actor()) == b"2"


def test_update_latest_refuses_a_jump_in_the_sequence(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    far = CheckpointId(5, "00000000")
    writer.save_manifest(Manifest(far, parent=writer.session.restored.parent))
    with pytest.raises(InvalidStateError):
        writer.update_latest(far)


def test_update_latest_refuses_what_neither_the_parent_nor_the_attempt_wrote(world: World) -> None:
    writer = world.actor()
    with writer.begin() as cp:
        cp.snapshot("op", 0, b"first")
    first = writer.restore().manifest
    with writer.begin() as cp:
        cp.snapshot("op", 0, b"second")
    writer.restore()
    checkpoint = saved(writer, operators=first.operators)  # live, and yet not of the parent
    with pytest.raises(IllegalArgumentError, match="neither of the parent"):
        writer.update_latest(checkpoint)
    assert latest(world.actor()) == b"second"


def test_update_latest_refuses_an_attempt_that_died_before_all_it_names_was_written(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    old, checkpoint = writer.restore().manifest, writer.new_id()
    artifact = writer.save_snapshot(checkpoint, "op", 0, b"never there")
    operators = {"op": replace(old.operators["op"], chains={0: (artifact,)})}
    writer.save_manifest(Manifest(checkpoint, parent=writer.session.restored.parent, operators=operators))
    world.delete(artifact.path)
    with pytest.raises(InvalidStateError, match=artifact.path):
        writer.update_latest(checkpoint)
    assert latest(world.actor()) == b"1"


def test_update_latest_to_an_older_checkpoint_is_a_rollback(world: World) -> None:
    writer = world.actor()
    ids = line(writer, 3)
    new = writer.update_latest(ids[0])
    assert new.sequence == 4
    assert latest(world.actor()) == b"1"


def test_update_latest_refuses_a_damaged_manifest(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    checkpoint = saved(writer)
    path = object_paths.manifest(checkpoint)
    data = runtime.run_sync(world.store.get(path)).data
    world.delete(path)
    runtime.run_sync(world.store.put(path, data[:-10]))
    with pytest.raises(CorruptionError, match=path):
        writer.update_latest(checkpoint)
    assert latest(world.actor()) == b"1"


def test_update_latest_does_not_push_a_prepared_checkpoint_aside(world: World) -> None:
    writer = world.actor()
    line(writer, 1)
    checkpoint = saved(writer)
    prepared = attempt(writer, b"2").prepare()
    with pytest.raises(InvalidStateError, match="prepared"):
        writer.update_latest(checkpoint)
    prepared.commit()
    assert latest(world.actor()) == b"2"


# ---- readers ---------------------------------------------------------------------------------------------------------


def test_a_reader_whose_checkpoint_was_swept_starts_again_from_the_pointer(world: World) -> None:
    writer, reader = world.actor(), world.actor()
    (first,) = line(writer, 1)

    def moved(_: object) -> None:
        put(writer, b"2")
        writer.delete_checkpoint(first)

    reader.faults.call(moved, "get", path="manifests/")
    assert latest(reader) == b"2"
    put(reader, b"3")
    assert latest(world.actor()) == b"3"


def test_a_listing_whose_catalog_was_swept_starts_again_from_the_pointer(world: World) -> None:
    writer, reader = world.actor(), world.actor()
    ids = line(writer, 2)
    writer.savepoint("a", ids[0])
    old = world.pointer().catalog.path

    def moved(_: object) -> None:
        writer.savepoint("b", ids[1])
        world.delete(old)

    reader.faults.call(moved, "get", path="catalog/")
    assert [s.name for s in reader.savepoints()] == ["a", "b"]


def test_a_restored_checkpoint_that_was_retired_says_so(world: World) -> None:
    writer, reader = world.actor(), world.actor()
    (first,) = line(writer, 1)
    restored = reader.restore()
    put(writer, b"2")
    writer.delete_checkpoint(first)
    with pytest.raises(RetiredError, match="restore again"):
        got(restored)
    assert latest(reader) == b"2"


def test_a_live_checkpoint_that_misses_an_object_is_damaged(world: World) -> None:
    writer, reader = world.actor(), world.actor()
    line(writer, 1)
    restored = reader.restore()
    (path,) = world.objects("artifacts/")
    world.delete(path)
    with pytest.raises(CorruptionError, match=path):
        got(restored)


def test_a_prepared_checkpoint_decided_while_it_is_read_is_read_again(world: World) -> None:
    writer, reader = world.actor(), world.actor()
    line(writer, 1)
    prepared = attempt(writer, b"2").prepare()

    def swept(_: object) -> None:
        prepared.abort()
        world.delete(object_paths.manifest(prepared.id))

    reader.faults.call(swept, "get", path=object_paths.manifest(prepared.id))
    restored = reader.restore()
    assert got(restored) == b"1"
    assert restored.prepared is None


def test_a_missing_prepared_manifest_is_damage(world: World) -> None:
    prepared = attempt(world.actor(), b"1").prepare()
    world.delete(object_paths.manifest(prepared.id))
    with pytest.raises(CorruptionError, match=str(prepared.id)):
        world.actor().restore()


def test_restoring_an_old_checkpoint_does_not_make_it_the_one_to_write_on(world: World) -> None:
    writer = world.actor()
    ids = line(writer, 3)
    assert got(writer.restore(ids[0])) == b"1"
    with pytest.raises(InvalidStateError, match="rollback"):
        writer.begin()
    with pytest.raises(InvalidStateError, match="rollback"):
        writer.new_id()
    assert latest(writer) == b"3"
    put(writer, b"4")
    assert latest(world.actor()) == b"4"


def test_a_checkpoint_that_was_looked_at_can_be_rolled_back_to(world: World) -> None:
    writer, tool = world.actor(), world.actor()
    ids = line(writer, 2)
    assert got(tool.restore(ids[0])) == b"1"
    put(writer, b"3")  # the rollback goes on top of what is committed by then
    new = tool.rollback(ids[0])
    assert (new.sequence, latest(world.actor())) == (4, b"1")
    put(tool, b"5")
    with pytest.raises(FencedError):
        put(writer, b"zombie")
    assert latest(world.actor()) == b"5"
