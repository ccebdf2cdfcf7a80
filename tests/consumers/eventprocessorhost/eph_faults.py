"""Checkpoints and leases of Event Processor Host whose requests are late or lost."""

import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyspark_checkpointer.consumers.eventprocessorhost import (
    CheckpointInfo,
    CheckpointManager,
    CompleteLease,
    LeaseManager,
)
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.errors import OutcomeUnknownError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.compare_and_swap import MAX_SENDS
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.requests import Gate
from pyspark_checkpointer.testing.store import FaultyStore
from tests.consumers.world import LEASE, TestHost

FOLDER = object_paths.group_folder("eventprocessorhost", "default", "$Default")
PARTITIONS = ["0", "1", "2"]


class Faulty:
    """Its requests go through `faults`, and nothing is tried again below it. `host` has its clock."""

    def _make_core(self, context: StoreContext) -> Any:
        self.host = TestHost()
        self.faults = Faults()
        return super()._make_core(StoreContext(FaultyStore(context.store, self.faults), self.host))  # type: ignore[misc]

    def counts(self, work: Callable[[], object]) -> dict[str, int]:
        self.faults.forget()
        work()
        return dict(self.faults.counts)


class Checkpoints(Faulty, CheckpointManager):
    pass


class Leases(Faulty, LeaseManager):
    def acquired(self, partition: str = "0") -> CompleteLease:
        lease = self.get_lease(partition)
        assert lease is not None
        assert self.acquire_lease(lease)
        return lease

    def wait(self, seconds: float) -> None:
        self.host.seconds += seconds


class Root:
    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"
        self.manager = self.checkpoints()
        self.create()

    def create(self) -> None:
        setup = self.leases("setup")
        setup.create_lease_store_if_not_exists()
        setup.create_all_leases_if_not_exists(PARTITIONS)
        self.manager.create_checkpoint_store_if_not_exists()
        self.manager.create_all_checkpoints_if_not_exists(PARTITIONS)

    def checkpoints(self, **options: Any) -> Checkpoints:
        return Checkpoints(self.url, **options)

    def leases(self, host_name: str) -> Leases:
        return Leases(self.url, host_name, lease_duration=LEASE)

    def objects(self) -> set[str]:
        return {entry.path for entry in run_sync(MemoryStore(self.url).list(""))}

    def number(self, partition: str = "0") -> int | None:
        found = CheckpointManager(self.url).get_checkpoint(partition)
        return None if found is None else found.sequence_number


def at(number: int, partition: str = "0") -> CheckpointInfo:
    return CheckpointInfo(partition, str(number), number)


def during(gate: Gate, work: Callable[[], object], meanwhile: Callable[[], object]) -> Any:
    """The result of `work`, which a gate holds until `meanwhile` was done."""
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(work)
        gate.wait()
        try:
            meanwhile()
        finally:
            gate.open()
        return result.result()


def fail_to_release(host: Leases, lease: CompleteLease, folder: str) -> None:
    """Release a lease while no swap below a folder is answered."""
    host.faults.fail("swap", path=folder, times=MAX_SENDS)
    with pytest.raises(OutcomeUnknownError, match="not known whether it took effect"):
        host.release_lease(lease)
