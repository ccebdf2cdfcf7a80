"""Read a change feed as a data source of Spark: once, or as a stream that follows a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from pyspark_checkpointer.checkpoint.ancestry import read_live_ancestry
from pyspark_checkpointer.checkpoint.resolve import LATEST, CheckpointSelector, find
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.errors import CheckpointNotFoundError, IllegalArgumentError, RetiredError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.change_feed import ChangeFeed
from pyspark_checkpointer.table.types import whole_variants


@dataclass
class FeedPartition(InputPartition):
    """The part of a feed that one task reads."""

    feed: ChangeFeed


def partitions_of(feed: ChangeFeed) -> list[InputPartition]:
    """Return the parts of a feed, in the order of its rows."""
    # For no partitions PySpark would make one of its own, which `read_part` cannot understand.
    return [FeedPartition(replace(feed, tasks=[task])) for task in feed.tasks or [[]]]


def read_part(client: Checkpointer, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one part."""
    assert isinstance(partition, FeedPartition)
    for batch in partition.feed.read(client, 0):
        yield from whole_variants(pa.Table.from_batches([batch])).to_batches()


class FeedSourceReader(DataSourceReader):
    """The reader of a feed between two checkpoints."""

    def __init__(self, client: Checkpointer, feed: ChangeFeed) -> None:
        self._client = client
        self._feed = feed

    def partitions(self) -> Sequence[InputPartition]:
        return partitions_of(self._feed)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_part(self._client, partition)


class FeedStreamReader(DataSourceStreamReader):
    """The reader of the changes of a table, batch by batch.

    An offset names the checkpoint up to which the changes were read, so that a batch that Spark repeats has the same
    rows. The columns are those of `known`, the feed at the time when the query began.
    """

    def __init__(self, client: Checkpointer, operator: str, after: str | None, known: ChangeFeed) -> None:
        self._client = client
        self._operator = operator
        self._after = after
        self._known = known

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        if self._after is None:
            return {"checkpoint": ""}
        selector = CheckpointSelector.parse(self._after)
        return {"checkpoint": str(run_sync(find(self._client.copy().session, selector)))}

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, str]:  # noqa: N802
        # PySpark before 4.2 gives no arguments.
        latest = self._client.copy().read_latest()
        assert latest is not None, "a store never goes back to nothing, and there was a table"
        return {"checkpoint": str(latest)}

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        if start == end:
            return partitions_of(self._known)
        shown = self._known.shown
        feed = self._plan(start["checkpoint"] or None, end["checkpoint"])
        # What is older is shown in the columns of today, as in any feed.
        if feed.to.sequence > self._known.to.sequence and feed.newest.columns != shown.columns:
            raise IllegalArgumentError(
                f"table {self._operator!r}: its columns are {feed.newest} now, and were {shown} when this query began: "
                "start the query again, with the same checkpointLocation: it goes on with the new columns"
            )
        return partitions_of(feed)

    def _plan(self, after: str | None, to: str) -> ChangeFeed:
        client = self._client.copy()
        try:
            return ChangeFeed.plan(client, self._operator, after, to, self._known.shown)
        except CheckpointNotFoundError as error:
            parent, manifests = run_sync(read_live_ancestry(client.session, None, CheckpointSelector(LATEST)))
            oldest = str((parent or manifests[0]).id)
            raise RetiredError(
                f"{error}, though this stream goes on from there: retention or a repair has deleted it. Begin again, "
                f"with a new checkpointLocation: read_state(…, id={oldest!r}) has the rows until then, and "
                f"option('after', {oldest!r}) the changes since"
            ) from None

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_part(self._client, partition)


__all__ = ["FeedSourceReader", "FeedStreamReader"]
