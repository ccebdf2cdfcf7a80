"""Rows as Parquet: all of them come back, by field id, verified, and a lookup skips only what has none of its keys."""

import io
import random
from datetime import date
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.errors import DigestMismatchError, MalformedError
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.table import parquet_decode, parquet_encode
from pyspark_checkpointer.table.merge import matching
from pyspark_checkpointer.table.parquet_decode import decode, decode_pack
from pyspark_checkpointer.table.parquet_encode import EncodedFile, encode
from pyspark_checkpointer.table.row_groups import RowGroups
from pyspark_checkpointer.table.schema import MERGE, TableSchema
from pyspark_checkpointer.table.schema_evolution import next_schema
from tests.table.tables import (
    NAN,
    ORDERED,
    Row,
    array,
    changes_of,
    fields,
    keys_of,
    mapping,
    plain,
    rows_in,
    schema_of,
    snapshot_rows,
    struct,
)

SMALL = 10

VARIANT = {"value": b"\x0c\x01", "metadata": b"\x01\0\0"}
NESTED: list[tuple[Any, list[Any]]] = [
    ("variant", [VARIANT, None]),
    (array("long"), [[1, None, 3], [], None]),
    (struct(x="long", y=struct(z="string")), [{"x": 1, "y": {"z": "a"}}, {"x": None, "y": None}, None]),
    (mapping("string", "decimal(5,2)"), [[("a", Decimal("1.50")), ("b", None)], [], None]),
    (array(struct(v="binary", at="timestamp")), [[{"v": b"x", "at": ORDERED["timestamp"][2]}, None], None]),
    (mapping("date", array(mapping("long", "double"))), [[(date(2024, 1, 1), [[(1, NAN)], None])], None]),
]
KINDS = [*((kind, [*values, None]) for kind, values in ORDERED.items()), *NESTED]


@pytest.fixture
def small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_ROWS", SMALL)


def sorted_rows(schema: TableSchema, rows: list[Row]) -> pa.Table:
    return snapshot_rows(schema, rows).sort_by([(name, "ascending") for name in schema.key])


def opened(encoded: EncodedFile, schema: TableSchema) -> RowGroups:
    return RowGroups("object", len(encoded.data), encoded.data[-encoded.tail.length :], schema)


def parts(encoded: EncodedFile, groups: RowGroups, wanted: list[int]) -> dict[int, bytes]:
    """The bytes of some row groups."""
    return {n: encoded.data[groups.ranges[n][0] :][: groups.ranges[n][1]] for n in wanted}


def one(encoded: EncodedFile, groups: RowGroups, group: int, columns: list[str]) -> pa.Table:
    return groups.read(parts(encoded, groups, [group]), columns)


# ---- there and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=[str(kind)[:40] for kind, _ in KINDS])
def test_values_of_every_type_come_back(kind: Any, values: list[Any], small_groups: None) -> None:
    schema = schema_of({"k": "long", "v": kind}, ["k"])
    rows = [(number, value) for number, value in enumerate(values * 3)]
    stored = snapshot_rows(schema, rows)
    encoded = encode(stored)
    found = decode("object", encoded.data, schema, schema.names)
    assert found.schema.equals(schema.arrow(), check_metadata=True)
    assert plain(found.to_pylist()) == plain(stored.to_pylist())
    assert plain(found["v"].to_pylist()) == plain([value for _, value in rows])
    groups = opened(encoded, schema)
    apart = [one(encoded, groups, group, schema.names) for group in range(len(groups.ranges))]
    assert plain(pa.concat_tables(apart).to_pylist()) == plain(found.to_pylist())


def test_a_delta_comes_back_with_its_own_columns(small_groups: None) -> None:
    schema = schema_of({"k": "long", "v": "string"}, ["k"])
    rows = changes_of(schema, [(n % 3, (n, str(n))) for n in range(3 * SMALL + 1)], partition=7)
    found = decode_pack("object", encode(rows).data, schema, schema.names, [7])
    assert found.to_pylist() == rows.to_pylist()
    assert found.column_names == schema.arrow_delta().names


