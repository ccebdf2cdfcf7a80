"""Read a version of a table on the executors.

Each task verifies and merges some partitions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_checkpointer.checkpoint.restore import explaining
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.arguments import check_names
from pyspark_checkpointer.spark.dataframes import keys_of, map_batches, rows_of, run_tasks, struct_of
from pyspark_checkpointer.spark.executors import parallelism
from pyspark_checkpointer.spark.task_client import Root, TaskRoot
from pyspark_checkpointer.table import large_rows
from pyspark_checkpointer.table.hashing import check_row_partitions
from pyspark_checkpointer.table.lookup_steps import lookup_steps
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.row_order import in_order, split_partitions
from pyspark_checkpointer.table.schema import PARTITION
from pyspark_checkpointer.table.version import TableVersion

READ_TASK_BYTES = 32 << 20
"""Stored bytes that one task reads, unless one partition has more."""

MAX_SCAN_TASKS = 32
"""The most tasks of a scan by the data source, unless there are very many bytes.

It does not know how many tasks the session can run at once.
"""

SCAN_TASK_BYTES = 1 << 20
"""Stored bytes for which a further task is started: reading fewer takes less time than starting one."""

BYTES_OF_NUMBER = 8
"""The bytes that Spark counts for a row with a number."""

MAX_ESTIMATE = 16 << 30
"""The largest size that Spark is told of a table, in bytes. Half of it is the most that Spark can broadcast.

To count so far takes a second or two, divided among the tasks, and to read as much takes minutes.
"""

MAX_BATCH_ROWS = 65_536
MAX_BATCH_BYTES = 64 << 20
"""The most rows and bytes of a batch that is handed to Spark.

Spark holds at most 2 GiB for a column of a batch.
"""


@dataclass(frozen=True, slots=True)
class ReadTask:
    """The task that reads groups of partitions of one version.

    `checkpoint` is the checkpoint that keeps the objects of this version alive.
    """

    root: TaskRoot
    checkpoint: CheckpointId | None
    version: TableVersion
    groups: list[list[int]]
    columns: list[str] | None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group in batch.column(0).to_pylist():
                yield from self.read(group)

    def read(self, group: int) -> Iterator[pa.RecordBatch]:
        # The reader is made for the partitions of this group alone, so that packs are dropped once these are read.
        session = self.root.open().session
        version = self.version.only(self.groups[group])
        reader = TableReader(session.store, session.host, version, self.columns)
        for partition in self.groups[group]:
            yield from batches_of(session, self.checkpoint, reader, partition)


def batches_of(
    session: Session, checkpoint: CheckpointId | None, reader: TableReader, partition: int
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition in batches that Spark can take.

    The rows are read and merged a piece at a time.
    """
    pieces = reader.pieces(partition)
    while (rows := run_sync(explaining(session, lambda: anext(pieces, None), checkpoint))) is not None:
        yield from small_batches(rows)
        del rows  # before the next piece is decoded


