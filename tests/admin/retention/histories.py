"""Histories, policies and a clock for the tests of retention."""

from datetime import UTC, datetime, timedelta

from pyspark_checkpointer import Checkpointer, RetentionPolicy, runtime
from pyspark_checkpointer.checkpoint.latest import read_head
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime.host import SystemHost
from tests.world import World, live_objects

NO_GRACE = RetentionPolicy(grace=timedelta(0))

LAST_TWO = RetentionPolicy(keep_last=2, grace=timedelta(0))


class Clock(SystemHost):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time


def with_clock(client: Checkpointer) -> Clock:
    clock = Clock()
    client.session.host = clock
    return clock


def garbage(world: World) -> set[str]:
    """Return the objects up to the committed sequence that are not live.

    Replaced catalogs are left out: they go with a later cleanup.
    """
    head = runtime.run_sync(read_head(world.store))
    live = runtime.run_sync(live_objects(world.store, SystemHost(), head))
    owners = {path: object_paths.owner(path) for path in world.objects() - live if not path.startswith("catalog/")}
    return {path for path, owner in owners.items() if owner is None or owner.sequence <= head.sequence}


def mixed(client: Checkpointer, length: int) -> list[CheckpointId]:
    """Write a history with chains, packs, shared objects, and objects of one checkpoint."""
    ids = []
    for number in range(1, length + 1):
        with client.begin(number) as cp:
            cp.snapshot("own", 0, b"%d" % number)
            for partition in range(3):
                cp.snapshot("packed", partition, b"%d %d" % (number, partition))
            cp.snapshot("chain", 0, b"0") if number % 4 == 1 else cp.delta("chain", 0, b"%d" % number)
            if number % 3 == 1:
                cp.snapshot("shared", 0, b"shared %d" % number)
        ids.append(cp.id)
    return ids
