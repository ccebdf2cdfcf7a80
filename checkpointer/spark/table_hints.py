"""Remember from batch to batch how the changes of a table are best written."""

from dataclasses import dataclass

SECONDS_OF_TASK = 0.15
"""The seconds of work in `apply` for which a task more pays off.

Without a number of tasks, Spark brings few rows into one task. Two tasks take some hundredths of a second more than
one, before either of them does anything.
"""


@dataclass(slots=True)
class TableHints:
    """Hints of the last changes of a table for the next ones, in one run of a query.

    No result depends on it.
    """

    shuffle_first: bool = False
    """True if changes are so large that each task should get whole partitions.

    This takes one more shuffle.
    """
    apply_tasks: int | None = None
    """The number of tasks of `apply`; None if Spark decides."""

    def learn_from_apply(self, seconds: float, most: int) -> None:
        """Take as many tasks, up to `most`, as are worth their cost for the seconds that all tasks took together."""
        tasks = min(int(seconds / SECONDS_OF_TASK), most)
        self.apply_tasks = tasks if tasks > 1 else None
