"""Read a change feed as a data source of Spark.

It is read once, or as a stream that follows a table.
"""

import logging
import shlex
import socket
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition

from pyspark_checkpointer.admin import followers
from pyspark_checkpointer.checkpoint.ancestry import read_live_ancestry, read_unbroken_ancestry
from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import LATEST, PREPARED, CheckpointSelector
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.errors import CheckpointError, CheckpointNotFoundError, IllegalArgumentError, RetiredError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.change_feed import ChangeFeed, FeedRange
from pyspark_checkpointer.spark.executors import own_version
from pyspark_checkpointer.spark.failure import explain_unanswered
from pyspark_checkpointer.spark.task_client import explain_elsewhere, refuse_other_version
from pyspark_checkpointer.spark.versions import variants_of
from pyspark_checkpointer.table.shown_columns import has_columns, key_columns_change, newest_schema
from pyspark_checkpointer.table.types import whole_variants

logger = logging.getLogger("pyspark_checkpointer")


@dataclass
class FeedPartition(InputPartition):
    """The part of a feed that one task reads."""

    feed: ChangeFeed
    driver_host: str
    driver_version: str


def input_partitions(feed: ChangeFeed) -> list[InputPartition]:
    """Return the parts of a feed, in the order of its rows."""
    # For no partitions PySpark would make one of its own, which `read_part` cannot understand.
    driver = socket.gethostname(), own_version()
    return [FeedPartition(replace(feed, tasks=[task]), *driver) for task in feed.tasks or [[]]]


