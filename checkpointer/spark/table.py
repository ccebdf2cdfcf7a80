"""The class `TableState`, which `state.table(…)` returns: a table as big as the cluster, in DataFrames.

upsert   rows → partition of each → tasks combine and pack → driver or tasks PUT → chains of the next checkpoint
read     chains → tasks GET, verify and merge → rows
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from pyspark.sql import DataFrame

from pyspark_checkpointer.runtime.not_picklable import NotPicklable
from pyspark_checkpointer.spark.table_changes import TableChanges

Operation = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""Makes its block one operation of the batch: it waits for those of other threads, then runs the check it is given."""


class TableState(NotPicklable):
    """A keyed table during one batch.

    What it wrote is visible to its own later reads, and to others once committed.

    Several threads may call it: one call is done after the other.
    """

    _instead = (
        "it lives on the driver, and writes of a copy would be lost. Use its DataFrames: read() or lookup(keys) joined "
        "with the batch, and upsert(rows) of what comes out"
    )

    def __init__(self, changes: TableChanges, operation: Operation) -> None:
        self._changes = changes
        self._operation = operation

    def upsert(self, rows: DataFrame) -> None:
        """Add rows with new keys, and combine rows with known keys with what is there.

        Each column is combined as `combine` says, and takes the new value where it is not named there. Columns that the
        rows do not have keep their values; in new rows they are null.
        """
        with self._operation(self._changes.check_open):
            self._changes.upsert(rows)

    def replace(self, rows: DataFrame) -> None:
        """Make these rows, with their columns and no others, the whole table."""
        with self._operation(self._changes.check_open):
            self._changes.replace(rows)

    def delete(self, keys: DataFrame) -> None:
        """Remove the rows with these keys; unknown keys are no error.

        Other columns of `keys` are ignored.
        """
        with self._operation(self._changes.check_open):
            self._changes.delete(keys)

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Leave columns out for good, with all their values.

        A later column of the same name is another column.

        Nothing is rewritten now: later compactions remove the stored values. Unknown columns are no error, since a
        callback says the same in every batch.
        """
        with self._operation(self._changes.check_open):
            self._changes.drop_columns(columns)

    def read(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Return all rows as they are now.

        The DataFrame stays as it is, whatever is written later.
        """
        with self._operation(self._changes.check_open):
            return self._changes.read(columns)

    def lookup(self, keys: DataFrame, columns: Sequence[str] | None = None) -> DataFrame:
        """Return the rows with these keys.

        Only partitions, and within them row groups, that may hold them are read.
        """
        with self._operation(self._changes.check_open):
            return self._changes.lookup(keys, columns)

    def compact(self) -> None:
        """Write a snapshot of every partition that has deltas, now."""
        with self._operation(self._changes.check_open):
            self._changes.compact()
