"""Leases on partitions: who may record how far they are, proved to the store and not to a clock.

    take      ownership: owner, and epoch + 1 ─> position: the lease    one swap each, in this order
    write     position: only where the lease stands in it               one swap
    renew     ownership: a new etag for all that are held               one swap
    release   what waits is written ─> ownership: no owner              one swap

A lease ends for others when its row has not changed for the length of a lease by their own clock. For its owner it ends
when it is taken: from then on another lease stands in the position, whoever believes what. A partition that is taken
again has a new epoch, above that of its position, so a lease that was lost stays lost.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar

from pyspark_checkpointer.consumers.balance import Choice, OwnershipView, choose
from pyspark_checkpointer.consumers.group import Group, check_name
from pyspark_checkpointer.consumers.lease import Lease
from pyspark_checkpointer.consumers.lease_clock import LeaseClock
from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    DependencyError,
    IllegalArgumentError,
    InvalidStateError,
    LeaseLostError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.positions_json import Ownership, Position, Row
from pyspark_checkpointer.manifests.shown import show

T = TypeVar("T")

MAX_LEASE_SECONDS = 1e9
"""Seconds: some thirty years. Others read the length of a lease in milliseconds, as an integer of 64 bits."""

MIN_TIMEOUT_SECONDS = 5.0
"""Seconds for one look at the ownership, or one change of it, however short leases are."""


class _NewerEpochError(ConflictError):
    """A position has the epoch of a later lease than the one that enters."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"epoch {epoch}")
        self.epoch = epoch


@dataclass(frozen=True, slots=True)
class LeaseChanges:
    """What a round of balancing changed for this worker.

    `gained` are new leases. `lost` ones belong to somebody else now. `asked` are leases that another worker asked for:
    finish with them and release them, or they are taken one length of a lease later. `failed` are partitions that were
    taken, and whose positions could not be: the next round tries again.
    """

    gained: tuple[Lease, ...]
    lost: tuple[Lease, ...]
    asked: tuple[Lease, ...]
    failed: Mapping[str, CheckpointError]


