"""Simulate several actors on one store, in an order that a test decides.

The actors run the real code; the test decides about one request at a time.

Each actor is a coroutine with a store of its own. Whenever all of them wait for an answer, the test decides what
happens next: one request is served, or its answer is lost, or it stays under way and lands later, or an actor dies.
Nothing else influences the run, so the same decisions give the same history.

A request is in one of these states:

    waiting    in `Simulation.waiting`: sent, and neither served nor answered
    late       in `Simulation.late`: its sender believes it lost, and it may still take effect
    over       in neither: answered, or lost for good
"""

import asyncio
import itertools
import selectors
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest import mock

from pyspark_checkpointer.errors import DependencyError, StoreRefusedError
from pyspark_checkpointer.storage import compare_and_swap
from pyspark_checkpointer.storage.base import ListingPage, Store
from pyspark_checkpointer.storage.memory.store import MemoryStore, forget
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.requests import WRITES, CrashError, Request, Send
from pyspark_checkpointer.testing.store import FaultyStore

T = TypeVar("T")

_names = itertools.count(1)


class StuckError(Exception):
    """The error when the code waits for something that is not simulated.

    Then no actor has a request, and some actors have not ended.
    """


@dataclass(frozen=True, slots=True)
class Effect:
    """A request that reached the store, and whether it changed anything there.

    `context` is the context of the code that sent the request. This code may have continued since.
    """

    actor: str
    request: Request
    changed: bool
    context: Context = field(repr=False)


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """A request that has not been served."""

    actor: str
    number: int
    """Its position, from 1, among the actor's requests with the same kind and path."""
    request: Request
    send: Send = field(repr=False)
    answer: "asyncio.Future[Any]" = field(repr=False)
    context: Context = field(default_factory=copy_context, repr=False)


