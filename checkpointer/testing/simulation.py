"""Several actors on one store, in an order that a test decides: the real code, one store request at a time.

Each actor is a coroutine with a store of its own. Whenever all of them wait for an answer, the test says what happens
next: one request is served, or its answer is lost, or it stays under way and lands later, or an actor dies. Nothing
else decides anything: the same decisions give the same history.
"""

import asyncio
import itertools
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pyspark_checkpointer.errors import DependencyError, StoreRefusedError
from pyspark_checkpointer.storage.base import ListingPage, Store
from pyspark_checkpointer.storage.memory.store import MemoryStore, forget
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.requests import WRITES, CrashError, Request, Send
from pyspark_checkpointer.testing.store import FaultyStore

T = TypeVar("T")

DAWN = datetime(2024, 1, 1, tzinfo=UTC)

_names = itertools.count(1)


class StuckError(Exception):
    """Nobody waits for a request, and somebody has not come to an end: the code waits for what is not simulated."""


@dataclass(frozen=True, slots=True)
class Effect:
    """A request that reached the store, and whether it changed anything there.

    `context` is that of the code that made it, which may have come to another end since.
    """

    actor: str
    request: Request
    changed: bool
    context: Context = field(repr=False)


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that has not been served. `number` counts the equal ones of its actor."""

    actor: str
    number: int
    request: Request
    send: Send = field(repr=False)
    answer: "asyncio.Future[Any]" = field(repr=False)
    context: Context = field(default_factory=copy_context, repr=False)


class _Selector(selectors.SelectSelector):
    """Asked by the event loop when nothing is left to do but to wait: the moment to decide what happens next."""

    def __init__(self, idle: Callable[[float | None], None]) -> None:
        super().__init__()
        self._idle = idle

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None or timeout > 0:
            self._idle(timeout)
        return []


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everybody sleeps."""

    def __init__(self, idle: Callable[[float | None], None]) -> None:
        self.seconds = 0.0
        super().__init__(_Selector(idle))

    def time(self) -> float:
        return self.seconds


