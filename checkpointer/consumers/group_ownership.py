"""Read and change a group's ownership for one worker.

Each read or change has a limited time.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from pyspark_checkpointer.consumers.group import Group
from pyspark_checkpointer.consumers.lease_clock import LeaseClock
from pyspark_checkpointer.consumers.ownership_edits import Edit
from pyspark_checkpointer.errors import DependencyError
from pyspark_checkpointer.manifests.positions_json import Ownership, Row

T = TypeVar("T")

MIN_TIMEOUT_SECONDS = 5.0
"""Minimum time in seconds that one read or change of the ownership has.

It applies however short leases are. Leases of less than twice this time may end while a request hangs. The worker then
loses its leases, but no position: the next owner of the partition writes another lease into it, and writes under the
old one are refused.
"""


class GroupOwnership:
    """The rows of a group, as one worker sees them.

    The leases of the worker last `duration` seconds. Every version that passes through here is shown to `clock`, which
    notes how long each row stays the same.
    """

    def __init__(self, group: Group, clock: LeaseClock, duration: float) -> None:
        self._group, self._clock = group, clock
        # Very short leases still leave a slow store the time to answer at all.
        self._timeout = max(duration / 2, MIN_TIMEOUT_SECONDS)

    async def read(self) -> Mapping[str, Row]:
        """Return every row of the group, by partition."""
        return self._clock.see(await self._in_time(self._group.ownership.read())).rows

    async def change(self, edit: Edit, *, fresh: bool = False) -> Mapping[str, Row]:
        """Apply an edit in one swap, and return the rows as they stand then.

        With `fresh` the rows are read first.
        """

        def next_ownership(ownership: Ownership | None, now: datetime) -> Ownership | None:
            # The clock sees each version before the edit does, since the edit asks it which rows have expired.
            before = self._clock.see(ownership)
            rows = dict(before.rows)
            edit(rows, now)
            # An edit that changes nothing writes nothing. A swap would only make the swaps of other workers fail.
            return None if rows == before.rows else replace(before, rows=rows)

        after = await self._in_time(self._group.ownership.change(next_ownership, fresh=fresh))
        return self._clock.see(after).rows

    async def _in_time(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`, within half a lease.

        Raise `DependencyError` if it takes longer. A request that hangs would otherwise cost all leases. After half a
        lease there is time for another request. With short leases the request has `MIN_TIMEOUT_SECONDS`; the leases may
        have ended by then.
        """
        try:
            async with asyncio.timeout(self._timeout):
                return await work
        except TimeoutError:
            where = f"{self._group.context.store.url}/{self._group.folder}"
            raise DependencyError(f"{where}: the store did not return the owners within {self._timeout:g} s") from None
