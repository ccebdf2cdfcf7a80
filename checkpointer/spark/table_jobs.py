"""Run the Spark jobs of one table in a batch.

Write the rows that their tasks leave to the driver.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer import compaction
from pyspark_checkpointer.checkpoint import save_bytes
from pyspark_checkpointer.checkpoint.save import CheckpointAttempt
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.compaction import (
    ExpiryCompactions,
    artifacts_to_look_at,
    early_compactions,
    expiry_compactions,
    within_bytes,
)
from pyspark_checkpointer.errors import InvalidStateError, RetryableError
from pyspark_checkpointer.manifests.model import Artifact, Chain, CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.apply_task import ApplyTask
from pyspark_checkpointer.spark.dataframes import Work, map_batches
from pyspark_checkpointer.spark.driver_task import DriverTaskError, run_in_driver
from pyspark_checkpointer.spark.early_compaction import EarlyCompaction
from pyspark_checkpointer.spark.executors import destroying_broadcasts, parallelism
from pyspark_checkpointer.spark.scan import group_by_bytes, task_numbers
from pyspark_checkpointer.spark.table_hints import MAX_DRIVER_STATE_BYTES, TableHints
from pyspark_checkpointer.spark.task_client import DriverRoot, TaskRoot
from pyspark_checkpointer.spark.write_tasks import OUTPUT_SCHEMA, CompactTask, Target, TaskOutput, WriteTask
from pyspark_checkpointer.table import kept_columns, large_rows, merge, row_order
from pyspark_checkpointer.table.compact import compact_chains
from pyspark_checkpointer.table.due_rows import may_be_due, most_living
from pyspark_checkpointer.table.hashing import with_partitions
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import PARTITION, TableSchema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top

logger = logging.getLogger("pyspark_checkpointer")


class TableJobs:
    """The Spark jobs that write one table for one checkpoint.

    A batch calls this class while its table is opened, in an operation or at its end. These calls count the time and
    the requests.
    """

    def __init__(self, spark: SparkSession, client: Checkpointer, attempt: CheckpointAttempt, name: str) -> None:
        self.spark = spark
        self.client = client
        self._attempt = attempt
        self._name = name

    @property
    def root(self) -> TaskRoot:
        return TaskRoot.of(self.client, self.spark)

    @property
    def parent(self) -> CheckpointId | None:
        """Return the checkpoint that this batch goes on from.

        It keeps the objects alive that are read.
        """
        manifest = self._attempt.base.manifest
        return None if manifest is None else manifest.id

    @property
    def scan_arguments(self) -> tuple[SparkSession, Checkpointer, CheckpointId | None]:
        """Return the first arguments of `scan` and `lookup`.

        They are the session, the client and the parent. The version follows them.
        """
        return self.spark, self.client, self.parent

    def target(self, schema: TableSchema, partitions: int) -> Target:
        """Return the description of the table for the tasks that write it."""
        return Target(self.root, self._attempt.id, self._name, schema, partitions, compaction.DRIVER_BYTES // 4)

    def extend(
        self, chains: dict[int, Chain], outputs: list[TaskOutput], schema: TableSchema, *, deletes_only: bool = False
    ) -> None:
        """Add the artifacts of tasks to the chains, and write the rows that they left.

        With `deletes_only`, all rows are deletions, which have no effect in a partition without rows.
        """
        for output in outputs:
            chains |= {partition: (snapshot,) for partition, snapshot in output.snapshots.items()}
        only = set(chains) if deletes_only else None
        for pack in (*(pack for output in outputs for pack in output.packs), self._pack(outputs, schema, only)):
            for partition, delta in pack.items():
                if only is None or partition in only:
                    chains[partition] = on_top(chains.get(partition, ()), delta)

    def run(self, frame: DataFrame, work: Work) -> list[TaskOutput]:
        """Run tasks over a DataFrame, and return the output of each.

        Raises the refusal of a task.
        """
        with destroying_broadcasts():
            results = map_batches(frame, work, OUTPUT_SCHEMA).collect()
        outputs = [TaskOutput.load(bytes(row["written"])) for row in results]
        for output in outputs:
            output.raise_refused()
            # The driver has to find what the task wrote before it reads any of it to compact chains.
            if (first := output.first(self._attempt.id)) is not None:
                run_sync(save_bytes.prove(self._attempt, output.written_by, first))
        # Rows of one partition in two tasks: one of two snapshots would be lost, or what one of two calls of a user's
        # function decided.
        counts = Counter(partition for output in outputs for partition in {*output.snapshots, *output.applied})
        twice = [partition for partition, count in counts.items() if count > 1]
        if twice:
            raise InvalidStateError(f"table {self._name!r}: partition {twice[0]} was written by two tasks")
        return outputs

    def change(
        self,
        rows: Callable[[], DataFrame],
        task: WriteTask | ApplyTask,
        by_tasks: Callable[[], list[TaskOutput]],
        hints: TableHints,
        verb: str,
        order: Sequence[str] | None = None,
    ) -> list[TaskOutput]:
        """Do the work of a task on all rows, and return the output.

        The driver does the work, on rows sorted by `order`, if the rows of this verb in the batch before were few and
        the task reads a small version, or none. Otherwise `by_tasks` does the work. The driver adds a partition to each
        row if `rows()` has no such column. The hints learn how large these rows were. Raises the refusal of the task.
        """
        outputs, read, of_verb, lacks_rows = None, task.reads, hints.verbs[verb], False
        is_small_state = read is None or read.memory_bytes <= MAX_DRIVER_STATE_BYTES
        # A source may fail once. Rows that are too large for the driver would be computed twice in every batch.
        is_fit = not hints.is_driver_unfit and of_verb.failures_without_rows < 2
        if of_verb.driver_rows and is_fit and is_small_state:
            root = DriverRoot.of(self.client, self.spark)

            def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                return task.in_driver(root).run(batches)

            try:
                place = partial(with_partitions, schema=task.target.schema, partitions=task.target.partitions)
                outputs = run_in_driver(rows(), of_verb.driver_rows, place, work, order)
                of_verb.failures_without_rows = 0
            except DriverTaskError as error:
                logger.info("table %r: tasks do what failed in the driver: %s", self._name, error)
                # What passes by itself, such as throttling, says nothing about the driver.
                passes = isinstance(error.__cause__, RetryableError)
                hints.is_driver_unfit |= error.has_rows and not passes
                lacks_rows = not error.has_rows and not passes
        for output in outputs or ():
            output.raise_refused()
        if outputs is None:
            outputs = by_tasks()
        of_verb.failures_without_rows += lacks_rows
        of_verb.learn_size(
            sum(output.given_rows for output in outputs),
            sum(output.given_bytes for output in outputs),
            sum(output.seconds for output in outputs),
        )
        return outputs

    def may_be_due(self, version: TableVersion, column: str, limit: int) -> list[int]:
        """Return the partitions that may have an expired row.

        Such a row has a time in a column that is at most `limit`.
        """
        session = self.client.session
        return run_sync(may_be_due(TableReader(session.store, session.host, version), column, limit))

    def expiry_compactions(self, version: TableVersion) -> ExpiryCompactions:
        """Return what this batch compacts or drops because rows have expired."""
        rule, session = version.schema.expire, self.client.session
        if rule is None or version.expired_until is None:
            return ExpiryCompactions({}, set())
        looked = artifacts_to_look_at(version.chains, session.max_chain, version.partitions, self._attempt.id.sequence)
        reader = TableReader(session.store, session.host, version)
        living = run_sync(most_living(reader, looked, rule.column, version.expired_until))
        return expiry_compactions(version.chains, living)

    def compact(self, version: TableVersion, keep: Mapping[int, int]) -> dict[int, Chain]:
        """Compact chains, and return all chains of the table.

        `keep` says how many artifacts of each partition stay as they are. The driver compacts as long as few bytes have
        to be read, and the executors compact the rest.
        """
        # A Spark job costs more than reading a few bytes, and much state does not fit into the driver.
        here, there, _ = within_bytes(version.chains, keep, compaction.DRIVER_BYTES)
        chains = dict(version.chains)
        if here:
            session = self.client.session
            reader = TableReader(session.store, session.host, version.only([*here]))
            chains |= run_sync(compact_chains(reader, self._writer(version.schema), version.chains, here))
        if there:
            sizes = version.sizes(there)
            groups = group_by_bytes(sizes, max(parallelism(self.spark), len(there) // 8))
            task = CompactTask(self.root, self._attempt.id, version.only([*there]), groups, dict(keep))
            for output in self.run(task_numbers(self.spark, len(groups)), task.run):
                chains |= output.chains
        # A partition of which no row is left has no chain (SPEC, Manifests).
        return {partition: chain for partition, chain in chains.items() if chain}

    def compact_early(self, version: TableVersion, most: int) -> EarlyCompaction:
        """Begin to compact chains of a committed version for the next batch.

        That batch adds a delta to each of them. Only chains are taken that cost at most `most` bytes in all, as
        `within_bytes` counts them.
        """
        session = self.client.session
        early = early_compactions(version.chains, session.max_chain, version.partitions, most)
        return EarlyCompaction(session, version, early.now, early.turn, early.cost)

    def begin_early_write(self, early: EarlyCompaction, version: TableVersion) -> None:
        """Begin to write the objects that were compacted early, unless that has begun."""
        early.begin_write(version.chains, self._writer(version.schema), self._attempt.meter.traffic)

    def finish_early_write(self, early: EarlyCompaction, version: TableVersion) -> dict[int, Chain]:
        """Wait until these objects are written, and return all chains."""
        self.begin_early_write(early, version)
        chains = {**version.chains, **run_sync(early.finish_write(version.chains))}
        return {partition: chain for partition, chain in chains.items() if chain}

    def _pack(self, outputs: list[TaskOutput], schema: TableSchema, only: set[int] | None) -> dict[int, Artifact]:
        """Write the rows that tasks left to the driver as one object.

        With `only`, only rows of those partitions are written.
        """
        parts = [pa.ipc.open_stream(output.rows).read_all() for output in outputs if output.rows]
        if not parts:
            return {}
        with large_rows.explain_arrow_errors(self._name):
            return self._pack_parts(parts, schema, only)

    def _pack_parts(self, parts: list[pa.Table], schema: TableSchema, only: set[int] | None) -> dict[int, Artifact]:
        rows = kept_columns.concat(parts)
        if only is not None:
            rows = rows.filter(pc.is_in(rows[PARTITION], pa.array(sorted(only), pa.int32())))
        if rows.num_rows == 0:
            return {}
        # Each task folded and sorted its own rows, so that one part needs neither.
        if len(parts) > 1:
            rows = merge.fold_changes(rows, schema, self._name)
            rows = row_order.in_order(rows, schema.key)
        return run_sync(self._writer(schema).pack(rows))

    def _writer(self, schema: TableSchema) -> TableWriter:
        session = self.client.session
        return TableWriter(session.store, session.host, self._attempt.id, self._name, schema)
