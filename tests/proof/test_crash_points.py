"""Every request of every operation is a place to crash: what was acknowledged is there, the rest is absent or whole.

An operation is played once to count its requests. Then it is played again for each of them, which fails before or after
it took effect: as a crash that ends the process, as an answer that the session sees, or as one that is tried again.
Each time the next run follows, which has to need no help and to leave no garbage; at some it crashes too.
"""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import lru_cache
from typing import Any

import pytest

from checkpointer import RetentionPolicy, objects, restore, save
from checkpointer import export as copies
from checkpointer.errors import CheckpointError, DependencyError, OutcomeUnknownError
from checkpointer.retention import plan
from checkpointer.runtime import run_sync
from checkpointer.store import swap
from checkpointer.testing.requests import CrashError
from manifests import layout, segments, wire
from manifests.wire import encode_pointer
from tests.core.world import Actor, World
from tests.proof.onlooker import Place, View, WatchedWorld
from tests.proof.operations import OPERATIONS, Operation, Step, commit, grown, history, state_of
from tests.proof.planted import Planted

COUNTED = {"crash": "crash points", "error": "failures that were told", "retried": "failures that were tried again"}
"""How a request can fail, and what that is called in the figures."""

PAIRED = ("prepare, commit", "delete a middle one")
"""The operations of which the long run plays every pair of crashes."""

OF_NEXT_RUN = 77
"""The number that the next run commits."""

GARBAGE = RetentionPolicy(grace=timedelta(0))
"""Retires nothing."""


@pytest.fixture(autouse=True)
def _decode_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a setup made is read thousands of times, and decoding is a function of the bytes alone."""
    monkeypatch.setattr(wire, "decode_manifest", lru_cache(maxsize=4096)(wire.decode_manifest))


@pytest.fixture(autouse=True)
def _segments_from_three_partitions_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the operators that an operation writes some are in segments then, and some are not."""
    monkeypatch.setattr(segments, "INLINE", 2)


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


def points(how: str, requests: int) -> list[Point]:
    return [Point(how, number, after) for number in range(1, requests + 1) for after in (False, True)]


@dataclass(frozen=True, slots=True)
class Script:
    """Some steps, how many requests they make when nothing fails, and what is there before and after each."""

    steps: Sequence[Step]
    requests: int
    views: Sequence[View | None]


def rehearse(world: WatchedWorld, client: Actor, steps: Sequence[Step]) -> Script:
    client.faults.forget()
    notes: dict[str, Any] = {}
    views = [world.onlooker.view()]
    for step in steps:
        step(client, notes)
        views.append(world.onlooker.view())
    return Script(steps, len(client.faults.requests), views)


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
    return Script(steps, begun.requests + ended.requests, views)


# ---- every point -----------------------------------------------------------------------------------------------------


class Proof:
    """Fails one operation at one point after the other, counts, and has a list of what went wrong."""

    def __init__(self, operation: Operation, figures: Counter[str]) -> None:
        self._operation, self._figures = operation, figures
        self._place = Place.after(operation.setup, max_chain=operation.max_chain)
        self.wrong: list[str] = []
        for name in ("lost", "restarts that needed a hand"):
            figures[name] += 0

    def script(self) -> Script:
        with self._place.world() as world:
            return rehearse(world, self._actor(world), self._operation.steps)

    def fail(self, script: Script, point: Point) -> tuple[Place, Script | None]:
        """At one point of the operation. What was left behind, and the next run; None where that went wrong."""
        return self._fail(self._place, script, point, promote if point.number % 2 else drop, str(point))

    def fail_again(self, left: Place, script: Script, point: Point, before: Point) -> None:
        """At one point of the next run, after the operation had failed `before`."""
        self._fail(left, script, point, script.steps[-3], f"{before}, then in the next run {point}")

    def _fail(
        self, place: Place, script: Script, point: Point, settle: Step, where: str
    ) -> tuple[Place, Script | None]:
        with place.world() as world:
            client = self._actor(world, retries=point.how != "error")
            point.hit(client)
            self._look(world, script, *play(client, script.steps), point, where)
            left = Place.of(world)
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


@pytest.mark.parametrize("how", COUNTED)
@pytest.mark.parametrize("name", OPERATIONS)
def test_wherever_an_operation_fails_the_next_run_goes_on_from_what_was_acknowledged(
    name: str, how: str, figures: Counter[str]
) -> None:
    proof = Proof(OPERATIONS[name], figures)
    script = proof.script()
    assert script.requests >= 2
    for point in points(how, script.requests):
        proof.fail(script, point)
    assert not proof.wrong, "\n".join(proof.wrong)