class Simulation:
    """A store in memory, and those who use it.

    `watch` is told of each effect on the store, before anybody else is; what it raises ends the simulation.
    """

    def __init__(self, watch: Callable[[Effect], None] = lambda effect: None) -> None:
        self.store = MemoryStore(f"memory://simulation-{next(_names)}")
        self.waiting: list[Waiting] = []
        self.late: list[Waiting] = []
        """Writes whose senders believe them lost, and that may still land."""
        self.steps = 0
        self.watch = watch
        self._step: Callable[[], None] = lambda: None
        self._loop = _Loop(self._idle)
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._dead: set[str] = set()
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def store_of(self, actor: str) -> Store:
        """Return an actor's way to the store."""
        return FaultyStore(self.store, _Stage(self, actor))

    def start(self, actor: str, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Let an actor do something, from the next step on. It may do several things at once."""
        task = self._loop.create_task(work)
        self._tasks[task] = actor
        return task

    def run(self, step: Callable[[], None]) -> None:
        """Until everybody has come to an end; `step` is called when all wait, and decides what happens next.

        Raises what an actor raised, unless it had been killed.
        """
        self._step = step
        self._loop.run_until_complete(self._until_done())

    def play(self, actor: str, work: Coroutine[Any, Any, T]) -> T:
        """One thing done from beginning to end while all others stand still."""
        mine, step, serving = self.start(actor, work), self._step, self.waiting
        self.waiting = []
        self._step = lambda: self.serve(self.waiting[0])
        try:
            return self._loop.run_until_complete(mine)
        finally:
            self._step, self.waiting = step, serving
            if mine.done():  # else the watcher has ended it all, and `close` has to forget it
                self._tasks.pop(mine, None)

    def close(self) -> None:
        """Forget what did not come to an end, and the store."""
        self._dead.update(self._tasks.values())  # what they still ask for, to tidy up, would wait for ever
        for task in self._tasks:
            task.cancel()
        self._step = lambda: None
        with suppress(BaseException):
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()
        forget(self.store.url)

    # ---- what can happen next ------------------------------------------------------------------------------------

    def serve(self, one: Waiting) -> None:
        """The request takes effect, or is refused, and is answered."""
        self._take(one)
        answer, refusal = self._reach(one)
        if refusal is None:
            one.answer.set_result(answer)
        else:
            one.answer.set_exception(refusal)

    def serve_stale(self, one: Waiting, drop: Sequence[str]) -> None:
        """A listing is answered that does not know some of what is there."""
        self._take(one)
        page, _ = self._reach(one)
        assert isinstance(page, ListingPage)
        one.answer.set_result(ListingPage([entry for entry in page.entries if entry.path not in drop], page.more))

    def lose(self, one: Waiting, *, after: bool) -> None:
        """No answer comes: before the request took effect, or after it did."""
        self._fail(one, DependencyError, after=after)

    def refuse(self, one: Waiting) -> None:
        """The store will not do it, such as for a right that is missing or a disk that is full."""
        self._fail(one, StoreRefusedError, after=False)

    def _fail(self, one: Waiting, error: type[Exception], *, after: bool) -> None:
        self._take(one)
        if after:
            self._reach(one)
        one.answer.set_exception(error(f"{one.request.kind} {one.request.path}: failed by the simulation"))

    def delay(self, one: Waiting) -> None:
        """No answer comes, and the write may land later."""
        self.late.append(one)
        self.lose(one, after=False)

    def land(self, one: Waiting) -> None:
        """A write that was given up arrives."""
        self.late.remove(one)
        self.steps += 1
        self._reach(one)

    def kill(self, actor: str, *, in_flight: bool = False) -> None:
        """The actor's process is gone; what it has sent is lost, or (`in_flight`) its writes may still land."""
        self.steps += 1
        self._dead.add(actor)
        for one in [one for one in self.waiting if one.actor == actor]:
            self.waiting.remove(one)
            if in_flight and one.request.kind in WRITES:
                self.late.append(one)
            one.answer.set_exception(CrashError("died"))

    def is_dead(self, actor: str) -> bool:
        return actor in self._dead

    # ---- within --------------------------------------------------------------------------------------------------

    def _idle(self, timeout: float | None) -> None:
        if self.waiting:
            self._step()
        elif timeout is not None:
            self._loop.seconds += timeout
        else:
            raise StuckError(f"after {self.steps} steps nobody can go on: {sorted(set(self._tasks.values()))}")

    def _take(self, one: Waiting) -> None:
        self.steps += 1
        self.waiting.remove(one)

    def _reach(self, one: Waiting) -> tuple[Any, Exception | None]:
        """What the store answers, or why it refuses; what the watcher raises goes up. A store in memory never waits."""
        before = self.store.objects.get(one.request.path)
        answer = None
        try:
            one.send(one.request).send(None)  # type: ignore[attr-defined]
        except StopIteration as done:
            answer = done.value
        except Exception as refusal:
            return None, refusal
        changed = one.request.kind == "delete" or self.store.objects.get(one.request.path) is not before
        self.watch(Effect(one.actor, one.request, changed, one.context))
        return answer, None

    async def _until_done(self) -> None:
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                actor = self._tasks.pop(task)
                error = None if task.cancelled() else task.exception()
                if error is not None and not (isinstance(error, CrashError) and actor in self._dead):
                    raise error

    async def _wait(self, actor: str, request: Request, send: Send) -> Any:
        if actor in self._dead:
            raise CrashError("died before")
        kind = (actor, request.kind, request.path)
        self._counts[kind] += 1
        one = Waiting(actor, self._counts[kind], request, send, self._loop.create_future())
        self.waiting.append(one)
        try:
            return await one.answer
        finally:
            if one.answer.cancelled() and one in self.waiting:  # given up by its sender, and still under way
                self.waiting.remove(one)
                if request.kind in WRITES:
                    self.late.append(one)


class _Stage(Faults):
    """In place of faults: every request waits until the simulation says what becomes of it."""

    def __init__(self, simulation: Simulation, actor: str) -> None:
        super().__init__()
        self._simulation, self._actor = simulation, actor

    async def serve(self, request: Request, send: Send) -> Any:
        return await self._simulation._wait(self._actor, request, send)


class SimulatedHost:
    """Time that passes by one second a step, wrong by `skew`; tokens that are counted; everything computed at once."""

    def __init__(self, simulation: Simulation, name: int, skew: timedelta = timedelta(0)) -> None:
        self._simulation, self.name, self._skew = simulation, name, skew
        self.drawn = 0

    def now(self) -> datetime:
        return DAWN + timedelta(seconds=self._simulation.steps) + self._skew

    def clock(self) -> int:
        return self._simulation.steps * 1_000_000_000

    def token(self, digits: int) -> str:
        """Never the same twice: the host's number, then a count."""
        self.drawn += 1
        return f"{self.name:04x}{self.drawn:0{digits - 4}x}"

    async def run(self, compute: Callable[[], T]) -> T:
        return compute()

    async def call(self, function: Callable[[], T]) -> T:
        return function()
