"""Small histories, to be played in every order of their requests."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from unittest import mock

from pyspark_checkpointer.storage import compare_and_swap
from pyspark_checkpointer.testing.orders import play_in_every_order
from pyspark_checkpointer.testing.simulation import Simulation
from tests.proof.actors import Act, Actor, Stage


@dataclass(frozen=True, slots=True)
class Scene:
    """Who does what at the same time, after some checkpoints were committed."""

    name: str
    parts: dict[str, Act]
    faults: int = 0
    """Swaps that may stay without an answer in one history."""
    checkpoints: int = 2
    setup: Act | None = None
    grace: timedelta = timedelta(0)
    long: bool = False
    """Whether it takes minutes: then it is played in the long run alone."""
    short_faults: int | None = None
    """As many as `faults` in the short run, if fewer."""

    @property
    def short(self) -> "Scene":
        """Return the scene as the short run plays it."""
        return self if self.short_faults is None else replace(self, faults=self.short_faults)


def in_turn(*acts: Act) -> Act:
    async def all_of_them(actor: Actor) -> None:
        for act in acts:
            await act(actor)

    return all_of_them


def keep(which: int, name: str = "a") -> Act:
    """A savepoint of the oldest checkpoint (0), or of a later one."""

    async def act(actor: Actor) -> None:
        await actor.keep(name, (await actor.listed())[which])

    return act


async def forget(actor: Actor) -> None:
    await actor.forget("a")


async def delete(actor: Actor) -> None:
    await actor.delete((await actor.listed())[0])


async def delete_second(actor: Actor) -> None:
    """What is older stands in the catalog from then on."""
    await actor.delete((await actor.listed())[1])


async def roll_back(actor: Actor) -> None:
    await actor.roll_back((await actor.listed())[0])


async def rewrite(actor: Actor) -> None:
    """A commit that uses nothing of its parent."""
    await actor.commit(whole=True)


async def clean(actor: Actor) -> None:
    await actor.clean(1)


async def retain(actor: Actor) -> None:
    await actor.retain(1)


async def prepare_and_drop(actor: Actor) -> None:
    if prepared := await actor.prepare():
        await actor.decide(prepared, promote=False)


async def promote(actor: Actor) -> None:
    await actor.restore(promote=True)


async def drop(actor: Actor) -> None:
    await actor.restore(promote=False)


commit, prepare, read, restore = Actor.commit, Actor.prepare, Actor.read, Actor.restore

SCENES = (
    Scene("two takeovers", {"one": commit, "two": commit}, faults=2),
    Scene("a writer goes on while another takes over", {"one": in_turn(commit, commit), "two": commit}, faults=1),
    Scene("a commit beside a cleanup", {"one": commit, "cleaner": clean}),
    Scene("a savepoint beside a cleanup", {"clerk": keep(0), "cleaner": clean}, checkpoints=3),
    Scene("a savepoint beside a plan", {"clerk": keep(0), "keeper": retain}, checkpoints=3),
    Scene("a savepoint beside a commit", {"clerk": keep(0), "one": commit}, faults=1),
    Scene("a savepoint beside a deletion", {"clerk": keep(0), "other": delete}, checkpoints=3),
    Scene("a savepoint deleted and made again", {"clerk": forget, "other": in_turn(forget, keep(1))}, setup=keep(0)),
    Scene(
        "a savepoint of what stands in the catalog, beside a cleanup",
        {"clerk": keep(0), "cleaner": clean},
        checkpoints=3,
        setup=delete_second,
    ),
    Scene(
        "a catalog replaced and swept under a cleanup",
        {"cleaner": clean, "one": in_turn(commit, keep(0, "b"), clean)},
        setup=keep(0),
        long=True,
    ),
    Scene("a savepoint made and another deleted", {"clerk": forget, "other": keep(1, "b")}, setup=keep(0)),
    Scene("two cleanups", {"cleaner": clean, "other": clean}, checkpoints=3),
    Scene("a rollback beside a cleanup", {"one": roll_back, "cleaner": clean}, checkpoints=3),
    Scene("a rollback beside a commit", {"one": roll_back, "two": commit}),
    Scene("a prepared checkpoint withdrawn", {"one": prepare, "reader": read}, faults=2, short_faults=1),
    Scene("a prepared checkpoint beside a commit", {"one": prepare, "two": commit}),
    Scene(
        "prepared and dropped here, promoted and built on there",
        {"one": prepare_and_drop, "two": in_turn(restore, commit)},
        faults=1,
        short_faults=0,
    ),
    Scene("promoted and dropped", {"one": promote, "two": drop}, setup=prepare),
    Scene("promoted beside a rollback", {"one": promote, "two": roll_back}, setup=prepare),
    Scene("a reader beside a commit and a cleanup", {"reader": read, "one": in_turn(rewrite, clean)}),
    Scene(
        "a reader within the grace period",
        {"reader": read, "one": in_turn(rewrite, clean)},
        grace=timedelta(hours=1),
    ),
    Scene("overtaken without an answer", {"one": commit, "two": in_turn(restore, commit)}, faults=1),
    Scene(
        "overtaken and forgotten without an answer",
        {"one": commit, "two": in_turn(restore, commit, commit, clean)},
        faults=1,
        long=True,
    ),
)


def play(scene: Scene) -> int:
    """Play a scene in every order. How many there were; raises at the first that breaks a rule."""

    def begin(simulation: Simulation) -> Callable[[], object]:
        stage = Stage(grace=scene.grace, simulation=simulation)
        for actor, act in zip(_prepare(stage, scene), scene.parts.values(), strict=True):
            simulation.start(actor.name, actor.live([act]))
        return stage.finish

    with mock.patch.object(compare_and_swap, "MAX_SENDS", 1):  # a swap without an answer is given up at once
        return play_in_every_order(begin, scene.faults)


def _prepare(stage: Stage, scene: Scene) -> list[Actor]:
    """Those who take part. They know what was committed in the beginning."""
    first = stage.actor("first")
    stage.play(first, restore, *[commit] * scene.checkpoints)
    actors = [stage.actor(name) for name in scene.parts]
    for actor in actors:
        stage.play(actor, restore)
    if scene.setup is not None:
        stage.play(first, scene.setup)
    return actors
