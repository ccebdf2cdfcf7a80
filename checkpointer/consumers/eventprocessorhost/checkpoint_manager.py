"""Manage the checkpoints of Event Processor Host.

A checkpoint says how far a consumer group has read a partition.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any

from pyspark_checkpointer.consumers.eventprocessorhost.checkpoint_info import CheckpointInfo
from pyspark_checkpointer.consumers.eventprocessorhost.checkpoints import Checkpoints
from pyspark_checkpointer.consumers.eventprocessorhost.lease_manager import LeaseManager, group_folder, manager_of
from pyspark_checkpointer.consumers.eventprocessorhost.leases import CompleteLease
from pyspark_checkpointer.consumers.store_client import ClosingContext, StoreClient, StoreConfig
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption


class CheckpointManager(StoreClient[Checkpoints], ClosingContext):
    """The checkpoints of one consumer group. Any thread may call it.

    Examples:
        The examples of the methods go on from here.

        >>> from pyspark_checkpointer.consumers.eventprocessorhost import CheckpointInfo, CheckpointManager
        >>> checkpoints = CheckpointManager("state/positions", event_hub="clicks")
        >>> leases = checkpoints.leases("host-1")
        >>> checkpoints.create_checkpoint_store_if_not_exists()
        >>> leases.create_lease_store_if_not_exists()
        >>> leases.create_all_leases_if_not_exists(["0"])
        >>> lease = leases.get_lease("0")
        >>> leases.acquire_lease(lease)
        True
        >>> checkpoints.update_checkpoint(lease, CheckpointInfo("0", offset="4096", sequence_number=17))
        >>> checkpoints.get_checkpoint("0").offset
        '4096'
    """

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
        encryption: EncryptionOption = None,
        signing: SigningOption = None,
    ) -> None:
        """Check the configuration; nothing is connected before the first call.

        Args:
            root: A folder, `s3://bucket/path`, `abfs://container/path`, … It may be the root of a job's state too.
            storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
            event_hub: The event hub, with its namespace if there are several. Each has its own checkpoint store.
            consumer_group: The consumer group. Each has its own checkpoint store.
            max_updates: Updates after which the latest of each partition are written. With 1 each is durable before
                `update_checkpoint` returns.
            interval: Seconds after which updates are written anyway, if `max_updates` is more than 1.
            fencing: "required" refuses a store without atomic compare-and-swap; "none" works on any store, and then
                two hosts can update one partition.
            concurrency: Maximum number of concurrent requests; of small reads sixteen times as many.
            timeout: Seconds after which a request counts as unanswered.
            encryption: What opens the keys of an encrypted root, as in `pyspark_checkpointer.Checkpointer`.
            signing: Whom to trust and what to sign with, as in `pyspark_checkpointer.Checkpointer`.

        Raises:
            IllegalArgumentError: An argument is not what it must be. The message names it.
        """
        self._folder = group_folder(event_hub, consumer_group)
        self._max_updates, self._interval = max_updates, interval
        super().__init__(StoreConfig(root, storage_options, fencing, concurrency, timeout, encryption, signing))

    def _make_core(self, context: StoreContext) -> Checkpoints:
        return Checkpoints(context, self._folder, self._max_updates, self._interval)

    def leases(self, host_name: str | None = None, *, lease_duration: float = 30.0) -> "LeaseManager":
        """Return a host's lease manager for the same event hub and consumer group.

        It shares the connections.

        Args:
            host_name: As in `LeaseManager`.
            lease_duration: As in `LeaseManager`.

        Raises:
            IllegalArgumentError: `lease_duration` is out of its range, or `host_name` cannot be a name.

        Examples:
            >>> second = checkpoints.leases("host-2", lease_duration=60)
            >>> second.get_lease("0").owner
            'host-1'
        """
        return manager_of(self._config, self._folder, host_name, lease_duration)

    def checkpoint_store_exists(self) -> bool:
        """Return whether the checkpoint store exists.

        It exists if it was created, and not completely deleted since.

        Raises:
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.

        Examples:
            >>> checkpoints.checkpoint_store_exists()
            True
        """
        return run_sync(self._core.store_exists())

    def create_checkpoint_store_if_not_exists(self) -> None:
        """Create the checkpoint store without any holder, unless it exists.

        Raises:
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> payments = CheckpointManager("state/positions", event_hub="payments")
            >>> payments.checkpoint_store_exists()
            False
            >>> payments.create_checkpoint_store_if_not_exists()
            >>> payments.checkpoint_store_exists()
            True
        """
        run_sync(self._core.create_store())

    def delete_checkpoint_store(self) -> None:
        """Delete the checkpoint store with all holders; leases stay.

        The next call continues an interrupted deletion. Stop the hosts first: a host that acquires a lease meanwhile
        makes a new holder for its partition, without a checkpoint.

        Raises:
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> checkpoints.delete_checkpoint_store()
            >>> checkpoints.checkpoint_store_exists(), leases.lease_store_exists()
            (False, True)
        """
        run_sync(self._core.delete_store())

    def create_all_checkpoints_if_not_exists(self, partition_ids: Iterable[str]) -> None:
        """Create holders for the partitions that have none.

        The new holders have no checkpoint. If all partitions have a holder, this costs one listing.

        Args:
            partition_ids: The partitions.

        Raises:
            StoreNotFoundError: The checkpoint store was not created.
            IllegalArgumentError: This is no list of names.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> checkpoints.create_all_checkpoints_if_not_exists(["0", "1"])
            >>> checkpoints.get_checkpoint("1") is None
            True
        """
        run_sync(self._core.create(partition_ids))

    def get_checkpoint(self, partition_id: str) -> CheckpointInfo | None:
        """Return the checkpoint of a partition; None if nobody recorded one.

        None is the answer for an empty holder, without a holder, and without a store.

        Args:
            partition_id: The partition.

        Raises:
            IllegalArgumentError: This is no name of a partition.
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.

        Examples:
            >>> checkpoints.get_checkpoint("0")
            CheckpointInfo(partition_id='0', offset='4096', sequence_number=17)
        """
        return run_sync(self._core.get(partition_id))

    def update_checkpoint(self, lease: CompleteLease, checkpoint: CheckpointInfo) -> None:
        """Record the position of a partition under this lease.

        The lease is renewed first if that is due. It is due after a third of its length. Other leases that were used
        for updates since they were renewed are then renewed in the same request. A checkpoint with the same sequence
        number as the recorded one is a no-op.

        Args:
            lease: The lease of the partition, acquired.
            checkpoint: The last event that was processed.

        Raises:
            LeaseLostError: This lease was lost, even if the host has another one by now, or the holder was deleted
                since it was acquired. Nothing was written. Stop reading the partition, or acquire it anew.
            IllegalArgumentError: The checkpoint comes before the recorded one, or belongs to another partition.
            StoreNotFoundError: The checkpoint store was not created.
            InvalidStateError: `close()` was called.
            CorruptionError: What is stored is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> checkpoints.update_checkpoint(lease, CheckpointInfo("0", offset="5000", sequence_number=18))
            >>> checkpoints.get_checkpoint("0").sequence_number
            18
        """
        run_sync(self._core.update(lease, checkpoint))

    def delete_checkpoint(self, partition_id: str) -> None:
        """Delete the checkpoint of a partition with its holder.

        A missing checkpoint is no error. Leases that were acquired before cannot update the partition any more.
        Acquiring the partition anew makes a holder, and begins without a checkpoint.

        Args:
            partition_id: The partition.

        Raises:
            IllegalArgumentError: This is no name of a partition.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> checkpoints.delete_checkpoint("0")
            >>> checkpoints.get_checkpoint("0") is None
            True
        """
        run_sync(self._core.delete(partition_id))

    def flush(self) -> None:
        """Write the updates that are not written yet.

        If a partition was not written, its error is raised, after the others were written. Its update is kept, tried
        again, and raised by each flush until it succeeds. If no try can succeed, because the lease is lost, it is given
        up and raised once.

        Raises:
            LeaseLostError: The lease of an update was lost.
            IllegalArgumentError: The checkpoint of an update comes before the recorded one.
            RetryableError: The store did not answer, or asked for less. Call again.
            CorruptionError: What is stored is damaged.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> waiting = CheckpointManager("state/positions", event_hub="clicks", max_updates=100)
            >>> waiting.update_checkpoint(lease, CheckpointInfo("0", offset="5000", sequence_number=18))
            >>> waiting.flush()
            >>> checkpoints.get_checkpoint("0").offset
            '5000'
        """
        run_sync(self._core.flush())

    def close(self) -> None:
        """Write the updates that are not written yet, and release connections.

        Later updates raise `InvalidStateError`. Everything else still works, and connects again.

        Raises:
            CheckpointError: As in `flush`.

        Examples:
            >>> checkpoints.close()
            >>> checkpoints.get_checkpoint("0").offset  # connects again
            '4096'
        """
        run_sync(self._core.close())
