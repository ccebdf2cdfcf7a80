"""Change a table in one batch.

Tasks write the rows, and the driver collects the new chains.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer import display
from pyspark_checkpointer.checkpoint.migrated import how_to_keep
from pyspark_checkpointer.checkpoint.save import CheckpointAttempt
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.compaction import all_compactions, compactions_left, table_compactions
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Chain
from pyspark_checkpointer.spark.application import Application, check_given
from pyspark_checkpointer.spark.apply_task import ApplyTask
from pyspark_checkpointer.spark.arguments import (
    TableDefinition,
    check_columns,
    check_combine,
    check_expire,
    check_frame,
    check_key_columns,
    check_names,
    check_num_partitions,
    check_schema,
)
from pyspark_checkpointer.spark.batch import drain
from pyspark_checkpointer.spark.dataframes import (
    all_columns_of,
    bring_together,
    check_has_key,
    has_unique_keys,
    keys_of,
    rows_of,
)
from pyspark_checkpointer.spark.driver_task import can_place, has_same_surroundings, sorts_alike, works_alike
from pyspark_checkpointer.spark.emitted import frame_of_emitted
from pyspark_checkpointer.spark.executors import parallelism
from pyspark_checkpointer.spark.failure import is_damage, was_cancelled
from pyspark_checkpointer.spark.job_clock import JobClock
from pyspark_checkpointer.spark.scan import lookup, scan
from pyspark_checkpointer.spark.scan_expired import Written, find_due, scan_expired
from pyspark_checkpointer.spark.table_columns import TableColumns
from pyspark_checkpointer.spark.table_expiry import TableExpiry
from pyspark_checkpointer.spark.table_hints import TableHints
from pyspark_checkpointer.spark.table_jobs import TableJobs
from pyspark_checkpointer.spark.write_tasks import ExpiredRows, TaskOutput, WriteTask
from pyspark_checkpointer.table.first_seen import FirstSeen
from pyspark_checkpointer.table.schema import DELETE, MERGE, PARTITION, Column, TableSchema
from pyspark_checkpointer.table.schema_evolution import extended_schema, first_schema, needs_rescale, next_schema
from pyspark_checkpointer.table.version import TableVersion

logger = logging.getLogger("pyspark_checkpointer")

DEFAULT_TABLE_PARTITIONS = 16

UNREADABLE = (CheckpointError, PySparkException, Py4JError)
"""Errors for an object that cannot be read: those of the driver, and those of Spark if a task read it."""


class TableChanges:
    """The version of one table that a batch is making.

    Invariants, between two calls:
        * `version` is what a read returns now: what is committed, with all changes of this batch. It is None while
          nothing says which columns the table has.
        * Every object that `version` names is in the store. Nothing else names the objects of this batch until
          `finish` hands the version to the checkpoint, so a batch that fails leaves the table as it was.
        * Until the first write (or `finish`) moves the rows, `version` keeps the old number of partitions.
    """

    def __init__(
        self,
        spark: SparkSession,
        client: Checkpointer,
        attempt: CheckpointAttempt,
        name: str,
        definition: TableDefinition,
        clock: JobClock | None = None,
        hints: TableHints | None = None,
    ) -> None:
        self._jobs = TableJobs(spark, client, attempt, name)
        self._attempt = attempt
        self._is_dropped = False
        self._hints = hints or TableHints()
        self._hints.begin_batch()
        self.name = name
        key, combines = check_key_columns(name, definition.key), check_combine(name, definition.combine)
        self._expiry = TableExpiry(name, check_expire(name, definition.expire), clock or JobClock(attempt, None))
        if (num_partitions := definition.num_partitions) is not None:
            check_num_partitions(f"table {name!r}", num_partitions)
        # Of the attempt and not of its parent: the name may have been dropped earlier in this batch.
        known = attempt.operator(name)
        parent = attempt.base.manifest
        clock_then = None if parent is None else parent.clock
        self._committed = None if known is None else TableVersion.of(name, known, clock_then)
        """The table as the last checkpoint has it, at its clock."""
        self.version = self._committed
        before = DEFAULT_TABLE_PARTITIONS if self.version is None else self.version.partitions
        self._partitions = before if num_partitions is None else num_partitions
        if self.version is not None and self.version.schema.key != key:
            raise IllegalArgumentError(
                f"table {name!r}: its key is {display.names(self.version.schema.key)}, not {display.names(key)}: "
                f"{how_to_keep(name)}"
            )
        self._has_changed = False
        self._compacts_all = False
        self._emitted: list[str] = []
        """Paths of objects with rows that functions emitted in this batch."""
        schema = definition.schema
        declared = [] if schema is None else check_schema(f"table {name!r}: schema", schema).fields
        self._columns = TableColumns(name, key, combines, [field.jsonValue() for field in declared], self._expiry)
        # With its columns declared, a new table can be read before anything is written to it.
        if self.version is None and schema is not None:
            first = first_schema(name, self._columns.declared, key, combines)
            self.version = TableVersion(name, first, self._partitions, {})
        self._adopt_expiry()
        self._written: list[Written] = []
        """The writes of this batch that may have come too late, one for each call."""

    # ---- what the callback asks for ------------------------------------------------------------------------------

    def upsert(self, rows: DataFrame) -> None:
        """Add or combine rows, and keep the columns that they do not have."""
        self._write(self._check_frame("upsert", rows), self._accept(rows, extended_schema), "upsert")

    def replace(self, rows: DataFrame) -> None:
        """Make these rows the whole table."""
        self._write(self._check_frame("replace", rows), self._accept(rows, next_schema), "replace")

    def delete(self, keys: DataFrame) -> None:
        """Remove the rows with these keys."""
        check_has_key(self.name, self._check_frame("delete", keys), self._columns.key)
        version = self.version
        wanted = keys if version is None else keys_of(self.name, keys, version.schema)
        if version is not None and version.chains:
            self._write(wanted, version.schema, "delete")
        else:
            drain(wanted)  # There is nothing to delete, but Spark's stateful operators upstream have to be read.

    def apply(self, rows: DataFrame, call: Application) -> DataFrame | None:
        """Apply a user's function to rows and the state of their keys.

        Returns the rows that it emitted, if it may emit any.
        """
        check_columns(call.where, self._check_frame(call.verb, rows), call.order_by)
        is_ours = isinstance(call.user, FirstSeen)
        if not is_ours:  # Else each column has to be stored, which says more.
            check_given(call.where, rows)
        accept = self._columns.accept_first_seen if is_ours else self._columns.accept_keys
        schema = accept(rows, self._known_version().schema)
        function = call.function(schema, self._columns.combine)
        version = self._version_to_change(schema)
        order = [PARTITION, *schema.key, *(name for name in call.order_by if name not in schema.key)]
        target, jobs, hints = self._jobs.target(schema, self._partitions), self._jobs, self._hints.verbs[call.verb]
        below = self._expiry.now(replace(version, schema=schema))
        task = ApplyTask(target, jobs.parent, below, function)

        def by_tasks() -> list[TaskOutput]:
            placed = all_columns_of(rows, schema, self._partitions)
            outputs = jobs.run(bring_together(placed, order, hints.apply_tasks), task.run)
            hints.learn_surroundings(output.surroundings for output in outputs)
            return outputs

        # Until a task has run nothing is known, and of no rows Spark may make no task.
        if not is_ours and not has_same_surroundings(hints.surroundings):
            hints.driver_rows = 0
        if (is_ours or works_alike(jobs.spark)) and sorts_alike(rows, order[1:]):
            outputs = self._run(rows, schema, schema.key_columns, all_columns_of, task, by_tasks, call.verb, order)
        else:
            outputs = by_tasks()
        seconds = sum(output.seconds for output in outputs)
        hints.learn_from_apply(seconds, min(self._partitions, parallelism(jobs.spark)))
        chains = dict(version.chains)
        jobs.extend(chains, outputs, schema)
        self._change(schema, chains, version.chains)
        if call.output is None:
            return None
        emitted = [part for output in outputs for part in output.emitted]
        self._emitted += [part for part in emitted if isinstance(part, str)]
        return frame_of_emitted(jobs.spark, jobs.root, call.output, function.output, emitted)

    def first_seen(self, rows: DataFrame, order_by: Sequence[str]) -> DataFrame:
        """Take in the rows whose key the table does not have, and return them."""
        self._check_frame("first_seen", rows)
        self._columns.check_first_seen(rows)
        if self.version is None:
            self.version = TableVersion(self.name, self._columns.first_of_first_seen(rows), self._partitions, {})
        version = self._known_version()
        names = self._columns.accept_first_seen(rows, version.schema).names
        expired = None if version.schema.expire is None else self._expiry.due(version)
        function = FirstSeen(self._columns.key, [name for name in names if name in rows.columns], expired)
        call = Application.of(self.name, function, rows.schema, order_by, "arrow", groups=False, verb="first_seen")
        emitted = self.apply(rows, call)
        assert emitted is not None
        return emitted

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Leave columns out of the schema; no object is written again."""
        names = check_names(f"table {self.name!r}: drop_columns(): columns", columns)
        if self.version is None:  # It has no columns yet. A function says the same in every batch, also in the first.
            self._columns.check_dropped(names)
            return
        version = self._known_version()
        schema = version.schema.without(self.name, names)
        if schema != version.schema:
            self.version, self._has_changed = replace(version, schema=schema), True

    def read(self, columns: Sequence[str] | None) -> DataFrame:
        """Return all rows as they are now."""
        return scan(*self._jobs.scan_arguments, self._known_version(), columns)

    def lookup(self, keys: DataFrame, columns: Sequence[str] | None) -> DataFrame:
        """Return the rows with these keys."""
        wanted = self._check_frame("lookup", keys)
        return lookup(*self._jobs.scan_arguments, self._known_version(), wanted, columns)

    def expired(self, columns: Sequence[str] | None) -> DataFrame:
        """Return the rows of the last checkpoint that have expired since.

        It also returns the rows that this batch wrote too late.
        """
        version = self._known_version()
        rule = self._expiry.due(version)
        due = find_due(rule, self._committed, self._written, version, self._jobs.may_be_due)
        return scan_expired(*self._jobs.scan_arguments, due, columns)

    def compact(self) -> None:
        """Let `finish` replace chains with snapshots.

        It replaces every chain that has deltas, or may have expired rows.
        """
        if self.version is not None:  # Else nothing was written yet, and it may be later in this batch.
            self._known_version()
        # Not at once: what this batch wrote too late would be gone before `expired` returns it.
        self._compacts_all = True

    # ---- how a batch ends ----------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish the changes of the batch, and hand the table to the checkpoint.

        This first brings the rows into their partitions and compacts some chains.
        """
        if self.version is None:
            return
        # Rows that silently never expire would be noticed when the disk is full.
        self._expiry.in_schema(self.version.schema)
        # Nothing was written in this batch, or the rows would have been moved then.
        if self.version.partitions != self._partitions:
            self._rescale(self.version.schema)
        self._compact_due(self.version)
        if self._has_changed:
            self._attempt.put_operator(self.name, self.version.operator())

    def compact_early(self, most: int) -> int:
        """Begin to compact chains for the next batch, after this one is committed.

        Returns how many bytes the compaction costs the driver, at most `most`.
        """
        if not self._has_changed or self.version is None:
            return 0
        self._hints.early = self._jobs.compact_early(self._known_version(), most)
        return self._hints.early.cost

    def take_emitted(self) -> list[str]:
        """Return the objects with rows that functions emitted.

        The batch has ended, and they are to be deleted.
        """
        paths, self._emitted = self._emitted, []
        return paths

    def close(self) -> None:
        """Refuse further operations: the table was dropped."""
        self._is_dropped = True

    def check_open(self) -> None:
        """Raise `InvalidStateError` once the table was dropped."""
        if self._is_dropped:
            raise InvalidStateError(f"table {self.name!r}: was dropped in this batch: open it again")

    # ---- expiry --------------------------------------------------------------------------------------------------

    def _adopt_expiry(self) -> None:
        """Let rows expire by the rule that the job gives now.

        Rows that expired by an earlier rule must not come back, so the table is written anew without them.
        """
        self._expiry.check()
        if self.version is None:
            return
        # Asked first: a schema with one column more has no rule yet.
        old = self.version.schema.expire
        schema = self._columns.with_declared_time(self.version.schema)
        new = self._expiry.rule_for(schema)
        if self._expiry.brings_back(old, new):
            logger.warning("table %r: its rows expired %s until now; %s", self.name, old, new or "they no longer do")
            # At the clock of the last checkpoint: what would have expired since lives by the new rule.
            assert self._committed is not None
            chains = self._jobs.compact(self._committed, dict.fromkeys(self._committed.chains, 0))
            self.version = replace(self.version, chains=chains)
        schema = schema.expiring(self.name, new)
        if schema != self.version.schema:
            self._has_changed = True
        self.version = replace(self.version, schema=schema)

    # ---- schema and version --------------------------------------------------------------------------------------

    def _check_frame(self, verb: str, given: object) -> DataFrame:
        return check_frame(f"table {self.name!r}: {verb}()", given)

    def _known_version(self) -> TableVersion:
        if self.version is None:
            raise IllegalArgumentError(
                f"table {self.name!r}: nothing was written to it yet: its columns are not known: open it with schema=…"
            )
        return self._expiry.now(self.version)

    def _accept(self, rows: DataFrame, evolve: Callable[..., TableSchema]) -> TableSchema:
        return self._columns.accept(rows, None if self.version is None else self.version.schema, evolve)

    # ---- writing -------------------------------------------------------------------------------------------------

    def _write(self, rows: DataFrame, schema: TableSchema, verb: str) -> None:
        """Write rows as a verb says: "upsert", "replace", "delete" or "move"."""
        change, moves, hints = DELETE if verb == "delete" else MERGE, verb == "move", self._hints.verbs[verb]
        # What these rows take the place of must not be returned as expired later in this batch.
        self._expiry.hold_clock("was changed")
        below = self._version_to_change(schema) if verb in ("upsert", "delete") else None
        chains: dict[int, Chain] = {} if below is None else dict(below.chains)
        # Tasks that get all rows of a partition can write snapshots, and see every duplicate.
        is_whole = not chains and change != DELETE
        expired = None
        if below is not None and chains and change != DELETE and _combines_with_below(rows, schema):
            expired = ExpiredRows(self._jobs.parent, self._expiry.now(replace(below, schema=schema)))
        # Rows of one key may lie in different tasks only where their order does not matter, or where there is but one.
        may_split_keys = not is_whole and (change == DELETE or schema.combines or has_unique_keys(rows, schema.key))
        # The first of two tasks with rows of a key would begin a row anew, and the second would not know of it.
        may_split_keys = may_split_keys and expired is None
        task = WriteTask(self._jobs.target(schema, self._partitions), change, is_whole, expired)

        def by_tasks() -> list[TaskOutput]:
            placed = rows_of(rows, schema, self._partitions)
            if not may_split_keys or hints.shuffle_first:
                placed = placed.repartition(PARTITION)
            outputs = self._jobs.run(placed, task.run)
            hints.learn_packs(sum(bool(output.packs) for output in outputs))
            return outputs

        # All rows of a table are too many for the driver, and would teach the hints a size that no batch has.
        outputs = by_tasks() if moves else self._run(rows, schema, schema.columns, rows_of, task, by_tasks, verb)
        self._jobs.extend(chains, outputs, schema, deletes_only=change == DELETE)
        self._change(schema, chains, None if moves or change == DELETE else {} if below is None else below.chains)

    def _run(
        self,
        rows: DataFrame,
        schema: TableSchema,
        columns: Sequence[Column],
        place: Callable[[DataFrame, TableSchema, int], DataFrame],
        task: WriteTask | ApplyTask,
        by_tasks: Callable[[], list[TaskOutput]],
        verb: str,
        order: Sequence[str] | None = None,
    ) -> list[TaskOutput]:
        """Do the work of a task on all rows, in the driver or by tasks.

        `place` lets Spark add the partition of each row. The driver finds it by itself where `columns` need no change,
        and where Spark's hashes of such keys were compared with its own in this run.
        """
        types = tuple(column.type for column in schema.key_columns)
        finds = self._hints.hashed == types and can_place(rows, schema, columns)
        given = (lambda: rows) if finds else partial(place, rows, schema, self._partitions)
        outputs = self._jobs.change(given, task, by_tasks, self._hints, verb, order)
        if any(output.has_changes for output in outputs):
            self._hints.hashed = types
        return outputs

    def _version_to_change(self, schema: TableSchema) -> TableVersion:
        """Return the version to write on, with all rows in their partitions.

        Rows are moved first if the number of partitions, or the types of the key, have changed. Otherwise, the objects
        that were compacted for this batch are written from now on.
        """
        version, early = self.version or TableVersion(self.name, schema, self._partitions, {}), self._hints.early
        # Readers look for a key only in the partition that its hash says, so rows of two numberings must not meet.
        if needs_rescale(version.schema, schema) or version.partitions != self._partitions:
            self._rescale(schema)
            version = self._known_version()
        # While Spark works on the rows: else the end of the batch would wait one more round trip for them.
        elif early is not None:
            self._jobs.begin_early_write(early, version)
        return version

    def _change(self, schema: TableSchema, chains: Mapping[int, Chain], below: Mapping[int, Chain] | None) -> None:
        """Replace the chains of the table with chains that a call has written.

        `below` are the chains below the new rows. It is None if the call has written no new rows.
        """
        self.version, self._has_changed = TableVersion(self.name, schema, self._partitions, chains), True
        if below is not None and schema.expire is not None:
            self._written.append(Written.on(below, self.version))

    def _compact_due(self, version: TableVersion) -> None:
        """Compact the chains that are due.

        These are too long, outweigh their snapshot, or have expired rows. After `compact`, compact all chains.
        """
        early, max_chain = self._hints.early, self._jobs.client.session.max_chain
        if early is not None and self._compacts_all and not early.has_begun_write:
            early.cancel()  # The batch compacts all chains itself.
        # Without a change, what was compacted early waits for a batch that has one.
        elif early is not None and self._has_changed:
            version = replace(version, chains=self._jobs.finish_early_write(early, version))
            self.version = version
        if self._compacts_all:
            self._compact(all_compactions(version.chains, has_expiry=version.schema.expire is not None))
        elif early is None:
            self._compact_with_expired(table_compactions(version.chains, max_chain, version.partitions))
        elif self._has_changed:
            left = compactions_left(version.chains, max_chain, early.left_to_batch(version.chains))
            self._compact_with_expired(left)

    def _compact_with_expired(self, due: Mapping[int, int]) -> None:
        """Compact chains that are due, and those most of whose rows have expired.

        Drop the chains of which all rows have. Only what is due stops a batch that cannot read it. The rest saves
        space, and the batch may need none of its objects.
        """
        shrunk = self._drop_expired()
        chains = {} if self.version is None else self.version.chains
        due = {partition: first for partition, first in due.items() if partition in chains}
        more = {partition: first for partition, first in shrunk.items() if first < due.get(partition, first + 1)}
        if due and more:
            try:
                self._compact(due | more)  # Together, so that folded deltas share an object.
                return
            except UNREADABLE as error:
                if was_cancelled(error):
                    raise
        self._compact(due)
        self._compact_readable(more)

    def _compact_readable(self, keep: Mapping[int, int]) -> None:
        """Compact chains, and leave those as they are that cannot be read."""
        try:
            self._compact(keep)
        except UNREADABLE as error:
            if was_cancelled(error):
                raise
            # In an outage each job would wait for the store again, as often as Spark tries a task.
            if len(keep) == 1 or not is_damage(error):
                logger.warning(
                    "table %r: partitions that cannot be read keep the rows that expired (%d): %s",
                    self.name,
                    len(keep),
                    error,
                )
                return
            # One damaged object must not keep the rows of the other partitions.
            numbers = sorted(keep)
            for half in (numbers[: len(keep) // 2], numbers[len(keep) // 2 :]):
                self._compact_readable({partition: keep[partition] for partition in half})

    def _drop_expired(self) -> dict[int, int]:
        """Drop the chains of which all rows have expired.

        Return the compactions of those most of whose rows have.
        """
        old = self._committed
        # A batch that changes nothing writes nothing.
        if old is None or not self._has_changed:
            return {}
        version = self._known_version()
        # What the batch has written anew has few expired rows, or none.
        kept = [
            partition for partition, chain in version.chains.items() if chain[:1] == old.chains.get(partition, ())[:1]
        ]
        shrunk, emptied = self._jobs.expiry_compactions(version.only(kept))
        # A partition of which no row is left has no chain (SPEC, Manifests).
        self.version = version.only([partition for partition in version.chains if partition not in emptied])
        return shrunk

    def _compact(self, keep: Mapping[int, int]) -> None:
        """Compact chains.

        `keep` says how many artifacts of each partition stay as they are.
        """
        version = self._known_version()
        if keep:
            # The number of partitions may still be the old one, which only a write changes.
            self.version, self._has_changed = replace(version, chains=self._jobs.compact(version, keep)), True

    def _rescale(self, schema: TableSchema) -> None:
        """Bring every row into the partition that its key belongs to now."""
        version = replace(self._known_version(), schema=schema)
        # Without rows there is nothing to move, and no Spark job is needed.
        if version.chains:
            rows = scan(*self._jobs.scan_arguments, version)
            self._write(rows, schema, "move")
        else:
            self.version, self._has_changed = replace(version, partitions=self._partitions), True


def _combines_with_below(rows: DataFrame, schema: TableSchema) -> bool:
    """Return whether rows may be combined with an expired row below them.

    To prevent this, tasks look for such rows.
    """
    return schema.expire is not None and not (schema.replaces and set(schema.names) <= set(rows.columns))
