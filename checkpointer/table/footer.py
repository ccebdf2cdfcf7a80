"""Check the footer of a Parquet file before Arrow reads the statistics in it.

Arrow checks much of a footer only when it is asked for the statistics of a chunk, and then aborts the process instead
of raising. So the same is checked here first: sizes, types, and that the footer has nothing that our files do not have.
The footer is a struct in Thrift's compact protocol; its fields have the numbers of Parquet's own definition.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12
"""Types of Thrift's compact protocol."""

_ROW_GROUPS, _CHUNKS, _CHUNK = 4, 1, 3
_ENCRYPTED = {8, 9}
_TYPE, _STATISTICS, _SIZES, _GEOSPATIAL = 1, 12, 16, 17
_BOUNDS = (1, 2, 5, 6)
_UNENCODED, _REPETITIONS, _DEFINITIONS = 1, 2, 3

_Shape: TypeAlias = "Mapping[int, _Shape] | Sequence[_Shape] | int | None"
"""An expected type of a value in the footer.

A struct is given as its fields, a list as a list of its item type, an atomic type as its number. None stands for any
type.
"""

_COLUMN: _Shape = {
    _TYPE: _I32,
    2: [_I32],  # encodings
    3: [_BINARY],  # the path in the schema
    8: [{}],  # keys and values
    _STATISTICS: dict.fromkeys(_BOUNDS, _BINARY),
    13: [{}],  # pages of each encoding
    _SIZES: {_UNENCODED: _I64, _REPETITIONS: [_I64], _DEFINITIONS: [_I64]},
}
_FOOTER: Mapping[int, _Shape] = {
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

_MAX_NESTING = 16
"""The most levels of structs and lists, one inside the other.

A sound footer has about seven.
"""

_MAX_ROW_GROUP_ROWS = 1 << 20
"""The most rows of a row group.

Our files have far fewer. Arrow allocates memory for the declared number of rows before it reads any of them.
"""

_MAX_SOUND = 4096
_sound: set[bytes] = set()
"""SHA-256 digests of footers that this process has found sound, at most so many."""


def check_rows(metadata: Any) -> None:
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
    footer = _CompactReader(stored).struct(_FOOTER, 0)
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


def _check_type(kind: int, shape: _Shape) -> None:
    match shape:
        case None:
            return
        case int():
            wanted = shape
        case Mapping():
            wanted = _STRUCT
        case _:
            wanted = _LIST
    if kind != wanted:
        raise ValueError(f"a footer with a value of type {kind}, expected type {wanted}")


class _CompactReader:
    """A reader of Thrift's compact protocol.

    A struct is a dict by field number, a list is a list.

    Values that the shape describes have to be of that type; others may be of any type.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, shape: Mapping[int, _Shape], depth: int) -> dict[int, Any]:
        if depth > _MAX_NESTING:
            raise ValueError("a footer with too many levels")
        fields: dict[int, Any] = {}
        number = 0
        while header := self._byte():
            kind, step = header & 15, header >> 4
            number = number + step if step else self._integer()
            # Arrow reads field numbers as 16 bits. A larger one would be one field here and another one there, and
            # the field that Arrow reads would go unchecked.
            if number in fields or not 0 < number < 2**15:
                raise ValueError(f"a footer with field {number}, which is there twice or above 32767")
            wanted = shape.get(number)
            _check_type(kind, wanted)
            # In a struct the type says the value of a boolean (1 true, 2 false). Only in a list does it take a byte.
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, wanted, depth + 1)
        return fields

    def _value(self, kind: int, shape: _Shape, depth: int) -> Any:
        match kind:
            case 1 | 2 | 3:
                return self._byte()
            case 4 | 5 | 6:
                return self._integer()
            case 7:
                return self._take(8)
            case 8:
                return self._take(self._varint())
            case 9:
                return self._list(shape[0] if isinstance(shape, Sequence) else None, depth)
            case 12:
                return self.struct(shape if isinstance(shape, Mapping) else {}, depth)
        raise ValueError(f"a footer with a value of unknown type {kind}")

    def _list(self, item: _Shape, depth: int) -> list[Any]:
        header = self._byte()
        kind, size = header & 15, header >> 4
        size = self._varint() if size == 15 else size
        # Each item takes at least one byte. A list that declares more items than there are bytes is refused before
        # memory is taken for it.
        if depth > _MAX_NESTING or size > len(self._data):
            raise ValueError("a footer with a list that is too long or too deep")
        _check_type(kind, item)
        return [self._value(kind, item, depth + 1) for _ in range(size)]

    def _integer(self) -> int:
        # The protocol stores signed integers as zigzag: 0, -1, 1, -2 are 0, 1, 2, 3.
        found = self._varint()
        return found >> 1 ^ -(found & 1)

    def _varint(self) -> int:
        found = shift = 0
        while True:
            byte = self._byte()
            found |= (byte & 127) << shift
            if byte < 128:
                return found
            shift += 7
            # No field has more than 64 bits. Without the limit a long run of such bytes would take quadratic time.
            if shift > 63:
                raise ValueError("a footer with a number that is too long")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]  # IndexError where the footer is cut short.

    def _take(self, size: int) -> bytes:
        self._at += size
        if self._at > len(self._data):
            raise ValueError("a footer that is cut short")
        return self._data[self._at - size : self._at]
