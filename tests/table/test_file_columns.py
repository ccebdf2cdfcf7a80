"""Files of tables with right digests and wrong content: each is refused by name, whatever part of it is read."""

import io
import json
import struct as struct_module
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_checkpointer.errors import MalformedError
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.table.merge import apply
from pyspark_checkpointer.table.parquet_decode import decode, decode_pack
from pyspark_checkpointer.table.row_groups import RowGroups
from pyspark_checkpointer.table.schema import CHANGE, DELETE, KEPT, MERGE, PARTITION, RESET, TableSchema
from pyspark_checkpointer.table.schema_evolution import next_schema
from tests.table.tables import (
    NAN,
    array,
    changes_of,
    fields,
    long_decimals,
    mapping,
    rows_in,
    schema_of,
    snapshot_rows,
    struct,
)

SCHEMA = schema_of({"k": "long", "n": "long", "title": "string"}, ["k"], n="sum")
SNAPSHOT = snapshot_rows(SCHEMA, [(1, 10, "a"), (2, 20, None), (None, 30, "c")])
DELTA = changes_of(
    SCHEMA, [(MERGE, (1, 10, None), frozenset(["title"])), (RESET, (2, 20, "b")), (DELETE, (3, None, None))]
)

Whole = Callable[[bytes, TableSchema], pa.Table]


