"""Describe a request on its way to a store, and what a test does with it there."""

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import ConflictError
from pyspark_checkpointer.manifests.digest import Bytes

MAX_HELD_SECONDS = 30.0
"""Seconds after which a held request fails.

So a broken test fails and does not hang.
"""

KINDS = ("get", "get_range", "put", "swap", "list", "delete", "leftovers", "discard")
"""All kinds of requests."""

WRITES = ("put", "swap", "delete")
"""The kinds of requests that change the store, and so may land late."""


class CrashError(Exception):
    """The error that a process gets from its store after it has died.

    None of its requests is served any more.
    """


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a store."""

    kind: str
    """One of `KINDS`."""
    path: str
    """The path, or the prefix of a listing.

    A deletion has all its paths here, with blanks between them.
    """
    number: int
    """The position among all requests, from 1."""
    size: int = 0
    """Bytes of `data`."""
    data: Bytes = field(default=b"", repr=False)
    """The bytes to write."""
    expected: str | None = None
    """The version that a swap expects."""
    lists_folders: bool = False
    """True for a listing of folders alone, without the objects in them."""


Send = Callable[[Request], Awaitable[Any]]
"""Sends a request on, and returns the answer of the store or raises its error."""

Fault = Callable[[Request, Send], Awaitable[Any]]
"""Stands in for `Send`: the caller gets what it returns or raises."""


class LateWrite:
    """A put, swap or delete without an answer, which may still take effect.

    `Faults.late` returns a list of them.

    Examples:
        >>> from pyspark_checkpointer.testing import Faults, injected
        >>> with injected(Faults()) as faults:
        ...     ck = Checkpointer("state/orders")
        ...     with ck.begin(epoch=1) as cp:
        ...         cp.snapshot("totals", 0, b"1")
        ...     late = faults.late("swap")
        ...     with ck.begin(epoch=2) as cp:
        ...         cp.snapshot("totals", 0, b"2")
        >>> late[0].request.path
        '_latest'
    """

    def __init__(self, request: Request, send: Send) -> None:
        self.request, self._send = request, send

    def land(self) -> bool:
        """Let the write reach the store now. Return whether it took effect.

        Raises:
            CheckpointError: The store raised it, and it is no conflict.

        Examples:
            >>> late[0].land()  # the library sent it again, and that came first
            False
        """
        return runtime.run_sync(self.arrive())

    async def arrive(self) -> bool:
        """Do as `land`, on the event loop.

        Raises:
            CheckpointError: The store raised it, and it is no conflict.

        Examples:
            >>> from pyspark_checkpointer import runtime
            >>> runtime.run_sync(late[0].arrive())
            False
        """
        try:
            await self._send(self.request)
        # Another write came first. For a request that lands late this is an outcome, not an error.
        except ConflictError:
            return False
        return True


class Gate:
    """A fault that holds requests until the test opens it.

    `Faults.hold` returns one.

    Examples:
        >>> from threading import Thread
        >>> from pyspark_checkpointer.testing import Faults, injected
        >>> with injected(Faults()) as faults:
        ...     ck = Checkpointer("state/orders")
        ...     gate = faults.hold("swap")
        ...     commit = Thread(target=lambda: ck.begin(epoch=1).commit())
        ...     commit.start()
        ...     gate.wait()  # the swap is on its way
        ...     gate.open()
        ...     commit.join()
    """

    def __init__(self) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> None:
        self._reached.set()
        if not self._opened.wait(MAX_HELD_SECONDS):
            raise AssertionError(f"{request} was held and never let go")

    def wait(self) -> None:
        """Wait until a request is held, for at most 30 seconds.

        Raises:
            AssertionError: No request came in that time.

        Examples:
            >>> gate = faults.hold("swap")
            >>> commit = Thread(target=lambda: ck.begin(epoch=2).commit())
            >>> commit.start()
            >>> gate.wait()
            >>> ck.read_latest().sequence  # the swap has not reached the store
            1
            >>> gate.open()
            >>> commit.join()
        """
        assert self._reached.wait(MAX_HELD_SECONDS), "no request came to the gate"

    def open(self) -> None:
        """Let all requests pass, now and later.

        Examples:
            >>> gate = faults.hold("swap")
            >>> gate.open()  # before the request comes, which then does not wait
            >>> ck.begin(epoch=2).commit().sequence
            2
        """
        self._opened.set()
