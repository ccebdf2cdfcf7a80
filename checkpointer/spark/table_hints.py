"""Remember from batch to batch how the changes of a table are best written."""

from dataclasses import dataclass

from pyspark_checkpointer.spark.early_compaction import EarlyCompaction

MAX_DRIVER_ROWS = 65_536
MAX_DRIVER_BYTES = 4 << 20
"""If the changes of a batch had at most these rows and bytes, the driver writes the next ones itself."""

MAX_DRIVER_STATE_BYTES = 512 << 20
"""Largest table, in bytes of memory, whose rows the driver reads in order to write changes itself.

The first such batch reads all of them from the store.
"""

SECONDS_OF_TASK = 0.15
"""The seconds of work in `apply` that justify one more task.

Without a number of tasks, Spark brings few rows into one task. Two tasks take some hundredths of a second more than
one, before either of them does anything.
"""


@dataclass(slots=True)
class TableHints:
    """Hints of the last changes of a table for the next ones, in one run of a query.

    No result depends on them, unless a function gives another one in the driver than in a worker.
    """

    shuffle_first: bool = False
    """True if changes are so large that each task should get whole partitions.

    This takes one more shuffle.
    """
    apply_tasks: int | None = None
    """The number of tasks of `apply`; None if Spark decides."""
    driver_rows: int = 0
    """The most rows of the next changes that the driver writes itself, without tasks; 0 if tasks write them all."""
    hashed: tuple[str, ...] = ()
    """The types of a key of which Spark's hashes were compared with this library's, in this run."""
    is_driver_unfit: bool = False
    """True once something failed in the driver that tasks may be able to do.

    What passes by itself, such as throttling, does not count.
    """
    early: EarlyCompaction | None = None
    """Chains that are compacted for the next batch that changes the table.

    None until a batch of the run has changed it, and after it was dropped.
    """

    def learn_size(self, rows: int, size: int, seconds: float = 0.0) -> None:
        """Let the driver do the next changes if these were few and quick.

        The next batch may have several times as many rows: the batches of most queries differ by less. It may have
        fewer if the rows of this batch were large. Work that would occupy two tasks is left to tasks.
        """
        is_small = rows <= MAX_DRIVER_ROWS and size <= MAX_DRIVER_BYTES and seconds < 2 * SECONDS_OF_TASK
        largest_bytes, least_rows = 4 * MAX_DRIVER_BYTES, 1000  # An empty batch tells nothing about the next one.
        most = min(4 * rows + least_rows, MAX_DRIVER_ROWS, largest_bytes * max(rows, 1) // max(size, 1))
        self.driver_rows = most if is_small and not self.is_driver_unfit else 0

    def learn_from_apply(self, seconds: float, most: int) -> None:
        """Set how many tasks are worth their cost, up to `most`.

        `seconds` is the time that all tasks took together.
        """
        tasks = min(int(seconds / SECONDS_OF_TASK), most)
        self.apply_tasks = tasks if tasks > 1 else None

    def cancel_early(self) -> None:
        """Stop the early compaction: no batch will use it."""
        if self.early is not None:
            self.early.cancel()

    def forget_early(self) -> None:
        """Stop the early compaction, and free its memory: the table was dropped."""
        self.cancel_early()
        self.early = None
