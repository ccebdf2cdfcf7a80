"""Edit the rows of a group's ownership for one worker, without I/O.

Each edit changes a dictionary of rows, by partition, in place. The same edit may run on several versions of the
ownership, until one swap wins. An edit gets its tokens from outside, so that it finds its own row. If a row already has
the edit's token, an earlier swap of this edit wrote the row, and its answer was lost. Such a row stays as it is.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from pyspark_checkpointer.consumers.balance import OwnershipView
from pyspark_checkpointer.consumers.lease import Lease
from pyspark_checkpointer.consumers.lease_clock import LeaseClock
from pyspark_checkpointer.manifests.positions_json import Row

Rows = dict[str, Row]
"""The rows of one version of the ownership, by partition, to be changed in place."""

Edit = Callable[[Rows, datetime], object]
"""Function that changes the rows, at this time of the store."""


class OwnershipEdits:
    """The edits of `worker`, whose leases last `duration` seconds."""

    def __init__(self, clock: LeaseClock, worker: str, duration: float) -> None:
        self._clock, self._worker = clock, worker
        self._lease_ms = math.ceil(duration * 1000)

    def create(self, rows: Rows, tokens: Mapping[str, str], now: datetime) -> None:
        """Add rows without an owner for the partitions that have none.

        `tokens` are by partition.
        """
        for name, token in tokens.items():
            if name not in rows:
                rows[name] = Row(name, "", 0, token, now)

    def take(self, rows: Rows, tokens: Mapping[str, str], now: datetime) -> None:
        """Make the worker the owner of these partitions, each with the next epoch."""
        for name, token in tokens.items():
            row = rows.get(name) or Row(name, "", 0, "", now)
            if row.etag != token:
                rows[name] = replace(
                    row,
                    owner=self._worker,
                    epoch=row.epoch + 1,
                    etag=token,
                    modified=now,
                    lease_ms=self._lease_ms,
                    asked_by="",
                    finished=False,
                )

    def renew(self, rows: Rows, leases: Iterable[Lease], tokens: Mapping[str, str], now: datetime) -> None:
        """Give a new etag to the rows of these leases, except those that are lost."""
        for lease in leases:
            row = rows.get(lease.partition)
            # A lease that was let go is not renewed: others have to see it expire.
            if row is None or lease.lost or not self.is_mine(row, lease):
                continue
            if row.etag != tokens[lease.partition]:
                token = tokens[lease.partition]
                rows[lease.partition] = replace(row, etag=token, modified=now, lease_ms=self._lease_ms)

    def ask(self, rows: Rows, names: Iterable[str]) -> None:
        """Add a steal request to the rows of these partitions.

        A row gets a request if another worker owns it, and if it has no request yet. If the worker's own request is
        there and has expired, it is withdrawn instead. The next call asks again.
        """
        for name in names:
            row = rows.get(name)
            # There is nobody to ask, or nothing left to read.
            if row is None or row.finished or row.owner in ("", self._worker):
                continue
            if not self._clock.has_steal_request(row):
                # An expired request of our own is withdrawn first: others could not tell a repeated one from the old.
                rows[name] = replace(row, asked_by="" if row.asked_by == self._worker else self._worker)

    def withdraw(self, rows: Rows) -> None:
        """Remove the worker's steal requests from partitions that have no owner."""
        for name, row in rows.items():
            # They were released for this worker. It did not take them, since it has its share by now, and nobody else
            # may take them as long as they are promised to it.
            if not row.owner and row.asked_by == self._worker:
                rows[name] = replace(row, asked_by="")

    def give_back(
        self, rows: Rows, lease: Lease | Row, token: str, now: datetime, *, finished: bool, only_if_expired: bool
    ) -> None:
        """Remove the owner of a row, if it is this worker's with the epoch of `lease`."""
        row = rows.get(lease.partition)
        if row is None or not self.is_mine(row, lease) or (only_if_expired and self._clock.is_live(row)):
            return
        # `asked_by` stays: the partition is kept for the worker that asked for it (SPEC.md, Leases, step 6).
        rows[lease.partition] = replace(row, owner="", etag=token, modified=now, finished=finished)

    def raise_epoch(self, rows: Rows, taken: Row, epoch: int, token: str) -> None:
        """Set the epoch of a row that the worker has just taken.

        Do nothing if anybody changed the row since.
        """
        row = rows.get(taken.partition)
        # The etag is compared too: if the ownership was deleted by hand meanwhile, another row may have the same owner
        # and the same epoch.
        if row is not None and (row.owner, row.epoch, row.etag) == (self._worker, taken.epoch, taken.etag):
            rows[taken.partition] = replace(row, epoch=epoch, etag=token)

    def view(self, rows: Mapping[str, Row], leases: Mapping[str, Lease]) -> OwnershipView:
        """Return the worker's view of the rows, as holder of these leases, by partition."""
        held = [
            name
            for name, lease in leases.items()
            if name in rows and not lease.lost and self.is_mine(rows[name], lease)
        ]
        own = set(held)
        free = [name for name, row in rows.items() if self._clock.is_free(row) and name not in own]
        steal_requests = {name: row.asked_by for name, row in rows.items() if self._clock.has_steal_request(row)}
        return OwnershipView(self._worker, rows, held, free, steal_requests)

    def is_mine(self, row: Row, lease: Lease | Row) -> bool:
        """Return whether the row shows the worker as the owner, with the epoch of `lease`."""
        return (row.owner, row.epoch) == (self._worker, lease.epoch)

    def is_asked_for(self, row: Row) -> bool:
        """Return whether another worker asked for the partition, not too long ago."""
        return row.asked_by != self._worker and self._clock.has_steal_request(row)

    def is_own_expired_request(self, row: Row) -> bool:
        """Return whether the row has the worker's own request, and it has expired.

        It has expired if the worker asked for the partition too long ago.
        """
        return row.asked_by == self._worker and not self._clock.has_steal_request(row)
