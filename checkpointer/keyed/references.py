"""Find values that nobody else holds.

A value is held if a reference leads to it, or to a list, dict or set inside it. CPython counts references, so there the
answer is exact. Elsewhere every value counts as held, which is safe.
"""

import gc
import sys
from collections.abc import Mapping
from typing import Any

_COUNTED = sys.implementation.name == "cpython"

_CHANGEABLE = frozenset({dict, list, set})
_CONTAINERS = _CHANGEABLE | {tuple}


def unheld(values: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of the values that nobody else holds.

    Only `values` refers to such a value, and nobody else holds a list, dict or set inside it.
    """
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
    """Return the highest reference count of any changeable object in a container.

    The count is the one that `getrefcount` shows here; 0 if there is no changeable object.
    """
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
    """Return the reference counts of a value that nobody else holds.

    The first count is that of the value, the second that of the objects in it. Both are counted as `unheld` sees them.

    They are measured because they depend on the version of Python. The lowest are taken: in doubt, a value counts as
    held.
    """
    values: dict[int, Any] = {0: [[]], 1: {"a": []}, 2: ([],), 3: [([],)]}
    return min(map(sys.getrefcount, values.values())), min(_inside(values[key]) for key in values)


_ALONE, _INSIDE = _baseline() if _COUNTED else (-1, -1)