@given(st.lists(st.integers(0, 9), max_size=60), st.sets(st.integers(0, 11), min_size=1))
def test_of_a_pack_the_row_groups_of_some_partitions_are_decoded(numbers: list[int], wanted: set[int]) -> None:
    schema = schema_of({"k": "long", "s": struct(x="long", __partition="long"), "v": "string"}, ["k"])
    packed = [
        changes_of(schema, [(0, (key, {"x": 2, "__partition": 3}, "y"))], partition=n)
        for key, n in enumerate(sorted(numbers))
    ]
    rows = pa.concat_tables([schema.arrow_delta().empty_table(), *packed])
    with mock.patch.object(parquet_encode, "ROW_GROUP_ROWS", SMALL):
        data = encode(rows).data
    found = decode_pack("object", data, schema, schema.names, sorted(wanted))
    parts = found["__partition"].to_pylist()
    assert parts == sorted(parts)
    assert [n for n in parts if n in wanted] == [n for n in sorted(numbers) if n in wanted]
    groups = [set(sorted(numbers)[start : start + SMALL]) for start in range(0, len(numbers), SMALL)]
    assert len(parts) <= SMALL * sum(any(min(g) <= n <= max(g) for n in wanted) for g in groups)


def test_a_row_group_of_wide_rows_has_fewer_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_BYTES", 10_000)
    narrow, wide = (pa.table({"text": ["x" * width] * 1000}) for width in (1, 96))
    assert pq.ParquetFile(io.BytesIO(encode(narrow).data)).metadata.num_row_groups == 1
    assert pq.ParquetFile(io.BytesIO(encode(wide).data)).metadata.num_row_groups == 10
    assert pq.ParquetFile(io.BytesIO(encode(wide.slice(500, 30)).data)).metadata.num_row_groups == 1
    huge = pa.table({"text": ["x" * 20_000] * 3})
    assert pq.ParquetFile(io.BytesIO(encode(huge).data)).metadata.num_row_groups == 3
    assert pq.ParquetFile(io.BytesIO(encode(narrow.slice(0, 0)).data)).metadata.num_row_groups == 0


