"""Read blocks of a file, and verify them one by one.

A block is a few pages of each column. The index finds them.

keys → blocks that may hold them → ranges of their pages → a Parquet file of these pages alone, which Arrow decodes
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_checkpointer.errors import CorruptionError, DigestMismatchError
from pyspark_checkpointer.manifests.digest import check_size
from pyspark_checkpointer.table import row_order
from pyspark_checkpointer.table.block_index import BLOCKS_KEY, BlockIndex, block_digest
from pyspark_checkpointer.table.footer import check_row_counts
from pyspark_checkpointer.table.page_file import PageFile
from pyspark_checkpointer.table.parquet_decode import Selection, decode, explain_decode_errors, read_rows
from pyspark_checkpointer.table.row_equality import equal_rows
from pyspark_checkpointer.table.schema import OWN_COLUMNS, PARTITION, TableSchema


class Blocks:
    """The blocks of a file whose tail was fetched and verified."""

    def __init__(
        self,
        name: str,
        metadata: pq.FileMetaData,
        tail: bytes,
        index: bytes,
        ranges: Sequence[tuple[int, int, str]],
        schema: TableSchema,
        own: Sequence[str],
    ) -> None:
        """Read the index, with which `index` begins.

        `ranges` has the start and the length of each row group. `own` are the columns of a delta that are read too: the
        file is a pack if there are some.
        """
        self._name = name
        self._ranges = ranges
        self._schema = schema
        self._own = own
        order = [PARTITION] if own else []
        self._key = [*order, *schema.key]
        """The columns that the rows are in order of."""
        with explain_decode_errors(name):
            check_row_counts(metadata)
            if any(metadata.schema.column(n).max_repetition_level for n in range(len(metadata.schema))):
                raise ValueError("an index of blocks in a file with lists")
            groups = [(metadata.row_group(group).num_rows, length) for group, (_, length, _) in enumerate(ranges)]
            self._widths = [metadata.row_group(n).total_byte_size / max(rows, 1) for n, (rows, _) in enumerate(groups)]
            """The bytes of a row in each row group before compression. Arrow fails on too many of them at once."""
            described = metadata.metadata[BLOCKS_KEY.encode()]
            self._index = BlockIndex.parse(described, index, len(metadata.schema), groups)
            self._file = PageFile(tail, metadata)
            self._shared, self._pages = self._index.places([start for start, _, _ in ranges])
            starts = pq.read_metadata(pa.BufferReader(self._index.starts)).num_rows
        count = len(self._index.rows)
        # Before they are decoded: a few bytes may say that there are millions of nulls.
        if starts not in (count, count + 1):
            raise CorruptionError(f"{name}: expected the first keys of {count} blocks, found {starts}")
        keys = replace(schema, columns=schema.key_columns)
        found = decode(f"{name} (first keys)", self._index.starts, keys, keys.names, order)
        self._starts, self._last = found.slice(0, count), found.slice(count)

    def of_keys(self, keys: pa.Table) -> Selection:
        """Choose the blocks that may hold one of `keys`."""
        found = row_order.last_up_to(self._starts, keys, self._key)
        blocks = np.unique(found[found >= 0])
        final = len(self._index.rows) - 1
        if self._last.num_rows and final in blocks:
            # New keys are often above all others.
            lowest = row_order.in_order(keys.select(self._key).filter(found == final), self._key).slice(0, 1)
            if row_order.last_up_to(lowest, self._last, self._key)[0] < 0:
                blocks = blocks[:-1]
        return self._select(blocks)

    def _select(self, blocks: Any) -> Selection:
        index = self._index
        groups, firsts = np.unique(index.groups[blocks], return_index=True)
        # The dictionaries of all columns of each row group, then the pages of each block.
        starts = np.concatenate([self._shared[groups], self._pages[blocks]]).ravel()
        lengths = np.concatenate([index.dictionaries[groups], index.lengths[blocks]]).ravel()
        ranges = list(zip(starts.tolist(), lengths.tolist(), strict=True))
        by_group = [some.tolist() for some in np.split(blocks, firsts[1:])] if len(blocks) else []

        def read(found: Sequence[bytes], columns: Sequence[str]) -> pa.Table:
            for (_, length), data in zip(ranges, found, strict=True):
                check_size(f"{self._name} (a page)", len(data), length)
            return self._decode(by_group, found, columns)

        return Selection(ranges, len(blocks) / max(len(index.rows), 1), read)

    def _decode(self, by_group: list[list[int]], found: Sequence[bytes], columns: Sequence[str]) -> pa.Table:
        """Verify the bytes of some blocks, and return their rows.

        The blocks are given by row group.
        """
        index, width = self._index, self._index.lengths.shape[1]
        rows_of_columns = [found[at : at + width] for at in range(0, len(found), width)]
        dictionaries, pages = rows_of_columns[: len(by_group)], iter(rows_of_columns[len(by_group) :])
        parts = []
        for shared, blocks in zip(dictionaries, by_group, strict=True):
            prefix, held = b"".join(shared), []
            for block in blocks:
                page = next(pages)
                if block_digest(prefix, page) != index.digests[block]:
                    raise DigestMismatchError(f"{self._name} (block {block}): expected the digest of the index")
                held.append(page)
            count = sum(index.rows[block] for block in blocks)
            parts.append((count, int(count * self._widths[index.groups[blocks[0]]]), shared, held))
        with explain_decode_errors(self._name):
            file = pq.ParquetFile(pa.BufferReader(self._file.build(parts)))
            names = [name for name in self._schema.names if name in columns or name in self._key]
            rows = read_rows(file, None, self._schema, names, self._own)
        chosen = [block for blocks in by_group for block in blocks]
        firsts = np.cumsum([0, *(index.rows[block] for block in chosen)])[:-1]
        # Not by `take`: Arrow would make one array of all keys first, which fails for 2 GiB of texts.
        begins = np.zeros(rows.num_rows, bool)
        begins[firsts] = True
        found_keys = rows.select(self._key).filter(pa.array(begins))
        # A wrong key in the index would lead past rows that are there.
        if not equal_rows(found_keys, self._starts.take(np.array(chosen, np.int64))).all():
            raise CorruptionError(f"{self._name}: a block that begins with another key than the index says")
        return rows.select([*columns, *(name for name in rows.column_names if name in OWN_COLUMNS)])

    def counts(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the least and the most rows of a pack in each of some partitions.

        The index tells them. The partition of the first row of each block is known, and that of the last row of all.
        The rows between these two are of the same partitions, or of partitions between them.
        """
        known = pa.concat_tables([self._starts, self._last])[PARTITION].to_numpy()
        rows = np.array(self._index.rows, np.int64)
        if self._last.num_rows:
            rows = np.append(rows, 1)
            rows[-2] -= 1
        ends = np.cumsum(np.append(0, rows))
        # The rows of each block but its first one. There is nothing before the first block, which is at index -1.
        rest = np.append(rows - 1, 0)
        first, end = np.searchsorted(known, partitions), np.searchsorted(known, partitions, "right")
        own = ends[end] - ends[first]
        # The rest of the last block that begins with the partition may be of others, and that of the block before it
        # may be of the partition.
        least, most = own - np.where(end > first, rest[end - 1], 0), own + rest[first - 1]
        return dict(zip(partitions, zip(least.tolist(), most.tolist(), strict=True), strict=True))


__all__ = ["Blocks"]
