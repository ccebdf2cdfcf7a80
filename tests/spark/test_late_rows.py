"""Rows that a batch writes with a time that has passed already: they expire with that batch."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from pyspark_checkpointer.table.packs import Packs
from tests.spark.expiring import DAY, RULE, START, UTC_TIME, Place, given, keys


@pytest.fixture(autouse=True)
def every_pack_is_let_go(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each reader of a test has let its packs go: it was asked for each of them as often as it expected."""
    made: list[Packs] = []
    begin = Packs.__init__

    def noting(packs: Packs, *given: Any) -> None:
        begin(packs, *given)
        made.append(packs)

    monkeypatch.setattr(Packs, "__init__", noting)
    yield
    assert made
    assert not any(packs._tasks for packs in made)


@pytest.mark.parametrize("how", ["upsert", "apply", "apply and read again", "replace"])
def test_a_row_that_is_written_too_late_expires_with_its_batch(place: Place, how: str) -> None:
    """An event that comes late may end the row of its key, or begin one that has ended: neither is lost."""
    place.batch(0, given((1, 0), (2, 0), (3, 0)))
    place.batch(5, given((2, 5), (4, 5), (5, 5)))
    place.batch(11, given((7, 11)))  # 1 and 3 have expired, and are in the store still
    state = place.begin(12)
    table = state.table("t", ["k"], num_partitions=2, expire=RULE)
    assert keys(table.expired().rows.to_pylist()) == []
    rows = place.frame(given((2, 1), (9, 2), (4, 9)))
    if how.startswith("apply"):
        table.apply(rows, lambda rows, state: rows)
    else:
        getattr(table, how)(rows)
    if how.endswith("again"):
        table.delete(place.frame(pa.table({"k": [8]})))  # one more delta
        assert sorted(keys(table.read().rows.to_pylist())) == [4, 5, 7]
    assert sorted(keys(table.expired().rows.to_pylist())) == [2, 9]
    assert sorted(table.expired(["seen"]).rows["seen"].to_pylist()) == [START + DAY, START + 2 * DAY]
    place.commit(state)
    assert keys(place.rows()) == ([4] if how == "replace" else [4, 5, 7])
    state = place.begin(13)
    table = state.table("t", ["k"], num_partitions=2, expire=RULE)
    assert keys(table.expired().rows.to_pylist()) == []


def test_a_row_too_late_is_combined_first_and_is_returned_whatever_follows(place: Place) -> None:
    combine = {"seen": "max", "n": "sum"}
    place.batch(0, given((1, 0), (2, 0), n=[1, 1]), combine=combine)
    place.batch(5, given((1, 5), n=[1]), combine=combine)
    state = place.begin(14)
    table = state.table("t", ["k"], num_partitions=2, combine=combine, expire=RULE)
    table.upsert(place.frame(given((1, 1), (3, 3), (4, 3), n=[1, 1, 1])))
    # The row of 1 lives until day 15, whatever came late. That of 2 has expired, and nothing was written.
    assert sorted(keys(table.expired().rows.to_pylist())) == [2, 3, 4]
    table.upsert(place.frame(given((3, 14), n=[1])))
    table.delete(place.frame(pa.table({"k": [4]})))
    table.upsert(place.frame(given((3, 2), (5, 1), n=[1, 5])))  # That of 3 lives on.
    table.upsert(place.frame(given((5, 2), n=[6])))
    found = [(row["k"], row["n"]) for row in table.expired().rows.to_pylist()]
    assert sorted(found) == [(2, 1), (3, 1), (4, 1), (5, 5), (5, 6)]
    place.commit(state)
    assert [(row["k"], row["n"]) for row in place.rows()] == [(1, 3), (3, 2)]


@pytest.mark.parametrize("then", ["replace", "widen the key", "apply"])
def test_a_row_too_late_is_not_lost_with_the_objects_that_hold_it(place: Place, then: str) -> None:
    def of(kind: pa.DataType, *found: tuple[int, float]) -> Any:
        rows = given(*found)
        return place.frame(rows.set_column(0, "k", rows["k"].cast(kind)))

    small = pa.int32()
    state = place.begin(0)
    state.table("t", ["k"], num_partitions=2, expire=RULE).upsert(of(small, (1, 0), (2, 5)))
    place.commit(state)
    state = place.begin(12)
    table = state.table("t", ["k"], num_partitions=2, expire=RULE)
    table.upsert(of(small, (3, 1), (4, 12)))
    if then == "apply":
        table.apply(of(small, (3, 12)), lambda rows, state: rows)  # it sees no row of 3
    else:
        getattr(table, "replace" if then == "replace" else "upsert")(of(pa.int64(), (5, 12)))
    assert sorted(keys(table.expired().rows.to_pylist())) == [1, 3]
    place.commit(state)
    assert keys(place.rows()) == {"replace": [5], "widen the key": [2, 4, 5], "apply": [2, 3, 4]}[then]


def test_a_row_too_late_is_returned_by_a_batch_that_compacts(place: Place) -> None:
    place.batch(0, given((1, 0)))
    state = place.begin(12)
    table = state.table("t", ["k"], num_partitions=2, expire=RULE)
    table.upsert(place.frame(given((2, 1), (3, 12))))
    table.compact()
    assert sorted(keys(table.expired().rows.to_pylist())) == [1, 2]
    place.commit(state)
    version = table._changes.version
    assert version is not None
    assert [artifact.records for chain in version.chains.values() for artifact in chain] == [1]


def test_a_row_too_late_has_the_columns_of_the_last_checkpoint_after_a_drop(place: Place) -> None:
    place.batch(0, pa.table({"k": [1], "seen": pa.array([START], UTC_TIME), "a": [1], "b": [1]}))
    state = place.begin(12)
    table = state.table("t", ["k"], num_partitions=2, expire=RULE)
    table.drop_columns(["a", "b"])
    table.upsert(place.frame(pa.table({"k": [2], "seen": pa.array([START], UTC_TIME), "a": ["x"], "c": [5]})))
    found = sorted(table.expired().rows.to_pylist(), key=lambda row: row["k"])
    assert [(row["k"], row["a"], row["b"]) for row in found] == [(1, 1, 1), (2, None, None)]
