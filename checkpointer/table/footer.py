"""Check the footer of a Parquet file before Arrow reads the statistics in it.

Arrow checks much of a footer only when it is asked for the statistics of a chunk, and then aborts the process instead
of raising. So the same is checked here first: sizes, types, and that the footer has nothing that our files do not have.
The footer is a struct in Thrift's compact protocol; its fields have the numbers of Parquet's own definition.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.table.thrift import BINARY, I32, I64, CompactReader, Shape

_ROW_GROUPS, _CHUNKS, _CHUNK = 4, 1, 3
_ENCRYPTED = {8, 9}
_TYPE, _STATISTICS, _SIZES, _GEOSPATIAL = 1, 12, 16, 17
_BOUNDS = (1, 2, 5, 6)
_UNENCODED, _REPETITIONS, _DEFINITIONS = 1, 2, 3

_COLUMN: Shape = {
    _TYPE: I32,
    2: [I32],  # encodings
    3: [BINARY],  # the path in the schema
    8: [{}],  # keys and values
    _STATISTICS: dict.fromkeys(_BOUNDS, BINARY),
    13: [{}],  # pages of each encoding
    _SIZES: {_UNENCODED: I64, _REPETITIONS: [I64], _DEFINITIONS: [I64]},
}
_FOOTER: Mapping[int, Shape] = {
    2: [{}],  # the schema
    _ROW_GROUPS: [
        {
            _CHUNKS: [{_CHUNK: _COLUMN}],
            4: [{}],  # columns it is sorted by
        }
    ],
    5: [{}],  # keys and values
    7: [{}],  # orders of columns
}
"""All fields that are read here, and every list.

Arrow reads the items of a list as the type that they should have, whatever type the list declares.
"""

_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}

_MAX_ROW_GROUP_ROWS = 1 << 20
"""The most rows of a row group.

Our files have far fewer. Arrow allocates memory for the declared number of rows before it reads any of them.
"""

_MAX_SOUND = 4096
_sound: set[bytes] = set()
"""SHA-256 digests of footers that this process has found sound: at most `_MAX_SOUND`."""


def check_row_counts(metadata: Any) -> None:
    """Raise `ValueError` for wrong numbers of rows.

    It is raised if a row group has too many rows, or if the total is not what the file declares.
    """
    rows = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    if any(not 0 <= count <= _MAX_ROW_GROUP_ROWS for count in rows):
        raise ValueError(f"a row group of {max(rows, key=abs)} rows, but at most {_MAX_ROW_GROUP_ROWS} are allowed")
    if sum(rows) != metadata.num_rows:
        raise ValueError(f"row groups of {sum(rows)} rows in a file of {metadata.num_rows} rows")


def check_footer(data: bytes, schema: Any) -> None:
    """Raise `ValueError` unless the footer at the end of `data` is sound.

    `schema` is what Arrow read of it.
    """
    # A Parquet file ends in the footer, the length of the footer in four bytes, and four bytes `PAR1`.
    length = int.from_bytes(data[-8:-4], "little")
    stored = data[-8 - length : -8]
    # The same objects are read again in every batch, and one footer takes longer to check than its rows to decode.
    digest = hashlib.sha256(stored).digest()
    if digest in _sound:
        return
    footer = CompactReader(stored).struct(_FOOTER, 0)
    columns = [schema.column(index) for index in range(len(schema))]
    for group in footer.get(_ROW_GROUPS, []):
        # A missing list raises KeyError, and another number of chunks ValueError. Callers report both as damage.
        for chunk, column in zip(group[_CHUNKS], columns, strict=True):
            _check_chunk(chunk, column)
    if len(_sound) >= _MAX_SOUND:
        _sound.clear()
    _sound.add(digest)


def _check_chunk(chunk: dict[int, Any], column: Any) -> None:
    described = chunk[_CHUNK]
    statistics, sizes = described.get(_STATISTICS, {}), described.get(_SIZES, {})
    kind = column.physical_type
    if described[_TYPE] != _TYPES.index(kind) or _ENCRYPTED & chunk.keys() or _GEOSPATIAL in described:
        raise ValueError(f"column {column.path!r:.80}: a chunk of another type")
    width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind)
    if width is not None and any(len(statistics[bound]) != width for bound in _BOUNDS if bound in statistics):
        raise ValueError(f"column {column.path!r:.80}: bounds that are not of its type")
    levels = {_REPETITIONS: column.max_repetition_level, _DEFINITIONS: column.max_definition_level}
    if any(len(sizes[number]) not in (0, level + 1) for number, level in levels.items() if number in sizes):
        raise ValueError(f"column {column.path!r:.80}: a histogram of another size")
    if _UNENCODED in sizes and kind != "BYTE_ARRAY":
        raise ValueError(f"column {column.path!r:.80}: a size of texts in a column without texts")
