"""Write and read the index of the blocks of a file.

A block is the rows of one page in each column, and the pages of all columns end at the same rows. The index lies
between the last row group and the footer, so that it is a part of the tail. It has, one after the other:

- 16 bytes of each block: the beginning of the SHA-256 of the dictionaries of its row group and of its pages;
- the length of the dictionary of each column of each row group, and the length of the page of each column of each
  block, in two bytes, or in four where one does not fit;
- a Parquet file with the first key of each block, and then the last key of all, unless that is the first of its block.

The metadata of the file says how many rows a block has, how many columns there are, how many bytes a length has, and
how long the Parquet file is.
"""

import hashlib
import json
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, BinaryIO, NamedTuple, Self

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.table.pages import page_lengths

BLOCKS_KEY = "checkpointer.blocks"

DIGEST_BYTES = 16
"""The bytes of a digest of a block.

Nobody can find other pages with the same 16 bytes; 32 would be most of the index.
"""

_LENGTHS: dict[int, Any] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
"""Types of a length, by its bytes."""


class IndexBuilder:
    """Make the index of a file while its row groups are written."""

    def __init__(self, per_block: int, key: Sequence[str], least_bytes: int) -> None:
        """Begin the index of a file with blocks of `per_block` rows.

        There is none if all row groups have fewer bytes than `least_bytes`.
        """
        self._per_block = per_block
        self._key = list(key)
        self._least_bytes = least_bytes
        self._bytes = 0
        self._waiting: list[tuple[pa.Table, bytes, int]] = []
        """Row groups, until they have enough bytes: to make an index takes as long as to encode a small pack."""
        self._digests: list[bytes] = []
        self._dictionaries: list[Any] = []
        self._lengths: list[Any] = []
        self._starts: list[pa.Table] = []
        self._last: pa.Table | None = None
        self._is_whole = True
        """False if the pages of a row group are not those of blocks. Then the file gets no index."""

    def add(self, rows: pa.Table, data: bytes, columns: int) -> None:
        """Add a row group: its rows, its bytes, and the number of its stored columns.

        Parquet may store one column as several.
        """
        self._bytes += len(data)
        self._waiting.append((rows, data, columns))
        if self._bytes >= self._least_bytes:
            for row_group in self._waiting:
                self._add(*row_group)
            self._waiting.clear()

    def _add(self, rows: pa.Table, data: bytes, columns: int) -> None:
        found = page_lengths(data, columns, rows_of_blocks(rows.num_rows, self._per_block))
        if found is None:
            self._is_whole = False
            return
        dictionaries, lengths = np.array(found[0]), np.array(found[1]).T
        self._dictionaries.append(dictionaries)
        self._lengths.append(lengths)
        shared, pages = places(dictionaries, lengths)
        prefix = b"".join(cut_parts(data, shared, dictionaries))
        self._digests += [block_digest(prefix, cut_parts(data, *block)) for block in zip(pages, lengths, strict=True)]
        keys = rows.select(self._key)
        self._starts.append(keys.take(np.arange(0, rows.num_rows, self._per_block)))
        # A copy: a slice would hold all rows in memory until the file is finished.
        last = rows.num_rows - 1
        self._last = keys.take([last]) if last % self._per_block else None

    def starts(self) -> pa.Table | None:
        """Return the first key of each block, and the last key.

        Returns None if there can be no index.
        """
        if not (self._is_whole and self._starts):
            return None
        return pa.concat_tables([*self._starts, *filter(None, [self._last])])

    def write(self, sink: BinaryIO, starts: bytes) -> str:
        """Write the index, and return its description for the metadata.

        `starts` is the Parquet file in the index.
        """
        lengths = [np.concatenate(numbers) for numbers in (self._dictionaries, self._lengths)]
        width = 2 if max(numbers.max() for numbers in lengths) < 1 << 16 else 4
        for part in (*self._digests, *(numbers.astype(_LENGTHS[width]).tobytes() for numbers in lengths), starts):
            sink.write(part)
        return json.dumps([self._per_block, len(self._dictionaries[0]), width, len(starts)], separators=(",", ":"))


