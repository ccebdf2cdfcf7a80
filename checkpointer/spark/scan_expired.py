"""Read the rows of a table that expire with a batch, on the executors.

They are rows of the last checkpoint that are due now, and rows that the batch itself wrote with a time that had passed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer.checkpoint.restore import explaining
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.manifests.model import Chain, CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.dataframes import run_tasks
from pyspark_checkpointer.spark.executors import parallelism
from pyspark_checkpointer.spark.scan import group_by_bytes, shown_columns, small_batches, task_numbers
from pyspark_checkpointer.spark.task_client import Root, TaskRoot
from pyspark_checkpointer.table.due_rows import due_rows, late_rows
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.version import TableVersion


@dataclass(frozen=True, slots=True)
class Written:
    """Hold a table as one call of a batch has left it.

    `kept` says how many artifacts of each partition that it changed were there before.
    """

    version: TableVersion
    kept: Mapping[int, int]

    @classmethod
    def on(cls, before: Mapping[int, Chain], version: TableVersion) -> "Written":
        """Return the artifacts written on the chains `before`."""
        kept = {}
        for partition, after in version.chains.items():
            old = before.get(partition, ())
            if after != old:
                kept[partition] = len(old) if after[: len(old)] == old else 0
        # No row of it is taken for expired.
        return cls(replace(version.only([*kept]), expired_until=None), kept)

    def only(self, partitions: Sequence[int]) -> "Written":
        """Return the artifacts written to some partitions."""
        return replace(self, version=self.version.only(partitions))

    def added(self) -> TableVersion:
        """Return the artifacts that were written, without those below them."""
        chains = {number: some[self.kept[number] :] for number, some in self.version.chains.items()}
        return replace(self.version, chains=chains)


@dataclass(frozen=True, slots=True)
class Due:
    """The rows of a table that expire with a batch.

    They are the rows whose time in a column is at most `limit`. `limit` is in microseconds since 1970. `before` is the
    table of the last checkpoint. `written` has the partitions to which calls of the batch may have written such rows.

    A row that is written too late expires with its call: later calls neither see it nor combine anything with it. The
    row is returned as that call wrote it. Later calls of the batch do not change it.
    """

    column: str
    limit: int
    before: TableVersion
    written: Sequence[Written]

    def sizes(self) -> dict[int, int]:
        """Return the stored bytes that each partition costs."""
        found = Counter(self.before.sizes())
        for one in self.written:
            found.update(one.version.sizes())
        return dict(found)


def find_due(
    rule: tuple[str, int],
    committed: TableVersion | None,
    written: Sequence[Written],
    version: TableVersion,
    may_be_due: Callable[[TableVersion, str, int], list[int]],
) -> Due:
    """Find the rows that expire with a batch that has made `version`.

    `written` is what the batch wrote to make it. `rule` has the column and the limit, and `may_be_due` tells which
    partitions may have such a row.
    """
    column, limit = rule
    # Nothing was due before the table was there, or before its column was.
    if committed is None or column not in committed.schema.names:
        before = replace(committed or version, schema=version.schema, chains={})
    elif version.schema.extends(committed.schema):
        before = replace(committed, schema=replace(version.schema, expire=committed.schema.expire))
    else:  # The batch has dropped columns. Those that it widened have the wider type here too.
        now = {c.id: c for one in [*(one.version for one in written), version] for c in one.schema.columns}
        columns = tuple(now.get(c.id, c) for c in committed.schema.columns)
        before = replace(committed, schema=replace(committed.schema, columns=columns))
    late = [
        one.only(may_be_due(added, column, limit))
        for one in written
        if column in (added := one.added()).schema.names and added.chains
    ]
    return Due(column, limit, before, [one for one in late if one.version.chains])


@dataclass(frozen=True, slots=True)
class ExpiredTask:
    """The task that reads expired rows in groups of partitions.

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
        before = due.before.only(group)
        reader = TableReader(session.store, session.host, before, self._needed(before), copies=self.root.copies())
        for partition in before.chains:
            find = partial(due_rows, reader, partition, due.column, due.limit)
            rows = run_sync(explaining(session, find, self.checkpoint))
            yield from small_batches(self._shown(rows, before))
        for written in due.written:
            version = written.version.only(group)
            late = TableReader(session.store, session.host, version, self._needed(version))
            # Deltas that the batch has put on top are read twice: once for their keys, and once with all others.
            added = {number: some[kept:] for number, some in version.chains.items() if (kept := written.kept[number])}
            deltas = [some[1:] for some in version.chains.values()]
            late.packs.expect(chain.from_iterable([*added.values(), *deltas]))
            for partition in version.chains:
                find = partial(late_rows, late, partition, added.get(partition), due.column, due.limit)
                rows = run_sync(explaining(session, find, self.checkpoint))
                yield from small_batches(self._shown(rows, version))

    def _needed(self, version: TableVersion) -> list[str]:
        """Return the columns to read."""
        return [name for name in dict.fromkeys([*self.columns, self.due.column]) if name in version.schema.names]

    def _shown(self, rows: pa.Table, version: TableVersion) -> pa.Table:
        """Return rows of a version in the columns of the last checkpoint.

        The batch may have dropped or widened some since, or made another column of the name.
        """
        wanted = self.due.before.schema
        ids = {column.id for column in version.schema.columns}
        shown = [column for name in self.columns for column in wanted.columns if column.name == name]
        schema = pa.schema([wanted.arrow().field(name) for name in self.columns])
        return pa.table(
            [
                rows[column.name].cast(field.type) if column.id in ids else pa.nulls(rows.num_rows, field.type)
                for column, field in zip(shown, schema, strict=True)
            ],
            schema=schema,
        )


def scan_expired(
    spark: SparkSession, client: Checkpointer, checkpoint: CheckpointId | None, due: Due, columns: Sequence[str] | None
) -> DataFrame:
    """Return the rows that expire with a batch, as a DataFrame."""
    shown = shown_columns(due.before, columns)
    root = TaskRoot.of(client, spark)
    groups = group_by_bytes(due.sizes(), parallelism(spark))
    task = ExpiredTask(root, checkpoint, due, groups, shown.fieldNames())
    # All of it may be due at once.
    size = due.before.memory_bytes + sum(written.version.memory_bytes for written in due.written)
    return run_tasks(task_numbers(spark, len(groups), size), task.run, shown)


__all__ = ["Due", "ExpiredTask", "find_due", "scan_expired"]
