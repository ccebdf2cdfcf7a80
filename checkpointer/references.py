"""Whether anybody outside holds a reference into a value: a list, dict, set or tuple, and what it is made of.

CPython counts references, so the question has an exact answer there. Elsewhere the answer is always yes, which is safe.
"""

import sys
from typing import Any

_CHANGEABLE = frozenset({dict, list, set})
_CONTAINERS = _CHANGEABLE | {tuple}


def is_held(value: Any) -> bool:
    """Whether anything but one local variable of the caller refers to `value` or to something changeable in it."""
    alone, inside = _counts(value)
    if type(value) is tuple and not inside:
        return False
    return alone > _ALONE or inside > _INSIDE


def _counts(value: Any) -> tuple[int, int]:
    return sys.getrefcount(value), _inside(value)


def _inside(value: Any) -> int:
    """The highest reference count of anything changeable inside a container, as seen from here; 0 if there is none."""
    kind = type(value)
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
    """What `_counts` says of values that nobody else holds: the lowest of each, so that a doubt means held."""

    def seen(value: Any) -> tuple[int, int]:  # stands where is_held stands
        alone, inside = _counts(value)
        return alone, inside

    samples = []
    value: Any = [[]]
    samples.append(seen(value))
    value = {"a": []}
    samples.append(seen(value))
    value = ([],)
    samples.append(seen(value))
    value = [([],)]
    samples.append(seen(value))
    return min(alone for alone, _ in samples), min(inside for _, inside in samples)


_ALONE, _INSIDE = _baseline() if sys.implementation.name == "cpython" else (-1, -1)
