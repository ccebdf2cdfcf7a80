"""The change feed of a table over what is rare: rollbacks, and checkpoints that move bytes and change nothing."""

import random
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint.ancestry import read_ancestry
from pyspark_checkpointer.checkpoint.resolve import CheckpointSelector
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import Expire
from pyspark_checkpointer.spark.state import State
from pyspark_checkpointer.table.feed import ROW_CHANGE, FeedReader, feed_steps, newest_schema
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


@pytest.fixture
def store() -> Iterator[Store]:
    client = Checkpointer(f"memory://{uuid.uuid4().hex}")
    with plain_spark(random.Random(1), client):
        yield Store(client)


def frame(**columns: list[Any]) -> Any:
    return PlainFrame(random.Random(1), [pa.table(columns)])


def upsert(expire: Expire | None = None, partitions: int = 2, **columns: list[Any]) -> Callable[[State], None]:
    def work(state: State) -> None:
        state.table("t", ["k"], num_partitions=partitions, expire=expire).upsert(frame(**columns))

    return work


def opened(expire: Expire | None = None, partitions: int = 2) -> Callable[[State], None]:
    def work(state: State) -> None:
        state.table("t", ["k"], num_partitions=partitions, expire=expire)

    return work


def test_a_rollback_brings_expired_rows_back(store: Store) -> None:
    rule = Expire("at", after=DAY)
    store.batch(upsert(rule, k=[1, 2], at=[FIRST, FIRST + 5 * DAY]), 0)
    store.batch(opened(rule), 3)
    store.client.rollback("epoch=0")
    assert store.feed() == [
        (1, "insert", 1, FIRST),
        (1, "insert", 2, FIRST + 5 * DAY),
        (2, "expire", 1, FIRST),
        (3, "insert", 1, FIRST),
    ]


def test_a_rollback_takes_back_that_rows_expire(store: Store) -> None:
    store.batch(upsert(k=[1], at=[FIRST]), 3)
    store.batch(opened(Expire("at", after=DAY)), 4)
    store.client.rollback("epoch=0")
    assert [row[:3] for row in store.feed()] == [(1, "insert", 1), (2, "expire", 1), (3, "insert", 1)]


def test_a_rollback_brings_a_column_back_with_its_values(store: Store) -> None:
    store.batch(upsert(k=[1, 2], a=["x", "y"], b=[5, None]))

    def drop(state: State) -> None:
        state.table("t", ["k"]).drop_columns(["b"])

    store.batch(drop)
    store.client.rollback("epoch=0")
    assert store.feed(after="epoch=0", to="latest") == []  # `epoch=0` is the newest of that epoch
    first = str(store.client.list_checkpoints()[0])
    assert store.feed(after=first) == [
        (2, "update_before", 1, "x", 5),
        (2, "update_after", 1, "x", None),
        (3, "update_before", 1, "x", None),
        (3, "update_after", 1, "x", 5),
    ]


def test_what_moves_bytes_alone_changes_nothing(store: Store) -> None:
    store.batch(upsert(k=[1, 2, 3], v=["a", "b", "c"]))
    store.batch(upsert(k=[2], v=["B"]))

    def compact(state: State) -> None:
        state.table("t", ["k"]).compact()

    store.batch(compact)
    store.batch(upsert(partitions=5, k=[3], v=["c"]))
    store.batch(upsert(partitions=5, k=[4], v=["d"]))
    assert store.feed(after="epoch=0") == [
        (2, "update_before", 2, "b"),
        (2, "update_after", 2, "B"),
        (5, "insert", 4, "d"),
    ]
    assert store.feed(after="latest") == []
