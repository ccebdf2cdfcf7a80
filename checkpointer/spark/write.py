"""What tasks write for a table: changes of a batch, and shorter chains. Each task tells the driver what it wrote.

Only what a finished task told reaches the manifest. Whatever failed, repeated or speculative attempts wrote carries the
attempt's id and its own digest; nothing names it, and cleanup removes it.
"""

import pickle
from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from checkpointer.errors import IllegalArgumentError
from checkpointer.runtime import run_sync
from checkpointer.spark.tasks import TaskRoot
from checkpointer.table import merge
from checkpointer.table.hashing import check_partitions
from checkpointer.table.schema import CHANGE, MERGE, TableSchema
from checkpointer.table.version import Reader, Version
from checkpointer.table.write import SMALL_PARTITION, Writer, rewrite, split
from manifests.model import Artifact, Chain, CheckpointId

RESULT = StructType([StructField("written", BinaryType())])


@dataclass(slots=True)
class Written:
    """What one task wrote; `rows` are few enough for the driver to write, `refused` says why nothing was."""

    snapshots: dict[int, Artifact] = field(default_factory=dict)
    deltas: dict[int, Artifact] = field(default_factory=dict)
    chains: dict[int, Chain] = field(default_factory=dict)
    rows: bytes = b""
    refused: str = ""

    def dump(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"written": pa.array([pickle.dumps(self)], pa.binary())})

    @staticmethod
    def load(data: bytes) -> "Written":
        found: Written = pickle.loads(data)  # made by a task of this same job
        return found


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Writes the changes of a batch. `whole`: tasks have all the rows of their partitions, with nothing below them.

    How many tasks there are is known when they have run, but task k knows of k others: it hands at most
    `inline / (k + 1)` bytes to the driver. Together those are below eight times `inline` for up to 1,600 tasks.
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
            try:
                yield self._write(pa.Table.from_batches(found)).dump()
            except IllegalArgumentError as error:  # no failure of the task: another attempt would end alike
                yield Written(refused=str(error)).dump()

    def _write(self, given: pa.Table) -> Written:
        rows = self._changes(given)
        if self.schema.combines or self.change != MERGE:
            rows = merge.in_order(merge.consolidate(rows, self.schema, self.table), self.schema.key)
        else:
            rows = merge.in_order(rows, self.schema.key)
            merge.check_unique(rows, self.schema, self.table)
        check_partitions(rows, self.schema, self.partitions, self.table)
        context = TaskContext.get()
        assert context is not None
        if rows.nbytes <= self.inline // (context.partitionId() + 1):
            return Written(rows=_stream(rows))
        session = self.root.open()._session
        writer = Writer(session.store, session.host, self.owner, self.table, self.schema)
        written, small = Written(), [rows]
        if self.whole:
            small = []
            for partition, part in split(rows):
                if part.num_rows >= SMALL_PARTITION:
                    written.snapshots[partition] = run_sync(writer.snapshot(partition, part))
                else:
                    small.append(part)
        if small:
            written.deltas = run_sync(writer.pack(pa.concat_tables(small)))
        return written

    def _changes(self, given: pa.Table) -> pa.Table:
        """The rows in the columns of a delta; a deletion has nulls where values would be."""
        stored = self.schema.arrow_delta()
        columns = {name: given[name] for name in given.column_names}
        columns[CHANGE] = pa.repeat(pa.scalar(self.change, pa.int8()), given.num_rows)
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
    version: Version
    groups: list[list[int]]
    keep: dict[int, int]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        session = self.root.open()._session
        for batch in batches:
            for group in batch.column(0).to_pylist():
                partitions = self.groups[group]
                version = self.version.only(partitions)
                reader = Reader(session.store, session.host, version)
                writer = Writer(session.store, session.host, self.owner, version.name, version.schema)
                keep = {partition: self.keep[partition] for partition in partitions}
                yield Written(chains=run_sync(rewrite(reader, writer, version.chains, keep))).dump()


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return bytes(sink.getvalue())
