"""Two writers, cleanups, retention, savepoints and readers in one store, request by request, with the real code.

Small histories in every order, many larger ones at random; and each rule of the protocol taken out of the code, to see
that it is noticed.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.testing.simulation import Simulation
from tests.proof.actors import Actor, Stage
from tests.proof.effort import SUMMARY
from tests.proof.planted import NO_SEQUENCE_RULE, PLANTED, PREPARED_UNPROTECTED, Planted
from tests.proof.scenes import SCENES, Scene, play
from tests.proof.versions import Violation
from tests.proof.walks import walk

CHUNKS = 4

WALKS = 4000
"""Walks in which a planted bug must show."""


pytestmark = pytest.mark.usefixtures("decoded_once")


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of refusals are logged as they should be; nobody reads them here."""
    caplog.set_level("CRITICAL", logger="pyspark_checkpointer")


@pytest.mark.parametrize("scene", [s for s in SCENES if SUMMARY or not s.long], ids=lambda scene: scene.name)
def test_nothing_breaks_in_any_order(scene: Scene, figures: Counter[str]) -> None:
    orders = play(scene if SUMMARY else scene.short)
    assert orders > 1
    figures["small histories"] += 1
    figures["orders of their requests that differ"] += orders


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_nothing_breaks_in_random_histories(
    chunk: int, figures: Counter[str], effort: Callable[[int, int], int]
) -> None:
    each = effort(200, 60_000) // CHUNKS
    for seed in range(chunk * each, (chunk + 1) * each):
        history = walk(seed)
        figures["random histories"] += 1
        figures["requests in them"] += history.simulation.steps
        figures["commits acknowledged in them"] += history.told["acknowledged"]
        figures["commits refused in them"] += history.told["refused"]
        figures["commits of unknown outcome in them"] += history.told["OutcomeUnknownError"]


NOTICED = (Violation, CheckpointError)
"""A rule that is broken, or an error that nobody is to be told. Any other is a bug that was badly planted."""


def failures(bug: Planted) -> Iterator[Exception]:
    """What breaks while a bug is there."""
    if bug.scene is not None:
        (scene,) = [scene for scene in SCENES if scene.name == bug.scene]
        try:
            play(scene)
        except NOTICED as error:
            yield error
        return
    for seed in (*range(bug.walk, WALKS), *range(bug.walk)):
        try:
            walk(seed)
        except NOTICED as error:
            yield error


@pytest.mark.parametrize("bug", [b for b in PLANTED if SUMMARY or not b.long], ids=lambda bug: bug.name)
def test_a_rule_taken_out_is_noticed(bug: Planted, figures: Counter[str]) -> None:
    with bug():
        found = next(failures(bug), None)
    assert found is not None, f"nothing noticed: {bug.name}"
    figures["rules taken out"] += 1
    figures["of which found"] += 1


def test_what_is_prepared_is_spared_by_two_rules() -> None:
    def history() -> None:
        stage = Stage(Simulation())
        try:
            writer, cleaner = stage.actor("writer"), stage.actor("cleaner")
            stage.play(writer, Actor.restore, Actor.commit, Actor.prepare)
            stage.play(cleaner, lambda actor: actor.clean(1))
            stage.finish()
        finally:
            stage.simulation.close()

    with PREPARED_UNPROTECTED():
        history()
    with NO_SEQUENCE_RULE():
        history()
        with PREPARED_UNPROTECTED(), pytest.raises(NOTICED):
            history()


def test_a_failing_history_says_how_to_see_it_again() -> None:
    with PLANTED[0](), pytest.raises(AssertionError) as raised:
        for seed in itertools.count():
            walk(seed)
    assert raised.value.__notes__ == [f"to see it again: python -m tests.proof.walks {seed}"]
    with PLANTED[0](), pytest.raises(type(raised.value), match=str(raised.value).replace("[", r"\[")[:40]):
        walk(seed)


def test_the_same_seed_is_the_same_history() -> None:
    for seed in (1, 2, 3):
        one, other = walk(seed), walk(seed)
        assert one.judge.versions == other.judge.versions
        assert one.told == other.told
