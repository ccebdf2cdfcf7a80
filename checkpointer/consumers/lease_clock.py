"""Decide when leases and steal requests expire, by the watching worker's clock.

No other clock decides.

A worker notes when it first saw each row with its current `etag`. Every renewal draws a new `etag`, so a row that keeps
one for longer than its lease lasts has expired, however the clocks of other machines stand.
"""

from collections.abc import Mapping

from pyspark_checkpointer.manifests.positions_json import Ownership, Row
from pyspark_checkpointer.runtime.host import Host

STEAL_REQUEST_LEASES = 2
"""Number of lease lengths after which a steal request is ignored."""

_FirstSeen = dict[str, tuple[str, int]]
"""First sighting of a value, by partition.

It is the value, and the time in nanoseconds of the host's monotonic clock.
"""


class LeaseClock:
    """The ages of rows and of steal requests, as `worker` has seen them.

    `duration`, in seconds, is the length of this worker's leases, and of rows that do not record theirs.
    """

    def __init__(self, host: Host, worker: str, duration: float) -> None:
        self._host, self._worker, self._duration = host, worker, duration
        self._etags: _FirstSeen = {}
        self._requesters: _FirstSeen = {}

    def see(self, ownership: Ownership | None) -> Ownership:
        """Note the rows of an ownership that was just read, and return it.

        A missing ownership counts as empty.
        """
        found = ownership or Ownership({})
        now = self._host.clock()
        # Both are built anew from this version, so rows that were removed do not stay in memory.
        self._etags = _note(self._etags, {name: row.etag for name, row in found.rows.items()}, now)
        self._requesters = _note(self._requesters, {name: row.asked_by for name, row in found.rows.items()}, now)
        return found

    def is_live(self, row: Row) -> bool:
        """Return whether the row has an owner who renews it."""
        return bool(row.owner) and not self._has_expired(row)

    def is_free(self, row: Row) -> bool:
        """Return whether the worker may take the partition.

        It may take its own, an expired one, and one that has no owner and is not promised to another worker. It may
        also take one that it asked for, and whose owner has not released it for a whole lease since.
        """
        # This comes first: nobody renews a finished row, so it would look expired below.
        if row.finished:
            return False
        # A row without an owner "expires" too: this frees a partition that was promised to a worker that never came for
        # it.
        if row.owner == self._worker or self._has_expired(row):
            return True
        if row.owner:
            # The upper bound keeps a worker from taking a partition by an old request that everybody else has ignored
            # since.
            waited = self._age(self._requesters, row)
            return row.asked_by == self._worker and self._length(row) < waited <= self._request_lifetime(row)
        return row.asked_by in ("", self._worker)

    def has_steal_request(self, row: Row) -> bool:
        """Return whether a worker asked for the partition, not too long ago."""
        return bool(row.asked_by) and self._age(self._requesters, row) <= self._request_lifetime(row)

    def _has_expired(self, row: Row) -> bool:
        return self._age(self._etags, row) > self._length(row)

    def _request_lifetime(self, row: Row) -> float:
        """Return how long a steal request counts, in seconds."""
        return STEAL_REQUEST_LEASES * self._length(row)

    def _length(self, row: Row) -> float:
        """Return the duration of the row's lease in seconds."""
        # The owner's own length counts: a worker with short leases would take everything from one with long ones.
        return row.lease_ms / 1000 or self._duration

    def _age(self, first_seen: _FirstSeen, row: Row) -> float:
        """Return for how many seconds the row has been seen unchanged.

        That is 0 for a row that was never seen.
        """
        now = self._host.clock()
        # A row that was never seen is new to this worker, and gets a whole lease, however old it is by `modified`.
        return (now - first_seen.get(row.partition, ("", now))[1]) / 1e9


def _note(before: _FirstSeen, seen: Mapping[str, str], now: int) -> _FirstSeen:
    """Return the first sighting of each value.

    That is the old sighting where the value is the same, else `now`.
    """
    return {
        name: old if (old := before.get(name)) is not None and old[0] == value else (value, now)
        for name, value in seen.items()
    }
