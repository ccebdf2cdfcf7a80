"""Hold the leases of one worker on the shards of an application.

Each lease comes with the checkpointer of its shard.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pyspark_checkpointer.consumers.group import Group, check_names
from pyspark_checkpointer.consumers.kinesis.checkpointer import RecordCheckpointer, is_written_by, lease_of, write_all
from pyspark_checkpointer.consumers.kinesis.sequence import LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from pyspark_checkpointer.consumers.kinesis.state import ShardState, beginning_at, encode
from pyspark_checkpointer.consumers.lease import Lease
from pyspark_checkpointer.consumers.leases import Leases
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.consumers.write_behind import WriteBehind
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.runtime.user_functions import log_safely


@dataclass(frozen=True, slots=True)
class Balance:
    """The outcome of one round of balancing."""

    gained: tuple[RecordCheckpointer, ...]
    """The checkpointers of leases that are new."""
    lost: tuple[RecordCheckpointer, ...]
    """The checkpointers of leases that are lost."""
    asked: tuple[RecordCheckpointer, ...]
    """The checkpointers of leases that another worker asked for.

    Release them. Otherwise that worker takes them after one lease period.
    """
    failed: Mapping[str, CheckpointError]
    """Why the positions of other shards cannot be read or written; the next round tries again."""


class Shards:
    """The shards of one worker, on the library's event loop.

    `checkpointers` are those of the leases that are held, by shard. `_renewed_at` is when all leases were renewed last,
    in nanoseconds of the host's monotonic clock.
    """

    def __init__(
        self,
        context: StoreContext,
        application: str,
        worker: str,
        initial: ExtendedSequenceNumber,
        duration: float,
        max_updates: int,
        interval: float,
    ) -> None:
        self.host = context.host
        self.store = context.store
        self.leases = Leases(Group(context, object_paths.group_folder("kinesis", application)), worker, duration)
        self.checkpointers: dict[str, RecordCheckpointer] = {}
        self._taking: list[str] = []
        """The shards of the calls of `take()` that are under way."""
        self._initial = initial
        self._write_behind: WriteBehind[RecordCheckpointer, ShardState] = WriteBehind(
            write_all, max_updates=max_updates, interval=interval, name=context.store.url
        )
        self._renewed_at = self.host.clock()

    async def create(self, shards: Iterable[str]) -> None:
        """Add shards, without an owner.

        Where others are known already and would begin at LATEST, the new ones begin at TRIM_HORIZON.
        """
        names = check_names(shards)
        if self._initial == LATEST and (known := await self.leases.rows()):
            # A stream gets new shards when its shards are split or merged. Some time passes before the parents are read
            # to their ends: LATEST would leave out what was written to the new shards until then.
            value = encode(beginning_at(TRIM_HORIZON))
            await asyncio.gather(*(self.leases.record_first(name, value) for name in names if name not in known))
        await self.leases.create(names)

    async def take(self, shard: str, force: bool) -> RecordCheckpointer | None:
        """Take a lease, and return the checkpointer that comes with it.

        Return None if the shard cannot be taken.
        """
        self._taking.append(shard)
        had_none, began = not self.leases.held, self.host.clock()
        try:
            lease = await self.leases.take(shard, force=force)
            if lease is None:
                return None
            if had_none:
                self._note_renewal(began)
            checkpointer = self.checkpointers[shard] = self._checkpointer(lease)
            return checkpointer
        finally:
            self._taking.remove(shard)

    async def release(self, checkpointer: RecordCheckpointer) -> None:
        """Give a shard back after its delayed checkpoints were written.

        The shard is finished if its end was checkpointed.
        """
        lease = lease_of(self._checked(checkpointer))
        try:
            await self.leases.release(lease, finished=not lease.lost and checkpointer.position == SHARD_END)
        finally:
            # The lease ends even if giving it back failed. It is still held only if a delayed checkpoint failed.
            if lease.lost:
                self._drop(checkpointer)

    async def let_go(self, checkpointer: RecordCheckpointer) -> None:
        """Drop a shard without a request; its lease expires."""
        self.leases.let_go(lease_of(self._checked(checkpointer)))
        self._drop(checkpointer)

    async def forget(self, shard: str) -> None:
        """Remove the row of a shard, and end this worker's lease on it."""
        await self.leases.forget(shard)
        self.checkpointers.pop(shard, None)

    async def renew(self) -> tuple[RecordCheckpointer, ...]:
        """Renew all leases, and return the checkpointers of those that are lost."""
        began = self.host.clock()
        await self.leases.renew()
        # The time is from before the request: others may have seen the new etags at any moment since.
        self._note_renewal(began)
        return self._drop_lost()

    async def balance(self) -> Balance:
        """Run one round of balancing, and return what changed."""
        began = self.host.clock()
        changes = await self.leases.balance()
        self._note_renewal(began)
        lost = self._drop_lost()
        gained, failed = [], dict(changes.failed)
        # All that are held, and not only those gained in this round: a call of `take()` that was interrupted may have
        # left one without a checkpointer. A copy, since a lease whose position cannot be decoded is let go.
        for shard, lease in [*self.leases.held.items()]:
            # A lease that another thread is just taking is that thread's.
            if shard not in self.checkpointers and shard not in self._taking:
                try:
                    gained.append(self._checkpointer(lease))
                except CheckpointError as error:
                    failed[shard] = error
        self.checkpointers.update((one.shard_id, one) for one in gained)
        asked = {lease.partition for lease in changes.asked}
        mine = tuple(one for name, one in self.checkpointers.items() if name in asked)
        return Balance(tuple(gained), lost, mine, failed)

    @property
    def may_have_expired(self) -> bool:
        """True if no renewal succeeded for the length of a lease."""
        return (self.host.clock() - self._renewed_at) / 1e9 >= self.leases.duration

    async def keep_renewing(self, is_wanted: Callable[[], bool]) -> None:
        """Renew all leases whenever the caller is late with it.

        This goes on until the task is cancelled, or not wanted any more.

        Callers renew after two sixths of a lease. This looks once in each sixth, and renews if the last renewal is 2.5
        sixths ago. That is later than a caller that is in time, and early enough to try again before the lease ends.
        """
        sixth = self.leases.duration / 6
        while True:
            await asyncio.sleep(sixth)
            if not is_wanted():
                return
            began = self.host.clock()
            # Without a lease, a renewal would cost a request and change nothing.
            if not self.leases.held or (began - self._renewed_at) / 1e9 < 2.5 * sixth:
                continue
            try:
                await self.leases.renew()
                self._note_renewal(began)
            except Exception as error:  # Any error is logged: nobody would notice that this task has ended.
                log_safely(
                    logging.WARNING,
                    "worker %s could not renew its leases, and tries again: %s",
                    self.leases.worker,
                    error,
                )

    async def flush(self) -> None:
        """Write the delayed checkpoints of all shards.

        Raise the reason if one was not written.
        """
        await self._write_behind.flush()

    async def close(self) -> None:
        """Write the delayed checkpoints, refuse others, and release connections."""
        try:
            await self._write_behind.close()
        finally:
            await self.store.close()

    def _note_renewal(self, began: int) -> None:
        # A round of balancing may take so long that all leases were renewed meanwhile.
        self._renewed_at = max(self._renewed_at, began)

    def _checkpointer(self, lease: Lease) -> RecordCheckpointer:
        try:
            return RecordCheckpointer(lease, self._initial, self._write_behind)
        except CheckpointError:
            # A lease keeps the value that was there when it was taken. Only another one reads the position again.
            self.leases.let_go(lease)
            raise

    def _drop_lost(self) -> tuple[RecordCheckpointer, ...]:
        lost = tuple(one for one in self.checkpointers.values() if one.lost)
        for one in lost:
            self._drop(one)
        return lost

    def _checked(self, checkpointer: RecordCheckpointer) -> RecordCheckpointer:
        """Return the checkpointer.

        Raise `IllegalArgumentError` if it did not come with one of these leases.
        """
        if not isinstance(checkpointer, RecordCheckpointer) or not is_written_by(checkpointer, self._write_behind):
            raise IllegalArgumentError(
                f"{checkpointer!r:.100}: expected a checkpointer that came with one of these leases"
            )
        return checkpointer

    def _drop(self, checkpointer: RecordCheckpointer) -> None:
        # A later lease on the same shard has another checkpointer, which stays.
        if self.checkpointers.get(checkpointer.shard_id) is checkpointer:
            del self.checkpointers[checkpointer.shard_id]
