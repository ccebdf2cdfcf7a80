"""What goes wrong with the requests of a store: by script, or by a seed.

A fault stands between a request and the store, and decides what is sent and what is answered:

    faults = Faults()
    faults.drop_answer("swap")              # the next swap lands, and nobody hears of it
    faults.crash(5)                         # and before the fifth request from now on the process is gone
    store = FaultyStore(MemoryStore("memory://x"), faults)
"""

import asyncio
import inspect
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from pyspark_checkpointer.errors import CheckpointError, DependencyError, IllegalArgumentError, ThrottlingError
from pyspark_checkpointer.storage.base import Blob, ListedObject, ListingPage
from pyspark_checkpointer.testing.requests import KINDS, WRITES, CrashError, Fault, Gate, LateWrite, Request, Send

RATE = 0.1
"""The share of requests that a seed lets fail unless told otherwise."""

FAILURES = ("fail", "drop_answer", "throttle", "delay", "stale_listing")
"""What a seed chooses from unless told otherwise: all that a sound client gets over."""

DAMAGE = ("flip", "tear")
"""What a seed may be told to choose from too."""

LONGEST = 0.01
"""Seconds that a request is delayed at most where a seed delays it: enough for others to come first."""


Action = Callable[[Request], object]


@dataclass(slots=True, eq=False)
class _Rule:
    """Apply `fault` to the matches from the `nth` on, `times` of them."""

    fault: Fault
    kind: str | None
    path: str
    nth: int
    times: int
    seen: int = 0

    def matches(self, request: Request) -> bool:
        if self.kind not in (None, request.kind) or self.path not in request.path:
            return False
        self.seen += 1
        return self.nth <= self.seen < self.nth + self.times


