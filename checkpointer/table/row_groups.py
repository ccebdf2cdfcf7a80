"""Read parts of a file: some row groups, or the blocks that may hold some keys.

Only the tail of the file was fetched and verified. Other parts are fetched, and verified before they are decoded.
"""

import io
import json
from bisect import bisect_left
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_checkpointer.manifests.digest import verify
from pyspark_checkpointer.storage.base import Range
from pyspark_checkpointer.table import file_columns
from pyspark_checkpointer.table.block_index import BLOCKS_KEY
from pyspark_checkpointer.table.blocks import Blocks
from pyspark_checkpointer.table.footer import check_footer
from pyspark_checkpointer.table.key_filter import FILTER_KEY, KeyFilter, SoughtKeys
from pyspark_checkpointer.table.parquet_decode import Selection, explain_decode_errors, groups_of, paths_of, read_rows
from pyspark_checkpointer.table.parquet_encode import ROW_GROUPS_KEY
from pyspark_checkpointer.table.schema import CHANGE, DELTA_COLUMNS, PARTITION, TableSchema
from pyspark_checkpointer.table.time_bounds import Bounds, past_rows, time_bounds


def _range(size: int, start: object, length: object, digest: object) -> tuple[int, int, str]:
    """Return the range of a row group in a file of `size` bytes, and its digest.

    Raises for a range outside of it.
    """
    # `type` and not `isinstance`: True is an int too.
    if type(start) is not int or type(length) is not int or type(digest) is not str:
        raise TypeError("a row group without a place or a digest")
    if not 0 <= start < start + length <= size:
        raise ValueError(f"a row group from byte {start}, {length} bytes long, in a file of {size}"[:200])
    return start, length, digest


