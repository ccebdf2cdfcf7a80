"""The statistics of a store that changes while they are made."""

import pytest

from pyspark_checkpointer.admin.stats import read_stats
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.runtime import run_sync
from tests.damage import fill
from tests.world import World


@pytest.mark.usefixtures("small_manifests")
def test_a_checkpoint_that_is_deleted_meanwhile_does_not_count(world: World) -> None:
    client, other = world.actor(), world.actor()
    ids = [fill(client, number) for number in range(3)]
    client.faults.call(lambda _: other.delete_checkpoint(ids[0]), "get", path=object_paths.SEGMENTS)
    assert run_sync(read_stats(client.session)).checkpoints == 2
    assert client.list_checkpoints() == ids[1:]
