"""Classify the keys in a partition.

The types of the keys decide whether two keys of the partition can be equal without being the same. In a dict with the
keys 1 and "a", no other key is equal to one of these, unless a key such as 1.0 or True comes. In most partitions no
such key comes. Then the key that a caller gives is the stored key.
"""

from collections.abc import Collection, Set
from enum import Enum
from typing import Any

from pyspark_checkpointer.manifests.equal_keys import EXACT, may_differ, may_meet


class KeyKinds(Enum):
    """The known properties of a partition's keys.

    A member can be left only along the arrows, and `MIXED` is never left.

    NO_NUMBERS ──> INTEGERS ──> MIXED
        │  └─────> FLOATS ────────↑
        └─────────────────────────┘
    """

    NO_NUMBERS = "equal keys are the same, and none is an int or float"
    INTEGERS = "equal keys are the same, and the numbers among them are of type int"
    FLOATS = "equal keys are the same, and the numbers among them are of type float, and not 0.0"
    MIXED = "keys may be equal and not the same: the key that stands has to be looked up"

    @classmethod
    def of(cls, groups: Collection[Collection[Any]], types: Set[type]) -> "KeyKinds":
        """Return the kinds of all keys of some groups that have these types.

        A dict of a partition is a group, for example.
        """
        if may_meet(groups, types):
            return MIXED
        numbers = types & NUMBER_KINDS.keys()
        return NUMBER_KINDS[numbers.pop()] if numbers else NO_NUMBERS

    def with_key(self, key: Any) -> "KeyKinds":
        """Return the kinds once `key` is, or may be, one of the keys.

        The type of `key` is not in `EXACT`.
        """
        if self is MIXED:
            return MIXED
        kind = type(key)
        own = NUMBER_KINDS.get(kind)
        if own is not None:
            # 0.0 may stand as -0.0, and the other way round.
            return own if (self is own or self is NO_NUMBERS) and (key or own is INTEGERS) else MIXED
        return MIXED if may_differ((key,)) else self

    def are_unambiguous(self, keys: Collection[Any]) -> bool:
        """Return whether no key of `keys` can be equal to a different stored key.

        The answer rests on the types of `keys`.
        """
        types = set(map(type, keys))
        return (
            types <= EXACT
            or (self is INTEGERS and types == {int})
            or (self is FLOATS and types == {float} and 0.0 not in keys)
        )


# Global names are looked up in half of the time that members of the class take.
NO_NUMBERS, INTEGERS, FLOATS, MIXED = KeyKinds

NUMBER_KINDS: dict[type, KeyKinds] = {int: INTEGERS, float: FLOATS}

SIMPLE = EXACT | {int}
"""Types of members that make a tuple unambiguous.

A tuple of such members is equal only to a tuple of the same members.
"""
