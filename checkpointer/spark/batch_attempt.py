"""Make one attempt at a batch, and commit or abort it.

The attempt also knows what its callback opened.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta

from pyspark.sql import SparkSession

from pyspark_checkpointer import compaction
from pyspark_checkpointer.admin.streaming.offset_log import BatchOffsets
from pyspark_checkpointer.checkpoint.commit import discard
from pyspark_checkpointer.checkpoint.metering import Meter, blocking
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.keyed.state import DEFAULT_MAP_PARTITIONS, KeyedState
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.map_expiry import micros
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import maps
from pyspark_checkpointer.spark.arguments import TableDefinition, refuse_other_kind
from pyspark_checkpointer.spark.executors import destroy
from pyspark_checkpointer.spark.job_clock import JobClock
from pyspark_checkpointer.spark.operations import Operations
from pyspark_checkpointer.spark.other_state import OtherStates
from pyspark_checkpointer.spark.query_run import QueryRun
from pyspark_checkpointer.spark.table_changes import TableChanges
from pyspark_checkpointer.spark.table_hints import TableHints

logger = logging.getLogger("pyspark_checkpointer")

DISCARD_SECONDS = 60
"""The longest time that a failed batch takes to delete what it wrote: the store may not answer."""


class BatchAttempt:
    """One attempt at a batch of a run, from its begin to its commit or abort.

    The callback sees the attempt through `State`. Only the sink commits or aborts it.
    """

    def __init__(self, run: QueryRun, job: Job, checkpoint: Checkpoint) -> None:
        self.run = run
        self.job = job
        self.checkpoint = checkpoint
        self.operations = Operations(run.client.root, job.batch_id)
        self.clock = JobClock(checkpoint.attempt, _time_of(job))
        if not run.has_told_of_clock:
            run.has_told_of_clock = self.clock.warn_if_ahead(run.client.root)
        self.others = OtherStates(run.client.root, checkpoint.positions, run.other_clients)
        self.tables: dict[str, TableChanges] = {}
        self.dropped_tables: list[TableChanges] = []
        """Tables that were dropped. The rows that functions emitted from them are removed at the end of the batch."""
        self.map_rules: dict[str, int | None] = {}
        """The lifetime that the callback gave for the entries of each open map, in microseconds; None without one."""
        self.used_names: set[str] = set()
        """Names that the callback opened, wrote or dropped."""

    @property
    def meter(self) -> Meter:
        """The meter that counts what this batch costs."""
        return self.checkpoint.attempt.meter

    # ---- what the callback opens ---------------------------------------------------------------------------------

    def advance_clock(self, to: datetime | None) -> None:
        """Move the job's clock, and forget the expired entries of open maps."""
        self.clock.advance(to)
        # Maps that this batch has not opened yet are left out: it may still give their entries a longer lifetime.
        # A copy, and `get`: other threads may open and drop maps meanwhile.
        for name, after in list(self.map_rules.items()):
            keyed = self.run.maps.get(name)
            if after is not None and keyed is not None:
                keyed.expire(micros(self.clock.now()))

    def open_map(self, name: str, partitions: int | None, expire_after: timedelta | None) -> KeyedState:
        """Return a map as the last batch left it."""
        object_paths.encode_name("map", name)
        after = maps.check_expire_after(name, expire_after)
        run = self.run
        if name in self.tables:
            raise IllegalArgumentError(f"map {name!r}: a table of this job has that name")
        self.used_names.add(name)
        keyed = run.maps.get(name)
        if keyed is None:
            refuse_other_kind("map", name, self.checkpoint.attempt.operator(name))
            restored = run.restored
            # A map that this run dropped begins empty, although the checkpoint that the run began with still has it.
            if restored is not None and name in restored.operators and name not in run.dropped:
                keyed = restored.keyed(name, partitions)
            else:
                keyed = KeyedState(partitions=DEFAULT_MAP_PARTITIONS if partitions is None else partitions)
            run.maps[name] = keyed
        elif partitions not in (None, keyed.partitions):
            raise IllegalArgumentError(
                f"map {name!r}: is in use with {keyed.partitions} partitions, not {partitions!r}"
            )
        if name not in self.map_rules:
            maps.set_rule(name, keyed, after, self.clock, self.checkpoint.attempt.base.manifest)
            self.map_rules[name] = after
        elif after not in (None, self.map_rules[name]):
            raise IllegalArgumentError(
                f"map {name!r}: was opened in this batch with another expire_after: give {expire_after} there too"
            )
        return keyed

    @blocking
    def open_table(self, spark: SparkSession, name: str, definition: TableDefinition) -> TableChanges:
        """Return an object that collects the changes of a table in this batch.

        The object is empty at first. The time of this call counts as blocked: a table is written anew if its rows
        expire by another rule than before.
        """
        object_paths.encode_name("table", name)
        run = self.run
        if name in run.maps:
            raise IllegalArgumentError(f"table {name!r}: a map of this job has that name")
        if name in self.tables:
            raise IllegalArgumentError(f"table {name!r}: was opened in this batch already: use what that returned")
        refuse_other_kind("table", name, self.checkpoint.attempt.operator(name))
        self.used_names.add(name)
        hints = run.table_hints.setdefault(name, TableHints())
        changes = TableChanges(spark, run.client, self.checkpoint.attempt, name, definition, self.clock, hints)
        self.tables[name] = changes
        return changes

    def refuse_open_name(self, name: str) -> None:
        """Raise where an open map or table has the name of partitions of bytes."""
        for kind, names in (("map", self.run.maps), ("table", self.tables)):
            if name in names:
                raise IllegalArgumentError(f"operator {name!r}: a {kind} of this job has that name")

    @contextmanager
    @blocking
    def table_operation(self, name: str, check: Callable[[], None], *, only_reads: bool = False) -> Iterator[None]:
        """Make the block one operation of an open table.

        The batch waits for it, so its time counts as blocked.
        """
        with self.operations.one(name, check, only_reads=only_reads):
            yield

    def drop(self, name: str) -> None:
        """Leave a map, table or operator out, from this batch on."""
        object_paths.encode_name("operator", name)
        run = self.run
        was_dropped = name in run.dropped
        was_known = name in run.maps or name in run.table_hints or was_dropped
        if (dropped := run.maps.pop(name, None)) is not None:
            # The callback may keep the map, and a change of it would be in no checkpoint.
            maps.refuse_all(dropped)
            self.map_rules.pop(name, None)
        if (table := self.tables.pop(name, None)) is not None:
            table.close()
            self.dropped_tables.append(table)
        # A table that is opened by this name later has other chains.
        if (hints := run.table_hints.get(name)) is not None:
            hints.forget_early()
        run.dropped.add(name)
        try:
            self.checkpoint.drop(name)
            self.used_names.add(name)
            if was_dropped and name not in run.dropped_again:
                run.dropped_again.add(name)
                logger.warning(
                    "%s: drop(%r): an earlier batch of this run dropped it too, and a batch filled it again since, so "
                    "it loses its content with each such call: remove the call if the job needs the content",
                    run.client.root,
                    name,
                )
        except IllegalArgumentError:
            # The checkpoint has no such name, which is no error: a callback says the same in every batch, also after
            # the one that dropped it. A name that was misspelt is found by the warning.
            if not was_known:
                logger.warning(
                    "%s: drop(%r): the state has no such map, table or operator: if an earlier run dropped it, this "
                    "call can be removed; otherwise correct the name",
                    run.client.root,
                    name,
                )

    # ---- how the batch ends --------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Commit the batch as a checkpoint, once the callback has returned.

        Raises `InvalidStateError` where an operation failed, although the callback went on.
        """
        # First of all: an operation that went on would change what is being saved.
        self.operations.end()
        self._refuse_failed_operations()
        if not self.run.has_committed:
            self._warn_of_unused_names()
        # A thread that outlives the callback must not change a map while it is saved: the change would be in no
        # checkpoint.
        self.run.refuse_changes(self.operations.fail)
        # After that: a run that was ended meanwhile refused changes, and the callback may have swallowed the refusal.
        if self.run.is_ended:
            self.run.end()
            raise InvalidStateError(
                f"batch {self.job.batch_id}: another run of this query began meanwhile, or a second call for the batch "
                "came, so it was not committed"
            )
        if not self.run.has_used_clock:
            self.run.has_used_clock = self.clock.warn_if_left(self.run.client.root)
        # Before the maps are saved: by this clock their entries expire.
        self.clock.move_to_batch()
        for name, keyed in self.run.maps.items():
            if keyed.expires and self.clock.is_at_beginning and len(keyed):
                raise InvalidStateError(
                    f"map {name!r}: its entries expire, and the job's clock has no time yet, so all of them would be "
                    "expired once it has: call state.advance_clock(time) before the first entry is set"
                )
            self.checkpoint.save(name, keyed)
        self._finish()
        # A pool that outlives the callback may have begun more calls since, and others of its calls are saved.
        self._refuse_failed_operations()
        # What follows is recorded only once the commit succeeded: the next batch is compared with `last_job`.
        self.checkpoint.commit()
        self._end_reads()
        self.run.last_job, self.run.has_committed = self.job, True
        # Only after the commit, because early compaction reads the committed version.
        bytes_left = compaction.DRIVER_BYTES
        for name, table in self.tables.items():
            if cost := table.compact_early(bytes_left):
                bytes_left -= cost
                self.run.note_compacted_early(name)

    def _refuse_failed_operations(self) -> None:
        if (failure := self.operations.failure) is not None:
            raise InvalidStateError(
                f"batch {self.job.batch_id}: a state call failed and the callback went on, so the state may be "
                f"incomplete and was not committed: {type(failure).__name__}: {failure}"
            ) from failure

    @blocking
    def _finish(self) -> None:
        """Finish the tables, and record the checkpoints of other jobs that were read."""
        for table in self.tables.values():
            table.finish()
        self.others.record()

    def abort(self) -> None:
        """End the run and abort the checkpoint.

        No reader sees this batch, even if the abort fails.
        """
        # Writes are refused before the abort, because a thread of the callback may still run.
        self.operations.abandon()
        self.run.end()
        destroy(self.operations.broadcasts)
        # The error that made the batch fail is the one to report.
        with suppress(CheckpointError, TimeoutError):
            self.checkpoint.abort()
            # No cleanup may delete what this batch wrote before the next one is committed. A full disk would stay full,
            # and a job that fails at each restart would fill it. Tasks write to tables and partitions, not to maps.
            names = self.used_names - self.run.maps.keys()
            work = discard(self.checkpoint.attempt, names, self._take_emitted())
            run_sync(asyncio.wait_for(work, DISCARD_SECONDS))

    def _end_reads(self) -> None:
        """Remove what only DataFrames of this batch read.

        These are broadcasts, and the objects with emitted rows. A later cleanup removes the objects that cannot be
        removed now.
        """
        destroy(self.operations.broadcasts)
        with suppress(CheckpointError, TimeoutError):
            if paths := self._take_emitted():
                run_sync(asyncio.wait_for(self.run.client.session.store.delete(paths), DISCARD_SECONDS))

    def _take_emitted(self) -> list[str]:
        """Return the objects with rows that functions emitted to the callback."""
        return [path for table in (*self.tables.values(), *self.dropped_tables) for path in table.take_emitted()]

    def _warn_of_unused_names(self) -> None:
        """Log the names of the last checkpoint that the first batch of a run did not use.

        The job may have renamed them. Then they are empty under the new name.
        """
        restored = self.run.restored
        if restored is None:
            return
        unused, added = set(restored.operators) - self.used_names, self.used_names - set(restored.operators)
        if unused:
            logger.warning(
                "%s: %s has %s, which the first batch of this run neither opened nor dropped. Such a part of the state "
                "is kept as it was. %sIf the job needs it no more: state.drop(name)",
                self.run.client.root,
                restored.id,
                ", ".join(map(repr, sorted(unused))),
                f"{', '.join(map(repr, sorted(added)))} began empty. If one of these is a new name for it: stop the "
                f"query, rewind(to={str(restored.id)!r}), then restore(rename={{old: new}}) and `with begin(): pass` "
                "keep its content. "
                if added
                else "",
            )


def _time_of(job: Job) -> datetime | None:
    """Return the time that Spark recorded for a batch, if it is known."""
    return BatchOffsets.parse(job.spark.offsets).time if job.spark is not None else None
