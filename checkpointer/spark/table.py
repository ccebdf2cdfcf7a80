"""Define the class `TableState`, which `state.table(…)` returns.

It is a table as big as the cluster, in DataFrames.

apply    rows → partition of each → tasks read their keys' state, call a function and pack what it returns
upsert   rows → partition of each → tasks combine and pack → driver or tasks PUT → chains of the next checkpoint
read     chains → tasks GET, verify and merge → rows
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, overload

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from pyspark_checkpointer.runtime.not_picklable import NotPicklable
from pyspark_checkpointer.spark.application import Application
from pyspark_checkpointer.spark.table_changes import TableChanges
from pyspark_checkpointer.table.frames import Frames
from pyspark_checkpointer.table.user_calls import GroupRows

Operation = Callable[..., AbstractContextManager[None]]
"""A function that makes its block one operation of the batch.

It waits for the operations of other threads, then runs the check it is given.
"""


class TableState(NotPicklable):
    """A table during one batch: what `state.table(…)` returns.

    Its own later reads see its writes; others see them once the batch is committed. Several threads may call it: one
    call runs after the other.

    Examples:
        The short examples of the methods run in such a function, on a `table` with the key `digit` and two rows: (0, 8)
        and (1, 9) of the columns `digit` and `value`.

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
            InvalidStateError: The batch has ended, or the table was dropped in it.

        Examples:
            >>> table.upsert(spark.createDataFrame([(0, 80), (2, 7)], "digit long, value long"))
            >>> table.read().sort("digit").collect()
            [Row(digit=0, value=80), Row(digit=1, value=9), Row(digit=2, value=7)]
        """
        with self._operation(self._changes.check_open):
            self._changes.upsert(rows)

    @overload
    def apply(
        self,
        rows: DataFrame,
        function: Callable[[Any, Any], Any],
        output: None = None,
        *,
        order_by: Sequence[str] = (),
        frames: Frames = "arrow",
    ) -> None: ...

    @overload
    def apply(
        self,
        rows: DataFrame,
        function: Callable[[Any, Any], Any],
        output: StructType | str,
        *,
        order_by: Sequence[str] = (),
        frames: Frames = "arrow",
    ) -> DataFrame: ...

    def apply(
        self,
        rows: DataFrame,
        function: Callable[[Any, Any], Any],
        output: StructType | str | None = None,
        *,
        order_by: Sequence[str] = (),
        frames: Frames = "arrow",
    ) -> DataFrame | None:
        """Let a function read the state of keys and decide how the state changes.

        Tasks call `function(rows, state)`, or the driver does if the batch before was small. The function gets all rows
        of the batch for some keys, and the present rows of the table with these keys, in the same order of keys. It
        returns the rows to upsert, or a `Change` with upserts, deletes and output. A key that it does not return stays
        as it is.

        One shuffle brings the rows of a key together. If a task is repeated, the function sees the same state again. If
        the function fails, it is called again with fewer keys, to find the key for the error.

        Args:
            rows: The rows, with the key columns and any others.
            function: Called with many keys at once. All rows of a key come in one call. Of a column that is combined
                it returns what to add, as in `upsert`, and not the new total.
            output: The columns of the rows that the function emits, as a `StructType` or as text.
            order_by: Columns of `rows` by which the rows of a key are sorted, ascending and nulls first.
            frames: What the function is given: "arrow" for `pyarrow.Table`, "pandas" (with Arrow's types) or "polars".
                It may return any of them.

        Returns:
            With `output`, a DataFrame of the rows that the function emitted, to be read within the batch. They are
            stored, so the function is not called again.

        Raises:
            IllegalArgumentError: The function returned another key, an unknown column, a column that is combined and
                that `combine` of `state.table` does not name, two changes of a key or None, or cannot be sent to tasks.
                Nothing of the batch is committed.
            InvalidStateError: The batch has ended, or the table was dropped in it.

        Examples:
            >>> import pyarrow as pa
            >>> def largest_first(rows: pa.Table, state: pa.Table) -> Change:
            ...     new = rows.group_by("digit").aggregate([("value", "max")]).rename_columns(["digit", "value"])
            ...     known = set(state["digit"].to_pylist())
            ...     first = new.filter([digit not in known for digit in new["digit"].to_pylist()])
            ...     return Change(upserts=new, output=first)
            >>> @stateful("state/apply")
            ... def update(batch, batch_id, state):
            ...     table = state.table("largest", ["digit"], num_partitions=2, schema="digit long, value long")
            ...     rows = batch.selectExpr("value % 2 AS digit", "value")
            ...     first = table.apply(rows, largest_first, output="digit long, value long")
            ...     print(first.sort("digit").collect())
            >>> numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
            >>> writer = numbers.writeStream.option("checkpointLocation", "state/apply-spark")
            >>> query = writer.foreachBatch(update).trigger(availableNow=True).start()
            >>> query.awaitTermination()
            [Row(digit=0, value=8), Row(digit=1, value=9)]
        """
        with self._operation(self._changes.check_open):
            call = Application.of(self._changes.name, function, output, order_by, frames, groups=False)
            return self._changes.apply(rows, call)

    @overload
    def apply_groups(
        self,
        rows: DataFrame,
        function: Callable[[tuple[Any, ...], Any, dict[str, Any] | None], Any],
        output: None = None,
        *,
        order_by: Sequence[str] = (),
        frames: GroupRows = "rows",
    ) -> None: ...

    @overload
    def apply_groups(
        self,
        rows: DataFrame,
        function: Callable[[tuple[Any, ...], Any, dict[str, Any] | None], Any],
        output: StructType | str,
        *,
        order_by: Sequence[str] = (),
        frames: GroupRows = "rows",
    ) -> DataFrame: ...

    def apply_groups(
        self,
        rows: DataFrame,
        function: Callable[[tuple[Any, ...], Any, dict[str, Any] | None], Any],
        output: StructType | str | None = None,
        *,
        order_by: Sequence[str] = (),
        frames: GroupRows = "rows",
    ) -> DataFrame | None:
        """Call a function once for each key, with its rows and its row of the table.

        Tasks call `function(key, rows, row)`: the key as a tuple, all rows of the batch with this key, and the row of
        the table as a dict, or None. The function returns a dict of columns to upsert, None to leave the row as it is,
        or a `Change`. Such a `Change` has a dict in `upserts=`, `deletes=True`, or a list of dicts in `output=`.

        `apply` is several times faster, since it is called with many keys at once.

        Args:
            rows: As in `apply`.
            function: Called once for each key.
            output: As in `apply`.
            order_by: As in `apply`.
            frames: What the function is given its rows as: "rows" for a list of dicts, or as in `apply`.

        Returns:
            As in `apply`.

        Raises:
            IllegalArgumentError: As in `apply`.
            InvalidStateError: The batch has ended, or the table was dropped in it.

        Examples:
            >>> def count(key, rows, row):
            ...     return {"n": len(rows) + (row["n"] if row else 0)}
            >>> @stateful("state/groups")
            ... def update(batch, batch_id, state):
            ...     counts = state.table("counts", ["digit"], num_partitions=2, schema="digit long, n long")
            ...     counts.apply_groups(batch.selectExpr("value % 2 AS digit"), count)
            >>> numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
            >>> writer = numbers.writeStream.option("checkpointLocation", "state/groups-spark")
            >>> query = writer.foreachBatch(update).trigger(availableNow=True).start()
            >>> query.awaitTermination()
            >>> update.checkpointer.restore().table("counts").sort_by("digit").to_pylist()
            [{'digit': 0, 'n': 5}, {'digit': 1, 'n': 5}]
        """
        with self._operation(self._changes.check_open):
            call = Application.of(self._changes.name, function, output, order_by, frames, groups=True)
            return self._changes.apply(rows, call)

    def first_seen(self, rows: DataFrame, *, order_by: Sequence[str] = ()) -> DataFrame:
        """Return the rows with new keys, one for each key, and take them in.

        A key is new if the table has not seen it. So each key is returned once, over batches, restarts and repeated
        batches. Columns that the table does not have are returned and not stored: a new table has the key, the column
        of `expire=` and those of `schema=`. With `expire=` a key that has expired is new again. A row may have expired
        before it comes. It is returned each time if all rows of its key have expired, because the table does not
        remember it. Filter late rows first if they must not count.

        Args:
            rows: The rows, with the key columns and any others.
            order_by: Columns by which the rows of a key are sorted, ascending and nulls first. The first one counts
                that has not expired, or the first one if all have.

        Returns:
            A DataFrame with the columns of `rows`, to be read within the batch.

        Raises:
            IllegalArgumentError: A key column or the column of `expire=` is missing, or a column has a type that
                cannot become that of the table. Wider numbers make the table's wider.
            InvalidStateError: The batch has ended, or the table was dropped in it.

        Examples:
            >>> rows = spark.createDataFrame([(1, 5), (3, 6), (3, 7)], "digit long, value long")
            >>> table.first_seen(rows, order_by=["value"]).collect()
            [Row(digit=3, value=6)]
        """
        with self._operation(self._changes.check_open):
            return self._changes.first_seen(rows, order_by)

    def replace(self, rows: DataFrame) -> None:
        """Make these rows the whole table, with their columns and no others.

        Args:
            rows: The rows, with the key columns.

        Raises:
            IllegalArgumentError: A key column is missing, or `rows` is no DataFrame of Spark.
            InvalidStateError: The batch has ended, or the table was dropped in it.

        Examples:
            >>> table.replace(spark.createDataFrame([(2, "two")], "digit long, word string"))
            >>> table.read().collect()
            [Row(digit=2, word='two')]
        """
        with self._operation(self._changes.check_open):
            self._changes.replace(rows)

    def delete(self, keys: DataFrame) -> None:
        """Remove the rows with these keys.

        Unknown keys are no error.

        Args:
            keys: Rows with the key columns. Other columns are ignored.

        Raises:
            IllegalArgumentError: A key column is missing or of another type, or `keys` is no DataFrame of Spark.
            InvalidStateError: The batch has ended, or the table was dropped in it.

        Examples:
            >>> table.delete(spark.createDataFrame([(1,)], "digit long"))
            >>> table.read().collect()
            [Row(digit=0, value=8)]
        """
        with self._operation(self._changes.check_open):
            self._changes.delete(keys)

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Remove columns for good, with all their values.

        A later column of the same name is another column. Nothing is rewritten now: later compactions remove the stored
        values.

        Args:
            columns: The names of the columns. Unknown ones are no error, also before anything was written, because a
                function says the same in every batch.

        Raises:
            IllegalArgumentError: This is no list of names, or one is of a key column or of the column of `expire=`.
            InvalidStateError: The batch has ended, or the table was dropped in it.

        Examples:
            >>> table.drop_columns(["value"])
            >>> table.read().columns
            ['digit']
        """
        with self._operation(self._changes.check_open):
            self._changes.drop_columns(columns)

    def read(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Return all rows as they are now.

        Read the DataFrame within the batch. It stays as it is, whatever the batch writes later. After the batch, Spark
        refuses that of a table with thousands of partitions, and a cleanup may delete what the batch wrote and
        replaced; `read_state` reads what was committed.

        Args:
            columns: The columns to read; by default all.

        Raises:
            IllegalArgumentError: Nothing says which columns the table has, or it has no such column.
            InvalidStateError: The batch has ended, or the table was dropped in it.

        Examples:
            >>> table.read(["value"]).sort("value").collect()
            [Row(value=8), Row(value=9)]
        """
        with self._operation(self._changes.check_open, only_reads=True):
            return self._changes.read(columns)

    def lookup(self, keys: DataFrame, columns: Sequence[str] | None = None) -> DataFrame:
        """Return the rows with these keys.

        Only partitions and row groups that may hold them are read. Read the DataFrame within the batch, as with `read`.

        Args:
            keys: Rows with the key columns.
            columns: The columns to read; by default all.

        Raises:
            IllegalArgumentError: A key column is missing or of another type, or the table has no such column.
            InvalidStateError: The batch has ended, or the table was dropped in it.

        Examples:
            >>> keys = spark.createDataFrame([(1,), (2,)], "digit long")
            >>> table.lookup(keys).collect()
            [Row(digit=1, value=9)]
        """
        with self._operation(self._changes.check_open, only_reads=True):
            return self._changes.lookup(keys, columns)

    def expired(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Return the rows that expire with this batch.

        Two kinds of rows are returned. Rows of the last checkpoint that have expired since are returned as they were.
        Rows that this batch has written with a time that had passed already are returned as their call has left them.
        Each row is returned in one batch, and in the same batch again if Spark repeats it. Call this in every batch,
        after the batch has written to the table. Rows that expire in a batch without this call are not returned later.
        Row groups that cannot hold an expired row are not read. Read the DataFrame within the batch, as with `read`.

        Args:
            columns: The columns to read; by default all.

        Raises:
            IllegalArgumentError: The table was opened without `expire=`.
            InvalidStateError: The batch has ended, or the table was dropped in it.

        Examples:
            >>> from datetime import UTC, datetime, timedelta
            >>> @stateful("state/ended")
            ... def update(batch, batch_id, state):
            ...     state.advance_clock(datetime(2024, 1, 1 + batch_id, tzinfo=UTC))
            ...     expire = Expire("at", after=timedelta(hours=20))
            ...     table = state.table("readings", ["value"], num_partitions=2, expire=expire)
            ...     table.upsert(batch.selectExpr("value", f"timestamp'{state.clock.isoformat()}' AS at"))
            ...     print(table.read().count(), table.expired().count())
            >>> numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
            >>> writer = numbers.writeStream.option("checkpointLocation", "state/ended-spark")
            >>> for _ in range(2):
            ...     query = writer.foreachBatch(update).trigger(availableNow=True).start()
            ...     query.awaitTermination()
            10 0
            10 10
        """
        with self._operation(self._changes.check_open, only_reads=True):
            return self._changes.expired(columns)

    def compact(self) -> None:
        """Write a snapshot of every partition that has deltas, at the end of this batch.

        Compaction also runs by itself, spread over batches. Before anything was written there is nothing to do.

        Raises:
            InvalidStateError: The batch has ended, or the table was dropped in it.

        Examples:
            >>> table.upsert(spark.createDataFrame([(2, 7)], "digit long, value long"))  # a delta
            >>> table.compact()
            >>> table.read().count()
            3
        """
        with self._operation(self._changes.check_open):
            self._changes.compact()