class BlockIndex(NamedTuple):
    """The index of a file, but for the keys: the Parquet file `starts`."""

    rows: list[int]
    """The rows of each block."""
    groups: Any
    """The number of the row group of each block."""
    digests: list[bytes]
    dictionaries: Any
    """The length of the dictionary of each column of each row group, in an array of two dimensions."""
    lengths: Any
    """The length of the page of each column of each block, in an array of two dimensions."""
    starts: bytes

    @classmethod
    def parse(cls, described: bytes, data: bytes, columns: int, groups: Sequence[tuple[int, int]]) -> Self:
        """Parse an index. `data` begins with it.

        `columns` is the number of columns that Parquet stores, and `groups` has the rows and the bytes of each row
        group. Raises `ValueError` or `TypeError` where the index does not describe them.
        """
        per_block, found, width, size = json.loads(described)
        numbers = per_block, found, width, size
        # By type, because JSON has booleans, which Python counts as integers.
        if any(type(n) is not int or n < 1 for n in numbers) or found != columns or width not in _LENGTHS:
            raise ValueError(f"an index of blocks that says {described!r:.80}")
        counts = [-(-rows // per_block) for rows, _ in groups]
        shapes = (len(counts), columns), (sum(counts), columns)
        ends = list(accumulate([0, DIGEST_BYTES * sum(counts), *(width * a * b for a, b in shapes), size]))
        # Before memory is taken for all blocks that are claimed.
        if ends[-1] > len(data):
            raise ValueError(f"an index of {ends[-1]} bytes in a tail of {len(data)}")
        rows = [number for count, _ in groups for number in rows_of_blocks(count, per_block)]
        of_blocks = np.repeat(np.arange(len(counts)), counts)
        parts = [data[start:end] for start, end in pairwise(ends)]
        digests = [parts[0][at : at + DIGEST_BYTES] for at in range(0, len(parts[0]), DIGEST_BYTES)]
        numbers_of = (np.frombuffer(part, _LENGTHS[width]).astype(np.int64) for part in parts[1:3])
        dictionaries, lengths = map(np.reshape, numbers_of, shapes)
        stored = np.bincount(of_blocks, lengths.sum(axis=1), len(counts)) + dictionaries.sum(axis=1)
        # A length that is wrong would move all blocks behind it, and their digests would be called wrong.
        if not lengths.all() or (stored != [length for _, length in groups]).any():
            raise ValueError("an index whose pages are not those of the row groups")
        return cls(rows, of_blocks, digests, dictionaries, lengths, parts[3])

    def places(self, starts: Sequence[int]) -> tuple[Any, Any]:
        """Return where dictionaries and pages begin in the file.

        The dictionaries are by row group, and the pages are by block. `starts` says where the row groups begin.
        """
        ends = np.cumsum(np.bincount(self.groups, minlength=len(starts)))[:-1]
        parts = zip(starts, self.dictionaries, np.split(self.lengths, ends), strict=True)
        found = [(start + shared, start + pages) for start, *some in parts for shared, pages in [places(*some)]]
        return np.array([shared for shared, _ in found]), np.concatenate([pages for _, pages in found])


def rows_of_blocks(rows: int, per_block: int) -> list[int]:
    """Return the rows of each block of a row group. The last one may have fewer."""
    whole, rest = divmod(rows, per_block)
    return [per_block] * whole + [rest] * bool(rest)


def places(dictionaries: Any, lengths: Any) -> tuple[Any, Any]:
    """Return where the dictionaries and pages of each column begin in a row group.

    `dictionaries` and `lengths` are those of the row group.
    """
    columns = dictionaries + lengths.sum(axis=0)
    shared = np.cumsum(columns) - columns
    return shared, shared + dictionaries + np.cumsum(lengths, axis=0) - lengths


def cut_parts(data: bytes, starts: Any, lengths: Any) -> list[bytes]:
    """Return the parts of the bytes that begin at some places."""
    return [data[start : start + length] for start, length in zip(starts.tolist(), lengths.tolist(), strict=True)]


def block_digest(dictionaries: bytes, pages: Sequence[bytes]) -> bytes:
    """Return the digest of a block.

    It is over the dictionaries of the block's row group, and the pages of the block.
    """
    return hashlib.sha256(b"".join([dictionaries, *pages])).digest()[:DIGEST_BYTES]


__all__ = ["BLOCKS_KEY", "BlockIndex", "IndexBuilder", "block_digest", "cut_parts", "places", "rows_of_blocks"]
