"""Rows with many bytes: 64-bit offsets while they are brought together, pieces instead of wholes, bytes beside rows."""

import gc
import math
import time
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import CorruptionError, InvalidStateError
from pyspark_checkpointer.manifests.model import SNAPSHOT
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.scan import batches_of
from pyspark_checkpointer.table import encoder as encode_module
from pyspark_checkpointer.table import large_rows, parquet_encode, row_groups
from pyspark_checkpointer.table import reader as reader_module
from pyspark_checkpointer.table.encoder import MAX_PARTITION_BYTES
from pyspark_checkpointer.table.merge import apply, fold_changes, matching
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.row_order import count_up_to, in_order
from pyspark_checkpointer.table.schema import MERGE, TableSchema
from tests.table.tables import (
    NAN,
    Change,
    Model,
    Row,
    array,
    changes_of,
    keys_of,
    mapping,
    plain,
    rows_in,
    schema_of,
    snapshot_rows,
    struct,
)
from tests.table.test_merge import SCHEMAS, change_of, rows_of
from tests.table.test_version import SIMPLE, Place, standing_alone

NESTED = schema_of(
    {
        "k": "string",
        "part": "binary",
        "list": array(array("string")),
        "map": mapping("string", struct(a="binary", b="long")),
        "variant": "variant",
        "top": "string",
    },
    ["k", "part"],
    top="max",
)
NESTED_ROWS: list[Row] = [
    (k, part, [["a" * 10], None, []], [("m", {"a": b"x", "b": 1})], {"value": b"1", "metadata": b"2"}, top)
    for k, part, top in [("a", b"1", "x"), (None, b"2", None), ("c", None, "z"), ("b", b"", "y")]
]


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_rows, "NARROW_BYTES", 1)


@pytest.mark.usefixtures("everything_is_large")
def test_rows_with_64_bit_offsets_merge_alike_and_come_back_as_they_are_stored() -> None:
    changed = [(MERGE, (*row[:2], [["new"]], None, None, "m")) for row in NESTED_ROWS[::2]] * 2
    base, deltas = snapshot_rows(NESTED, NESTED_ROWS), changes_of(NESTED, changed)
    found = apply(base, deltas, NESTED, "t")
    assert found.schema.equals(NESTED.arrow(), check_metadata=True)
    assert rows_in(found) == Model(NESTED, NESTED_ROWS).do(changed).rows()
    folded = fold_changes(deltas, NESTED, "t")
    assert folded.schema.equals(NESTED.arrow_delta(), check_metadata=True)
    ordered = in_order(found, NESTED.key)
    assert ordered.schema.equals(NESTED.arrow(), check_metadata=True)
    assert ordered["k"].to_pylist() == ["a", "b", "c", None]
    ordered.validate(full=True)


@st.composite
def histories(draw: st.DrawFn) -> tuple[TableSchema, list[Row], list[list[Change]]]:
    schema = SCHEMAS[draw(st.sampled_from(sorted(SCHEMAS)))]
    below = list(Model(schema, draw(st.lists(rows_of(schema), max_size=12))).found.values())
    return schema, below, draw(st.lists(st.lists(change_of(schema), max_size=6), max_size=3))


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories(), st.sampled_from([1, 1 << 30]), st.integers(1, 3), st.booleans())
def test_in_pieces_a_partition_has_the_rows_that_it_has_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, history: tuple[Any, ...], narrow: int, group: int, narrowed: bool
) -> None:
    schema, below, steps = history
    monkeypatch.setattr(large_rows, "NARROW_BYTES", narrow)
    monkeypatch.setattr(reader_module, "STREAMED_SNAPSHOT_BYTES", 0)
    monkeypatch.setattr(reader_module, "MAX_PIECE_ROW_GROUPS", 1)
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_ROWS", group)
    place, model = Place(schema), Model(schema, below)
    place.snapshot(0, below)
    for changes in steps:
        if changes:
            place.pack({0: standing_alone(schema, changes)})
            model.do(changes)
    shown = [schema.names[-1], *schema.key[:1]] if narrowed and schema.values else None
    pieces = run_sync(_pieces(place.reader(shown), ordered=False))
    assert rows_in(pa.concat_tables(pieces)) == rows_in(run_sync(place.reader(shown).rows(0)))
    whole = pa.concat_tables(run_sync(_pieces(place.reader(), ordered=True)))
    assert rows_in(whole) == model.rows()
    ordered = in_order(whole.select(schema.key), schema.key)
    assert plain(whole.select(schema.key).to_pylist()) == plain(ordered.to_pylist())
    place.compact({0: 0})
    assert place.rows(0) == model.rows()
    assert [a.kind for a in place.chains[0]] == ([SNAPSHOT] if model.found else [])