class Faults:
    """What is to go wrong, and what was asked so far. Several stores may share it: they fail as one process does.

    Each method takes which request is meant: the `nth` from now on of a `kind` (None: any) whose path contains `path`,
    and `times - 1` more. With a seed each request meets one of `failures` by chance, with probability `rate`.
    """

    def __init__(self, *, seed: int | None = None, rate: float = RATE, failures: Sequence[str] = FAILURES) -> None:
        if not failures or set(failures) - {*FAILURES, *DAMAGE}:
            raise IllegalArgumentError(f"failures={failures!r}: expected some of {', '.join(FAILURES + DAMAGE)}")
        if not 0 <= rate <= 1:
            raise IllegalArgumentError(f"rate={rate}: expected a probability")
        if seed is None and (rate, failures) != (RATE, FAILURES):
            raise IllegalArgumentError("rate and failures are of random faults: give a seed")
        self.requests: list[Request] = []
        self._rules: list[_Rule] = []
        self.dead = False
        """Whether the process died, and nothing is served any more."""
        self._late: set[int] = set()
        self._random = None if seed is None else random.Random(seed)
        self._rate, self._failures = rate, tuple(failures)
        self._effects: list[Request] = []
        self._lock = threading.Lock()

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

    def apply(self, fault: Fault, kind: str | None = None, nth: int = 1, *, path: str = "", times: int = 1) -> None:
        """Put any fault in the way of the nth matching request."""
        if kind not in (None, *KINDS):
            raise IllegalArgumentError(f"no request is of kind {kind!r}: kinds are {', '.join(KINDS)}")
        if nth < 1 or times < 1:
            raise IllegalArgumentError(f"nth={nth}, times={times}: expected 1 or more of each")
        self._rules.append(_Rule(fault, kind, path, nth, times))

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
        """Run `action`, in a thread, at the nth matching request; what it raises, the request raises."""
        if inspect.iscoroutinefunction(action):
            raise IllegalArgumentError("a coroutine function would not be awaited: give a function")
        self.apply(_calling(action, after), kind, nth, path=path, times=times)

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
        self.apply(_failing(error, after), kind, nth, path=path, times=times)

    def drop_answer(self, kind: str = "swap", nth: int = 1, *, path: str = "", times: int = 1) -> None:
        """Let the nth matching request take effect and its answer be lost."""
        self.fail(kind, nth, path=path, after=True, times=times)

    def throttle(self, kind: str | None = None, nth: int = 1, *, path: str = "", times: int = 1) -> None:
        """Let the store refuse the nth matching request as one too many (503)."""
        self.fail(kind, nth, path=path, times=times, error=ThrottlingError)

    def delay(
        self,
        seconds: float,
        kind: str | None = None,
        nth: int = 1,
        *,
        path: str = "",
        after: bool = False,
        times: int = 1,
    ) -> None:
        """Hold the nth matching request up, or (`after`) its answer: later ones overtake it."""
        if not seconds >= 0:
            raise IllegalArgumentError(f"seconds={seconds}: expected 0 or more")
        self.apply(_slow(0.0 if after else seconds, seconds if after else 0.0), kind, nth, path=path, times=times)

    def late(self, kind: str = "swap", nth: int = 1, *, path: str = "", times: int = 1) -> list[LateWrite]:
        """Leave the nth put, swap or delete unanswered; the list will hold it, for the test to let it land."""
        if kind not in WRITES:
            raise IllegalArgumentError(f"a {kind} cannot land late: expected one of {', '.join(WRITES)}")
        late: list[LateWrite] = []

        async def fault(request: Request, send: Send) -> Any:
            self._late.add(request.number)
            late.append(LateWrite(request, send))
            raise DependencyError(f"{request.kind} {request.path}: no answer yet, says the test")

        self.apply(fault, kind, nth, path=path, times=times)
        return late

    def hold(self, kind: str, nth: int = 1, *, path: str = "", after: bool = False, times: int = 1) -> Gate:
        """Hold the nth matching request until the gate is opened."""
        gate = Gate()
        self.call(gate, kind, nth, path=path, after=after, times=times)
        return gate

    def tear(self, nth: int = 1, *, path: str = "", share: float = 0.5) -> None:
        """Let the nth matching put leave only the first `share` of its bytes, and fail.

        Of the stores only those without fencing (any fsspec URL with `fencing="none"`) can do that.
        """
        if not 0 <= share < 1:
            raise IllegalArgumentError(f"share={share}: expected a part of the bytes, and not all of them")
        self.apply(_tearing(share), "put", nth, path=path)

    def flip(self, kind: str = "get", nth: int = 1, *, path: str = "", bit: int = 0, times: int = 1) -> None:
        """Let one bit of the nth matching answer be wrong: bit 0 is the lowest of the first byte."""
        if kind not in ("get", "get_range"):
            raise IllegalArgumentError(f"{kind!r} is answered with no bytes: flip those of a get or get_range")
        self.apply(_flipping(bit), kind, nth, path=path, times=times)

    def stale_listing(self, nth: int = 1, *, path: str = "", lag: int = 1, times: int = 1) -> None:
        """Let the nth matching listing not know the last `lag` writes and deletions that came through here."""
        if lag < 1:
            raise IllegalArgumentError(f"lag={lag}: expected 1 or more")
        self.apply(self._stale(lag), "list", nth, path=path, times=times)

    def crash(self, number: int, *, after: bool = False) -> None:
        """Die at the nth request from now on, and serve nothing afterwards."""

        def action(request: Request) -> None:
            self.dead = True
            raise CrashError(f"died at {request}")

        self.call(action, None, number, after=after)

    def clear(self) -> None:
        """Nothing goes wrong any more; who died is alive again. What was asked stays counted."""
        self._rules, self.dead, self._random = [], False, None

    # ---- how it goes wrong ---------------------------------------------------------------------------------------

    async def serve(self, request: Request, send: Send) -> Any:
        """Send a request through all that is in its way. For `FaultyStore`."""
        with self._lock:
            request = replace(request, number=len(self.requests) + 1)
            self.requests.append(request)
            faults = [rule.fault for rule in self._rules if rule.matches(request)]
            if self._random is not None and self._random.random() < self._rate:
                faults.append(self._by_chance(self._random))

        async def ask(sent: Request) -> Any:
            if sent.number not in self._late:  # what is under way outlives who sent it
                self._check_alive()
            answer = await send(sent)
            if sent.kind in ("put", "delete") or (sent.kind == "swap" and sent.expected is None):
                self._effects.append(sent)
            return answer

        self._check_alive()
        reach: Send = ask
        for fault in reversed(faults):
            reach = _through(fault, reach)
        return await reach(request)

    def _check_alive(self) -> None:
        if self.dead:
            raise CrashError("died before")

    def _by_chance(self, dice: random.Random) -> Fault:
        match dice.choice(self._failures):
            case "fail":
                return _failing(DependencyError, after=False)
            case "drop_answer":
                return _failing(DependencyError, after=True)
            case "throttle":
                return _failing(ThrottlingError, after=False)
            case "delay":
                return _slow(dice.uniform(0, LONGEST), dice.uniform(0, LONGEST))
            case "flip":
                return _flipping(dice.randrange(1 << 20))
            case "tear":
                return _tearing(dice.random())
            case _:
                return self._stale(dice.randrange(1, 5))

    def _stale(self, lag: int) -> Fault:
        async def fault(request: Request, send: Send) -> Any:
            page = await send(request)
            return self._without_last(page, request.path, lag) if isinstance(page, ListingPage) else page

        return fault

    def _without_last(self, page: ListingPage, prefix: str, lag: int) -> ListingPage:
        """A page as it would have been before the last effects: what was written is not there, what was deleted is."""
        entries = {entry.path: entry for entry in page.entries}
        sizes = {effect.path: effect.size for effect in self._effects if effect.kind != "delete"}
        for effect in reversed(self._effects[-lag:]):
            if effect.kind != "delete":
                entries.pop(effect.path, None)
            elif page.more is None:
                gone = [path for path in effect.path.split(" ") if path.startswith(prefix) and path in sizes]
                entries |= {path: ListedObject(path, sizes[path]) for path in gone}
        return ListingPage(list(entries.values()), page.more)


