"""Random histories of a whole store, each from a seed: writers, one of them a zombie, cleanups, retention, readers.

`python -m tests.proof.walks SEED` plays one again and prints what happened.
"""

import random
import sys
from datetime import timedelta
from unittest import mock

from pyspark_checkpointer import compaction
from pyspark_checkpointer.storage import compare_and_swap
from pyspark_checkpointer.testing.requests import WRITES
from pyspark_checkpointer.testing.simulation import Simulation, WaitingRequest
from tests.proof.actors import Act, Actor, Stage

CHANGES = ("swap", "delete")

NAMES = ("a", "b")
"""Of savepoints."""


async def prepare(actor: Actor) -> None:
    """Both phases, or the first alone: then whoever comes next decides."""
    prepared = await actor.prepare()
    if prepared is not None and actor.dice.random() < 0.8:
        await actor.decide(prepared, promote=actor.dice.random() < 0.5)


async def roll_back(actor: Actor) -> None:
    await actor.roll_back(actor.dice.choice([*await actor.listed(), *NAMES]))


async def keep(actor: Actor) -> None:
    """Keep the newest, another, or one that was never committed."""
    never = [*actor.stage.judge.refused][-1:]
    await actor.keep(actor.dice.choice(NAMES), actor.dice.choice([None, *await actor.listed(), *never]))


async def forget(actor: Actor) -> None:
    await actor.forget(actor.dice.choice(NAMES))


async def delete(actor: Actor) -> None:
    if known := await actor.listed():
        await actor.delete(actor.dice.choice(known))


async def clean(actor: Actor) -> None:
    await actor.clean(actor.dice.randint(1, 3))


async def retain(actor: Actor) -> None:
    await actor.retain(actor.dice.randint(1, 3))


WRITER: dict[Act, int] = {Actor.commit: 12, prepare: 4, Actor.commit_by_hand: 2, roll_back: 2, Actor.restore: 2}

PARTS: dict[str, tuple[dict[Act, int], int, int]] = {
    "writer": (WRITER, 2, 5),
    "zombie": (WRITER, 2, 5),
    "cleaner": ({clean: 1}, 1, 3),
    "keeper": ({retain: 1}, 1, 2),
    "clerk": ({keep: 3, forget: 2, delete: 2}, 1, 4),
    "reader": ({Actor.read: 1}, 1, 3),
}
"""What each of them does, with the chances of it, and how much at least and at most."""


class Walk(Stage):
    """One walk: who takes part, how requests are served, and what goes wrong, all of it drawn from the seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        super().__init__(Simulation(), seed, self.dice.choice((timedelta(0), timedelta(hours=1))))
        self._deletes = self.dice.random() < 0.5
        self._lossy = self.dice.choice((0.0, 0.0, 0.02, 0.1, 0.5))
        self._refused = self.dice.choice((0.0, 0.3))
        self._deadly = self.dice.choice((0.0, 0.0, 0.01))
        self._fair = self.dice.random() < 0.4
        self._reluctant = self.dice.choice((0.0, 0.8))
        self._favour: dict[str, float] = {}

    def run(self) -> None:
        with (
            mock.patch.object(compare_and_swap, "MAX_SENDS", self.dice.choice((1, 2, compare_and_swap.MAX_SENDS))),
            mock.patch.object(compaction, "INLINE", self.dice.choices((compaction.INLINE, 0), (9, 1))[0]),
        ):
            self._run()

    def _run(self) -> None:
        try:
            for name in PARTS:
                if name == "writer" or self.dice.random() < 0.6:
                    self._enter(name)
            self.simulation.run(self._step)
            self.finish()
        finally:
            self.simulation.close()

    def lost_while_reading(self) -> None:
        if not self._deletes:  # these are swept at once
            super().lost_while_reading()

    # ---- who takes part ------------------------------------------------------------------------------------------

    def _enter(self, name: str) -> None:
        actor = self.actor(name)
        chances, least, most = PARTS[name]
        acts = {act: chance for act, chance in chances.items() if act is not delete or self._deletes}
        chosen = self.dice.choices([*acts], [*acts.values()], k=self.dice.randint(least, most))
        self.simulation.start(actor.name, actor.live(chosen))

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

    def _next(self) -> WaitingRequest:
        """A request of anybody, or of whoever comes first until that changes: what finds rare histories is that others
        stand still for long."""
        waiting = self.simulation.waiting
        if self.dice.random() < self._reluctant:  # what changes something comes late, when it is least expected
            waiting = [one for one in waiting if one.request.kind not in CHANGES] or waiting
        if self._fair:
            return self.dice.choice(waiting)
        if self.dice.random() < 0.03:
            self._favour.clear()
        for one in waiting:
            self._favour.setdefault(one.actor, self.dice.random())
        return max(waiting, key=lambda one: self._favour[one.actor])

    def _fail(self, one: WaitingRequest) -> None:
        kind, simulation = one.request.kind, self.simulation
        if kind != "swap" and self._lossy > 0.1 and self.dice.random() < 0.8:
            simulation.serve(one)  # else nothing is ever done
        elif kind == "list":
            simulation.serve_stale(one, [path for path in simulation.store.objects if self.dice.random() < 0.2])
        elif self.dice.random() < self._refused:
            simulation.refuse(one)
        elif kind in WRITES and self.dice.random() < 0.5:
            simulation.delay(one)
        else:
            simulation.lose(one, after=self.dice.random() < 0.5)


def walk(seed: int, *, observant: bool = False) -> Walk:
    """Play one history. Raises what broke, with the command that plays it again."""
    history = Walk(seed)
    history.observant = observant
    try:
        history.run()
    except Exception as error:
        error.add_note(f"to see it again: python -m tests.proof.walks {seed}")
        raise
    return history


def main() -> None:
    (seed,) = map(int, sys.argv[1:])
    print(walk(seed).told)


if __name__ == "__main__":
    main()
