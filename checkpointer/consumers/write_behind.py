"""Many small updates become few writes: the latest value for each key is held, and handed over in the background.

There is no thread here, and no lock: values are put into a queue from anywhere, even from a signal handler that
interrupts a `put`. Everything else runs on the library's loop.

What becomes of a value that was not written is the same for all who coalesce:

    kept        where another try may mend it, unless a newer value came; tried again, and told by each flush of its key
    given up    where none can (`PERMANENT_ERRORS`): logged in the background, and told once, by the next flush of its key

No key suffers from another: each is written, kept, given up and told by itself.
"""

import asyncio
import contextlib
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyspark_checkpointer.storage.connection  # noqa: F401  # closes connections at exit, later than what is registered after
from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError, ShutdownError

K = TypeVar("K")
V = TypeVar("V")

logger = logging.getLogger("pyspark_checkpointer")

Write = Callable[[Mapping[K, V]], Coroutine[Any, Any, Mapping[K, Exception]]]
"""Writes values, and gives the keys of those that it did not write, each with the reason.

What it raises instead is the reason for all of them, and one that another try may mend. No part of it runs on then.
"""

PERMANENT_ERRORS = (ShutdownError, IllegalArgumentError)
"""Reasons of single values that no other try can mend: the lease is lost, or what stands does not allow the value."""

MAX_TRIES_WHEN_DROPPED = 5
"""Tries in a row that may fail before values that nobody else refers to any more are given up."""

EXIT_FLUSH_SECONDS = 10.0
"""How long the end of the interpreter may wait for values that nobody wrote before."""

_tasks: set["asyncio.Task[None]"] = set()
"""Writes in the background: the loop itself refers to them only weakly."""


def write_each(write: Callable[[K, V], Coroutine[Any, Any, object]]) -> Write[K, V]:
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


def _any(_key: object, _value: object) -> bool:
    return True


@dataclass(frozen=True, slots=True, eq=False)
class _Put(Generic[K, V]):
    """One call of `put`; no two are equal."""

    key: K
    value: V


