"""Make a Parquet file of some pages of another one.

Arrow reads whole row groups. So the pages that are wanted become the row groups of a file of their own, in memory, with
the schema of the file that they come from.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow.parquet as pq

from pyspark_checkpointer.table.thrift import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    CompactReader,
    Field,
    Shape,
    binary,
    integer,
    items,
    struct,
)

_SCHEMA, _NUM_ROWS, _ROW_GROUPS, _METADATA = 2, 3, 4, 5
_CHUNKS, _CHUNK = 1, 3
_TYPE, _ENCODINGS, _PATH, _CODEC = 1, 2, 3, 4
_ROW_GROUP: Shape = {_CHUNKS: [{_CHUNK: {_TYPE: I32, _ENCODINGS: [I32], _PATH: [BINARY], _CODEC: I32}}]}
_ARROW_SCHEMA = b"ARROW:schema"

Part = tuple[int, int, Sequence[bytes], Sequence[Sequence[bytes]]]
"""A row group to make.

These are its number of rows, about the bytes of its pages before compression, the dictionary of each column, and of
each block the page of each column.
"""


class PageFile:
    """Make files of the pages of a file.

    `tail` has the footer of that file. Arrow read the footer as `metadata`.
    """

    def __init__(self, tail: bytes, metadata: pq.FileMetaData) -> None:
        length = int.from_bytes(tail[-8:-4], "little")
        footer = tail[-8 - length : -8]
        reader = CompactReader(footer)
        self._head = b""
        """The footer up to its schema, which says the types of all columns."""
        self._columns: list[bytes] = []
        """The beginning of the description of a chunk, for each column: type, encodings, path and codec."""
        for number, kind in reader.fields({_ROW_GROUPS: []}):
            if number == _ROW_GROUPS:
                item, size = reader.list_header({})
                group = reader.value(item, _ROW_GROUP) if size else {_CHUNKS: []}
                self._columns = [_described(chunk[_CHUNK]) for chunk in group[_CHUNKS]]
                break
            reader.value(kind)
            if number == _SCHEMA:
                self._head = footer[: reader.at]
        stored = metadata.metadata.get(_ARROW_SCHEMA)
        self._metadata: list[Field] = []
        """The schema as Arrow stored it, as a field of the footer, if the file has it."""
        if stored is not None:
            pair = struct((1, BINARY, binary(_ARROW_SCHEMA)), (2, BINARY, binary(stored)))
            self._metadata = [(_METADATA, LIST, items(STRUCT, [pair]))]

    def build(self, parts: Sequence[Part]) -> bytes:
        """Return a file with these row groups."""
        body, groups, at = [b"PAR1"], [], 4
        for rows, plain, dictionaries, blocks in parts:
            chunks, count = [], integer(rows)
            for described, dictionary, pages in zip(
                self._columns, dictionaries, zip(*blocks, strict=True), strict=True
            ):
                body += [dictionary, *pages]
                size = len(dictionary) + sum(map(len, pages))
                chunks.append(_chunk(described, count, integer(size), at, len(dictionary)))
                at += size
            groups.append(struct((_CHUNKS, LIST, items(STRUCT, chunks)), (2, I64, integer(plain)), (3, I64, count)))
        rows_of_all = integer(sum(rows for rows, *_ in parts))
        fields = [(_NUM_ROWS, I64, rows_of_all), (_ROW_GROUPS, LIST, items(STRUCT, groups)), *self._metadata]
        footer = self._head + struct(*fields, after=_SCHEMA)
        return b"".join([*body, footer, len(footer).to_bytes(4, "little"), b"PAR1"])


def _chunk(described: bytes, rows: bytes, size: bytes, at: int, dictionary: int) -> bytes:
    """Return the description of a column in a row group.

    The pages of the column begin at byte `at` of the file. `struct` would return the same bytes. They are written out
    here, since a lookup of a thousand keys makes thousands of them. Fields 5 to 7 are the rows, and the size before and
    after compression. Arrow uses only the size after it. Fields 9 and 11 are the places of the data and of the
    dictionary.
    """
    first = b"\x26" + integer(at) if dictionary else b""
    places = integer(at + dictionary) + first
    return b"%b\x16%b\x16%b\x16%b\x26%b\0\0" % (described, rows, size, size, places)


def _described(chunk: Mapping[int, Any]) -> bytes:
    """Return the beginning of the description of a chunk.

    It ends before the field with the number of rows.
    """
    fields = [
        (_TYPE, I32, integer(chunk[_TYPE])),
        (_ENCODINGS, LIST, items(I32, [integer(encoding) for encoding in chunk[_ENCODINGS]])),
        (_PATH, LIST, items(BINARY, [binary(name) for name in chunk[_PATH]])),
        (_CODEC, I32, integer(chunk[_CODEC])),
    ]
    # Without the ends of both: other fields follow.
    return struct((2, I64, integer(0)), (_CHUNK, STRUCT, struct(*fields)))[:-2]


__all__ = ["PageFile", "Part"]
