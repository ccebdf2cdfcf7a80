"""A store that fails where a test says so, before or after a request took effect, and counts what it is asked."""

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from checkpointer import runtime
from checkpointer.errors import DependencyError
from checkpointer.store.base import Blob, Leftover, Listing, Page, PreconditionFailedError, S, Store
from manifests.digest import Bytes

T = TypeVar("T")

PATIENCE = 30.0
"""Seconds after which a held request gives up, so that a broken test fails and does not hang."""


class CrashError(Exception):
    """The process of this store's user died: no request of it is served any more."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request; `kind` is get, get_range, put, swap, list, delete, leftovers or discard."""

    kind: str
    path: str
    number: int
    size: int = 0
    data: bytes = field(default=b"", repr=False)
    expected: str | None = None


Action = Callable[[Request], object]


@dataclass(slots=True, eq=False)
class _Rule:
    """Do `action` at the matches from the `nth` on, `times` of them."""

    action: Action
    kind: str | None
    path: str
    nth: int
    times: int
    after: bool
    seen: int = 0

    def matches(self, request: Request) -> bool:
        if self.kind not in (None, request.kind) or self.path not in request.path:
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


class LateSwap:
    """A swap that its sender believes lost, and that may still land."""

    def __init__(self, store: Store, request: Request) -> None:
        self._store, self._request = store, request

    def land(self) -> bool:
        """Let it arrive now. Whether it took effect."""
        return runtime.run_sync(self.arrive())

    async def arrive(self) -> bool:
        request = self._request
        try:
            await self._store.compare_and_swap(request.path, request.data, request.expected)
        except PreconditionFailedError:
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


class FaultyStore(Listing):
    """`inner`, with faults by script (`fail`, `drop_answer`, `delay_swap`, `call`, `hold`, `crash`) or by a seed.

    With a seed each request fails with probability `rate`, half of them after they took effect.
    """

    def __init__(self, inner: Store, *, seed: int | None = None, rate: float = 0.1) -> None:
        self.inner = inner
        self.requests: list[Request] = []
        self._rules: list[_Rule] = []
        self._dead = False
        self._random = None if seed is None else random.Random(seed)
        self._rate = rate

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def fencing(self) -> bool:
        return self.inner.fencing

    # ---- what was asked ------------------------------------------------------------------------------------------

    @property
    def counts(self) -> Counter[str]:
        """Requests by kind."""
        return Counter(request.kind for request in self.requests)

    def paths(self, kind: str) -> list[str]:
        return [request.path for request in self.requests if request.kind == kind]

    def forget(self) -> None:
        """Begin to count anew."""
        self.requests = []

    # ---- what is to go wrong -------------------------------------------------------------------------------------

    def call(
        self,
        action: Action,
        kind: str | None = None,
        nth: int = 1,
        *,
        path: str = "",
        after: bool = False,
        times: int = 1,
    ) -> None:
        """Run `action`, in a thread, at the nth matching request from now on; what it raises, the request raises."""
        self._rules.append(_Rule(action, kind, path, nth, times, after))

    def fail(
        self,
        kind: str | None = None,
        nth: int = 1,
        *,
        path: str = "",
        after: bool = False,
        times: int = 1,
        error: type[Exception] = DependencyError,
    ) -> None:
        """Let the nth matching request fail, before or after it took effect."""

        def action(request: Request) -> None:
            raise error(f"{request.kind} {request.path}: failed by the test")

        self.call(action, kind, nth, path=path, after=after, times=times)

    def drop_answer(self, kind: str = "swap", nth: int = 1, *, path: str = "", times: int = 1) -> None:
        """Let the nth matching request take effect and its answer be lost."""
        self.fail(kind, nth, path=path, after=True, times=times)

    def delay_swap(self, nth: int = 1, times: int = 1) -> list[LateSwap]:
        """Leave the nth swap unanswered; the list will hold it, for the test to let it land."""
        late: list[LateSwap] = []

        def action(request: Request) -> None:
            late.append(LateSwap(self.inner, request))
            raise DependencyError("swap: no answer yet, says the test")

        self.call(action, "swap", nth, times=times)
        return late

    def hold(self, kind: str, nth: int = 1, *, path: str = "", after: bool = False, times: int = 1) -> Gate:
        """Hold the nth matching request until the gate is opened."""
        gate = Gate()
        self.call(gate, kind, nth, path=path, after=after, times=times)
        return gate

    def crash(self, number: int, *, after: bool = False) -> None:
        """Die at the nth request from now on, and serve nothing afterwards."""

        def action(request: Request) -> None:
            self._dead = True
            raise CrashError(f"died at {request}")

        self.call(action, None, number, after=after)

    # ---- the store -----------------------------------------------------------------------------------------------

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return await self._run("get", path, lambda: self.inner.get(path, limit=limit))

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        return await self._run("get", path, lambda: self.inner.read_into(path, make, limit=limit))

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return await self._run("get_range", path, lambda: self.inner.get_range(path, offset, length))

    async def put(self, path: str, data: Bytes) -> None:
        await self._run("put", path, lambda: self.inner.put(path, data), size=len(data))

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        def swap() -> Awaitable[str]:
            return self.inner.compare_and_swap(path, data, expected)

        return await self._run("swap", path, swap, size=len(data), data=data, expected=expected)

    async def list_page(self, prefix: str, more: object | None = None) -> Page:
        return await self._run("list", prefix, lambda: self.inner.list_page(prefix, more))

    async def folders(self, prefix: str) -> Sequence[str]:
        return await self._run("list", prefix, lambda: self.inner.folders(prefix))

    async def delete(self, paths: Sequence[str]) -> None:
        await self._run("delete", " ".join(paths), lambda: self.inner.delete(paths))

    async def leftovers(self) -> Sequence[Leftover]:
        return await self._run("leftovers", "", self.inner.leftovers)

    async def discard(self, leftovers: Sequence[Leftover]) -> None:
        await self._run("discard", "", lambda: self.inner.discard(leftovers))

    async def close(self) -> None:
        await self.inner.close()

    async def _run(
        self,
        kind: str,
        path: str,
        send: Callable[[], Awaitable[T]],
        size: int = 0,
        data: bytes = b"",
        expected: str | None = None,
    ) -> T:
        request = Request(kind, path, len(self.requests) + 1, size, data, expected)
        self.requests.append(request)
        self._check_alive()
        rules = [rule for rule in self._rules if rule.matches(request)]
        chance = 1.0 if self._random is None else self._random.random() / self._rate
        await self._act(request, [rule for rule in rules if not rule.after], chance < 0.5)
        self._check_alive()
        answer = await send()
        await self._act(request, [rule for rule in rules if rule.after], 0.5 <= chance < 1)
        return answer

    def _check_alive(self) -> None:
        if self._dead:
            raise CrashError("died before")

    @staticmethod
    async def _act(request: Request, rules: Sequence[_Rule], unlucky: bool) -> None:
        for rule in rules:
            await asyncio.to_thread(rule.action, request)
        if unlucky:
            raise DependencyError(f"{request.kind} {request.path}: failed by chance")
