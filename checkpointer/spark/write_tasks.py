"""Write a table in tasks on executors.

The tasks write the changes of a batch, and shorter chains.

Only what a finished task returned to the driver reaches the manifest. Objects of failed, repeated or speculative task
attempts carry the checkpoint's id and another digest; no manifest names them, and cleanup removes them.
"""

import pickle
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.types import BinaryType, StructField, StructType

from pyspark_checkpointer.checkpoint.restore import explaining
from pyspark_checkpointer.compaction import is_small_partition
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Artifact, Chain, CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.scan import read_keys
from pyspark_checkpointer.spark.task_client import DriverRoot, Root, TaskRoot
from pyspark_checkpointer.table import kept_columns, large_rows, merge, row_order
from pyspark_checkpointer.table.combine import SumOverflowError
from pyspark_checkpointer.table.compact import compact_chains
from pyspark_checkpointer.table.due_rows import may_be_due
from pyspark_checkpointer.table.expiry import is_expired
from pyspark_checkpointer.table.hashing import check_row_partitions
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.row_order import split_partitions
from pyspark_checkpointer.table.schema import CHANGE, KEPT, MERGE, PARTITION, TableSchema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter

OUTPUT_SCHEMA = StructType([StructField("written", BinaryType())])


@dataclass(slots=True)
class TaskOutput:
    """The result of one task, for the driver.

    A task wrote `snapshots`, by partition, `packs` of deltas, each by partition and in their order, or the compacted
    `chains`. If the rows are few, it leaves them to the driver in `rows`, as an Arrow stream. `emitted` are the rows
    that a user's function emitted: streams, or paths of Parquet objects. `applied` are the partitions of which the
    function got all rows. No other task may have rows of these. `refused` says why the task wrote nothing. `written_by`
    names the executor. `given_rows` and `given_bytes` are the size of the task's rows. `seconds` is the time of a
    user's function and of the work around it, and `surroundings` says what the function found around it.
    """

    snapshots: dict[int, Artifact] = field(default_factory=dict)
    packs: list[dict[int, Artifact]] = field(default_factory=list)
    chains: dict[int, Chain] = field(default_factory=dict)
    rows: bytes = b""
    emitted: list[bytes | str] = field(default_factory=list)
    applied: set[int] = field(default_factory=set)
    refused: CheckpointError | None = None
    written_by: str = ""
    given_rows: int = 0
    given_bytes: int = 0
    seconds: float = 0.0
    surroundings: str = ""

    def first(self, owner: CheckpointId) -> Artifact | None:
        """Return an artifact that this task wrote itself, or None.

        A compacted chain has older artifacts too.
        """
        deltas = (delta for pack in self.packs for delta in pack.values())
        artifacts = (*self.snapshots.values(), *deltas, *chain.from_iterable(self.chains.values()))
        # An empty snapshot has no bytes, so reading it would not prove that the driver sees the same store.
        return next(
            (found for found in artifacts if found.length and object_paths.parse_artifact(found.path).id == owner), None
        )

    @property
    def has_changes(self) -> bool:
        """Return whether there are changes, of which the partitions were checked."""
        return bool(self.snapshots or self.packs or self.rows)

    def raise_refused(self) -> None:
        """Raise the error by which the task refused its work.

        The error comes back as a value, since Spark would repeat a task that raises it.
        """
        if self.refused is not None:
            raise self.refused

    def dump(self) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({"written": pa.array([pickle.dumps(self)], pa.binary())})

    @staticmethod
    def load(data: bytes) -> "TaskOutput":
        found: TaskOutput = pickle.loads(data)  # noqa: S301  # made by a task of this same job
        return found


