"""Many small updates become few writes: the latest value for each key is held, and handed over in the background.

There is no thread here: values are put from anywhere, timers and writes run on the library's loop.
"""

import asyncio
import logging
import math
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from checkpointer import runtime
from checkpointer.errors import IllegalArgumentError, InvalidStateError

K = TypeVar("K")
V = TypeVar("V")

logger = logging.getLogger("checkpointer")

LAST_TRY = 5
"""Writes in a row that may fail before values that nobody else refers to any more are given up."""

_tasks: set["asyncio.Task[None]"] = set()
"""Writes in the background: the loop itself refers to them only weakly."""


class Coalescer(Generic[K, V]):
    """Holds the latest value for each key, and writes all of them once enough came or the first waited long enough.

    What a failed write did not write stays held, unless a newer value came meanwhile, and is tried again: after
    `interval`, with the next `max_updates` values, or by `flush()`. The first failure of a row is logged.

    Dropped without `close()`, it lives until it has written what it holds, or has failed to often enough. Values
    that are held when the process ends are lost: close it. A forked child starts with nothing held; what was held is
    the parent's to write.
    """

    def __init__(
        self,
        write: Callable[[Mapping[K, V]], Coroutine[Any, Any, None]],
        *,
        max_updates: int,
        interval: float,
        name: str,
    ) -> None:
        """Hold nothing yet.

        Args:
            write: A coroutine function, called on the library's loop with everything held, never twice at once.
            max_updates: Values after which they are written without waiting, several for one key counted each.
            interval: Seconds that a value may wait for others.
            name: What is written, for the log and for errors.
        """
        if isinstance(max_updates, bool) or not isinstance(max_updates, int) or max_updates < 1:
            raise IllegalArgumentError(f"max_updates={max_updates!r:.40}: expected an integer of at least 1")
        if isinstance(interval, bool) or not isinstance(interval, int | float) or not 0 < interval < math.inf:
            raise IllegalArgumentError(f"interval={interval!r:.40}: expected seconds, more than 0")
        self._write = write
        self._max_updates = max_updates
        self._interval = float(interval)
        self._name = name
        self._closed = False
        self._start()
        _all.add(self)

    def _start(self) -> None:
        self._lock = threading.Lock()  # for the values and their number; never held while anything is awaited
        self._held: dict[K, V] = {}
        self._leaving: dict[K, V] = {}
        self._came = 0
        # The rest belongs to the loop's thread.
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._logged = False

    def __repr__(self) -> str:
        return f"<Coalescer {self._name}: {len(self.pending)} held>"

    @property
    def pending(self) -> Mapping[K, V]:
        """The values that are not known to be written, the latest of each key."""
        with self._lock:
            return {**self._leaving, **self._held}

    def put(self, key: K, value: V) -> None:
        """Hold `value` in place of what is held for `key`. From any thread or loop; never waits for a write.

        Raises `InvalidStateError` once `close()` was called.
        """
        with self._lock:
            self.check_open()
            self._held[key] = value
            self._came += 1
            came = self._came
        if came == self._max_updates:
            runtime.loop().call_soon_threadsafe(self._begin)
        elif came == 1:
            runtime.loop().call_soon_threadsafe(self._arm)

    def check_open(self) -> None:
        """Raise `InvalidStateError` once `close()` was called."""
        if self._closed:
            raise InvalidStateError(f"{self._name}: was closed; what came later is not written")

    async def flush(self) -> None:
        """Return once everything put before is written. Raises what the write raised."""
        await runtime.bridge(self._hand_over())

    async def close(self) -> None:
        """Write what is held, and take no more. A second call finds nothing to do.

        Raises what the write raised. What is held stays held then, but is no longer tried in the background, where it
        could come after what the caller does next: call `close()` or `flush()` again.
        """
        with self._lock:
            self._closed = True
        await self.flush()

    # --- on the loop ---

    def _begin(self) -> None:
        if self._closed:
            return
        task = asyncio.get_running_loop().create_task(self._try())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    async def _try(self) -> None:
        try:
            await self._hand_over()
        except Exception as error:
            if not self._logged:
                self._logged = True
                # As text: a record that a handler keeps would keep the traceback, and with it everything here.
                logger.warning("%s: not written, tried again every %g s: %s", self._name, self._interval, str(error))

    async def _hand_over(self) -> None:
        async with self._turn:
            self._disarm()
            with self._lock:
                self._leaving, self._held, self._came = self._held, {}, 0
            try:
                if self._leaving:
                    await self._write(self._leaving)
            except BaseException:
                self._failures += 1
                with self._lock:
                    self._held, self._leaving, self._came = {**self._leaving, **self._held}, {}, 0
                self._arm()
                raise
            self._leaving, self._failures, self._logged = {}, 0, False

    def _arm(self) -> None:
        """Write after `interval` at the latest, if there is anything to write by then."""
        if self._timer is not None or not self._held:
            return
        loop = asyncio.get_running_loop()
        if self._failures < LAST_TRY:
            self._timer = loop.call_later(self._interval, self._fire)
        else:
            self._timer = loop.call_later(self._interval, _fire_if_used, weakref.ref(self))

    def _fire(self) -> None:
        self._timer = None
        self._begin()

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _fire_if_used(reference: "weakref.ref[Coalescer[Any, Any]]") -> None:
    coalescer = reference()
    if coalescer is not None:
        coalescer._fire()


_all: "weakref.WeakSet[Coalescer[Any, Any]]" = weakref.WeakSet()


def _after_fork() -> None:
    for coalescer in _all:
        coalescer._start()


os.register_at_fork(after_in_child=_after_fork)

__all__ = ["Coalescer"]
