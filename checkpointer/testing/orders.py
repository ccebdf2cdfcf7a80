"""Every order in which the requests of a few actors can be served: all that differ in what the store goes through.

Two requests that cannot see each other, such as reads, or writes of different objects, are served in one order only.
This leaves out most histories and not one state of the store (sleep sets, after Godefroid), as long as nobody goes by
the time, which counts every request, or by which of several requests made at once is answered first.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from pyspark_checkpointer.testing.requests import WRITES, Request
from pyspark_checkpointer.testing.simulation import Simulation, Waiting

Key = tuple[str, str, str, int, str]
"""An actor, the kind, path and number of its request, and what becomes of that."""


class _RedundantError(Exception):
    """All that could happen next was, or will be, looked at in another order."""


@dataclass(frozen=True, slots=True)
class _Option:
    key: Key
    request: Request
    act: Callable[[], None] = field(compare=False)
    costs: bool = False

    def meets(self, other: "_Option") -> bool:
        """Return whether it can make a difference which of the two comes first."""
        if self.key[:-1] == other.key[:-1] or (self.costs and other.costs):
            return True
        return _meet(self.request, other.request) or _meet(other.request, self.request)


def _meet(one: Request, other: Request) -> bool:
    if one.kind not in WRITES:
        return False
    if other.kind == "list":
        return any(path.startswith(other.path) for path in _touched(one))
    return bool(_touched(one) & _touched(other))


def _touched(request: Request) -> set[str]:
    return {*request.path.split(" ")} if request.kind == "delete" else {request.path}


@dataclass(slots=True)
class _Node:
    """A moment with several options. `asleep` need not be looked at any more, here or before they meet something."""

    options: dict[Key, _Option]
    asleep: dict[Key, _Option]
    chosen: Key
    done: list[Key] = field(default_factory=list)

    def next(self) -> bool:
        """Choose what was not looked at yet. Whether there is anything."""
        self.done.append(self.chosen)
        rest = [key for key in self.options if key not in self.asleep and key not in self.done]
        if rest:
            self.chosen = rest[0]
        return bool(rest)

    def asleep_after(self) -> dict[Key, _Option]:
        now = self.options[self.chosen]
        before = self.asleep | {key: self.options[key] for key in self.done}
        return {key: option for key, option in before.items() if not option.meets(now)}


class _Order:
    """One of the orders: the path as far as it is known, and then whatever comes first."""

    def __init__(self, path: list[_Node], faults: int) -> None:
        self._path, self._faults = path, faults
        self._depth = 0
        self.steps: list[Key] = []

    def run(self, simulation: Simulation) -> bool:
        """Run what was started in `simulation`, in this order. Whether it makes a difference."""
        try:
            simulation.run(lambda: self._choose(self._options(simulation)))
            while simulation.late:
                self._choose(self._ends(simulation, simulation.late[0]))
        except _RedundantError:
            return False
        return True

    def _choose(self, found: Iterable[_Option]) -> None:
        options = {option.key: option for option in found}
        if self._depth == len(self._path):
            asleep = self._path[-1].asleep_after() if self._path else {}
            awake = [key for key in options if key not in asleep]
            if not awake:
                raise _RedundantError
            self._path.append(_Node(options, asleep, awake[0]))
        node = self._path[self._depth]
        assert node.options.keys() == options.keys(), "the same decisions lead elsewhere"
        node.options = options
        self._depth += 1
        self.steps.append(node.chosen)
        self._faults -= options[node.chosen].costs
        options[node.chosen].act()

    def _options(self, simulation: Simulation) -> Iterator[_Option]:
        for one in sorted(simulation.waiting, key=_name):
            yield _option(one, "serve", partial(simulation.serve, one))
            if one.request.kind == "swap" and self._faults:
                yield _option(one, "lose", partial(simulation.lose, one, after=True), costs=True)
                yield _option(one, "delay", partial(simulation.delay, one), costs=True)
        for one in simulation.late:
            yield _option(one, "land", partial(simulation.land, one))

    def _ends(self, simulation: Simulation, one: Waiting) -> Iterator[_Option]:
        """Yield what may become of a write that is under way when all have come to an end."""
        yield _option(one, "land", partial(simulation.land, one))
        yield _option(one, "vanish", partial(simulation.late.remove, one))


def _option(one: Waiting, what: str, act: Callable[[], None], costs: bool = False) -> _Option:
    return _Option((*_name(one), what), one.request, act, costs)


def _name(one: Waiting) -> tuple[str, str, str, int]:
    return one.actor, one.request.kind, one.request.path, one.number


Begin = Callable[[Simulation], Callable[[], object]]
"""Starts the actors, and returns what is to be done when all of them have come to an end."""


def play_in_every_order(begin: Begin, faults: int = 0) -> int:
    """Play a history in every order of its requests that makes a difference. How many there are.

    `begin` starts the same actors in a new simulation for each, and what it returns checks what came of it. Up to
    `faults` swaps in each order are not answered: they took effect, or do so later, at the very end, or never. Any
    error ends it all, with a note of the steps that led there.
    """
    path: list[_Node] = []
    count = 0
    while True:
        order = _Order(path, faults)
        with closing(Simulation()) as simulation:
            try:
                check = begin(simulation)
                if order.run(simulation):
                    if asyncio.iscoroutine(check()):
                        raise TypeError("what `begin` returned is a coroutine function, and was not awaited")
                    count += 1
            except Exception as error:
                error.add_note("in this order: " + ", ".join(" ".join(map(str, step)) for step in order.steps))
                raise
        while path and not path[-1].next():
            path.pop()
        if not path:
            return count
