"""Handle keys that are equal and yet not the same.

Examples are 1, 1.0 and True, Decimal("1.0") and Decimal("1.00"), 0.0 and -0.0, one moment in two zones, and tuples and
frozen sets of these.

A dict keeps its key when a value is set under an equal one, and takes the new key once the old one was deleted. A keyed
state does the same, also when it is restored. Each delta names the key that is stored. When a delta is applied to older
records, key and value come from the delta.
"""

from collections.abc import Collection, Iterable, Mapping, Set
from datetime import date, datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from pyspark_checkpointer.manifests.errors import InvalidStateError
from pyspark_checkpointer.manifests.msgpack_values import pack
from pyspark_checkpointer.manifests.shown import show

EXACT = frozenset({str, bytes, type(None), date, timedelta, UUID})
"""Types of keys to which only the same key is equal."""

_INTEGERS = EXACT | {int}
_FLOATS = EXACT | {float}

_GROUPS = frozenset({tuple, frozenset})
_UNAMBIGUOUS = _INTEGERS | _GROUPS

_MISSING: Any = object()


class Replaced(NamedTuple):
    """A key that was replaced by an equal one.

    Whether they are equal depends on the rules of a named zone.
    """

    old: Any
    value: bytes | None
    new: Any


class _Finder:
    """An object that is equal to a key, and remembers which key it was compared with."""

    __slots__ = ("_key", "found")

    def __init__(self, key: Any) -> None:
        self._key = key
        self.found: Any = _MISSING

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        # A dict first compares its own key with this object. That key does not know this class, so Python then calls
        # this method.
        if self._key == other:
            self.found = other
            return True
        return False


def find_key(known: Mapping[Any, Any], key: Any, default: Any = None) -> Any:
    """Return the key of `known` that is equal to `key`."""
    finder = _Finder(key)
    return finder.found if finder in known else default


def may_differ(keys: Collection[Any]) -> bool:
    """Return whether one of these keys can be equal to a different key.

    The different key is another of them, or an integer.
    """
    # Level by level: the types of a whole level are gathered by one call, without a look at each key.
    level: Collection[Any] = keys
    while True:
        kinds = set(map(type, level))
        if not kinds <= _UNAMBIGUOUS:
            return True
        if kinds.isdisjoint(_GROUPS):
            return False
        level = list(chain.from_iterable(key for key in level if type(key) in _GROUPS))


def may_meet(groups: Collection[Collection[Any]], kinds: Set[type]) -> bool:
    """Return whether two keys of these groups can be equal and not the same.

    `kinds` has the types of all keys.
    """
    if kinds <= _FLOATS:  # each is equal to itself only, but for 0.0 and -0.0
        return float in kinds and any(0.0 in keys for keys in groups)
    return not kinds <= _INTEGERS and any(map(may_differ, groups))


def kinds_of(groups: Iterable[Collection[Any]]) -> set[type]:
    """Return the types of all keys of some groups."""
    return set().union(*(map(type, keys) for keys in groups))


def overlay(records: dict[Any, bytes | None], later: Mapping[Any, bytes | None]) -> list[Replaced]:
    """Lay a later change over records, in place: key and value are the later ones.

    Returns the keys that were replaced by an equal one, if that they are equal depends on a named zone.
    """
    if EXACT.issuperset(map(type, later)):
        records.update(later)
        return []
    replaced = []
    for key, value in later.items():
        if type(key) not in EXACT and (old := find_key(records, key, _MISSING)) is not _MISSING and not same(old, key):
            if is_zoned(old) or is_zoned(key):
                replaced.append(Replaced(old, records[old], key))
            # A dict keeps the key that it has when a value is set under an equal one. Here the later key has to stand
            # (SPEC.md, "Equal keys").
            del records[old]
        records[key] = value
    return replaced


def same(one: Any, other: Any) -> bool:
    """Return whether two equal keys are the same."""
    kind = type(one)
    if one is other:
        return True
    if kind is not type(other):
        return False
    if kind is tuple:
        return all(map(same, one, other))
    # The packed bytes tell apart what equality does not: the sign of zero, the exponent of a decimal, the zone of a
    # time.
    return kind in EXACT or kind is int or pack(one) == pack(other)


def is_zoned(key: Any) -> bool:
    """Return whether a key depends on the rules of a named zone.

    The rules decide which keys are equal to it, and its partition.
    """
    if type(key) in _GROUPS:
        return any(map(is_zoned, key))
    return type(key) is datetime and type(key.tzinfo) is ZoneInfo


def holds_time(key: Any) -> bool:
    """Return whether a key is or holds a date and time.

    It may be equal to one in another zone.
    """
    return any(map(holds_time, key)) if type(key) in _GROUPS else type(key) is datetime


def now_equal(one: Any, other: Any) -> InvalidStateError:
    """Return the error for two keys that became equal since they were stored."""
    return InvalidStateError(
        f"keys {show(one)} and {show(other)}: were two when they were stored, and are equal by the rules that their "
        "zones have in the time zone database of this machine. Nothing is lost: restore with the database that the "
        "writer had (the package tzdata, or PYTHONTZPATH), and store one of them under another key"
    )
