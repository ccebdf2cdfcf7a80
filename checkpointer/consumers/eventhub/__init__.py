"""A checkpoint store for the consumer client of `azure-eventhub`, on any store of this library.

    store = CheckpointStore("s3://bucket/jobs/orders")
    client = EventHubConsumerClient.from_connection_string(…, checkpoint_store=store)

The twin for the client's asyncio half is `checkpointer.consumers.eventhub.aio.CheckpointStore`.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from checkpointer.consumers.eventhub.client import Shared
from checkpointer.consumers.eventhub.core import Names
from checkpointer.consumers.store_context import Closing
from checkpointer.runtime import run_sync

if TYPE_CHECKING:
    from azure.eventhub import CheckpointStore as Contract
else:
    Contract = object


class CheckpointStore(Shared, Closing, Contract):
    """Ownership and checkpoints of partitions. Any thread may call it. See `Shared.__init__` for the arguments.

    The client looks at `last_modified_time` with its own clock: it is the time of the store's server, where it has one.
    """

    def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """Who has which partition of the group, also those released. One read."""
        names = Names(fully_qualified_namespace, eventhub_name, consumer_group)
        return run_sync(self._core.list_ownership(names))

    def claim_ownership(self, ownership_list: Iterable[Mapping[str, Any]], **kwargs: Any) -> list[dict[str, Any]]:
        """Those of the claims that were won, with their new `etag` and `last_modified_time`.

        A claim with an etag replaces the row that has it; one without makes a row where there is none. An empty
        `owner_id` releases the partition, once what was recorded of it is written.
        """
        return run_sync(self._core.claim_ownership(ownership_list))

    def update_checkpoint(self, checkpoint: Mapping[str, Any], **kwargs: Any) -> None:
        """Record how far a partition is, whatever was recorded before.

        It is durable on return; with `max_updates` above 1, after the next `flush()` or in the background before.
        """
        run_sync(self._core.update_checkpoint(checkpoint))

    def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **kwargs: Any
    ) -> list[dict[str, Any]]:
        """How far each partition of the group is: one listing, and the reads at once."""
        names = Names(fully_qualified_namespace, eventhub_name, consumer_group)
        return run_sync(self._core.list_checkpoints(names))

    def flush(self) -> None:
        """Write what was recorded and is not written yet.

        Raises why one partition was not written, whatever became of the others. It is kept and tried again, and raised
        again until then; but what no try can mend is given up, and raised once.
        """
        run_sync(self._core.flush())

    def close(self) -> None:
        """Write what is not written yet, and release connections; what `flush()` raises, this does too.

        Updates are refused afterwards, with `InvalidStateError`. Everything else still works, and connects again.
        """
        run_sync(self._core.close())
