"""What a keyed state consists of, and each change of it that has to be whole.

`reentry.Exclusive` sees to it that one change at a time is made here. A change that was interrupted may be completed in
a copy: it comes to the same end where a part of it was done before.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from pyspark_checkpointer.keyed.changes import ChangeSet
from pyspark_checkpointer.keyed.partition import MapPartition
from pyspark_checkpointer.manifests.equal_keys import find_key, is_zoned, now_equal
from pyspark_checkpointer.manifests.keyed_records import partition_of
from pyspark_checkpointer.manifests.model import Chain
from pyspark_checkpointer.manifests.msgpack_values import UnsupportedValueError, pack, unpack

PLAIN = frozenset({str, int, float, bool, type(None), bytes})
"""Types whose values cannot change and hold nothing that can."""

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A change of one partition: the operation, and its arguments, of which the first is the number of the partition."""

ATTEMPTS = 3
"""Times that a step of a change is begun again where a signal handler raised in the middle."""

MISSING: Any = object()
"""Found in the place of a value where there is none."""


class Content:
    """The partitions of a state, and what was captured last."""

    __slots__ = ("captured", "parts")

    def __init__(self, parts: list[MapPartition]) -> None:
        self.parts = parts
        self.captured: ChangeSet | None = None

    def copied(self) -> "Content":
        """Return a copy to change independently, in order even where a change of this one stopped half way."""
        other = Content([part.copied() for part in self.parts])
        other.captured = self.captured
        return other

    # ---- single keys ----------------------------------------------------------------------------------------------

    def contains(self, number: int, key: Any) -> bool:
        part = self.parts[number]
        return key in part.live or key in part.data

    def hand_out(self, number: int, key: Any, packed: bytes | None = None, value: Any = None) -> Any:
        """Return the live value of a key, which becomes one; `MISSING` where there is none.

        `value` is what the caller unpacked, if its bytes are `packed` still.
        """
        part = self.parts[number]
        found = part.live.get(key, MISSING)
        if found is not MISSING:
            return found
        now = part.data.get(key)
        if now is None:
            return MISSING
        if now is not packed:
            value = unpack(now)
        if type(value) not in PLAIN:
            part.hand_out(key, now, value)
        return value

    def packed_value(self, number: int, key: Any) -> bytes | None:
        """Return the value of a key as it is now, packed; None where there is none. Nothing becomes live."""
        part = self.parts[number]
        live = part.live.get(key, MISSING)
        return part.data.get(key) if live is MISSING else pack(live)

    def rest(self, number: int, key: Any, packed: bytes) -> None:
        self.parts[number].rest(key, packed)

    def rest_all(self, number: int, values: dict[Any, bytes]) -> None:
        self.parts[number].rest_all(values)

    def assign(self, number: int, values: dict[Any, Any]) -> bool:
        """Set values that may be changed from outside. Whether it is time to put some to rest."""
        part = self.parts[number]
        part.assign(values)
        return part.crowded

    def several(self, steps: Sequence[Step]) -> set[int]:
        """Make changes as one. Return the partitions in which it is time to put values to rest.

        What a signal handler raises in the middle is raised when all of them are made.
        """
        raised: list[tuple[int, BaseException]] = []
        number = 0
        while number < len(steps):
            try:
                while number < len(steps):
                    operation, arguments = steps[number]
                    operation(self, *arguments)
                    number += 1
            except BaseException as error:
                raised.append((number, error))
                if [at for at, _ in raised].count(number) == ATTEMPTS:
                    break  # no handler raises so often in one step: it cannot be made
        if raised:
            raise raised[0][1]
        numbers = {arguments[0] for _, arguments in steps}
        return {number for number in numbers if self.parts[number].crowded}

    def put_to_rest(self, number: int) -> None:
        self.parts[number].put_to_rest()

    def setdefault(self, number: int, key: Any, default: Any, packed: bytes | None) -> Any:
        """Set a key to `default`, which is `packed` where it cannot change, unless it is there. Return its value."""
        found = self.hand_out(number, key)
        if found is not MISSING:
            return found
        if packed is None:
            self.parts[number].assign({key: default})
        else:
            self.parts[number].rest(key, packed)
        return default

    def delete(self, number: int, key: Any, found: list[bool]) -> None:
        """Remove a key and add to `found` whether it was there. If a copy completes the call, `found` already tells."""
        part = self.parts[number]
        if not found:
            found.append(key in part.live or key in part.data)
        if found[0]:
            part.delete(key)

    def pop(self, number: int, key: Any, found: list[Any]) -> None:
        """Remove a key and add its value to `found`; `MISSING` where there is none.

        Whoever completes this after a part of it was done finds the value there.
        """
        if not found:
            found.append(self._value(number, key))
        if found[0] is not MISSING:
            self.parts[number].delete(key)

    def popitem(self, found: list[Any]) -> None:
        """Remove some key and add it and its value to `found`; `MISSING` where there is none."""
        if not found:
            # The last key: who looks for the first one passes the places of all that were taken before.
            last = ((n, key) for n in range(len(self.parts)) for key in islice(reversed(self.listed(n)), 1))
            number, key = next(last, (0, MISSING))
            found.append(MISSING if key is MISSING else (key, self._value(number, key)))
        if found[0] is not MISSING:
            key = found[0][0]
            self.parts[partition_of(key, len(self.parts))].delete(key, last=True)

    def _value(self, number: int, key: Any) -> Any:
        part = self.parts[number]
        found = part.live.get(key, MISSING)
        if found is not MISSING:
            return found
        packed = part.data.get(key)
        return MISSING if packed is None else unpack(packed)

    # ---- all keys -------------------------------------------------------------------------------------------------

    def listed(self, number: int) -> dict[Any, bytes]:
        return self.parts[number].listed()

    def keys(self, number: int) -> list[Any]:
        """Return the keys of a partition as they are now."""
        return list(self.parts[number].listed())

    def count(self) -> int:
        return sum(len(part.listed()) for part in self.parts)

    def estimate(self) -> int:
        """Return the number of keys without changing anything; during a change, about the number."""
        return sum(part.estimate() for part in self.parts)

    def clear(self) -> None:
        self.parts = [part.cleared() for part in self.parts]  # one step: no part of it is ever seen

    def packed(self) -> tuple[list[dict[Any, bytes]], dict[Any, UnsupportedValueError]]:
        """Return the packed values of all partitions, and what cannot be packed."""
        refused = self._pack_all()
        return [] if refused else [dict(part.data) for part in self.parts], refused

    def _pack_all(self) -> dict[Any, UnsupportedValueError]:
        for part in self.parts:
            refused = part.pack_all()
            if refused:
                return refused
        return {}

    # ---- saving ---------------------------------------------------------------------------------------------------

    def capture(
        self, chains: Mapping[int, Chain], max_chain: int
    ) -> tuple[ChangeSet | None, dict[Any, UnsupportedValueError]]:
        """Return what has to be written on top of `chains`, and what cannot be packed."""
        self._learn_outcome()
        refused = self._pack_all()
        if refused:
            return None, refused
        each = [part.capture(number, chains.get(number, ()), max_chain) for number, part in enumerate(self.parts)]
        captured = ChangeSet(len(self.parts), [change for change in each if change is not None])
        self.captured = captured
        for change in captured.changes:
            self.parts[change.partition].taken(change)
        return captured, {}

    def _learn_outcome(self) -> None:
        """Take in what became of the last capture. Unless it was committed, its changes are changes still.

        To do this twice, since the first time was interrupted, does nothing more.
        """
        if self.captured is None:
            return
        dirty = [change.dirty for change in self.captured.changes]  # before the outcome: `settle` drops them after it
        outcome = self.captured.outcome
        for change, again in zip(self.captured.changes, dirty, strict=True):
            part = self.parts[change.partition]
            if outcome is None:
                part.change_again(again)
                part.whole = part.whole or change.whole
            else:
                part.saved(change, outcome.get(change.partition, ()))
        self.captured = None


