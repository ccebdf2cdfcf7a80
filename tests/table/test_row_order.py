"""Rows come in any order and in many pieces, and are sorted without a third copy of them."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.write_tasks import TaskOutput, WriteTask
from pyspark_checkpointer.table import parquet_encode, reader
from pyspark_checkpointer.table.row_order import count_up_to, in_order, last_up_to
from pyspark_checkpointer.table.schema import DELETE, MERGE, PARTITION, TableSchema
from tests.table.tables import NAN, ORDERED, Change, Model, rows_in, schema_of, snapshot_rows
from tests.table.test_version import Place, standing_alone

COLUMNS_OF_ROWS = pa.schema(
    {
        "a": pa.string(),
        "b": pa.float64(),
        "n": pa.int64(),
        "list": pa.list_(pa.string()),
        "inside": pa.struct({"x": pa.string(), "y": pa.int64()}),
        PARTITION: pa.int32(),
    }
)

ROWS = st.lists(
    st.tuples(
        st.sampled_from([None, "", "a", "é"]),
        st.sampled_from([None, -1.5, 0.0, 2.0, NAN]),
        st.sampled_from([[], [None], ["x", "yy"]]),
        st.sampled_from([None, {"x": "x", "y": 1}, {"x": None, "y": None}]),
        st.integers(0, 3),
    ),
    max_size=30,
)


def place(row: dict[str, Any], key: list[str]) -> tuple[Any, ...]:
    """Return what the place of a row depends on: NaN is above all numbers, and nulls are last."""
    values = [row[name] for name in key]
    ranked = [(value is None, value != value, 0 if value is None or value != value else value) for value in values]
    return row.get(PARTITION, 0), *ranked


@given(ROWS, st.lists(st.integers(0, 30)), st.sampled_from([["a"], ["b"], ["n"], ["b", "a"]]), st.booleans())
def test_rows_in_pieces_are_sorted_as_the_same_rows_in_one(
    given: list[tuple[Any, ...]], cuts: list[int], key: list[str], parted: bool
) -> None:
    numbered = [(a, b, -number, *rest) for number, (a, b, *rest) in enumerate(given)]
    table = pa.Table.from_pylist(
        [dict(zip(COLUMNS_OF_ROWS.names, row, strict=True)) for row in numbered], COLUMNS_OF_ROWS
    )
    if not parted:
        table = table.drop_columns([PARTITION])
    edges = sorted({0, len(given), *(cut for cut in cuts if cut < len(given))})
    pieces = [table.slice(start, end - start) for start, end in pairwise(edges)]
    found = in_order(pa.concat_tables(pieces or [table]), key, stable=True)
    assert found.schema == table.schema
    assert repr(found.to_pylist()) == repr(sorted(table.to_pylist(), key=lambda row: place(row, key)))
    assert all(column.num_chunks <= 1 for column in found.columns)


@pytest.mark.parametrize("kind", ["int64", "float64", "str"])
@pytest.mark.parametrize("parted", [False, True])
def test_rows_of_one_key_keep_their_order_where_that_counts(kind: str, parted: bool) -> None:
    """There are so many that a sort without this promise would change it."""
    draw, count = np.random.default_rng(0), 5_000
    columns = {"k": draw.integers(0, 40, count).astype(kind), "age": np.arange(count)}
    if parted:
        columns[PARTITION] = draw.integers(0, 3, count).astype("int32")
    rows = in_order(pa.table(columns), ["k"], stable=True).to_pylist()
    assert rows == sorted(rows, key=lambda row: (row.get(PARTITION, 0), row["k"], row["age"]))


def test_the_newest_of_many_changes_of_a_key_counts_in_a_large_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "STREAMED_SNAPSHOT_BYTES", 0)
    place = Place(schema_of({"k": "long", "v": "long"}, ["k"]))
    keys = range(400)
    place.snapshot(0, [(key, 0) for key in keys])
    for age in range(1, 6):
        place.pack({0: standing_alone(place.schema, [(MERGE, (key, age)) for key in keys])})

    async def read() -> list[dict[str, Any]]:
        return [row async for rows in place.reader().pieces(0) for row in rows.to_pylist()]

    assert sorted((row["k"], row["v"]) for row in run_sync(read())) == [(key, 5) for key in keys]


# ---- names of columns ------------------------------------------------------------------------------------------------

NAMES = ["", ".", "..", ".a", ".a.b", ".[0]", ".a[0]", "[0]", "a.b", "a[0]", "1", "a\\", ".a\\", "'", '"', '.a"', "`a`"]
"""Names that Arrow, Parquet or Spark could read as something else, beside a column `a`."""

KINDS = ["long", "string", "binary", "double", "boolean", "date", "timestamp", "decimal(5,2)", "decimal(38,0)"]


def both_keys(kind: str) -> list[tuple[Any, Any]]:
    """All pairs of some values and null, in their order, in which null is last."""
    values = [*ORDERED[kind][:3], None]
    return [(first, then) for first in values for then in values]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_in_the_order_of_their_key_whatever_its_columns_are_called(name: str, kind: str) -> None:
    schema = schema_of({name: kind, "a": kind, "v": "long"}, [name, "a"])
    expected = [(*key, number) for number, key in enumerate(both_keys(kind))]
    given = snapshot_rows(schema, random.Random(0).sample(expected, len(expected)))
    rows = in_order(given, schema.key)
    assert rows.equals(snapshot_rows(schema, expected))
    places = given["v"].to_pylist()
    assert [count_up_to(rows, given.slice(at, 1), schema.key) for at in range(len(places))] == [p + 1 for p in places]
    assert last_up_to(rows, given, schema.key).tolist() == places
    alone = given.filter(pc.is_null(given["a"]))
    assert in_order(alone, [name]).equals(rows.filter(pc.is_null(rows["a"])))


@pytest.mark.parametrize("kind", ["long", "string"])
@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_written_and_read_whatever_its_columns_are_called(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    """As a whole, by keys with an index of blocks, in pieces, and after a compaction."""
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_ROWS", 4)
    monkeypatch.setattr(parquet_encode, "BLOCK_ROWS", 2)
    monkeypatch.setattr(parquet_encode, "MIN_BLOCKS", 2)
    other = f"{name}{name}."
    schema = schema_of({name: kind, "a": kind, other: "string", "n": "long"}, [name, "a"], n="sum")
    below = [(*key, f"v{number}", number) for number, key in enumerate(both_keys(kind))]
    changes: list[Change] = [(MERGE, (*row[:2], None, 1), frozenset([other])) for row in below[::3]]
    changes += [(DELETE, (*row[:2], None, None), frozenset()) for row in below[1::3]]
    place, model = Place(schema), Model(schema, below).do(changes)
    place.snapshot(0, below)
    place.pack({0: changes})
    assert place.rows(0) == model.rows()
    assert place.lookup(0, below) == model.rows()
    assert place.lookup(0, below[:1]) == rows_in(snapshot_rows(schema, [(*below[0][:3], 1)]))
    monkeypatch.setattr(reader, "STREAMED_SNAPSHOT_BYTES", 0)
    monkeypatch.setattr(reader, "MAX_PIECE_ROW_GROUPS", 1)

    async def read() -> list[pa.Table]:
        return [rows async for rows in place.reader().pieces(0)]

    assert rows_in(pa.concat_tables(run_sync(read()))) == model.rows()
    found = place.reader([other])
    assert rows_in(run_sync(found.rows(0))) == rows_in(run_sync(place.reader().rows(0)).select([other]))
    place.compact({0: 0})
    assert place.rows(0) == model.rows()


# ---- what is in memory meanwhile -------------------------------------------------------------------------------------

COLUMNS, COUNT = 16, 40_000

POOLS: list[pa.MemoryPool] = []
"""A pool must not end before what was allocated from it."""


@pytest.fixture
def counted() -> Iterator[Callable[[], pa.MemoryPool]]:
    """Give a pool that counts what Arrow allocates from then on."""
    before = pa.default_memory_pool()

    def count() -> pa.MemoryPool:
        POOLS.append(pa.proxy_memory_pool(before))
        pa.set_memory_pool(POOLS[-1])
        return POOLS[-1]

    yield count
    pa.set_memory_pool(before)


def batches(kinds: dict[str, Any]) -> list[pa.RecordBatch]:
    """Batches as Spark hands them over, each in a buffer of its own."""
    draw = np.random.default_rng(0)
    keys, made = draw.permutation(COUNT), []
    for start in range(0, COUNT, 10_000):
        columns = {name: draw.integers(0, 1 << 60, 10_000) for name in kinds} | {"k": keys[start : start + 10_000]}
        columns[PARTITION] = (columns["k"] % 7).astype("int32")
        sink = pa.BufferOutputStream()
        batch = pa.record_batch(columns)
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        made.append(pa.ipc.open_stream(sink.getvalue()).read_next_batch())
    return made


KINDS_OF_BATCHES: dict[str, Any] = {f"c{number}": "long" for number in range(COLUMNS)}


def test_sorting_takes_no_third_copy_of_rows(counted: Callable[[], pa.MemoryPool]) -> None:
    given = batches(KINDS_OF_BATCHES)
    sorting = counted()
    rows = in_order(pa.Table.from_batches(given), ["k"])
    assert rows.nbytes == sum(batch.nbytes for batch in given)
    assert sorting.max_memory() < 1.3 * rows.nbytes


@dataclass
class Nowhere:
    """A target that only looks at what is in memory when it is given the rows."""

    schema: TableSchema
    given: pa.MemoryPool
    table: str = "t"
    partitions: int = 7
    root: Any = field(default_factory=Mock)  # a task opens it first

    def leaves_to_driver(self, size: int) -> bool:
        return False

    def write(self, rows: pa.Table, whole: object, into: TaskOutput) -> None:
        assert rows.num_rows == COUNT
        assert self.given.bytes_allocated() == 0
        assert pa.default_memory_pool().bytes_allocated() < 1.2 * rows.nbytes


def test_a_task_holds_its_rows_once_when_it_encodes_them(counted: Callable[[], pa.MemoryPool]) -> None:
    of_batches = counted()
    given = batches(KINDS_OF_BATCHES)
    size = sum(batch.nbytes for batch in given)
    sorting = counted()
    target = Nowhere(schema_of({"k": "long"} | KINDS_OF_BATCHES, ["k"]), of_batches)
    (output,) = WriteTask(target, MERGE, whole=True).run(iter_emptied(given))  # type: ignore[arg-type]
    found = TaskOutput.load(output["written"][0].as_py())
    assert (found.given_rows, found.given_bytes) == (COUNT, size)
    assert sorting.max_memory() < 1.3 * size


def iter_emptied(given: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches, and hold none of them afterwards."""
    while given:
        yield given.pop(0)