@pytest.mark.parametrize("name", OPERATIONS)
def test_where_the_next_run_crashes_too_the_one_after_it_goes_on(
    name: str, figures: Counter[str], effort: Callable[[int, int], int]
) -> None:
    proof, dice = Proof(OPERATIONS[name], figures), random.Random(name)
    script, every = proof.script(), effort(0, name in PAIRED)
    first = points("crash", script.requests)
    for point in first if every else dice.sample(first, min(len(first), effort(3, 20))):
        left, after = proof.fail(script, point)
        if after is not None:
            second = points("crash", after.requests)
            for again in second if every else dice.sample(second, min(len(second), effort(2, 20))):
                figures["crashes of the run after a crash"] += 1
                proof.fail_again(left, after, again, point)
    assert not proof.wrong, "\n".join(proof.wrong)


# ---- does the proof see anything? ------------------------------------------------------------------------------------

FOUND = [
    (
        Planted("what is prepared is not handed on", restore._restore_latest, "ref = head.prepared", "ref = None"),
        "prepare, commit",
        "crash",
    ),
    (
        Planted("an export that does not go on", copies._refuse_used, "owner.sequence > 1", "owner.sequence > 0"),
        "export",
        "crash",
    ),
    (
        Planted(
            "an answer that was lost is a failure",
            swap.decide,
            "except (RetryableError, PreconditionFailedError) as error:\n            undecided = error",
            "except (RetryableError, PreconditionFailedError) as error:\n            raise",
        ),
        "takeover",
        "retried",
    ),
]


@pytest.mark.parametrize(("planted", "name", "how"), FOUND, ids=[planted.name for planted, _, _ in FOUND])
def test_what_a_crash_would_lose_is_found(planted: Planted, name: str, how: str) -> None:
    tried, wrong = fail_everywhere(planted, name, how)
    assert 0 < wrong < tried, "at some points, and not wherever one looks"


ALWAYS = [
    (
        Planted(
            "a manifest that nobody waits for",
            objects.write_manifest,
            "await store.put(path, data)",
            "asyncio.get_running_loop().call_later(0.01, asyncio.ensure_future, store.put(path, data))",
        ),
        "takeover",
    ),
    (
        Planted(
            "segments that nobody writes",
            save.Draft._write,
            "await asyncio.gather(*(self._uploads.put(s.path, s.data) for s in segments))",
            "pass",
        ),
        "takeover",
    ),
    (
        Planted(
            "segments that are swept",
            objects.objects_of,
            "paths.update(segment.path for segment in operator.segments)",
            "pass",
        ),
        "clean at once",
    ),
    (
        Planted(
            "catalogs that are never swept",
            plan.Judge.__call__,
            "if owner.sequence > self.sequence:",
            "if owner.sequence > self.sequence or path.startswith('catalog/'):",
        ),
        "savepoint",
    ),
]
"""What goes wrong without a crash, too."""


@pytest.mark.parametrize(("planted", "name"), ALWAYS, ids=[planted.name for planted, _ in ALWAYS])
def test_what_is_wrong_in_the_next_run_is_found(planted: Planted, name: str) -> None:
    tried, wrong = fail_everywhere(planted, name, "crash")
    assert wrong == tried


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


def test_the_onlooker_sees_what_goes_back_and_what_is_deleted() -> None:
    with Place.after(history).world() as world:
        store, seen = world.actor(retries=False)._session.store, world.onlooker
        assert seen.now is not None
        old = seen.now.pointer
        assert old is not None
        commit(world.actor(), 6)
        version = world.objects_now[layout.LATEST].version
        assert not seen.broken
        run_sync(store.compare_and_swap(layout.LATEST, encode_pointer(replace(old, nonce="f" * 32)), version))
        assert seen.broken == ["the committed sequence went back", "the writer's epoch went back"]
        named = layout.manifest(old.committed.id)
        run_sync(store.delete([named]))
        assert seen.broken[2:] == [f"what is live was deleted: ['{named}']"]


# ---- anything at any time --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_a_job_on_a_store_that_fails_at_random_loses_nothing(seed: int, figures: Counter[str]) -> None:
    world = World()
    client = world.actor(seed=seed)
    for number in range(1, 60):
        while epoch(world) != number:
            with suppress(CheckpointError):
                client.restore()
                commit(client, number)
        figures["commits on a store that fails at random"] += 1
    reader = world.actor()
    assert [reader.load_manifest(checkpoint).epoch for checkpoint in reader.list_checkpoints()] == list(range(1, 60))
    assert reader.restore().operator("chain").partition(0) == [b"0", *(b"%d" % number for number in range(2, 60))]


def epoch(world: World) -> int | None:
    restored = world.actor().restore()
    return None if restored is None else restored.epoch
