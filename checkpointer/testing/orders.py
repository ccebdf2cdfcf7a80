"""Explore every order in which the requests of a few actors can be served.

Two requests that do not conflict, such as reads, or writes of different objects, are served in one order only
(partial-order reduction by sleep sets, after Godefroid). This leaves out most histories, but no state of the store. The
condition is that no actor decides by the time, which counts every request, or by the order of answers to its concurrent
requests.

A depth-first search keeps the path of decisions that it is on. Each history is played from the beginning, in a new
simulation: the decisions of the path first, and after them the first choice everywhere.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from pyspark_checkpointer.testing.requests import WRITES, Request
from pyspark_checkpointer.testing.simulation import Simulation, WaitingRequest

Key = tuple[str, str, str, int, str]
"""An actor, one of its requests, and the outcome that is chosen for it.

The request is given by its kind, path and number.
"""


class _RedundantError(Exception):
    """Every choice from here was explored, or will be, in another order."""


@dataclass(frozen=True, slots=True)
class _Choice:
    """One request that can be decided next, and one outcome of it."""

    key: Key
    request: Request
    act: Callable[[], None] = field(compare=False)
    is_fault: bool = False
    """True if it uses up one of the faults that a history may have."""

    def conflicts(self, other: "_Choice") -> bool:
        """Return whether it can make a difference which of the two comes first."""
        # Two outcomes of one request exclude each other, and two faults share the few that a history may have.
        if self.key[:-1] == other.key[:-1] or (self.is_fault and other.is_fault):
            return True
        return _is_seen(self.request, other.request) or _is_seen(other.request, self.request)


def _is_seen(one: Request, other: Request) -> bool:
    """Return whether `other` can see what `one` writes."""
    if one.kind not in WRITES:
        return False
    # A listing sees every write below its prefix.
    if other.kind == "list":
        return any(path.startswith(other.path) for path in _touched(one))
    return bool(_touched(one) & _touched(other))


def _touched(request: Request) -> set[str]:
    """Return the paths of the objects that a request is about."""
    return {*request.path.split(" ")} if request.kind == "delete" else {request.path}


@dataclass(slots=True)
class _Node:
    """A point of the search at which there are several choices."""

    choices: dict[Key, _Choice]
    asleep: dict[Key, _Choice]
    """The sleep set: choices explored in another order.

    They are not to be made before one that conflicts with them.
    """
    chosen: Key
    done: list[Key] = field(default_factory=list)
    """The choices explored from here."""

    def next(self) -> bool:
        """Go on to a choice that was not explored yet. Return whether there is one."""
        self.done.append(self.chosen)
        rest = [key for key in self.choices if key not in self.asleep and key not in self.done]
        if rest:
            self.chosen = rest[0]
        return bool(rest)

    def asleep_after(self) -> dict[Key, _Choice]:
        """Return the sleep set of the next node.

        A choice that conflicts with the one made here wakes up.
        """
        now = self.choices[self.chosen]
        # A choice that was explored here sleeps until one that conflicts with it is made: before that, both orders
        # lead to the same state.
        before = self.asleep | {key: self.choices[key] for key in self.done}
        return {key: choice for key, choice in before.items() if not choice.conflicts(now)}


class _Order:
    """One history.

    It has the decisions of the path, then the first choice everywhere, which extends the path.
    """

    def __init__(self, path: list[_Node], faults: int) -> None:
        self._path, self._faults = path, faults
        self._depth = 0
        self.steps: list[Key] = []

    def run(self, simulation: Simulation) -> bool:
        """Run the actors of `simulation` in this order.

        Return whether the history is a new one.
        """
        try:
            simulation.run(lambda: self._decide(self._choices(simulation)))
            # Delayed writes still land or vanish after everybody has ended. One at a time, as each is a decision.
            while simulation.late:
                self._decide(self._ends(simulation, simulation.late[0]))
        except _RedundantError:
            return False
        return True

    def _decide(self, found: Iterable[_Choice]) -> None:
        """Repeat the choice of the path at this step.

        Beyond its end, extend the path by the first choice awake.
        """
        choices = {choice.key: choice for choice in found}
        if self._depth == len(self._path):
            asleep = self._path[-1].asleep_after() if self._path else {}
            awake = [key for key in choices if key not in asleep]
            if not awake:
                raise _RedundantError
            self._path.append(_Node(choices, asleep, awake[0]))
        node = self._path[self._depth]
        # Something other than the decisions decides, such as the real clock: then not every order would be played.
        assert node.choices.keys() == choices.keys(), "the same decisions lead elsewhere"
        node.choices = choices  # those of the new simulation
        self._depth += 1
        self.steps.append(node.chosen)
        self._faults -= choices[node.chosen].is_fault
        choices[node.chosen].act()

    def _choices(self, simulation: Simulation) -> Iterator[_Choice]:
        """Yield the possible next steps while actors wait."""
        # By name, as the order in which tasks happened to send must not change what a decision means.
        for one in sorted(simulation.waiting, key=_name):
            yield _choice(one, "serve", partial(simulation.serve, one))
            if one.request.kind == "swap" and self._faults:
                yield _choice(one, "lose", partial(simulation.lose, one, after=True), is_fault=True)
                yield _choice(one, "delay", partial(simulation.delay, one), is_fault=True)
        for one in simulation.late:
            yield _choice(one, "land", partial(simulation.land, one))

    def _ends(self, simulation: Simulation, one: WaitingRequest) -> Iterator[_Choice]:
        """Yield the possible outcomes of a write that is under way at the end.

        By then all actors have ended.
        """
        yield _choice(one, "land", partial(simulation.land, one))
        yield _choice(one, "vanish", partial(simulation.late.remove, one))


def _choice(one: WaitingRequest, outcome: str, act: Callable[[], None], is_fault: bool = False) -> _Choice:
    return _Choice((*_name(one), outcome), one.request, act, is_fault)


def _name(one: WaitingRequest) -> tuple[str, str, str, int]:
    return one.actor, one.request.kind, one.request.path, one.number


Begin = Callable[[Simulation], Callable[[], object]]
"""A function that starts the actors in a simulation.

It returns a function that checks the result when all of them have ended.
"""


def play_in_every_order(begin: Begin, faults: int = 0) -> int:
    """Play a history in every order of its requests that makes a difference.

    Return how many there are. `begin` starts the same actors in a new simulation for each order. Up to `faults` swaps
    in each order are not answered: they took effect, or do so later, or at the very end, or never. Any error ends the
    exploration, with a note of the steps that led there.
    """
    path: list[_Node] = []
    count = 0
    while True:
        order = _Order(path, faults)
        with closing(Simulation()) as simulation:
            try:
                check = begin(simulation)
                if order.run(simulation):
                    # A check that nobody awaits would find nothing wrong, ever.
                    if asyncio.iscoroutine(check()):
                        raise TypeError("what `begin` returned is a coroutine function, and was not awaited")
                    count += 1
            except Exception as error:
                error.add_note("in this order: " + ", ".join(" ".join(map(str, step)) for step in order.steps))
                raise
        # Back to the last point of the path from which there is another choice.
        while path and not path[-1].next():
            path.pop()
        if not path:
            return count