class WriteBehind(Generic[K, V]):
    """Holds the latest value for each key, and writes all of them once enough came or the first waited long enough.

    What could not be written is tried again after `interval`, with the next `max_updates` values, or by `flush()`. The
    first failure of a row is logged, for each key.

    Dropped without `close()`, it lives until it has written what it holds, or has failed to often enough. What is held
    when the interpreter ends is written then, for up to `EXIT_FLUSH_SECONDS`, or reported as lost; a process that is killed
    loses it. A forked child starts with nothing held; what was held is the parent's to write.
    """

    def __init__(
        self,
        write: Write[K, V],
        *,
        max_updates: int,
        interval: float,
        name: str,
        accept: Callable[[K, V], bool] = _any,
    ) -> None:
        """Hold nothing yet.

        Args:
            write: Called on the library's loop with what is held, never twice at once.
            max_updates: Values after which they are written without waiting, several for one key counted each.
            interval: Seconds that a value may wait for others.
            name: What is written, for the log and for errors.
            accept: Called on the library's loop with each value, in the order in which they were put. Whether it is
                held; one that is not counts for nothing.
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
        self._accept = accept
        self._closed = False
        self._start()
        _all.add(self)

    def _start(self) -> None:
        self._inbox: deque[_Put[K, V]] = deque()  # each operation on it is one step, which nothing can interrupt
        # The rest belongs to the loop's thread.
        self._held: dict[K, V] = {}
        self._leaving: dict[K, V] = {}
        self._came = 0
        self._lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._tries: dict[K, int] = {}  # in a row that failed, of what is held
        self._untold: dict[K, Exception] = {}  # why the last value of a key was given up

    def __repr__(self) -> str:
        return f"<WriteBehind {self._name}: {len(self.pending)} held>"

    @property
    def coalesces(self) -> bool:
        """Whether values may wait for others. With `max_updates` of 1, callers that can wait write theirs at once."""
        return self._max_updates > 1

    @property
    def pending(self) -> Mapping[K, V]:
        """The values that are not known to be written, the latest of each key."""
        waiting = self.waiting()  # first: what leaves it is held by then
        held = dict(self._held)
        return {**self._leaving, **held, **dict(waiting)}

    def waiting(self) -> Sequence[tuple[K, V]]:
        """The values that were put and that `accept` was perhaps not called with yet, in order. From any thread."""
        return [(put.key, put.value) for put in self._inbox.copy()]

    def put(self, key: K, value: V) -> None:
        """Hold `value` in place of what is held for `key`. From any thread or loop; never waits for a write.

        Raises `InvalidStateError` once `close()` was called.
        """
        self.check_open()
        put = _Put(key, value)
        self._inbox.append(put)
        runtime.loop().call_soon_threadsafe(self._sort_in)
        if self._closed:  # meanwhile: either `close()` found it, or it is taken back
            try:
                self._inbox.remove(put)
            except ValueError:
                return
            self.check_open()

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

    async def flush_for_read(self, of: Callable[[K], bool]) -> None:
        """Like `flush()`, for those who read: what was given up is for its writers to be told."""
        await runtime.bridge(self._settle(of))

    async def close(self) -> None:
        """Write what is held, and take no more. A second call finds nothing to do.

        Raises what `flush()` raises. What is held stays held then, but is no longer tried in the background, where it
        could come after what the caller does next: call `close()` or `flush()` again.
        """
        self._closed = True
        await self.flush()

    # --- on the loop ---

    def _sort_in(self) -> None:
        """Hold what was put, and see to it that it is written. After `close()` who flushes sees to that."""
        if self._closed:
            return
        before = self._came
        self._empty_inbox()
        if before < self._max_updates <= self._came:
            self._begin()
        elif before == 0 < self._came:
            self._arm_anew()

    def _empty_inbox(self) -> None:
        for put in self._inbox.copy():
            if self._accept(put.key, put.value):
                self._held[put.key] = put.value
                self._came += 1
            with contextlib.suppress(ValueError):  # it was taken back
                self._inbox.remove(put)  # only now, so that it is always in one place at least

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
        async with self._lock:
            leaving = self._take(of)
            try:
                failures = await self._write(leaving) if leaving else {}
                given_up = {key: error for key, error in failures.items() if isinstance(error, PERMANENT_ERRORS)}
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
        self._sort_in()
        self._empty_inbox()  # where that did nothing, since this is closed
        self._leaving = {key: value for key, value in self._held.items() if of(key)}
        self._held = {key: value for key, value in self._held.items() if key not in self._leaving}
        if not self._held:
            self._came = 0
            self._disarm()
        return self._leaving

    def _put_back(self, leaving: Mapping[K, V], kept: Collection[K]) -> None:
        self._held, self._leaving = {**{key: leaving[key] for key in kept}, **self._held}, {}
        for key in leaving:
            tries = self._tries.pop(key, 0)
            if key in kept:
                self._tries[key] = tries + 1
        self._arm()

    def _arm(self) -> None:
        """Write after `interval` at the latest, if there is anything to write by then."""
        if self._timer is not None or not self._held:
            return
        hopeless = all(self._tries.get(key, 0) >= MAX_TRIES_WHEN_DROPPED for key in self._held)
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


def _fire_if_used(reference: "weakref.ref[WriteBehind[Any, Any]]") -> None:
    write_behind = reference()
    if write_behind is not None:
        write_behind._fire()


_all: "weakref.WeakSet[WriteBehind[Any, Any]]" = weakref.WeakSet()


def _after_fork() -> None:
    for write_behind in _all:
        write_behind._start()


def _at_exit() -> None:
    """Write what is held when the interpreter ends, and report what cannot be written."""
    left = [write_behind for write_behind in _all if not write_behind._closed and write_behind.pending]
    if left:
        runtime.run_sync(_write_for_the_last_time(left))


async def _write_for_the_last_time(write_behinds: Sequence["WriteBehind[Any, Any]"]) -> None:
    tries = {write_behind: asyncio.create_task(write_behind._hand_over(_every)) for write_behind in write_behinds}
    await asyncio.wait(tries.values(), timeout=EXIT_FLUSH_SECONDS)
    for write_behind, last in tries.items():
        reasons = {key: error for some in last.result() for key, error in some.items()} if last.done() else {}
        if lost := write_behind.pending.keys() | reasons.keys():
            logger.error(
                "%s: the process ends, and what it recorded last of %d could not be written, so that it will be read "
                "again: %s",
                write_behind._name,
                len(lost),
                next(iter(reasons.values()), f"no answer within {EXIT_FLUSH_SECONDS:g} s"),
            )


# While requests can still use threads: cloud clients look names up in a pool. And once more for what exit handlers put.
runtime.at_exit(_at_exit, while_threads_work=True)
runtime.at_exit(_at_exit)
os.register_at_fork(after_in_child=_after_fork)

__all__ = ["WriteBehind", "write_each"]
