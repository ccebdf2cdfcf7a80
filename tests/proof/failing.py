"""An operation that fails at one of its requests, what the next run finds, and whether that is right."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pyspark_checkpointer import RetentionPolicy
from pyspark_checkpointer.errors import CheckpointError, DependencyError, OutcomeUnknownError
from pyspark_checkpointer.testing.requests import WRITES, CrashError, Request
from tests.proof.onlooker import Saved, View, WatchedWorld
from tests.proof.operations import OPERATIONS, Operation, Step, commit, grown, state_of
from tests.proof.planted import Planted
from tests.world import Actor

COUNTED = {"crash": "crash points", "error": "failures that were told", "retried": "failures that were tried again"}
"""How a request can fail, and what that is called in the figures."""

EFFECTS = (*WRITES, "discard")
"""The kinds of requests that leave something behind."""

OF_NEXT_RUN = 77
"""The number that the next run commits."""

GARBAGE = RetentionPolicy(grace=timedelta(0))
"""Retires nothing."""


@dataclass(frozen=True, slots=True)
class Point:
    """The request that fails, and how."""

    how: str
    number: int
    after: bool

    def hit(self, client: Actor) -> None:
        if self.how == "crash":
            client.faults.crash(self.number, after=self.after)
        else:
            client.faults.fail(nth=self.number, after=self.after)


def points(how: str, requests: Sequence[Request]) -> list[Point]:
    """Every place to fail. A request that changes nothing fails in one way, whether before or after it was answered."""
    return [
        Point(how, number, after)
        for number, request in enumerate(requests, 1)
        for after in ((False, True) if request.kind in EFFECTS else (False,))
    ]


def telling(places: Sequence[Point], requests: Sequence[Request]) -> list[Point]:
    """Leave out all but the first of reads in a row.

    A crash at a later one leaves the same store behind.
    """
    effects = {number for number, request in enumerate(requests, 1) if request.kind in EFFECTS}
    return [point for point in places if {point.number, point.number - 1} & {0, *effects}]


@dataclass(frozen=True, slots=True)
class Script:
    """Some steps, the requests they make when nothing fails, and what is there before and after each."""

    steps: Sequence[Step]
    requests: Sequence[Request]
    views: Sequence[View | None]


def rehearse(world: WatchedWorld, client: Actor, steps: Sequence[Step]) -> Script:
    client.faults.forget()
    notes: dict[str, Any] = {}
    views = [world.onlooker.view()]
    for step in steps:
        step(client, notes)
        views.append(world.onlooker.view())
    return Script(steps, tuple(client.faults.requests), views)


def play(client: Actor, steps: Sequence[Step]) -> tuple[int, Exception | None]:
    """How many steps were acknowledged, and what ended the play."""
    notes: dict[str, Any] = {}
    for number, step in enumerate(steps):
        try:
            step(client, notes)
        except (CheckpointError, CrashError) as error:
            return number, error
    return len(steps), None


# ---- the next run ----------------------------------------------------------------------------------------------------


def promote(client: Actor, notes: dict[str, Any]) -> None:
    restored = client.restore()
    if restored is not None and restored.prepared is not None:
        restored.prepared.commit()


def drop(client: Actor, notes: dict[str, Any]) -> None:
    restored = client.restore()
    if restored is not None and restored.prepared is not None:
        restored.prepared.abort()


def go_on(client: Actor, notes: dict[str, Any]) -> None:
    commit(client, OF_NEXT_RUN)


def clean(client: Actor, notes: dict[str, Any]) -> None:
    client.clean(GARBAGE)


def run_next(world: WatchedWorld, client: Actor, again: Step | None, settle: Step) -> Script:
    """What whoever runs the job does anyway: see that it finds all there was, adds its own, and leaves nothing else."""
    begun = rehearse(world, client, [again, settle] if again else [settle])
    before = state_of(world.actor().restore())
    ended = rehearse(world, client, [go_on, clean])
    start, committed, cleaned = ended.views
    assert start is not None
    assert committed is not None
    assert committed == View(committed.latest, [*start.live, committed.latest], start.savepoints, None)
    assert cleaned == committed
    assert state_of(world.actor().restore()) == grown(before, OF_NEXT_RUN)
    assert not world.onlooker.garbage()
    assert not world.onlooker.broken, world.onlooker.broken
    steps, views = [*begun.steps, *ended.steps], [*begun.views, *ended.views[1:]]
    return Script(steps, (*begun.requests, *ended.requests), views)


# ---- every point -----------------------------------------------------------------------------------------------------


class Proof:
    """Fails one operation at one point after the other, counts, and has a list of what went wrong."""

    def __init__(self, operation: Operation, figures: Counter[str]) -> None:
        self._operation, self._figures = operation, figures
        self._place = Saved.after(operation.setup, max_chain=operation.max_chain)
        self.wrong: list[str] = []
        for name in ("lost", "restarts that needed a hand"):
            figures[name] += 0

    def script(self) -> Script:
        with self._place.world() as world:
            return rehearse(world, self._actor(world), self._operation.steps)

    def fail(self, script: Script, point: Point) -> tuple[Saved, Script | None]:
        """At one point of the operation. What was left behind, and the next run; None where that went wrong."""
        return self._fail(self._place, script, point, promote if point.number % 2 else drop, str(point))

    def fail_again(self, left: Saved, script: Script, point: Point, before: Point) -> None:
        """At one point of the next run, after the operation had failed `before`."""
        self._fail(left, script, point, script.steps[-3], f"{before}, then in the next run {point}")

    def _fail(
        self, place: Saved, script: Script, point: Point, settle: Step, where: str
    ) -> tuple[Saved, Script | None]:
        with place.world() as world:
            client = self._actor(world, retries=point.how != "error")
            point.hit(client)
            self._look(world, script, *play(client, script.steps), point, where)
            left = Saved.of(world)
            if point.how == "crash":
                client = self._actor(world)
            self._figures["restarts"] += 1
            try:
                return left, run_next(world, client, self._operation.again, settle)
            except (CheckpointError, AssertionError) as error:
                self._figures["restarts that needed a hand"] += isinstance(error, CheckpointError)
                self.wrong.append(f"{where}: the next run: {error!r}")
                return left, None

    def _look(
        self, world: WatchedWorld, script: Script, done: int, error: Exception | None, point: Point, where: str
    ) -> None:
        """Is there what was acknowledged, and the next step not at all or wholly?"""
        self._figures[COUNTED[point.how]] += 1
        expected = () if point.how == "retried" else (CrashError, DependencyError, OutcomeUnknownError)
        if error is not None and not isinstance(error, expected):
            self.wrong.append(f"{where}: {error!r}")
        if world.onlooker.view() not in script.views[done : done + 2]:
            self._figures["lost"] += 1
            self.wrong.append(f"{where}: after {done} acknowledged steps there is {world.onlooker.view()}")

    def _actor(self, world: WatchedWorld, **options: Any) -> Actor:
        return world.actor(max_chain=self._operation.max_chain, **options)


def fail_everywhere(planted: Planted, name: str, how: str) -> tuple[int, int]:
    """At how many points an operation with a bug was failed, and at how many of them something was wrong."""
    proof, wrong = Proof(OPERATIONS[name], Counter()), 0
    with planted():
        script = proof.script()
        tried = points(how, script.requests)
        for point in tried:
            proof.wrong.clear()
            proof.fail(script, point)
            wrong += bool(proof.wrong)
    return len(tried), wrong
