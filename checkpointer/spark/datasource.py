"""Implement the data source `spark.read.format("checkpointer")`.

It reads tables of live checkpoints, and views of a store.
"""

import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.errors import CheckpointNotFoundError, IllegalArgumentError, RetiredError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.spark.change_feed import ChangeFeed
from pyspark_checkpointer.spark.change_source import FeedSourceReader, FeedStreamReader
from pyspark_checkpointer.spark.dataframes import struct_of
from pyspark_checkpointer.spark.executors import own_version
from pyspark_checkpointer.spark.failure import explain_unanswered
from pyspark_checkpointer.spark.interpreter import offer
from pyspark_checkpointer.spark.read import version_of
from pyspark_checkpointer.spark.scan import batches_of, group_by_bytes, scan_tasks
from pyspark_checkpointer.spark.source_options import CHANGES, ReadRequest
from pyspark_checkpointer.spark.source_views import VIEWS, ViewSourceReader
from pyspark_checkpointer.spark.task_client import explain_elsewhere, refuse_other_version
from pyspark_checkpointer.spark.versions import variants_of
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.types import whole_variants
from pyspark_checkpointer.table.version import TableVersion


class CheckpointerSource(DataSource):
    """The data source `checkpointer` of Spark: tables and views of a root.

    Use `spark.read.format("checkpointer")`.

    Spark makes one source for each DataFrame or temporary view. It plans the scan at the first query, keeps that plan,
    and replaces it whenever it offers filters to the reader. So the source chooses the checkpoint of a table when it is
    made: then all scans of one DataFrame agree, whenever Spark plans them.

    The reader takes no filters, although Spark offers them (`pushFilters`). Spark uses the plan of the last filtered
    scan for all other scans of the same DataFrame, filtered or not. Rows that were pruned for one scan would be missing
    in the others.

    Args:
        options: Spark's options. `path` is the root. `operator` is the table to read, or `view` is "checkpoints",
            "artifacts" or "positions". `id`, `epoch` or `savepoint` choose a live checkpoint, by default the last one;
            `id` takes every form that `Checkpointer.restore` takes. `columns` are names, separated by commas.
            With both `operator` and the view "changes" it is the change feed of a table, between the checkpoints
            `after` and `to`, as `read_changes` returns it; `spark.readStream` follows the table from `after` on, and
            with a name as `follower` retention keeps what it has yet to read.
            `storage_options` is JSON. `fencing`, `encryption` and `signing` are as in `Checkpointer`.

    Examples:
        >>> spark.read.format("checkpointer").option("operator", "totals").load("state/shop").count()
        2
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._request = ReadRequest.of(options).pin()
        request = self._request
        self._feed = None
        if request.view == CHANGES:
            # Without its tasks: a stream that goes on does not need the changes that were there before it.
            self._feed = ChangeFeed.outline(request.client(), request.operator, request.to or "latest")

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark finds this data source."""
        return "checkpointer"

    def schema(self) -> StructType | str:
        """Return the columns of the table or view.

        Spark calls this.
        """
        if self._feed is not None:
            return self._feed.schema()
        if self._request.view is not None:
            return VIEWS[self._request.view][0]
        version = version_of(self._request.restore(), self._request.operator)
        return struct_of(version.schema.choose(version.name, self._request.columns or None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the table or view.

        Spark calls this.

        Args:
            schema: The columns, as `schema` returned them.
        """
        if self._feed is not None:
            self._check_columns(self._feed, schema)
            client, request = self._request.client(), self._request
            if request.follower is not None:
                raise IllegalArgumentError(
                    "option follower: is for a stream, which notes how far it has read: use readStream, or leave it out"
                )
            # Spark has these columns already: the feed alone may have narrower ones.
            feed = ChangeFeed.plan(client, request.operator, request.after, self._feed.to, self._feed.shown)
            return FeedSourceReader(client, feed)
        return (
            TableSourceReader(self._request, schema) if self._request.view is None else ViewSourceReader(self._request)
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """Return the reader of a stream of changes.

        Spark calls this.

        Args:
            schema: The columns, as `schema` returned them.

        Raises:
            IllegalArgumentError: The options do not ask for the changes of a table, or say where they end.
        """
        request = self._request
        if self._feed is None or request.to is not None:
            raise IllegalArgumentError(
                "readStream: only the changes of a table are a stream, and they have no end: say "
                "option('view', 'changes'), option('operator', …) and, if it shall not begin with the first "
                "checkpoint, option('after', …)"
            )
        self._check_columns(self._feed, schema)
        return FeedStreamReader(
            request.client(), request.operator, request.after, self._feed, request.follower, request.asked
        )

    def _check_columns(self, feed: ChangeFeed, schema: StructType) -> None:
        """Raise `IllegalArgumentError` for other columns than those of the feed.

        PySpark 4.0 takes columns by their places, whatever their names are.
        """
        # By name and type, as nullability varies between runs.
        own, asked = ([(field.name, field.dataType) for field in each.fields] for each in (feed.schema(), schema))
        if own != asked:
            raise IllegalArgumentError(
                f"table {self._request.operator!r}: its changes have the columns {feed.schema().simpleString()}, and "
                f"were asked for as {schema.simpleString()}: leave the schema out, and cast what was read"
            )


@dataclass
class PartitionRead(InputPartition):
    """Some partitions of the version that a scan is pinned to, for one task."""

    checkpoint: CheckpointId | None
    version: TableVersion
    partitions: list[int]
    driver_host: str
    driver_version: str


class TableSourceReader(DataSourceReader):
    """The planner of a scan of the checkpoint that the source chose.

    Tasks read only what was planned.
    """

    def __init__(self, request: ReadRequest, schema: StructType) -> None:
        self._request = request
        self._schema = schema
        self._columns = schema.fieldNames()

    def partitions(self) -> Sequence[InputPartition]:
        restored = self._restore()
        version = version_of(restored, self._request.operator)
        self._check_schema(version)
        sizes = version.sizes()
        # For no partitions PySpark would make one of its own, which `read` cannot understand.
        groups = group_by_bytes(sizes, scan_tasks(sum(sizes.values()))) or [[]]
        driver = socket.gethostname(), own_version()
        return [PartitionRead(restored.id, version.only(group), group, *driver) for group in groups]

    def _restore(self) -> Restored:
        try:
            return self._request.restore()
        except CheckpointNotFoundError:
            raise RetiredError(
                f"{self._request.root}: {self._request.checkpoint}, which this DataFrame or view was made of, was "
                "retired meanwhile: make it again"
            ) from None

    def _check_schema(self, version: TableVersion) -> None:
        """Raise `IllegalArgumentError` where the table has another schema.

        It must be the schema of `spark.read.schema(…)`.
        """
        # Compared by name and type alone, as nullability varies between runs.
        now = {field.name: field.dataType for field in struct_of(list(version.schema.columns))}
        for asked in self._schema:
            if now.get(asked.name) != asked.dataType:
                raise IllegalArgumentError(
                    f"table {version.name!r}: column {asked.name!r} was asked for as {asked.dataType.simpleString()}, "
                    f"but {self._request.checkpoint} has {version.schema}: leave the schema out, and cast what was read"
                )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, PartitionRead)
        refuse_other_version(partition.driver_version)
        client = self._request.client()
        session = client.session
        reader = TableReader(session.store, session.host, partition.version, self._columns)
        variants = variants_of(self._schema)
        with explain_unanswered(), explain_elsewhere(client, partition.driver_host):
            for number in partition.partitions:
                for batch in batches_of(session, partition.checkpoint, reader, number):
                    yield from whole_variants(pa.Table.from_batches([batch]), variants).to_batches()


offer(CheckpointerSource)

__all__ = ["CheckpointerSource"]
