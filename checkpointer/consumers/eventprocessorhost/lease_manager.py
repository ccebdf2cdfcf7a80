"""Manage the leases of Event Processor Host.

A lease says which of several hosts reads a partition.
"""

import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark_checkpointer.consumers.eventprocessorhost.leases import CompleteLease, HostLeases
from pyspark_checkpointer.consumers.store_client import ClosingContext, StoreClient, StoreConfig
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption


class LeaseManager(StoreClient[HostLeases], ClosingContext):
    """The leases of one host on the partitions of one consumer group.

    Any thread may call it.

    Examples:
        The examples of the methods go on from here.

        >>> from pyspark_checkpointer.consumers.eventprocessorhost import LeaseManager
        >>> leases = LeaseManager("state/positions", "host-1", event_hub="clicks")
        >>> leases.create_lease_store_if_not_exists()
        >>> leases.create_all_leases_if_not_exists(["0"])
        >>> lease = leases.get_lease("0")
        >>> leases.acquire_lease(lease)
        True
    """

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
        encryption: EncryptionOption = None,
        signing: SigningOption = None,
    ) -> None:
        """Check the configuration; nothing is connected before the first call.

        Args:
            root: A folder, `s3://bucket/path`, `abfs://container/path`, … It may be the root of a job's state too.
            host_name: A name that no other host has; by default one is drawn at random in each process.
            storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
            event_hub: As in `CheckpointManager`.
            consumer_group: As in `CheckpointManager`.
            lease_duration: Seconds after which a lease that is not renewed has expired, and other hosts may acquire it
                without stealing. They count by their own clocks, from when they first saw it. The same for all hosts.
            fencing: As in `CheckpointManager`.
            concurrency: As in `CheckpointManager`.
            timeout: As in `CheckpointManager`.
            encryption: As in `CheckpointManager`.
            signing: As in `CheckpointManager`.

        Raises:
            IllegalArgumentError: An argument is not what it must be. The message names it.
        """
        config = StoreConfig(root, storage_options, fencing, concurrency, timeout, encryption, signing)
        self._set_up(config, group_folder(event_hub, consumer_group), host_name, lease_duration)

    def _set_up(self, config: StoreConfig, folder: str, host_name: str | None, duration: float) -> None:
        self._folder, self._host_name, self._duration = folder, host_name, duration
        super().__init__(config)

    def _make_core(self, context: StoreContext) -> HostLeases:
        # Drawn here and not in `__init__`: a copy of this manager in another process is another host, and must not
        # renew the leases of this one.
        host_name = f"host-{secrets.token_hex(8)}" if self._host_name is None else self._host_name
        return HostLeases(context, self._folder, host_name, self._duration)

    @property
    def host_name(self) -> str:
        """The name of this host, as others see it."""
        return self._core.leases.worker

    @property
    def lease_duration(self) -> float:
        """Seconds that a lease lasts unless it is renewed."""
        return self._duration

    def lease_store_exists(self) -> bool:
        """Return whether the lease store was created, and not deleted since.

        Raises:
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.

        Examples:
            >>> leases.lease_store_exists()
            True
        """
        return run_sync(self._core.store_exists())

    def create_lease_store_if_not_exists(self) -> None:
        """Create the lease store without any lease, unless it exists.

        Raises:
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> payments = LeaseManager("state/positions", "host-1", event_hub="payments")
            >>> payments.lease_store_exists()
            False
            >>> payments.create_lease_store_if_not_exists()
            >>> payments.lease_store_exists()
            True
        """
        run_sync(self._core.create_store())

    def delete_lease_store(self) -> None:
        """Delete the lease store with all leases.

        Checkpoints stay. Hosts notice the deletion when they renew their leases.

        Raises:
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> leases.delete_lease_store()
            >>> leases.lease_store_exists(), leases.renew_lease(lease)
            (False, False)
        """
        run_sync(self._core.delete_store())

    def get_lease(self, partition_id: str) -> CompleteLease | None:
        """Return the lease of a partition as it is now; None if there is none.

        Pass it to `acquire_lease` to acquire it.

        Args:
            partition_id: The partition.

        Raises:
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.

        Examples:
            >>> leases.get_lease("0").owner
            'host-1'
            >>> leases.get_lease("9") is None
            True
        """
        return run_sync(self._core.get(partition_id))

    def get_all_leases(self) -> list[CompleteLease]:
        """Return the leases of all partitions as they are now. One read.

        Raises:
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.

        Examples:
            >>> [lease.partition_id for lease in leases.get_all_leases()]
            ['0']
        """
        return run_sync(self._core.get_all())

    def create_all_leases_if_not_exists(self, partition_ids: Iterable[str]) -> None:
        """Create leases, without an owner, for the partitions that have none.

        Args:
            partition_ids: The partitions.

        Raises:
            StoreNotFoundError: The lease store was not created.
            IllegalArgumentError: This is no list of names.
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> leases.create_all_leases_if_not_exists(["0", "1"])
            >>> leases.get_lease("1").owner
            ''
        """
        run_sync(self._core.create(partition_ids))

    def delete_lease(self, lease: CompleteLease) -> None:
        """Delete the lease of a partition, even if another host has it.

        A missing lease is no error. A host that has the lease finds it lost when it renews it.

        Args:
            lease: The lease, from `get_lease`.

        Raises:
            IllegalArgumentError: The lease did not come from this lease manager.
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> leases.delete_lease(lease)
            >>> leases.get_lease("0") is None
            True
        """
        run_sync(self._core.delete(lease))

    def acquire_lease(self, lease: CompleteLease) -> bool:
        """Make this host the owner, and return whether it is. If not, nothing changed.

        A lease that is free, expired, or this host's already is acquired. In the last case, the updates that wait under
        the earlier lease are written first. A lease that another host renews is stolen, but only from the owner that
        `lease` names. A host that acquired it later keeps it. Return False also if the lease was deleted, or `lease`
        was lost. Then `get_lease` returns a new one.

        Args:
            lease: The lease, from `get_lease`.

        Raises:
            IllegalArgumentError: The lease did not come from this lease manager.
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> leases.create_all_leases_if_not_exists(["1"])
            >>> leases.acquire_lease(leases.get_lease("1"))
            True
        """
        return run_sync(self._core.acquire(lease))

    def renew_lease(self, lease: CompleteLease) -> bool:
        """Renew a lease for another `lease_duration`, in one swap.

        Return whether it is still this host's. A lease that has expired and that nobody took is renewed too.

        Args:
            lease: The lease, acquired.

        Raises:
            IllegalArgumentError: The lease did not come from this lease manager.
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> leases.renew_lease(lease)
            True
        """
        return run_sync(self._core.renew(lease))

    def release_lease(self, lease: CompleteLease) -> None:
        """Release a lease after the updates under it were written.

        A lease that has expired and that nobody took is released too. So is one that `get_lease` shows as this host's,
        such as the lease of an earlier process. A lease that is lost, or another host's, needs no release.

        Args:
            lease: The lease.

        Raises:
            InvalidStateError: Another lease manager of the same name acquired the lease, and it has not expired, as
                seen from here. It belongs to that manager: acquire it first, or wait.
            IllegalArgumentError: The lease did not come from this lease manager.
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> leases.release_lease(lease)
            >>> leases.get_lease("0").owner
            ''
        """
        run_sync(self._core.release(lease))

    def update_lease(self, lease: CompleteLease) -> bool:
        """Do what `renew_lease` does: a lease has nothing else to store here.

        Args:
            lease: The lease, acquired.

        Raises:
            IllegalArgumentError: The lease did not come from this lease manager.
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> leases.update_lease(lease)
            True
        """
        return run_sync(self._core.renew(lease))

    def close(self) -> None:
        """Release connections. Leases are not released, and expire.

        Raises:
            RetryableError: The store did not answer, or asked for less. Call again.

        Examples:
            >>> leases.close()
            >>> leases.get_lease("0").owner  # connects again
            'host-1'
        """
        run_sync(self._core.group.context.store.close())


def group_folder(event_hub: str, consumer_group: str) -> str:
    """Return the folder of a consumer group, which both managers write to."""
    return object_paths.group_folder("eventprocessorhost", event_hub, consumer_group)


def manager_of(config: StoreConfig, folder: str, host_name: str | None, duration: float) -> LeaseManager:
    """Return a manager on the connections of a configuration."""
    # `__init__` would make a `StoreConfig` of its own, and with it connections of its own.
    manager = object.__new__(LeaseManager)
    manager._set_up(config, folder, host_name, duration)
    return manager
