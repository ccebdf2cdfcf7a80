"""Requests of several workers, served one at a time, in an order that a test chooses, with faults that it chooses."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from checkpointer.errors import DependencyError
from checkpointer.store.base import Blob, Listing
from checkpointer.store.memory import MemoryStore
from checkpointer.testing.requests import CrashError, LateWrite, Request

T = TypeVar("T")

_SPINS = 12
"""Turns of the event loop in which everybody who was answered comes to their next request."""


@dataclass(eq=False)
class Waiting:
    """A request that has not been served."""

    worker: str
    request: Request
    send: Callable[[], Awaitable[Any]]
    answer: "asyncio.Future[Any]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class Stage:
    """Where the requests of all wait. `watch` is told of each swap: who sent it, what was there, and what is."""

    def __init__(self, url: str, watch: Callable[[str, str, bytes | None, bytes], None]) -> None:
        self.store = MemoryStore(url)
        self.waiting: list[Waiting] = []
        self.late: list[tuple[str, LateWrite]] = []
        self.dead: set[str] = set()
        self._watch = watch

    def store_of(self, worker: str) -> "SteppedStore":
        return SteppedStore(self, worker)

    async def settle(self) -> None:
        """Until everybody has come to a request, or to an end."""
        for _ in range(_SPINS):
            await asyncio.sleep(0)

    async def serve(self, one: Waiting) -> None:
        self.waiting.remove(one)
        answer, error = await self._do(one.worker, one.request, one.send)
        if error is None:
            one.answer.set_result(answer)
        else:
            one.answer.set_exception(error)
        await self.settle()

    async def lose(self, one: Waiting, *, after: bool) -> None:
        """No answer comes: before the request took effect, or after it did."""
        self.waiting.remove(one)
        if after:
            await self._do(one.worker, one.request, one.send)
        one.answer.set_exception(DependencyError("no answer"))
        await self.settle()

    async def delay(self, one: Waiting) -> None:
        """No answer comes, and a swap may land later."""
        if one.request.kind == "swap":
            self.late.append((one.worker, LateWrite(one.request, lambda _: one.send())))
        await self.lose(one, after=False)

    async def land(self, number: int) -> None:
        worker, swap = self.late.pop(number)
        await self._do(worker, swap.request, swap.arrive)

    async def kill(self, worker: str) -> None:
        """Its process is gone: what it sent and what it was about to send."""
        self.dead.add(worker)
        for one in [one for one in self.waiting if one.worker == worker]:
            self.waiting.remove(one)
            one.answer.set_exception(CrashError("died"))
        await self.settle()

    async def _do(
        self, worker: str, request: Request, send: Callable[[], Awaitable[Any]]
    ) -> tuple[Any, Exception | None]:
        """What the store answered, or raised."""
        before = self.store._space.objects.get(request.path)
        try:
            answer = await send()
        except Exception as error:
            return None, error
        after = self.store._space.objects.get(request.path)
        if request.kind == "swap" and after is not None and after is not before:
            self._watch(worker, request.path, None if before is None else before.data, after.data)
        return answer, None


class SteppedStore(Listing):
    """One worker's way to the store of a stage."""

    def __init__(self, stage: Stage, worker: str) -> None:
        self._stage, self._worker = stage, worker
        self.url, self.fencing = stage.store.url, False

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return await self._wait(Request("get", path, 0), lambda: self._stage.store.get(path, limit=limit))

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        request = Request("swap", path, 0, len(data), data, expected)
        return await self._wait(request, lambda: self._stage.store.compare_and_swap(path, data, expected))

    async def _wait(self, request: Request, send: Callable[[], Awaitable[T]]) -> T:
        if self._worker in self._stage.dead:
            raise CrashError("died")
        one = Waiting(self._worker, request, send)
        self._stage.waiting.append(one)
        return await one.answer


def start(work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
    return asyncio.get_running_loop().create_task(work)