def read_part(client: Checkpointer, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one part."""
    assert isinstance(partition, FeedPartition)
    refuse_other_version(partition.driver_version)
    variants = variants_of(partition.feed.schema())
    with explain_unanswered(), explain_elsewhere(client, partition.driver_host):
        for batch in partition.feed.read(client, 0):
            yield from whole_variants(pa.Table.from_batches([batch]), variants).to_batches()


class FeedSourceReader(DataSourceReader):
    """The reader of a feed between two checkpoints."""

    def __init__(self, client: Checkpointer, feed: ChangeFeed) -> None:
        self._client = client
        self._feed = feed

    def partitions(self) -> Sequence[InputPartition]:
        return input_partitions(self._feed)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_part(self._client, partition)


class FeedStreamReader(DataSourceStreamReader):
    """The reader of the changes of a table, batch by batch.

    An offset names the checkpoint up to which the changes were read, so that a batch that Spark repeats has the same
    rows. The columns are those of `known`, the feed at the time when the query began. With the name of a `follower`,
    retention keeps what was not read yet.
    """

    def __init__(
        self,
        client: Checkpointer,
        operator: str,
        after: str | None,
        known: ChangeFeed,
        follower: str | None = None,
        asked: str | None = None,
    ) -> None:
        self._client = client
        self._operator = operator
        self._after = after
        self._asked = asked
        """`after` as the user has given it, where it is an id by now."""
        self._known = known
        self._follower = follower
        self._is_registered = False
        self._is_held = False
        self._held: followers.Move | None = None
        """The move that `_hold` made; None if it made none."""

    def initialOffset(self) -> dict[str, str]:  # noqa: N802
        selector = None if self._after is None else CheckpointSelector.parse(self._after)
        after = None if selector is None else run_sync(find(self._client.session, selector))
        # Spark asks again where the first batch was not committed, and has noted nothing but the end of that batch. An
        # epoch may have been written again since, after a rollback or by hand. A savepoint moves only if a user deletes
        # it and makes another one of its name.
        if self._asked is not None and CheckpointSelector.parse(self._asked).kind in (LATEST, PREPARED, "at", "epoch"):
            raise IllegalArgumentError(
                f"option after: {self._asked!r} may be another checkpoint when the query is started again and Spark "
                f"repeats its first batch: say option('after', {str(after)!r})"
            )
        self._register(after)
        return {"checkpoint": "" if after is None else str(after)}

    def _register(self, after: CheckpointId | None) -> None:
        """Register the follower once for each start of the query.

        It is registered with the position that it continues from.
        """
        if self._follower is not None and not self._is_registered:
            session = self._client.session
            try:
                run_sync(followers.register(session, self._follower, self._operator, after))
            # This query can never go on, so retention must not keep for it what `_hold` has found.
            except RetiredError:
                try:
                    run_sync(followers.put_back(session, self._held))
                except CheckpointError as error:
                    logger.warning("follower %r stays at the position where it was held: %s", self._follower, error)
                raise
            self._is_registered = True

    def commit(self, end: dict[str, str]) -> None:
        """Record how far the query has read.

        Spark calls this with an offset before which it will never read again.
        """
        if self._follower is None or not end["checkpoint"]:
            return
        session, until = self._client.session, CheckpointId.parse(end["checkpoint"])
        try:
            if not run_sync(followers.advance(session, self._follower, self._operator, until)):
                logger.warning(
                    "%s: follower %r was removed, so retention does not wait for it: start the query again to "
                    "register it",
                    session.store.url,
                    self._follower,
                )
        # An old position keeps more than is needed, and the next batch moves it. That is no reason to fail.
        except CheckpointError as error:
            logger.warning("%s: follower %r stays at its position: %s", session.store.url, self._follower, error)

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, str]:  # noqa: N802
        # A query that goes on asks for nothing else while nothing is new, and has to be registered then too.
        if isinstance(start, dict):
            self._register(_checkpoint_of(start))
        else:  # PySpark before 4.2 gives no arguments.
            self._hold()
        latest = self._client.read_latest()
        assert latest is not None, "a store never goes back to nothing, and there was a table"
        return {"checkpoint": str(latest)}

    def _hold(self) -> None:
        """Keep what a follower may need whose position is not known yet.

        This is done once for each start of the query.
        """
        if self._follower is not None and not self._is_registered and not self._is_held:
            self._held = run_sync(followers.hold(self._client.session, self._follower, self._operator))
            self._is_held = True

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        shown, after = self._known.shown, start["checkpoint"] or None
        # An empty range says nothing of what was read. Spark may ask for one at a start, at the end of a batch that it
        # has planned, and has to repeat.
        if start == end:
            self._hold()
            return input_partitions(self._known)
        self._register(_checkpoint_of(start))
        found = self._read_range(after, end["checkpoint"])
        # What is older is shown in the columns of today, as in any feed.
        is_later = found.last.id.sequence > self._known.to.sequence
        if is_later and found.newest is not None and not has_columns(shown, found.newest):
            if key_columns_change(self._operator, found.parent, found.manifests, found.newest) is not None:
                raise self._another_key()
            raise IllegalArgumentError(
                f"table {self._operator!r}: the next changes have the columns {found.newest}, this query has {shown}: "
                "start the query again, with the same checkpointLocation: it goes on with the new columns"
            )
        if key_columns_change(self._operator, found.parent, found.manifests, shown) is not None:
            raise self._another_key()
        return input_partitions(found.feed(shown))

    def _read_range(self, after: str | None, to: str) -> FeedRange:
        client = self._client
        try:
            return FeedRange.of(client, self._operator, after, to)
        except CheckpointNotFoundError as error:
            parent, manifests = run_sync(read_live_ancestry(client.session, None, CheckpointSelector(LATEST)))
            oldest = str((parent or manifests[0]).id)
            raise RetiredError(
                f"{error}, though this stream goes on from there: retention or a repair has deleted it. "
                f"{_begin_again(oldest)}"
            ) from None

    def _another_key(self) -> IllegalArgumentError:
        """Return the error for a stream that meets changes with another key."""
        client = self._client
        ancestry = run_sync(read_unbroken_ancestry(client.session, None, CheckpointSelector(LATEST)))
        newest = newest_schema(self._operator, None, ancestry)
        change = None if newest is None else key_columns_change(self._operator, None, ancestry, newest)
        assert newest is not None, "a live checkpoint has the table"
        assert change is not None, "one of the live checkpoints has another key"
        assert change.first is not None, "the newest one has its own key"
        name, named = self._follower, ""
        if name is not None:
            command = f"checkpointer followers {shlex.quote(client.root)} --remove {shlex.quote(name)}"
            named = (
                f". Give it the name {name!r} again, or run `{command}`, so "
                "that retention waits for this query no longer"
            )
        return IllegalArgumentError(
            f"{change.describe(self._operator, newest)}, and a stream cannot go on from one to the other. "
            f"{_begin_again(str(change.first))}{named}"
        )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from read_part(self._client, partition)


def _checkpoint_of(offset: dict[str, str]) -> CheckpointId | None:
    """Return the checkpoint up to which a stream has read; None at its beginning."""
    return CheckpointId.parse(offset["checkpoint"]) if offset["checkpoint"] else None


def _begin_again(checkpoint: str) -> str:
    """Say how a new query begins with the table of a checkpoint."""
    return (
        f"Begin again, with a new checkpointLocation: read_state(…, id={checkpoint!r}) has the rows until then, and "
        f"option('after', {checkpoint!r}) the changes since"
    )


__all__ = ["FeedSourceReader", "FeedStreamReader"]
