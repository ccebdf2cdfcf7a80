"""Encode rows as a Parquet file.

Columns are identified by field id, not by name. The metadata of a file has the range and the SHA-256 of each row group.
So a reader that knows the digest of the footer can fetch single row groups and verify them. A file in order of a key
may also have an index of smaller blocks of rows (`block_index.py`). A pack may have a filter of its keys
(`key_filter.py`).
"""

import inspect
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_checkpointer.compaction import ROW_GROUP_ROWS
from pyspark_checkpointer.manifests.digest import sha256
from pyspark_checkpointer.manifests.model import Tail
from pyspark_checkpointer.table import large_rows
from pyspark_checkpointer.table.block_index import BLOCKS_KEY, IndexBuilder
from pyspark_checkpointer.table.key_filter import FILTER_KEY, build_filter, key_hashes
from pyspark_checkpointer.table.schema import KEPT, PARTITION

ROW_GROUP_BYTES = 2 << 20
"""Bytes in memory of a row group of wide rows."""

MAX_ROW_GROUP_BYTES = 4 * ROW_GROUP_BYTES
"""The most bytes in memory of a row group whose rows differ much in width.

A single row may have more.
"""

ZSTD_LEVEL = 1

ROW_GROUPS_KEY = "checkpointer.row_groups"

BLOCK_ROWS = 512
"""The most rows of a block.

A lookup of one key reads one block. The index has some 40 bytes for each block, so smaller blocks would not help.
"""

BLOCK_BYTES = 64 << 10
"""Bytes in memory of a block of wide rows."""

MIN_BLOCKS = 16
"""The fewest blocks of a file with an index: a smaller file is fetched as a whole."""

PACK_BLOCK_ROWS, PACK_BLOCK_BYTES = 4 * BLOCK_ROWS, 4 * BLOCK_BYTES
"""The most rows, and bytes in memory, of a block of a pack.

Each batch writes a pack, and smaller blocks would make it slower.
"""

MIN_PACK_BLOCKS = 16
"""The fewest blocks of a pack with an index and a filter. Unlike its bytes, they are known before it is written."""

LARGE_PACK_BYTES = 256 << 10
"""The size of a pack, in bytes, from which a partial read pays off.

Reading only some row groups of a pack takes one more request, and asking its filter two, unless the process remembers
what they read. So a smaller pack has neither index nor filter.
"""

WIDE_VALUE_BYTES = 32
"""The bytes of a value from which the pages of a column are compressed with zstd.

zstd takes some 15 µs for each page of any size. Arrow takes as long to decode a page of numbers. So narrow columns of a
file with blocks are compressed with LZ4, which makes files a tenth larger.
"""

DICTIONARY_SHARE = 16
"""A column of a file with blocks has dictionaries if it has at least this number of values for each distinct one.

To read a block, the dictionary of its row group is read too.
"""

_HAS_BLOCKS = "max_rows_per_page" in inspect.signature(pq.ParquetWriter.__init__).parameters
"""True if this pyarrow can end a page after a given number of rows. Version 23 is the first that can."""


class EncodedFile(NamedTuple):
    """An encoded file.

    `raw_size` is the size of its rows in memory. `tail` covers the footer.
    """

    data: bytes
    digest: str
    raw_size: int
    tail: Tail