class _Selector(selectors.SelectSelector):
    """A selector that calls `idle` when its event loop can only wait."""

    def __init__(self, idle: Callable[[float | None], None]) -> None:
        super().__init__()
        self._idle = idle

    def select(self, timeout: float | None = None) -> list[Any]:
        # With a timeout of 0 the loop has callbacks to run, and does not wait.
        if timeout is None or timeout > 0:
            self._idle(timeout)
        # There is no input or output to wait for: what happens next is decided by the test.
        return []


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only while everybody sleeps."""

    def __init__(self, idle: Callable[[float | None], None]) -> None:
        self.seconds = 0.0
        super().__init__(_Selector(idle))

    def time(self) -> float:
        return self.seconds


class Simulation:
    """A store in memory, and the actors that use it.

    `watch` is called with each effect on the store, before the actor has its answer. An error that it raises ends the
    simulation.
    """

    def __init__(self, watch: Callable[[Effect], None] = lambda effect: None) -> None:
        self.store = MemoryStore(f"memory://simulation-{next(_names)}")
        self.waiting: list[WaitingRequest] = []
        self.late: list[WaitingRequest] = []
        """Writes that their senders believe lost, and that may still land."""
        self.steps = 0
        self.watch = watch
        self._step: Callable[[], None] = lambda: None
        self._loop = _Loop(self._idle)
        self._tasks: dict[asyncio.Task[Any], str] = {}
        self._dead: set[str] = set()
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def store_of(self, actor: str) -> Store:
        """Return the store as an actor uses it."""
        return FaultyStore(self.store, _SimulatedFaults(self, actor))

    def start(self, actor: str, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Start a task of an actor, which may have several at the same time."""
        task = self._loop.create_task(work)
        self._tasks[task] = actor
        return task

    def run(self, step: Callable[[], None]) -> None:
        """Run until all actors have ended.

        `step` is called when all of them wait, and decides what happens next. Raises what an actor raised, unless it
        had been killed.
        """
        self._step = step
        self._complete(self._until_done())

    def play(self, actor: str, work: Coroutine[Any, Any, T]) -> T:
        """Run one task of an actor from beginning to end while all others wait.

        Return its result.
        """
        mine, step, serving = self.start(actor, work), self._step, self.waiting
        # The requests of the others are put away, so that only those of this task are served.
        self.waiting = []
        self._step = lambda: self.serve(self.waiting[0])
        try:
            return self._complete(mine)
        finally:
            self._step, self.waiting = step, serving
            if mine.done():  # else the watcher has ended the simulation, and `close` cancels the task
                self._tasks.pop(mine, None)

    def close(self) -> None:
        """Cancel the tasks that have not ended, and drop the store."""
        # Dead actors are refused at once: a request that they still make, to tidy up, would wait for ever.
        self._dead.update(self._tasks.values())
        for task in self._tasks:
            task.cancel()
        self._step = lambda: None
        with suppress(BaseException):
            self._loop.run_until_complete(asyncio.gather(*self._tasks, return_exceptions=True))
        self._loop.close()
        # Stores in memory outlive their objects, by URL, and very many simulations may run in a process.
        forget(self.store.url)

    # ---- what can happen next ------------------------------------------------------------------------------------

    def serve(self, one: WaitingRequest) -> None:
        """Let a request reach the store and be answered, or refused."""
        self._take(one)
        answer, refusal = self._reach(one)
        if refusal is None:
            one.answer.set_result(answer)
        else:
            one.answer.set_exception(refusal)

    def serve_stale(self, one: WaitingRequest, drop: Sequence[str]) -> None:
        """Answer a listing without some of the objects that are there."""
        self._take(one)
        page, _ = self._reach(one)
        assert isinstance(page, ListingPage)
        one.answer.set_result(ListingPage([entry for entry in page.entries if entry.path not in drop], page.more))

    def lose(self, one: WaitingRequest, *, after: bool) -> None:
        """Lose the answer to a request, before or (`after`) after it took effect."""
        self._fail(one, DependencyError, after=after)

    def refuse(self, one: WaitingRequest) -> None:
        """Let the store refuse a request for good.

        A real store does so where a right is missing or a disk is full.
        """
        self._fail(one, StoreRefusedError, after=False)

    def _fail(self, one: WaitingRequest, error: type[Exception], *, after: bool) -> None:
        self._take(one)
        if after:
            self._reach(one)
        one.answer.set_exception(error(f"{one.request.kind} {one.request.path}: failed by the simulation"))

    def delay(self, one: WaitingRequest) -> None:
        """Lose the answer to a write, which may land later."""
        self.late.append(one)
        self.lose(one, after=False)

    def land(self, one: WaitingRequest) -> None:
        """Let a late write reach the store."""
        self.late.remove(one)
        self.steps += 1
        self._reach(one)

    def kill(self, actor: str, *, in_flight: bool = False) -> None:
        """Kill an actor.

        Its requests are lost, or (`in_flight`) its writes may still land.
        """
        self.steps += 1
        # First, so that what it sends while it is cleaned up is refused.
        self._dead.add(actor)
        for one in [one for one in self.waiting if one.actor == actor]:
            self.waiting.remove(one)
            if in_flight and one.request.kind in WRITES:
                self.late.append(one)
            # The coroutine is ended by an error and not dropped, so that its `finally` blocks run; their requests are
            # refused.
            one.answer.set_exception(CrashError("died"))

    # ---- within --------------------------------------------------------------------------------------------------

    def _complete(self, work: Awaitable[T]) -> T:
        # Who sleeps lets all others go first, so a swap that paused before it is sent again would leave orders out.
        with mock.patch.object(compare_and_swap, "FIRST_PAUSE", 0.0):
            return self._loop.run_until_complete(work)

    def _idle(self, timeout: float | None) -> None:
        if self.waiting:
            self._step()
        elif timeout is not None:
            self._loop.seconds += timeout  # everybody sleeps: go to the moment when the first one wakes up
        else:
            raise StuckError(f"after {self.steps} steps nobody can go on: {sorted(set(self._tasks.values()))}")

    def _take(self, one: WaitingRequest) -> None:
        self.steps += 1
        self.waiting.remove(one)

    def _reach(self, one: WaitingRequest) -> tuple[Any, Exception | None]:
        """Let a request reach the store.

        Return the answer, or the error. An error of the watcher is raised.
        """
        # A store in memory makes a new object for each write, so identity tells whether one took effect.
        before = self.store.objects.get(one.request.path)
        answer = None
        try:
            # A store in memory never waits, so its coroutine ends at the first step.
            one.send(one.request).send(None)  # type: ignore[attr-defined]
        except StopIteration as done:
            answer = done.value
        except Exception as refusal:
            return None, refusal
        changed = one.request.kind == "delete" or self.store.objects.get(one.request.path) is not before
        # Before the actor has its answer: what it does next must not hide a state that was wrong for a moment.
        self.watch(Effect(one.actor, one.request, changed, one.context))
        return answer, None

    async def _until_done(self) -> None:
        while self._tasks:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                actor = self._tasks.pop(task)
                # A killed actor is meant to end in this error. Any other one is a fault that the test should see.
                error = None if task.cancelled() else task.exception()
                if error is not None and not (isinstance(error, CrashError) and actor in self._dead):
                    raise error

    async def wait(self, actor: str, request: Request, send: Send) -> Any:
        """Wait until a request of an actor is decided. Return the answer to it."""
        if actor in self._dead:
            raise CrashError("died before")
        # Numbered by actor, kind and path, so that a request has the same name in each history that begins alike.
        kind = (actor, request.kind, request.path)
        self._counts[kind] += 1
        one = WaitingRequest(actor, self._counts[kind], request, send, self._loop.create_future())
        self.waiting.append(one)
        try:
            return await one.answer
        finally:
            # Its sender gave it up, and it is still under way.
            if one.answer.cancelled() and one in self.waiting:
                self.waiting.remove(one)
                if request.kind in WRITES:
                    self.late.append(one)


class _SimulatedFaults(Faults):
    """Faults of one actor: every request waits until the simulation decides about it."""

    def __init__(self, simulation: Simulation, actor: str) -> None:
        super().__init__()
        self._simulation, self._actor = simulation, actor

    async def serve(self, request: Request, send: Send) -> Any:
        return await self._simulation.wait(self._actor, request, send)