class RowGroups:
    """A file of which only the tail was fetched and verified.

    Its row groups are verified when they are decoded.
    """

    def __init__(self, name: str, size: int, tail: bytes, schema: TableSchema) -> None:
        self._name = name
        self._tail = tail
        self._schema = schema
        self._size = size
        with explain_decode_errors(name):
            self.metadata = pq.read_metadata(pa.BufferReader(tail))
            self.ranges = [_range(size, *row) for row in json.loads(self.metadata.metadata[ROW_GROUPS_KEY.encode()])]
            if len(self.ranges) != self.metadata.num_row_groups:
                raise ValueError(f"{len(self.ranges)} digests for {self.metadata.num_row_groups} row groups")
            # Of one range many blocks could be made, each with all of its bytes in memory.
            if any(start + length > after for (start, length, _), (after, _, _) in pairwise(self.ranges)):
                raise ValueError("row groups that overlap, or are not in order")
            described = self.metadata.metadata.get(FILTER_KEY.encode())
            self.filter_range = None if described is None else _range(size, *json.loads(described))
            """The range of the filter of a pack, and its digest, if there is one."""
        self._filter: KeyFilter | None = None

    @property
    def unread_filter(self) -> Range | None:
        """Return the range of the filter of a pack.

        Returns None if there is no filter, or if it was read.
        """
        return None if self.filter_range is None or self._filter is not None else self.filter_range[:2]

    def read_filter(self, data: bytes) -> None:
        """Verify the bytes of the filter, and keep it for `select_changes`."""
        assert self.filter_range is not None
        _, length, digest = self.filter_range
        verify(f"{self._name} (filter)", data, size=length, digest=digest)
        with explain_decode_errors(self._name):
            stored = self.metadata.schema.to_arrow_schema()
            names = {current: name for name, current in file_columns.names_by_id(stored, self._schema).items()}
            self._filter = KeyFilter.parse(data, [stored.field(names[name]).type for name in self._schema.key])

    def _check_bounds(self) -> None:
        """Raise `ValueError` unless Arrow can be asked for the bounds of the row groups."""
        check_footer(self._tail, self.metadata.schema)

    def of_partitions(self, partitions: Sequence[int]) -> list[int]:
        """Return the row groups of a pack that may hold rows of some partitions."""
        with explain_decode_errors(self._name):
            self._check_bounds()
            return groups_of(self.metadata, partitions)

    def of_keys(self, keys: pa.Table) -> list[int]:
        """Return the row groups that may hold one of `keys`.

        The bounds of their key columns tell.
        """
        with explain_decode_errors(self._name):
            self._check_bounds()
            names = file_columns.names_by_id(self.metadata.schema.to_arrow_schema(), self._schema)
            key = self._schema.key
            wanted = {path: _sorted(keys[name]) for path, name in names.items() if name in key}
            paths = paths_of(self.metadata)
            return [group for group in range(len(self.ranges)) if self._may_hold(group, paths, wanted)]

    def times(self, column: str) -> list[Bounds | None]:
        """Return the bounds of the times of a column in each row group.

        They are None where the file does not tell.
        """
        with explain_decode_errors(self._name):
            self._check_bounds()
            return time_bounds(self.metadata, self._schema, column)

    def past_rows(self, column: str, limit: int) -> int:
        """Return how many rows lie in row groups that are past.

        All times of such a group in a column are at most `limit`.
        """
        with explain_decode_errors(self._name):
            self._check_bounds()
            return past_rows(self.metadata, self._schema, column, limit)

    def _may_hold(self, group: int, paths: list[str], wanted: dict[str, list[Any] | None]) -> bool:
        """Return whether a row group may hold a wanted key.

        It may if each column has a wanted value within its bounds.
        """
        described = self.metadata.row_group(group)
        for index, path in enumerate(paths):
            bounds, values = described.column(index).statistics, wanted.get(path)
            # A field b of a struct a has the path a.b, which may be the name of a key column too.
            is_nested = self.metadata.schema.column(index).max_definition_level > 1
            if is_nested or values is None or bounds is None or not bounds.has_min_max:
                continue
            try:
                at = bisect_left(values, bounds.min)
                if at == len(values) or values[at] > bounds.max:
                    return False
            # Bounds of another type, or that Python has no value for: this column cannot rule the row group out.
            except (TypeError, OverflowError, UnicodeDecodeError):
                continue
        return True

    @cached_property
    def _blocks(self) -> Blocks:
        return self._with_index([])

    @cached_property
    def _blocks_of_changes(self) -> Blocks:
        return self._with_index([PARTITION, CHANGE])

    def _with_index(self, own: list[str]) -> Blocks:
        ends = [start + length for start, length, _ in (*self.ranges, *filter(None, [self.filter_range]))]
        with explain_decode_errors(self._name):
            at = len(self._tail) - (self._size - max(ends, default=4))
            if at < 0:
                raise ValueError("a tail without the index of blocks")
        return Blocks(self._name, self.metadata, self._tail, self._tail[at:], self.ranges, self._schema, own)

    @property
    def _has_index(self) -> bool:
        return BLOCKS_KEY.encode() in self.metadata.metadata

    def select_keys(self, keys: pa.Table) -> Selection:
        """Choose the parts of a file that may hold one of `keys`.

        They are blocks, or row groups where the file has no index.
        """
        return self._blocks.of_keys(keys) if self._has_index else self.select(self.of_keys(keys))

    def select_changes(self, keys: SoughtKeys) -> Selection | None:
        """Choose the blocks of a pack that may hold changes of `keys`.

        The filter and the index tell them. Returns None where the file does not tell.
        """
        if self._filter is None:
            return None
        if (wanted := keys.may_be_in(self._filter)) is None:
            return None
        if wanted.num_rows == 0:
            none = self._schema.arrow_delta().empty_table()
            return Selection([], 0.0, lambda _, columns: none.select([*columns, *DELTA_COLUMNS]))
        return self._blocks_of_changes.of_keys(wanted) if self._has_index else None

    def counts(self, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Return the least and the most rows of a pack in each of some partitions."""
        if self._has_index:
            return self._blocks_of_changes.counts(partitions)
        return dict.fromkeys(partitions, (0, self.metadata.num_rows))

    def select(self, groups: list[int], *, changes: bool = False) -> Selection:
        """Choose some row groups.

        With `changes` the file is a pack, and its own columns are read too.
        """
        read = self.read_changes if changes else self.read
        ranges = [self.ranges[group][:2] for group in groups]
        share = len(groups) / max(len(self.ranges), 1)
        return Selection(ranges, share, lambda found, columns: read(dict(zip(groups, found, strict=True)), columns))

    def read(self, groups: dict[int, bytes], columns: Sequence[str]) -> pa.Table:
        """Verify the bytes of some row groups of a snapshot, and return their rows."""
        return self._rows(groups, columns, [])

    def read_changes(self, groups: dict[int, bytes], columns: Sequence[str]) -> pa.Table:
        """Verify the bytes of some row groups of a pack, and return their changes."""
        return self._rows(groups, columns, [PARTITION, CHANGE])

    def _rows(self, groups: dict[int, bytes], columns: Sequence[str], own: list[str]) -> pa.Table:
        parts = {}
        for group, data in groups.items():
            start, length, digest = self.ranges[group]
            # The manifest vouches for the footer, and the footer for each row group: Arrow decodes no byte that was
            # not verified.
            verify(f"{self._name} (row group {group})", data, size=length, digest=digest)
            parts[start] = data
        with explain_decode_errors(self._name):

            def reopen(texts: Sequence[str]) -> pq.ParquetFile:
                # With `pre_buffer` Arrow would also read bytes between neighbouring row groups, which were not fetched.
                part = _PartialFile(self._size, parts)
                return pq.ParquetFile(part, metadata=self.metadata, pre_buffer=False, read_dictionary=texts)

            return read_rows(reopen([]), sorted(groups), self._schema, columns, own, reopen)


def _sorted(values: pa.ChunkedArray) -> list[Any] | None:
    """Return the values in order, or None.

    Returns None where Python cannot order one of them, such as null or NaN.
    """
    try:
        found = values.to_pylist()
    except (OverflowError, UnicodeDecodeError):  # A date that Python does not have, or text that is not UTF-8.
        return None
    # Parquet's bounds leave nulls and NaN out (SPEC, Tables), so with one of these the column rules nothing out.
    return None if any(value is None or value != value for value in found) else sorted(found)


class _PartialFile(io.RawIOBase):
    """A file with only some of its ranges fetched.

    Reading anything else raises `OSError`.
    """

    def __init__(self, size: int, parts: dict[int, bytes]) -> None:
        self._size = size
        self._parts = parts
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        size = min(self._size - self._at if size < 0 else size, self._size - self._at)
        if size <= 0:
            return b""
        for start, data in self._parts.items():
            if start <= self._at and self._at + size <= start + len(data):
                found = data[self._at - start : self._at - start + size]
                self._at += size
                return found
        raise OSError(f"bytes {self._at} to {self._at + size} were not read from the store")


__all__ = ["RowGroups"]
