"""Decode Parquet files of tables.

These are snapshots, packs, and row groups that were fetched separately.
"""

import io
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_checkpointer.errors import MalformedError
from pyspark_checkpointer.manifests.digest import verify
from pyspark_checkpointer.table import file_columns
from pyspark_checkpointer.table.footer import check_footer, check_rows
from pyspark_checkpointer.table.parquet_encode import ROW_GROUPS_KEY
from pyspark_checkpointer.table.schema import CHANGE, OWN_COLUMNS, PARTITION, TableSchema
from pyspark_checkpointer.table.time_bounds import Bounds, time_bounds

DECODE_BATCH_BYTES = 256 << 20
"""Bytes of row groups that are decoded together.

The bytes are those that the footer declares. Arrow fails on 2 GiB of lists.
"""


def decode(name: str, data: bytes, schema: TableSchema, columns: Sequence[str]) -> pa.Table:
    """Return the rows of a snapshot in the columns of `schema`.

    Columns that are newer than the file are null, and columns that were widened since are cast.
    """
    with _explain_decode_errors(name):
        # No statistics are asked for here, which is where Arrow aborts over a bad footer.
        return _read(pq.ParquetFile(pa.BufferReader(data)), None, schema, columns, [])


def decode_pack(
    name: str, data: bytes, schema: TableSchema, columns: Sequence[str], partitions: Sequence[int] | None
) -> pa.Table:
    """Return the changes in a pack, in order of their partitions.

    The result has all of `partitions`, and maybe others; None stands for all that are in the pack.
    """
    with _explain_decode_errors(name):
        file = pq.ParquetFile(pa.BufferReader(data))
        # Before the bounds are read: over bounds that are not sound Arrow ends the process instead of raising.
        check_footer(data, file.metadata.schema)
        groups = None if partitions is None else _groups_of(file.metadata, partitions)
        return _read(file, groups, schema, columns, [PARTITION, CHANGE])


def _paths(metadata: pq.FileMetaData) -> list[str]:
    """Return the path of each column, from the schema.

    The path in a column chunk is not checked.
    """
    return [metadata.schema.column(index).path for index in range(len(metadata.schema))]


def _groups_of(metadata: pq.FileMetaData, partitions: Sequence[int]) -> list[int]:
    """Return the row groups of a pack that may hold rows of some partitions.

    The bounds of the row groups tell.
    """
    at, wanted, groups = _paths(metadata).index(PARTITION), sorted(partitions), []
    for group in range(metadata.num_row_groups):
        bounds = metadata.row_group(group).column(at).statistics
        # Without bounds nothing rules a row group out, so it is read.
        if (
            bounds is None
            or not bounds.has_min_max
            or bisect_left(wanted, bounds.min) < bisect_right(wanted, bounds.max)
        ):
            groups.append(group)
    return groups


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
    """A file of which only the footer was fetched and verified.

    Its row groups are verified when they are decoded.
    """

    def __init__(self, name: str, size: int, tail: bytes, schema: TableSchema) -> None:
        self._name = name
        self._size = size
        self._schema = schema
        with _explain_decode_errors(name):
            self.metadata = pq.read_metadata(pa.BufferReader(tail))
            check_footer(tail, self.metadata.schema)
            self._paths = _paths(self.metadata)
            self.ranges = [_range(size, *row) for row in json.loads(self.metadata.metadata[ROW_GROUPS_KEY.encode()])]
            if len(self.ranges) != self.metadata.num_row_groups:
                raise ValueError(f"{len(self.ranges)} digests for {self.metadata.num_row_groups} row groups")

    def of_partitions(self, partitions: Sequence[int]) -> list[int]:
        """Return the row groups of a pack that may hold rows of some partitions."""
        with _explain_decode_errors(self._name):
            return _groups_of(self.metadata, partitions)

    def of_keys(self, keys: pa.Table) -> list[int]:
        """Return the row groups that may hold one of `keys`.

        The bounds of their key columns tell.
        """
        with _explain_decode_errors(self._name):
            names = file_columns.names_by_id(self.metadata.schema.to_arrow_schema(), self._schema)
            key = self._schema.key
            wanted = {path: _sorted(keys[name]) for path, name in names.items() if name in key}
            return [group for group in range(len(self.ranges)) if self._may_hold(group, wanted)]

    def times(self, column: str) -> list[Bounds | None]:
        """Return the bounds of the times of a column in each row group; None where the file does not tell."""
        with _explain_decode_errors(self._name):
            return time_bounds(self.metadata, self._schema, column)

    def _may_hold(self, group: int, wanted: dict[str, list[Any] | None]) -> bool:
        """Return whether a row group may hold a wanted key.

        It may if each column has a wanted value within its bounds.
        """
        described = self.metadata.row_group(group)
        for index, path in enumerate(self._paths):
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
        with _explain_decode_errors(self._name):
            # With `pre_buffer` Arrow would also read bytes between neighbouring row groups, which were not fetched.
            file = pq.ParquetFile(_PartialFile(self._size, parts), metadata=self.metadata, pre_buffer=False)
            return _read(file, sorted(groups), self._schema, columns, own)


