"""Read the changes of a table: inserts, updates, deletions and expired rows.

checkpoints after one and up to another → for each, the partitions that may differ from its parent → tasks → changes
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType

from pyspark_checkpointer.checkpoint.ancestry import read_ancestry, read_unbroken_ancestry
from pyspark_checkpointer.checkpoint.restore import explaining
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.errors import OperatorNotFoundError
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.dataframes import run_tasks, struct_of
from pyspark_checkpointer.spark.difference import free_name
from pyspark_checkpointer.spark.interpreter import use_driver_python
from pyspark_checkpointer.spark.read import Root
from pyspark_checkpointer.spark.scan import group_by_bytes, small_batches, task_numbers
from pyspark_checkpointer.spark.task_client import TaskRoot
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption
from pyspark_checkpointer.table.feed import ROW_CHANGE, FeedStep, feed_steps
from pyspark_checkpointer.table.feed_reader import FeedReader
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.shown_columns import newest_schema

TASK_BYTES = 8 << 20
"""Stored bytes for which a further task is started. A task may read several checkpoints that changed little."""

OWN_FIELDS = (
    StructField("checkpoint", StringType()),
    StructField("sequence", LongType()),
    StructField("epoch", LongType()),
    StructField("change", StringType()),
)
"""The columns that stand before those of the table."""


def read_changes(
    spark: SparkSession,
    root: Root,
    operator: str,
    *,
    after: CheckpointId | str | None = None,
    to: CheckpointId | str = "latest",
    storage_options: Mapping[str, Any] | None = None,
    fencing: Fencing = "required",
    encryption: EncryptionOption = None,
    signing: SigningOption = None,
) -> DataFrame:
    """Return the changes of a table after one checkpoint and up to another.

    The columns are `checkpoint` (its id), `sequence`, `epoch`, `change`, and those of the table. `change` is "insert",
    "update_before", "update_after", "delete" or "expire". An update is two rows, one after the other. If a column of
    the table has one of these names, the column of the feed gets an underscore: `change_`.

    The rows come in the order of the checkpoints. Within a checkpoint they are in order of partition and key. Where
    keys moved to other partitions, because the number of partitions changed or the key became wider, partitions that
    may have a key in common come together, in order of the key. If you apply the rows in that order to the table of
    `after`, or to an empty table without `after`, you get the table of `to`, in the columns of the feed. The DataFrame
    is pinned to these checkpoints.

    Its columns are those of the newest of them. A column of an older one is the same if it has the same name, also if
    it was dropped and added again since. Each has a type that holds its values in all of these checkpoints: after a
    rollback the older ones may have the wider type. A column that a checkpoint does not have is null there. Values
    whose type does not fit are null too, such as text in a column that is a number now. When such a value is removed,
    there is an update whose row before has null.

    Args:
        spark: The session.
        root: The root: a folder or a URL.
        operator: The name of the table.
        after: The checkpoint whose table is known already, in any form that `Checkpointer.restore` takes. Without it
            the feed begins with the first checkpoint.
        to: The last checkpoint of the feed, in the same forms.
        storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
        fencing: As in `Checkpointer`.
        encryption: As in `Checkpointer`.
        signing: As in `Checkpointer`.

    Raises:
        CheckpointNotFoundError: `after` or `to` is not live.
        RetiredError: Retention has deleted a checkpoint between them. The message names the oldest `after` that works.
        OperatorNotFoundError: None of the checkpoints has a table of this name.
        IllegalArgumentError: `to` was not made on top of `after`, or the key of the table changed between them.

    Examples:
        >>> feed = read_changes(spark, "state/shop", "totals")
        >>> feed.groupBy("sequence", "change").count().orderBy("sequence").collect()
        [Row(sequence=1, change='insert', count=2)]
    """
    use_driver_python(spark)
    client = Checkpointer(root, storage_options, fencing=fencing, encryption=encryption, signing=signing)
    feed = ChangeFeed.plan(client, operator, after, to)
    task = FeedTask(TaskRoot.of(client, spark), feed)
    return run_tasks(task_numbers(spark, len(feed.tasks), len(feed.tasks) * TASK_BYTES), task.run, feed.schema())


@dataclass(frozen=True, slots=True)
class ChangeFeed:
    """The steps of a feed up to a checkpoint, divided among tasks.

    They are in the order of the rows.
    """

    to: CheckpointId
    shown: TableSchema
    tasks: list[list[FeedStep]]

    @classmethod
    def plan(
        cls,
        client: Checkpointer,
        operator: str,
        after: CheckpointId | str | None,
        to: CheckpointId | str,
        shown: TableSchema | None = None,
    ) -> "ChangeFeed":
        """Plan the feed of a table, with the columns of a schema.

        By default the columns are those of the checkpoints of the feed. Raises what `read_changes` raises.
        """
        return FeedRange.of(client, operator, after, to).feed(shown)

    @classmethod
    def outline(cls, client: Checkpointer, operator: str, to: CheckpointId | str) -> "ChangeFeed":
        """Return a feed up to a checkpoint that has no tasks, for its end and its columns.

        The columns hold the values of all live ancestors of the checkpoint, since a stream may continue from any of
        them. The feed can be made even if retention has deleted the beginning of the history.
        """
        ancestry = run_sync(read_unbroken_ancestry(client.session, None, CheckpointSelector.parse(to)))
        shown = newest_schema(operator, None, ancestry)
        if shown is None:
            raise _no_table(operator, ancestry[-1])
        return cls(ancestry[-1].id, shown, [])

    def schema(self) -> StructType:
        """Return the columns of the feed."""
        columns = list(self.shown.columns)
        own = [StructField(free_name(field.name, self.shown.names), field.dataType) for field in OWN_FIELDS]
        return StructType([*own, *struct_of(columns).fields])

    def read(self, client: Checkpointer, task: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        session = client.session
        for step in self.tasks[task]:
            reader = FeedReader(session.store, session.host, step, self.shown)
            for group in step.groups:
                found = run_sync(explaining(session, partial(reader.changes, group), step.checkpoint, step.parent))
                yield from small_batches(self._with_own(step, found))

    def _with_own(self, step: FeedStep, found: pa.Table) -> pa.Table:
        values = (str(step.checkpoint), step.checkpoint.sequence, step.epoch)
        kinds = (pa.string(), pa.int64(), pa.int64())
        own = [pa.repeat(pa.scalar(v, kind), found.num_rows) for v, kind in zip(values, kinds, strict=True)]
        arrays = [*own, found[ROW_CHANGE], *found.select(self.shown.names).columns]
        return pa.table(arrays, names=self.schema().fieldNames())


@dataclass(frozen=True, slots=True)
class FeedRange:
    """The checkpoints of a feed, and its own schema.

    The schema is None where no checkpoint has the table.
    """

    operator: str
    parent: Manifest | None
    manifests: list[Manifest]
    newest: TableSchema | None

    @classmethod
    def of(
        cls, client: Checkpointer, operator: str, after: CheckpointId | str | None, to: CheckpointId | str
    ) -> "FeedRange":
        """Read the checkpoints after one and up to another.

        Raises what `read_changes` raises.
        """
        start = None if after is None else CheckpointSelector.parse(after)
        parent, manifests = run_sync(read_ancestry(client.session, start, CheckpointSelector.parse(to)))
        return cls(operator, parent, manifests, newest_schema(operator, parent, manifests))

    @property
    def last(self) -> Manifest:
        """Return the last checkpoint."""
        last = self.manifests[-1] if self.manifests else self.parent
        assert last is not None, "no checkpoint, though `to` is one"
        return last

    def feed(self, shown: TableSchema | None = None) -> ChangeFeed:
        """Return the feed, with its own columns or those of a schema.

        With a schema that is known, there is nothing to read while the table is dropped.
        """
        shown = shown or self.newest
        if shown is None:
            raise _no_table(self.operator, self.last)
        steps = feed_steps(self.operator, self.parent, self.manifests, shown)
        return ChangeFeed(self.last.id, shown, list(_tasks(steps)))


def _no_table(operator: str, last: Manifest) -> OperatorNotFoundError:
    names = ", ".join(sorted(last.operators)) or "none"
    return OperatorNotFoundError(f"operator {operator!r}: {last.id} has {names}")


@dataclass(frozen=True, slots=True)
class FeedTask:
    """The task that reads its part of a feed."""

    root: TaskRoot
    feed: ChangeFeed

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self.feed.read(self.root.open(), number)


def _tasks(steps: Iterator[FeedStep]) -> Iterator[list[FeedStep]]:
    """Divide steps among tasks.

    A large step goes to several tasks, and one task takes several small steps.
    """
    held: list[FeedStep] = []
    size = 0
    for step in steps:
        sizes = step.sizes()
        for numbers in group_by_bytes(sizes, math.ceil(sum(sizes.values()) / TASK_BYTES)):
            more = sum(sizes[number] for number in numbers)
            if held and size + more > TASK_BYTES:
                yield held
                held, size = [], 0
            held.append(step.only([step.groups[number] for number in numbers]))
            size += more
    if held:
        yield held


__all__ = ["ChangeFeed", "FeedRange", "read_changes"]