async def _pieces(reader: TableReader, *, ordered: bool) -> list[pa.Table]:
    none = reader.schema.arrow().empty_table().select(reader._shown)
    return [none, *[rows async for rows in reader.pieces(0, ordered=ordered)]]


@pytest.mark.parametrize("in_batches", [False, True])
@pytest.mark.parametrize("changed", [False, True])
def test_one_piece_is_in_memory_at_a_time(monkeypatch: pytest.MonkeyPatch, changed: bool, in_batches: bool) -> None:
    """None is left of the piece before when the next one is decoded."""
    monkeypatch.setattr(reader_module, "STREAMED_SNAPSHOT_BYTES", 0)
    monkeypatch.setattr(reader_module, "MAX_PIECE_ROW_GROUPS", 1)
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_ROWS", 100)
    schema = schema_of({"k": "string", "v": "string"}, ["k"])
    place = Place(schema)
    place.snapshot(0, [(f"{n:04}", f"{n:04}" * 2_500) for n in range(500)])  # five pieces of 1 MB
    if changed:
        place.pack({0: standing_alone(schema, [(MERGE, (f"{n:04}x", "new")) for n in range(0, 500, 50)])})
    held: list[int] = []
    read = row_groups.RowGroups.read

    def measured(self: row_groups.RowGroups, *args: Any) -> pa.Table:
        # The event loop's thread may still be letting go of the piece that it has just handed over.
        for _ in range(200):
            gc.collect()
            allocated = pa.total_allocated_bytes()
            if not held or allocated - held[0] < 500_000:
                break
            time.sleep(0.01)
        held.append(allocated)
        return read(self, *args)

    monkeypatch.setattr(row_groups.RowGroups, "read", measured)
    reader = place.reader()

    async def consume() -> None:
        async for rows in reader.pieces(0):
            assert rows.nbytes > 900_000
            del rows

    if in_batches:
        for batch in batches_of(cast("Session", None), None, reader, 0):
            assert batch.nbytes
            del batch
    else:
        run_sync(consume())
    assert len(held) == 5
    assert max(held) - held[0] < 500_000


@given(st.lists(st.tuples(st.none() | st.integers(0, 3), st.sampled_from([0.0, 1.5, math.inf, NAN])), max_size=9))
def test_what_is_not_above_a_key_is_what_comes_before_it_in_order(keys: list[Row]) -> None:
    schema = schema_of({"a": "long", "b": "double"}, ["a", "b"])
    rows = in_order(snapshot_rows(schema, keys), schema.key)
    for at in range(rows.num_rows):
        count = count_up_to(rows, rows.slice(at, 1), schema.key)
        assert rows.slice(at, count - at).to_pylist() != []
        same = keys_of(schema, [tuple(rows.slice(at, 1).to_pylist()[0].values())])
        assert count == rows.num_rows or not in_order(rows.slice(count, 1), schema.key).equals(same)
        assert count_up_to(rows.slice(count), rows.slice(at, 1), schema.key) == 0


