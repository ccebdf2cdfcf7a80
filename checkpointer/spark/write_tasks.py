"""What tasks write for a table: changes of a batch, and shorter chains. Each task tells the driver what it wrote.

Only what a finished task told reaches the manifest. Whatever failed, repeated or speculative attempts wrote carries the
attempt's id and its own digest; nothing names it, and cleanup removes it.
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

RESULT = StructType([StructField("written", BinaryType())])


@dataclass(slots=True)
class TaskOutput:
    """What one task wrote; `rows` are few enough for the driver to write, `refused` is why nothing was."""

    snapshots: dict[int, Artifact] = field(default_factory=dict)
    deltas: dict[int, Artifact] = field(default_factory=dict)
    chains: dict[int, Chain] = field(default_factory=dict)
    rows: bytes = b""
    refused: CheckpointError | None = None
    place: str = ""

    def first(self, owner: CheckpointId) -> Artifact | None:
        """Return one of the artifacts that this task wrote itself; None where it wrote none."""
        chains = (*self.snapshots.values(), *self.deltas.values(), *chain.from_iterable(self.chains.values()))
        return next(
            (found for found in chains if found.length and object_paths.parse_artifact(found.path).id == owner), None
        )

    def dump(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"written": pa.array([pickle.dumps(self)], pa.binary())})

    @staticmethod
    def load(data: bytes) -> "TaskOutput":
        found: TaskOutput = pickle.loads(data)  # noqa: S301  # made by a task of this same job
        return found


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes the changes of a batch. `whole`: tasks have all the rows of their partitions, with nothing below them.

    Columns of the schema that the rows do not have are kept: the rows say so, unless there is nothing below them.

    How many tasks there are is known when they have run, but task k knows of k others: it hands at most
    `inline / (k + 1)` bytes to the driver, so that what is below `inline` in all and evenly spread is never written by
    tasks. The most that the driver gets from 1,000 tasks is 7.5 times `inline`.
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
        found = [batch for batch in batches if batch.num_rows]
        if found:
            yield _tell(partial(self._write_all, pa.Table.from_batches(found)))

    def _write_all(self, given: pa.Table) -> TaskOutput:
        with large_rows.explaining(self.table):
            return self._write(given)

    def _write(self, given: pa.Table) -> TaskOutput:
        rows = self._changes(given)
        if self.schema.combines or self.change != MERGE:
            rows = row_order.in_order(merge.consolidate(rows, self.schema, self.table), self.schema.key)
        else:
            rows = row_order.in_order(rows, self.schema.key)
            row_order.check_unique(rows, self.schema, self.table)
        check_partitions(rows, self.schema, self.partitions, self.table)
        context = TaskContext.get()
        assert context is not None
        if rows.nbytes <= self.inline // (context.partitionId() + 1):
            return TaskOutput(rows=_stream(rows))
        session = self.root.open()._session
        writer = TableWriter(session.store, session.host, self.owner, self.table, self.schema)
        written, small = TaskOutput(place=self.root.place), [rows]
        if self.whole:
            small = []
            for partition, part in split(rows):
                if not is_small(part.num_rows, part.nbytes):
                    written.snapshots[partition] = run_sync(writer.snapshot(partition, part))
                else:
                    small.append(part)
        if small:
            written.deltas = run_sync(writer.pack(pa.concat_tables(small)))
        return written

    def _changes(self, given: pa.Table) -> pa.Table:
        """Return the rows in the columns of a delta, with nulls in those that they do not have."""
        columns = {name: given[name] for name in given.column_names}
        columns[CHANGE] = pa.repeat(pa.scalar(self.change, pa.int8()), given.num_rows)
        absent = [c.id for c in self.schema.values if c.role == "last" and c.name not in columns]
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
    """Shortens the chains of groups of partitions; `keep` says how many artifacts of each stay."""

    root: TaskRoot
    owner: CheckpointId
    version: TableVersion
    groups: list[list[int]]
    keep: dict[int, int]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group in batch.column(0).to_pylist():
                yield _tell(partial(self._compact, self.groups[group]))

    def _compact(self, partitions: list[int]) -> TaskOutput:
        session, version = self.root.open()._session, self.version.only(partitions)
        reader = TableReader(session.store, session.host, version)
        writer = TableWriter(session.store, session.host, self.owner, version.name, version.schema)
        keep = {partition: self.keep[partition] for partition in partitions}
        return TaskOutput(chains=run_sync(rewrite(reader, writer, version.chains, keep)), place=self.root.place)


def _tell(work: Callable[[], TaskOutput]) -> pa.RecordBatch:
    """Return what a task wrote, or why it may not: no failure of the task, as another attempt would end alike."""
    try:
        return work().dump()
    except (IllegalArgumentError, InvalidStateError) as error:
        return TaskOutput(refused=type(error)(str(error))).dump()


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())
