"""Hold one host's leases by the contract of Event Processor Host.

They rest on `consumers.leases`.
"""

import asyncio
from collections.abc import Collection, Iterable

from pyspark_checkpointer.consumers.eventprocessorhost.checkpoint_info import CheckpointInfo, decode, is_newer
from pyspark_checkpointer.consumers.eventprocessorhost.lease_state import LeaseState
from pyspark_checkpointer.consumers.group import Group, check_names
from pyspark_checkpointer.consumers.lease import Lease
from pyspark_checkpointer.consumers.leases import Leases
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.errors import IllegalArgumentError, LeaseLostError, StoreNotFoundError
from pyspark_checkpointer.manifests.positions_json import Ownership, Row
from pyspark_checkpointer.runtime.not_picklable import NotPicklable

RENEWALS_PER_LEASE = 3
"""Number of renewals while a lease lasts, if its owner only updates checkpoints."""


class CompleteLease(NotPicklable):
    """The lease of a partition as it was seen last.

    An acquired lease is the right to update the checkpoint of the partition. A lease may be released and acquired
    again. Once another host took it, it is lost for good.

    Only a `LeaseManager` makes leases, and a lease belongs to the process where it was made. If the same host acquires
    the partition again, it gets another lease, in another object.

    Examples:
        >>> from pyspark_checkpointer.consumers.eventprocessorhost import LeaseManager
        >>> leases = LeaseManager("state/positions", "host-1", event_hub="clicks")
        >>> leases.create_lease_store_if_not_exists()
        >>> leases.create_all_leases_if_not_exists(["0"])
        >>> lease = leases.get_lease("0")
        >>> leases.acquire_lease(lease)
        True
        >>> lease
        <CompleteLease of '0': owner 'host-1', epoch 1>
    """

    _instead = "get_lease() in the other process, from a LeaseManager, which may be pickled"

    def __init__(self, host: "HostLeases", row: Row) -> None:
        self._host = host
        self._state = LeaseState(row, host.leases.is_live(row))

    def __repr__(self) -> str:
        state = "" if self.is_owned else ", not owned"
        return f"<CompleteLease of {self.partition_id!r}: owner {self.owner!r}, epoch {self.epoch}{state}>"

    @property
    def partition_id(self) -> str:
        """The partition that the lease is on."""
        return self._state.row.partition

    @property
    def owner(self) -> str:
        """The host that has the lease, or had it last; empty if it was released."""
        return self._state.row.owner

    @property
    def epoch(self) -> int:
        """A number that is one more with each acquisition."""
        return self._state.row.epoch

    @property
    def is_owned(self) -> bool:
        """Return whether its owner still held it when it was seen last.

        At that moment the owner had neither lost the lease nor let it expire.
        """
        return self._state.is_owned

    def is_owned_by(self, host_name: str) -> bool:
        """Return whether this host is the owner, as far as was seen last.

        Args:
            host_name: The name of the host.

        Examples:
            >>> lease.is_owned_by("host-1"), lease.is_owned_by("host-2")
            (True, False)
        """
        return self.is_owned and self.owner == host_name

    @property
    def hold(self) -> Lease:
        """The underlying lease.

        For `CheckpointManager`. Raise `LeaseLostError` if the lease was never acquired, or was released or lost.
        """
        if self._state.hold is None:
            raise LeaseLostError(
                f"partition {self.partition_id!r}: this lease was never acquired, or was released: acquire it first"
            )
        self._state.hold.check()
        return self._state.hold

    def is_of(self, group: Group) -> bool:
        """Return whether the lease belongs to this group.

        For `CheckpointManager`.
        """
        mine = self._host.group
        # By location and not by identity: the managers of checkpoints and of leases each have a `Group` of their own.
        return (mine.context.store.url, mine.folder) == (group.context.store.url, group.folder)

    async def renew_if_due(self) -> None:
        """Renew the lease if a third of its length has passed.

        For `CheckpointManager`. Afterwards `hold` raises if the lease was lost meanwhile.
        """
        await self._host.renew_if_due(self._state)

    def accept(self, new: CheckpointInfo) -> bool:
        """Accept a checkpoint that will be written later.

        For `CheckpointManager`. Return whether it is newer than all before it. It is compared with the checkpoint at
        the time when the lease was acquired, and with those accepted since.
        """
        # Only updates that wait are compared here. One that is written at once is compared with the stored position.
        state = self._state
        if state.accepted is None:
            hold = self.hold
            url = self._host.group.position_url(hold.partition)
            state.accepted = decode(url, hold.partition, hold.value_when_taken)
        newer = is_newer(state.accepted, new)
        state.accepted = new if newer else state.accepted
        return newer


