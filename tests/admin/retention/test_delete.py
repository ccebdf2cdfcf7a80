"""Delete one checkpoint: its objects go, but for what others still need."""

import logging

import pytest

from pyspark_checkpointer import RetentionPolicy, compaction, runtime
from pyspark_checkpointer.admin.retention.delete import delete_checkpoint, find_ended
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.errors import CorruptionError, InvalidStateError, UnsupportedFormatError
from pyspark_checkpointer.manifests import manifest_json, object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest
from tests.admin.retention.histories import LAST_TWO, garbage, mixed
from tests.world import World, attempt, contents, latest, line, put


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


def test_a_filter_of_messages_that_fails_makes_no_failure_of_a_delete(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(record: logging.LogRecord) -> bool:
        raise ZeroDivisionError

    ids = line(world.actor(), 3)
    client = world.actor(retries=False)
    client.faults.fail("delete", times=100)
    monkeypatch.setattr(logging.getLogger("pyspark_checkpointer"), "filters", [fail])
    client.delete_checkpoint(ids[0])
    assert client.faults.counts["delete"]
    assert world.actor().list_checkpoints() == ids[1:]


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


@pytest.mark.parametrize("length", [3, 9])
def test_a_deleted_checkpoint_is_gone_although_others_were_retired_lately(world: World, length: int) -> None:
    client = world.actor()
    line(client, length)
    client.clean(RetentionPolicy(keep_last=2))
    oldest = client.list_checkpoints()[0]
    client.delete_checkpoint(oldest)
    assert {path for path in world.objects() if str(oldest) in path} <= {object_paths.manifest(oldest)}


def test_deleting_one_leaves_what_a_retired_one_still_lends_to_its_readers(world: World) -> None:
    client, reader = world.actor(), world.actor()
    ids = mixed(client, 6)
    restored = reader.restore(ids[1])
    assert restored is not None
    client.clean(RetentionPolicy(keep_last=4))  # 1 and 2 are retired, for an hour; 2 and 3 share objects
    client.delete_checkpoint(ids[2])
    assert restored.operator("shared").partition(0) == [b"shared 1"]
    client.clean(RetentionPolicy(keep_last=4))
    assert restored.operator("own").partition(0) == [b"2"]
    assert restored.operator("chain").partition(0) == [b"0", b"2"]


def test_a_manifest_of_a_newer_version_ends_no_history(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = line(world.actor(), 4)
    decode = manifest_json.decode_manifest

    def older_library(checkpoint: CheckpointId, data: bytes) -> Manifest:
        if checkpoint == ids[1]:
            raise UnsupportedFormatError("format_version 2")
        return decode(checkpoint, data)

    monkeypatch.setattr(manifest_json, "decode_manifest", older_library)
    before = world.objects(), world.latest()
    with pytest.raises(UnsupportedFormatError):
        world.actor().delete_checkpoint(ids[1])
    assert (world.objects(), world.latest()) == before


def test_a_catalog_that_nobody_could_read_is_not_written(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    client = world.actor()
    ids = line(client, 9)
    monkeypatch.setattr(metadata, "MAX_CATALOG", 700)
    before = world.objects(), world.latest()
    with pytest.raises(InvalidStateError, match=r"7 checkpoints .* retire older ones first, with clean\(\)"):
        client.delete_checkpoint(ids[7])
    assert (world.objects(), world.latest()) == before
    client.delete_checkpoint(ids[1])
    assert client.list_checkpoints() == [ids[0], *ids[2:]]


@pytest.mark.usefixtures("small_manifests")
def test_readers_of_what_was_retired_keep_it_below_a_deleted_checkpoint(world: World) -> None:
    """Its segments are gone, and its manifest leads to the older ones all the same."""
    client, reader = world.actor(), world.actor()
    ids = []
    for number in range(5):
        with client.begin() as cp:
            for partition in range(compaction.INLINE + 1) if number == 0 else [1 + number % 2]:
                cp.snapshot("many", partition, b"%d %d" % (partition, number))
        ids.append(cp.id)
    restored = reader.restore(ids[2])
    assert restored is not None
    client.clean(RetentionPolicy(keep_last=2))  # the first three are retired, for an hour
    client.delete_checkpoint(ids[3])
    client.clean(RetentionPolicy(keep_last=2))
    assert restored.operator("many").partition(1) == [b"1 2"]
    assert restored.operator("many").partition(2) == [b"2 1"]


@pytest.mark.parametrize("how", ["missing", "damaged"])
def test_a_checkpoint_whose_manifest_is_lost_can_be_deleted_and_all_goes_on(world: World, how: str) -> None:
    client = world.actor()
    ids = line(client, 9)
    client.savepoint("second", ids[1])
    lost = object_paths.manifest(ids[5])
    world.delete(lost)
    if how == "damaged":
        runtime.run_sync(world.store.put(lost, b"{}"))
    operator = world.actor()
    with pytest.raises(CorruptionError):
        operator.clean(LAST_TWO)
    assert [savepoint.name for savepoint in operator.savepoints()] == ["second"]
    operator.savepoint("newest")
    operator.savepoint("eighth", ids[7])
    operator.delete_savepoint("newest")
    for checkpoint in (ids[4], ids[6]):  # one that cannot be proven, and one above the hole with older ones below
        with pytest.raises(CorruptionError):
            operator.delete_checkpoint(checkpoint)
    operator.delete_checkpoint(ids[5])
    assert operator.list_checkpoints() == [ids[1], *ids[6:]]
    operator.clean(LAST_TWO)
    assert operator.list_checkpoints() == [ids[1], *ids[7:]]
    assert operator.verify()
    put(client, b"10")
    assert garbage(world) == set()


def test_a_delete_says_before_and_after_what_ends_with_it(world: World, caplog: pytest.LogCaptureFixture) -> None:
    client = world.actor()
    ids = line(client, 9)
    client.savepoint("second", ids[1])
    world.delete(object_paths.manifest(ids[5]))
    selector = CheckpointSelector.parse(ids[5])
    before = world.objects(), world.latest()
    ended = (ids[0], *ids[2:5])
    assert runtime.run_sync(find_ended(client.session, selector)) == ended
    assert (world.objects(), world.latest()) == before
    with caplog.at_level(logging.WARNING, logger="pyspark_checkpointer"):
        assert runtime.run_sync(delete_checkpoint(client.session, selector)) == ended
    assert f"{ids[5]} was deleted, and with it 4 older checkpoints, {ids[0]} to {ids[4]}" in caplog.text
    assert client.list_checkpoints() == [ids[1], *ids[6:]]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_delete_of_a_sound_checkpoint_ends_nothing(world: World, number: int) -> None:
    client = world.actor()
    ids = line(client, 5)
    client.clean(LAST_TWO)
    ids += line(client, 3)
    selector = CheckpointSelector.parse(ids[3:][number])
    assert runtime.run_sync(find_ended(client.session, selector)) == ()
    assert runtime.run_sync(delete_checkpoint(client.session, selector)) == ()
