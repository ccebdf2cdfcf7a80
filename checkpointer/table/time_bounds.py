"""Read the bounds of the times in the row groups of a file.

They tell where a row may be due.
"""

from collections.abc import Sequence

import pyarrow.parquet as pq

from pyspark_checkpointer.table import file_columns
from pyspark_checkpointer.table.expiry import DAY
from pyspark_checkpointer.table.schema import TableSchema

Bounds = tuple[int, int]
"""The lowest and the highest time, in microseconds since 1970."""

NO_TIME = 1 << 64
"""A number above all times."""


def time_bounds(metadata: pq.FileMetaData, schema: TableSchema, column: str) -> list[Bounds | None]:
    """Return the bounds of the times of a column in each row group of a file.

    Returns None where the file does not tell. The lowest time of a row group without times is `NO_TIME`.
    """
    chunks = _chunks(metadata, schema, column)
    return [(NO_TIME, -NO_TIME)] * metadata.num_row_groups if chunks is None else [_bounds(*chunk) for chunk in chunks]


def past_rows(metadata: pq.FileMetaData, schema: TableSchema, column: str, limit: int) -> int:
    """Return how many rows lie in row groups whose times are all at most `limit`.

    A row group with a null has a row that never expires, so none of its rows counts.
    """
    chunks = _chunks(metadata, schema, column) or []
    return sum(chunk.num_values for chunk, unit in chunks if _is_past(chunk.statistics, unit, limit))


def _chunks(
    metadata: pq.FileMetaData, schema: TableSchema, column: str
) -> list[tuple[pq.ColumnChunkMetaData, int]] | None:
    """Return the times of each row group, with the unit's microseconds.

    Returns None if the file has no such column.
    """
    names = file_columns.names_by_id(metadata.schema.to_arrow_schema(), schema)
    path = next((path for path, name in names.items() if name == column), None)
    if path is None:  # An older file, from before the column was there.
        return None
    # A field b of a struct a has the path a.b too, which may be the name of the column of times.
    described = [metadata.schema.column(index) for index in range(len(metadata.schema))]
    index = next(n for n, found in enumerate(described) if found.path == path and found.max_definition_level <= 1)
    unit = DAY if metadata.schema.column(index).physical_type == "INT32" else 1
    return [(metadata.row_group(group).column(index), unit) for group in range(metadata.num_row_groups)]


def _bounds(group: pq.ColumnChunkMetaData, unit: int) -> Bounds | None:
    found = group.statistics
    if found is not None and found.has_null_count and found.null_count == group.num_values:
        return NO_TIME, -NO_TIME
    return None if found is None or not found.has_min_max else (found.min_raw * unit, found.max_raw * unit)


def _is_past(found: pq.Statistics | None, unit: int, limit: int) -> bool:
    if found is None or not found.has_min_max or not found.has_null_count or found.null_count:
        return False
    return bool(found.max_raw * unit <= limit)


def lowest(times: Sequence[Bounds | None]) -> int | None:
    """Return the lowest time in some row groups; None where the bounds do not tell."""
    return None if None in times else min((low for low, _ in filter(None, times)), default=NO_TIME)


def may_hold(bounds: Bounds | None, after: int | None, until: int) -> bool:
    """Return whether a row group may hold a time above `after` and up to `until`."""
    return bounds is None or (bounds[0] <= until and (after is None or bounds[1] > after))


__all__ = ["Bounds", "lowest", "may_hold", "past_rows", "time_bounds"]
