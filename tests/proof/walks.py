"""Random histories of a whole store, each from a seed: writers, one of them a zombie, cleanups, retention, readers.

`python -m tests.proof.walks SEED` plays one again and prints what happened.
"""

import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

from checkpointer import lineage, restore, save, verbs
from checkpointer.errors import (
    CheckpointNotFoundError,
    ConflictError,
    FencedError,
    IllegalArgumentError,
    InvalidStateError,
    OutcomeUnknownError,
    RetiredError,
    RetryableError,
    SavepointNotFoundError,
)
from checkpointer.prepared import Prepared
from checkpointer.retention.delete import delete_checkpoint
from checkpointer.retention.policies import RetentionPolicy
from checkpointer.retention.sweep import apply_plan, clean, make_plan
from checkpointer.session import Session
from checkpointer.store.retry import RetryingStore
from checkpointer.testing.simulation import WRITES, SimulatedHost, Simulation, Waiting
from manifests import layout
from manifests.model import DELTA, SNAPSHOT, CheckpointId, Manifest
from tests.proof.judge import DEED, END, Deed, Judge, Violation

EXPECTED = (
    RetryableError,
    ConflictError,
    InvalidStateError,
    OutcomeUnknownError,
    CheckpointNotFoundError,
    SavepointNotFoundError,
)
"""What an actor may be told, and lives with. Damage of the store is never among it."""

NAMES = ("a", "b")
"""Of savepoints."""

Act = Callable[[], Awaitable[None]]


async def at_once(seconds: float) -> None:
    """Sleeps no time."""


