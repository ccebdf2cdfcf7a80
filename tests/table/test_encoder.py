"""Packs of wide tables: a column that no row of a pack has a value in is not there, and means what it meant."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")

from pyspark_checkpointer.spark import Expire
from pyspark_checkpointer.spark.state import State
from pyspark_checkpointer.table import packs, parquet_encode
from pyspark_checkpointer.table.schema import CHANGE, DELETE, KEPT, MERGE, PARTITION, RESET
from tests.table.plain_store import DAY, FIRST, Store, frame, opened, plain_store, upsert
from tests.table.tables import Change, Row, schema_of
from tests.table.test_version import Place

SCHEMA = schema_of({"k": "long", "n": "long", "a": "string", "b": "string"}, ["k"], n="sum")


def stored(place: Place, changes: list[Change]) -> list[str]:
    """The columns of the file of a pack."""
    (artifact,) = place.pack({0: changes}).values()
    names: list[str] = pq.read_schema(pa.BufferReader(place.read(artifact))).names
    return names


def test_a_pack_has_the_columns_in_which_a_row_has_a_value() -> None:
    kept = frozenset({"a", "b"})
    own = [PARTITION, CHANGE]
    assert stored(Place(SCHEMA), [(MERGE, (1, 5, None, None), kept), (MERGE, (2, None, None, None), kept)]) == [
        "k",
        "n",
        *own,
        KEPT,
    ]
    assert stored(Place(SCHEMA), [(DELETE, (1, None, None, None)), (RESET, (2, None, None, "x"))]) == ["k", "b", *own]
    assert stored(Place(SCHEMA), [(MERGE, (None, None, None, None))]) == ["k", *own]


def test_a_null_that_was_written_replaces_what_is_below_and_one_that_was_not_does_not() -> None:
    place, below = Place(SCHEMA), (5, "old", "old")
    place.snapshot(0, [(key, *below) for key in range(4)])
    names = stored(
        place,
        [
            (MERGE, (0, None, None, None)),
            (MERGE, (1, None, None, None), frozenset({"a"})),
            (MERGE, (2, None, None, None), frozenset({"a", "b"})),
            (RESET, (3, None, None, None)),
        ],
    )
    assert not {"n", "a", "b"} & {*names}
    wanted: list[Row] = [(0, 5, None, None), (1, 5, "old", None), (2, *below), (3, None, None, None)]
    assert place.rows(0) == wanted
    assert [place.lookup(0, [(key, *below)]) for key in range(4)] == [[row] for row in wanted]
    place.pack({0: [(MERGE, (4, None, None, None))]})
    place.compact({0: 1})  # the two packs become one
    assert len(place.chains[0]) == 2
    assert place.rows(0) == [*wanted, (4, None, None, None)]
    place.compact({0: 0})
    assert place.rows(0) == [*wanted, (4, None, None, None)]


@pytest.fixture(params=[False, True], ids=["whole", "in parts"])
def store(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A root, whose packs are large enough for filters and indexes or not."""
    if request.param:
        for name, value in (("PACK_BLOCK_ROWS", 1), ("MIN_PACK_BLOCKS", 1), ("LARGE_PACK_BYTES", 1)):
            monkeypatch.setattr(parquet_encode, name, value)
        monkeypatch.setattr(packs, "LARGE_PACK_BYTES", 1)
        monkeypatch.setattr(packs, "ROWS_PER_KEY", 1)
    with plain_store(str(tmp_path)) as found:
        yield found


def delete(*keys: int) -> Any:
    def work(state: State) -> None:
        state.table("t", ["k"]).delete(frame(k=pa.array(keys)))

    return work