def stored(rows: pa.Table, **options: Any) -> bytes:
    """A file as another program may have written it, of one row group."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema, **options) as writer:
        writer.write_table(rows)
        end = sink.tell()
        groups = [[4, end - 4, sha256(sink.getvalue()[4:end])]] if rows.num_rows else []
        writer.add_key_value_metadata({"checkpointer.row_groups": json.dumps(groups)})
    return sink.getvalue()


def whole_snapshot(data: bytes, schema: TableSchema) -> pa.Table:
    return decode("object", data, schema, schema.names)


def whole_pack(data: bytes, schema: TableSchema) -> pa.Table:
    return decode_pack("object", data, schema, schema.names, [0, 1])


def _groups(data: bytes, schema: TableSchema) -> tuple[RowGroups, dict[int, bytes]]:
    groups = RowGroups("object", len(data), data, schema)
    return groups, {n: data[start : start + size] for n, (start, size, _) in enumerate(groups.ranges)}


def snapshot_groups(data: bytes, schema: TableSchema) -> pa.Table:
    groups, found = _groups(data, schema)
    return groups.read(found, schema.names)


def pack_groups(data: bytes, schema: TableSchema) -> pa.Table:
    groups, found = _groups(data, schema)
    return groups.read_changes(found, schema.names)


SNAPSHOTS = [whole_snapshot, snapshot_groups]
PACKS = [whole_pack, pack_groups]


def refused(rows: pa.Table, why: str, ways: list[Whole], schema: TableSchema = SCHEMA) -> None:
    for read in ways:
        with pytest.raises(MalformedError, match=f"object: expected a Parquet file of this table: .*{why}"):
            read(stored(rows), schema)


def with_column(rows: pa.Table, name: str, values: list[Any], kind: Any = None, number: int | None = None) -> pa.Table:
    """The rows with other values in a column, or with one column more."""
    at = rows.schema.get_field_index(name)
    before = rows.schema.field(at) if at >= 0 else pa.field(name, kind)
    field = pa.field(name, kind or before.type, metadata=before.metadata)
    if number is not None:
        field = field.with_metadata({"PARQUET:field_id": str(number)})
    column = pa.array(values, field.type)
    return rows.append_column(field, column) if at < 0 else rows.set_column(at, field, column)


def test_sound_files_are_read_in_each_way() -> None:
    for read in SNAPSHOTS:
        assert read(stored(SNAPSHOT), SCHEMA).equals(SNAPSHOT)
    for read in PACKS:
        assert read(stored(DELTA), SCHEMA).to_pylist() == DELTA.to_pylist()


# ---- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 99])
def test_no_two_columns_have_one_id(number: int) -> None:
    rows = with_column(SNAPSHOT, "one", [7, 8, 9], pa.int64(), number)
    rows = with_column(rows, "two", [7, 8, 9], pa.int64(), number)
    refused(rows, f"two columns have the id {number}", SNAPSHOTS)
    refused(SNAPSHOT.append_column("title", pa.array(["x"] * 3)), "two columns have the name 'title'", SNAPSHOTS)


def test_a_column_of_the_key_is_always_there() -> None:
    refused(SNAPSHOT.drop_columns(["k"]), "no column k", SNAPSHOTS)
    refused(with_column(SNAPSHOT, "k", [1, 2, None], number=9), "no column k", SNAPSHOTS)
    refused(DELTA.drop_columns(["k"]), "no column k", PACKS)
    found = [read(stored(SNAPSHOT.drop_columns(["title"])), SCHEMA)["title"].to_pylist() for read in SNAPSHOTS]
    assert found == [[None] * 3] * 2


def test_a_column_with_an_id_is_known_by_it_alone() -> None:
    """Also one that is called as a column of a delta is."""
    for name in (PARTITION, CHANGE, KEPT):
        renamed = SNAPSHOT.rename_columns(["k", name, "title"]).cast(
            pa.schema([f.with_name(name) if f.name == "n" else f for f in SNAPSHOT.schema])
        )
        for read in SNAPSHOTS:
            assert read(stored(renamed), SCHEMA).equals(SNAPSHOT)
    changes = DELTA.drop_columns([KEPT])
    for read in PACKS:
        found = read(stored(with_column(changes, KEPT, ["x"] * 3, pa.string(), 77)), SCHEMA)
        assert found.column_names == changes.column_names
    for name in (PARTITION, CHANGE):
        refused(with_column(DELTA, name, DELTA[name].to_pylist(), number=77), f"no column {name}", PACKS)


def test_one_file_may_say_that_a_column_has_no_nulls_where_another_does_not() -> None:
    required = pa.schema([field.with_nullable(field.name in ("title", KEPT, "n")) for field in DELTA.schema])
    for read in PACKS:
        parts = [read(stored(rows), SCHEMA) for rows in (DELTA, DELTA.cast(required))]
        assert pa.concat_tables(parts).num_rows == 6


# ---- types -----------------------------------------------------------------------------------------------------------

OTHER_TYPES = [
    ("long", pa.string(), ["7"]),
    ("long", pa.uint32(), [7]),
    ("long", pa.float64(), [7.0]),
    ("long", pa.null(), [None]),
    ("long", pa.timestamp("us"), [7]),
    ("integer", pa.int64(), [7]),
    ("string", pa.binary(), [b"7"]),
    ("string", pa.int64(), [7]),
    ("string", pa.dictionary(pa.int32(), pa.string()), ["7"]),
    ("binary", pa.string(), ["7"]),
    ("binary", pa.binary(3), [b"777"]),
    ("date", pa.timestamp("us"), [7]),
    ("timestamp", pa.timestamp("us"), [7]),
    ("timestamp", pa.timestamp("ms", "UTC"), [7]),
    ("timestamp", pa.timestamp("us", "Europe/Berlin"), [7]),
    ("timestamp_ntz", pa.timestamp("us", "UTC"), [7]),
    ("interval day to second", pa.int64(), [7]),
    ("interval day to second", pa.duration("ms"), [7]),
    ("double", pa.int32(), [7]),
    ("float", pa.float64(), [7.0]),
    ("decimal(10,2)", pa.decimal128(10, 3), [Decimal("7.000")]),
    ("decimal(10,2)", pa.decimal128(11, 2), [Decimal("7.00")]),
    ("decimal(10,2)", pa.int32(), [7]),
    ("decimal(10,2)", pa.decimal256(10, 2), [Decimal("7.00")]),
    (array("long"), pa.list_(pa.int32()), [[7]]),
    (struct(x="double"), pa.struct([("x", pa.float32())]), [{"x": 7.0}]),
    (struct(x="long", y="long"), pa.struct([("y", pa.int64()), ("x", pa.int64())]), [{"x": 7, "y": 8}]),
    (struct(x="long"), pa.struct([("x", pa.int64()), ("y", pa.int64())]), [{"x": 7, "y": 8}]),
    (mapping("string", "long"), pa.map_(pa.string(), pa.int16()), [[("a", 7)]]),
    ("variant", pa.struct([("metadata", pa.binary()), ("value", pa.binary())]), [{"metadata": b"", "value": b""}]),
]


@pytest.mark.parametrize(("kind", "given", "values"), OTHER_TYPES, ids=lambda value: str(value)[:40])
def test_what_was_not_widened_is_refused(kind: Any, given: pa.DataType, values: list[Any]) -> None:
    schema = schema_of({"k": "long", "v": kind}, ["k"])
    rows = pa.table(
        [pa.array([1]), pa.array(values, given)],
        schema=pa.schema([schema.arrow().field("k"), pa.field("v", given, metadata={"PARQUET:field_id": "2"})]),
    )
    refused(rows, "column 'v': expected ", SNAPSHOTS, schema)


SAME_TYPES = [
    ("string", pa.large_string(), ["7"]),
    ("binary", pa.large_binary(), [b"7"]),
    (array("string"), pa.large_list(pa.field("anything", pa.large_string(), nullable=False)), [["7"]]),
    (
        struct(x=array("binary")),
        pa.struct([pa.field("x", pa.list_(pa.large_binary()), nullable=False)]),
        [{"x": [b""]}],
    ),
]


@pytest.mark.parametrize(("kind", "given", "values"), SAME_TYPES, ids=lambda value: str(value)[:40])
def test_how_arrow_holds_a_type_does_not_matter(kind: Any, given: pa.DataType, values: list[Any]) -> None:
    schema = schema_of({"k": "long", "v": kind}, ["k"])
    fields_ = [schema.arrow().field("k"), pa.field("v", given, metadata={"PARQUET:field_id": "2"})]
    data = stored(pa.table([pa.array([1]), pa.array(values, given)], schema=pa.schema(fields_)))
    for read in SNAPSHOTS:
        assert read(data, schema).equals(snapshot_rows(schema, [(1, values[0])]))


DECIMAL = schema_of({"k": "long", "v": "decimal(5,2)", "inside": struct(x=array("decimal(5,2)"))}, ["k"])


@pytest.mark.parametrize("read", SNAPSHOTS)
def test_a_decimal_is_stored_in_one_way(read: Whole) -> None:
    rows = snapshot_rows(DECIMAL, [(1, Decimal("1.10"), {"x": [Decimal("-1.10")]})])
    assert read(stored(rows), DECIMAL).equals(rows)
    for column in ("v", "inside"):
        data = stored(rows.select(["k", column]), store_decimal_as_integer=True)
        with pytest.raises(
            MalformedError, match=rf"column '{column}.*: expected a decimal of fixed length, found INT32"
        ):
            read(data, DECIMAL)


@pytest.mark.parametrize("number", [10**5, -(10**5), 2**23 - 1])
def test_a_decimal_of_too_many_digits_is_refused(number: int) -> None:
    """Three bytes have room for six digits and more. Compaction would cut them."""
    kind = pa.decimal128(5, 2)
    fits, odd = long_decimals(kind, 10**5 - 1), long_decimals(kind, number)
    at = pa.array([0, 1], pa.int32())

    def rows(v: pa.Array, x: pa.Array) -> pa.Table:
        inside = pa.StructArray.from_arrays([pa.ListArray.from_arrays(at, x)], ["x"])
        return pa.table([pa.array([1]), v, inside.cast(DECIMAL.arrow().field("inside").type)], schema=DECIMAL.arrow())

    assert whole_snapshot(stored(rows(fits, fits)), DECIMAL)["v"].to_pylist() == [Decimal("999.99")]
    for bad in (rows(odd, fits), rows(fits, odd)):
        refused(bad, "does not fit in precision of", SNAPSHOTS, DECIMAL)


def test_a_narrower_type_is_refused_where_the_schema_has_it_now() -> None:
    """What a writer widened must not become narrow again."""
    old = schema_of({"k": "integer", "v": "float"}, ["k"])
    new = next_schema("t", old, fields({"k": "long", "v": "double"}), ["k"], {})
    for read in SNAPSHOTS:
        assert rows_in(read(stored(snapshot_rows(old, [(1, 0.5)])), new)) == [(1, 0.5)]
    refused(snapshot_rows(new, [(1, 0.5)]), "column 'k': expected integer, found int64", SNAPSHOTS, old)


# ---- rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [[1, 1], [2, 1], [None, 1], [None, None], [1, 2, 3, 2], [1, 2, 2, 3], [1, None, 2]])
def test_a_snapshot_has_each_key_once_and_in_order(keys: list[int | None]) -> None:
    refused(snapshot_rows(SCHEMA, [(key, 1, "x") for key in keys]), "rows in order of k, each key once", SNAPSHOTS)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("double", [NAN, 1.0]),
        ("double", [NAN, NAN]),
        ("double", [None, NAN]),
        ("double", [0.0, -0.0]),
        ("string", ["é", "z"]),
        ("string", ["a", "a"]),
        ("binary", [b"\xff", b"a"]),
        ("boolean", [True, False]),
        ("decimal(5,2)", [Decimal("1.00"), Decimal("0.99")]),
    ],
)
def test_order_is_that_of_values(kind: str, values: list[Any]) -> None:
    schema = schema_of({"k": kind}, ["k"])
    refused(snapshot_rows(schema, [(value,) for value in values]), "rows in order of k", SNAPSHOTS, schema)


def test_a_later_column_of_the_key_decides_where_the_first_is_equal() -> None:
    schema = schema_of({"a": "long", "b": "string"}, ["a", "b"])
    sound = [(1, "b"), (2, "a"), (2, "c"), (2, None), (None, "a"), (None, None)]
    for read in SNAPSHOTS:
        assert read(stored(snapshot_rows(schema, sound)), schema).num_rows == 6
    for at in range(5):
        swapped = [*sound[:at], sound[at + 1], sound[at], *sound[at + 2 :]]
        for wrong in (swapped, [*sound[: at + 1], *sound[at:]]):
            refused(snapshot_rows(schema, wrong), "rows in order of a, b, each key once", SNAPSHOTS, schema)


def test_a_delta_is_in_order_of_partitions_and_keys() -> None:
    """Rows of a partition are found by a search, so others would be taken for them."""

    def delta(*places: tuple[int, int]) -> pa.Table:
        return pa.concat_tables([changes_of(SCHEMA, [(MERGE, (key, 1, "x"))], partition=p) for p, key in places])

    for read in PACKS:
        assert read(stored(delta((0, 1), (0, 3), (1, 0), (1, 2))), SCHEMA).num_rows == 4
    for wrong in (delta((1, 1), (0, 2)), delta((0, 2), (0, 1)), delta((0, 1), (0, 1)), delta((0, 1), (1, 2), (0, 3))):
        refused(wrong, "rows in order of __partition, k, each key once", PACKS)


@pytest.mark.parametrize("change", [-1, 3, 127, -128])
def test_there_are_three_kinds_of_change(change: int) -> None:
    wrong = with_column(DELTA, CHANGE, [MERGE, change, DELETE])
    refused(wrong, f"{CHANGE}: expected one of 0, 1, 2, found {change}", PACKS)
    refused(with_column(DELTA, CHANGE, [MERGE, None, DELETE]), f"{CHANGE}: expected no nulls", PACKS)
    refused(with_column(DELTA, PARTITION, [0, 0, 0], pa.int64()), f"{PARTITION}: expected int32, found int64", PACKS)


def test_the_values_of_a_deletion_say_nothing() -> None:
    told = with_column(with_column(DELTA, "n", [10, 20, 99]), "title", [None, "b", "gone"])
    base = snapshot_rows(SCHEMA, [(1, 1, "old"), (3, 3, "three")])
    for read in PACKS:
        after = [apply(base, read(stored(rows), SCHEMA), SCHEMA, "t") for rows in (DELTA, told)]
        assert [rows_in(rows) for rows in after] == [[(1, 11, "old"), (2, 20, "b")]] * 2


def test_a_row_that_keeps_a_column_has_no_value_there() -> None:
    """Where nothing is below, readers would differ about the value."""
    refused(
        with_column(DELTA, "title", ["x", "b", None]),
        "has a value in column 'title', and says that it keeps the old one",
        PACKS,
    )
    for ids in ("2", "1,2", "9", "2,9"):  # what these ids are of is not kept, or not there any more
        told = with_column(with_column(DELTA, KEPT, [ids, None, None]), "title", ["x", "b", None])
        for read in PACKS:
            assert rows_in(apply(snapshot_rows(SCHEMA, [(1, 1, "y")]), read(stored(told), SCHEMA), SCHEMA, "t")) == [
                (1, 11, "x"),
                (2, 20, "b"),
            ]


@pytest.mark.parametrize("text", ["", "03", "3,2", "3,3", "3,", " 3", "x", "٣", "0", "+3", "3_0"])
def test_kept_columns_are_written_in_one_way(text: str) -> None:
    refused(with_column(DELTA, KEPT, [text, None, None]), KEPT, PACKS)


def test_kept_columns_may_be_nulls_alone_and_stand_beside_merges_alone() -> None:
    for read in PACKS:
        assert read(stored(with_column(DELTA, KEPT, [None] * 3)), SCHEMA).num_rows == 3
        assert (
            read(stored(with_column(DELTA, KEPT, ["3", None, None], pa.large_string())), SCHEMA)[KEPT].type
            == pa.string()
        )
    for texts in ([None, "3", None], [None, None, "3"]):
        refused(with_column(with_column(DELTA, "title", [None] * 3), KEPT, texts), "resets or deletes", PACKS)
    refused(with_column(DELTA, KEPT, [3, None, None], pa.int32()), f"{KEPT}: expected string, found int32", PACKS)


@pytest.mark.parametrize("kind", ["double", "float"])
@pytest.mark.parametrize("read", [whole_snapshot, snapshot_groups])
def test_floats_of_a_key_are_one_key_whatever_bits_are_stored(
    read: Callable[[bytes, TableSchema], pa.Table], kind: str
) -> None:
    """Arrow compares floats by their bits, and processors make NaN of other bits than Java."""
    schema = schema_of({"k": kind, "n": "long"}, ["k"], n="sum")
    bits = {"double": ("<Q", 1 << 63, 0xFFF8000000000001), "float": ("<I", 1 << 31, 0xFFC00001)}[kind]
    raw = b"".join(struct_module.pack(bits[0], value) for value in bits[1:])
    keys = pa.Array.from_buffers(schema.arrow().field("k").type, 2, [None, pa.py_buffer(raw)])
    rows = pa.table([keys, [10, 10]], schema=schema.arrow())
    changes = changes_of(schema, [(MERGE, (0.0, 1)), (MERGE, (NAN, 1))])
    found = read(stored(rows), schema)
    assert [str(row) for row in rows_in(apply(found, changes, schema, "t"))] == ["('NaN', 11)", "(0.0, 11)"]
