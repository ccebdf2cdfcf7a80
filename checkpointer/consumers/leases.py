"""Hold the leases of one worker on the partitions of its group.

A lease says who may record positions. Compare-and-swap (CAS) proves it to the store.

    take      ownership: owner, and epoch + 1 ─> position: the lease    one swap each, in this order
    write     position: only while the lease stands in it               one swap
    renew     ownership: a new etag for all that are held               one swap
    release   delayed writes are done ─> ownership: no owner            one swap

For other workers a lease ends when its row has not changed for the length of a lease, by their own clock. For its owner
the lease ends when another worker takes it: from then on the position has another lease, and the old owner cannot
write. A partition that is taken again gets a new epoch, above the epoch of its position, so a lost lease stays lost.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark_checkpointer.consumers.balance import choose
from pyspark_checkpointer.consumers.group import Group, check_name, check_names
from pyspark_checkpointer.consumers.group_ownership import GroupOwnership
from pyspark_checkpointer.consumers.lease import Lease, Value
from pyspark_checkpointer.consumers.lease_clock import LeaseClock
from pyspark_checkpointer.consumers.ownership_edits import OwnershipEdits, Rows
from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    IllegalArgumentError,
    InvalidStateError,
    LeaseLostError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.positions_json import Position, Row
from pyspark_checkpointer.manifests.shown import show
from pyspark_checkpointer.runtime.user_functions import log_safely

MAX_LEASE_SECONDS = 1e9
"""Maximum length of a lease in seconds: some thirty years.

Other workers read the length in milliseconds, as an integer of 64 bits.
"""


MAX_EPOCH = 2**63 - 1
"""The highest epoch that the format has."""


class _NewerEpochError(ConflictError):
    """The position already has the epoch of a later lease."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"epoch {epoch}")
        self.epoch = epoch


@dataclass(frozen=True, slots=True)
class LeaseChanges:
    """The outcome of one round of balancing for this worker.

    `gained` are new leases; `lost` are leases that now belong to another worker. `asked` are leases that another worker
    asked for: finish your work and release them, or they are taken one length of a lease later. `failed` are partitions
    whose rows were taken while their positions could not be written; the next round tries again.
    """

    gained: tuple[Lease, ...]
    lost: tuple[Lease, ...]
    asked: tuple[Lease, ...]
    failed: Mapping[str, CheckpointError]