def texts(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def test_every_reader_takes_a_column_that_a_pack_lacks_for_nulls(store: Store) -> None:
    keys = pa.array([1, 2, 3])
    store.batch(upsert(k=keys, a=texts("a", "b", "c"), b=texts("x", "y", "z")))
    store.batch(upsert(k=keys, b=texts("u", "v", "w")))  # keeps a
    store.batch(upsert(k=keys.slice(1), a=texts(None, None)))  # gives nulls, and keeps b
    store.batch(delete(3))
    rows = [{"k": 1, "a": "a", "b": "u"}, {"k": 2, "a": None, "b": "v"}]
    assert store.client.verify().findings == ()
    restored = store.client.restore()
    assert restored is not None
    assert restored.table("t").sort_by("k").to_pylist() == rows
    for key in (1, 2, 3):
        found = restored.table("t", keys=[{"k": key}]).to_pylist()
        assert found == [row for row in rows if row["k"] == key]
    assert store.feed(after="epoch=1") == [
        (3, "update_before", 2, "b", "v"),
        (3, "update_after", 2, None, "v"),
        (3, "update_before", 3, "c", "w"),
        (3, "update_after", 3, None, "w"),
        (4, "delete", 3, None, "w"),
    ]
    assert store.feed(after="epoch=0", to="epoch=1")[1] == (2, "update_after", 1, "a", "u")
    changes = restored.history("t", {"k": 2}).changes
    assert [found.after for found in changes] == [
        {"k": 2, "a": "b", "b": "y"},
        {"k": 2, "a": "b", "b": "v"},
        {"k": 2, "a": None, "b": "v"},
    ]
    store.batch(lambda state: state.table("t", ["k"]).compact())
    restored = store.client.restore()
    assert restored is not None
    assert restored.table("t").sort_by("k").to_pylist() == rows


def test_rows_whose_time_a_pack_lacks_expire_by_the_time_that_they_keep(store: Store) -> None:
    rule, keys = Expire("at", after=DAY), pa.array([1, 2])
    store.batch(upsert(rule, k=keys, at=pa.array([FIRST] * 2), n=pa.array([0, 0])), 0)
    store.batch(upsert(rule, k=keys.slice(0, 1), n=pa.array([5])), 0)  # keeps its time
    store.batch(upsert(rule, k=keys.slice(1), at=pa.nulls(1, pa.timestamp("us", "UTC"))), 0)  # gives none
    store.batch(opened(rule), 2)
    restored = store.client.restore()
    assert restored is not None
    assert restored.table("t").to_pylist() == [{"k": 2, "at": None, "n": 0}]
    assert [row[1:3] for row in store.feed(after="epoch=2")] == [("expire", 1)]


def test_the_columns_that_rows_keep_do_not_part_them() -> None:
    """The text of the kept columns of 400 is a hundred times as wide as the values, and stored once."""
    rows, schema = 2000, schema_of({"k": "long"} | {f"c{n}": "long" for n in range(400)}, ["k"])
    kept = frozenset(column.name for column in schema.values)
    place = Place(schema)
    (artifact,) = place.pack({0: [(MERGE, (key, *[None] * 400), kept) for key in range(rows)]}).values()
    assert pq.read_metadata(pa.BufferReader(place.read(artifact))).num_row_groups == 1


def size(root: Path) -> int:
    return sum(os.path.getsize(path) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("change", ["upsert", "delete"])
def test_a_change_of_few_columns_costs_little_however_many_there_are(change: str, tmp_path: Path) -> None:
    columns, keys = 300, pa.array(range(2000))
    with plain_store(str(tmp_path)) as store:
        store.batch(upsert(k=keys.slice(0, 1), **{f"c{n}": pa.array([1.0]) for n in range(columns)}))
        store.batch(opened())
        before = size(tmp_path)
        store.batch(opened())
        manifest = size(tmp_path) - before
        store.batch(delete(*range(2000)) if change == "delete" else upsert(k=keys, c1=pa.array([1.5] * 2000)))
        # A page of each column in each row group would be ten times as much.
        assert size(tmp_path) - before - 2 * manifest < 40_000
