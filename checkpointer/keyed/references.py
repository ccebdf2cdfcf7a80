"""Find values that nobody else holds.

A value is held if a reference leads to it, or to a list, dict or set inside it. CPython counts references, so there the
answer is exact. It would not be without the GIL (a free-threaded build), or elsewhere: there every value counts as
held. This is safe. A state then keeps each value that was assigned or handed out, and each save looks at all of these.
"""

import gc
import sys
from itertools import compress
from typing import Any


def counts_are_exact(implementation: str, flags: str) -> bool:
    """Return whether a Python counts references exactly.

    The name and the ABI flags of the Python say so. Without the GIL (flag `t`), a count is the sum of the counts of
    several threads, and may be old when it is read.
    """
    return implementation == "cpython" and "t" not in flags


_COUNTED = counts_are_exact(sys.implementation.name, getattr(sys, "abiflags", ""))

_CHANGEABLE = frozenset({dict, list, set})
_CONTAINERS = _CHANGEABLE | {tuple}


def unheld(values: list[Any], *, dicts: int = 1) -> list[bool]:
    """Return for each value whether nobody else holds it.

    Only the list `values` refers to such a value, and as many dicts as `dicts` says. Nobody else holds a list, dict or
    set inside it.
    """
    if not _COUNTED:
        return [False] * len(values)
    # Each check runs once over all values, in C. A loop in Python is needed only if some values are free and contain
    # other objects.
    counts = list(map(sys.getrefcount, values))
    alone = _ALONE + dicts
    free = list(map(alone.__ge__, counts))
    if tuple in set(map(type, values)):
        # A tuple cannot change: others may hold it, as long as nothing changeable is inside of it.
        free = [count <= alone or type(value) is tuple for count, value in zip(counts, values, strict=True)]
    # A container that the garbage collector does not track has nothing in it that can be changed.
    if any(free) and any(map(gc.is_tracked, compress(values, free))):
        return [
            maybe and _is_free(value, is_alone=count <= alone)
            for maybe, value, count in zip(free, values, counts, strict=True)
        ]
    return free


def _is_free(value: Any, *, is_alone: bool) -> bool:
    """Return whether nobody else holds a changeable part of a value.

    `is_alone` says that nobody else holds the value itself.
    """
    try:
        inside = _inside(value) if gc.is_tracked(value) else 0
    except RecursionError:  # it holds itself: who saves it will be told
        return False
    # A value that others hold is still free if there is nothing changeable in it, as in a tuple of numbers.
    return inside <= _INSIDE and (is_alone or not inside)


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

    The first count is that of the value in a list, the second that of the objects in it. Both are counted as `unheld`
    sees them.

    They are measured because they depend on the version of Python. The lowest are taken: in doubt, a value counts as
    held.
    """
    values: list[Any] = [[[]], {"a": []}, ([],), [([],)]]
    alone = min(map(sys.getrefcount, values))
    # A debugger that follows `_inside` may hold what its variables hold. Then all of its counts would be too high, and
    # held values would count as free. So the highest right count is measured beside: what a count in C shows, one for
    # the variable, and the difference between a count in Python and one in C. Whoever holds `child` is in both of them.
    (child,) = values[0]
    in_python = sys.getrefcount(child) - next(map(sys.getrefcount, values[0]))
    return alone, min(alone + 1 + in_python, *map(_inside, values))


_ALONE, _INSIDE = _baseline() if _COUNTED else (-1, -1)
