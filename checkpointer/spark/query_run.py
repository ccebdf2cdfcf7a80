"""Carry values of one run of a query from batch to batch."""

from collections.abc import Callable

from pyspark_checkpointer import compaction
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.keyed.state import KeyedState
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.spark import maps
from pyspark_checkpointer.spark.batch_offsets import QueryOffsets
from pyspark_checkpointer.spark.table_hints import TableHints


class QueryRun:
    """One run of a query.

    It has its client, the checkpoint that it began with, and its maps in memory. A batch that fails ends the run. The
    next batch begins another one, with what is committed.
    """

    def __init__(self, client: Checkpointer, restored: Restored | None, offsets: QueryOffsets) -> None:
        self.client = client
        self.offsets = offsets
        self.restored = restored
        self.last_job: Job | None = restored.job if restored else None
        """The last committed batch, of this run or of one before it."""
        self.maps: dict[str, KeyedState] = {}
        self.dropped: set[str] = set()
        """Names that were dropped in this run.

        The checkpoint that the run began with may still have them.
        """
        self.dropped_again: set[str] = set()
        """Names of which a warning said that batches of this run drop what others have filled."""
        self.table_hints: dict[str, TableHints] = {}
        """Hints of the last changes of each table for the next ones, by its name.

        Those of the table that was compacted early last are the last.
        """
        self.other_clients: dict[str, Checkpointer] = {}
        """The clients of other jobs' roots that batches read, by root."""
        self.has_committed = False
        self.has_told_of_clock = False
        """True once a warning said that the job's clock is far ahead."""
        self.has_used_clock = False
        """True once a batch has used the job's clock: by then a warning said if the clock was not moved."""
        self.is_ended = False
        """True from the moment that the run ends. No batch of it is committed after that."""

    def allow_changes(self) -> None:
        """Begin a batch: its maps can be changed."""
        for keyed in self._open_maps():
            maps.allow_changes(keyed)

    def refuse_changes(self, note: Callable[[InvalidStateError], None]) -> None:
        """End a batch: a later change of a map would reach no checkpoint, and is noted."""
        for keyed in self._open_maps():
            maps.refuse_changes(keyed, note)

    def note_compacted_early(self, name: str) -> None:
        """Note that a table was compacted early.

        What waits longest is forgotten if all together is too large. A table that is not changed for long keeps its
        objects in memory until then.
        """
        self.table_hints[name] = self.table_hints.pop(name)
        cost = 0
        for hints in reversed(self.table_hints.values()):
            cost += 0 if hints.early is None else hints.early.cost
            if cost > compaction.DRIVER_BYTES:
                hints.forget_early()

    def end(self) -> None:
        """End the run: its maps refuse every operation from now on."""
        self.is_ended = True
        for keyed in self._open_maps():
            maps.refuse_all(keyed)
        for hints in list(self.table_hints.values()):
            hints.cancel_early()
        # Their connections are closed as those of the run's own client: once nobody has them.
        self.other_clients.clear()

    def _open_maps(self) -> list[KeyedState]:
        # A copy: a thread that outlives its callback may open another one meanwhile.
        return list(self.maps.values())
