"""The checkpoint store for the asyncio half of `azure-eventhub`.

It is for the `EventHubConsumerClient` of `azure.eventhub.aio`.
"""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyspark_checkpointer.consumers.eventhub.client import ConfiguredStore
from pyspark_checkpointer.consumers.eventhub.core import GroupName
from pyspark_checkpointer.runtime import bridge

# The client calls these methods by name, so its class is only needed to check types, and is no dependency.
if TYPE_CHECKING:
    from azure.eventhub.aio import CheckpointStore as Contract
else:
    Contract = object


class CheckpointStore(ConfiguredStore, Contract):
    """Ownership and checkpoints of partitions. Any event loop may call it.

    `ConfiguredStore.__init__` describes the arguments. `last_modified_time` is the time of the store's server, if the
    server tells its time. The client compares it with its own clock.
    """

    async def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Return the owner of each partition of the group with one read.

        Released partitions are included.
        """
        name = GroupName(fully_qualified_namespace, eventhub_name, consumer_group)
        return await bridge(self._core.list_ownership(name))

    async def claim_ownership(self, ownership_list: Iterable[Mapping[str, Any]], **kwargs: Any) -> list[dict[str, Any]]:
        """Claim partitions, and return the claims that were won.

        Each has its new `etag` and `last_modified_time`. A claim with an etag replaces the row that has it. A claim
        without an etag creates a row if there is none. An empty `owner_id` releases the partition after its recorded
        updates were written.
        """
        return await bridge(self._core.claim_ownership(ownership_list))

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: Any) -> None:
        """Record the position of a partition, whatever was recorded before.

        The position is durable on return. If `max_updates` is above 1, it is durable after the next `flush()`, or
        earlier in the background.
        """
        await bridge(self._core.update_checkpoint(checkpoint))

    async def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Return the position of each partition of the group.

        This costs one listing, and concurrent reads.
        """
        name = GroupName(fully_qualified_namespace, eventhub_name, consumer_group)
        return await bridge(self._core.list_checkpoints(name))

    async def flush(self) -> None:
        """Write the recorded updates that are not written yet.

        Raise the reason if a partition was not written; the others are written all the same. Its update is kept, tried
        again, and raised by each flush until it succeeds. If no try can succeed, it is given up and raised once.
        """
        await bridge(self._core.flush())

    async def close(self) -> None:
        """Write the updates that are not written yet, and release connections.

        Raise what `flush()` raises. Later updates raise `InvalidStateError`. Everything else still works, and connects
        again.
        """
        await bridge(self._core.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
