"""The statistics of a store that changes while they are made."""

import pytest

from pyspark_checkpointer import compaction
from pyspark_checkpointer.admin.stats import read_stats
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.runtime import run_sync
from tests.world import World


@pytest.mark.usefixtures("small_manifests")
def test_they_begin_anew_where_a_segment_is_deleted_meanwhile(world: World) -> None:
    client, other = world.actor(), world.actor()
    for number in range(3):
        with client.begin(epoch=number) as cp:
            for partition in range(compaction.INLINE + 1):
                cp.snapshot("many", partition, b"%d %d" % (partition, number))
    first, *ids = client.list_checkpoints()
    client.faults.call(lambda _: other.delete_checkpoint(first), "get", path=object_paths.SEGMENTS)
    assert run_sync(read_stats(client.session)).checkpoints == 2
    assert client.list_checkpoints() == ids
