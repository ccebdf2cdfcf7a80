"""Only what was committed is live; readers follow the pointer when it moves."""

import pytest

from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    CorruptionError,
    FencedError,
    InvalidStateError,
    MalformedError,
    RetiredError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest
from tests.world import World, attempt, got, latest, line, put


@pytest.fixture
def abandoned(world: World) -> CheckpointId:
    """Write an attempt that was never committed, between the commits 2 and 3."""
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