def _read(
    file: pq.ParquetFile, groups: list[int] | None, schema: TableSchema, columns: Sequence[str], own: list[str]
) -> pa.Table:
    """Return the rows of some row groups, or of all.

    They have the columns of `schema`, then the `own` columns of a delta.
    """
    # First of all: Arrow allocates memory for as many rows as the footer declares.
    check_rows(file.metadata)
    file_columns.check_storage(file.schema)
    # Columns are known by their id alone: a file has the names of the time when it was written.
    stored, own = file_columns.find(file.schema_arrow, schema, own)
    # The key is read in any case, as it tells whether the rows are in order.
    names = [name for name in schema.names if name in columns or name in schema.key]
    wanted = [stored[name] for name in names if name in stored] + own
    if groups is None:
        groups = list(range(file.metadata.num_row_groups))
    parts = [file.read_row_groups(run, columns=wanted, use_threads=False) for run in _runs(file.metadata, groups)]
    # Concatenating tables without columns would forget how many rows they have.
    found = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
    by_name = {column.name: column for column in schema.columns}
    # Not the fields of the file: a column may be without nulls in one file and with them in another.
    own_fields = [pa.field(name, OWN_COLUMNS[name]) for name in own]
    arrays = [file_columns.align(found, stored.get(name), by_name[name]) for name in names]
    arrays += [file_columns.align_own(found, field) for field in own_fields]
    expected = sum(file.metadata.row_group(group).num_rows for group in groups)
    # Pages may hold another number of rows than the footer says, and Arrow need not notice.
    if found.num_rows != expected:
        raise ValueError(f"{found.num_rows} rows, but by the footer the row groups have {expected}")
    rows = pa.table(arrays, schema=pa.schema([*(by_name[name].field() for name in names), *own_fields]))
    file_columns.check_rows(rows, schema)
    return rows.select([*columns, *own])


def _runs(metadata: pq.FileMetaData, groups: list[int]) -> list[list[int]]:
    """Group the row groups that are decoded together.

    Without row groups there is one empty group.
    """
    runs: list[list[int]] = [[]]
    size = 0
    for group in groups:
        more = metadata.row_group(group).total_byte_size
        if runs[-1] and size + more > DECODE_BATCH_BYTES:
            runs.append([])
            size = 0
        runs[-1].append(group)
        size += more
    return runs


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


_DECODE_ERRORS = (
    pa.ArrowException,
    ArithmeticError,
    ValueError,
    LookupError,
    TypeError,
    OSError,
    EOFError,
    RecursionError,
)


@contextmanager
def _explain_decode_errors(name: str) -> Iterator[None]:
    """Raise errors that bad bytes cause in the Parquet library as `MalformedError`."""
    try:
        yield
    except _DECODE_ERRORS as error:
        raise MalformedError(f"{name}: expected a Parquet file of this table: {error}") from None


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
