"""Leases on partitions: who may record how far they are, proved to the store and not to a clock.

    take      ownership: owner and epoch + 1 ─> position: the same epoch    one swap each, in this order
    write     position: only where it has the epoch of the lease            one swap
    renew     ownership: a new etag for all that are held                   one swap
    release   what waits is written ─> ownership: no owner                  one swap

A lease ends for others when its row has not changed for the length of a lease by their own clock. For its owner it ends
when it is taken: from then on the position has another epoch, whoever believes what. A partition that is taken again has
a new epoch, so a lease that was lost stays lost.
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from checkpointer.errors import ConflictError, IllegalArgumentError, LeaseLostError
from checkpointer.progress.balance import Choice, Look, choose
from checkpointer.progress.document import Document
from checkpointer.progress.group import Group
from manifests.model import Json
from manifests.progress import Ownership, Position, Row

Value = Mapping[str, Json]

WISH_LEASES = 2
"""Lengths of a lease after which a wish counts no more."""


class _AheadError(ConflictError):
    """A position has the epoch of a later lease than the one that enters."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"epoch {epoch}")
        self.epoch = epoch


class Lease:
    """One worker's hold on one partition, until it is released or lost. `found` is the position as it was then."""

    def __init__(self, owner: str, partition: str, epoch: int, document: Document[Position]) -> None:
        self.owner, self.partition, self.epoch = owner, partition, epoch
        self.found: Value | None = None
        self.lost = False
        self.flush: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._document = document

    def __repr__(self) -> str:
        return f"<Lease of {self.partition!r} by {self.owner!r}, epoch {self.epoch}{', lost' if self.lost else ''}>"

    async def write(self, change: Callable[[Value | None], Value | None]) -> Value | None:
        """Record what `change` makes of the position, or leave it where that is None. What stands then.

        `LeaseLostError`, and nothing is written, once the partition has been taken by anybody, this worker included.
        """
        self.check()

        def plan(position: Position | None, now: datetime) -> Position | None:
            if position is None or position.epoch != self.epoch:
                raise self.lose()
            value = change(position.value)
            return None if value is None else replace(position, value=value, modified=now)

        try:
            position = await self._document.change(plan)
        except LeaseLostError:
            self.lost = True
            raise
        return None if position is None else position.value

    def check(self) -> None:
        if self.lost:
            raise self.lose()

    def lose(self) -> LeaseLostError:
        return LeaseLostError(
            f"partition {self.partition!r}: the lease of {self.owner!r} (epoch {self.epoch}) has ended: "
            "stop reading the partition; its next owner goes on from what was recorded"
        )


@dataclass(frozen=True, slots=True)
class Balance:
    """What a round of balancing changed for this worker.

    `gained` are new leases. `lost` ones belong to somebody else now. `asked` are leases that another worker asked for:
    finish with them and release them, or they are taken one length of a lease later.
    """

    gained: tuple[Lease, ...]
    lost: tuple[Lease, ...]
    asked: tuple[Lease, ...]