class Actor:
    """A process with a session of its own, and what it believes the state to be."""

    def __init__(self, world: "World", name: str, number: int) -> None:
        self.world, self.name = world, name
        self.dice = random.Random(f"{world.seed} {name}")
        self.host = SimulatedHost(world.simulation, number, timedelta(seconds=self.dice.randint(-50, 50)))
        self.store = RetryingStore(world.simulation.store_of(name), sleep=at_once)
        self.start()

    def start(self) -> None:
        """A session that knows nothing, and takes the store's word for its conditions."""
        self.session = Session(self.store, self.host, max_chain=3)
        self.session._probed = True
        self.content: bytes | None = None

    @contextmanager
    def deed(self, kind: str, name: str = "") -> Iterator[Deed]:
        deed = Deed(self.name, kind, name, self.host.name, self.host.drawn, len(self.world.judge.versions) - 1)
        token = DEED.set(deed)
        try:
            yield deed
        finally:
            DEED.reset(token)

    async def live(self, acts: Sequence[tuple[int, Act]], deeds: int) -> None:
        """Do some things, by chance, and get over what goes wrong."""
        chances, choices = [chance for chance, _ in acts], [act for _, act in acts]
        for _ in range(deeds):
            (act,) = self.dice.choices(choices, chances)
            try:
                await act()
            except EXPECTED as error:
                self.world.told[type(error).__name__] += 1
                self.content = None
                if isinstance(error, FencedError):  # final for a session: whoever runs it starts it again
                    self.start()

    # ---- what writers do -----------------------------------------------------------------------------------------

    async def restore(self) -> None:
        with self.deed("restore") as deed:
            found = await restore.restore(self.session, None, None, None)
            self.content = b""
            if found is not None and found.manifest is not None:
                self.content = b"".join(await found.partition("log", 0))
                self.world.judge.restored(deed, found.manifest.id, self.content)
        if found is not None and found.prepared is not None:
            await self.decide(found.prepared)

    async def knows(self) -> bool:
        """Restore, unless it goes on from where it was. Not where a prepared checkpoint had to be decided first."""
        if self.content is None:
            await self.restore()
        return self.content is not None

    async def decide(self, prepared: Prepared) -> None:
        if self.dice.random() < 0.5:
            await self.promote(prepared)
        else:
            await self.abort(prepared)

    async def promote(self, prepared: Prepared) -> None:
        with self.deed("promote"):
            await prepared.commit()
            self.world.acknowledge(prepared.id)
            self.content = None

    async def abort(self, prepared: Prepared) -> None:
        with self.deed("abort"):
            await prepared.abort()
            self.world.refuse(prepared.id, "it was aborted")
            self.content = None

    async def draft(self) -> save.Draft:
        """An attempt that adds a token, as a delta or with all there is."""
        assert self.content is not None
        draft = await save.begin(self.session, None, None, self.session.reports.meter())
        token = str(draft.id).encode() + END
        if self.dice.random() < 0.3 or not self.content:
            await draft.add("log", 0, SNAPSHOT, self.content + token)
        else:
            await draft.add("log", 0, DELTA, token)
        if self.dice.random() < 0.3 or not self.content:  # often what it was, so that the parent's is used again
            await draft.add("rest", 0, SNAPSHOT, self.dice.choice((b"x", b"y")))
        return draft

    async def commit(self) -> None:
        if not await self.knows():
            return
        with self.deed("commit"):
            draft = await self.draft()
            await self.attempt(draft.id, draft.commit())

    async def attempt(self, checkpoint: CheckpointId, commit: Awaitable[object]) -> None:
        """A commit of what was never prepared: what it is told is final, but for an unknown outcome."""
        try:
            await commit
        except (ConflictError, InvalidStateError, RetryableError) as error:
            self.world.refuse(checkpoint, f"{type(error).__name__}: {error}")
            raise
        self.world.acknowledge(checkpoint)
        self.content = None if self.content is None else self.content + str(checkpoint).encode() + END

    async def prepare(self) -> None:
        if not await self.knows():
            return
        with self.deed("prepare"):
            draft = await self.draft()
            self.content = None
            try:
                prepared = await draft.prepare()
            except OutcomeUnknownError:
                await self.withdraw(draft)
                raise
        if self.dice.random() < 0.8:  # else whoever comes next decides
            await self.decide(prepared)

    async def withdraw(self, draft: save.Draft) -> None:
        """Give up what may or may not have been prepared: after that it never will be."""
        with self.deed("abort"):
            await draft.abort()
            self.world.refuse(draft.id, "it was withdrawn")

    async def by_hand(self) -> None:
        """A commit through the verbs that write one object each."""
        if not await self.knows():
            return
        base = await self.session.base()
        if base.manifest is None:
            return
        with self.deed("commit"):
            checkpoint = await self.session.new_id()
            assert self.content is not None
            content = self.content + str(checkpoint).encode() + END
            artifact = await verbs.save_artifact(self.session, checkpoint, "log", 0, SNAPSHOT, content)
            log = replace(base.manifest.operators["log"], chains={0: (artifact,)})
            changed = {**base.manifest.operators, "log": log}
            await verbs.save_manifest(self.session, Manifest(checkpoint, parent=base.parent, operators=changed))
            await self.attempt(checkpoint, lineage.update_latest(self.session, checkpoint))

    async def rollback(self) -> None:
        with self.deed("list"):
            to = self.dice.choice([*await lineage.list_checkpoints(self.session), *NAMES])
        with self.deed("rollback"):
            self.content = None
            self.world.acknowledge(await lineage.rollback(self.session, to))

    # ---- what others do ------------------------------------------------------------------------------------------

    async def savepoint(self) -> None:
        with self.deed("list"):
            known = await lineage.list_checkpoints(self.session)
        never = [*self.world.judge.refused][-1:]
        name, which = self.dice.choice(NAMES), self.dice.choice([None, *known, *never])
        with self.deed("savepoint", name):
            try:
                await lineage.savepoint(self.session, name, which)
            except IllegalArgumentError as error:
                if "is taken" not in str(error):
                    raise

    async def delete_savepoint(self) -> None:
        name = self.dice.choice(NAMES)
        with self.deed("delete_savepoint", name):
            await lineage.delete_savepoint(self.session, name)

    async def delete(self) -> None:
        with self.deed("delete"):
            known = await lineage.list_checkpoints(self.session)
            if known:
                await delete_checkpoint(self.session, self.dice.choice(known))

    async def clean(self) -> None:
        with self.deed("clean"):
            await clean(self.session, RetentionPolicy(keep_last=self.dice.randint(1, 3), grace=self.world.grace))

    async def retain(self) -> None:
        """A plan that was made before, and is applied when others have moved on."""
        with self.deed("retain"):
            policy = RetentionPolicy(keep_last=self.dice.randint(1, 3), grace=self.world.grace)
            await apply_plan(self.session, await make_plan(self.session, policy))

    async def read(self) -> None:
        with self.deed("read") as deed:
            found = await restore.restore(self.session, None, None, None)
            if found is None or found.manifest is None:
                return
            try:
                content = b"".join(await found.partition("log", 0))
            except RetiredError:
                self.world.check_retired()
                raise
            self.world.judge.restored(deed, found.manifest.id, content)


