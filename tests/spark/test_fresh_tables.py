"""What a function says in every batch it may say in the first one, when the table has no columns yet."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.spark import Expire
from pyspark_checkpointer.spark.state import State
from tests.proof.plain_spark import new_state
from tests.table.plain_store import DAY, FIRST, Store, frame, plain_store


@pytest.fixture
def store() -> Iterator[Store]:
    with plain_store() as made:
        yield made


def rows(store: Store) -> list[dict[str, Any]]:
    restored = store.client.restore()
    assert restored is not None
    found: list[dict[str, Any]] = restored.table("t").sort_by("k").to_pylist()
    return found


def test_columns_may_be_dropped_before_anything_was_written(store: Store) -> None:
    def work(state: State) -> None:
        table = state.table("t", ["k"], num_partitions=1)
        table.drop_columns(["old"])
        table.upsert(frame(k=[1], v=[store.epoch]))

    store.batch(work)
    store.batch(lambda state: state.table("t", ["k"], num_partitions=1).upsert(frame(k=[2], old=["x"])))
    assert rows(store) == [{"k": 1, "v": 0, "old": None}, {"k": 2, "v": None, "old": "x"}]
    store.batch(work)
    assert rows(store) == [{"k": 1, "v": 2}, {"k": 2, "v": None}]


@pytest.mark.parametrize("late", [False, True])
def test_a_table_may_be_compacted_before_anything_was_written(store: Store, late: bool) -> None:
    """Also where the rows come after the call: it takes effect at the end of the batch."""

    def work(state: State) -> None:
        table = state.table("t", ["k"], num_partitions=1)
        if not late:
            table.compact()
        if store.epoch:
            table.upsert(frame(k=[store.epoch]))
        if late:
            table.compact()

    store.batch(work)
    restored = store.client.restore()
    assert restored is not None
    assert restored.operators == []
    for _ in range(2):
        store.batch(work)
    assert rows(store) == [{"k": 1}, {"k": 2}]
    restored = store.client.restore()
    assert restored is not None
    assert restored.manifest is not None
    chains = restored.manifest.operators["t"].chains
    assert [[artifact.kind for artifact in chain] for chain in chains.values()] == [["snapshot"]]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("old", "drop_columns.*expected a list of column names"),
        (["old", 5], "drop_columns.*expected a list of column names"),
        (["old", "k"], "column k is part of the key, and cannot be dropped"),
        (["at"], "rows expire .* after at, and there would be no such column"),
    ],
)
@pytest.mark.parametrize("written", [False, True])
def test_what_can_never_be_dropped_is_refused_from_the_first_batch_on(
    store: Store, columns: Any, message: str, written: bool
) -> None:
    def opened(state: State) -> Any:
        return state.table("t", ["k"], expire=Expire("at", after=DAY))

    if written:
        store.batch(lambda state: opened(state).upsert(frame(k=[1], at=[FIRST])), 0)
    state = new_state(store.client, store.client.restore(), store.epoch)
    state.advance_clock(FIRST)
    with pytest.raises(IllegalArgumentError, match=message):
        opened(state).drop_columns(columns)
    state._attempt.abort()
