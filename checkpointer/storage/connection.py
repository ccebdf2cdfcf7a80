"""One connection to a cloud, made by the first request of the process that uses it, and never used by its
children.

The file systems of s3fs and adlfs register finalizers that talk to their event loop when the interpreter
exits. In a forked child that loop does not run, and the child would hang. They are taken off here, and
connections are closed by this module instead.
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

F = TypeVar("F")

_EXIT_SECONDS = 2.0

Close = Callable[[Any], Coroutine[Any, Any, None]]


def require(package: str, extra: str, url: str) -> None:
    """Raise `IllegalArgumentError` where an optional package is not installed; does not import it."""
    if importlib.util.find_spec(package) is None:
        raise IllegalArgumentError(
            f"{url}: needs the package {package}: pip install 'spark-state-checkpointer[{extra}]'"
        )


async def load(package: str) -> Any:
    """Return a package that takes long to import, without holding up the event loop."""
    return await runtime.in_thread(importlib.import_module, package)


class Connection(Generic[F]):
    """What `connect` gave, shared by all requests of this process. `close` must not refer to the store."""

    def __init__(self, connect: Callable[[], Awaitable[F]], close: Close) -> None:
        self._connect = connect
        self._close = close
        self._task: asyncio.Task[F] | None = None
        self._finalizer: weakref.finalize[..., Connection[F]] | None = None
        _connections.add(self)

    async def get(self) -> F:
        """Return the connection, made if need be. Many may wait for the first one; a failed attempt is forgotten."""
        if self._task is None:
            self._task = asyncio.create_task(self._open())
        task = self._task
        try:
            return await asyncio.shield(task)
        except BaseException:
            if task.done() and self._task is task:
                self._task = None
            raise

    @property
    def is_open(self) -> bool:
        return self._task is not None

    async def close(self) -> None:
        """Release the connection. The next `get` makes another."""
        task, self._task = self._task, None
        if self._finalizer is not None:
            self._finalizer.detach()
        if task is not None and task.done() and not task.cancelled() and task.exception() is None:
            await self._close(task.result())

    def abandon(self) -> None:
        """In a forked child: forget the parent's connection without touching it.

        Even its destructor must not run: it would take the sockets out of the epoll set that the child
        shares with its parent, and the parent would wait for answers for ever.
        """
        if self._task is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._task))
            self._task = None

    async def _open(self) -> F:
        made = await self._connect()
        self._finalizer = weakref.finalize(self, _close_later, os.getpid(), self._close, made)
        self._finalizer.atexit = False
        return made


_connections: "weakref.WeakSet[Connection[Any]]" = weakref.WeakSet()


def take_finalizers_off(made: object) -> None:
    """Leave the closing of `made` to its `Connection`."""
    for reference in weakref.getweakrefs(made):
        finalizer = reference.__callback__
        if isinstance(finalizer, weakref.finalize):
            finalizer.detach()


def _close_later(process: int, close: Close, made: object) -> None:
    """The store was dropped without `close`. This may run on any thread, so it must not wait."""
    if os.getpid() == process and not sys.is_finalizing():
        runtime.submit(close(made))


def _close_all() -> None:
    opened = [connection for connection in [*_connections] if connection.is_open]
    with suppress(RuntimeError):
        wait([runtime.submit(connection.close()) for connection in opened], _EXIT_SECONDS)


def _abandon_all() -> None:
    for connection in [*_connections]:
        connection.abandon()


runtime.at_exit(_close_all)
os.register_at_fork(after_in_child=_abandon_all)
