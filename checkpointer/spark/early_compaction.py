"""Compact chains of a table between a commit and the end of the next batch.

A batch waits for what it compacts itself. So chains of the version that it committed are read, merged and encoded while
Spark goes on; nothing is written. The next batch of the run writes the objects as its own, while Spark works on its
rows, so that its commit does not wait for them. If it still has these chains at its end, it puts its changes on top. No
result depends on it: a run that ends here loses nothing, and a chain that reaches a limit without it is compacted in
the batch.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
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

    def begin_write(self, chains: Mapping[int, Chain], writer: TableWriter, traffic: Traffic) -> "EarlyWrite":
        """Begin to write the compacted objects for a batch, which goes on meanwhile.

        `chains` are those that the batch begins with. The requests are added to `traffic`, and those of the compaction.
        """
        work = None if self._work is None else runtime.submit(self._write(chains, writer, traffic))
        return EarlyWrite(self._version, work, self._forks)

    async def _write(self, chains: Mapping[int, Chain], writer: TableWriter, traffic: Traffic) -> dict[int, Chain]:
        """Write the objects, and return the chains that they make shorter.

        Chains whose objects cannot be written are left out.
        """
        task, shorter = asyncio.current_task(), dict[int, Chain]()
        assert task is not None
        # The batch may fail and the interpreter end while a thread still writes.
        if not runtime.finish_at_exit(task, f"table {self._version.name!r}: objects compacted for a batch"):
            return {}
        try:
            with counted(traffic):
                for compacted in await self._compacted():
                    # An object of several partitions serves those that are left: readers look at their own rows in it.
                    if any(_begins_alike(partition, self._version, chains) for partition in compacted.kept):
                        shorter |= await compacted.write(writer)
        except Exception as error:
            # The batch has the longer chains still, and reports what is wrong with the store when it commits.
            logger.info("table %r: its chains stay long for now: %s", self._version.name, error)
        traffic.add(self._traffic)
        return shorter

    def left_to_batch(self, chains: Mapping[int, Chain]) -> list[int]:
        """Return the partitions whose turn it is that the batch has to compact itself."""
        return [partition for partition in self._left_to_batch if _begins_alike(partition, self._version, chains)]

    def cancel(self) -> None:
        """Stop the work: nobody will ask for it."""
        if self._work is not None:
            self._work.cancel()

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


@dataclass(frozen=True, slots=True)
class EarlyWrite:
    """The compacted objects that a batch writes while it goes on.

    `committed` is the version whose chains they make shorter. `forks` is how often the process had been forked when
    the chains were compacted.
    """

    committed: TableVersion
    work: Future[dict[int, Chain]] | None
    forks: int

    async def finish(self, chains: Mapping[int, Chain]) -> dict[int, Chain]:
        """Wait until the objects are written, and return the shorter chains.

        They are those of the partitions whose chains still begin as they did. `chains` are those of the batch, with its
        changes.
        """
        # In a forked child the work would never end.
        if self.work is None or self.forks != runtime.fork_count():
            return {}
        shorter: dict[int, Chain] = {}
        for partition, below in (await asyncio.wrap_future(self.work)).items():
            if _begins_alike(partition, self.committed, chains):
                above = chains[partition][len(self.committed.chains[partition]) :]
                # One by one, since no row may be left below them.
                shorter[partition] = reduce(on_top, above, below)
        return shorter


def _begins_alike(partition: int, committed: TableVersion, chains: Mapping[int, Chain]) -> bool:
    """Return whether a partition's chain still begins as in the committed version."""
    old = committed.chains[partition]
    return chains.get(partition, ())[: len(old)] == old


__all__ = ["EarlyCompaction", "EarlyWrite"]
