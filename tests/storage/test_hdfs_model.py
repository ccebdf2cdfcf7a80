"""The design of docs/hdfs.md, tried in every order of its steps: three writers and a cleanup over a small name space.

A swap that succeeds must stand on the newest version, and no version may be committed twice. Each rule of the design is
left out once, and must then be missed.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import pytest

LAST = 9
"""The version with which a history ends."""

Rule = Literal["folders", "one spare", "first folder stays"]
RULES: frozenset[Rule] = frozenset(("folders", "one spare", "first folder stays"))


@dataclass(frozen=True)
class Writer:
    """What a writer knows: the version that it read, or None; an attempt may rest between any two steps."""

    read: int | None = None


@dataclass(frozen=True)
class State:
    """The names that exist. A folder holds two versions, and folder 0 the first one alone."""

    files: frozenset[int] = frozenset()
    folders: frozenset[int] = frozenset()
    spares: frozenset[int] = frozenset()
    """Folders in which a spare one lies, which becomes the next folder by a rename."""
    writers: tuple[Writer, ...] = (Writer(), Writer(), Writer())
    newest: int = 0
    """The version that was committed last. Nobody sees this."""


class BrokenError(Exception):
    """A swap succeeded that did not stand on the newest version."""


def folder_of(version: int) -> int:
    return version // 2


def steps(state: State, rules: frozenset[Rule]) -> Iterator[State]:
    """Yield every state that one step of anybody leads to. Each step is one call of the name node."""
    for number, writer in enumerate(state.writers):

        def now(known: Writer, number: int = number, **changes: frozenset[int] | int) -> State:
            writers = tuple(known if n == number else other for n, other in enumerate(state.writers))
            return replace(state, writers=writers, **changes)  # type: ignore[arg-type]

        if writer.read is None:
            yield now(Writer(max(state.files, default=0)))  # one listing; 0 where there is no root
            continue
        version = writer.read + 1
        here, there = folder_of(writer.read), folder_of(version)
        if version > LAST:
            continue
        if "folders" in rules and there not in state.folders:
            if writer.read == 0:  # a new root: the first folder comes with its spare
                yield now(writer, folders=state.folders | {0}, spares=state.spares | {0})
            elif here in state.spares:  # comes with a spare of its own inside
                spares = state.spares - {here} if "one spare" in rules else state.spares
                yield now(writer, folders=state.folders | {there}, spares=spares | {there})
            else:
                yield now(Writer())
        elif version in state.files:
            yield now(Writer())  # refused: read again
        else:
            if state.newest != writer.read:
                raise BrokenError(f"version {version} was committed after {state.newest}")
            yield now(Writer(), files=state.files | {version}, newest=version)
    # The cleanup removes what is older than the newest version, one folder or file at a time, in any order.
    kept = folder_of(state.newest)
    if "folders" not in rules:
        for version in state.files:
            if version < state.newest:
                yield replace(state, files=state.files - {version})
    for folder in state.folders:
        if folder < kept and not (folder == 0 and "first folder stays" in rules):
            files = frozenset(version for version in state.files if folder_of(version) != folder)
            yield replace(state, files=files, folders=state.folders - {folder}, spares=state.spares - {folder})


def explore(rules: frozenset[Rule]) -> tuple[int, int]:
    """Return how many states can be reached, and the newest version among them."""
    seen, left = {State()}, deque([State()])
    while left:
        for state in steps(left.popleft(), rules):
            if state not in seen:
                seen.add(state)
                left.append(state)
    return len(seen), max(state.newest for state in seen)


def test_with_all_rules_every_swap_stands_on_the_newest_version() -> None:
    states, newest = explore(RULES)
    assert (states > 10_000, newest) == (True, LAST)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_each_rule_is_needed(rule: Rule) -> None:
    with pytest.raises(BrokenError, match="was committed after"):
        explore(RULES - {rule})
