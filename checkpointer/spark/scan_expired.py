"""Read the rows of a table that expire with a batch, on the executors.

rows of the last checkpoint that are due now, and rows that the batch itself wrote with a time that has passed
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer.checkpoint.restore import explaining
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.manifests.model import Chain, CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.dataframes import run_tasks
from pyspark_checkpointer.spark.scan import group_by_bytes, shown_columns, small_batches, task_numbers
from pyspark_checkpointer.spark.task_client import Root, TaskRoot
from pyspark_checkpointer.table.due_rows import due_rows, late_rows
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.version import TableVersion


@dataclass(frozen=True, slots=True)
class Due:
    """The rows of a table that expire with a batch: those whose time in a column is at most `limit`.

    `limit` is in microseconds since 1970. `before` is the table of the last checkpoint. `written` has the partitions in
    which the batch may have written such rows, and no row of it is taken for expired. `kept` says how many artifacts of
    each of them were there before.
    """

    column: str
    limit: int
    before: TableVersion
    written: TableVersion
    kept: Mapping[int, int]

    def sizes(self) -> dict[int, int]:
        """Return the stored bytes that each partition costs."""
        before, written = self.before.sizes(), self.written.sizes()
        return {number: before.get(number, 0) + written.get(number, 0) for number in {*before, *written}}


def find_due(
    rule: tuple[str, int],
    committed: TableVersion | None,
    opened: Mapping[int, Chain],
    version: TableVersion,
    may_be_due: Callable[[TableVersion, str, int], list[int]],
) -> Due:
    """Find out what expires with a batch that has made `version` on top of the chains `opened`.

    `rule` has the column and the limit, and `may_be_due` tells which partitions may have such a row.
    """
    column, limit = rule
    # Nothing was due before the table was there, or before its column was.
    if committed is None or column not in committed.schema.names:
        before = replace(committed or version, schema=version.schema, chains={})
    elif version.schema.extends(committed.schema):
        before = replace(committed, schema=replace(version.schema, expire=committed.schema.expire))
    else:
        before = committed
    kept = {}
    for partition, chain in version.chains.items():
        old = opened.get(partition, ())
        if chain != old:
            kept[partition] = len(old) if chain[: len(old)] == old else 0
    unlimited = replace(version, expired_until=None)
    added = replace(unlimited, chains={number: version.chains[number][count:] for number, count in kept.items()})
    late = may_be_due(added, column, limit) if added.chains else []
    return Due(column, limit, before, unlimited.only(late), kept)


@dataclass(frozen=True, slots=True)
class ExpiredTask:
    """The task that reads what expires in groups of partitions.

    `checkpoint` keeps the objects of the last checkpoint alive.
    """

    root: Root
    checkpoint: CheckpointId | None
    due: Due
    groups: list[list[int]]
    columns: list[str]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for group in batch.column(0).to_pylist():
                yield from self.read(self.groups[group])

    def read(self, group: Sequence[int]) -> Iterator[pa.RecordBatch]:
        session, due = self.root.open().session, self.due
        before, written = due.before.only(group), due.written.only(group)
        reader = TableReader(session.store, session.host, before, self._needed(before), copies=self.root.copies())
        found = [partial(due_rows, reader, partition, due.column, due.limit) for partition in before.chains]
        # Twice: once for the keys that the batch has written, and once for their rows.
        reads = dict.fromkeys(written.chains, 2)
        late = TableReader(session.store, session.host, written, self._needed(written), reads=reads)
        for partition, chain in written.chains.items():
            added = chain[due.kept[partition] :] if due.kept[partition] else None
            found.append(partial(late_rows, late, partition, added, due.column, due.limit))
        for find in found:
            yield from small_batches(self._shown(run_sync(explaining(session, self.checkpoint, find))))

    def _needed(self, version: TableVersion) -> list[str]:
        """Return the columns to read."""
        return [name for name in dict.fromkeys([*self.columns, self.due.column]) if name in version.schema.names]

    def _shown(self, rows: pa.Table) -> pa.Table:
        """Return rows in the columns of the last checkpoint: the batch may have dropped some, or made them anew."""
        schema = pa.schema([self.due.before.schema.arrow().field(name) for name in self.columns])
        return pa.table(
            [
                rows[field.name]
                if field.name in rows.column_names and rows[field.name].type == field.type
                # A column of another type is another column of this name.
                else pa.nulls(rows.num_rows, field.type)
                for field in schema
            ],
            schema=schema,
        )


def scan_expired(
    spark: SparkSession, client: Checkpointer, checkpoint: CheckpointId | None, due: Due, columns: Sequence[str] | None
) -> DataFrame:
    """Return the rows that expire with a batch, as a DataFrame."""
    shown = shown_columns(due.before, columns)
    groups = group_by_bytes(due.sizes(), spark.sparkContext.defaultParallelism)
    task = ExpiredTask(TaskRoot.of(client, spark), checkpoint, due, groups, shown.fieldNames())
    return run_tasks(task_numbers(spark, len(groups)), task.run, shown)


__all__ = ["Due", "ExpiredTask", "find_due", "scan_expired"]
