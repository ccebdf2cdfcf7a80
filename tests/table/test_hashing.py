"""Where keys belong: readers without Spark and writers in Spark agree, or nothing is written."""

from contextlib import nullcontext

import numpy as np
import pyarrow as pa
import pytest

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.table import hashing
from pyspark_checkpointer.table.hashing import check_row_partitions, partitions_of
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import PARTITION
from tests.table.tables import ORDERED, schema_of, text

SCHEMA = schema_of({"id": "long"}, ["id"])


@pytest.mark.parametrize(("shift", "wrap", "right"), [(0, 8, True), (1, 8, False), (0, 4, False), (8, 99, False)])
def test_rows_that_are_not_where_their_key_belongs_are_refused(shift: int, wrap: int, right: bool) -> None:
    keys = pa.table({"id": pa.array(range(100), pa.int64())})
    numbers = [(number + shift) % wrap for number in partitions_of(keys, SCHEMA, 8)]
    rows = in_order(keys.append_column(PARTITION, pa.array(numbers, pa.int32())), ["id"])
    with nullcontext() if right else pytest.raises(InvalidStateError, match="of 8 partitions, Spark put keys"):
        check_row_partitions(rows, SCHEMA, 8, "t")


def test_no_rows_are_nowhere_wrong() -> None:
    rows = pa.table({"id": pa.array([], pa.int64()), PARTITION: pa.array([], pa.int32())})
    check_row_partitions(rows, SCHEMA, 8, "t")


def test_rows_with_more_bytes_of_keys_than_one_array_holds_are_checked() -> None:
    """The bytes are zeros that nobody reads, so that they take no memory."""
    schema, size = schema_of({"s": "string"}, ["s"]), 1 << 30
    first = {
        partitions_of(pa.table({"s": [key]}), schema, 8)[0]: key for key in ("aaaa", "bbbb", "cccc", "dddd", "eeee")
    }
    assert len(first) > 2
    chunks, numbers = [], list[int]()
    for number in sorted(first):
        data = np.zeros(size, np.uint8)
        data[:4] = np.frombuffer(first[number].encode(), np.uint8)
        ends = pa.py_buffer(np.array([0, 4, size], np.int32))
        chunks.append(pa.Array.from_buffers(pa.string(), 2, [None, ends, pa.py_buffer(data)]))
        numbers += [number] * 2
    rows = pa.table({"s": pa.chunked_array(chunks), PARTITION: pa.array(numbers, pa.int32())})
    check_row_partitions(rows, schema, 8, "t")
    wrong = rows.set_column(1, PARTITION, pa.array([*numbers[:2], *(n + 8 for n in numbers[2:])], pa.int32()))
    with pytest.raises(InvalidStateError, match="of 8 partitions, Spark put keys"):
        check_row_partitions(wrong, schema, 8, "t")


@pytest.mark.parametrize("kind", ORDERED)
def test_keys_together_are_hashed_as_each_alone(kind: str) -> None:
    """With nulls, texts of several lengths, several chunks and slices; the values of Spark are in the specification."""
    schema = schema_of({"k": kind, "s": "string"}, ["k", "s"])
    values = [*ORDERED[kind], None, *reversed(ORDERED[kind])]
    texts = [None, b"", b"a", b"abcd", b"\xff\xfe\xfd", b"abcdefgh" * 9, b"abcdefg"]
    rows = pa.table(
        [pa.array(values, schema.arrow().types[0]), text(*(texts[at % 7] for at in range(len(values))))],
        schema=schema.arrow(),
    )
    many = pa.concat_tables([rows.slice(2), rows.slice(0, 0), rows.slice(1, 3), rows, rows.slice(3, 1)])
    alone = [number for at in range(many.num_rows) for number in partitions_of(many.slice(at, 1), schema, 2**31 - 1)]
    assert partitions_of(many, schema, 2**31 - 1) == alone
    assert partitions_of(many.slice(0, 0), schema, 7) == []


def test_texts_are_hashed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schema_of({"s": "string"}, ["s"])
    rows = pa.table({"s": [f"user-{number}" for number in range(500)]})
    whole = partitions_of(rows, schema, 1000)
    monkeypatch.setattr(hashing, "_GATHERED_BYTES", 50)
    assert partitions_of(rows, schema, 1000) == whole
