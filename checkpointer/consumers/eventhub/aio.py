"""The checkpoint store for the asyncio half of `azure-eventhub`: `EventHubConsumerClient` of `azure.eventhub.aio`."""

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyspark_checkpointer.consumers.eventhub.client import Shared
from pyspark_checkpointer.consumers.eventhub.core import Names
from pyspark_checkpointer.runtime import bridge

if TYPE_CHECKING:
    from azure.eventhub.aio import CheckpointStore as Contract
else:
    Contract = object


class CheckpointStore(Shared, Contract):
    """Ownership and checkpoints of partitions. Any event loop may call it. See `Shared.__init__` for the arguments.

    The client looks at `last_modified_time` with its own clock: it is the time of the store's server, where it has one.
    """

    async def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Who has which partition of the group, also those released. One read."""
        names = Names(fully_qualified_namespace, eventhub_name, consumer_group)
        return await bridge(self._core.list_ownership(names))

    async def claim_ownership(self, ownership_list: Iterable[Mapping[str, Any]], **kwargs: Any) -> list[dict[str, Any]]:
        """Those of the claims that were won, with their new `etag` and `last_modified_time`.

        A claim with an etag replaces the row that has it; one without makes a row where there is none. An empty
        `owner_id` releases the partition, once what was recorded of it is written.
        """
        return await bridge(self._core.claim_ownership(ownership_list))

    async def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: Any) -> None:
        """Record how far a partition is, whatever was recorded before.

        It is durable on return; with `max_updates` above 1, after the next `flush()` or in the background before.
        """
        await bridge(self._core.update_checkpoint(checkpoint))

    async def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Return how far each partition of the group is: one listing, and the reads at once."""
        names = Names(fully_qualified_namespace, eventhub_name, consumer_group)
        return await bridge(self._core.list_checkpoints(names))

    async def flush(self) -> None:
        """Write what was recorded and is not written yet.

        Raises why one partition was not written, whatever became of the others. It is kept and tried again, and raised
        again until then; but what no try can mend is given up, and raised once.
        """
        await bridge(self._core.flush())

    async def close(self) -> None:
        """Write what is not written yet, and release connections; what `flush()` raises, this does too.

        Updates are refused afterwards, with `InvalidStateError`. Everything else still works, and connects again.
        """
        await bridge(self._core.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
