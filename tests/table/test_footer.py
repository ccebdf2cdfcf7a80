"""What a footer says of its chunks is checked before Arrow looks at it: Arrow would end the process."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pyspark_checkpointer.errors import MalformedError
from pyspark_checkpointer.table import parquet_decode, parquet_encode, row_groups
from pyspark_checkpointer.table.footer import check_footer
from tests.table.tables import CHANGE, PARTITION, array, changes_of, schema_of, snapshot_rows

SCHEMA = schema_of({"k": "long", "n": "double", "text": "string", "many": array("long")}, ["k"])
KEY = 0x1122334455667788
ROW = (KEY, 1.5, "x", [1, 2])
BOUND = b"\x18\x08" + KEY.to_bytes(8, "little")
"""A field of eight bytes: a bound of the key."""
SIZES = b"\x29\x06\x19\x26\x00\x02"
"""What the sizes of a column begin with: a second field, and no first."""
GROUPS = b"\x19\x1c\x19"
"""The row groups, a list of one struct, and in it the list of column chunks."""


def snapshot() -> bytes:
    return parquet_encode.encode(snapshot_rows(SCHEMA, [ROW])).data


def with_footer(data: bytes, old: bytes, new: bytes) -> bytes:
    """A file with something exchanged in its footer, once."""
    length = int.from_bytes(data[-8:-4], "little")
    body, footer = data[: -8 - length], data[-8 - length : -8]
    assert old in footer
    footer = footer.replace(old, new, 1)
    return body + footer + len(footer).to_bytes(4, "little") + data[-4:]


def opened(data: bytes) -> row_groups.RowGroups:
    return row_groups.RowGroups("the/object", len(data), data, SCHEMA)


def test_our_own_footers_are_sound() -> None:
    schema = pq.read_metadata(pa.BufferReader(snapshot())).schema
    check_footer(snapshot(), schema)
    assert opened(snapshot()).of_keys(pa.table({"k": pa.array([KEY], pa.int64())})) == [0]
    pack = parquet_encode.encode(changes_of(SCHEMA, [(0, ROW)])).data
    assert parquet_decode.decode_pack("the/object", pack, SCHEMA, SCHEMA.names, [0]).num_rows == 1


@pytest.mark.parametrize(
    ("name", "values"),
    [(PARTITION, pa.array(["0"])), (PARTITION, pa.array([None], pa.int32())), (CHANGE, pa.array([None], pa.int8()))],
)
def test_a_pack_whose_own_columns_are_others_is_refused(name: str, values: pa.Array) -> None:
    changes = changes_of(SCHEMA, [(0, ROW)])
    data = parquet_encode.encode(changes.set_column(changes.column_names.index(name), name, values)).data
    with pytest.raises(MalformedError, match="the/object: expected a Parquet file of this table"):
        parquet_decode.decode_pack("the/object", data, SCHEMA, SCHEMA.names, [0])


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        (BOUND, b"\x18\x07" + BOUND[2:-1], "bounds that are not of its type"),
        (BOUND, b"\x18\x00", "bounds that are not of its type"),
        (b"\x19\x26\x00\x02", b"\x19\x36\x00\x00\x02", "a histogram of another size"),
        (SIZES, b"\x16\x0a\x19" + SIZES[1:], "a size of texts in a column without texts"),
        # Arrow reads structs all the same
        (GROUPS, b"\x19\x11" + GROUPS[2:], "of type 1, expected type 12"),
        # Arrow reads 16 bits of the number, and they are those of the row groups
        (GROUPS, b"\x09\x88\x80\x08" + GROUPS[1:], "field 65540"),
    ],
)
def test_a_footer_that_contradicts_itself_is_refused(old: bytes, new: bytes, why: str) -> None:
    with pytest.raises(MalformedError, match=f"the/object: .*{why}"):
        opened(with_footer(snapshot(), old, new)).of_keys(pa.table({"k": pa.array([KEY], pa.int64())}))


@pytest.mark.parametrize("kind", range(16))
def test_a_field_of_any_other_type_is_refused_or_passed_over(kind: int) -> None:
    """Some of these bytes are the header of a field, whose low half is the type of what follows."""
    whole = snapshot()
    length = int.from_bytes(whole[-8:-4], "little")
    opens = refused = 0
    # Each byte gets eight of the sixteen types, the byte beside it the others: fields begin at any byte.
    for at in range(-8 - length + kind % 2, -8, 2):
        data = bytearray(whole)
        data[at] = data[at] & 0xF0 | kind
        try:
            opened(bytes(data)).of_keys(pa.table({"k": pa.array([KEY], pa.int64())}))
            opens += 1
        except MalformedError:
            refused += 1
    assert opens
    assert refused


def test_digests_of_row_groups_that_are_no_list_are_refused() -> None:
    sink = io.BytesIO()
    rows = snapshot_rows(SCHEMA, [ROW]).replace_schema_metadata({"checkpointer.row_groups": "[" * 100_000})
    pq.write_table(rows, sink)
    with pytest.raises(MalformedError, match="the/object"):
        opened(sink.getvalue())