def test_a_snapshot_that_is_not_in_order_is_refused_where_that_would_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "STREAMED_SNAPSHOT_BYTES", 0)
    monkeypatch.setattr(reader_module, "MAX_PIECE_ROW_GROUPS", 1)
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_ROWS", 2)
    for keys in ([1, 2, 0, 3], [1, 2, 2, 3], [2, 1, 3, 4], [1, 1, 2, 3]):
        place = Place(SIMPLE)
        rows = snapshot_rows(SIMPLE, [(key, 1) for key in keys])
        place.chains[0] = (run_sync(place.writer.snapshot(0, rows)),)
        with pytest.raises(CorruptionError, match="expected rows in order of"):
            run_sync(_pieces(place.reader(), ordered=False))


def test_row_groups_are_bounded_by_bytes_where_some_rows_are_wide() -> None:
    schema = schema_of({"k": "long", "v": "string"}, ["k"])
    rows = snapshot_rows(schema, [(n, "x" * (500_000 if n < 50 else 1)) for n in range(4000)])
    groups = row_groups.RowGroups("object", len(data := parquet_encode.encode(rows).data), data[-(1 << 16) :], schema)
    parts = [
        groups.read({number: data[start : start + size]}, schema.names)
        for number, (start, size, _) in enumerate(groups.ranges)
    ]
    assert pa.concat_tables(parts).equals(rows)
    assert max(part.nbytes for part in parts) <= parquet_encode.MAX_ROW_GROUP_BYTES


def test_wanted_rows_of_large_chunks_are_found_without_one_array_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [snapshot_rows(SIMPLE, [(n, n) for n in range(start, start + 10)]) for start in (0, 10, 20)]
    keys = keys_of(SIMPLE, [(3,), (4,), (25,), (99,)])
    small = matching(pa.concat_tables(parts), keys, SIMPLE.key)
    monkeypatch.setattr(large_rows, "NARROW_BYTES", 1)
    large = matching(pa.concat_tables(parts), keys, SIMPLE.key)
    assert large["n"].to_pylist() == small["n"].to_pylist() == [3, 4, 25]
    assert [len(chunk) for chunk in large["k"].chunks if len(chunk)] == [2, 1]


def test_rows_are_cut_by_rows_and_bytes() -> None:
    rows = pa.table({"v": ["x" * 1000] * 10 + ["x"] * 1000 + ["x" * 50_000]})
    parts = list(large_rows.slices(rows, 300, 3000))
    assert pa.concat_tables(parts).equals(rows)
    assert all(part.num_rows == 1 or (part.num_rows <= 300 and part.nbytes <= 3000) for part in parts)
    assert len(parts) < 30
    assert list(large_rows.slices(rows.slice(0, 0), 300, 3000)) == []


# ---- bytes beside rows -----------------------------------------------------------------------------------------------


def test_a_partition_that_is_too_large_is_refused_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode_module, "MAX_PARTITION_BYTES", 1000)
    place = Place(SIMPLE)
    rows = snapshot_rows(SIMPLE, [(n, n) for n in range(100)])
    with pytest.raises(InvalidStateError, match=r"table 't', partition 3: would have \d+ bytes .* \(num_partitions=\)"):
        run_sync(place.writer.snapshot(3, rows))
    for _ in range(3):
        place.pack({0: [(MERGE, (n, n)) for n in range(40)]})
    place.pack({0: [(MERGE, (n, n)) for n in range(40, 80)]})
    with pytest.raises(InvalidStateError, match=r"table 't', partition 0: would have"):
        place.compact({0: 0})
    assert run_sync(place.store.list("artifacts/t/0")) == []
    assert MAX_PARTITION_BYTES == 4 << 30


def test_what_arrow_refuses_is_an_error_of_the_tree() -> None:
    with (
        pytest.raises(InvalidStateError, match=r"table 't', partition 5: .*offset overflow.*num_partitions="),
        large_rows.explain_arrow_errors("t", 5),
    ):
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")
    with pytest.raises(KeyError), large_rows.explain_arrow_errors("t"):
        raise KeyError