def _through(fault: Fault, send: Send) -> Send:
    return lambda request: fault(request, send)


def _calling(action: Action, after: bool) -> Fault:
    async def fault(request: Request, send: Send) -> Any:
        if not after:
            await asyncio.to_thread(action, request)
        try:
            return await send(request)
        finally:  # a refusal is an answer too
            if after:
                await asyncio.to_thread(action, request)

    return fault


def _failing(error: type[Exception], after: bool) -> Fault:
    async def fault(request: Request, send: Send) -> Any:
        if after:
            with suppress(CheckpointError):
                await send(request)
        raise error(f"{request.kind} {request.path}: failed by the test")

    return fault


def _slow(before: float, after: float) -> Fault:
    async def fault(request: Request, send: Send) -> Any:
        await asyncio.sleep(before)
        answer = await send(request)
        await asyncio.sleep(after)
        return answer

    return fault


def _flipping(bit: int) -> Fault:
    """Return one wrong bit in an answer that has any."""

    async def fault(request: Request, send: Send) -> Any:
        answer = await send(request)
        data = bytearray(answer.data if isinstance(answer, Blob) else answer if isinstance(answer, bytes) else b"")
        if data:
            data[bit // 8 % len(data)] ^= 1 << bit % 8
            answer = replace(answer, data=bytes(data)) if isinstance(answer, Blob) else bytes(data)
        return answer

    return fault


def _tearing(share: float) -> Fault:
    """Return the beginning of what a put was to write, and a failure."""

    async def fault(request: Request, send: Send) -> Any:
        if request.kind != "put":
            return await send(request)
        part = bytes(memoryview(request.data).cast("B")[: int(len(request.data) * share)])
        await send(replace(request, data=part))
        raise DependencyError(f"put {request.path}: broke off, says the test")

    return fault