class Encoder:
    """Encode rows as one file, part by part.

    The rows have to come in order of their key, so that a lookup can skip row groups with other keys. With `key`, the
    names of the key columns, a file of many rows gets an index of its blocks. A large `pack` also gets a filter.
    """

    def __init__(self, schema: pa.Schema, key: Sequence[str] = (), *, pack: bool = False) -> None:
        self._sink = io.BytesIO()
        self._schema = schema
        self._key = key
        self._pack = pack
        self._keys: list[pa.Table] | None = None
        """All keys, if the file gets a filter where it is large enough."""
        self._first: list[pa.Table] = []
        """The first rows, until there are enough of them for an index."""
        self._writer: pq.ParquetWriter | None = None
        self._index: IndexBuilder | None = None
        self._columns = sum(1 for _ in _leaves(schema))
        self._digests: list[list[Any]] = []
        self._start = 0
        self.num_rows = 0
        self.raw_size = 0

    def add(self, rows: pa.Table) -> None:
        """Add rows."""
        self.num_rows += rows.num_rows
        self.raw_size += rows.nbytes
        if self._writer is None:
            # Most rows of a first part may have expired. The few that are left must not decide for a large file.
            self._first.append(rows)
            rows = pa.concat_tables(self._first)
            if rows.num_rows < self._least_rows(rows) and rows.nbytes < MAX_ROW_GROUP_BYTES:
                return
        self._write(rows)

    def _write(self, rows: pa.Table) -> None:
        """Write rows, as row groups of their own."""
        self._first.clear()
        writer = self._writer or self._open(rows)
        # Each part is written as one row group, so that its bytes are known and can be hashed right after.
        for part in large_rows.slices(rows, _rows_per_group(rows), MAX_ROW_GROUP_BYTES):
            # Arrow may end a large page where a chunk ends, which can be within a block.
            writer.write_table(part.combine_chunks(), row_group_size=part.num_rows)
            end = self._sink.tell()
            # A view saves a copy. It is gone before the next write, as a BytesIO cannot grow while somebody holds
            # one.
            with self._sink.getbuffer()[self._start : end] as data:
                self._digests.append([self._start, end - self._start, sha256(data)])
                if self._index is not None:
                    self._index.add(part, bytes(data), self._columns)
            self._start = end
        if self._keys is not None:
            self._keys.append(rows.select(self._key))

    def finish(self) -> EncodedFile:
        """Write the footer, and return the whole file."""
        if self._writer is None:
            self._write(pa.concat_tables([self._schema.empty_table(), *self._first]))
        writer = self._writer
        assert writer is not None
        # The digests stand in the footer, and the digest of the footer goes into the manifest.
        described = {ROW_GROUPS_KEY: json.dumps(self._digests, separators=(",", ":"))}
        # Other programs do not read what is in no row group.
        if self._keys is not None and sum(length for _, length, _ in self._digests) >= LARGE_PACK_BYTES:
            found = build_filter(np.concatenate([key_hashes(keys) for keys in self._keys]))
            described[FILTER_KEY] = json.dumps([self._start, len(found), sha256(found)], separators=(",", ":"))
            # Not a part of the tail: who reads all rows of some partitions does not need it.
            self._start += self._sink.write(found)
        if self._index is not None and (starts := self._index.starts()) is not None:
            described[BLOCKS_KEY] = self._index.write(self._sink, encode(starts).data)
        writer.add_key_value_metadata(described)
        writer.close()
        data = self._sink.getvalue()
        tail = memoryview(data)[self._start :]
        return EncodedFile(data, sha256(data), self.raw_size, Tail(len(tail), sha256(tail)))

    def _open(self, rows: pa.Table) -> pq.ParquetWriter:
        """Begin the file, whose first rows say how it is written."""
        options: dict[str, Any] = {"compression": "zstd", "compression_level": ZSTD_LEVEL, **_encodings(self._schema)}
        per_block = self._rows_per_block(rows)
        is_large = rows.num_rows >= self._least_rows(rows)
        if self._key and is_large and self._pack:
            self._keys = []
        if self._key and is_large and _HAS_BLOCKS and _has_whole_pages(self._schema):
            order, least = ([PARTITION, *self._key], LARGE_PACK_BYTES) if self._pack else (self._key, 0)
            self._index = IndexBuilder(per_block, order, least)
            options |= _block_options(rows.slice(0, ROW_GROUP_ROWS), per_block, self._pack)
        self._writer = pq.ParquetWriter(self._sink, self._schema, **options)
        # The writer has begun with the four bytes `PAR1`, so the first row group starts at byte 4.
        self._start = self._sink.tell()
        return self._writer

    def _rows_per_block(self, rows: pa.Table) -> int:
        most, size = (PACK_BLOCK_ROWS, PACK_BLOCK_BYTES) if self._pack else (BLOCK_ROWS, BLOCK_BYTES)
        return max(min(most, size // max(_width(rows), 1)), 1)

    def _least_rows(self, rows: pa.Table) -> int:
        """Return how many rows like these a file with an index has at least."""
        return (MIN_PACK_BLOCKS if self._pack else MIN_BLOCKS) * self._rows_per_block(rows)


def encode(rows: pa.Table, key: Sequence[str] = (), *, pack: bool = False) -> EncodedFile:
    """Encode rows as a file.

    The rows must be in order of their key. For `key` and `pack` see `Encoder`.
    """
    encoder = Encoder(rows.schema, key, pack=pack)
    encoder.add(rows)
    return encoder.finish()


def _width(rows: pa.Table) -> int:
    """Return the bytes of a row in memory, without the text of its kept columns.

    Many rows share a text, which a file has once: in a wide table it would make row groups of few other bytes.
    """
    kept = rows[KEPT].nbytes if KEPT in rows.column_names else 0
    width: int = (rows.nbytes - kept) // max(rows.num_rows, 1)
    return width


def _has_whole_pages(schema: pa.Schema) -> bool:
    """Return whether the pages of all columns can end at the same rows.

    They cannot if there are lists, whose values may be in several pages, or columns of equal paths, which cannot be
    told apart.
    """
    paths = [path for path, _ in _leaves(schema)]
    return not any(".list." in path or ".key_value." in path for path in paths) and len(set(paths)) == len(paths)


def _leaf_values(rows: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield each column that Parquet stores, with its path and its values.

    The rows have no lists and no maps.
    """
    while any(pa.types.is_struct(kind) for kind in rows.schema.types):
        rows = rows.flatten()
    yield from zip(rows.column_names, rows.columns, strict=True)


def _block_options(rows: pa.Table, per_block: int, pack: bool) -> dict[str, Any]:
    """Return the options for a file with blocks, of which these are some rows."""
    leaves = list(_leaf_values(rows))
    wide = [
        path
        for path, values in leaves
        # A pack has fewer pages, and only whole numbers are hardly smaller with zstd.
        if values.nbytes >= WIDE_VALUE_BYTES * len(values) or (pack and not _is_whole_number(values.type))
    ]
    return {
        "max_rows_per_page": per_block,
        # After each batch of this number of rows, Arrow ends a page that has 1 MiB. It must not do so within a block.
        "write_batch_size": max(per_block, 1024),
        "compression": {path: "zstd" if path in wide else "lz4" for path, _ in leaves},
        "compression_level": dict.fromkeys(wide, ZSTD_LEVEL) or None,
        "use_dictionary": [
            path
            for path, values in leaves
            if _is_text(values.type) and len(values.unique()) * DICTIONARY_SHARE <= len(values)
        ],
        # Readers look for bounds of times and of partitions only. Of the key the index says more than bounds would, and
        # a pack without one is fetched as a whole.
        "write_statistics": [path for path, values in leaves if pa.types.is_temporal(values.type) or path == PARTITION],
    }


def _rows_per_group(rows: pa.Table) -> int:
    """Return how many rows a row group has.

    A group has fewer wide rows, because readers fetch whole row groups. Much smaller groups would not help: the footer,
    which readers fetch first, would grow by the bytes that they save.
    """
    return max(min(ROW_GROUP_ROWS, ROW_GROUP_BYTES // max(_width(rows), 1)), 1)


def _encodings(schema: pa.Schema) -> dict[str, Any]:
    """Return the encodings of columns.

    Integers and times are stored as differences, text by a dictionary, others plain. By measurement, this takes half
    the time and two thirds of the bytes of Arrow's default, a dictionary for all columns.
    """
    leaves = list(_leaves(schema))
    # Columns whose names have dots may share a path. The library cannot tell them apart: they are plain.
    ambiguous = {path for path, count in Counter(path for path, _ in leaves).items() if count > 1}
    unique = [(path, kind) for path, kind in leaves if path not in ambiguous]
    return {
        "use_dictionary": [path for path, kind in unique if _is_text(kind)],
        "column_encoding": {path: "DELTA_BINARY_PACKED" for path, kind in unique if _is_whole_number(kind)},
    }


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _is_whole_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or (pa.types.is_temporal(kind) and not pa.types.is_interval(kind)))


def _leaves(fields: Iterable[pa.Field], above: str = "") -> Iterator[tuple[str, pa.DataType]]:
    """Yield each column that Parquet stores, with its path there and its type.

    The fields of a struct are columns of their own.
    """
    for field in fields:
        kind, path = field.type, above + field.name
        if pa.types.is_struct(kind):
            yield from _leaves(kind, f"{path}.")
        elif pa.types.is_map(kind):
            yield from _leaves([kind.key_field, kind.item_field], f"{path}.key_value.")
        elif pa.types.is_list(kind):
            yield from _leaves([kind.value_field.with_name("element")], f"{path}.list.")
        else:
            yield path, kind
