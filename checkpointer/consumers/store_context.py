"""Share one store among all consumers of one root in a process.

The clock and the random tokens of the store are shared too.
"""

import asyncio

from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.storage.conditional_write_check import probe


class StoreContext:
    """A store, and the source of time and of random tokens that goes with it."""

    def __init__(self, store: Store, host: Host) -> None:
        self.store, self.host = store, host
        self._check_lock = asyncio.Lock()
        self._conditional_writes_checked = False

    async def check_conditional_writes(self) -> None:
        """Raise if the store ignores the conditions of writes.

        The store is asked once in this process. It is asked before the first object is created, so that no store is
        used that would lose updates.
        """
        # Objects that are created at once wait for one check, instead of each making its own.
        async with self._check_lock:
            if not self._conditional_writes_checked:
                await probe(self.store)
                # Set only after a success: a store that could not be asked is asked again by the next creation.
                self._conditional_writes_checked = True
