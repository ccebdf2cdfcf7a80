"""The change feed of a table over what is rare: rollbacks, and checkpoints that move bytes and change nothing."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark_checkpointer.spark import Expire
from pyspark_checkpointer.spark.state import State
from tests.table.plain_store import DAY, FIRST, Store, opened, plain_store, upsert


@pytest.fixture
def store() -> Iterator[Store]:
    with plain_store() as made:
        yield made


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


def test_the_newest_changes_are_read_without_the_whole_history(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in range(4):
        store.batch(upsert(k=[key]))
    parent, last = store.client.list_checkpoints()[-2:]

    async def refuse(*_: Any) -> Any:
        raise AssertionError("the whole history was read")

    monkeypatch.setattr("pyspark_checkpointer.checkpoint.ancestry.read_history", refuse)
    assert [row[1:] for row in store.feed(str(parent))] == [("insert", 3)]
    with pytest.raises(AssertionError, match="whole history"):
        store.feed(None, str(last))
