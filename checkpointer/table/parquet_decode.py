"""Decode Parquet files of tables.

These are snapshots, packs, and row groups that were fetched separately.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_checkpointer.errors import MalformedError
from pyspark_checkpointer.table import file_columns, large_rows
from pyspark_checkpointer.table.footer import check_footer, check_row_counts
from pyspark_checkpointer.table.repeated_texts import Reopen, repeated, spelled_out
from pyspark_checkpointer.table.schema import CHANGE, OWN_COLUMNS, PARTITION, TableSchema

DECODE_BATCH_BYTES = 256 << 20
"""Bytes of row groups that are decoded together.

The bytes are those that the footer declares. Arrow fails on 2 GiB of lists.
"""

DECODE_BATCH_GROUPS = 128
"""Row groups that are decoded together, at most.

The footer tells little where texts repeat. A row group of ours has at most 8 MiB of rows, or one row.
"""


def decode(name: str, data: bytes, schema: TableSchema, columns: Sequence[str], own: Sequence[str] = ()) -> pa.Table:
    """Return the rows of a snapshot or of a delta.

    They have the columns of `schema`, and then the `own` columns of a delta. Columns that are newer than the file are
    null, and columns that were widened since are cast.
    """
    with explain_decode_errors(name):
        # No statistics are asked for here, which is where Arrow aborts over a bad footer.
        file = pq.ParquetFile(pa.BufferReader(data))

        def reopen(texts: Sequence[str]) -> pq.ParquetFile:
            return pq.ParquetFile(pa.BufferReader(data), metadata=file.metadata, read_dictionary=texts)

        return read_rows(file, None, schema, columns, own, reopen)


def decode_pack(
    name: str, data: bytes, schema: TableSchema, columns: Sequence[str], partitions: Sequence[int] | None
) -> pa.Table:
    """Return the changes in a pack, in order of their partitions.

    The result has all of `partitions`, and maybe others; None means all partitions in the pack.
    """
    with explain_decode_errors(name):
        file = pq.ParquetFile(pa.BufferReader(data))
        # Before the bounds are read: over bounds that are not sound Arrow ends the process instead of raising.
        check_footer(data, file.metadata.schema)
        groups = None if partitions is None else groups_of(file.metadata, partitions)
        return read_rows(file, groups, schema, columns, [PARTITION, CHANGE])


def paths_of(metadata: pq.FileMetaData) -> list[str]:
    """Return the path of each column, from the schema.

    The path in a column chunk is not checked.
    """
    return [metadata.schema.column(index).path for index in range(len(metadata.schema))]


def groups_of(metadata: pq.FileMetaData, partitions: Sequence[int]) -> list[int]:
    """Return the row groups of a pack that may hold rows of some partitions.

    The bounds of the row groups tell.
    """
    at, wanted, groups = paths_of(metadata).index(PARTITION), sorted(partitions), []
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


class Selection(NamedTuple):
    """Some parts of a file: the ranges to fetch, and how to decode them.

    `share` is that of the whole file. `decode` takes the bytes of each range, and the columns to return; it verifies
    the bytes first.
    """

    ranges: Sequence[tuple[int, int]]
    share: float
    decode: Callable[[Sequence[bytes], Sequence[str]], pa.Table]


def read_rows(
    file: pq.ParquetFile,
    groups: list[int] | None,
    schema: TableSchema,
    columns: Sequence[str],
    own: Sequence[str],
    reopen: Reopen | None = None,
) -> pa.Table:
    """Return the rows of some row groups, or of all.

    They have the columns of `schema`, then the `own` columns of a delta. With `reopen`, texts that repeat are decoded
    faster.
    """
    # First of all: Arrow allocates memory for as many rows as the footer declares.
    check_row_counts(file.metadata)
    file_columns.check_storage(file.schema)
    # Columns are known by their id alone: a file has the names of the time when it was written.
    stored, found_own = file_columns.find_columns(file.schema_arrow, schema, own)
    # The key is read in any case, as it tells whether the rows are in order.
    names = [name for name in schema.names if name in columns or name in schema.key]
    wanted = [stored[name] for name in names if name in stored] + found_own
    if groups is None:
        groups = list(range(file.metadata.num_row_groups))
    texts = [] if reopen is None else repeated(file, reopen, groups, wanted)
    if reopen is not None and texts:
        file = reopen(texts)
    runs = _runs(file.metadata, groups)
    parts = [spelled_out(part, texts) for run in runs for part in _read_run(file, run, wanted)]
    # Concatenating tables without columns would forget how many rows they have.
    found = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
    by_name = {column.name: column for column in schema.columns}
    # Not the fields of the file: a column may be without nulls in one file and with them in another.
    own_fields = [pa.field(name, OWN_COLUMNS[name]) for name in found_own]
    arrays = [file_columns.align(found, stored.get(name), by_name[name]) for name in names]
    arrays += [file_columns.align_own(found, field) for field in own_fields]
    expected = sum(file.metadata.row_group(group).num_rows for group in groups)
    # Pages may hold another number of rows than the footer says, and Arrow need not notice.
    if found.num_rows != expected:
        raise ValueError(f"{found.num_rows} rows, but by the footer the row groups have {expected}")
    rows = pa.table(arrays, schema=pa.schema([*(by_name[name].field() for name in names), *own_fields]))
    file_columns.check_rows(rows, schema)
    return rows.select([*columns, *found_own])


def _runs(metadata: pq.FileMetaData, groups: list[int]) -> list[list[int]]:
    """Group the row groups that are decoded together.

    Without row groups there is one empty group.
    """

    def size(group: int) -> int:
        return int(metadata.row_group(group).total_byte_size)

    return list(large_rows.runs(groups, size, DECODE_BATCH_BYTES, DECODE_BATCH_GROUPS)) or [[]]


def _read_run(file: pq.ParquetFile, run: list[int], wanted: Sequence[str]) -> list[pa.Table]:
    """Return the rows of some row groups, in as few tables as can hold them."""
    try:
        return [file.read_row_groups(run, columns=wanted, use_threads=False)]
    # Arrow raises the first for more than 2 GiB in lists of a column, and the other for 2³¹ values. Neither is certain
    # from the footer: one row may have any size, and lists of equal values few bytes in the file. Of damaged bytes one
    # of the row groups raises the error again.
    except (pa.ArrowNotImplementedError, OSError):
        if len(run) < 2:
            raise
    half = len(run) // 2
    return _read_run(file, run[:half], wanted) + _read_run(file, run[half:], wanted)


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
def explain_decode_errors(name: str) -> Iterator[None]:
    """Turn errors of the Parquet library about bad bytes into `MalformedError`."""
    try:
        yield
    except _DECODE_ERRORS as error:
        raise MalformedError(f"{name}: expected a Parquet file of this table: {error}") from None
