"""Find the column by which rows expire, and the time until which they have.

Both are those of a table in a checkpoint. A column of the same name need not be the same column: it may have been
dropped and added again since. The change feed, `diff` and `history` all ask here, so that they agree on what has
expired.
"""

from collections.abc import Iterable

from pyspark_checkpointer.manifests.codecs import kind_of
from pyspark_checkpointer.manifests.model import Json, Manifest
from pyspark_checkpointer.table.schema import Column, TableSchema
from pyspark_checkpointer.table.version import TableVersion

Time = tuple[int, str, Json]
"""The id, name and type of a column by which rows expire.

The id alone is not enough: a table that was dropped and made again counts its ids from the start.
"""


def time_of(version: TableVersion | None) -> Time | None:
    """Return the column by which rows of a version expire."""
    rule = None if version is None else version.schema.expire
    if version is None or rule is None:
        return None
    return next(time_in(column) for column in version.schema.columns if column.name == rule.column)


def time_in(column: Column) -> Time:
    """Return a column as a time by which rows may expire."""
    return column.id, column.name, column.type


def time_column(schema: TableSchema, time: Time | None) -> str | None:
    """Return the name of the column in a schema by which rows of a version expire.

    Returns None if the schema does not have this same column.
    """
    return next((column.name for column in schema.columns if time_in(column) == time), None)


def latest_times(name: str, schema: TableSchema, manifests: Iterable[Manifest]) -> dict[str, int]:
    """Return the latest time of an expired row for each column of times.

    The row is expired in one or more of the checkpoints. The columns are those of `schema`, which an earlier checkpoint
    has. The times are in microseconds since 1970.
    """
    found: dict[str, int] = {}
    for manifest in manifests:
        operator = manifest.operators.get(name)
        if operator is None or kind_of(operator) != "table":
            continue
        version = TableVersion.of(name, operator, manifest.clock)
        column = time_column(schema, time_of(version))
        if column is not None and version.expired_until is not None:
            found[column] = max(version.expired_until, found.get(column, version.expired_until))
    return found


__all__ = ["Time", "latest_times", "time_column", "time_in", "time_of"]