class World:
    """One walk: who takes part, how requests are served, and what goes wrong, all of it drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.dice = random.Random(seed)
        self.judge = Judge()
        self.simulation = Simulation(self.judge)
        self.judge.attach(self.simulation)
        self.grace = self.dice.choice((timedelta(0), timedelta(hours=1)))
        self.told: Counter[str] = Counter()
        """What became of the deeds: acknowledged, refused, and the errors."""
        self.actors: dict[str, Actor] = {}
        self._deletes = self.dice.random() < 0.5
        self._lossy = self.dice.choice((0.0, 0.0, 0.02, 0.1, 0.5))
        self._deadly = self.dice.choice((0.0, 0.0, 0.01))
        self._fair = self.dice.random() < 0.4
        self._favour: dict[str, float] = {}

    def play(self) -> None:
        try:
            for name in ("writer", "zombie", "cleaner", "keeper", "clerk", "reader"):
                if name == "writer" or self.dice.random() < 0.6:
                    self._enter(name)
            self.simulation.run(self._step)
            for one in list(self.simulation.late):
                self.simulation.land(one)
            self._end()
        finally:
            self.simulation.close()

    # ---- what actors tell ----------------------------------------------------------------------------------------

    def acknowledge(self, checkpoint: CheckpointId) -> None:
        self.told["acknowledged"] += 1
        self.judge.acknowledged(checkpoint)

    def refuse(self, checkpoint: CheckpointId, why: str) -> None:
        self.told["refused"] += 1
        self.judge.refuse(checkpoint, why)

    def check_retired(self) -> None:
        """Somebody was told that what they read is gone."""
        if self.grace and not self._deletes:
            raise Violation("a reader lost its checkpoint within the grace period")

    # ---- who takes part ------------------------------------------------------------------------------------------

    def _enter(self, name: str) -> None:
        actor = self._actor(name)
        acts, deeds = self._part(actor)
        self.simulation.start(actor.name, actor.live(acts, deeds))

    def _actor(self, name: str) -> Actor:
        number = len(self.actors) + 1
        actor = Actor(self, f"{name} {number}", number)
        self.actors[actor.name] = actor
        return actor

    def _part(self, actor: Actor) -> tuple[list[tuple[int, Act]], int]:
        """What an actor does, with how often, and how much of it."""
        match actor.name.partition(" ")[0]:
            case "writer" | "zombie":
                return [
                    (12, actor.commit),
                    (4, actor.prepare),
                    (2, actor.by_hand),
                    (2, actor.rollback),
                    (2, actor.restore),
                ], self.dice.randint(2, 6)
            case "cleaner":
                return [(1, actor.clean)], self.dice.randint(1, 3)
            case "keeper":
                return [(1, actor.retain)], self.dice.randint(1, 2)
            case "clerk":
                return [
                    (3, actor.savepoint),
                    (2, actor.delete_savepoint),
                    (2 if self._deletes else 0, actor.delete),
                ], self.dice.randint(2, 5)
            case _:
                return [(1, actor.read)], self.dice.randint(1, 4)

    # ---- what happens next ---------------------------------------------------------------------------------------

    def _step(self) -> None:
        simulation, chance = self.simulation, self.dice.random()
        if simulation.late and chance < 0.05:
            simulation.land(self.dice.choice(simulation.late))
            return
        one = self._next()
        if chance > 1 - self._deadly:
            simulation.kill(one.actor, in_flight=self.dice.random() < 0.5)
            self._enter(one.actor.partition(" ")[0])
        elif chance > 1 - self._deadly - self._lossy:
            self._fail(one)
        else:
            simulation.serve(one)

    def _next(self) -> Waiting:
        """A request of anybody, or of whoever comes first until that changes: what finds rare histories is that others
        stand still for long."""
        waiting = self.simulation.waiting
        if self._fair:
            return self.dice.choice(waiting)
        if self.dice.random() < 0.03:
            self._favour.clear()
        for one in waiting:
            self._favour.setdefault(one.actor, self.dice.random())
        return max(waiting, key=lambda one: self._favour[one.actor])

    def _fail(self, one: Waiting) -> None:
        kind, simulation = one.request.kind, self.simulation
        if kind != "swap" and self._lossy > 0.1 and self.dice.random() < 0.8:
            simulation.serve(one)  # else nothing is ever done
        elif kind == "list":
            simulation.serve_stale(one, [path for path in simulation.store.objects if self.dice.random() < 0.2])
        elif kind in WRITES and self.dice.random() < 0.5:
            simulation.delay(one)
        else:
            simulation.lose(one, after=self.dice.random() < 0.5)

    # ---- how it ends ---------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Whoever comes last finds all in order, goes on, and can leave nothing behind but what is live."""
        last = self._actor("last")
        self.simulation.play(last.name, last.restore())
        self.grace = timedelta(0)
        for _ in range(2):
            self.simulation.play(last.name, last.commit())
        self.simulation.play(last.name, last.clean())
        if "acknowledged" not in self.told:
            raise Violation("nothing was committed in the end")
        now = self.judge.now
        left = {
            path
            for path in self.simulation.store.objects.keys() - now.paths
            if (owner := layout.owner(path)) is None or owner.sequence <= now.sequence
        }
        if left:
            raise Violation(f"cleanup left behind: {sorted(left)}")


def walk(seed: int) -> World:
    """Play one history. Raises what broke, with the command that plays it again."""
    world = World(seed)
    try:
        world.play()
    except Exception as error:
        error.add_note(f"to see it again: python -m tests.proof.walks {seed}")
        raise
    return world


def main() -> None:
    (seed,) = map(int, sys.argv[1:])
    print(walk(seed).told)


if __name__ == "__main__":
    main()
