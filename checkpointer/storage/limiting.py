"""A store with a bound on how many requests run at once, and on how long each may take. Each is counted as it goes."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import DependencyError, IllegalArgumentError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage import request_counts
from pyspark_checkpointer.storage.base import Blob, Leftover, Listing, Page, S, Store

T = TypeVar("T")

SLOWEST = 1 << 20
"""Bytes per second that a transfer must reach: large objects get as much more time."""

_UNKNOWN_SIZE = 1 << 30

SMALL = 256 << 10
"""Bytes up to which a read costs its round trip and little else."""

SMALL_WRITE = 1 << 20
"""The same of a write: those of an attempt are many more than its reads, and bounded together (`uploads.IN_FLIGHT`)."""

SMALL_TURNS = 16
"""Turns of what is small for each turn of anything else. Each may hold a connection."""


class _Counted(Generic[S]):
    """A sink, and how many bytes went into it."""

    def __init__(self, sink: S) -> None:
        self.sink, self.size = sink, 0

    def update(self, piece: bytes, /) -> None:
        self.sink.update(piece)
        self.size += len(piece)


class LimitedStore(Listing):
    """`inner`, at most `concurrency` requests at a time, each answered in `timeout` seconds or a
    `DependencyError`.

    Reads that are known to be small, and small writes, have turns of their own, more of them. Waiting for a turn
    does not count. A request that is given up may still take effect.
    """

    def __init__(self, inner: Store, *, concurrency: int, timeout: float) -> None:
        self._inner = inner
        self._concurrency = concurrency
        self._timeout = timeout
        self._give_turns()

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def fencing(self) -> bool:
        return self._inner.fencing

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        blob = await self._read(path, self._inner.get(path, limit=limit), limit)
        request_counts.received(len(blob.data))
        return blob

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        counted = await self._read(path, self._inner.read_into(path, lambda: _Counted(make()), limit=limit), limit)
        request_counts.received(counted.size)
        return counted.sink

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        data = await self._read(path, self._inner.get_range(path, offset, length), length)
        request_counts.received(len(data))
        return data

    async def put(self, path: str, data: Bytes) -> None:
        await self._run("put", path, self._inner.put(path, data), len(data), small=len(data) <= SMALL_WRITE)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        return await self._run("swap", path, self._inner.compare_and_swap(path, data, expected), len(data))

    async def list_page(self, prefix: str, more: object | None = None) -> Page:
        return await self._run("list", prefix, self._inner.list_page(prefix, more), _UNKNOWN_SIZE)

    async def folders(self, prefix: str) -> Sequence[str]:
        return await self._run("list", prefix, self._inner.folders(prefix), _UNKNOWN_SIZE)

    async def delete(self, paths: Sequence[str]) -> None:
        await self._run("delete", f"{len(paths)} objects", self._inner.delete(paths), _UNKNOWN_SIZE)

    async def leftovers(self) -> Sequence[Leftover]:
        return await self._run("list", "leftovers", self._inner.leftovers(), _UNKNOWN_SIZE)

    async def discard(self, leftovers: Sequence[Leftover]) -> None:
        await self._run("delete", "leftovers", self._inner.discard(leftovers), _UNKNOWN_SIZE)

    async def close(self) -> None:
        await self._inner.close()

    async def _read(self, path: str, request: Coroutine[Any, Any, T], size: int | None) -> T:
        return await self._run(
            "get", path, request, _UNKNOWN_SIZE if size is None else size, small=size is not None and size <= SMALL
        )

    async def _run(self, verb: str, path: str, request: Coroutine[Any, Any, T], size: int, *, small: bool = False) -> T:
        try:
            self._check_loop()
            async with self._small_turns if small else self._turns:
                request_counts.sent(verb)
                allowed = self._timeout + size / SLOWEST
                async with asyncio.timeout(allowed) as deadline:
                    return await request
        except TimeoutError:
            if not deadline.expired():
                raise
            raise DependencyError(f"{self.url}: {verb} {path}: no answer within {allowed:g} s") from None
        finally:
            request.close()  # no effect where it has run; else it would be reported as never awaited

    def _check_loop(self) -> None:
        if not runtime.on_loop():
            raise IllegalArgumentError(
                "a store was used outside its event loop: use pyspark_checkpointer.runtime.run_sync"
            )
        if self._process != os.getpid():
            # After a fork the turns that the parent had given away would never come back.
            self._give_turns()

    def _give_turns(self) -> None:
        self._turns = asyncio.Semaphore(self._concurrency)
        self._small_turns = asyncio.Semaphore(self._concurrency * SMALL_TURNS)
        self._process = os.getpid()