class Leases:
    """The leases of one worker in one group. `worker` is a name that no other worker has; `duration` is in seconds."""

    def __init__(self, group: Group, worker: str, duration: float) -> None:
        if not isinstance(worker, str) or not worker:
            raise IllegalArgumentError(f"worker {worker!r:.60}: expected a name of at least one character")
        if isinstance(duration, bool) or not isinstance(duration, int | float) or not 0 < duration < float("inf"):
            raise IllegalArgumentError(f"duration {duration!r:.60}: expected seconds, more than 0")
        self.group, self.worker, self.duration = group, worker, duration
        self.held: dict[str, Lease] = {}
        self._rows_since: dict[str, tuple[str, int]] = {}
        self._wishes_since: dict[str, tuple[str, int]] = {}

    # ---- what people use -----------------------------------------------------------------------------------------

    async def rows(self) -> Mapping[str, Row]:
        """Every row of the group. One read."""
        ownership = await self.group.ownership.read()
        return self._seen(ownership).rows

    async def create(self, partitions: Iterable[str]) -> None:
        """Make rows, without an owner, for those of the partitions that have none."""
        wanted = {name: self._token() for name in partitions}

        def change(rows: dict[str, Row], now: datetime) -> None:
            for name in wanted.keys() - rows.keys():
                rows[name] = Row(name, "", 0, wanted[name], now)

        await self._change(change)

    async def take(self, partition: str, *, force: bool = False) -> Lease | None:
        """A lease, where the partition is free, expired or this worker's already; else None. `force` takes it anyway."""
        tokens = {partition: self._token()}

        def change(rows: dict[str, Row], now: datetime) -> None:
            if force or partition not in rows or partition in self._free(rows):
                self._take(rows, tokens, now)

        return (await self._enter(tokens, await self._change(change))).get(partition)

    async def renew(self, *leases: Lease) -> tuple[Lease, ...]:
        """Renew these leases, or all that are held. One swap. Those that are lost."""
        chosen = leases or tuple(self.held.values())
        tokens = {lease.partition: self._token() for lease in chosen}
        return self._drop_lost(chosen, await self._change(lambda rows, now: self._renew(rows, chosen, tokens, now)))

    async def want(self, partition: str) -> bool:
        """Ask the owner of a partition for it. Whether this worker is the one that it will go to."""
        tokens = {partition: self._token()}
        rows = await self._change(lambda rows, now: self._want(rows, tokens))
        return partition in rows and rows[partition].wanted_by == self.worker

    async def release(self, lease: Lease, *, finished: bool = False) -> None:
        """Give a partition back, once what waits to be recorded of it is written. A lost lease is let go.

        With `finished` nobody takes it any more.
        """
        if lease.flush is not None and not lease.lost:
            await lease.flush()
        token = self._token()

        def change(rows: dict[str, Row], now: datetime) -> None:
            row = rows.get(lease.partition)
            if row is not None and self._is_mine(row, lease):
                rows[lease.partition] = replace(row, owner="", etag=token, modified=now, finished=finished)

        await self._change(change)
        self._drop(lease)

    async def balance(self) -> Balance:
        """One round: renew what is held, take what is free, ask for what is missing. One read and one swap.

        Two more requests for each lease that is gained.
        """
        await self.group.ownership.read()
        before = tuple(self.held.values())
        tokens: dict[str, str] = {}
        taken: dict[str, str] = {}

        def change(rows: dict[str, Row], now: datetime) -> None:
            choice = self._choose(rows)
            for name in (*rows, *choice.take):
                tokens.setdefault(name, self._token())
            self._renew(rows, before, tokens, now)
            taken.clear()
            taken.update((name, tokens[name]) for name in choice.take)
            self._take(rows, taken, now)
            self._want(rows, {name: tokens[name] for name in choice.want})

        rows = await self._change(change)
        lost = self._drop_lost(before, rows)
        gained = await self._enter({name: row.etag for name, row in rows.items() if row.etag == tokens.get(name)}, rows)
        asked = [
            lease
            for name, lease in self.held.items()
            if rows[name].wanted_by not in ("", self.worker) and name not in gained
        ]
        return Balance(tuple(gained.values()), lost, tuple(asked))

    async def forget(self, partition: str) -> None:
        """Remove a partition's row. What was recorded of it stays."""
        await self._change(lambda rows, now: rows.pop(partition, None))

    # ---- steps on the rows of one version ------------------------------------------------------------------------

    async def _change(self, step: Callable[[dict[str, Row], datetime], object]) -> Mapping[str, Row]:
        """The rows as they stand once `step` was done on them."""

        def plan(ownership: Ownership | None, now: datetime) -> Ownership | None:
            before = self._seen(ownership)
            rows = dict(before.rows)
            step(rows, now)
            return None if rows == before.rows else replace(before, rows=rows)

        return self._seen(await self.group.ownership.change(plan)).rows

    def _take(self, rows: dict[str, Row], tokens: Mapping[str, str], now: datetime) -> None:
        for name, token in tokens.items():
            row = rows.get(name) or Row(name, "", 0, "", now)
            if row.etag != token:  # else a swap whose answer was lost took effect
                rows[name] = replace(
                    row, owner=self.worker, epoch=row.epoch + 1, etag=token, wanted_by="", modified=now, finished=False
                )

    def _renew(self, rows: dict[str, Row], leases: Iterable[Lease], tokens: Mapping[str, str], now: datetime) -> None:
        for lease in leases:
            row = rows.get(lease.partition)
            if row is not None and self._is_mine(row, lease) and row.etag != tokens[lease.partition]:
                rows[lease.partition] = replace(row, etag=tokens[lease.partition], modified=now)

    def _want(self, rows: dict[str, Row], tokens: Mapping[str, str]) -> None:
        for name in tokens:
            row = rows.get(name)
            if row is None or row.finished or row.owner in ("", self.worker):
                continue
            if not row.wanted_by or self._wish_age(row) > WISH_LEASES * self.duration:
                rows[name] = replace(row, wanted_by=self.worker)

    def _choose(self, rows: Mapping[str, Row]) -> Choice:
        held = [name for name, lease in self.held.items() if name in rows and self._is_mine(rows[name], lease)]
        expired = [name for name, row in rows.items() if self._wish_age(row) > WISH_LEASES * self.duration]
        free = [name for name in self._free(rows) if name not in held]
        return choose(Look(self.worker, rows, held, free, expired))

    # ---- what this worker saw, by its own clock --------------------------------------------------------------------

    def _seen(self, ownership: Ownership | None) -> Ownership:
        """Note since when each row is as it is."""
        found = ownership or Ownership({})
        now = self.group.space.host.clock()
        rows = {name: (row.etag, now) for name, row in found.rows.items()}
        wishes = {name: (row.wanted_by, now) for name, row in found.rows.items()}
        self._rows_since = {name: _since(self._rows_since, name, row) for name, row in rows.items()}
        self._wishes_since = {name: _since(self._wishes_since, name, wish) for name, wish in wishes.items()}
        return found

    def _free(self, rows: Mapping[str, Row]) -> set[str]:
        """What this worker may take: its own, what nobody has or has promised, and what is not renewed any more."""
        return {name for name, row in rows.items() if not row.finished and self._is_free(row)}

    def _is_free(self, row: Row) -> bool:
        if row.owner == self.worker or self._age(self._rows_since, row) > self.duration:
            return True
        if row.owner:
            return row.wanted_by == self.worker and self._wish_age(row) > self.duration
        return row.wanted_by in ("", self.worker)

    def _wish_age(self, row: Row) -> float:
        return self._age(self._wishes_since, row) if row.wanted_by else 0.0

    def _age(self, since: Mapping[str, tuple[str, int]], row: Row) -> float:
        """Seconds since this worker first saw the row, or its wish, as it is."""
        now = self.group.space.host.clock()
        return (now - since.get(row.partition, ("", now))[1]) / 1e9

    # ---- leases ----------------------------------------------------------------------------------------------------

    async def _enter(self, tokens: Mapping[str, str], rows: Mapping[str, Row]) -> dict[str, Lease]:
        """Leases on those partitions whose rows were taken with these tokens: their positions get the new epoch."""
        gained = {}
        for name, token in tokens.items():
            if name in rows and rows[name].etag == token and (lease := await self._stamp(rows[name])):
                self._drop_older(name)
                gained[name] = self.held[name] = lease
        return gained

    async def _stamp(self, row: Row) -> Lease | None:
        """The lease of a row that was taken; None where somebody has taken it since."""
        document = self.group.position(row.partition)
        while True:
            lease = Lease(self.worker, row.partition, row.epoch, document)

            def plan(position: Position | None, now: datetime, epoch: int = row.epoch) -> Position | None:
                if position is None:
                    return Position(row.partition, epoch, None, now)
                if position.epoch > epoch:
                    raise _AheadError(position.epoch)
                return None if position.epoch == epoch else replace(position, epoch=epoch)

            try:
                position = await document.change(plan)
            except _AheadError as error:
                # The ownership was removed by hand and began anew, or another worker was faster: its row tells.
                raised = await self._raise_epoch(row, error.epoch + 1)
                if raised is None:
                    return None
                row = raised
            else:
                lease.found = None if position is None else position.value
                return lease

    async def _raise_epoch(self, row: Row, epoch: int) -> Row | None:
        raised = replace(row, epoch=epoch, etag=self._token())

        def change(rows: dict[str, Row], now: datetime) -> None:
            found = rows.get(row.partition)
            if found is not None and (found.owner, found.epoch) == (self.worker, row.epoch):
                rows[row.partition] = raised

        rows = await self._change(change)
        return raised if rows.get(row.partition) == raised else None

    def _drop_lost(self, leases: Iterable[Lease], rows: Mapping[str, Row]) -> tuple[Lease, ...]:
        lost = tuple(
            lease
            for lease in leases
            if lease.lost or lease.partition not in rows or not self._is_mine(rows[lease.partition], lease)
        )
        for lease in lost:
            self._drop(lease)
        return lost

    def _drop_older(self, partition: str) -> None:
        if partition in self.held:
            self._drop(self.held[partition])

    def _drop(self, lease: Lease) -> None:
        lease.lost = True
        if self.held.get(lease.partition) is lease:
            del self.held[lease.partition]

    def _is_mine(self, row: Row, lease: Lease) -> bool:
        return (row.owner, row.epoch) == (self.worker, lease.epoch)

    def _token(self) -> str:
        return self.group.space.host.token(32)


def _since(before: Mapping[str, tuple[str, int]], name: str, found: tuple[str, int]) -> tuple[str, int]:
    old = before.get(name)
    return old if old is not None and old[0] == found[0] else found
