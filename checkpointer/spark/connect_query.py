"""Find the query and run of a batch of foreachBatch, in Spark Connect.

The function runs in a process beside the server, which serves one run of one query and has no JVM. Nothing tells it
which query that is. So the job says where the query's checkpointLocation is, and the files there tell the rest. The
session that started the query knows the run, and that this query is active.
"""

import asyncio
import functools
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer.admin.streaming.file_source_log import digest
from pyspark_checkpointer.admin.streaming.offset_log import (
    COMMITS,
    METADATA,
    OFFSETS,
    SOURCES,
    query_id_of,
    read_file,
    read_text,
)
from pyspark_checkpointer.checkpoint.liveness import ask, this_driver
from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.batch_offsets import QueryOffsets
from pyspark_checkpointer.spark.connect import runs_callbacks
from pyspark_checkpointer.storage import open_files, options_near, parse
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.storage.registry import Reach

_served: set[str] = set()
"""The ids of queries whose functions this process calls: it ends with their run."""

ask(_served.__contains__)  # A rewind or fork within the function asks this before it changes what a query uses.


class FileOffsets(QueryOffsets):
    """The offsets of one run of a query, from the files of its checkpointLocation."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @functools.cached_property
    def _location(self) -> str:
        return self._store.url

    @functools.cached_property
    def _logs(self) -> dict[str, tuple[str, Any]]:
        return {}  # The id of a source is the name of its folder.

    def _offsets(self, batch_id: int) -> str | None:
        return run_sync(read_text(self._store, f"{OFFSETS}{batch_id}"))

    def _digest(self, source: str, entry: int) -> str | None:
        """Return the digest of the entry that Spark just wrote; None for a long list."""
        for name in (str(entry), f"{entry}.compact"):
            try:
                text = run_sync(read_text(self._store, f"{SOURCES}{source}/{name}"))
            except CorruptionError:  # A compacted list has all files that were ever read.
                return None
            if text is not None:
                return digest(text, entry)
        return None


class ConnectQuery:
    """The streaming query whose function this process calls.

    `location` is its checkpointLocation, as the job gave it. `root` is where the state lives, whose `options` serve for
    the location too where both are on stores of the same kind.
    """

    def __init__(self, root: str, location: str | None, options: Mapping[str, Any] | None) -> None:
        self._root = root
        self._location = location
        self._options = options
        self.__setstate__({})

    def __getstate__(self) -> dict[str, Any]:
        return {"_root": self._root, "_location": self._location, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        # Later the active session is a copy that Spark makes for the batches, which knows no query.
        self._starter = SparkSession.getActiveSession() if runs_callbacks() else None
        self._found: tuple[Store, Job] | None = None

    def identify(self, batch: DataFrame, batch_id: int) -> Job:
        """Return the query, run and batch that this process works for.

        Raises `IllegalArgumentError` or `InvalidStateError` where the job does not say its checkpointLocation, or says
        that of another query. One case is not seen: another query that is active in the same session, and within a
        batch of the same number.
        """
        store, job = self._found or self._find(batch)
        # The location may still be that of another active query. Then the batch passes only while that one is within a
        # batch of the same number.
        if not run_sync(_is_within(store, batch_id)):
            raise InvalidStateError(
                f"{store.url}: Spark begins batch {batch_id} of the query that calls this function, but is not within "
                f"this batch there: stateful(checkpoint_location=…) has to be the checkpointLocation of this query"
            )
        self._found = store, job
        return Job(job.query_id, job.run_id, batch_id, job.driver)

    def begin_run(self, batch: DataFrame, job: Job) -> QueryOffsets:
        """Return the offsets of the run."""
        assert self._found is not None
        return FileOffsets(self._found[0])

    def _find(self, batch: DataFrame) -> tuple[Store, Job]:
        """Return the store of the checkpointLocation, and the run of its query."""
        if parse(self._root).kind.reach is Reach.PROCESS:
            raise InvalidStateError(
                f"{self._root}: in Spark Connect a function of foreachBatch runs in a process of its own, whose memory "
                "ends with the query: use a folder or a URL"
            )
        if self._location is None:
            raise IllegalArgumentError(
                f"{self._root}: in Spark Connect nothing tells a function of foreachBatch which query calls it: give "
                "stateful(…, checkpoint_location=…) what the query has as its option checkpointLocation"
            )
        store = open_files(self._location, options_near(self._location, self._root, self._options))
        query_id = run_sync(query_id_of(store))
        query = None if query_id is None else (self._starter or batch.sparkSession).streams.get(query_id)
        if query is None and not runs_callbacks():
            raise IllegalArgumentError(
                "not called from a streaming query: pass the decorated function to writeStream.foreachBatch(…)"
            )
        if query_id is None:
            raise InvalidStateError(
                f"{store.url}/{METADATA}: is not there, or names no query: stateful(checkpoint_location=…) has to be "
                "the checkpointLocation of this query; a relative folder means another one for the server, so give an "
                "absolute one to both"
            )
        if query is None:
            raise InvalidStateError(
                f"{store.url}: is the checkpointLocation of query {query_id}, which is not active in the session of "
                "the query that calls this function: stateful(checkpoint_location=…) has to be the one of this query, "
                "and outside of the function that it decorates"
            )
        _served.add(query_id)
        return store, Job(query_id, str(query.runId), 0, this_driver())


async def _is_within(store: Store, batch_id: int) -> bool:
    """Return whether Spark is within a batch.

    Spark has then planned the batch, has not finished it, and has not planned the next one.
    """
    paths = f"{OFFSETS}{batch_id}", f"{COMMITS}{batch_id}", f"{OFFSETS}{batch_id + 1}"
    planned, finished, following = await asyncio.gather(*(read_file(store, path) for path in paths))
    return planned is not None and finished is None and following is None


__all__ = ["ConnectQuery", "FileOffsets"]
