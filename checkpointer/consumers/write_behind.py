"""Write the latest value of each key in the background.

Many updates become few writes.

This module has no thread, and no lock that a caller of `put` could wait for. Values are put into a queue from anywhere,
even from a signal handler that interrupts a `put`. Everything else runs on the library's event loop.

All users of this module treat a value that could not be written alike:

    kept        if another try may succeed, unless a newer value came; tried again, and raised by each flush of its key
    given up    if no try can (`PERMANENT_ERRORS`): logged in the background, and raised by the next flush of its key

Keys do not affect each other: each is written, kept, given up and reported by itself.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pyspark_checkpointer.storage.connection  # noqa: F401  # closes connections at exit, later than what is registered after
from pyspark_checkpointer import runtime
from pyspark_checkpointer.consumers.write_buffer import WriteBuffer
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError, ShutdownError
from pyspark_checkpointer.runtime.user_functions import log_safely

K = TypeVar("K")
V = TypeVar("V")

Write = Callable[[Mapping[K, V]], Coroutine[Any, Any, Mapping[K, Exception]]]
"""Function that writes the values and returns the keys that were not written.

Each of these keys comes with the reason. If the function raises an error instead, the error counts for all values, and
another try may succeed. It raises only after all its parts have ended, so that no part of an old write can come after a
newer one.
"""

PERMANENT_ERRORS = (ShutdownError, IllegalArgumentError)
"""Errors of single values that make another try useless.

The lease is lost, or the stored position forbids the value.
"""

MAX_TRIES_WHEN_DROPPED = 5
"""Number of tries in a row that may fail for a dropped `WriteBehind`.

Nobody refers to it any more, and its values are given up after these tries.
"""

EXIT_FLUSH_SECONDS = 10.0
"""Time in seconds that the end of the interpreter may wait for held values.

Held values are those that were not written before.
"""

_FIRST_SHARE = 0.8
"""The share of this time that the first of the two writes at the end may take."""

_tasks: set["asyncio.Task[None]"] = set()
"""Writes in the background.