class Leases:
    """The leases of one worker in one group. `worker` is a name that no other worker has; `duration` is in seconds."""

    def __init__(self, group: Group, worker: str, duration: float) -> None:
        if isinstance(duration, bool) or not isinstance(duration, int | float) or not 0 < duration <= MAX_LEASE_SECONDS:
            raise IllegalArgumentError(f"duration {show(duration)}: expected seconds, more than 0 and at most 10**9")
        self.group, self.worker, self.duration = group, _check_worker(worker), duration
        self.held: dict[str, Lease] = {}
        self._lease_ms = math.ceil(duration * 1000)
        self._lease_clock = LeaseClock(group.context.host, worker, duration)

    # ---- what people use -----------------------------------------------------------------------------------------

    async def rows(self) -> Mapping[str, Row]:
        """Return every row of the group. One read."""
        ownership = await self._in_time(self.group.ownership.read())
        return self._lease_clock.see(ownership).rows

    def is_live(self, row: Row) -> bool:
        """Return whether somebody has the partition, and renewed it not too long ago."""
        return self._lease_clock.is_live(row)

    async def create(self, partitions: Iterable[str]) -> None:
        """Make rows, without an owner, for those of the partitions that have none."""
        if isinstance(partitions, str) or not isinstance(partitions, Iterable):
            raise IllegalArgumentError(f"{partitions!r:.60}: expected a list of names of partitions")
        wanted = {check_name(name): self._token() for name in partitions}

        def change(rows: dict[str, Row], now: datetime) -> None:
            for name, token in wanted.items():
                if name not in rows:
                    rows[name] = Row(name, "", 0, token, now)

        await self._change(change)

    async def take(self, partition: str, *, force: bool = False) -> Lease | None:
        """Return a lease, where the partition is free, expired or this worker's already; else None. `force` takes any.

        Only what was created can be taken.
        """

        def allowed(row: Row | None) -> bool:
            return row is not None and (force or self._lease_clock.is_free(row))

        return await self._take_where(partition, allowed)

    async def steal(self, seen: Row) -> Lease | None:
        """A lease, where the partition is free, or still with the owner of this row; else, or without a row, None."""

        def allowed(row: Row | None) -> bool:
            return row is not None and (
                self._lease_clock.is_free(row) or (row.owner, row.epoch) == (seen.owner, seen.epoch)
            )

        return await self._take_where(seen.partition, allowed)

    async def _take_where(self, partition: str, allowed: Callable[[Row | None], bool]) -> Lease | None:
        tokens = {check_name(partition): self._token()}

        def change(rows: dict[str, Row], now: datetime) -> None:
            if allowed(rows.get(partition)):
                self._take(rows, tokens, now)

        gained, failed = await self._enter(tokens, await self._change(change))
        if failed:
            raise failed[partition]
        return gained.get(partition)

    async def renew(self, *leases: Lease) -> tuple[Lease, ...]:
        """Renew these leases, or all that are held. One swap. Those that are lost."""
        chosen = leases or tuple(self.held.values())
        tokens = {lease.partition: self._token() for lease in chosen}
        return self._drop_lost(chosen, await self._change(lambda rows, now: self._renew(rows, chosen, tokens, now)))

    async def ask(self, partition: str) -> bool:
        """Ask the owner of a partition for it. Whether this worker is the one that it will go to."""
        rows = await self._change(lambda rows, now: self._ask(rows, [partition]))
        return partition in rows and rows[partition].asked_by == self.worker

    async def release(self, lease: Lease, *, finished: bool = False) -> None:
        """Give a partition back, once what waits to be recorded of it is written. A lost lease is let go.

        With `finished` nobody takes it any more. Where what waits cannot be written, that is raised, and the lease is
        held as before. Where giving it back fails, the lease has ended for this worker all the same: others take the
        partition once it was not renewed for long enough.
        """
        try:
            if lease.flush is not None and not lease.lost:
                await lease.flush()
        except LeaseLostError:
            self.let_go(lease)
            return
        try:
            await self._give_back(lease, finished)
        finally:
            self.let_go(lease)

    async def release_seen(self, seen: Row) -> None:
        """Give a partition back that a row shows as this worker's, as one does that a process before this one took.

        Where it was taken since, by this worker too, nothing changes. A lease belongs to the object that took it: while
        another one of the same name renews it, `InvalidStateError`.
        """
        held = self.held.get(seen.partition)
        if held is not None and held.epoch == seen.epoch:
            await self.release(held)
        elif seen.owner == self.worker:
            rows = await self._give_back(seen, finished=False, expired_only=True)
            row = rows.get(seen.partition)
            if row is not None and self._is_mine(row, seen):
                raise InvalidStateError(
                    f"partition {seen.partition!r}: {self.worker!r} has it, by a lease that was acquired elsewhere, "
                    f"in a process before or under a name that is not unique, and that lasts {row.lease_ms / 1000:g} s "
                    "since it was renewed: wait until it has expired, or acquire_lease() it first, which ends it there"
                )

    def let_go(self, lease: Lease) -> None:
        """Hold a lease no more, and tell nobody: it is not renewed, and expires."""
        lease.lost = True
        if self.held.get(lease.partition) is lease:
            del self.held[lease.partition]

    async def _give_back(self, lease: Lease | Row, finished: bool, *, expired_only: bool = False) -> Mapping[str, Row]:
        token = self._token()

        def change(rows: dict[str, Row], now: datetime) -> None:
            row = rows.get(lease.partition)
            if row is None or not self._is_mine(row, lease) or (expired_only and self._lease_clock.is_live(row)):
                return
            rows[lease.partition] = replace(row, owner="", etag=token, modified=now, finished=finished)

        return await self._change(change)

    async def balance(self) -> LeaseChanges:
        """Return one round: renew what is held, take what is free, ask for what is missing. One read and one swap.

        Two more requests for each lease that is gained.
        """
        before = tuple(self.held.values())
        tokens: dict[str, str] = {}
        taken: dict[str, str] = {}

        def change(rows: dict[str, Row], now: datetime) -> None:
            choice = self._choose(rows)
            for name in rows:
                tokens.setdefault(name, self._token())
            self._renew(rows, before, tokens, now)
            taken.clear()
            taken.update((name, tokens[name]) for name in choice.take)
            self._take(rows, taken, now)
            self._ask(rows, {*choice.ask, *(name for name in rows if self._is_stale(rows[name]))})

        rows = await self._change(change, fresh=True)
        self._drop_lost(before, rows)
        gained, failed = await self._enter(taken, rows)
        lost = [lease for lease in before if lease.lost]
        asked = [lease for lease in before if not lease.lost and self._is_asked(rows[lease.partition])]
        return LeaseChanges(tuple(gained.values()), tuple(lost), tuple(asked), failed)

    async def forget(self, partition: str) -> None:
        """Remove a partition's row, and end this worker's lease on it. What was recorded of it stays."""
        await self._change(lambda rows, now: rows.pop(partition, None))
        if partition in self.held:
            self.let_go(self.held[partition])

    # ---- steps on the rows of one version ------------------------------------------------------------------------

    async def _change(
        self, step: Callable[[dict[str, Row], datetime], object], *, fresh: bool = False
    ) -> Mapping[str, Row]:
        """Return the rows as they stand once `step` was done on them."""

        def plan(ownership: Ownership | None, now: datetime) -> Ownership | None:
            before = self._lease_clock.see(ownership)
            rows = dict(before.rows)
            step(rows, now)
            return None if rows == before.rows else replace(before, rows=rows)

        return self._lease_clock.see(await self._in_time(self.group.ownership.change(plan, fresh=fresh))).rows

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Return one request that hangs must not cost all leases: a later one may be answered while they are held."""
        allowed = max(self.duration / 2, MIN_TIMEOUT_SECONDS)
        try:
            async with asyncio.timeout(allowed):
                return await work
        except TimeoutError:
            where = f"{self.group.context.store.url}/{self.group.folder}"
            raise DependencyError(f"{where}: the store told nothing of who owns what within {allowed:g} s") from None

    def _take(self, rows: dict[str, Row], tokens: Mapping[str, str], now: datetime) -> None:
        for name, token in tokens.items():
            row = rows.get(name) or Row(name, "", 0, "", now)
            if row.etag != token:  # else a swap whose answer was lost took effect
                rows[name] = replace(
                    row,
                    owner=self.worker,
                    epoch=row.epoch + 1,
                    etag=token,
                    modified=now,
                    lease_ms=self._lease_ms,
                    asked_by="",
                    finished=False,
                )

    def _renew(self, rows: dict[str, Row], leases: Iterable[Lease], tokens: Mapping[str, str], now: datetime) -> None:
        for lease in leases:
            row = rows.get(lease.partition)
            if row is None or lease.lost or not self._is_mine(row, lease):
                continue
            if row.etag != tokens[lease.partition]:
                token = tokens[lease.partition]
                rows[lease.partition] = replace(row, etag=token, modified=now, lease_ms=self._lease_ms)

    def _ask(self, rows: dict[str, Row], names: Iterable[str]) -> None:
        for name in names:
            row = rows.get(name)
            if row is None or row.finished or row.owner in ("", self.worker):
                continue
            if not self._lease_clock.has_steal_request(row):
                # A wish of its own that got too old is taken back first: nobody could tell it from a new one.
                rows[name] = replace(row, asked_by="" if row.asked_by == self.worker else self.worker)

    def _choose(self, rows: Mapping[str, Row]) -> Choice:
        held = [
            name
            for name, lease in self.held.items()
            if name in rows and not lease.lost and self._is_mine(rows[name], lease)
        ]
        free = [name for name, row in rows.items() if self._lease_clock.is_free(row) and name not in held]
        steal_requests = {name: row.asked_by for name, row in rows.items() if self._lease_clock.has_steal_request(row)}
        return choose(OwnershipView(self.worker, rows, held, free, steal_requests))

    # ---- leases ----------------------------------------------------------------------------------------------------

    async def _enter(
        self, tokens: Mapping[str, str], rows: Mapping[str, Row]
    ) -> tuple[dict[str, Lease], dict[str, CheckpointError]]:
        """Leases on those partitions whose rows were taken with these tokens, and why others of them have none."""
        taken = [rows[name] for name, token in tokens.items() if name in rows and rows[name].etag == token]
        results = await asyncio.gather(*(self._stamp(row) for row in taken), return_exceptions=True)
        gained: dict[str, Lease] = {}
        failed: dict[str, CheckpointError] = {}
        for row, result in zip(taken, results, strict=True):
            if isinstance(result, CheckpointError):
                failed[row.partition] = result
            elif isinstance(result, BaseException):
                raise result
            elif result is not None and self._hold(result):
                gained[row.partition] = result
        return gained, failed

    async def _stamp(self, row: Row) -> Lease | None:
        """The lease of a row that was taken, once it stands in the position; None where somebody took it since."""
        document = self.group.position(row.partition)
        while True:
            try:
                position = await document.change(_entering(row))
            except _NewerEpochError as error:
                # The ownership was removed by hand and began anew, or another worker was faster: its row tells.
                raised = await self._raise_epoch(row, error.epoch + 1)
                if raised is None:
                    return None
                row = raised
            else:
                lease = Lease(self.worker, row.partition, row.epoch, row.etag, document)
                lease.value_when_taken = None if position is None else position.value
                return lease

    async def _raise_epoch(self, row: Row, epoch: int) -> Row | None:
        token = self._token()

        def change(rows: dict[str, Row], now: datetime) -> None:
            found = rows.get(row.partition)
            if found is not None and (found.owner, found.epoch, found.etag) == (self.worker, row.epoch, row.etag):
                rows[row.partition] = replace(found, epoch=epoch, etag=token)

        found = (await self._change(change)).get(row.partition)
        return found if found is not None and found.etag == token else None

    def _hold(self, lease: Lease) -> bool:
        """Keep a new lease in the place of older ones, unless a newer one is there by now."""
        older = self.held.get(lease.partition)
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
            if lease.lost or lease.partition not in rows or not self._is_mine(rows[lease.partition], lease)
        )
        for lease in lost:
            self.let_go(lease)
        return lost

    def _is_asked(self, row: Row) -> bool:
        return row.asked_by != self.worker and self._lease_clock.has_steal_request(row)

    def _is_stale(self, row: Row) -> bool:
        return row.asked_by == self.worker and not self._lease_clock.has_steal_request(row)

    def _is_mine(self, row: Row, lease: Lease | Row) -> bool:
        return (row.owner, row.epoch) == (self.worker, lease.epoch)

    def _token(self) -> str:
        return self.group.context.host.token(32)


def _check_worker(name: str) -> str:
    object_paths.encode_part(name)  # a name that is no text, in a row, would keep everybody from reading the ownership
    return name


def _entering(row: Row) -> Callable[[Position | None, datetime], Position]:
    """Put the lease of a row into its position."""

    def plan(position: Position | None, now: datetime) -> Position:
        if position is None:
            return Position(row.partition, row.epoch, None, now, row.etag)
        if position.epoch >= row.epoch:
            raise _NewerEpochError(position.epoch)
        return replace(position, epoch=row.epoch, lease=row.etag)

    return plan
