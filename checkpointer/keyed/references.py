"""Find values that nobody else holds: no reference leads to them, nor to a list, dict or set inside of them.

CPython counts references, so there the answer is exact. Elsewhere every value counts as held, which is safe.
"""

import gc
import sys
from collections.abc import Mapping
from typing import Any

_COUNTED = sys.implementation.name == "cpython"

_CHANGEABLE = frozenset({dict, list, set})
_CONTAINERS = _CHANGEABLE | {tuple}


def unheld(values: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of the values that only `values` refers to, and of which nothing changeable is held either."""
    found: list[Any] = []
    if not _COUNTED:
        return found
    # One call for all values each, which takes a third of the time of a loop.
    counts, tracked = map(sys.getrefcount, values.values()), map(gc.is_tracked, values.values())
    for key, count, may_hold, kind in zip(values, counts, tracked, map(type, values.values()), strict=True):
        if count <= _ALONE or kind is tuple:
            # A container that the garbage collector does not track has nothing in it that can be changed.
            try:
                inside = _inside(values[key]) if may_hold else 0
            except RecursionError:  # it holds itself: who saves it will be told
                continue
            # A tuple cannot change: others may hold it, as long as nothing changeable is inside of it.
            if inside <= _INSIDE and (count <= _ALONE or not inside):
                found.append(key)
    return found


def _inside(value: Any) -> int:
    """Return the highest reference count of anything changeable inside a container, as seen here; 0 if none is."""
    kind = type(value)
    # Keys of a dict and members of a set are hashable, so there is nothing changeable in them.
    children = value.values() if kind is dict else value if kind in (list, tuple) else ()
    if _CONTAINERS.isdisjoint(map(type, children)):
        return 0
    highest = 0
    for child in children:
        if type(child) in _CHANGEABLE:
            highest = max(highest, sys.getrefcount(child), _inside(child))
        elif type(child) is tuple and (within := _inside(child)):
            highest = max(highest, sys.getrefcount(child), within)
    return highest


def _baseline() -> tuple[int, int]:
    """Return the reference counts of a value that nobody else holds, and of what is in it, as `unheld` sees them.

    They are measured, as they depend on the version of Python. The lowest are taken: in doubt, a value counts as held.
    """
    values: dict[int, Any] = {0: [[]], 1: {"a": []}, 2: ([],), 3: [([],)]}
    return min(map(sys.getrefcount, values.values())), min(_inside(values[key]) for key in values)


_ALONE, _INSIDE = _baseline() if _COUNTED else (-1, -1)
