"""Implement the checkpoint store for the asyncio half of `azure-eventhub`.

It is for the `EventHubConsumerClient` of `azure.eventhub.aio`.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyspark_checkpointer.consumers.eventhub.checkpoint import GroupName
from pyspark_checkpointer.consumers.eventhub.client import ConfiguredStore
from pyspark_checkpointer.runtime import bridge

# The client calls these methods by name, so its class is only needed to check types, and is no dependency.
if TYPE_CHECKING:
    from azure.eventhub.aio import CheckpointStore as Contract
else:
    Contract = object


class CheckpointStore(ConfiguredStore, Contract):
    """Ownership and checkpoints of partitions. Any event loop may call it.

    `last_modified_time` is the time of the store's server, if the server tells its time. The client compares it with
    its own clock.

    Args:
        root: A folder, `s3://bucket/path`, `abfs://container/path`, … It may be the root of a job's state too.
        storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
        max_updates: Updates of checkpoints after which the latest of each partition are written. With 1 each is
            durable before `update_checkpoint` returns.
        interval: Seconds after which recorded updates are written anyway, if `max_updates` is more than 1.
        fencing: "required" refuses a store without atomic compare-and-swap; "none" works on any store, and then
            two consumers can own one partition.
        concurrency: Maximum number of concurrent requests; of small reads sixteen times as many.
        timeout: Seconds after which a request counts as unanswered.
        encryption: What opens the keys of an encrypted root, as in `pyspark_checkpointer.Checkpointer`.
        signing: Whom to trust and what to sign with, as in `pyspark_checkpointer.Checkpointer`.

    Raises:
        IllegalArgumentError: An argument is not what it must be. The message names it.

    Examples:
        The client makes these calls. The examples of the methods go on from here.

        >>> from pyspark_checkpointer.consumers.eventhub.aio import CheckpointStore
        >>> store = CheckpointStore("state/positions")
        >>> group = {
        ...     "fully_qualified_namespace": "orders.servicebus.windows.net",
        ...     "eventhub_name": "clicks",
        ...     "consumer_group": "$Default",
        ... }
        >>> position = group | {"partition_id": "0", "offset": "4096", "sequence_number": 17}
        >>> await store.update_checkpoint(position)
        >>> [found["offset"] for found in await store.list_checkpoints(*group.values())]
        ['4096']
    """

    async def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Return the owner of each partition of the group with one read.

        Released partitions are included.

        Args:
            fully_qualified_namespace: The namespace of the event hub.
            eventhub_name: The name of the event hub.
            consumer_group: The name of the consumer group.

        Returns:
            For each partition its names, `owner_id`, `etag` and `last_modified_time`, in seconds since 1970.

        Raises:
            IllegalArgumentError: A name is not text, or is empty.
            CorruptionError: The stored ownership is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.

        Examples:
            >>> await store.list_ownership(*group.values())
            []
        """
        name = GroupName(fully_qualified_namespace, eventhub_name, consumer_group)
        return await bridge(self._core.list_ownership(name))

    async def claim_ownership(self, ownership_list: Iterable[Mapping[str, Any]], **kwargs: Any) -> list[dict[str, Any]]:
        """Claim partitions, and return the claims that were won.

        A claim with an etag replaces the row that has it. A claim without an etag creates a row if there is none. An
        empty `owner_id` releases the partition after its recorded updates were written.

        Args:
            ownership_list: For each partition its names and an `owner_id`, with the `etag` of the row to replace.

        Returns:
            The claims that were won, each with its new `etag` and `last_modified_time`.

        Raises:
            IllegalArgumentError: A claim lacks a field, or one is not what it must be. Nothing was claimed. A call that
                only releases partitions raises none of the following: it logs them, and returns an empty list.
            CorruptionError: The stored ownership is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> claims = await store.claim_ownership([group | {"partition_id": "0", "owner_id": "reader-1"}])
            >>> [claim["owner_id"] for claim in claims]
            ['reader-1']
        """
        return await bridge(self._core.claim_ownership(ownership_list))

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: Any) -> None:
        """Record the position of a partition, whatever was recorded before.

        The position is durable on return. If `max_updates` is above 1, it is durable after the next `flush()`, or
        earlier in the background.

        Args:
            checkpoint: The names of the partition, and the `offset` and `sequence_number` of its last event.

        Raises:
            IllegalArgumentError: A field is missing, or is not what it must be.
            InvalidStateError: `close()` was called.
            CorruptionError: The stored position is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> await store.update_checkpoint(position | {"offset": "5000", "sequence_number": 18})
            >>> [found["offset"] for found in await store.list_checkpoints(*group.values())]
            ['5000']
        """
        await bridge(self._core.update_checkpoint(checkpoint))

    async def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Return the position of each partition of the group.

        This costs one listing, and concurrent reads. On Azure the listing tells the positions, and nothing is read.

        Args:
            fully_qualified_namespace: The namespace of the event hub.
            eventhub_name: The name of the event hub.
            consumer_group: The name of the consumer group.

        Returns:
            For each partition its names, `offset` and `sequence_number`.

        Raises:
            IllegalArgumentError: A name is not text, or is empty.
            CorruptionError: A stored position is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.

        Examples:
            >>> [found["sequence_number"] for found in await store.list_checkpoints(*group.values())]
            [17]
        """
        name = GroupName(fully_qualified_namespace, eventhub_name, consumer_group)
        return await bridge(self._core.list_checkpoints(name))

    async def flush(self) -> None:
        """Write the recorded updates that are not written yet.

        If a partition was not written, its error is raised, after the others were written. Its update is kept, tried
        again, and raised by each flush until it succeeds. If no try can succeed, it is given up and raised once.

        Raises:
            CorruptionError: The stored position is damaged.
            RetryableError: The store did not answer, or asked for less. Call again.
            OutcomeUnknownError: A change was sent, and nothing proves whether it took effect. Call again.

        Examples:
            >>> waiting = CheckpointStore("state/positions", max_updates=100)
            >>> await waiting.update_checkpoint(position | {"offset": "5000", "sequence_number": 18})
            >>> await waiting.flush()
            >>> [found["offset"] for found in await store.list_checkpoints(*group.values())]
            ['5000']
        """
        await bridge(self._core.flush())

    async def close(self) -> None:
        """Write the updates that are not written yet, and release connections.

        Later updates raise `InvalidStateError`. Everything else still works, and connects again.

        Raises:
            CheckpointError: As in `flush`.

        Examples:
            >>> await store.close()
            >>> [found["offset"] for found in await store.list_checkpoints(*group.values())]  # connects again
            ['4096']
        """
        await bridge(self._core.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
