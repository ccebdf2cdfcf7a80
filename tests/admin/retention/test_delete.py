"""Delete one checkpoint beside retention: its objects go, but for what others still need."""

import pytest

from pyspark_checkpointer import RetentionPolicy, runtime
from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests import object_paths
from tests.admin.retention.histories import LAST_TWO, garbage, mixed
from tests.world import World, line, put


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