The event loop has only weak references to them, so they could vanish while they run.
"""


def write_each(write: Callable[[K, V], Coroutine[Any, Any, object]]) -> Write[K, V]:
    """Return a `Write` that writes all values concurrently.

    It finishes each write, even if others raise.
    """

    async def write_all(batch: Mapping[K, V]) -> Mapping[K, Exception]:
        # With `return_exceptions`, since `gather` would else return at the first error and leave the other writes
        # running. They could end after a newer write of the same key, and undo it.
        results = await asyncio.gather(*(write(key, value) for key, value in batch.items()), return_exceptions=True)
        failures: dict[K, Exception] = {}
        for key, result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                failures[key] = result
            # A cancellation says nothing about this value alone, so it ends the whole write.
            elif isinstance(result, BaseException):
                raise result
        return failures

    return write_all


def _all_keys(_: object) -> bool:
    return True


def _accept_all(_key: object, _value: object) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class _Failures(Generic[K]):
    """The values that one write did not write, each with the reason.

    They are kept for another try, or given up.
    """

    kept: Mapping[K, Exception]
    given_up: Mapping[K, Exception]


class WriteBehind(Generic[K, V]):
    """A holder of the latest value of each key, which writes them in the background.

    It writes all values after enough updates or enough time. What could not be written is tried again after `interval`,
    with the next `max_updates` values, or by `flush()`. For each key, only the first of several failures in a row is
    logged.

    If the holder is dropped without `close()`, it lives until it has written its values, or has failed too often.
    Values that are held when the interpreter ends are written then, for up to `EXIT_FLUSH_SECONDS`, or logged as lost.
    A process that is killed loses them. A forked child starts with no values held, since its parent writes them.
    """

    def __init__(
        self,
        write: Write[K, V],
        *,
        max_updates: int,
        interval: float,
        name: str,
        accept: Callable[[K, V], bool] = _accept_all,
    ) -> None:
        """Hold nothing yet.

        Args:
            write: Called on the library's loop with the held values; never twice at the same time.
            max_updates: Number of values after which they are written without waiting; each value of one key counts.
            interval: Seconds that a value may wait for others.
            name: Name of what is written, for the log and for errors.
            accept: Called on the library's loop with each value, in the order in which they were put. It returns
                whether the value is held; one that is not held does not count.
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
        self._has_told = False
        """True once the caller of `close()` was told what was not written, if anything was not."""
        self._reset()
        _all.add(self)

    def _reset(self) -> None:
        """Begin with nothing held, also in a new process, which has another event loop."""
        self._buffer: WriteBuffer[K, V] = WriteBuffer(self._accept)
        self._write_lock = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<WriteBehind {self._name}: {len(self.pending)} held>"

    @property
    def coalesces(self) -> bool:
        """Return whether values may wait for others.

        With `max_updates` of 1 they may not: callers that can wait then write their values themselves, at once.
        """
        return self._max_updates > 1

    @property
    def pending(self) -> Mapping[K, V]:
        """The values that are not known to be written, the latest of each key."""
        return self._buffer.pending

    def waiting(self) -> Sequence[tuple[K, V]]:
        """Return the values put and perhaps not passed to `accept` yet, in order.

        Any thread may call it.
        """
        return self._buffer.waiting()

    def put(self, key: K, value: V) -> None:
        """Hold `value` in place of the present value for `key`.

        Any thread or loop may call it. It never waits for a write. Raise `InvalidStateError` after `close()` was
        called.
        """
        self.check_open()
        put = self._buffer.add(key, value)
        runtime.loop().call_soon_threadsafe(self._accept_new)
        # `close()` may have been called since the check above. Either its flush has taken the value, or it is taken
        # back here and refused; it never stays in the inbox, where nobody would write it.
        if self._closed and self._buffer.take_back(put):
            self.check_open()

    def check_open(self) -> None:
        """Raise `InvalidStateError` if `close()` was called."""
        if self._closed:
            raise InvalidStateError(f"{self._name}: was closed, and takes no more updates: open another")

    async def flush(self, wanted: Callable[[K], bool] = _all_keys) -> None:
        """Return once everything that was put before for the wanted keys is written.

        By default all keys are wanted.

        If a value of these keys was not written, raise its error. Errors of values that are kept come first, then
        errors of values that were given up, by this flush or before. One error is raised now, and a later flush raises
        each other one.
        """
        await runtime.bridge(self._flush(wanted))

    async def flush_for_read(self, wanted: Callable[[K], bool]) -> None:
        """Do what `flush()` does, before positions are read.

        Errors of given-up values are left for their writers.
        """
        await runtime.bridge(self._flush_for_read(wanted))

    async def forget(self, wanted: Callable[[K], bool]) -> None:
        """Drop what was put before for these keys. A write that is under way ends first."""
        await runtime.bridge(self._forget(wanted))

    async def close(self) -> None:
        """Write the held values, and take no more. A second call finds nothing to do.

        Raise what `flush()` raises. The values then stay held. They are no longer written in the background, because
        that could happen after the caller's next step. Call `close()` or `flush()` again.
        """
        # This comes before the flush: what is put after it is refused, so this flush is the last one.
        self._closed = True
        # After an interrupt nobody knows what was not written, and the end of the process is the last chance for it.
        self._has_told = False
        try:
            await self.flush()
        except Exception:
            self._has_told = True
            raise
        self._has_told = True

    # ---- on the event loop ---------------------------------------------------------------------------------------

    def _accept_new(self) -> None:
        """Hold the values of the inbox, and start a write or the timer for one.

        After `close()` this does nothing, since `flush()` does both.
        """
        if self._closed:
            return
        before = self._buffer.count
        self._buffer.drain_inbox()
        # Only the value that reaches the number starts a write. Those that follow are written together with it.
        if before < self._max_updates <= self._buffer.count:
            self._start_write()
        elif before == 0 < self._buffer.count:
            # The timer may be running for the last try of older values, which does not keep this object alive.
            self._stop_timer()
            self._start_timer()

    def _start_write(self) -> None:
        if self._closed:
            return
        task = asyncio.get_running_loop().create_task(self._write_in_background())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    async def _write_in_background(self) -> None:
        failures = await self._write_held(_all_keys)
        # Only the first failure in a row of each key is logged: a store that is away for hours would fill the log.
        new = [error for key, error in failures.kept.items() if self._buffer.failed_tries(key) == 1]
        self._warn(new, f"tried again every {self._interval:g} s")
        self._warn([*failures.given_up.values()], "given up")

    def _warn(self, errors: Sequence[Exception], fate: str) -> None:
        if errors:
            # The error is logged as text. As an object it has a traceback, and a handler that keeps the record would
            # keep everything here alive.
            more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
            log_safely(logging.WARNING, "%s: could not be written, %s: %s%s", self._name, fate, str(errors[0]), more)

    async def _flush_for_read(self, wanted: Callable[[K], bool]) -> None:
        failures = await self._write_held(wanted)
        if failures.kept:
            raise next(iter(failures.kept.values()))

    async def _flush(self, wanted: Callable[[K], bool]) -> None:
        await self._flush_for_read(wanted)
        if error := self._buffer.take_report(wanted):
            raise error

    async def _forget(self, wanted: Callable[[K], bool]) -> None:
        async with self._write_lock:
            self._buffer.drain_inbox()
            if count := self._buffer.forget(wanted):
                log_safely(
                    logging.INFO, "%s: %d updates from before another consumer came were dropped", self._name, count
                )
            if not self._buffer.has_held:
                self._stop_timer()
            # Values that came with this look have started no timer.
            self._start_timer()

    async def _write_held(self, wanted: Callable[[K], bool]) -> _Failures[K]:
        """Write the held values of these keys.

        Return those that were not written, with the reasons.
        """
        # One write at a time: an older value whose write ends last would undo a newer one.
        async with self._write_lock:
            # Taken under the lock and not before it, so that a flush also writes what a failed write has just given
            # back.
            writing = self._take(wanted)
            try:
                reasons = await self._write(writing) if writing else {}
                given_up = {key: error for key, error in reasons.items() if isinstance(error, PERMANENT_ERRORS)}
                failures = _Failures({key: error for key, error in reasons.items() if key not in given_up}, given_up)
            except Exception as error:
                # Nothing tells which values were written. Writing one again does no harm, and dropping one would lose
                # it.
                failures = _Failures(dict.fromkeys(writing, error), {})
            except BaseException:  # It was cancelled: nothing is known of any value.
                self._finish_write(writing.keys(), {})
                raise
            self._finish_write(failures.kept.keys(), failures.given_up)
            return failures

    def _take(self, wanted: Callable[[K], bool]) -> Mapping[K, V]:
        self._accept_new()
        # After `close()` the call above does nothing, and what was put before is still to be written.
        self._buffer.drain_inbox()
        writing = self._buffer.take(wanted)
        if not self._buffer.has_held:
            self._stop_timer()
        return writing

    def _finish_write(self, kept: Collection[K], given_up: Mapping[K, Exception]) -> None:
        self._buffer.finish_write(kept, given_up)
        self._start_timer()

    def _start_timer(self) -> None:
        """Write after `interval` at the latest, if anything is held."""
        if self._timer is not None or not self._buffer.has_held:
            return
        loop = asyncio.get_running_loop()
        if self._buffer.has_failed(MAX_TRIES_WHEN_DROPPED):
            # With a weak reference the timer does not keep this object alive: if nobody uses it, its values are lost.
            self._timer = loop.call_later(self._interval, _on_timer_if_alive, weakref.ref(self))
        else:
            self._timer = loop.call_later(self._interval, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._start_write()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _on_timer_if_alive(reference: "weakref.ref[WriteBehind[Any, Any]]") -> None:
    write_behind = reference()
    if write_behind is not None:
        write_behind._on_timer()


# ---- the end of a process, and forks ---------------------------------------------------------------------------------

_all: "weakref.WeakSet[WriteBehind[Any, Any]]" = weakref.WeakSet()


def _everyone() -> "list[WriteBehind[Any, Any]]":
    while True:
        # A thread may make another one meanwhile, and then Python ends the iteration.
        with contextlib.suppress(RuntimeError):
            return [*_all]


def _after_fork() -> None:
    for write_behind in _everyone():
        # What was held is the parent's to write. The lock and the timer belong to the parent's event loop, which does
        # not run here.
        write_behind._reset()


_hung: "weakref.WeakKeyDictionary[WriteBehind[Any, Any], Mapping[Any, Any]]" = weakref.WeakKeyDictionary()
"""The values whose write had not ended when the time for it was over."""


def _first_at_exit() -> None:
    """Write held values while requests can still use threads.

    Cloud clients look names up in a pool. Both calls at the end of the process share one limit of time.
    """
    begin = time.monotonic()
    # Ctrl-C ends the waiting. What else is finished at the end of the process must be finished all the same.
    with contextlib.suppress(KeyboardInterrupt):
        _write_at_exit(EXIT_FLUSH_SECONDS * _FIRST_SHARE)
    global _seconds_used
    _seconds_used = min(time.monotonic() - begin, EXIT_FLUSH_SECONDS * _FIRST_SHARE)


def _last_at_exit() -> None:
    """Write what other exit handlers have put, and what failed at once before."""
    _write_at_exit(EXIT_FLUSH_SECONDS - _seconds_used)


_seconds_used = 0.0
"""Seconds of `EXIT_FLUSH_SECONDS` that `_first_at_exit` used."""


def _write_at_exit(seconds: float) -> None:
    # After a `close()` that failed, its caller was told what was not written, and decides what to do.
    left = [
        write_behind
        for write_behind in _everyone()
        if not write_behind._has_told and (held := write_behind.pending) and held != _hung.get(write_behind)
    ]
    if left:
        runtime.run_sync(_write_all_at_exit(left, seconds))


async def _write_all_at_exit(left: Sequence["WriteBehind[Any, Any]"], seconds: float) -> None:
    """Write held values, and log those that cannot be written."""
    writes = {write_behind: asyncio.create_task(write_behind._write_held(_all_keys)) for write_behind in left}
    # All are written at the same time, so one that hangs takes no time from the others.
    await asyncio.wait(writes.values(), timeout=seconds)
    for write_behind, write in writes.items():
        reasons = {**write.result().kept, **write.result().given_up} if write.done() else {}
        if not write.done():
            _hung[write_behind] = dict(write_behind.pending)
        # Values that were given up are not pending any more, but they are lost as well.
        if lost := write_behind.pending.keys() | reasons.keys():
            log_safely(
                logging.ERROR,
                "%s: the process ends, and updates could not be written (%d), so events will be read again: %s",
                write_behind._name,
                len(lost),
                next(iter(reasons.values()), f"no answer within {seconds:.1f} s"),
            )


runtime.at_exit(_first_at_exit, while_threads_work=True)
runtime.at_exit(_last_at_exit)
os.register_at_fork(after_in_child=_after_fork)

__all__ = ["WriteBehind", "write_each"]
