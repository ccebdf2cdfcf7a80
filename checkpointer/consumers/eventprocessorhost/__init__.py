"""The checkpoint manager and the lease manager of Event Processor Host, on any store of this library.

checkpoints = CheckpointManager("s3://bucket/jobs/orders", event_hub="clicks")
leases = checkpoints.leases()
lease = leases.get_lease("0")
if leases.acquire_lease(lease):
    checkpoints.update_checkpoint(lease, CheckpointInfo("0", offset="4096", sequence_number=17))
"""

import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark_checkpointer.consumers.cas_object import Space
from pyspark_checkpointer.consumers.eventprocessorhost.checkpoint import CheckpointInfo
from pyspark_checkpointer.consumers.eventprocessorhost.checkpoints import Checkpoints
from pyspark_checkpointer.consumers.eventprocessorhost.leases import CompleteLease, HostLeases
from pyspark_checkpointer.consumers.store_context import Client, Closing, Root
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import Fencing

__all__ = ["CheckpointInfo", "CheckpointManager", "CompleteLease", "LeaseManager"]


class CheckpointManager(Client[Checkpoints], Closing):
    """The checkpoints of one consumer group. Any thread may call it."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        event_hub: str = "default",
        consumer_group: str = "$Default",
        max_updates: int = 1,
        interval: float = 1.0,
        fencing: Fencing = "required",
        concurrency: int = 16,
        timeout: float = 60.0,
    ) -> None:
        """Check the configuration; nothing is connected before the first call.

        Args:
            root: A folder, `s3://bucket/path`, `abfs://container/path`, … It may be the root of a job's state too.
            storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
            event_hub: The event hub, with its namespace where there are several. Each has its own store.
            consumer_group: The consumer group. Each has its own store.
            max_updates: Updates after which the latest of each partition are written. With 1 each is durable before
                `update_checkpoint` returns.
            interval: With more than 1: seconds after which what was updated is written anyway.
            fencing: "required" refuses a store that cannot swap atomically; "none" does without, and then two hosts
                can update one partition.
            concurrency: Requests under way at once, not counting small reads: of these sixteen times as many.
            timeout: Seconds after which a request counts as unanswered.
        """
        self._folder = _folder(event_hub, consumer_group)
        self._max_updates, self._interval = max_updates, interval
        super().__init__(Root(root, storage_options, fencing, concurrency, timeout))

    def _make(self, space: Space) -> Checkpoints:
        return Checkpoints(space, self._folder, self._max_updates, self._interval)

    def leases(self, host_name: str | None = None, *, lease_duration: float = 30.0) -> "LeaseManager":
        """Return the lease manager of a host for the same event hub and consumer group, on the same connections."""
        manager = object.__new__(LeaseManager)
        manager._set_up(self._root, self._folder, host_name, lease_duration)
        return manager

    def checkpoint_store_exists(self) -> bool:
        """Return whether the checkpoint store was created, and not deleted to its end since."""
        return run_sync(self._core.store_exists())

    def create_checkpoint_store_if_not_exists(self) -> None:
        """Create the checkpoint store, without any holder."""
        run_sync(self._core.create_store())

    def delete_checkpoint_store(self) -> None:
        """Delete the checkpoint store with all holders; leases stay.

        One that was stopped goes on when it is called again. Stop the hosts before: who acquires a lease meanwhile
        makes the holder of its partition again, without a checkpoint.
        """
        run_sync(self._core.delete_store())

    def create_all_checkpoints_if_not_exists(self, partition_ids: Iterable[str]) -> None:
        """Make holders, without a checkpoint, for those of the partitions that have none. One listing if all have.

        `StoreNotFoundError` where the checkpoint store was not created.
        """
        run_sync(self._core.create(partition_ids))

    def get_checkpoint(self, partition_id: str) -> CheckpointInfo | None:
        """The checkpoint of a partition; None where nobody made one: in a holder, without a holder, without a store."""
        return run_sync(self._core.get(partition_id))

    def update_checkpoint(self, lease: CompleteLease, checkpoint: CheckpointInfo) -> None:
        """Record how far a partition is, under this lease, which is renewed first where that is due.

        It is due once a third of its length has passed since it was renewed; others that were updated since they were
        renewed are then renewed with it. A checkpoint of the same sequence number as the one that stands is a no-op.

        Raises:
            LeaseLostError: This lease was lost, even if the host has another by now, or the holder was deleted since
                it was acquired. Nothing was written. Stop reading the partition, or acquire it anew.
            IllegalArgumentError: The checkpoint comes before the one that stands, or belongs to another partition.
            StoreNotFoundError: The checkpoint store was not created.
        """
        run_sync(self._core.update(lease, checkpoint))

    def delete_checkpoint(self, partition_id: str) -> None:
        """Delete the checkpoint of a partition with its holder. Where there is none, that is success.

        Leases acquired before then cannot update the partition any more: who goes on acquires it anew, which makes a
        holder, and begins without a checkpoint.
        """
        run_sync(self._core.delete(partition_id))

    def flush(self) -> None:
        """Write what was updated and is not written yet.

        Raises why one partition was not written, whatever became of the others. It is kept and tried again, and raised
        again until then; but what no try can mend, as the lease is lost, is given up, and raised once.
        """
        run_sync(self._core.flush())

    def close(self) -> None:
        """Write what is not written yet, and release connections; what `flush()` raises, this does too.

        Updates are refused afterwards, with `InvalidStateError`. Everything else still works, and connects again.
        """
        run_sync(self._core.close())


class LeaseManager(Client[HostLeases], Closing):
    """The leases of one host on the partitions of one consumer group. Any thread may call it."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        host_name: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        event_hub: str = "default",
        consumer_group: str = "$Default",
        lease_duration: float = 30.0,
        fencing: Fencing = "required",
        concurrency: int = 16,
        timeout: float = 60.0,
    ) -> None:
        """Check the configuration; nothing is connected before the first call.

        Args:
            host_name: A name that no other host has; left out, one is drawn at random in each process.
            lease_duration: Seconds after which a lease that is not renewed may be acquired by others without stealing,
                by their own clocks: a host waits as long after it saw a lease first. The same for all hosts.

        For the others see `CheckpointManager`.
        """
        root_of = Root(root, storage_options, fencing, concurrency, timeout)
        self._set_up(root_of, _folder(event_hub, consumer_group), host_name, lease_duration)

    def _set_up(self, root: Root, folder: str, host_name: str | None, duration: float) -> None:
        self._folder, self._host_name, self._duration = folder, host_name, duration
        super().__init__(root)

    def _make(self, space: Space) -> HostLeases:
        host_name = f"host-{secrets.token_hex(8)}" if self._host_name is None else self._host_name
        return HostLeases(space, self._folder, host_name, self._duration)

    @property
    def host_name(self) -> str:
        return self._core.leases.worker

    @property
    def lease_duration(self) -> float:
        """Seconds that a lease lasts unless it is renewed."""
        return self._duration

    def lease_store_exists(self) -> bool:
        return run_sync(self._core.store_exists())

    def create_lease_store_if_not_exists(self) -> None:
        """Create the lease store, without any lease."""
        run_sync(self._core.create_store())

    def delete_lease_store(self) -> None:
        """Delete the lease store with all leases; checkpoints stay. Hosts lose their leases when they renew them."""
        run_sync(self._core.delete_store())

    def get_lease(self, partition_id: str) -> CompleteLease | None:
        """Return the lease of a partition as it is now, for whoever wants to acquire it; None where there is none."""
        return run_sync(self._core.get(partition_id))

    def get_all_leases(self) -> list[CompleteLease]:
        """Return the leases of all partitions as they are now. One read."""
        return run_sync(self._core.get_all())

    def create_all_leases_if_not_exists(self, partition_ids: Iterable[str]) -> None:
        """Make leases, without an owner, for those of the partitions that have none.

        `StoreNotFoundError` where the lease store was not created.
        """
        run_sync(self._core.create(partition_ids))

    def delete_lease(self, lease: CompleteLease) -> None:
        """Delete the lease of this lease's partition, whoever has it. Where there is none, that is success.

        Another host that has it loses it when it renews it.
        """
        run_sync(self._core.delete(lease))

    def acquire_lease(self, lease: CompleteLease) -> bool:
        """Make this host the owner, and `lease` the right to update. Whether it is: nothing has changed if not.

        A lease that is free, has expired, or is this host's already, is acquired. One that another host renews is
        stolen, but from that owner only whom `lease` names: who acquired it since keeps it. False too where there is no
        such lease any more, or `lease` was lost: `get_lease` gives a new one.
        """
        return run_sync(self._core.acquire(lease))

    def renew_lease(self, lease: CompleteLease) -> bool:
        """Keep it for another `lease_duration`, even if it had expired. Whether it is still this host's: one swap."""
        return run_sync(self._core.renew(lease))

    def release_lease(self, lease: CompleteLease) -> None:
        """Give it up, once what was updated under it is written.

        One that has expired and that nobody took is given up too, and so is one that `get_lease` shows as this host's,
        such as that of a process before this one. What is lost, or another host's, is given up already.

        Raises:
            InvalidStateError: `get_lease` shows it as this host's, another lease manager acquired it, under the same
                name, and it has not expired, as seen from here. It is that one's: acquire it first, or wait.
        """
        run_sync(self._core.release(lease))

    def update_lease(self, lease: CompleteLease) -> bool:
        """What `renew_lease` does: a lease here has nothing else to store."""
        return run_sync(self._core.renew(lease))

    def close(self) -> None:
        """Release connections. Leases are neither released nor renewed."""
        run_sync(self._core.group.space.store.close())


def _folder(event_hub: str, consumer_group: str) -> str:
    return object_paths.progress("eventprocessorhost", event_hub, consumer_group)
