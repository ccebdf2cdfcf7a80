"""Takes a Parquet file apart and puts it together again, damaged: pages, their headers, and the footer.

It writes sizes, offsets and the digests of row groups as they then are, so that only the damage is wrong. Headers and
footers are structs in Thrift's compact protocol, here with all their fields in order.
"""

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import zstandard

BOOLEANS, BYTE, INTEGERS, DOUBLE, BINARY, LISTS, STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, (9, 10), 12

SCHEMA, NUM_ROWS, ROW_GROUPS, METADATA = 2, 3, 4, 5
GROUP_CHUNKS, GROUP_SIZE, GROUP_ROWS, GROUP_OFFSET, GROUP_STORED = 1, 2, 3, 5, 6
CHUNK_OFFSET, CHUNK = 2, 3
CHUNK_TYPE, CODEC, CHUNK_VALUES, CHUNK_SIZE, CHUNK_STORED, DATA_OFFSET, DICTIONARY_OFFSET = 1, 4, 5, 6, 7, 9, 11
ELEMENT_TYPE, ELEMENT_LENGTH, ELEMENT_REPETITION, ELEMENT_CHILDREN = 1, 2, 3, 5
PAGE_TYPE, PAGE_SIZE, PAGE_STORED, DATA_HEADER, DICTIONARY_HEADER = 1, 2, 3, 5, 7
PAGE_VALUES, PAGE_ENCODING = 1, 2

DIGESTS = b"checkpointer.row_groups"


class Struct(dict[int, tuple[int, Any]]):
    """The fields of a struct: by number, the type and the value."""

    def get_value(self, number: int) -> Any:
        return self[number][1]

    def put(self, number: int, value: Any, kind: int = 6) -> None:
        """Exchange the value of a field, or add an integer (or what `kind` says)."""
        self[number] = (self[number][0] if number in self else kind, value)


class Parser:
    """Reads structs from bytes."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def struct(self) -> Struct:
        found, number = Struct(), 0
        while header := self.byte():
            number = number + (header >> 4) if header >> 4 else self.integer()
            kind = header & 15
            found[number] = (kind, kind == 1 if kind in BOOLEANS else self.value(kind))
        return found

    def value(self, kind: int) -> Any:
        if kind == BYTE or kind in BOOLEANS:
            return self.byte()
        if kind in INTEGERS:
            return self.integer()
        if kind == DOUBLE:
            return self.take(8)
        if kind == BINARY:
            return self.take(self.varint())
        if kind in LISTS:
            header = self.byte()
            size = header >> 4 if header >> 4 < 15 else self.varint()
            return header & 15, [self.value(header & 15) for _ in range(size)]
        assert kind == STRUCT, kind
        return self.struct()

    def integer(self) -> int:
        found = self.varint()
        return found >> 1 ^ -(found & 1)

    def varint(self) -> int:
        found = shift = 0
        while (byte := self.byte()) > 127:
            found |= (byte & 127) << shift
            shift += 7
        return found | byte << shift

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]


def varint(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def zigzag(number: int) -> bytes:
    return varint((number << 1 ^ number >> 63) & 2**64 - 1)


def encoded(struct: Struct) -> bytes:
    """Return a struct as bytes."""
    found, last = b"", 0
    for number, (kind, value) in sorted(struct.items()):
        kind = (1 if value else 2) if kind in BOOLEANS else kind
        step = number - last
        found += bytes([step << 4 | kind]) if 0 < step < 16 else bytes([kind]) + zigzag(number)
        found += b"" if kind in BOOLEANS else _value(kind, value)
        last = number
    return found + b"\0"


def _value(kind: int, value: Any) -> bytes:
    if kind == BYTE or kind in BOOLEANS:
        return bytes([value])
    if kind in INTEGERS:
        return zigzag(value)
    if kind == DOUBLE:
        return bytes(value)
    if kind == BINARY:
        return varint(len(value)) + value
    if kind in LISTS:
        item, items = value
        size = bytes([len(items) << 4 | item]) if len(items) < 15 else bytes([0xF0 | item]) + varint(len(items))
        return size + b"".join(_value(item, one) for one in items)
    return encoded(value)


@dataclass(slots=True)
class Page:
    """A page, decompressed. Its sizes are written as they are, unless `claims` says otherwise by field."""

    header: Struct
    body: bytes
    claims: dict[int, int] = field(default_factory=dict)

    def stored(self) -> bytes:
        compressed = zstandard.compress(self.body)
        self.header.put(PAGE_SIZE, self.claims.get(PAGE_SIZE, len(self.body)))
        self.header.put(PAGE_STORED, self.claims.get(PAGE_STORED, len(compressed)))
        return encoded(self.header) + compressed


class ParquetFile:
    """A file of one row group, in parts that may be changed."""

    def __init__(self, data: bytes) -> None:
        length = int.from_bytes(data[-8:-4], "little")
        self.footer = Parser(data[-8 - length : -8]).struct()
        (self.group,) = self.footer.get_value(ROW_GROUPS)[1]
        self.chunks: list[Struct] = [one.get_value(CHUNK) for one in self.group.get_value(GROUP_CHUNKS)[1]]
        self.pages = [self._pages(data, chunk) for chunk in self.chunks]

    @property
    def elements(self) -> list[Struct]:
        """What the schema has, without its root."""
        found: list[Struct] = self.footer.get_value(SCHEMA)[1][1:]
        return found

    def _pages(self, data: bytes, chunk: Struct) -> list[Page]:
        start = min(chunk.get_value(number) for number in (DATA_OFFSET, DICTIONARY_OFFSET) if number in chunk)
        parser, pages = Parser(data, start), []
        while parser.at < start + chunk.get_value(CHUNK_STORED):
            header = parser.struct()
            stored = parser.take(header.get_value(PAGE_STORED))
            pages.append(Page(header, zstandard.decompress(stored, header.get_value(PAGE_SIZE))))
        return pages

    def parts(self) -> tuple[bytes, Struct]:
        """Return all up to the footer, and the footer, which says where things are then."""
        body = b"PAR1"
        for outer, chunk, pages in zip(self.group.get_value(GROUP_CHUNKS)[1], self.chunks, self.pages, strict=True):
            start, first = len(body), dict[int, int]()
            for page in pages:
                first.setdefault(DICTIONARY_OFFSET if DICTIONARY_HEADER in page.header else DATA_OFFSET, len(body))
                body += page.stored()
            for number, offset in first.items():
                chunk.put(number, offset)
            chunk.put(CHUNK_STORED, len(body) - start)
            if CHUNK_OFFSET in outer:
                outer.put(CHUNK_OFFSET, 0)
        self.group.put(GROUP_OFFSET, 4)
        self.group.put(GROUP_STORED, len(body) - 4)
        digests = [[4, len(body) - 4, sha256(body[4:]).hexdigest()]]
        for pair in self.footer.get_value(METADATA)[1]:
            if pair.get_value(1) == DIGESTS:
                pair.put(2, json.dumps(digests).encode())
        return body, self.footer

    def build(self) -> bytes:
        body, footer = self.parts()
        return with_footer(body, encoded(footer))


def with_footer(body: bytes, footer: bytes) -> bytes:
    return body + footer + len(footer).to_bytes(4, "little") + b"PAR1"
