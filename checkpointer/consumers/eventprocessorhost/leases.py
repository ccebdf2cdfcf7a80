"""The leases of one host, as the contract of Event Processor Host has them, on the leases of this library."""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

from pyspark_checkpointer.consumers.cas_object import Space
from pyspark_checkpointer.consumers.eventprocessorhost.checkpoint import CheckpointInfo, decode, is_news
from pyspark_checkpointer.consumers.group import Group
from pyspark_checkpointer.consumers.lease import Lease
from pyspark_checkpointer.consumers.leases import Leases
from pyspark_checkpointer.errors import IllegalArgumentError, LeaseLostError, StoreNotFoundError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.positions_json import Ownership, Row
from pyspark_checkpointer.runtime.not_picklable import NotPicklable

RENEWALS = 3
"""Renewals in the length of a lease, where its owner does nothing but update checkpoints."""


class CompleteLease(NotPicklable):
    """The lease of a partition, as its `LeaseManager` saw it last; once acquired, the right to update its checkpoint.

    Only a `LeaseManager` makes one. It belongs to the process that it was made in. Once it was lost it stays lost,
    also where the same host acquires the partition again: that is another lease, of another object.
    """

    _instead = "get_lease() in the other process, from a LeaseManager, which may be pickled"

    def __init__(self, host: "HostLeases", row: Row) -> None:
        self._host, self._row = host, row
        self._live = host.leases.is_live(row)
        self._hold: Lease | None = None
        self._renewed = 0
        self._accepted: CheckpointInfo | None = None

    def __repr__(self) -> str:
        state = "" if self.is_owned else ", not owned"
        return f"<CompleteLease of {self.partition_id!r}: owner {self.owner!r}, epoch {self.epoch}{state}>"

    @property
    def partition_id(self) -> str:
        return self._row.partition

    @property
    def owner(self) -> str:
        """The host that has it, or had it last; empty where it was released."""
        return self._row.owner

    @property
    def epoch(self) -> int:
        """One more each time that it is acquired."""
        return self._row.epoch

    @property
    def is_owned(self) -> bool:
        """Whether its owner had not lost it yet, nor let it expire, when it was looked at last."""
        return self._live if self._hold is None else not self._hold.lost

    def is_owned_by(self, host_name: str) -> bool:
        return self.is_owned and self.owner == host_name

    @property
    def hold(self) -> Lease:
        """The right to update: `LeaseLostError` where there is none, or none any more."""
        if self._hold is None:
            raise LeaseLostError(
                f"partition {self.partition_id!r}: this lease was never acquired, or was released: acquire it first"
            )
        self._hold.check()
        return self._hold

    def is_of(self, group: Group) -> bool:
        mine = self._host.group
        return (mine.space.store.url, mine.folder) == (group.space.store.url, group.folder)

    async def keep(self) -> None:
        """Renew it where that is due; `hold` tells whether it was there to be renewed."""
        await self._host.keep(self)

    def accept(self, new: CheckpointInfo) -> bool:
        """Return whether this comes after all that was there when it was acquired, and all that was accepted since."""
        if self._accepted is None:
            hold = self.hold
            self._accepted = decode(self._host.group.name(hold.partition), hold.partition, hold.found)
        news = is_news(self._accepted, new)
        self._accepted = new if news else self._accepted
        return news


class HostLeases:
    """The leases of one host in one group, on the library's loop."""

    def __init__(self, space: Space, folder: str, host_name: str, duration: float) -> None:
        self.group = Group(space, folder)
        self.leases = Leases(self.group, host_name, duration)
        self._used: set[CompleteLease] = set()
        self._turn = asyncio.Lock()

    async def store_exists(self) -> bool:
        return await self.group.ownership.read() is not None

    async def create_store(self) -> None:
        await self.group.ownership.change(lambda found, now: Ownership({}) if found is None else None)

    async def delete_store(self) -> None:
        await self.group.ownership.delete()
        await self.leases.renew()  # which finds them lost

    async def create(self, partition_ids: Iterable[str]) -> None:
        wanted = names(partition_ids)
        if not await self.store_exists():
            raise StoreNotFoundError(
                f"{self.group.space.store.url}/{self.group.folder}: there is no lease store: "
                "create_lease_store_if_not_exists() makes it"
            )
        await self.leases.create(wanted)

    async def get(self, partition_id: str) -> CompleteLease | None:
        row = (await self.leases.rows()).get(partition_id)
        return None if row is None else CompleteLease(self, row)

    async def get_all(self) -> list[CompleteLease]:
        return [CompleteLease(self, row) for row in (await self.leases.rows()).values()]

    async def delete(self, lease: CompleteLease) -> None:
        await self.leases.forget(self._checked(lease).partition_id)

    async def acquire(self, lease: CompleteLease) -> bool:
        held = self._checked(lease)._hold
        if held is not None and held.lost:
            return False
        at = self._clock()
        hold = await self.leases.steal(lease._row)
        if hold is not None and hold.found is None:
            # Perhaps it made the holder, in place of a later owner's that was deleted: prove that there is no such one.
            await self.leases.renew(hold)
        if hold is None or hold.lost:
            return False
        lease._hold, lease._renewed = hold, at
        lease._row = replace(lease._row, owner=hold.owner, epoch=hold.epoch)
        lease._accepted = None
        return True

    async def renew(self, *leases: CompleteLease) -> bool:
        """Renew those that are held, in one swap. Whether none of them is lost."""
        holds = [hold for lease in leases if (hold := self._checked(lease)._hold) is not None]
        at = self._clock()
        if holds:
            await self.leases.renew(*holds)
        for lease in leases:
            lease._renewed = at
        return len(holds) == len(leases) and not any(hold.lost for hold in holds)

    async def keep(self, lease: CompleteLease) -> None:
        """Renew a lease that is due, and with it all that were used since they were renewed."""
        self._used.add(lease)
        await asyncio.sleep(0)  # so that those who come at once are renewed at once
        async with self._turn:
            if (self._clock() - lease._renewed) / 1e9 * RENEWALS >= self.leases.duration:
                used, self._used = self._used, set()
                await self.renew(*used)

    async def release(self, lease: CompleteLease) -> None:
        hold = self._checked(lease)._hold
        self._used.discard(lease)
        if hold is not None and hold.lost:
            return
        if hold is not None:
            await self.leases.release(hold)
        elif lease.owner == self.leases.worker:
            await self.leases.release_seen(lease._row)
        else:
            return
        lease._hold, lease._live = None, False
        lease._row = replace(lease._row, owner="")

    def _checked(self, lease: CompleteLease) -> CompleteLease:
        if not isinstance(lease, CompleteLease) or lease._host is not self:
            raise IllegalArgumentError(f"{lease!r:.100}: expected a lease that this lease manager gave: get_lease()")
        return lease

    def _clock(self) -> int:
        return self.group.space.host.clock()


def names(partition_ids: Iterable[str]) -> list[str]:
    """Return the partitions of a call that takes several: one name is most likely a mistake for a list of it."""
    if isinstance(partition_ids, str):
        raise IllegalArgumentError(f"{partition_ids!r:.60}: expected a list of partitions, got one name")
    if not isinstance(partition_ids, Iterable):
        raise IllegalArgumentError(f"expected a list of partitions, got {type(partition_ids).__name__}")
    found = list(partition_ids)
    for name in found:
        object_paths.encode_part(name)  # refuses what is no text
    return found
