"""Commit a manifest that was saved by hand, or refuse it."""

from dataclasses import replace

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Ref
from tests.world import Actor, World, attempt, latest, line, put


def saved(client: Actor, **changes: object) -> CheckpointId:
    """Save a manifest on top of what was restored, without committing it."""
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
