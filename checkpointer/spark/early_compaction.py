"""Compact chains of a table between a commit and the end of the next batch.

A batch waits for what it compacts itself. So chains of the version that it committed are read, merged and encoded while
Spark goes on; nothing is written. The next batch of the run writes the objects as its own, if it still has these
chains, and puts its changes on top. No result depends on it: a run that ends here loses nothing, and a chain that
reaches a limit without it is compacted in the batch.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from functools import reduce

from pyspark_checkpointer import runtime
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests.model import Chain
from pyspark_checkpointer.storage.request_path import Traffic, counted
from pyspark_checkpointer.table.compact import Compacted, encode_compacted
from pyspark_checkpointer.table.encoder import TableEncoder
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top

logger = logging.getLogger("pyspark_checkpointer")


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
        self._forks = runtime.fork_count()
        self._work = runtime.submit(self._encode(session)) if keep else None

    async def _encode(self, session: Session) -> list[Compacted]:
        """Return the objects that replace artifacts; none if this fails."""
        version, task = self._version.only([*self._keep]), asyncio.current_task()
        assert task is not None
        # The interpreter must not end while a thread of it merges rows.
        if not runtime.finish_at_exit(task, f"table {version.name!r}: compaction for the next batch"):
            return []
        try:
            with counted(self._traffic):
                reader = TableReader(session.store, session.host, version)
                encoder = TableEncoder(session.host, version.name, version.schema)
                return [made async for made in encode_compacted(reader, encoder, version.chains, self._keep)]
        except Exception as error:
            # A batch may need these objects never, or not yet. One that does reports what is wrong with them.
            logger.info("table %r: its chains stay long for now: %s", version.name, error)
            return []

    async def write(self, chains: Mapping[int, Chain], writer: TableWriter, traffic: Traffic) -> dict[int, Chain]:
        """Write the compacted objects, and return the shorter chains.

        They are those of the partitions whose chains still begin as they did. `chains` are those of the batch, with its
        changes. The requests made until now are added to `traffic`.
        """
        shorter: dict[int, Chain] = {}
        for compacted in await self._compacted():
            usable = [partition for partition in compacted.kept if self._begins_alike(partition, chains)]
            # An object of several partitions serves those that are left: readers look at their own rows in it.
            if usable:
                written = await compacted.write(writer)
                for partition in usable:
                    above = chains[partition][len(self._version.chains[partition]) :]
                    # One by one, since no row may be left below them.
                    shorter[partition] = reduce(on_top, above, written[partition])
        traffic.add(self._traffic)
        return shorter

    def left_to_batch(self, chains: Mapping[int, Chain]) -> list[int]:
        """Return the partitions whose turn it is that the batch has to compact itself."""
        return [partition for partition in self._left_to_batch if self._begins_alike(partition, chains)]

    def cancel(self) -> None:
        """Stop the work: nobody will ask for it."""
        if self._work is not None:
            self._work.cancel()

    def _begins_alike(self, partition: int, chains: Mapping[int, Chain]) -> bool:
        old = self._version.chains[partition]
        return chains.get(partition, ())[: len(old)] == old

    async def _compacted(self) -> list[Compacted]:
        """Wait for the work, and return its result."""
        # In a forked child the work would never end.
        if self._work is None or self._forks != runtime.fork_count():
            return []
        try:
            return await asyncio.wrap_future(self._work)
        except asyncio.CancelledError:
            # A run that ended has cancelled its work. If its zombie goes on, the commit tells it why it must not.
            if self._work.cancelled():
                return []
            raise


__all__ = ["EarlyCompaction"]
