"""What one worker saw of the rows of its group, and since when by its own clock: nobody else's clock decides."""

from collections.abc import Mapping

from pyspark_checkpointer.manifests.positions_json import Ownership, Row
from pyspark_checkpointer.runtime.host import Host

WISH_LEASES = 2
"""Lengths of a lease after which a wish counts no more."""

_Since = dict[str, tuple[str, int]]
"""By partition: what was seen, and when first, in nanoseconds of the host's clock."""


class Watch:
    """`worker` is who watches. A row that is not renewed for as long as its own lease is has expired.

    `duration`, in seconds, is the length of this worker's leases, and of rows that do not say theirs.
    """

    def __init__(self, host: Host, worker: str, duration: float) -> None:
        self._host, self._worker, self._duration = host, worker, duration
        self._rows: _Since = {}
        self._wishes: _Since = {}

    def see(self, ownership: Ownership | None) -> Ownership:
        """Note since when each row, and each wish, is as it is."""
        found = ownership or Ownership({})
        now = self._host.clock()
        self._rows = _since(self._rows, {name: row.etag for name, row in found.rows.items()}, now)
        self._wishes = _since(self._wishes, {name: row.asked_by for name, row in found.rows.items()}, now)
        return found

    def is_live(self, row: Row) -> bool:
        """Return whether it has an owner who renews it."""
        return bool(row.owner) and not self._has_expired(row)

    def is_free(self, row: Row) -> bool:
        """Whether the worker may take it: its own, what nobody has or has promised, and what is not renewed any more.

        What its owner was asked for a whole lease ago, and still has, is free for who asked.
        """
        if row.finished:
            return False
        if row.owner == self._worker or self._has_expired(row):
            return True
        if row.owner:
            return row.asked_by == self._worker and self._length(row) < self._age(self._wishes, row) <= self._patience(
                row
            )
        return row.asked_by in ("", self._worker)

    def _has_expired(self, row: Row) -> bool:
        return self._age(self._rows, row) > self._length(row)

    def _patience(self, row: Row) -> float:
        return WISH_LEASES * self._length(row)

    def _length(self, row: Row) -> float:
        """Of the lease that this row is of, in seconds."""
        return row.lease_ms / 1000 or self._duration

    def has_wish(self, row: Row) -> bool:
        """Return whether somebody asked for it, and not too long ago."""
        return bool(row.asked_by) and self._age(self._wishes, row) <= self._patience(row)

    def _age(self, since: _Since, row: Row) -> float:
        now = self._host.clock()
        return (now - since.get(row.partition, ("", now))[1]) / 1e9


def _since(before: _Since, seen: Mapping[str, str], now: int) -> _Since:
    return {
        name: old if (old := before.get(name)) is not None and old[0] == what else (what, now)
        for name, what in seen.items()
    }