@dataclass(frozen=True, slots=True)
class Target:
    """The table that the tasks of a batch write.

    It also says how much they leave to the driver. Task k hands at most `inline / (k + 1)` bytes of rows to the driver,
    and writes the rest itself. A task knows its number, but not how many tasks there are. So evenly spread changes of
    fewer than `inline` bytes in all are never written by tasks, and of 1,000 tasks the driver gets at most 7.5 times
    `inline`.
    """

    root: Root
    owner: CheckpointId
    table: str
    schema: TableSchema
    partitions: int
    inline: int

    def leaves_to_driver(self, size: int) -> bool:
        """Return whether this task leaves rows of `size` bytes to the driver."""
        context = TaskContext.get()
        number = 0 if context is None else context.partitionId()  # There is none where the driver does the work.
        return size <= self.inline // (number + 1)

    def write(self, rows: pa.Table, whole: Collection[int], into: TaskOutput) -> None:
        """Write changes, in order of partition and key, with one change for each key.

        `whole` has the partitions of which these are all rows, with nothing below. A snapshot of such a partition has
        no deletions.
        """
        # Before anything is written: in a wrong partition no reader would find the row.
        check_row_partitions(rows, self.schema, self.partitions, self.table)
        session = self.root.open().session
        writer = TableWriter(session.store, session.host, self.owner, self.table, self.schema)
        into.written_by = self.root.executor
        if not whole:
            into.packs.append(run_sync(writer.pack(rows)))
            return
        small = []
        for partition, part in split_partitions(rows):
            # Small partitions share a pack, so that a table of many small ones does not cost an object each.
            if partition in whole and not is_small_partition(part.num_rows, part.nbytes):
                into.snapshots[partition] = run_sync(writer.snapshot(partition, part))
            else:
                small.append(part)
        if small:
            into.packs.append(run_sync(writer.pack(pa.concat_tables(small))))


@dataclass(frozen=True, slots=True)
class ExpiredRows:
    """The expired rows below the changes of a task.

    They are expired by the job's clock, in a version of the table. `checkpoint` keeps its objects alive.
    """

    checkpoint: CheckpointId | None
    version: TableVersion

    def begin_anew(self, rows: pa.Table, root: Root) -> pa.Table:
        """Return changes that begin a row anew where the row of their key is expired."""
        rule, limit, key = self.version.schema.expire, self.version.expired_until, self.version.schema.key
        assert rule is not None
        assert limit is not None
        session, version = root.open().session, self.version.only(rows[PARTITION].unique().to_pylist())
        reader = TableReader(session.store, session.host, version, key)
        due = run_sync(explaining(session, partial(may_be_due, reader, rule.column, limit), self.checkpoint))
        if not due:  # Mostly. The bounds of the times alone are read then.
            return rows
        keys = rows.filter(pc.is_in(rows[PARTITION], pa.array(due, pa.int32())))
        # Without a limit, expired rows are read too.
        unlimited, columns = replace(version, expired_until=None), [*dict.fromkeys([*key, rule.column])]
        found = pa.concat_tables(read_keys(root, self.checkpoint, unlimited, keys, columns))
        expired = found.filter(is_expired(found[rule.column], limit))
        return merge.reset(rows, merge.row_positions(rows, expired, key) >= 0)


