"""Whether anybody outside holds a reference into a value: a list, dict, set or tuple, and what it is made of.

CPython counts references, so the question has an exact answer there. Elsewhere the answer is always yes, which is safe.
"""

import sys
from typing import Any

_references = getattr(sys, "getrefcount", lambda value: 0)

_CHANGEABLE = frozenset({dict, list, set})
_CONTAINERS = _CHANGEABLE | {tuple}


def is_held(value: Any, besides: int = 0) -> bool:
    """Whether anything refers to `value`, or to something changeable in it, but one local variable of the caller.

    `besides` is how many more references to `value` the caller knows of.
    """
    alone = _ALONE + besides
    if type(value) is not tuple and _references(value) > alone:
        return True
    inside = _inside(value)
    return inside > _INSIDE or (inside > 0 and _references(value) > alone)


def _inside(value: Any) -> int:
    """The highest reference count of anything changeable inside a container, as seen from here; 0 if there is none."""
    kind = type(value)
    children = value.values() if kind is dict else value if kind in (list, tuple) else ()
    if _CONTAINERS.isdisjoint(map(type, children)):
        return 0
    highest = 0
    for child in children:
        if type(child) in _CHANGEABLE:
            highest = max(highest, _references(child), _inside(child))
        elif type(child) is tuple and (within := _inside(child)):
            highest = max(highest, _references(child), within)
    return highest


def _baseline() -> tuple[int, int]:
    """The counts of values that nobody else holds, and of what is in them: the lowest, so that a doubt means held."""

    def seen(value: Any) -> tuple[int, int]:  # stands where is_held stands
        return _references(value), _inside(value)

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
