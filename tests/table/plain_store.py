"""A root with a table `t`, whose batches need no Spark."""

import random
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint.ancestry import read_ancestry
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import Expire
from pyspark_checkpointer.spark.state import State
from pyspark_checkpointer.table.feed import ROW_CHANGE, feed_steps
from pyspark_checkpointer.table.feed_reader import FeedReader
from pyspark_checkpointer.table.shown_columns import newest_schema
from tests.proof.plain_spark import PlainFrame, new_state, plain_spark

DAY = timedelta(days=1)
FIRST = datetime(2024, 1, 1, tzinfo=UTC)


class Store:
    """A root whose batches need no Spark."""

    def __init__(self, client: Checkpointer) -> None:
        self.client = client
        self.epoch = 0

    def batch(self, work: Callable[[State], None], day: int | None = None) -> None:
        state = new_state(self.client, self.client.restore(), self.epoch)
        if day is not None:
            state.advance_clock(FIRST + day * DAY)
        work(state)
        state._attempt.commit()
        self.epoch += 1

    def feed(self, after: str | None = None, to: str = "latest") -> list[tuple[Any, ...]]:
        """The changes: the sequence, the kind, and the values in order of the columns."""
        session = self.client.session
        start = None if after is None else CheckpointSelector.parse(after)
        parent, manifests = run_sync(read_ancestry(session, start, CheckpointSelector.parse(to)))
        shown = newest_schema("t", parent, manifests)
        assert shown is not None
        found = []
        for step in feed_steps("t", parent, manifests, shown):
            reader = FeedReader(session.store, session.host, step, shown)
            for group in step.groups:
                for row in run_sync(reader.changes(group)).to_pylist():
                    found.append((step.checkpoint.sequence, row.pop(ROW_CHANGE), *row.values()))
        return sorted(found, key=lambda row: (row[0], row[2]))


@contextmanager
def plain_store(root: str | None = None) -> Iterator[Store]:
    """Return a new root, in memory unless a folder is given."""
    client = Checkpointer(root or f"memory://{uuid.uuid4().hex}")
    with plain_spark(random.Random(1)):
        yield Store(client)


def frame(**columns: Any) -> Any:
    return PlainFrame(random.Random(1), [pa.table(columns)])


def upsert(expire: Expire | None = None, partitions: int = 2, **columns: Any) -> Callable[[State], None]:
    def work(state: State) -> None:
        state.table("t", ["k"], num_partitions=partitions, expire=expire).upsert(frame(**columns))

    return work


def opened(expire: Expire | None = None, partitions: int = 2) -> Callable[[State], None]:
    def work(state: State) -> None:
        state.table("t", ["k"], num_partitions=partitions, expire=expire)

    return work
