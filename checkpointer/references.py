"""Whether anybody outside holds a reference into a value: a list, dict, set or tuple, and what it is made of.

CPython counts references, so the question has an exact answer there. Elsewhere the answer is always yes, which is safe.
"""

import sys
from collections.abc import Mapping
from typing import Any

_references = getattr(sys, "getrefcount", lambda value: 0)

_CHANGEABLE = frozenset({dict, list, set})
_CONTAINERS = _CHANGEABLE | {tuple}


def unheld(values: Mapping[Any, Any]) -> list[Any]:
    """The keys of those values to which nothing refers but `values`, nor to anything changeable in them."""
    found = []
    for key in values:
        value = values[key]
        alone = _references(value) <= _ALONE
        if alone or type(value) is tuple:
            inside = _inside(value)
            if inside <= _INSIDE and (alone or not inside):
                found.append(key)
    return found


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
    values: dict[int, Any] = {0: [[]], 1: {"a": []}, 2: ([],), 3: [([],)]}
    alone, inside = [], []
    for key in values:  # stands where `unheld` stands
        value = values[key]
        alone.append(_references(value))
        inside.append(_inside(value))
    return min(alone), min(inside)


_ALONE, _INSIDE = _baseline() if sys.implementation.name == "cpython" else (-1, -1)
