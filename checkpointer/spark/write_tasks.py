"""The tasks that write a table on executors.

They write the changes of a batch, and shorter chains.

Only what a finished task returned to the driver reaches the manifest. Objects of failed, repeated or speculative task
attempts carry the checkpoint's id and another digest; no manifest names them, and cleanup removes them.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_checkpointer.compaction import is_small
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Artifact, Chain, CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.task_client import TaskRoot
from pyspark_checkpointer.table import kept_columns, large_rows, merge, row_order
from pyspark_checkpointer.table.hashing import check_partitions
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import CHANGE, KEPT, MERGE, TableSchema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, rewrite, split

OUTPUT_SCHEMA = StructType([StructField("written", BinaryType())])


@dataclass(slots=True)
class TaskOutput:
    """The result of one task, for the driver.

    A task wrote `snapshots` and `deltas`, by partition, or the compacted `chains`. It leaves `rows` to the driver where
    these are few (as an Arrow stream). `refused` says why the task wrote nothing. `place` is where it wrote.
    """

    snapshots: dict[int, Artifact] = field(default_factory=dict)
    deltas: dict[int, Artifact] = field(default_factory=dict)
    chains: dict[int, Chain] = field(default_factory=dict)
    rows: bytes = b""
    refused: CheckpointError | None = None
    place: str = ""

    def first(self, owner: CheckpointId) -> Artifact | None:
        """Return an artifact that this task wrote itself, or None.

        A compacted chain has older artifacts too.
        """
        artifacts = (*self.snapshots.values(), *self.deltas.values(), *chain.from_iterable(self.chains.values()))
        # An empty snapshot has no bytes that could prove anything.
        return next(
            (found for found in artifacts if found.length and object_paths.parse_artifact(found.path).id == owner), None
        )

    def dump(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"written": pa.array([pickle.dumps(self)], pa.binary())})

    @staticmethod
    def load(data: bytes) -> "TaskOutput":
        found: TaskOutput = pickle.loads(data)  # noqa: S301  # made by a task of this same job
        return found


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Write the changes of a batch.

    `whole`: the tasks have all rows of their partitions, and nothing is below them. Else columns of the schema that the
    rows do not have keep their values, and the changes say so in column `__kept`.

    Task k hands at most `inline / (k + 1)` bytes of rows to the driver and writes more itself. A task does not know how
    many tasks there are, but task k knows of k others. So evenly spread changes of fewer than `inline` bytes in all are
    never written by tasks, and from 1,000 tasks the driver gets at most 7.5 times `inline`.
    """

    root: TaskRoot
    owner: CheckpointId
    table: str
    schema: TableSchema
    partitions: int
    change: int
    whole: bool
    inline: int

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # All rows of the task at once: rows of one key may come in different batches.
        found = [batch for batch in batches if batch.num_rows]
        if found:
            yield _run_task(partial(self._write_all, pa.Table.from_batches(found)))

    def _write_all(self, given: pa.Table) -> TaskOutput:
        with large_rows.explain_arrow_errors(self.table):
            return self._write(given)

    def _write(self, given: pa.Table) -> TaskOutput:
        """Fold and sort the rows, and write them.

        Few rows are left to the driver instead.
        """
        rows = self._changes(given)
        # Deletions, and rows that are combined, have no order, so those of one key become one. Both ways end in order
        # of partition and key, as a pack has to be.
        if self.schema.combines or self.change != MERGE:
            rows = row_order.in_order(merge.consolidate(rows, self.schema, self.table), self.schema.key)
        else:
            rows = row_order.in_order(rows, self.schema.key)
            # Rows that replace each other have no order in a batch: nothing says which row of a key is the newer one.
            row_order.check_unique(rows, self.schema, self.table)
        # Before anything is written: in a wrong partition no reader would find the row.
        check_partitions(rows, self.schema, self.partitions, self.table)
        context = TaskContext.get()
        assert context is not None
        if rows.nbytes <= self.inline // (context.partitionId() + 1):
            return TaskOutput(rows=_stream(rows))
        session = self.root.open().session
        writer = TableWriter(session.store, session.host, self.owner, self.table, self.schema)
        output, small = TaskOutput(place=self.root.place), [rows]
        if self.whole:
            small = []
            # Small partitions share a pack, so that a table of many small ones does not cost an object each.
            for partition, part in split(rows):
                if not is_small(part.num_rows, part.nbytes):
                    output.snapshots[partition] = run_sync(writer.snapshot(partition, part))
                else:
                    small.append(part)
        if small:
            output.deltas = run_sync(writer.pack(pa.concat_tables(small)))
        return output

    def _changes(self, given: pa.Table) -> pa.Table:
        """Return the rows as changes, with nulls in the columns that they do not have."""
        columns = {name: given[name] for name in given.column_names}
        columns[CHANGE] = pa.repeat(pa.scalar(self.change, pa.int8()), given.num_rows)
        absent = [c.id for c in self.schema.values if c.role == "last" and c.name not in columns]
        # Only rows that merge can keep something (SPEC, Tables), and below a whole partition there is nothing.
        keeps = bool(absent) and self.change == MERGE and not self.whole
        if keeps:
            columns[KEPT] = pa.repeat(pa.scalar(kept_columns.text_of(absent), pa.string()), given.num_rows)
        stored = self.schema.arrow_delta(kept=keeps)
        arrays = [
            columns[name].cast(kind) if name in columns else pa.nulls(given.num_rows, kind)
            for name, kind in zip(stored.names, stored.types, strict=True)
        ]
        return pa.table(arrays, schema=stored)


@dataclass(frozen=True, slots=True)
class CompactTask:
    """The task that compacts the chains of groups of partitions.

    `keep` says how many artifacts of each stay.
    """

    root: TaskRoot
    owner: CheckpointId
    version: TableVersion
    groups: list[list[int]]
    keep: dict[int, int]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group in batch.column(0).to_pylist():
                yield _run_task(partial(self._compact, self.groups[group]))

    def _compact(self, partitions: list[int]) -> TaskOutput:
        session, version = self.root.open().session, self.version.only(partitions)
        reader = TableReader(session.store, session.host, version)
        writer = TableWriter(session.store, session.host, self.owner, version.name, version.schema)
        keep = {partition: self.keep[partition] for partition in partitions}
        return TaskOutput(chains=run_sync(rewrite(reader, writer, version.chains, keep)), place=self.root.place)


def _run_task(work: Callable[[], TaskOutput]) -> pa.RecordBatch:
    """Return what a task wrote, or the error that refused it.

    Such an error does not fail the task: Spark would run the task again, and it would be refused again.
    """
    try:
        return work().dump()
    except (IllegalArgumentError, InvalidStateError) as error:
        return TaskOutput(refused=type(error)(str(error))).dump()


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())
