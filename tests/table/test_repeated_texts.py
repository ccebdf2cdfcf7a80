"""Texts that repeat are decoded as numbers in a dictionary first, and the rows are the same."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_checkpointer.table import parquet_decode, parquet_encode, repeated_texts
from pyspark_checkpointer.table.parquet_encode import ROW_GROUP_ROWS
from pyspark_checkpointer.table.row_groups import RowGroups
from pyspark_checkpointer.table.schema import TableSchema
from tests.table.tables import schema_of

ROWS = 5 * ROW_GROUP_ROWS + 7

TABLE = schema_of({"k": "long", "text": "string"}, ["k"])

Decode = Callable[[bytes, TableSchema], pa.Table]


def rows_of(texts: pa.Array, schema: TableSchema = TABLE) -> pa.Table:
    return pa.table([pa.array(range(len(texts)), pa.int64()), texts], schema=schema.arrow())


def whole(data: bytes, schema: TableSchema) -> pa.Table:
    return parquet_decode.decode("the/object", data, schema, schema.names)


def by_row_groups(data: bytes, schema: TableSchema) -> pa.Table:
    groups = RowGroups("the/object", len(data), data, schema)
    parts = {n: data[start : start + length] for n, (start, length, _) in enumerate(groups.ranges)}
    return groups.read(parts, schema.names)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The columns that were decoded by dictionaries, for each file."""
    found: list[list[str]] = []

    def spy(*arguments: object) -> list[str]:
        found.append(repeated_texts.repeated(*arguments))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(parquet_decode, "repeated", spy)
    return found


SOME = ["C1", None, "", "ä€😀", "C2", "a\0b"]

TEXTS = {
    "few": pa.array([SOME[n % len(SOME)] for n in range(ROWS)]),
    "nulls": pa.nulls(ROWS, pa.string()),
    "few at first": pa.array([f"C{n if n > 2 * ROW_GROUP_ROWS else n % 5}" for n in range(ROWS)]),
    "none in a row group": pa.array([None if ROW_GROUP_ROWS <= n < 2 * ROW_GROUP_ROWS else "C" for n in range(ROWS)]),
    "not UTF-8": pa.array([b"\xff\xfe" if n % 3 else b"ok" for n in range(ROWS)], pa.binary()).view(pa.string()),
}


@pytest.mark.parametrize("decode", [whole, by_row_groups])
@pytest.mark.parametrize("texts", TEXTS.values(), ids=TEXTS)
def test_texts_that_repeat_are_what_was_written(decode: Decode, texts: pa.Array, found: list[list[str]]) -> None:
    rows = rows_of(texts)
    assert decode(parquet_encode.encode(rows, TABLE.key).data, TABLE).equals(rows)
    assert found == [["text"]]


@pytest.mark.parametrize("decode", [whole, by_row_groups])
@pytest.mark.parametrize(
    "texts",
    [pa.array([f"C{n}" for n in range(ROWS)]), pa.array(["C"] * (2 * ROW_GROUP_ROWS))],
    ids=["distinct", "few rows"],
)
def test_other_texts_are_decoded_one_by_one(decode: Decode, texts: pa.Array, found: list[list[str]]) -> None:
    rows = rows_of(texts)
    assert decode(parquet_encode.encode(rows, TABLE.key).data, TABLE).equals(rows)
    assert found == [[]]


@pytest.mark.parametrize("decode", [whole, by_row_groups])
def test_a_column_with_the_path_of_a_field_is_decoded_like_the_field(decode: Decode, found: list[list[str]]) -> None:
    struct = {"type": "struct", "fields": [{"name": "b", "type": "string", "nullable": True, "metadata": {}}]}
    schema = schema_of({"k": "long", "a.b": "string", "a": struct}, ["k"])
    keys, texts = pa.array(range(ROWS), pa.int64()), pa.array(["x", "y", None][n % 3] for n in range(ROWS))
    rows = pa.table([keys, texts, pa.StructArray.from_arrays([texts], ["b"])], schema=schema.arrow())
    assert decode(parquet_encode.encode(rows, schema.key).data, schema).equals(rows)
    assert found == [[]]


@pytest.mark.parametrize("number", [-1, 2])
def test_a_number_of_no_text_is_refused(number: int) -> None:
    numbers = pa.array([0, None, 1, number], pa.int32())
    wrong = pa.DictionaryArray.from_arrays(numbers, pa.array(["a", "b"]), safe=False)
    with pytest.raises(pa.ArrowException, match="out of bounds"):
        repeated_texts.spelled_out(pa.table({"text": wrong}), ["text"])


def test_a_file_is_opened_once_where_no_texts_are_asked_for() -> None:
    data = parquet_encode.encode(rows_of(TEXTS["few"]), TABLE.key).data
    file = pq.ParquetFile(pa.BufferReader(data))

    def reopen(texts: object) -> pq.ParquetFile:
        raise AssertionError(texts)

    assert repeated_texts.repeated(file, reopen, list(range(6)), ["k"]) == []
