"""Workers of one application in one process, each behind a faulty store of its own, with one clock that tests set."""

from typing import Any

from pyspark_checkpointer.consumers.kinesis import RecordCheckpointer, ShardLeases
from pyspark_checkpointer.consumers.kinesis.shards import Shards
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore
from tests.consumers.world import TestHost


class Node(ShardLeases):
    """The leases of one worker, whose requests meet `faults`."""

    def __init__(
        self, store: Store, worker: str, host: TestHost, *, faults: Faults | None = None, **options: Any
    ) -> None:
        self.faults, self._host = faults or Faults(), host
        super().__init__(store.url, "app", worker, **options)

    def _make_core(self, context: StoreContext) -> Shards:
        return super()._make_core(StoreContext(FaultyStore(context.store, self.faults), self._host))

    def must(self, shard: str, *, force: bool = False) -> RecordCheckpointer:
        """The checkpointer of a shard that can be taken."""
        self.create([shard])
        checkpointer = self.take(shard, force=force)
        assert checkpointer is not None
        return checkpointer


def records(first: int, last: int) -> list[dict[str, Any]]:
    """Records with these numbers, and all between them."""
    return [{"SequenceNumber": str(number), "Data": b"%d" % number} for number in range(first, last + 1)]
