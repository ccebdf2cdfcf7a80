"""The design of docs/hdfs.md, tried in every order of its steps: three writers and a cleanup over a small name space.

A swap that succeeds must stand on the newest version, and no version may be committed twice. Each rule of the design is
left out once, and must then be missed.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import pytest

LAST = 7
"""The version with which a history ends."""

Rule = Literal["folders", "one spare", "first folder stays"]
RULES: frozenset[Rule] = frozenset(("folders", "one spare", "first folder stays"))


@dataclass(frozen=True)
class Writer:
    """What a writer knows. An attempt may rest between any two steps, for as long as it likes."""

    folder: int | None = None
    """The newest folder in its listing of the folders, whose files it has not listed yet."""
    read: int | None = None
    """The version that it takes for the newest; 0 where there is none."""
    fed: bool = False
    """Whether it has seen that the spare folder beside its version has a spare one of its own."""


@dataclass(frozen=True)
class State:
    """The names that exist. A folder holds two versions, and folder 0 the first one alone."""

    files: frozenset[int] = frozenset()
    folders: frozenset[int] = frozenset()
    spares: frozenset[int] = frozenset()
    """Folders in which a spare one lies, which becomes the next folder by a rename."""
    fed: frozenset[int] = frozenset()
    """Folders whose spare one has a spare one of its own."""
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
            yield now(look(state, writer, rules))
            continue
        version = writer.read + 1
        here, there = folder_of(writer.read), folder_of(version)
        if version > LAST:
            continue
        if "folders" in rules and there not in state.folders:
            if writer.read == 0:  # a new root: the first folder comes with its spare
                yield now(writer, folders=state.folders | {0}, spares=state.spares | {0})
            elif here not in state.spares:
                yield now(Writer())
            elif not writer.fed:  # by a rename into the spare one, which finds another one there or not
                yield now(replace(writer, fed=True), fed=state.fed | {here})
            else:
                spares = state.spares - {here} if "one spare" in rules else state.spares
                spares |= {there} if here in state.fed else frozenset()
                yield now(replace(writer, fed=False), folders=state.folders | {there}, spares=spares)
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
            left = {name: getattr(state, name) - {folder} for name in ("folders", "spares", "fed")}
            yield replace(state, files=files, **left)


def look(state: State, writer: Writer, rules: frozenset[Rule]) -> Writer:
    """Return what a writer knows after the next call of its read: it lists the folders, then the files of one."""
    if "folders" not in rules or not state.folders:
        return Writer(read=max(state.files, default=0))
    if writer.folder is None:
        return Writer(folder=max(state.folders))
    if writer.folder not in state.folders:
        return Writer()  # It was deleted meanwhile, so it is not the newest one.
    files = [version for version in state.files if folder_of(version) == writer.folder]
    # A folder is made on top of the last version of the one before.
    return Writer(read=max(files, default=max(2 * writer.folder - 1, 0)))


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
