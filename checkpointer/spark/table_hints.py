"""Remember from batch to batch how the changes of a table are best written."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

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
class VerbHints:
    """Hints of the calls of one verb in a batch for its calls in the next one.

    A batch may upsert a million rows and delete a hundred, so each verb has its own. If a batch calls a verb several
    times, the largest call counts, and not the last one: the next batch begins with these hints.
    """

    shuffle_first: bool = False
    """True if changes are so large that each task should get whole partitions.

    This takes one more shuffle.
    """
    apply_tasks: int | None = None
    """The number of tasks of `apply`; None if Spark decides."""
    driver_rows: int = 0
    """The most rows of the next changes that the driver writes itself, without tasks; 0 if tasks write them all."""
    failures_without_rows: int = 0
    """Number of times in a row that the rows of this verb could not come to the driver, and tasks did the work."""
    surroundings: set[str] = field(default_factory=set)
    """Digests of what tasks have found around a function of the user in this run.

    Empty before the first task, and one if all found the same.
    """
    _sizes: list[tuple[int, int, float]] = field(default_factory=list)
    _packs: list[int] = field(default_factory=list)
    _apply_tasks: list[int] = field(default_factory=list)

    def learn_size(self, rows: int, size: int, seconds: float = 0.0) -> None:
        """Note the rows of a call, their bytes, and the time that all tasks took together."""
        self._sizes.append((rows, size, seconds))

    def learn_packs(self, packs: int) -> None:
        """Note how many tasks of a call wrote a pack.

        Each pack makes the chains of all partitions in it longer: one from each of many tasks is too much.
        """
        self._packs.append(packs)

    def learn_surroundings(self, found: Iterable[str]) -> None:
        """Note what tasks of a call found around a function of the user."""
        if len(self.surroundings) < 2:  # More would say nothing more, and each task may find something else.
            self.surroundings.update(found)

    def learn_from_apply(self, seconds: float, most: int) -> None:
        """Note how many tasks are worth their cost, up to `most`.

        `seconds` is the time that all tasks took together.
        """
        self._apply_tasks.append(min(int(seconds / SECONDS_OF_TASK), most))

    def begin_batch(self) -> None:
        """Set the hints by the calls of the batch before, if it had any."""
        if self._sizes:
            self.driver_rows = _driver_rows(self._sizes)
        if self._packs:
            self.shuffle_first = max(self._packs) > (0 if self.shuffle_first else 1)
        if self._apply_tasks:
            tasks = max(self._apply_tasks)
            self.apply_tasks = tasks if tasks > 1 else None
        for noted in (self._sizes, self._packs, self._apply_tasks):
            noted.clear()


def _driver_rows(calls: Sequence[tuple[int, int, float]]) -> int:
    """Return the most rows that the driver takes of the next changes.

    `calls` are the rows, bytes and seconds of the last ones. The driver takes the next ones if these were few and
    quick. The next batch may have several times as many rows: the batches of most queries differ by less. It may have
    fewer if the rows of any call were large. Work that would occupy two tasks is left to tasks.
    """
    rows, size, seconds = (max(values) for values in zip(*calls, strict=True))
    is_small = rows <= MAX_DRIVER_ROWS and size <= MAX_DRIVER_BYTES and seconds < 2 * SECONDS_OF_TASK
    largest_bytes, least_rows = 4 * MAX_DRIVER_BYTES, 1000  # An empty batch tells nothing about the next one.
    fitting = min(largest_bytes * max(count, 1) // max(own, 1) for count, own, _ in calls)
    return min(4 * int(rows) + least_rows, MAX_DRIVER_ROWS, fitting) if is_small else 0


@dataclass(slots=True)
class TableHints:
    """Hints of the last changes of a table for the next ones, in one run of a query.

    No result depends on them, unless a function gives another one in the driver than in a worker.
    """

    verbs: defaultdict[str, VerbHints] = field(default_factory=lambda: defaultdict(VerbHints))
    """Hints of each verb, by its name."""
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

    def begin_batch(self) -> None:
        """Let the calls of a batch use what those of the batch before have taught."""
        for hints in self.verbs.values():
            hints.begin_batch()

    def cancel_early(self) -> None:
        """Stop the early compaction: no batch will use it."""
        if self.early is not None:
            self.early.cancel()

    def forget_early(self) -> None:
        """Stop the early compaction, and free its memory: the table was dropped."""
        self.cancel_early()
        self.early = None
