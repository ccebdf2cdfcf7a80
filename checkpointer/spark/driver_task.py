"""Do the work of tasks in the driver, where a batch has few rows.

A shuffle and a stage of Python workers take longer than the work on some thousand rows. So the rows come to the driver
as Arrow, and the same task object works on them there. Whatever fails is left to real tasks, which may have packages
that the driver lacks, and which report errors as always.
"""

import os
import sys
from collections.abc import Callable, Collection, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)

from pyspark_checkpointer.spark.connect import is_connect
from pyspark_checkpointer.spark.dataframes import Work, fields_of, is_collated
from pyspark_checkpointer.spark.failure import was_cancelled
from pyspark_checkpointer.spark.surroundings import surroundings
from pyspark_checkpointer.spark.versions import rows_of_frame
from pyspark_checkpointer.spark.write_tasks import TaskOutput
from pyspark_checkpointer.table.row_order import sorted_indices
from pyspark_checkpointer.table.schema import PARTITION, Column, TableSchema

_SORTED_ALIKE = (
    IntegralType,
    StringType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    TimestampType,
    TimestampNTZType,
)
"""Types of which Arrow sorts the values as Spark does. It puts NaN in another place, and sorts no structs."""


_HASHED_ALIKE = {
    "byte",
    "short",
    "integer",
    "long",
    "boolean",
    "date",
    "timestamp",
    "timestamp_ntz",
    "string",
    "binary",
}
"""Types of a key that the driver hashes from the rows as they come.

Spark normalizes floats first, and a decimal has its digits in the name of its type.
"""

Place = Callable[[pa.Table], pa.Table]
"""A function that adds the partition of each row."""


class DriverTaskError(Exception):
    """Something failed in the driver, which is its cause: tasks have to do the work."""

    def __init__(self, cause: BaseException, *, has_rows: bool) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.has_rows = has_rows
        """False if Spark failed to compute the rows, which says nothing about the driver."""


def run_in_driver(
    frame: DataFrame, most: int, place: Place, work: Work, order: Sequence[str] | None = None
) -> list[TaskOutput] | None:
    """Return what the work on all rows wrote; None if tasks have to do it.

    Tasks have to do it if there are more rows than `most`. `place` adds the partition of each row where it is missing.
    With `order`, the rows are sorted by these columns, ascending and nulls first. Raises `DriverTaskError` for whatever
    fails, and the error itself if somebody cancelled the job that computes the rows.
    """
    has_rows = False
    try:
        names = frame.columns
        # A batch may be suddenly large. At most so many rows of each partition come, and then tasks do the work.
        rows = rows_of_frame(first_of_each_partition(frame, most + 1)).rename_columns(names)
        if rows.num_rows > most:
            return None
        has_rows = True
        rows = place(rows)
        if order is not None:
            rows = rows.take(_sorted(rows, order))
        batches = rows.combine_chunks().to_batches()
        return [TaskOutput.load(done) for made in work(iter(batches)) for done in made.column(0).to_pylist()]
    # Not only an `Exception`: Spark would wait for ever for a thread that anything else has ended.
    except BaseException as error:
        # Tasks would begin the cancelled work again.
        if not has_rows and was_cancelled(error):
            raise
        raise DriverTaskError(error, has_rows=has_rows) from error


def first_of_each_partition(frame: DataFrame, count: int) -> DataFrame:
    """Return at most the first `count` rows of each partition of a frame.

    `limit` would first bring all rows into one partition: such a shuffle takes as long as all the rest.
    """
    # The lower bits of the id are the number of the row in its partition, counted from 0.
    return frame.where(f"(monotonically_increasing_id() & {(1 << 33) - 1}) < {count}")


def _sorted(rows: pa.Table, order: Sequence[str]) -> pa.Array:
    """Return the indices of rows, sorted by columns as Spark sorts them."""
    columns: list[pa.ChunkedArray] = []
    for name in order:
        # Arrow puts nulls last.
        columns += [rows[name].is_valid()] if rows[name].null_count else []
        columns.append(rows[name])
    return sorted_indices(columns)


def works_alike(spark: SparkSession) -> bool:
    """Return whether a function may give the same in the driver as in Python workers.

    `has_same_surroundings` then compares what workers have. The function is the user's. The workers may have other
    environment variables. They may also have another seed of hashes, so that sets of text have another order.
    `spark-submit` and `pyspark` start a driver with the seed of its workers, and plain `python` does not. Spark Connect
    does not tell what its workers have.
    """
    if is_connect(spark):
        return False
    variables: dict[str, str] = spark.sparkContext.environment
    return not sys.flags.hash_randomization and all(os.environ.get(name) == variables[name] for name in variables)


def has_same_surroundings(found: Collection[str]) -> bool:
    """Return whether all tasks have found the surroundings that the driver has now.

    A function of the user may give something else in others, which a callback too may change for the driver.
    """
    return set(found) == {surroundings()}


def can_place(frame: DataFrame, schema: TableSchema, columns: Collection[Column]) -> bool:
    """Return whether the driver can find the partitions of rows by itself.

    It can where `columns` have the types of the table, and the key has types that need no look at their values. Then
    Spark need not plan a projection for each batch.
    """
    given = {field["name"]: field["type"] for field in fields_of(frame)}
    # Rows need not have all columns of the table.
    return (
        PARTITION not in given
        and all(given.get(column.name, column.type) == column.type for column in columns)
        and all(given[name] in _HASHED_ALIKE and not is_collated(frame.schema[name].dataType) for name in schema.key)
    )


def sorts_alike(frame: DataFrame, columns: Sequence[str]) -> bool:
    """Return whether Arrow sorts rows by these columns in the order of Spark."""
    return all(_sorts_alike(frame.schema[name].dataType) for name in columns)


def _sorts_alike(kind: DataType) -> bool:
    # A collation gives text another order than its bytes have.
    return isinstance(kind, _SORTED_ALIKE) and not is_collated(kind)


__all__ = [
    "DriverTaskError",
    "can_place",
    "first_of_each_partition",
    "has_same_surroundings",
    "run_in_driver",
    "sorts_alike",
    "works_alike",
]