@dataclass(frozen=True, slots=True)
class WriteTask:
    """Write rows as changes of one kind.

    With `whole`, the tasks have all rows of their partitions, and nothing is below them. Without it, columns of the
    schema that the rows do not have keep their values, and the changes say so in column `__kept`. With `expired`, rows
    below may be expired, and the tasks have all rows of a key.
    """

    target: Target
    change: int
    whole: bool
    expired: ExpiredRows | None = None

    @property
    def reads(self) -> TableVersion | None:
        """Return the version below the rows, if the task reads it."""
        return None if self.expired is None else self.expired.version

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # All rows of the task at once: rows of one key may come in different batches.
        found = [batch for batch in batches if batch.num_rows]
        if found:
            yield run_task(partial(self._write_all, found))

    def in_driver(self, root: DriverRoot) -> "WriteTask":
        """Return the task as it works in the driver."""
        return replace(self, target=replace(self.target, root=root))

    def _write_all(self, given: list[pa.RecordBatch]) -> TaskOutput:
        """Write the rows, and empty the list of them."""
        self.target.root.open()  # Few rows need no client, and another version must not return them either.
        size = sum(batch.nbytes for batch in given)
        count = sum(batch.num_rows for batch in given)
        with large_rows.explain_arrow_errors(self.target.table):
            output = self._write(given)
        output.given_rows, output.given_bytes = count, size
        return output

    def _write(self, given: list[pa.RecordBatch]) -> TaskOutput:
        """Fold and sort the rows, and write them.

        Few rows are left to the driver instead.
        """
        schema, table = self.target.schema, self.target.table
        # In order of partition and key, as a pack has to be. Nobody holds the changes in their first order: they are
        # freed before the rows are encoded.
        rows = row_order.in_order(self._changes(given), schema.key)
        if schema.combines or self.change != MERGE:
            # Deletions, and rows that are combined, have no order, so those of one key become one. Mostly each key has
            # one row, and to see that takes a small part of the time of grouping them.
            if not row_order.is_strictly_ascending(rows, [PARTITION, *schema.key]):
                rows = row_order.in_order(merge.fold_changes(rows, schema, table), schema.key)
        else:
            # Rows that replace each other have no order in a batch: nothing says which row of a key is the newer one.
            row_order.check_unique(rows, schema, table)
        if self.expired is not None:
            rows = self.expired.begin_anew(rows, self.target.root)
        if self.target.leaves_to_driver(rows.nbytes):
            check_row_partitions(rows, schema, self.target.partitions, table)
            return TaskOutput(rows=stream(rows))
        output = TaskOutput()
        self.target.write(rows, range(self.target.partitions) if self.whole else (), output)
        return output

    def _changes(self, batches: list[pa.RecordBatch]) -> pa.Table:
        """Return the rows as changes, with nulls in the columns that they do not have.

        The list of batches is empty afterwards.
        """
        given = pa.Table.from_batches(batches)
        batches.clear()
        columns = {name: given[name] for name in given.column_names}
        columns[CHANGE] = pa.repeat(pa.scalar(self.change, pa.int8()), given.num_rows)
        schema = self.target.schema
        absent = [c.id for c in schema.values if c.role == "last" and c.name not in columns]
        # Only rows that merge can keep something (SPEC, Tables), and below a whole partition there is nothing.
        keeps = bool(absent) and self.change == MERGE and not self.whole
        if keeps:
            columns[KEPT] = pa.repeat(pa.scalar(kept_columns.text_of(absent), pa.string()), given.num_rows)
        stored = schema.arrow_delta(kept=keeps)
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
                yield run_task(partial(self._compact, self.groups[group]))

    def _compact(self, partitions: list[int]) -> TaskOutput:
        session, version = self.root.open().session, self.version.only(partitions)
        reader = TableReader(session.store, session.host, version)
        writer = TableWriter(session.store, session.host, self.owner, version.name, version.schema)
        keep = {partition: self.keep[partition] for partition in partitions}
        return TaskOutput(
            chains=run_sync(compact_chains(reader, writer, version.chains, keep)), written_by=self.root.executor
        )


def run_task(work: Callable[[], TaskOutput]) -> pa.RecordBatch:
    """Return what a task wrote, or the error that refused it.

    Such an error does not fail the task. Spark would run a failed task again, and it would be refused again. And the
    callback would see an error of Spark's, and not this one.
    """
    try:
        return work().dump()
    except (IllegalArgumentError, InvalidStateError) as error:
        kind = InvalidStateError if isinstance(error, SumOverflowError) else type(error)
        return TaskOutput(refused=kind(str(error))).dump()


def stream(rows: pa.Table, most: int | None = None) -> bytes:
    """Return rows as an Arrow stream, of batches of at most `most` rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as target:
        target.write_table(rows, most)
    return bytes(sink.getvalue())
