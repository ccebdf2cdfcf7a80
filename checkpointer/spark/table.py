"""The class `TableState`, which `state.table(…)` returns.

It is a table as big as the cluster, in DataFrames.

upsert   rows → partition of each → tasks combine and pack → driver or tasks PUT → chains of the next checkpoint
read     chains → tasks GET, verify and merge → rows
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from pyspark.sql import DataFrame

from pyspark_checkpointer.runtime.not_picklable import NotPicklable
from pyspark_checkpointer.spark.table_changes import TableChanges

Operation = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""A function that makes its block one operation of the batch.

It waits for the operations of other threads, then runs the check it is given.
"""


class TableState(NotPicklable):
    """A table during one batch: what `state.table(…)` returns.

    Its own later reads see what it wrote; others see it once the batch is committed. Several threads may call it: one
    call runs after the other.

    Examples:
        >>> @stateful("state/largest")
        ... def update(batch, batch_id, state):
        ...     table = state.table("largest", ["digit"], num_partitions=2, combine={"value": "max"})
        ...     digits = batch.selectExpr("value % 2 AS digit", "value")
        ...     table.upsert(digits.groupBy("digit").agg({"value": "max"}).withColumnRenamed("max(value)", "value"))
        ...     table.delete(spark.createDataFrame([(1,)], "digit long"))
        ...     print(table.lookup(spark.createDataFrame([(0,)], "digit long")).collect())
        >>> numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        >>> writer = numbers.writeStream.option("checkpointLocation", "state/largest-spark")
        >>> query = writer.foreachBatch(update).trigger(availableNow=True).start()
        >>> query.awaitTermination()
        [Row(digit=0, value=8)]
    """

    _instead = (
        "it lives on the driver, and writes of a copy would be lost. Use its DataFrames: read() or lookup(keys) joined "
        "with the batch, and upsert(rows) of what comes out"
    )

    def __init__(self, changes: TableChanges, operation: Operation) -> None:
        self._changes = changes
        self._operation = operation

    def upsert(self, rows: DataFrame) -> None:
        """Insert rows with new keys, and combine the others with the stored rows.

        Each column is combined as `combine` of `state.table` says, and takes the new value otherwise. Columns that the
        rows do not have keep their values, and are null in new rows.

        Args:
            rows: The rows, with the key columns. If any column takes the last value, no key may stand twice.

        Raises:
            IllegalArgumentError: A column has another type than in the table, or a key column is missing. The message
                has both schemas.
        """
        with self._operation(self._changes.check_open):
            self._changes.upsert(rows)

    def replace(self, rows: DataFrame) -> None:
        """Make these rows the whole table, with their columns and no others.

        Args:
            rows: The rows, with the key columns.
        """
        with self._operation(self._changes.check_open):
            self._changes.replace(rows)

    def delete(self, keys: DataFrame) -> None:
        """Remove the rows with these keys.

        Unknown keys are no error.

        Args:
            keys: Rows with the key columns. Other columns are ignored.
        """
        with self._operation(self._changes.check_open):
            self._changes.delete(keys)

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Remove columns for good, with all their values.

        A later column of the same name is another column. Nothing is written again now: later compactions remove the
        stored values.

        Args:
            columns: The names of the columns. Unknown ones are no error, because a function says the same in every
                batch.
        """
        with self._operation(self._changes.check_open):
            self._changes.drop_columns(columns)

    def read(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Return all rows as they are now.

        The DataFrame stays as it is, whatever is written later.

        Args:
            columns: The columns to read; by default all.
        """
        with self._operation(self._changes.check_open):
            return self._changes.read(columns)

    def lookup(self, keys: DataFrame, columns: Sequence[str] | None = None) -> DataFrame:
        """Return the rows with these keys.

        Only partitions and row groups that may hold them are read.

        Args:
            keys: Rows with the key columns.
            columns: The columns to read; by default all.
        """
        with self._operation(self._changes.check_open):
            return self._changes.lookup(keys, columns)

    def compact(self) -> None:
        """Write a snapshot of every partition that has deltas, now.

        Compaction also runs by itself, spread over batches.
        """
        with self._operation(self._changes.check_open):
            self._changes.compact()
