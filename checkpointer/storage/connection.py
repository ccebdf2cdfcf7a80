"""Keep the connection of a store to a cloud.

The first request makes it. A child process never uses it.

The file systems of s3fs, adlfs and gcsfs register finalizers that talk to their event loop when the interpreter exits.
In a forked child that loop does not run, and the child would hang. This module takes the finalizers off, and closes
connections itself.
"""

import asyncio
import ctypes
import importlib
import importlib.util
import os
import sys
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import wait
from contextlib import suppress
from typing import Any, Generic, TypeVar

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.runtime import forks

F = TypeVar("F")

_EXIT_SECONDS = 2.0
"""Seconds that closing all connections may take when the interpreter ends."""

Close = Callable[[Any], Coroutine[Any, Any, None]]
"""Function that closes what was connected.

It must not refer to the store: then the store would never be dropped.
"""


def is_installed(package: str) -> bool:
    """Return whether an optional package can be imported. Does not import it."""
    return importlib.util.find_spec(package) is not None


def require(package: str, extra: str, url: str) -> None:
    """Raise `IllegalArgumentError` where an optional package is not installed.

    Does not import it.
    """
    if not is_installed(package):
        raise IllegalArgumentError(
            f"{url}: needs the package {package}: pip install 'spark-state-checkpointer[{extra}]'"
        )


async def import_package(package: str) -> Any:
    """Import a package that takes long to import, while the event loop goes on."""
    return await runtime.in_thread(importlib.import_module, package)


class Connection(Generic[F]):
    """A connection that all requests of a process share.

    It is in one of three states, which `_task` tells: not open (None), opening (a running task) and open (a task that
    has ended well). An attempt that failed is forgotten at its end, so the next request tries again.
    """

    def __init__(self, connect: Callable[[], Awaitable[F]], close: Close) -> None:
        self._connect = connect
        self._close = close
        self._task: asyncio.Task[F] | None = None
        self._finalizer: weakref.finalize[..., Connection[F]] | None = None
        self._replaced: list[F] = []
        """Connections that no request is given any more, and that are not closed yet."""
        _connections.add(self)

    async def get(self) -> F:
        """Return the connection; open it first if it is not open.

        Callers at the same time share one attempt.
        """
        # A task of its own, not a part of the first caller, so that several callers can wait for it.
        if self._task is None:
            self._task = asyncio.create_task(self._open())
            self._task.add_done_callback(self._forget_failure)
        # Shielded: a caller that is cancelled must not take the connection away from the others.
        return await asyncio.shield(self._task)

    def _forget_failure(self, task: "asyncio.Task[F]") -> None:
        """Let the next request try again after a failed attempt.

        This happens whether or not anybody waited for the attempt to end.
        """
        # `close` may have taken this task away, and another attempt may have begun. To ask for the exception also tells
        # asyncio that somebody has seen it.
        if self._task is task and (task.cancelled() or task.exception() is not None):
            self._task = None

    @property
    def is_open(self) -> bool:
        """Return whether this or a replaced connection is open.

        A connection that is opening counts as open.
        """
        return self._task is not None or bool(self._replaced)

    @property
    def current(self) -> F | None:
        """Return the connection if `get` would return it at once, or None."""
        task = self._task
        ended = task is not None and task.done() and not task.cancelled() and task.exception() is None
        return task.result() if task is not None and ended else None

    async def close(self) -> None:
        """Release the connection. The next `get` opens another one."""
        # Taken away before the first await: a `get` that comes meanwhile opens another connection and never gets the
        # one that is being closed.
        made, self._task = self.current, None
        # Otherwise the connection would be closed a second time when the store is dropped.
        if self._finalizer is not None:
            self._finalizer.detach()
        while self._replaced:
            await self._close(self._replaced.pop())
        # An attempt that still runs is left to those who wait for it. The finalizer of its connection closes that one.
        if made is not None:
            await self._close(made)

    def replace(self, made: F, after: float) -> None:
        """Let the next `get` open another connection in place of `made`.

        `made` is closed `after` seconds from now. Requests of others may be under way on it. If it were closed at once,
        they might wait for ever. Nothing happens if somebody else has replaced `made` already.
        """
        if self.current is not made:
            return
        self._task = None
        if self._finalizer is not None:
            self._finalizer.detach()
        self._replaced.append(made)
        asyncio.get_running_loop().call_later(after, lambda: asyncio.ensure_future(self._close_replaced(made)))

    async def _close_replaced(self, made: F) -> None:
        if any(each is made for each in self._replaced):
            self._replaced.remove(made)
            await self._close(made)

    def abandon(self) -> None:
        """Forget the parent's connection in a forked child, without touching it.

        Even its destructor must not run. It would take the sockets out of the epoll set that the child shares with its
        parent, and the parent would wait for answers for ever. So it gets a reference that is never given back.
        """
        if self._task is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._task))
            self._task = None
        if self._replaced:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._replaced))
            self._replaced = []

    async def _open(self) -> F:
        made = await self._connect()
        # The finalizer holds the connection and not this object, which could never be dropped otherwise.
        self._finalizer = weakref.finalize(self, _close_later, forks.current, self._close, made)
        self._finalizer.atexit = False  # at exit, `_close_all` closes it while the loop still runs
        return made


# Weak references: to be closed at exit must not keep a store alive.
_connections: "weakref.WeakSet[Connection[Any]]" = weakref.WeakSet()


def take_finalizers_off(made: object) -> None:
    """Leave the closing of `made` to its `Connection`."""
    # s3fs and adlfs keep no reference to their finalizers. A `weakref.finalize` is the callback of a weak reference to
    # its object, and is found there.
    for reference in weakref.getweakrefs(made):
        finalizer = reference.__callback__
        if isinstance(finalizer, weakref.finalize):
            finalizer.detach()


def _close_later(process: forks.Process, close: Close, made: object) -> None:
    """Close the connection of a store that was dropped without `close`.

    The garbage collector may run this on any thread, so it must not wait.
    """
    # In a forked child the sockets belong to the parent, and a closed interpreter has no loop to close them on.
    if process is forks.current and not sys.is_finalizing():
        runtime.submit(close(made))


def _close_all() -> None:
    """Close every connection when the interpreter ends."""
    opened = [connection for connection in [*_connections] if connection.is_open]
    with suppress(RuntimeError):  # the loop is closed, or can no longer be started
        # A server that does not answer must not keep the interpreter from ending, so the wait has a limit.
        wait([runtime.submit(connection.close()) for connection in opened], _EXIT_SECONDS)


def _abandon_all() -> None:
    for connection in [*_connections]:
        connection.abandon()


runtime.at_exit(_close_all)
os.register_at_fork(after_in_child=_abandon_all)