@pytest.mark.parametrize("count", [0, 1, SMALL - 1, SMALL, SMALL + 1, 3 * SMALL])
def test_row_groups_cover_the_file(count: int, small_groups: None) -> None:
    schema = schema_of({"k": "long", "v": "string"}, ["k"])
    rows = snapshot_rows(schema, [(n, str(n)) for n in range(count)])
    encoded = encode(rows)
    groups = opened(encoded, schema)
    at = 4  # after the magic bytes
    for start, length, digest in groups.ranges:
        assert start == at
        assert digest == sha256(encoded.data[start : start + length])
        at += length
    assert at == len(encoded.data) - encoded.tail.length
    assert len(groups.ranges) == -(-count // SMALL)
    assert encoded.raw_size == rows.nbytes
    assert decode("object", encoded.data, schema, schema.names).equals(rows)


def test_whole_numbers_are_stored_as_differences_and_text_by_a_dictionary() -> None:
    schema = schema_of({"k": "long", "s": struct(x="date", y=array("string")), "m": mapping("string", "double")}, ["k"])
    rows = snapshot_rows(schema, [(1, {"x": date(2024, 1, 1), "y": ["a"]}, [("b", 0.5)])])
    group = pq.ParquetFile(io.BytesIO(encode(rows).data)).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    assert {c.path_in_schema for c in columns if "DELTA_BINARY_PACKED" in c.encodings} == {"k", "s.x"}
    assert {c.path_in_schema for c in columns if c.has_dictionary_page} == {"s.y.list.element", "m.key_value.key"}


def test_any_reader_of_parquet_finds_the_rows() -> None:
    schema = schema_of({"k": "long", "v": "decimal(5,2)", "m": mapping("string", "long")}, ["k"])
    rows = snapshot_rows(schema, [(1, Decimal("1.50"), [("a", 1)]), (2, None, None)])
    found = pq.read_table(io.BytesIO(encode(rows).data))
    assert found.to_pylist() == rows.to_pylist()
    assert found.schema.field("v").metadata[b"PARQUET:field_id"] == b"2"


def test_columns_are_given_back_as_asked_for() -> None:
    schema = schema_of({"k": "long", "a": "long", "b": struct(x="long")}, ["k"])
    rows = snapshot_rows(schema, [(1, 2, {"x": 3})])
    encoded = encode(rows)
    assert decode("object", encoded.data, schema, ["b", "k"]).to_pylist() == [{"b": {"x": 3}, "k": 1}]
    groups = opened(encoded, schema)
    assert groups.read(parts(encoded, groups, [0]), ["a"]).to_pylist() == [{"a": 2}]


def test_names_with_dots_are_names() -> None:
    schema = schema_of({"k": "long", "a.b": "long", "a": struct(b="string"), "a.b.c": "string"}, ["k"])
    rows = snapshot_rows(schema, [(1, 2, {"b": "y"}, "x")])
    data = encode(rows).data
    assert decode("object", data, schema, schema.names).equals(rows)
    for name in schema.names:
        assert decode("object", data, schema, [name]).equals(rows.select([name]))


# ---- a later schema --------------------------------------------------------------------------------------------------


def later(old: TableSchema, kinds: dict[str, Any]) -> TableSchema:
    return next_schema("t", old, fields(kinds), old.key, {})


def test_columns_that_the_file_does_not_have_are_null() -> None:
    old = schema_of({"k": "long", "a": "long"}, ["k"])
    new = later(old, {"k": "long", "b": array("string"), "a": "long"})
    data = encode(snapshot_rows(old, [(1, 2)])).data
    found = decode("object", data, new, new.names)
    assert found.schema.equals(new.arrow(), check_metadata=True)
    assert found.to_pylist() == [{"k": 1, "b": None, "a": 2}]
    assert decode("object", data, new, ["b"]).to_pylist() == [{"b": None}]


@pytest.mark.parametrize(
    ("before", "value", "after", "wanted"),
    [
        ("byte", -128, "long", -128),
        ("float", 0.1, "double", 0.10000000149011612),
        ("long", 2**63 - 1, "decimal(21,2)", Decimal(2**63 - 1)),
        ("decimal(5,2)", Decimal("999.99"), "decimal(38,18)", Decimal("999.99")),
    ],
)
def test_values_are_widened(before: str, value: Any, after: str, wanted: Any) -> None:
    old = schema_of({"k": before, "a": before}, ["k"])
    new = later(old, {"k": after, "a": after})
    encoded = encode(snapshot_rows(old, [(value, value), (None, None)]))
    found = decode("object", encoded.data, new, new.names)
    assert found.to_pylist() == [{"k": wanted, "a": wanted}, {"k": None, "a": None}]
    groups = opened(encoded, new)
    assert groups.of_keys(keys_of(new, [(wanted,)])) == [0]
    assert one(encoded, groups, 0, ["a"]).to_pylist() == [{"a": wanted}, {"a": None}]


def test_a_column_that_was_dropped_does_not_come_back() -> None:
    first = schema_of({"k": "long", "a": "long"}, ["k"])
    third = later(later(first, {"k": "long"}), {"k": "long", "a": "long"})
    encoded = encode(snapshot_rows(first, [(1, 2)]))
    assert decode("object", encoded.data, third, third.names).to_pylist() == [{"k": 1, "a": None}]
    groups = opened(encoded, third)
    assert groups.read(parts(encoded, groups, [0]), ["a"]).to_pylist() == [{"a": None}]


# ---- row groups that may hold a key ----------------------------------------------------------------------------------


KEYS: dict[str, st.SearchStrategy[Any]] = {
    "long": st.integers(-5, 25),
    "string": st.sampled_from(["", "a", "aa", "b", "é", "z" * 5000, "\U0001f600", "\uffff"]),
    "double": st.sampled_from([0.0, 1.0, -1.0, 1e300, NAN]),
    **{kind: st.sampled_from(ORDERED[kind]) for kind in ("boolean", "binary", "date", "timestamp", "decimal(38,0)")},
    "interval day to second": st.sampled_from(ORDERED["interval day to second"]),
}


@given(st.data())
def test_no_row_group_that_holds_a_key_is_skipped(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(KEYS)), min_size=1, max_size=2))
    schema = schema_of({f"k{n}": kind for n, kind in enumerate(kinds)}, [f"k{n}" for n in range(len(kinds))])
    row = st.tuples(*(st.none() | KEYS[kind] for kind in kinds))
    rows = data.draw(st.lists(row, min_size=1, max_size=20, unique_by=plain))
    keys = data.draw(st.lists(st.sampled_from(rows) | row, max_size=4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parquet_encode, "ROW_GROUP_ROWS", data.draw(st.integers(1, 5)))
        stored = sorted_rows(schema, rows)
        encoded = encode(stored)
    groups = opened(encoded, schema)
    wanted = keys_of(schema, keys)
    read = [one(encoded, groups, group, schema.names) for group in groups.of_keys(wanted)]
    found = pa.concat_tables([stored.slice(0, 0), *read])
    assert rows_in(matching(found, wanted, schema.key)) == rows_in(matching(stored, wanted, schema.key))
    assert {plain(row) for row in keys} & {plain(row) for row in rows} <= set(rows_in(found))


MANY: dict[str, Any] = {
    "byte": lambda n: n - 50,
    "long": lambda n: n - 50,
    "double": lambda n: n / 3,
    "string": "{:05}".format,
    "binary": lambda n: b"%05d" % n,
    "date": lambda n: date.fromordinal(700_000 + n),
    "timestamp": lambda n: ORDERED["timestamp"][2].replace(microsecond=n),
    "timestamp_ntz": lambda n: ORDERED["timestamp_ntz"][2].replace(microsecond=n),
    "decimal(5,2)": lambda n: Decimal(n).scaleb(-2),
    "decimal(38,0)": lambda n: Decimal(n),
}


@pytest.mark.parametrize("kind", MANY)
def test_row_groups_without_the_key_are_skipped(kind: str, small_groups: None) -> None:
    schema = schema_of({"k": kind, "v": "long"}, ["k"])
    make = MANY[kind]
    groups = opened(encode(snapshot_rows(schema, [(make(n), n) for n in range(10 * SMALL)])), schema)
    for n in (0, SMALL - 1, SMALL, 10 * SMALL - 1):
        assert groups.of_keys(keys_of(schema, [(make(n),)])) == [n // SMALL]
    assert groups.of_keys(keys_of(schema, [(make(95),), (make(15),)])) == [1, 9]
    assert groups.of_keys(keys_of(schema, [(make(101),)])) == []
    assert groups.of_keys(keys_of(schema, [])) == []


def test_row_groups_are_skipped_by_any_column_of_the_key(small_groups: None) -> None:
    schema = schema_of({"a": "long", "b": "string"}, ["a", "b"])
    groups = opened(encode(snapshot_rows(schema, [(n // 50, f"{n % 50:02}") for n in range(100)])), schema)
    assert groups.of_keys(keys_of(schema, [(1, "25")])) == [7]
    assert groups.of_keys(keys_of(schema, [(1, "00"), (1, None)])) == [5, 6, 7, 8, 9]


def test_keys_beside_nan_are_not_skipped() -> None:
    """NaN has no place among sorted keys: a search among them would go astray."""
    schema = schema_of({"k": "double"}, ["k"])
    groups = opened(encode(snapshot_rows(schema, [(1.0,)])), schema)
    assert groups.of_keys(keys_of(schema, [(5.0,), (NAN,), (1.0,)])) == [0]


def test_a_value_column_says_nothing_about_the_key() -> None:
    """A leaf of a struct has the path of a key that is called `a.b`."""
    schema = schema_of({"a.b": "long", "a": struct(b="long")}, ["a.b"])
    groups = opened(encode(snapshot_rows(schema, [(1, {"b": 1000}), (2, {"b": 2000})])), schema)
    assert groups.of_keys(keys_of(schema, [(1,)])) == [0]


@pytest.mark.parametrize(("kind", "number"), [("date", 5_000_000), ("timestamp", 2**60), ("timestamp_ntz", -(2**60))])
def test_keys_beyond_the_dates_of_python_are_found(kind: str, number: int) -> None:
    schema = schema_of({"k": kind}, ["k"])
    plain_type = pa.int32() if kind == "date" else pa.int64()
    rows = pa.table([pa.array([number], plain_type).cast(schema.arrow().types[0])], schema=schema.arrow())
    groups = opened(encode(rows), schema)
    assert groups.of_keys(rows) == [0]
    groups.of_keys(keys_of(schema, [(ORDERED[kind][0],)]))


# ---- damage ----------------------------------------------------------------------------------------------------------


def test_a_row_group_that_was_changed_is_noticed(small_groups: None) -> None:
    schema = schema_of({"k": "long", "v": "string"}, ["k"])
    encoded = encode(snapshot_rows(schema, [(n, "x" * n) for n in range(3 * SMALL)]))
    groups = opened(encoded, schema)
    sound = parts(encoded, groups, [0, 1, 2])
    for group, data in sound.items():
        for at in range(len(data)):
            changed = bytearray(data)
            changed[at] ^= 1 << at % 8
            with pytest.raises(DigestMismatchError, match=rf"object \(row group {group}\)"):
                groups.read(sound | {group: bytes(changed)}, schema.names)
        for wrong in (data[:-1], data + b"\0", b"", sound[(group + 1) % 3]):
            with pytest.raises(DigestMismatchError, match=rf"row group {group}"):
                groups.read({group: wrong}, schema.names)


@pytest.mark.parametrize("wanted", [[], [0], [1], [0, 1], [2, 0], [1, 2], [0, 1, 2]])
@pytest.mark.parametrize("columns", [["k"], ["v"], ["k", "v"]])
def test_any_row_groups_are_read_together(wanted: list[int], columns: list[str], small_groups: None) -> None:
    schema = schema_of({"k": "long", "v": "string"}, ["k"])
    rows = snapshot_rows(schema, [(n, str(n)) for n in range(3 * SMALL)])
    encoded = encode(rows)
    groups = opened(encoded, schema)
    found = groups.read(parts(encoded, groups, wanted), columns)
    want = [rows.slice(0, 0), *(rows.slice(group * SMALL, SMALL) for group in sorted(wanted))]
    assert found.to_pylist() == pa.concat_tables(want).select(columns).to_pylist()


def garbage() -> list[bytes]:
    """Bytes that are no Parquet file, some of which end as one does."""
    some = random.Random(0)
    found = [b"", b"PAR1", b"PAR1PAR1", b"PAR1\0\0\0\0PAR1", b"PAR1\xff\xff\xff\xffPAR1", b"\0" * 100]
    for size in range(1, 200, 7):
        noise = some.randbytes(size)
        found += [noise, b"PAR1" + noise + size.to_bytes(4, "little") + b"PAR1"]
    return found


def test_what_is_no_parquet_file_is_malformed() -> None:
    schema = schema_of({"k": "long", "v": "string"}, ["k"])
    encoded = encode(snapshot_rows(schema, [(n, str(n)) for n in range(100)]))
    cut = [encoded.data[:size] for size in range(0, len(encoded.data), 11)]
    cut += [encoded.data[size:] for size in range(len(encoded.data) - encoded.tail.length + 5, len(encoded.data), 11)]
    for data in garbage() + cut:
        with pytest.raises(MalformedError, match="object: expected a Parquet file of this table"):
            decode("object", data, schema, schema.names)
        with pytest.raises(MalformedError, match="object: expected a Parquet file of this table"):
            RowGroups("object", len(data), data[-encoded.tail.length :], schema)


def written(rows: pa.Table, metadata: dict[str, str] | None = None) -> bytes:
    """A Parquet file that this library did not write."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema) as writer:
        writer.write_table(rows)
        if metadata is not None:
            writer.add_key_value_metadata(metadata)
    return sink.getvalue()


@pytest.mark.parametrize(
    "said",
    [None, "", "null", "{}", "[]", "[1]", "[[1,2]]", '[["a",1,"b"]]', "[[4,5,null],[4,5,null]]", "[[1e999,0,0]]"],
)
def test_a_footer_without_digests_is_malformed(said: str | None) -> None:
    schema = schema_of({"k": "long"}, ["k"])
    metadata = None if said is None else {"checkpointer.row_groups": said}
    data = written(snapshot_rows(schema, [(1,)]), metadata)
    with pytest.raises(MalformedError, match="object: expected a Parquet file of this table"):
        RowGroups("object", len(data), data, schema)


@pytest.mark.parametrize("said", ['[[4,20,"a"],[4,20,"b"]]', '[[4,20,"a"],[23,20,"b"]]', '[[24,20,"a"],[4,20,"b"]]'])
def test_row_groups_that_overlap_are_malformed(said: str) -> None:
    """A file of a few bytes could have any number of them."""
    schema = schema_of({"k": "long"}, ["k"])
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema.arrow()) as writer:
        for n in range(2):
            writer.write_table(snapshot_rows(schema, [(n,)]))
        writer.add_key_value_metadata({"checkpointer.row_groups": said})
    with pytest.raises(MalformedError, match="object: expected a Parquet file of this table: row groups that overlap"):
        RowGroups("object", len(sink.getvalue()), sink.getvalue(), schema)


def test_a_file_of_other_types_is_malformed() -> None:
    schema = schema_of({"k": "long", "v": "long"}, ["k"])
    other = schema_of({"k": "string", "v": array("long")}, ["k"])
    with pytest.raises(MalformedError, match="object: expected a Parquet file"):
        decode("object", encode(snapshot_rows(other, [("x", [1])])).data, schema, schema.names)


def test_a_snapshot_is_no_delta() -> None:
    schema = schema_of({"k": "long"}, ["k"])
    with pytest.raises(MalformedError, match="object: expected a Parquet file"):
        decode_pack("object", encode(snapshot_rows(schema, [(1,)])).data, schema, schema.names, [0])
    changes = encode(changes_of(schema, [(MERGE, (1,))]))
    assert decode("object", changes.data, schema, schema.names).to_pylist() == [{"k": 1}]


def test_few_row_groups_are_decoded_together_where_texts_repeat() -> None:
    """Then the footer declares few bytes for rows of any size, and Arrow fails on 2 GiB of lists."""
    metadata = SimpleNamespace(row_group=lambda number: SimpleNamespace(total_byte_size=1))
    runs = parquet_decode._runs(metadata, [*range(300)])
    assert [len(run) for run in runs] == [128, 128, 44]
    assert [number for run in runs for number in run] == [*range(300)]


@pytest.mark.parametrize("error", [pa.ArrowNotImplementedError("Nested data"), OSError("List index overflow.")])
def test_row_groups_that_arrow_cannot_hold_together_are_decoded_apart(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row has any size: of equal values in lists the footer declares few bytes, and Arrow holds 2 GiB of a list."""
    monkeypatch.setattr(parquet_encode, "ROW_GROUP_ROWS", 1)
    schema = schema_of({"k": "long", "v": array("string")}, ["k"])
    rows = [(n, ["x"] * n) for n in range(10)]
    stored, changes = snapshot_rows(schema, rows), changes_of(schema, [(MERGE, row) for row in rows], partition=7)
    sound, pack = encode(stored).data, encode(changes).data
    whole = pq.ParquetFile.read_row_groups

    def read_row_groups(file: pq.ParquetFile, groups: list[int], *args: Any, **kwargs: Any) -> pa.Table:
        if len(groups) > 3:
            raise error
        return whole(file, groups, *args, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", read_row_groups)
    assert decode("object", sound, schema, schema.names).equals(stored)
    assert decode_pack("object", pack, schema, schema.names, [7]).equals(changes)
    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", mock.Mock(side_effect=error))
    with pytest.raises(MalformedError, match=f"object: expected a Parquet file of this table: {error}"):
        decode("object", sound, schema, schema.names)
