"""Call users' functions so that none holds up the library, or makes it fail.

They are called in threads of their own. Handlers and filters of the log are called where a message is logged.
"""

import asyncio
import contextlib
import inspect
import logging
import os
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from concurrent.futures import CancelledError, Future
from typing import TypeVar

from pyspark_checkpointer.manifests.errors import IllegalArgumentError
from pyspark_checkpointer.runtime.process_exit import at_exit

T = TypeVar("T")

logger = logging.getLogger("pyspark_checkpointer")

MAX_WAITING_CALLS = 1000
"""Calls that may wait for those before them; further calls are dropped."""

EXIT_SECONDS = 2.0
"""Seconds that waiting calls are given when the interpreter ends."""


class CallQueue:
    """A thread that calls users' functions one after the other.

    The interpreter does not wait for it to end.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the thread and its waiting calls, in a forked child.

        There both are the parent's.
        """
        self._lock = threading.Lock()
        self._waiting: queue.Queue[tuple[Callable[[], None], Future[None]]] | None = None

    def add(self, function: Callable[[], None]) -> "Future[None] | None":
        """Queue a call and return its future, or None if the call is dropped.

        It is dropped if the queue is full or has no thread.
        """
        with self._lock:
            if self._waiting is None:
                waiting: queue.Queue[tuple[Callable[[], None], Future[None]]] = queue.Queue(MAX_WAITING_CALLS)
                # A daemon, because a function that hangs must not keep the process from ending.
                worker = threading.Thread(target=self._work, args=(waiting,), name="checkpointer-callback", daemon=True)
                try:
                    worker.start()
                except RuntimeError:
                    # The interpreter is at its end and starts no threads. To call here would hold up the event loop.
                    return None
                # Only once the thread runs: after a failure the next call tries again.
                self._waiting = waiting
        done: Future[None] = Future()
        try:
            self._waiting.put_nowait((function, done))
        except queue.Full:
            return None
        return done

    @staticmethod
    def _work(waiting: "queue.Queue[tuple[Callable[[], None], Future[None]]]") -> None:
        while True:
            function, done = waiting.get()
            function()
            done.set_result(None)

    def drain(self) -> None:
        """Wait a moment for the calls that are queued, when the interpreter ends."""
        # Calls are made in order. So when this empty call has ended, all calls before it have ended.
        last = self.add(lambda: None) if self._waiting is not None else None
        if last is not None:
            with contextlib.suppress(TimeoutError):
                last.result(EXIT_SECONDS)


_queue = CallQueue()
at_exit(_queue.drain)
os.register_at_fork(after_in_child=_queue.reset)


def call_later(function: Callable[[], None]) -> "Future[None] | None":
    """Queue a user's function for the thread that calls them one after the other.

    `function` must not raise. Returns None where too many calls wait already, or where the interpreter starts no
    threads any more: then it will not be called.
    """
    return _queue.add(function)


async def call_alone(function: Callable[[], T]) -> T:
    """Return the result of a user's function, called in a new thread.

    It may take long, and may call this library itself.

    Raises:
        IllegalArgumentError: The function raised an exception that would end a task, an iteration or the event loop:
            handed on to the loop, it would let its waiter wait for ever.
    """
    done: Future[T] = Future()

    def work() -> None:
        if not done.set_running_or_notify_cancel():  # from here on it cannot be cancelled
            return
        try:
            done.set_result(function())
        except BaseException as error:
            # An asyncio future cannot carry a `StopIteration`, and a `CancelledError` would cancel whoever waits.
            if isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError):
                done.set_exception(error)
                return
            refused = IllegalArgumentError(
                f"a function of yours raised {type(error).__name__}: raise another exception"
            )
            refused.__cause__ = error
            done.set_exception(refused)

    try:
        # A thread of its own and no pool, which functions that take long, or that never return, would use up.
        threading.Thread(target=work, name="checkpointer-user", daemon=True).start()
    except RuntimeError:
        # The interpreter is shutting down. Called here, a last save from an exit handler still gets its keys.
        work()
    return await asyncio.wrap_future(done)


def runs_nothing(function: object) -> bool:
    """Return whether a call only makes a coroutine or generator.

    Nothing of the function runs then.
    """
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    called = function if inspect.isroutine(function) else getattr(type(function), "__call__", None)  # noqa: B004
    return any(kind(function) or kind(called) for kind in kinds)


def check_runs(where: str, function: object) -> None:
    """Refuse a function of which a call runs nothing."""
    if runs_nothing(function):
        raise IllegalArgumentError(f"{where}: was given a coroutine or generator function: {_PLAIN}")


def takes(function: Callable[..., object], arguments: int) -> bool:
    """Return whether a function can be called with so many arguments.

    Only its own signature counts: a wrapper may give more arguments to what it wraps.
    """
    try:
        signature = inspect.signature(function, follow_wrapped=False)
    except (TypeError, ValueError):  # of a function that is not written in Python
        return True
    try:
        signature.bind(*range(arguments))
    except TypeError:
        return False
    return True


def check_has_run(where: str, returned: object) -> None:
    """Refuse what a function returned if nothing of the function has run.

    A lambda, or a decorator, may hide what it is.
    """
    if isinstance(returned, Coroutine | Generator | AsyncGenerator):
        raise IllegalArgumentError(f"{where}: the function returned a {type(returned).__name__}: {_PLAIN}")


_PLAIN = "nothing of it runs when it is called: write a plain function, which may call asyncio.run(…)"


def log_safely(level: int, message: str, *arguments: object, exc_info: bool = False) -> None:
    """Log a message about something that is done already.

    A filter or handler of the user that fails must not look as if that had failed, and one that wants to end the
    program would end the event loop.
    """
    with contextlib.suppress(Exception, SystemExit):
        logger.log(level, message, *arguments, exc_info=exc_info)
