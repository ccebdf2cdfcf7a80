"""Make and delete savepoints: each writes a new catalog, and plans again after a refused swap."""

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.checkpoint.metadata import read_catalog
from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError, RetiredError, SavepointNotFoundError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Catalog
from tests.world import World, got, line, put


def catalog_of(world: World) -> Catalog:
    catalog = runtime.run_sync(read_catalog(world.store, world.pointer().catalog))
    assert catalog is not None
    return catalog


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


def test_a_savepoint_cannot_have_the_name_of_a_checkpoint(world: World) -> None:
    client = world.actor()
    ids = line(client, 2)
    for name in (str(ids[0]), "0000000099-ffffffff"):
        with pytest.raises(IllegalArgumentError, match="reads like the id"):
            client.savepoint(name)


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