def small_batches(rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield rows in batches that Spark can take."""
    for part in large_rows.slices(rows, MAX_BATCH_ROWS, MAX_BATCH_BYTES):
        yield from part.to_batches()


def scan(
    spark: SparkSession,
    client: Checkpointer,
    checkpoint: CheckpointId | None,
    version: TableVersion,
    columns: Sequence[str] | None = None,
    partitions: Sequence[int] | None = None,
) -> DataFrame:
    """Return the rows of a version, or of some partitions, as a DataFrame.

    The DataFrame is pinned to that version.
    """
    shown = shown_columns(version, columns)
    read = version if partitions is None else version.only(partitions)
    # Only the numbers of groups are rows, so Spark has nothing to move. The version goes along with the task.
    root = TaskRoot.of(client, spark)
    groups = group_by_bytes(read.sizes(), parallelism(spark))
    task = ReadTask(root, checkpoint, version, groups, None if columns is None else list(columns))
    return run_tasks(task_numbers(spark, len(groups), read.memory_bytes), task.run, shown)


def task_numbers(spark: SparkSession, tasks: int, size: int = 0) -> DataFrame:
    """Return the numbers of some tasks as rows.

    Each partition of the DataFrame has one row. `size` is about how many bytes of rows the tasks return.
    """
    # Spark takes the rows of the tasks for as large as these numbers. It would broadcast a table of any size in a join,
    # and so collect all of it in the driver. So the numbers come from a range of that size, or of half of it: with
    # powers of two Spark seldom has to compile the filter anew.
    bits = max(min(size, MAX_ESTIMATE) // (BYTES_OF_NUMBER * max(tasks, 1)), 1).bit_length() - 1
    # Spark refuses a range of no partitions.
    numbers = spark.range(0, tasks << bits, 1, max(tasks, 1))
    if not bits:
        return numbers
    return numbers.where(f"(id & {(1 << bits) - 1}) = 0").selectExpr(f"shiftright(id, {bits}) AS id")


def group_by_bytes(sizes: Mapping[int, int], tasks: int) -> list[list[int]]:
    """Group partitions, in order, so that each group has about the same bytes.

    There are as many groups as `tasks`, and more where a task would read more than about `READ_TASK_BYTES`.
    """
    # A partition of no bytes still costs something, and the total must not be 0.
    weights = {partition: max(sizes[partition], 1) for partition in sorted(sizes)}
    total, before = sum(weights.values()), 0
    count = max(min(tasks, len(weights)), math.ceil(total / READ_TASK_BYTES))
    groups: dict[int, list[int]] = {}
    for partition, weight in weights.items():
        # The group of a partition is the one in which the middle of its bytes lies.
        groups.setdefault(count * (2 * before + weight) // (2 * total), []).append(partition)
        before += weight
    return list(groups.values())


def scan_tasks(size: int) -> int:
    """Return how many tasks a scan of `size` stored bytes is worth."""
    return min(MAX_SCAN_TASKS, 1 + size // SCAN_TASK_BYTES)


def lookup(
    spark: SparkSession,
    client: Checkpointer,
    checkpoint: CheckpointId | None,
    version: TableVersion,
    keys: DataFrame,
    columns: Sequence[str] | None = None,
) -> DataFrame:
    """Return the rows with these keys.

    A shuffle brings each key to a task, together with the other keys of its partition.
    """
    schema, shown = version.schema, shown_columns(version, columns)
    wanted = rows_of(keys_of(version.name, keys, schema), schema, version.partitions).distinct()
    task = LookupTask(TaskRoot.of(client, spark), checkpoint, version, None if columns is None else list(columns))
    return map_batches(wanted.repartition(PARTITION), task.run, shown)


@dataclass(frozen=True, slots=True)
class LookupTask:
    """The task that reads the rows of given keys.

    Each key comes with its partition.
    """

    root: TaskRoot
    checkpoint: CheckpointId | None
    version: TableVersion
    columns: list[str] | None

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # All keys of a task are sought together, so that an object that partitions share is fetched once.
        found = [batch for batch in batches if batch.num_rows]
        if found:
            self.root.open()  # It refuses another version, before that is confused by what it does not know.
            version = self.version
            keys = in_order(pa.Table.from_batches(found), version.schema.key)
            # In another partition than theirs, all of them would look as if the table had none.
            check_row_partitions(keys, version.schema, version.partitions, version.name)
            for rows in read_keys(self.root, self.checkpoint, self.version, keys, self.columns):
                yield from small_batches(rows)


def read_keys(
    root: Root,
    checkpoint: CheckpointId | None,
    version: TableVersion,
    keys: pa.Table,
    columns: list[str] | None = None,
) -> Iterator[pa.Table]:
    """Yield the rows of some keys, those of several partitions together.

    `keys` has the key columns and the partitions of the keys, in order of these.
    """
    session = root.open().session
    key = version.schema.key
    sought = keys.select(key).cast(pa.schema([version.schema.arrow().field(name) for name in key]))
    of_partition = dict(split_partitions(sought.append_column(PARTITION, keys[PARTITION])))
    steps, reads = lookup_steps(version, {partition: part.select(key) for partition, part in of_partition.items()})
    read = version.only(list(reads))
    reader = TableReader(session.store, session.host, read, columns, sought, root.copies(), reads)
    for step in steps:
        yield run_sync(explaining(session, partial(reader.rows_of, step), checkpoint))


def shown_columns(version: TableVersion, columns: Sequence[str] | None) -> StructType:
    """Return the schema of the rows that are read.

    It has all columns, or those asked for in the order asked for.
    """
    if columns is not None:
        check_names(f"table {version.name!r}: columns", columns)
    return struct_of(version.schema.choose(version.name, columns))


__all__ = [
    "LookupTask",
    "ReadTask",
    "group_by_bytes",
    "lookup",
    "read_keys",
    "scan",
    "scan_tasks",
    "shown_columns",
    "small_batches",
    "task_numbers",
]
