"""Every request of every operation is a place to crash: what was acknowledged is there, the rest is absent or whole.

An operation is played once to count its requests. Then it is played again for each of them, which fails before or after
it took effect: as a crash that ends the process, as an answer that the session sees, or as one that is tried again.
Each time the next run follows, which has to need no help and to leave no garbage; at some it crashes too.
"""

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest

from pyspark_checkpointer import compaction
from pyspark_checkpointer.admin import export as copies
from pyspark_checkpointer.admin.retention import classifier
from pyspark_checkpointer.checkpoint import commit as attempts
from pyspark_checkpointer.checkpoint import metadata, restore
from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.manifest_json import encode_pointer
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import compare_and_swap
from tests.proof.failing import COUNTED, Point, Proof, Script, fail_everywhere, points, telling
from tests.proof.onlooker import Saved
from tests.proof.operations import OPERATIONS, commit, history
from tests.proof.planted import Planted
from tests.world import World

PAIRED = ("prepare, commit", "delete a middle one")
"""The operations of which the long run plays every pair of crashes."""

pytestmark = pytest.mark.usefixtures("decoded_once", "computed_at_once")


@pytest.fixture(autouse=True)
def _segments_from_three_partitions_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the operators that an operation writes some are in segments then, and some are not."""
    monkeypatch.setattr(compaction, "INLINE", 2)


TURNS = ("repair of what is lost", "repair of what is damaged")
"""The operations that make the most requests, and the same ones: in the short run each has every other point."""


def in_short(name: str, how: str, script: Script) -> list[Point]:
    """A crash where another store is left behind than by the crash before. Other failures, which leave no more behind
    than a crash: at every swap, and at every fifth of the other points."""
    if how != "crash":
        swaps = {number for number, request in enumerate(script.requests, 1) if request.kind == "swap"}
        found = points(how, script.requests)
        return [point for n, point in enumerate(found) if point.number in swaps or n % 5 == len(how) % 5]
    found = telling(points(how, script.requests), script.requests)
    return found[TURNS.index(name) :: 2] if name in TURNS else found


@pytest.mark.parametrize("how", COUNTED)
@pytest.mark.parametrize("name", OPERATIONS)
def test_wherever_an_operation_fails_the_next_run_goes_on_from_what_was_acknowledged(
    name: str, how: str, figures: Counter[str], effort: Callable[[bool, bool], bool]
) -> None:
    """At every point; in the short run at those of `in_short`."""
    proof = Proof(OPERATIONS[name], figures)
    script = proof.script()
    assert len(script.requests) >= 2
    for point in points(how, script.requests) if effort(False, True) else in_short(name, how, script):
        proof.fail(script, point)
    assert not proof.wrong, "\n".join(proof.wrong)


@pytest.mark.parametrize("name", OPERATIONS)
def test_where_the_next_run_crashes_too_the_one_after_it_goes_on(
    name: str, figures: Counter[str], effort: Callable[[int, int], int]
) -> None:
    proof, dice = Proof(OPERATIONS[name], figures), random.Random(name)
    script, every = proof.script(), effort(0, name in PAIRED)
    first = points("crash", script.requests)
    for point in first if every else dice.sample(first, min(len(first), effort(2, 20))):
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
        Planted("an export that does not go on", copies.refuse_used, "owner.sequence > 1", "owner.sequence > 0"),
        "export",
        "crash",
    ),
    (
        Planted(
            "an answer that was lost is a failure",
            compare_and_swap.swap_until_decided,
            "refused = undecided is None and isinstance(error, PreconditionFailedError)\n            undecided = error",
            "raise",
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
            metadata.put_as_manifest,
            "await store.put(path, data)",
            "asyncio.get_running_loop().call_later(0.01, asyncio.ensure_future, store.put(path, data))",
        ),
        "takeover",
    ),
    (
        Planted(
            "segments that nobody writes",
            attempts._manifest,
            "last += [PendingPut(segment.path, segment.data) for segment in segments]",
            "pass",
        ),
        "takeover",
    ),
    (
        Planted(
            "segments that are swept",
            metadata.objects_of,
            "paths.update(segment.path for segment in operator.segments)",
            "pass",
        ),
        "clean at once",
    ),
    (
        Planted(
            "catalogs that are never swept",
            classifier.GarbageClassifier.__call__,
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


def test_the_onlooker_sees_what_goes_back_and_what_is_deleted() -> None:
    with Saved.after(history).world() as world:
        store, seen = world.actor(retries=False).session.store, world.onlooker
        assert seen.now is not None
        old = seen.now.pointer
        assert old is not None
        commit(world.actor(), 6)
        version = world.objects_now[object_paths.LATEST].version
        assert not seen.broken
        run_sync(store.compare_and_swap(object_paths.LATEST, encode_pointer(replace(old, nonce="f" * 32)), version))
        assert seen.broken == ["the committed sequence went back", "the writer's epoch went back"]
        named = object_paths.manifest(old.committed.id)
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
