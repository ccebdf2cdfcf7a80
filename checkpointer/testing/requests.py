"""A request on its way to a store, and what can hold it up."""

import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import ConflictError
from pyspark_checkpointer.manifests.digest import Bytes

PATIENCE = 30.0
"""Seconds after which a held request gives up, so that a broken test fails and does not hang."""


KINDS = ("get", "get_range", "put", "swap", "list", "delete", "leftovers", "discard")

WRITES = ("put", "swap", "delete")
"""The kinds that may land late."""


class CrashError(Exception):
    """The process of this store's user died: no request of it is served any more."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `kind` is one of `KINDS`."""

    kind: str
    path: str
    number: int
    size: int = 0
    data: Bytes = field(default=b"", repr=False)
    expected: str | None = None


Send = Callable[[Request], Awaitable[Any]]
"""Hands a request on; the answer of the store, or its error."""

Fault = Callable[[Request, Send], Awaitable[Any]]
"""Stands in for `Send`: what it returns or raises is what the caller gets."""


class LateWrite:
    """A put, swap or delete that its sender believes lost, and that may still land."""

    def __init__(self, request: Request, send: Send) -> None:
        self.request, self._send = request, send

    def land(self) -> bool:
        """Let it arrive now. Whether it took effect."""
        return runtime.run_sync(self.arrive())

    async def arrive(self) -> bool:
        try:
            await self._send(self.request)
        except ConflictError:
            return False
        return True


class Gate:
    """Holds requests until it is opened."""

    def __init__(self) -> None:
        self._reached, self._opened = threading.Event(), threading.Event()

    def __call__(self, request: Request) -> None:
        self._reached.set()
        if not self._opened.wait(PATIENCE):
            raise AssertionError(f"{request} was held and never let go")

    def wait(self) -> None:
        """Until a request stands before it."""
        assert self._reached.wait(PATIENCE), "no request came to the gate"

    def open(self) -> None:
        self._opened.set()
