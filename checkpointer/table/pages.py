"""Find the pages in the bytes of a row group.

A row group has the pages of its first column, then those of the next. A page is a header, a struct in Thrift's compact
protocol, and then as many bytes as the header says. Some pages of a column may have a dictionary in common, which is
its first page.
"""

import re

from pyspark_checkpointer.table.thrift import CompactReader

_TYPE, _STORED, _DATA, _VALUES = 1, 3, 5, 1
"""Fields of the header of a page, and of the struct in it that describes its data."""

_DATA_PAGE, _DICTIONARY_PAGE = 0, 2

_NUMBER = rb"[\x80-\xff]{0,4}[\x00-\x7f]"
_BOUNDS = (
    rb"\x18%(n)c.{%(n)d}\x18%(n)c.{%(n)d}\x16%(number)b\x28%(n)c.{%(n)d}\x18%(n)c.{%(n)d}[\x11\x12]{2}"
    % {b"n": n, b"number": _NUMBER}
    for n in (4, 8)
)
_DATA_HEADER = re.compile(
    rb"\x15\x00\x15%(number)b\x15(%(number)b)\x2c\x15(%(number)b)\x15.\x15.\x15.\x1c(?:%(bounds)b)?\x00\x00\x00"
    % {b"number": _NUMBER, b"bounds": b"|".join(_BOUNDS)},
    re.DOTALL,
)
"""The header of a data page without bounds, or with bounds of four or eight bytes.

Most pages have such a header, and to match it takes a tenth of the time of reading it field by field.
"""


def page_lengths(data: bytes, columns: int, rows: list[int]) -> tuple[list[int], list[list[int]]] | None:
    """Return the lengths of the dictionary and the pages of each column.

    They are found in the bytes of a row group. Each length counts the header too, and that of a dictionary is 0 where
    there is none. `rows` are the numbers of rows that the pages of each column should have. Returns None where the
    pages have other numbers.
    """
    dictionaries, lengths, at = [], [], 0
    for _ in range(columns):
        start = at
        kind, values, end = _page(data, at)
        if kind == _DICTIONARY_PAGE:
            at = end
            kind, values, end = _page(data, at)
        dictionaries.append(at - start)
        pages = []
        for count in rows:
            if kind != _DATA_PAGE or values != count or end > len(data):
                return None
            pages.append(end - at)
            at = end
            if len(pages) < len(rows):
                kind, values, end = _page(data, at)
        lengths.append(pages)
    return (dictionaries, lengths) if at == len(data) else None


def _page(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the type of the page at a byte, its number of values, and where it ends."""
    if found := _DATA_HEADER.match(data, at):
        stored, values = found.groups()
        return _DATA_PAGE, _integer(values), found.end() + _integer(stored)
    reader = CompactReader(data, at)
    header = reader.struct({})
    return header[_TYPE], header.get(_DATA, {}).get(_VALUES, 0), reader.at + header[_STORED]


def _integer(stored: bytes) -> int:
    """Return a number that is not negative: its varint has twice the number."""
    number = 0
    for byte in reversed(stored):
        number = number << 7 | byte & 127
    return number >> 1


__all__ = ["page_lengths"]