class HostLeases:
    """The leases of one host in one group, on the library's event loop.

    `_used` are those that were used for updates since they were renewed. If one of them is due, all are renewed.
    """

    def __init__(self, context: StoreContext, folder: str, host_name: str, duration: float) -> None:
        self.group = Group(context, folder)
        self.leases = Leases(self.group, host_name, duration)
        self._used: set[LeaseState] = set()
        self._renewal_lock = asyncio.Lock()

    async def store_exists(self) -> bool:
        """Return whether the lease store was created."""
        return await self.group.ownership.read() is not None

    async def create_store(self) -> None:
        """Create the lease store, unless it exists."""
        await self.group.ownership.change(lambda found, now: Ownership({}) if found is None else None)

    async def delete_store(self) -> None:
        """Delete the lease store with all leases."""
        await self.group.ownership.delete()
        await self.leases.renew()  # This host's leases are found to be lost.

    async def create(self, partition_ids: Iterable[str]) -> None:
        """Create leases without an owner for the partitions that have none."""
        wanted = check_names(partition_ids)
        if not await self.store_exists():
            raise StoreNotFoundError(
                f"{self.group.context.store.url}/{self.group.folder}: there is no lease store: "
                "create_lease_store_if_not_exists() makes it"
            )
        await self.leases.create(wanted)

    async def get(self, partition_id: str) -> CompleteLease | None:
        """Return the lease of a partition as it is now; None if there is none."""
        row = (await self.leases.rows()).get(partition_id)
        return None if row is None else CompleteLease(self, row)

    async def get_all(self) -> list[CompleteLease]:
        """Return all leases as they are now."""
        return [CompleteLease(self, row) for row in (await self.leases.rows()).values()]

    async def delete(self, lease: CompleteLease) -> None:
        """Delete the lease of a partition, even if another host has it."""
        await self.leases.forget(self._state_of(lease).row.partition)

    async def acquire(self, lease: CompleteLease) -> bool:
        """Make this host the owner, and return whether it is.

        See `LeaseManager.acquire_lease`.
        """
        state = self._state_of(lease)
        # A lost lease stays lost. If this host acquires the partition again, that is another lease.
        if state.is_lost:
            return False
        now = self._clock()
        # Another host may have taken a lease that is held, and given it back: that is a loss that nobody noticed yet.
        hold = await (self.leases.steal(state.row) if state.hold is None else self.leases.take_again(state.hold))
        if hold is not None and hold.value_when_taken is None:
            # There was no checkpoint. Perhaps this call was slow, a later owner's holder was deleted meanwhile, and
            # this call made it anew. Renewing finds the lease lost if there is a later owner.
            await self.leases.renew(hold)
        if hold is None or hold.lost:
            return False
        if state.hold is not None:
            # An update may have come under the old hold while this call waited. Its release has to write it too.
            hold.flush, hold.flush_kept = state.hold.flush, state.hold.flush_kept
        state.hold_on(hold, now)
        return True

    async def renew(self, *leases: CompleteLease) -> bool:
        """Renew these leases in one swap, and return whether all of them are held.

        A lease that is lost is not held.
        """
        return await self._renew([self._state_of(lease) for lease in leases])

    async def _renew(self, states: Collection[LeaseState]) -> bool:
        holds = [state.hold for state in states if state.hold is not None]
        now = self._clock()
        if holds:
            await self.leases.renew(*holds)
        for state in states:
            # The time is from before the request: others may have seen the new etag at any moment since.
            state.renewed_at = now
        return len(holds) == len(states) and not any(hold.lost for hold in holds)

    async def renew_if_due(self, state: LeaseState) -> None:
        """Renew a lease that is due.

        All leases that were used since they were renewed are renewed with it.
        """
        self._used.add(state)
        await asyncio.sleep(0)  # Concurrent updates add their leases first, so that one swap renews all of them.
        async with self._renewal_lock:
            # Checked under the lock: whoever waited for it may find that the call before has renewed its lease too.
            if (self._clock() - state.renewed_at) / 1e9 * RENEWALS_PER_LEASE >= self.leases.duration:
                # From here on only leases that are used again are renewed; the others expire. Otherwise one update
                # would keep a lease for ever.
                used, self._used = self._used, set()
                try:
                    await self._renew(used)
                except BaseException:
                    self._used |= used  # the next update, also of another lease, renews them
                    raise

    async def release(self, lease: CompleteLease) -> None:
        """Give a lease back. See `LeaseManager.release_lease`."""
        state = self._state_of(lease)
        self._used.discard(state)
        # A release that failed has ended the hold too. Called again, it gives the row back.
        if state.is_lost and not state.is_releasing:
            return
        if state.hold is not None:
            hold, was_held = state.hold, not state.is_lost
            try:
                await self.leases.release(hold)
            except BaseException:
                # Not if a delayed update could not be written: then the lease is held as before.
                state.is_releasing |= was_held and hold.lost
                raise
        # The row names this host, perhaps from an earlier process, so there is no hold to release.
        elif state.row.owner == self.leases.worker:
            await self.leases.release_seen(state.row)
        else:
            return
        state.let_go()

    def _state_of(self, lease: CompleteLease) -> LeaseState:
        """Return the state of a lease; `IllegalArgumentError` if another manager made it."""
        found = state_for(self, lease) if isinstance(lease, CompleteLease) else None
        if found is None:
            raise IllegalArgumentError(f"{lease!r:.100}: expected a lease that this lease manager gave: get_lease()")
        return found

    def _clock(self) -> int:
        return self.group.context.host.clock()


def state_for(host: HostLeases, lease: CompleteLease) -> LeaseState | None:
    """Return the state of a lease if it belongs to this host.

    This is no method, since users get only the methods of the contract.
    """
    return lease._state if lease._host is host else None
