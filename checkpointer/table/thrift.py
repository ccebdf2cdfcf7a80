"""Read and write structs in Thrift's compact protocol.

Parquet's footers and page headers are written in it.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

I32, I64, BINARY, LIST, STRUCT = 5, 6, 8, 9, 12
"""Types of the protocol."""

Shape: TypeAlias = "Mapping[int, Shape] | Sequence[Shape] | int | None"
"""An expected type of a value.

A struct is given as its fields, a list as a list of its item type, an atomic type as its number. None means any type.
"""

_MAX_NESTING = 16
"""The most levels of structs and lists, one inside the other.

A sound footer has about seven.
"""


def _check_type(kind: int, shape: Shape) -> None:
    match shape:
        case None:
            return
        case int():
            wanted = shape
        case Mapping():
            wanted = STRUCT
        case _:
            wanted = LIST
    if kind != wanted:
        raise ValueError(f"a footer with a value of type {kind}, expected type {wanted}")


class CompactReader:
    """A reader of the protocol, from byte `at` on.

    A struct is a dict by field number, a list is a list.

    Values that the shape describes have to be of that type; others may be of any type.
    """

    def __init__(self, data: bytes, at: int = 0) -> None:
        self._data = data
        self.at = at
        """The next byte to read."""

    def struct(self, shape: Mapping[int, Shape], depth: int = 0) -> dict[int, Any]:
        return {number: self.value(kind, shape.get(number), depth + 1) for number, kind in self.fields(shape, depth)}

    def fields(self, shape: Mapping[int, Shape], depth: int = 0) -> Iterator[tuple[int, int]]:
        """Yield the number and the type of each field of a struct.

        The caller reads the value before it asks for the next field.
        """
        if depth > _MAX_NESTING:
            raise ValueError("a footer with too many levels")
        seen = set[int]()
        number = 0
        while header := self._byte():
            kind, step = header & 15, header >> 4
            number = number + step if step else self._integer()
            # Arrow reads field numbers as 16 bits. A larger one would be one field here and another one there, and
            # the field that Arrow reads would go unchecked.
            if number in seen or not 0 < number < 2**15:
                raise ValueError(f"a footer with field {number}, which is there twice or above 32767")
            seen.add(number)
            _check_type(kind, shape.get(number))
            yield number, kind

    def value(self, kind: int, shape: Shape = None, depth: int = 1) -> Any:
        """Return the value of a field."""
        # In a struct the type says the value of a boolean (1 true, 2 false). Only in a list does it take a byte.
        return kind == 1 if kind in (1, 2) else self._item(kind, shape, depth)

    def _item(self, kind: int, shape: Shape, depth: int) -> Any:
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

    def _list(self, item: Shape, depth: int) -> list[Any]:
        kind, size = self.list_header(item, depth)
        return [self._item(kind, item, depth + 1) for _ in range(size)]

    def list_header(self, item: Shape, depth: int = 1) -> tuple[int, int]:
        """Return the type of the items of a list, and their number."""
        header = self._byte()
        kind, size = header & 15, header >> 4
        size = self._varint() if size == 15 else size
        # Each item takes at least one byte. A list that declares more items than there are bytes is refused before
        # memory is taken for it.
        if depth > _MAX_NESTING or size > len(self._data):
            raise ValueError("a footer with a list that is too long or too deep")
        _check_type(kind, item)
        return kind, size

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
        self.at += 1
        return self._data[self.at - 1]  # IndexError where the footer is cut short.

    def _take(self, size: int) -> bytes:
        self.at += size
        if self.at > len(self._data):
            raise ValueError("a footer that is cut short")
        return self._data[self.at - size : self.at]


def varint(number: int) -> bytes:
    """Return a number that is not negative as the protocol writes sizes."""
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def integer(number: int) -> bytes:
    """Return an integer of a field, of 32 or 64 bits, as bytes."""
    return varint(number << 1 ^ number >> 63)


def binary(value: bytes) -> bytes:
    """Return bytes of a field as the protocol writes them."""
    return varint(len(value)) + value


def items(kind: int, written: Sequence[bytes]) -> bytes:
    """Return a list of items of one type, each of which is written already."""
    size = len(written)
    header = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    return header + b"".join(written)


Field: TypeAlias = tuple[int, int, bytes]
"""A field to write: its number, its type and the written value."""


def struct(*fields: Field, after: int = 0) -> bytes:
    """Return a struct with these fields, in order of their numbers.

    With `after`, return the rest of a struct after the field of this number.
    """
    found, last = list[bytes](), after
    for number, kind, written in fields:
        found += [bytes([number - last << 4 | kind]), written]
        last = number
    return b"".join([*found, b"\0"])


__all__ = [
    "BINARY",
    "I32",
    "I64",
    "LIST",
    "STRUCT",
    "CompactReader",
    "Field",
    "Shape",
    "binary",
    "integer",
    "items",
    "struct",
]
