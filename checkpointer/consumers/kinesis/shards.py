"""Leases on the shards of one application, each with the checkpointer of its shard."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_checkpointer.consumers.cas_object import Space
from pyspark_checkpointer.consumers.group import Group
from pyspark_checkpointer.consumers.kinesis.checkpointer import RecordCheckpointer, write_all
from pyspark_checkpointer.consumers.kinesis.sequence import SHARD_END, ExtendedSequenceNumber
from pyspark_checkpointer.consumers.kinesis.state import Recorded
from pyspark_checkpointer.consumers.lease import Lease
from pyspark_checkpointer.consumers.leases import Leases
from pyspark_checkpointer.consumers.write_behind import Coalescer
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths

logger = logging.getLogger("pyspark_checkpointer")


@dataclass(frozen=True, slots=True)
class Balance:
    """What a round of balancing changed.

    What was `asked` for by another worker: finish with it and release it, or it is taken one length of a lease later.
    `failed` are shards that are this worker's now, and whose positions cannot be read or taken: the next round tries
    again.
    """

    gained: tuple[RecordCheckpointer, ...]
    lost: tuple[RecordCheckpointer, ...]
    asked: tuple[RecordCheckpointer, ...]
    failed: Mapping[str, CheckpointError]


class Shards:
    """The shards of one worker, on the library's loop."""

    def __init__(
        self,
        space: Space,
        application: str,
        worker: str,
        initial: ExtendedSequenceNumber,
        duration: float,
        max_updates: int,
        interval: float,
    ) -> None:
        self.host = space.host
        self.store = space.store
        self.leases = Leases(Group(space, object_paths.progress("kinesis", application)), worker, duration)
        self.checkpointers: dict[str, RecordCheckpointer] = {}
        self._initial = initial
        self._waiting: Coalescer[RecordCheckpointer, Recorded] = Coalescer(
            write_all, max_updates=max_updates, interval=interval, name=space.store.url
        )
        self._renewed = self.host.clock()

    async def take(self, shard: str, force: bool) -> RecordCheckpointer | None:
        lease = await self.leases.take(shard, force=force)
        if lease is None:
            return None
        checkpointer = self.checkpointers[shard] = self._checkpointer(lease)
        return checkpointer

    async def release(self, checkpointer: RecordCheckpointer) -> None:
        lease = self._checked(checkpointer)._lease
        try:
            await self.leases.release(lease, finished=not lease.lost and checkpointer.position == SHARD_END)
        finally:
            if lease.lost:  # given back or not: whoever has the shard next begins at what is recorded
                self._drop(checkpointer)

    async def let_go(self, checkpointer: RecordCheckpointer) -> None:
        self.leases.let_go(self._checked(checkpointer)._lease)
        self._drop(checkpointer)

    async def forget(self, shard: str) -> None:
        await self.leases.forget(shard)
        self.checkpointers.pop(shard, None)

    async def renew(self) -> tuple[RecordCheckpointer, ...]:
        began = self.host.clock()
        await self.leases.renew()
        self._renewed = began
        return self._drop_lost()

    async def balance(self) -> Balance:
        began = self.host.clock()
        change = await self.leases.balance()
        self._renewed = began
        lost = self._drop_lost()
        gained, failed = [], dict(change.failed)
        for shard, lease in self.leases.held.items():
            if shard not in self.checkpointers:
                try:
                    gained.append(self._checkpointer(lease))
                except CheckpointError as error:
                    failed[shard] = error
        self.checkpointers.update((one.shard_id, one) for one in gained)
        asked = {lease.partition for lease in change.asked}
        mine = tuple(one for name, one in self.checkpointers.items() if name in asked)
        return Balance(tuple(gained), lost, mine, failed)

    async def keep_renewing(self) -> None:
        """Renew what is held whenever it is late: after a third of a lease and half of a sixth, looking each sixth."""
        sixth = self.leases.duration / 6
        while True:
            await asyncio.sleep(sixth)
            began = self.host.clock()
            if not self.leases.held or (began - self._renewed) / 1e9 < 2.5 * sixth:
                continue
            try:
                await self.leases.renew()
                self._renewed = began
            except Exception as error:  # whatever it was: nobody would hear of a task that has ended
                logger.warning("worker %s could not renew its leases, tries again: %s", self.leases.worker, error)

    async def flush(self) -> None:
        await self._waiting.flush()

    async def close(self) -> None:
        try:
            await self._waiting.close()
        finally:
            await self.store.close()

    def _checkpointer(self, lease: Lease) -> RecordCheckpointer:
        return RecordCheckpointer(lease, self._initial, self._waiting)

    def _drop_lost(self) -> tuple[RecordCheckpointer, ...]:
        lost = tuple(one for one in self.checkpointers.values() if one.lost)
        for one in lost:
            self._drop(one)
        return lost

    def _checked(self, checkpointer: RecordCheckpointer) -> RecordCheckpointer:
        if not isinstance(checkpointer, RecordCheckpointer) or checkpointer._waiting is not self._waiting:
            raise IllegalArgumentError(
                f"{checkpointer!r:.100}: expected a checkpointer that came with one of these leases"
            )
        return checkpointer

    def _drop(self, checkpointer: RecordCheckpointer) -> None:
        if self.checkpointers.get(checkpointer.shard_id) is checkpointer:
            del self.checkpointers[checkpointer.shard_id]
