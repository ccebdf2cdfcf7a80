"""The change feed of a table over what is rare: rollbacks, and checkpoints that move bytes and change nothing."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.spark import Expire
from pyspark_checkpointer.spark.state import State
from pyspark_checkpointer.table import feed, feed_reader, large_rows
from pyspark_checkpointer.table.feed import _moved_groups
from pyspark_checkpointer.table.row_equality import equal_rows
from pyspark_checkpointer.table.version import TableVersion
from tests.table.plain_store import DAY, FIRST, Store, frame, opened, plain_store, upsert
from tests.table.tables import schema_of


def test_partitions_that_cannot_share_a_key_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def groups(old: int, new: int, numbers: Iterable[int], kind: str = "long") -> list[tuple[int, ...]]:
        before, after = (
            TableVersion("t", schema_of({"k": kind}, ["k"]), partitions, {})
            for partitions, kind in ((old, "long"), (new, kind))
        )
        chains: Any = {number: (SimpleNamespace(raw_size=10),) for number in numbers}
        return [*_moved_groups(dataclasses.replace(before, chains=chains), after, sorted(chains))]

    assert groups(4, 8, range(8)) == [tuple(range(8))], "small ones come together"
    monkeypatch.setattr(feed, "TOGETHER_BYTES", 40)
    assert groups(4, 8, range(8)) == [(0, 1, 4, 5), (2, 3, 6, 7)]
    monkeypatch.setattr(feed, "TOGETHER_BYTES", 20)
    assert groups(4, 8, range(8)) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert groups(6, 4, range(6)) == [(0, 2, 4), (1, 3, 5)]
    assert groups(3, 4, [0, 2, 3]) == [(0, 2, 3)]
    assert groups(4, 8, range(8), "integer") == [tuple(range(8))]
    assert groups(2**31, 2**30, [7, 2**30 + 7, 8]) == [(7, 2**30 + 7), (8,)]


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


def test_rows_beyond_32_bit_offsets_are_compared(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[pa.DataType] = []

    def noted(left: pa.Table, right: pa.Table) -> Any:
        compared.extend((left.schema.field("a").type, right.schema.field("a").type))
        return equal_rows(left, right)

    store.batch(upsert(k=[1, 2, 3], a=["x", "y", "z"]))
    store.batch(upsert(k=[1, 2], a=["x", "w"]))
    expected = store.feed()
    monkeypatch.setattr(large_rows, "NARROW_BYTES", 1)
    monkeypatch.setattr(feed_reader, "equal_rows", noted)
    assert store.feed() == expected
    assert set(compared) == {pa.large_string()}


def test_a_rollback_takes_back_that_rows_expire(store: Store) -> None:
    store.batch(upsert(k=[1], at=[FIRST]), 3)
    store.batch(opened(Expire("at", after=DAY)), 4)
    store.client.rollback("epoch=0")
    assert [row[:3] for row in store.feed()] == [(1, "insert", 1), (2, "expire", 1), (3, "insert", 1)]


def test_a_rollback_brings_a_column_back_with_its_values(store: Store) -> None:
    store.batch(upsert(k=[1, 2], a=["x", "y"], b=[5, None]))

    def drop_b(state: State) -> None:
        state.table("t", ["k"]).drop_columns(["b"])

    store.batch(drop_b)
    store.client.rollback("epoch=0")
    assert store.feed(after="epoch=0", to="latest") == []  # `epoch=0` is the newest of that epoch
    first = str(store.client.list_checkpoints()[0])
    assert store.feed(after=first) == [
        (2, "update_before", 1, "x", 5),
        (2, "update_after", 1, "x", None),
        (3, "update_before", 1, "x", None),
        (3, "update_after", 1, "x", 5),
    ]


def test_a_rollback_over_a_wider_column_shows_its_values(store: Store) -> None:
    for value, kind in ((1, pa.int32()), (2, pa.int64()), (3, pa.int64())):
        store.batch(upsert(k=pa.array([1], kind), v=pa.array([value], kind)))
    store.client.rollback(store.client.list_checkpoints()[0])
    assert store.feed() == [
        (1, "insert", 1, 1),
        (2, "update_before", 1, 1),
        (2, "update_after", 1, 2),
        (3, "update_before", 1, 2),
        (3, "update_after", 1, 3),
        (4, "update_before", 1, 3),
        (4, "update_after", 1, 1),
    ]


def test_two_wider_types_are_shown_in_one_that_has_both(store: Store) -> None:
    first = upsert(k=[1], v=pa.array([1], pa.int32()))
    store.batch(first)
    store.batch(upsert(k=[1], v=pa.array([2**40], pa.int64())))
    store.client.rollback(store.client.list_checkpoints()[0])
    store.batch(upsert(k=[1], v=pa.array([Decimal("0.25")], pa.decimal128(12, 2))))
    assert [row[1:] for row in store.feed(after=str(store.client.list_checkpoints()[1]))] == [
        ("update_before", 1, Decimal(2**40)),
        ("update_after", 1, 1),
        ("update_before", 1, 1),
        ("update_after", 1, Decimal("0.25")),
    ]


def drop(state: State) -> None:
    state.table("t", ["k"]).drop_columns(["v"])


def replace(state: State) -> None:
    state.table("t", ["k"]).replace(frame(k=[1, 2]))


@pytest.mark.parametrize("work", [drop, replace])
def test_a_column_that_comes_back_has_lost_its_values(store: Store, work: Callable[[State], None]) -> None:
    store.batch(upsert(k=[1, 2], v=[5, 6]))
    store.batch(work)
    store.batch(upsert(k=[1], v=[9]))
    assert store.feed(after="epoch=0") == [
        (2, "update_before", 1, 5),
        (2, "update_after", 1, None),
        (2, "update_before", 2, 6),
        (2, "update_after", 2, None),
        (3, "update_before", 1, None),
        (3, "update_after", 1, 9),
    ]


def test_a_column_that_comes_back_in_one_batch_has_lost_its_values(store: Store) -> None:
    def back(state: State) -> None:
        table = state.table("t", ["k"])
        table.drop_columns(["v"])
        table.upsert(frame(k=[1], v=[9]))

    store.batch(upsert(k=[1, 2], v=[5, 6]))
    store.batch(back)
    assert store.feed(after="epoch=0") == [
        (2, "update_before", 1, 5),
        (2, "update_after", 1, 9),
        (2, "update_before", 2, 6),
        (2, "update_after", 2, None),
    ]


def test_a_value_of_another_type_is_null_and_an_update_tells_that_it_went(store: Store) -> None:
    def remake(state: State) -> None:
        state.drop("t")
        state.table("t", ["k"], num_partitions=2).upsert(frame(k=[1, 2, 3], v=["a", None, None]))

    store.batch(upsert(k=[1, 2, 3], v=[5, 6, None]))
    store.batch(upsert(k=[1], v=[7]))
    store.batch(remake)
    assert store.feed(after=str(store.client.list_checkpoints()[0])) == [
        (2, "update_before", 1, None),
        (2, "update_after", 1, None),
        (3, "update_before", 1, None),
        (3, "update_after", 1, "a"),
        (3, "update_before", 2, None),
        (3, "update_after", 2, None),
    ]


def test_a_column_of_another_type_is_not_the_time_of_the_rows(store: Store) -> None:
    """Rows expire by a column whose name the newest table has in another type: it is read, and shown as null."""

    def remake(state: State) -> None:
        state.drop("t")
        state.table("t", ["k"], num_partitions=2).upsert(frame(k=[2], at=["text"]))

    rule = Expire("at", after=DAY)
    store.batch(upsert(rule, k=[1, 2], at=[FIRST, FIRST + 5 * DAY]), 0)
    store.batch(opened(rule), 3)
    store.batch(remake, 3)
    assert store.feed() == [
        (1, "insert", 1, None),
        (1, "insert", 2, None),
        (2, "expire", 1, None),
        (3, "update_before", 2, None),
        (3, "update_after", 2, "text"),
    ]


def test_a_table_made_again_with_its_key_goes_on(store: Store) -> None:
    def remake(state: State) -> None:
        state.drop("t")
        state.table("t", ["k"], num_partitions=2).upsert(frame(v=[5, 6], w=[1, 1], k=[1, 2]))

    store.batch(upsert(k=[1, 2], v=[5, 6]))
    store.batch(remake)
    assert [row[1] for row in store.feed(after="epoch=0")] == ["update_before", "update_after"] * 2
    assert [row[2:] for row in store.feed(after="epoch=0")][:2] == [(1, 5, None), (1, 5, 1)]


def test_another_key_is_refused_with_what_can_be_read(store: Store) -> None:
    def remake(state: State) -> None:
        state.drop("t")
        state.table("t", ["j"]).upsert(frame(j=["a"], k=[1]))

    store.batch(upsert(k=[1]))
    store.batch(upsert(k=[2]))
    store.batch(remake)
    last, first = store.client.list_checkpoints()[1:]
    with pytest.raises(IllegalArgumentError, match="its key changed after") as caught:
        store.feed()
    assert f"after='{first}'" in str(caught.value)
    assert f"to='{last}'" in str(caught.value)
    assert store.feed(after=str(first)) == []
    assert [row[1:] for row in store.feed(to=str(last))] == [("insert", 1), ("insert", 2)]


def test_a_name_that_was_a_map_is_read_from_the_first_table_on(store: Store) -> None:
    def remake(state: State) -> None:
        state.drop("t")
        state.table("t", ["k"]).upsert(frame(k=[1]))

    store.batch(lambda state: state.map("t").update({1: "x"}))
    store.batch(remake)
    store.batch(upsert(k=[2]))
    last, first = store.client.list_checkpoints()[:2]
    with pytest.raises(IllegalArgumentError, match=f"{last}, and perhaps older ones, have no table") as caught:
        store.feed()
    assert str(caught.value).endswith(f"read the changes since with after='{first}'")
    assert [row[1:] for row in store.feed(after=str(first))] == [("insert", 2)]
    restored = store.client.restore()
    assert restored is not None
    with pytest.raises(IllegalArgumentError, match=f"read the changes since with after='{first}'"):
        restored.history("t", 2)
    assert [change.change for change in restored.history("t", 2, after=first).changes] == ["insert"]


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


# ---- sums of changes that do not fit into their type -----------------------------------------------------------------


def add(*frames: dict[str, Any], expire: Expire | None = None) -> Callable[[State], None]:
    """Add up `n`, a byte, with one call for each frame."""

    def work(state: State) -> None:
        table = state.table("t", ["k"], num_partitions=1, combine={"n": "sum"}, expire=expire)
        for columns in frames:
            table.upsert(frame(**columns | {"n": pa.array(columns["n"], pa.int8())}))

    return work


def test_changes_whose_sum_fits_only_with_the_row_below_are_in_the_feed_and_in_the_history(store: Store) -> None:
    """The second batch keeps a title, and its two calls add more than a byte can hold."""
    store.batch(add({"k": [1, 2], "title": ["a", "b"], "n": [-100, 0]}))
    store.batch(add({"k": [1, 3], "n": [100, 1]}, {"k": [1], "n": [100]}))
    assert store.feed() == [
        (1, "insert", 1, "a", -100),
        (1, "insert", 2, "b", 0),
        (2, "update_before", 1, "a", -100),
        (2, "update_after", 1, "a", 100),
        (2, "insert", 3, None, 1),
    ]
    restored = store.client.restore()
    assert restored is not None
    changes = restored.history("t", 1).changes
    assert [(one.change, one.after) for one in changes] == [
        ("insert", {"k": 1, "title": "a", "n": -100}),
        ("update", {"k": 1, "title": "a", "n": 100}),
    ]


def test_such_changes_are_in_the_feed_beside_rows_that_expire(store: Store) -> None:
    rule = Expire("at", after=DAY)
    store.batch(add({"k": [1, 2, 3], "at": [FIRST + 5 * DAY, FIRST, FIRST], "n": [-100, 0, 1]}, expire=rule), 0)
    late, later = FIRST + 5 * DAY, FIRST + 6 * DAY
    store.batch(add(*[{"k": [1, 3], "at": [late, later], "n": [100, 63]}] * 2, expire=rule), 3)
    assert store.feed(after="epoch=0") == [
        (2, "update_before", 1, late, -100),
        (2, "update_after", 1, late, 100),
        (2, "expire", 2, FIRST, 0),
        (2, "update_before", 3, FIRST, 1),
        (2, "update_after", 3, later, 126),
    ]
    restored = store.client.restore()
    assert restored is not None
    assert [one.change for one in restored.history("t", 1).changes] == ["insert", "update"]
    assert [one.change for one in restored.history("t", 2).changes] == ["insert", "expire"]
