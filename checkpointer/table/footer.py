"""Whether what a Parquet file says of its column chunks may be looked at.

Arrow checks much of it only when it is asked for a chunk's statistics, and then ends the process where it should raise.
So the same is checked here before: sizes, types, and nothing that our files do not have. The footer is a struct in
Thrift's compact protocol; fields have the numbers of Parquet's own definition.
"""

from typing import Any, TypeVar

T = TypeVar("T")

_ROW_GROUPS, _CHUNKS, _CHUNK = 4, 1, 3
_ENCRYPTED = {8, 9}
_TYPE, _STATISTICS, _SIZES, _GEOSPATIAL = 1, 12, 16, 17
_BOUNDS = (1, 2, 5, 6)
_REPETITIONS, _DEFINITIONS = 2, 3

_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}

_DEEPEST = 16
"""Structs and lists, one inside the other: a footer has some seven."""


def check_footer(data: bytes, schema: Any) -> None:
    """Raise `ValueError` unless the footer at the end of `data` is sound; `schema` is Arrow's reading of it."""
    length = int.from_bytes(data[-8:-4], "little")
    footer = _Compact(data[-8 - length : -8]).struct(0)
    columns = [schema.column(index) for index in range(len(schema))]
    for group in _expect(list, footer.get(_ROW_GROUPS, [])):
        for chunk, column in zip(_expect(list, _expect(dict, group)[_CHUNKS]), columns, strict=True):
            _check_chunk(_expect(dict, chunk), column)


def _check_chunk(chunk: dict[int, Any], column: Any) -> None:
    described = _expect(dict, chunk[_CHUNK])
    statistics, sizes = _expect(dict, described.get(_STATISTICS, {})), _expect(dict, described.get(_SIZES, {}))
    kind, number = column.physical_type, described[_TYPE]
    if type(number) is not int or number != _TYPES.index(kind) or _ENCRYPTED & chunk.keys() or _GEOSPATIAL in described:
        raise ValueError(f"column {column.path!r:.80}: a chunk of another type")
    width = column.length if kind == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(kind)
    bounds = [_expect(bytes, statistics[bound]) for bound in _BOUNDS if bound in statistics]
    if width is not None and any(len(bound) != width for bound in bounds):
        raise ValueError(f"column {column.path!r:.80}: bounds that are not of its type")
    levels = {_REPETITIONS: column.max_repetition_level, _DEFINITIONS: column.max_definition_level}
    if any(len(_expect(list, sizes.get(number, []))) not in (0, level + 1) for number, level in levels.items()):
        raise ValueError(f"column {column.path!r:.80}: a histogram of another size")


def _expect(kind: type[T], found: Any) -> T:
    if not isinstance(found, kind):
        raise ValueError("a footer with a value of another type than its field has")
    return found


class _Compact:
    """Reads Thrift's compact protocol: structs as dicts by the numbers of their fields, lists as lists."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def struct(self, depth: int) -> dict[int, Any]:
        if depth > _DEEPEST:
            raise ValueError("a footer with too many levels")
        fields: dict[int, Any] = {}
        number = 0
        while header := self._byte():
            kind, step = header & 15, header >> 4
            number = number + step if step else self._integer()
            if number in fields:
                raise ValueError("a footer that says something twice")
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind, depth + 1)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
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
                return self._list(depth)
            case 12:
                return self.struct(depth)
        raise ValueError(f"a footer with a value of type {kind}")

    def _list(self, depth: int) -> list[Any]:
        header = self._byte()
        kind, size = header & 15, header >> 4
        size = self._varint() if size == 15 else size
        if depth > _DEEPEST or size > len(self._data):
            raise ValueError("a footer with a list that is too long or too deep")
        return [self._value(kind, depth + 1) for _ in range(size)]

    def _integer(self) -> int:
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
            if shift > 63:
                raise ValueError("a footer with a number that is too long")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]  # IndexError where it is cut short

    def _take(self, size: int) -> bytes:
        self._at += size
        if self._at > len(self._data):
            raise ValueError("a footer that is cut short")
        return self._data[self._at - size : self._at]