CHANGES = frozenset(
    {
        Content.rest,
        Content.rest_all,
        Content.assign,
        Content.several,
        Content.setdefault,
        Content.delete,
        Content.pop,
        Content.popitem,
        Content.clear,
    }
)
"""The operations after which other keys or values are there than before."""


# ---- where keys are placed ------------------------------------------------------------------------------------------


def place_anew(parts: list[MapPartition]) -> None:
    """Bring each key to the partition in which it is looked up.

    Where a key with a named zone is depends on the rules of that zone, and those were others when it was written. The
    partitions that lose or gain a key are written whole with the next save.
    """
    misplaced = []
    for number, part in enumerate(parts):
        if part.mixed:
            keys = [key for key in part.data if is_zoned(key) and partition_of(key, len(parts)) != number]
            misplaced += [(key, part.data.pop(key)) for key in keys]
            part.chain = () if keys else part.chain
    if misplaced:
        fill(parts, misplaced)


def fill(parts: list[MapPartition], pairs: Iterable[tuple[Any, bytes]]) -> None:
    """Place keys that are in none of the partitions."""
    for key, packed in pairs:
        part = parts[partition_of(key, len(parts))]
        if key in part.data:
            raise now_equal(find_key(part.data, key), key)
        part.data[key] = packed
        part.chain = ()
    for part in parts:
        part.learn_keys()
