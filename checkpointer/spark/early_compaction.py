"""Compact chains of a table between a commit and the end of the next batch.

A batch waits for what it compacts itself. So chains of the version that it committed are read, merged and encoded while
Spark goes on; nothing is written. The next batch of the run writes the objects as its own, beginning with its first
change, so that they are mostly in the store when it ends. If it still has these chains then, it puts its changes on
top. No result depends on it: a run that ends here loses nothing, and a chain that reaches a limit without it is
compacted in the batch.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from functools import reduce
from typing import TypeVar

from pyspark_checkpointer import runtime
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests.model import Chain
from pyspark_checkpointer.runtime import forks
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.request_path import Traffic, counted
from pyspark_checkpointer.table.compact import Compacted, encode_compacted
from pyspark_checkpointer.table.encoder import TableEncoder
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top

T = TypeVar("T")


class EarlyCompaction:
    """Chains of one committed version that are compacted for the next batch.

    `keep` says how many artifacts of each partition stay. `left_to_batch` are partitions whose turn it is too, but
    which are too large for the driver. `cost` is what the work takes of the bytes that the driver may read for all
    tables.
    """

    def __init__(
        self,
        session: Session,
        version: TableVersion,
        keep: Mapping[int, int],
        left_to_batch: Collection[int] = (),
        cost: int = 0,
    ) -> None:
        self.cost = cost
        self._version = version.only([*keep, *left_to_batch])
        self._keep = keep
        self._left_to_batch = left_to_batch
        self._traffic = Traffic()
        self._process = forks.current
        self._encoding = runtime.submit(self._encode(session)) if keep else None
        self._writing: Future[dict[int, Chain]] | None = None
        self._is_cancelled = False

    @property
    def has_begun_write(self) -> bool:
        """Return whether a batch has begun to write the objects."""
        return self._writing is not None

    async def _encode(self, session: Session) -> list[Compacted]:
        """Return the objects that replace artifacts; none if this fails."""
        version, task = self._version.only([*self._keep]), asyncio.current_task()
        assert task is not None
        # The interpreter must not end while one of its threads merges rows.
        if not runtime.cancel_at_exit(task):
            return []
        try:
            with counted(self._traffic):
                reader = TableReader(session.store, session.host, version)
                encoder = TableEncoder(session.host, version.name, version.schema)
                return [made async for made in encode_compacted(reader, encoder, version.chains, self._keep)]
        except Exception as error:
            # A batch may need these objects never, or not yet. One that does reports what is wrong with them.
            log_safely(logging.INFO, "table %r: was not compacted between two batches: %s", version.name, error)
            return []

    def begin_write(self, chains: Mapping[int, Chain], writer: TableWriter, traffic: Traffic) -> None:
        """Begin to write the compacted objects for a batch, unless that has begun.

        `chains` are those that the batch has now. Its requests, and those of the compaction, are added to `traffic`.
        """
        if self._encoding is None or self._writing is not None or self._is_cancelled:
            return
        if not any(self._begins_alike(partition, chains) for partition in self._keep):
            self._encoding.cancel()
        # Also after cancelling: `_write` still has to add the requests of the compaction to those of the batch.
        self._writing = runtime.submit(self._write(chains, writer, traffic))
        if self._is_cancelled:  # by another thread since it was asked above
            self._writing.cancel()

    async def _write(self, chains: Mapping[int, Chain], writer: TableWriter, traffic: Traffic) -> dict[int, Chain]:
        """Write the objects, and return what takes the place of each committed chain.

        Chains whose objects cannot be written are left out.
        """
        task, compacted_chains = asyncio.current_task(), dict[int, Chain]()
        assert task is not None
        # The interpreter must not end while one of its threads writes an object.
        if not runtime.cancel_at_exit(task):
            return {}
        try:
            with counted(traffic):
                for compacted in await self._result(self._encoding, []):
                    # An object of several partitions serves those that are left: readers look at their own rows in it.
                    if any(self._begins_alike(partition, chains) for partition in compacted.kept):
                        compacted_chains |= await compacted.write(writer)
        except Exception as error:
            # A batch that has to compact such a chain itself reports what is wrong.
            log_safely(
                logging.INFO,
                "table %r: an object that was compacted could not be written: %s",
                self._version.name,
                error,
            )
        finally:
            traffic.add(self._traffic)
        return compacted_chains

    async def finish_write(self, chains: Mapping[int, Chain]) -> dict[int, Chain]:
        """Wait until the objects are written, and return the shorter chains.

        They are those of the partitions whose chains still begin as they did. `chains` are those of the batch, with its
        changes.
        """
        shorter: dict[int, Chain] = {}
        for partition, below in (await self._result(self._writing, {})).items():
            if self._begins_alike(partition, chains):
                above = chains[partition][len(self._version.chains[partition]) :]
                # One by one, since no row may be left below them.
                shorter[partition] = reduce(on_top, above, below)
        return shorter

    def left_to_batch(self, chains: Mapping[int, Chain]) -> list[int]:
        """Return the partitions whose turn it is that the batch has to compact itself."""
        return [partition for partition in self._left_to_batch if self._begins_alike(partition, chains)]

    def cancel(self) -> None:
        """Stop the work, and begin none: nobody will ask for it."""
        # First: a thread of a batch that has failed may be about to begin the write.
        self._is_cancelled = True
        for work in (self._encoding, self._writing):
            if work is not None:
                work.cancel()

    def _begins_alike(self, partition: int, chains: Mapping[int, Chain]) -> bool:
        """Return whether a chain still begins as in the committed version."""
        old = self._version.chains[partition]
        return chains.get(partition, ())[: len(old)] == old

    async def _result(self, work: "Future[T] | None", nothing: T) -> T:
        """Wait for work and return its result.

        Work that was not begun, or was cancelled, has the result `nothing`.
        """
        # In a forked child it would never end.
        if work is None or self._process is not forks.current:
            return nothing
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            # A run that ended has cancelled its work. If its zombie goes on, the commit tells it why it must not.
            if work.cancelled():
                return nothing
            raise


__all__ = ["EarlyCompaction"]
