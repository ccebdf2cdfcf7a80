"""Many small updates become few writes: the latest value for each key is held, and handed over in the background.

There is no thread here: values are put from anywhere, timers and writes run on the library's loop.

What becomes of a value that was not written is the same for all who coalesce:

    kept        where another try may mend it, unless a newer value came; tried again, and told by each flush of its key
    given up    where none can (`FINAL`): logged in the background, and told once, by the next flush of its key

No key suffers from another: each is written, kept, given up and told by itself.
"""

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Generic, TypeVar

from checkpointer import runtime
from checkpointer.errors import IllegalArgumentError, InvalidStateError, ShutdownError

K = TypeVar("K")
V = TypeVar("V")

logger = logging.getLogger("checkpointer")

Write = Callable[[Mapping[K, V]], Coroutine[Any, Any, Mapping[K, Exception]]]
"""Writes values, and gives the keys of those that it did not write, each with the reason.

What it raises instead is the reason for all of them, and one that another try may mend. No part of it runs on then.
"""

FINAL = (ShutdownError, IllegalArgumentError)
"""Reasons of single values that no other try can mend: the lease is lost, or what stands does not allow the value."""

LAST_TRY = 5
"""Tries in a row that may fail before values that nobody else refers to any more are given up."""

_tasks: set["asyncio.Task[None]"] = set()
"""Writes in the background: the loop itself refers to them only weakly."""


def each(write: Callable[[K, V], Coroutine[Any, Any, object]]) -> Write[K, V]:
    """Write the value of each key by itself, all at once, and each to its end however the others fare."""

    async def write_all(batch: Mapping[K, V]) -> Mapping[K, Exception]:
        results = await asyncio.gather(*(write(key, value) for key, value in batch.items()), return_exceptions=True)
        failures: dict[K, Exception] = {}
        for key, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                failures[key] = result
            elif isinstance(result, BaseException):
                raise result
        return failures

    return write_all


def _every(_: object) -> bool:
    return True


class Coalescer(Generic[K, V]):
    """Holds the latest value for each key, and writes all of them once enough came or the first waited long enough.

    What could not be written is tried again after `interval`, with the next `max_updates` values, or by `flush()`. The
    first failure of a row is logged, for each key.

    Dropped without `close()`, it lives until it has written what it holds, or has failed to often enough. Values
    that are held when the process ends are lost: close it. A forked child starts with nothing held; what was held is
    the parent's to write.
    """

    def __init__(
        self,
        write: Write[K, V],
        *,
        max_updates: int,
        interval: float,
        name: str,
    ) -> None:
        """Hold nothing yet.

        Args:
            write: Called on the library's loop with what is held, never twice at once.
            max_updates: Values after which they are written without waiting, several for one key counted each.
            interval: Seconds that a value may wait for others.
            name: What is written, for the log and for errors.
        """
        if isinstance(max_updates, bool) or not isinstance(max_updates, int) or max_updates < 1:
            raise IllegalArgumentError(f"max_updates={max_updates!r:.40}: expected an integer of at least 1")
        longest = threading.TIMEOUT_MAX
        if isinstance(interval, bool) or not isinstance(interval, int | float) or not 0 < interval <= longest:
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
        self._tries: dict[K, int] = {}  # in a row that failed, of what is held
        self._untold: dict[K, Exception] = {}  # why the last value of a key was given up

    def __repr__(self) -> str:
        return f"<Coalescer {self._name}: {len(self.pending)} held>"

    @property
    def coalesces(self) -> bool:
        """Whether values may wait for others. With `max_updates` of 1, callers that can wait write theirs at once."""
        return self._max_updates > 1

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
            runtime.loop().call_soon_threadsafe(self._arm_anew)

    def check_open(self) -> None:
        """Raise `InvalidStateError` once `close()` was called."""
        if self._closed:
            raise InvalidStateError(f"{self._name}: was closed, and takes no more updates: open another")

    async def flush(self, of: Callable[[K], bool] = _every) -> None:
        """Return once everything that was put before for the keys `of` tells is written; of all, if it is left out.

        Raises why a value of these keys, and of no other, was not written: what is still held first, then what was
        given up, by this flush or before. One error is raised, and the others by the next flush.
        """
        await runtime.bridge(self._flush(of))

    async def settle(self, of: Callable[[K], bool]) -> None:
        """Like `flush()`, for those who read: what was given up is for its writers to be told."""
        await runtime.bridge(self._settle(of))

    async def close(self) -> None:
        """Write what is held, and take no more. A second call finds nothing to do.

        Raises what `flush()` raises. What is held stays held then, but is no longer tried in the background, where it
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
        kept, given_up = await self._hand_over(_every)
        first = [error for key, error in kept.items() if self._tries[key] == 1]
        self._warn(first, f"tried again every {self._interval:g} s")
        self._warn([*given_up.values()], "given up")

    def _warn(self, errors: Sequence[Exception], fate: str) -> None:
        if errors:
            # As text: a record that a handler keeps would keep the traceback, and with it everything here.
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            logger.warning("%s: not written, %s: %s%s", self._name, fate, str(errors[0]), more)

    async def _settle(self, of: Callable[[K], bool]) -> None:
        kept, _ = await self._hand_over(of)
        if kept:
            raise next(iter(kept.values()))

    async def _flush(self, of: Callable[[K], bool]) -> None:
        await self._settle(of)
        for key in [*self._untold]:
            if of(key):
                raise self._untold.pop(key)

    async def _hand_over(self, of: Callable[[K], bool]) -> tuple[Mapping[K, Exception], Mapping[K, Exception]]:
        """Write what is held for these keys. What of it is kept, and what is given up, each with the reason."""
        async with self._turn:
            leaving = self._take(of)
            try:
                failures = await self._write(leaving) if leaving else {}
                given_up = {key: error for key, error in failures.items() if isinstance(error, FINAL)}
                kept = {key: error for key, error in failures.items() if key not in given_up}
            except Exception as error:
                kept, given_up = dict.fromkeys(leaving, error), {}
            except BaseException:
                self._put_back(leaving, leaving)
                raise
            self._put_back(leaving, kept)
            self._untold.update(given_up)
            return kept, given_up

    def _take(self, of: Callable[[K], bool]) -> Mapping[K, V]:
        with self._lock:
            self._leaving = {key: value for key, value in self._held.items() if of(key)}
            self._held = {key: value for key, value in self._held.items() if key not in self._leaving}
            if not self._held:
                self._came = 0
                self._disarm()
            return self._leaving

    def _put_back(self, leaving: Mapping[K, V], kept: Collection[K]) -> None:
        with self._lock:
            self._held, self._leaving = {**{key: leaving[key] for key in kept}, **self._held}, {}
        for key in leaving:
            tries = self._tries.pop(key, 0)
            if key in kept:
                self._tries[key] = tries + 1
        self._arm()

    def _arm(self) -> None:
        """Write after `interval` at the latest, if there is anything to write by then."""
        with self._lock:
            if self._timer is not None or not self._held:
                return
            hopeless = all(self._tries.get(key, 0) >= LAST_TRY for key in self._held)
        loop = asyncio.get_running_loop()
        if not hopeless:
            self._timer = loop.call_later(self._interval, self._fire)
        else:
            self._timer = loop.call_later(self._interval, _fire_if_used, weakref.ref(self))

    def _arm_anew(self) -> None:
        """For a first new value: what was armed before may be the last try of others."""
        self._disarm()
        self._arm()

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

__all__ = ["Coalescer", "each"]
