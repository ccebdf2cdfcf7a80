"""Roll back: a new checkpoint with an older content on top, or nothing at all."""

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pyspark_checkpointer.client._sync_checkpoint import Prepared
from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    ConflictError,
    FencedError,
    IllegalArgumentError,
    InvalidStateError,
    RetiredError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId
from tests.world import World, attempt, got, latest, line, put


@pytest.mark.parametrize("to", [None, 5, b"s"])
def test_a_rollback_to_nothing_is_refused(world: World, to: object) -> None:
    client = world.actor()
    line(client, 2)
    before = world.latest()
    with pytest.raises(IllegalArgumentError):
        client.rollback(to)  # type: ignore[arg-type]
    assert world.latest() == before


def test_a_rollback_to_what_was_deleted_meanwhile_is_refused(world: World) -> None:
    writer = world.actor()
    ids = line(writer, 3)
    writer.faults.call(lambda _: world.actor().delete_checkpoint(ids[0]), "swap")
    with pytest.raises(RetiredError):
        writer.rollback(ids[0])
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


@pytest.mark.parametrize("verb", ["rollback", "update_latest"])
@pytest.mark.parametrize("path", ["manifests/", "artifacts/"])
def test_a_rollback_undoes_nothing_that_its_client_committed_since_the_call(world: World, verb: str, path: str) -> None:
    """Its caller may have given it up, and gone on."""
    writer = world.actor()
    ids = line(writer, 2)
    writer.faults.call(lambda _: put(writer, b"3"), "get", path=path)
    with pytest.raises(InvalidStateError, match="another call of this client"):
        getattr(writer, verb)(ids[0])
    assert latest(world.actor()) == b"3"
    put(writer, b"4")
    writer.rollback(ids[0])
    assert latest(world.actor()) == b"1"


def test_an_update_of_a_client_that_restored_nothing_undoes_no_later_commit(world: World) -> None:
    ids = line(world.actor(), 2)
    client, later = world.actor(), ThreadPoolExecutor(1)
    committed: list[Future[CheckpointId]] = []
    # It is begun while the base of the update is read, and ends before the update has compared its objects.
    client.faults.call(lambda _: committed.append(later.submit(put, client, b"3")), "get", path=object_paths.LATEST)
    client.faults.call(lambda _: committed[0].result(), "get", path="artifacts/")
    with pytest.raises(InvalidStateError, match="another call of this client"):
        client.update_latest(ids[0])
    assert latest(world.actor()) == b"3"


def test_a_rollback_does_not_drop_what_was_prepared_since_the_call(world: World) -> None:
    """Another system may have committed in trust of it."""
    writer = world.actor()
    ids = line(writer, 2)
    prepared: list[Prepared] = []
    writer.faults.call(lambda _: prepared.append(attempt(writer, b"3").prepare()), "get", path="artifacts/")
    with pytest.raises(InvalidStateError, match="another call of this client"):
        writer.rollback(ids[0])
    prepared[0].commit()
    assert latest(world.actor()) == b"3"