class Leases:
    """The leases of one worker in one group.

    `worker` is a name that no other worker has; `duration` is the length of a lease in seconds. `held` has the leases
    that this worker holds, by partition. It also has lost leases as long as the worker has not noticed the loss.
    """

    def __init__(self, group: Group, worker: str, duration: float) -> None:
        if isinstance(duration, bool) or not isinstance(duration, int | float) or not 0 < duration <= MAX_LEASE_SECONDS:
            raise IllegalArgumentError(f"duration {show(duration)}: expected seconds, more than 0 and at most 10**9")
        self.group, self.worker, self.duration = group, _check_worker(worker), duration
        self.held: dict[str, Lease] = {}
        self._lease_clock = LeaseClock(group.context.host, worker, duration)
        self._ownership = GroupOwnership(group, self._lease_clock, duration)
        self._edits = OwnershipEdits(self._lease_clock, worker, duration)

    # ---- verbs ---------------------------------------------------------------------------------------------------

    async def rows(self) -> Mapping[str, Row]:
        """Return every row of the group. One read."""
        return await self._ownership.read()

    def is_live(self, row: Row) -> bool:
        """Return whether the partition has an owner who renewed it recently."""
        return self._lease_clock.is_live(row)

    async def create(self, partitions: Iterable[str]) -> None:
        """Create rows, without an owner, for the partitions that have none."""
        tokens = {name: self._token() for name in check_names(partitions)}
        await self._ownership.change(lambda rows, now: self._edits.create(rows, tokens, now))

    async def record_first(self, partition: str, value: Value) -> None:
        """Write the first value of a partition, unless it has a position.

        Nobody has taken the partition yet.
        """

        def first(position: Position | None, now: datetime) -> Position | None:
            return Position(partition, 0, value, now) if position is None else None

        await self.group.position(partition).change(first)

    async def take(self, partition: str, *, force: bool = False) -> Lease | None:
        """Return a lease if the partition may be taken; else None.

        It may be taken if it is free, expired or this worker's already. Then the delayed writes under the earlier lease
        come first, and an error of one that may be tried again is raised.

        `force` takes any partition that was created.
        """

        def allowed(row: Row | None) -> bool:
            return row is not None and (force or self._lease_clock.is_free(row))

        return await self._take_if(partition, allowed)

    async def steal(self, seen: Row) -> Lease | None:
        """Return a lease if the partition is free or equals `seen`; else None.

        It equals `seen` if it still has the same owner and epoch.
        """

        def allowed(row: Row | None) -> bool:
            return row is not None and (
                self._lease_clock.is_free(row) or (row.owner, row.epoch) == (seen.owner, seen.epoch)
            )

        return await self._take_if(seen.partition, allowed)

    async def take_again(self, lease: Lease) -> Lease | None:
        """Return a new lease in place of this one, or None.

        It is None if somebody took the partition since. The row may have expired.
        """
        token = self._token()
        lease.retaking.add(token)

        def allowed(row: Row | None) -> bool:
            # An earlier try may have taken the row, and not have come to the position.
            return row is not None and (self._edits.is_mine(row, lease) or row.etag in lease.retaking)

        taken = await self._take_if(lease.partition, allowed, token)
        if taken is None:
            self.let_go(lease)
        return taken

    async def renew(self, *leases: Lease) -> tuple[Lease, ...]:
        """Renew leases in one swap, and return those that are lost.

        These leases are renewed, or all that are held if none is given.
        """
        # This is a copy: leases may be gained or dropped while the swap is under way.
        chosen = leases or tuple(self.held.values())
        tokens = {lease.partition: self._token() for lease in chosen}
        return self._drop_lost(
            chosen, await self._ownership.change(lambda rows, now: self._edits.renew(rows, chosen, tokens, now))
        )

    async def ask(self, partition: str) -> bool:
        """Ask the owner of a partition for it.

        Return whether this worker's request is the one that stands.
        """
        rows = await self._ownership.change(lambda rows, now: self._edits.ask(rows, [partition]))
        return partition in rows and rows[partition].asked_by == self.worker

    async def release(self, lease: Lease, *, finished: bool = False) -> None:
        """Give a partition back after its delayed writes. A lost lease is only dropped.

        With `finished` no worker takes the partition any more. If a delayed write fails, its error is raised and the
        lease stays held. If giving back fails, the lease has still ended for this worker, and other workers take the
        partition once it has expired.
        """
        try:
            # The next owner reads the position as soon as the row has no owner, so delayed writes come first.
            if lease.flush is not None and not lease.lost:
                await lease.flush()
        except LeaseLostError as error:
            # Another worker owns the row by now, so there is nothing to give back.
            if lease.lost:
                self.let_go(lease)
                return
            # An update under an earlier lease on the partition was given up, which nobody was told before.
            log_safely(logging.WARNING, "partition %r: an update was not written: %s", lease.partition, error)
        try:
            await self._give_back(lease, finished)
        finally:
            # Even after an error: the swap may have taken effect unseen, and then another worker may have the partition
            # already.
            self.let_go(lease)

    async def release_seen(self, seen: Row) -> None:
        """Give back a partition whose row names this worker.

        An earlier process may have taken it. Do nothing if the partition was taken since, even by this worker. Raise
        `InvalidStateError` if another object of the same worker name still renews the lease: it belongs to the object
        that took it.
        """
        held = self.held.get(seen.partition)
        # With another epoch the row is from before, and the lease that is held stays.
        if held is not None and held.epoch == seen.epoch:
            await self.release(held)
        elif seen.owner == self.worker:
            rows = await self._give_back(seen, finished=False, only_if_expired=True)
            row = rows.get(seen.partition)
            if row is not None and self._edits.is_mine(row, seen):
                raise InvalidStateError(
                    f"partition {seen.partition!r}: {self.worker!r} has it, by a lease that an earlier process "
                    f"or another worker of the same name acquired, and that lasts {row.lease_ms / 1000:g} s "
                    "since it was renewed: wait until it has expired, or acquire_lease() it first, which ends it there"
                )

    def let_go(self, lease: Lease) -> None:
        """Drop a lease without a request.

        It is not renewed any more, and expires for the others.
        """
        # Writes under this object are refused from now on, without asking the store.
        lease.lost = True
        if self.held.get(lease.partition) is lease:
            del self.held[lease.partition]

    async def balance(self) -> LeaseChanges:
        """Run one round of balancing, and return what changed.

        It renews the leases that are held, takes free partitions, and asks for missing ones. This costs one read and
        one swap, and two more requests for each lease that is gained.
        """
        before = tuple(self.held.values())
        tokens: dict[str, str] = {}
        taken: dict[str, str] = {}

        def edit(rows: Rows, now: datetime) -> None:
            # The choice is made on each attempt anew, from the rows of the version that is swapped on.
            choice = choose(self._edits.view(rows, self.held))
            for name in rows:
                # A row keeps its token over all attempts: by it the edit recognises a row that an earlier swap of this
                # round wrote, whose answer was lost.
                tokens.setdefault(name, self._token())
            self._edits.renew(rows, before, tokens, now)
            # An earlier attempt that lost its swap may have chosen other partitions.
            taken.clear()
            taken.update((name, tokens[name]) for name in choice.take)
            self._edits.take(rows, taken, now)
            self._edits.withdraw(rows)
            expired = (name for name, row in rows.items() if self._edits.is_own_expired_request(row))
            self._edits.ask(rows, {*choice.ask, *expired})

        # With `fresh`, since remembered rows do not show how others renewed them: the first choice would take live
        # leases for expired ones, and its swap would be refused.
        rows = await self._ownership.change(edit, fresh=True)
        self._drop_lost(before, rows)
        gained, failed = await self._enter_positions(taken, rows)
        lost = [lease for lease in before if lease.lost]
        asked = [lease for lease in before if not lease.lost and self._edits.is_asked_for(rows[lease.partition])]
        return LeaseChanges(tuple(gained.values()), tuple(lost), tuple(asked), failed)

    async def forget(self, partition: str) -> None:
        """Remove a partition's row, and end this worker's lease on it.

        The recorded position stays.
        """
        await self._ownership.change(lambda rows, now: rows.pop(partition, None))
        if partition in self.held:
            self.let_go(self.held[partition])

    # ---- the ownership -------------------------------------------------------------------------------------------

    async def _take_if(
        self, partition: str, allowed: Callable[[Row | None], bool], token: str | None = None
    ) -> Lease | None:
        tokens = {check_name(partition): token or self._token()}
        held = self.held.get(partition)
        if held is not None and held.flush_kept is not None and not held.lost:
            # Under the new lease the delayed writes of this one would be refused.
            await held.flush_kept()

        def edit(rows: Rows, now: datetime) -> None:
            if allowed(rows.get(partition)):
                self._edits.take(rows, tokens, now)

        rows = await self._ownership.change(edit)
        row = rows.get(partition)
        if held is not None and row is not None and row.etag == tokens[partition] and row.epoch <= held.epoch:
            # Epochs only rise, so the row was removed and created anew. The lease from before ended with the old row,
            # and must not pass for a newer one.
            self.let_go(held)
        gained, failed = await self._enter_positions(tokens, rows)
        if failed:
            raise failed[partition]
        return gained.get(partition)

    async def _give_back(
        self, lease: Lease | Row, finished: bool, *, only_if_expired: bool = False
    ) -> Mapping[str, Row]:
        token = self._token()

        def edit(rows: Rows, now: datetime) -> None:
            self._edits.give_back(rows, lease, token, now, finished=finished, only_if_expired=only_if_expired)

        return await self._ownership.change(edit)

    # ---- the positions -------------------------------------------------------------------------------------------

    async def _enter_positions(
        self, tokens: Mapping[str, str], rows: Mapping[str, Row]
    ) -> tuple[dict[str, Lease], dict[str, CheckpointError]]:
        """Write leases into the positions of those rows that were taken with these tokens.

        Return the leases that are held then, and why others are not, both by partition.
        """
        # Another etag means that the edit left the row out, or that somebody changed it since.
        taken = [rows[name] for name, token in tokens.items() if name in rows and rows[name].etag == token]
        gained: dict[str, Lease] = {}
        failed: dict[str, CheckpointError] = {}
        behind: dict[str, tuple[Row, int]] = {}

        async def enter(row: Row) -> None:
            try:
                lease = await self._enter_position(row)
            except _NewerEpochError as error:
                if error.epoch < MAX_EPOCH:
                    behind[row.partition] = row, error.epoch + 1
                else:
                    where = self.group.position_url(row.partition)
                    failed[row.partition] = InvalidStateError(
                        f"{where}: no epoch comes after {error.epoch}: keep a copy, and delete it"
                    )
            except CheckpointError as error:
                failed[row.partition] = error
            else:
                # Held from now on, and so renewed, however long the other positions take.
                if self._hold(lease):
                    gained[row.partition] = lease

        # Each is entered to its end: a position that cannot be read or written keeps this worker from no other
        # partition.
        try:
            entering = taken
            while entering:
                results = await asyncio.gather(*map(enter, entering), return_exceptions=True)
                for unexpected in filter(None, results):
                    raise unexpected
                try:
                    entering = await self._raise_epochs(behind)
                except CheckpointError as error:
                    failed |= dict.fromkeys(behind, error)
                    break
                behind.clear()
        except BaseException:
            # The caller does not get to know these, so nobody would read their partitions.
            for lease in gained.values():
                self.let_go(lease)
            raise
        # In the order of the rows. Meanwhile another call of this worker may have taken one again.
        leases = (gained.get(row.partition) for row in taken)
        return {lease.partition: lease for lease in leases if lease is not None and not lease.lost}, failed

    async def _enter_position(self, row: Row) -> Lease:
        """Write the lease of a taken row into its position, and return the lease."""
        position = self.group.position(row.partition)
        written = await position.change(self._entering(row))
        lease = Lease(self.worker, row.partition, row.epoch, row.etag, position)
        lease.value_when_taken = None if written is None else written.value
        return lease

    def _entering(self, row: Row) -> Callable[[Position | None, datetime], Position | None]:
        """Return the change that writes the lease of a row into its position."""

        def next_position(position: Position | None, now: datetime) -> Position | None:
            if position is None:
                # The position is made even where nothing was recorded: a lease can only write over a position in which
                # it stands.
                return Position(row.partition, row.epoch, None, now, row.etag)
            self.group.check_place(row.partition, position)
            # An earlier try took effect, and its answer was lost. Nobody else drew this token.
            if position.lease == row.etag:
                return None
            # An equal epoch is refused too: an ownership that was deleted by hand begins its epochs anew, so another
            # lease may have the same number.
            if position.epoch >= row.epoch:
                raise _NewerEpochError(position.epoch)
            # From this swap on, the old owner's writes are refused. Without it, the old owner could write after the
            # new one has read where to begin (SPEC.md, Leases, step 2).
            return replace(position, epoch=row.epoch, lease=row.etag)

        return next_position

    async def _raise_epochs(self, behind: Mapping[str, tuple[Row, int]]) -> list[Row]:
        """Raise the epochs of taken rows, and return the rows that are still ours.

        Either the ownership was deleted by hand and its epochs began anew, or another worker was faster. In the first
        case the rows are still ours, and their epochs can be raised above those of the positions.
        """
        if not behind:
            return []
        tokens = {name: self._token() for name in behind}

        def edit(rows: Rows, now: datetime) -> None:
            for name, (row, epoch) in behind.items():
                self._edits.raise_epoch(rows, row, epoch, tokens[name])

        rows = await self._ownership.change(edit)
        # The etag shows whose change stands there, also where the answer to our swap was lost.
        return [rows[name] for name, token in tokens.items() if name in rows and rows[name].etag == token]

    # ---- leases that are held ------------------------------------------------------------------------------------

    def _hold(self, lease: Lease) -> bool:
        """Hold a new lease in place of older ones.

        Return False if a newer one is held by now.
        """
        older = self.held.get(lease.partition)
        # Two calls of this worker took the partition at once, and this one finished last. Only the later lease stands
        # in the position.
        if older is not None and older.epoch > lease.epoch:
            lease.lost = True
            return False
        if older is not None:
            self.let_go(older)
        self.held[lease.partition] = lease
        return True

    def _drop_lost(self, leases: Iterable[Lease], rows: Mapping[str, Row]) -> tuple[Lease, ...]:
        lost = tuple(
            lease
            for lease in leases
            if lease.lost or lease.partition not in rows or not self._edits.is_mine(rows[lease.partition], lease)
        )
        for lease in lost:
            self.let_go(lease)
        return lost

    def _token(self) -> str:
        return self.group.context.host.token(32)


def _check_worker(name: str) -> str:
    # A name that is not text would make the ownership unreadable for everybody.
    object_paths.encode_part(name)
    return name
