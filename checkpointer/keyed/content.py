"""Hold the content of a keyed state, and make each change of it whole.

`reentry.Exclusive` makes one change at a time here. A change that was interrupted may be completed in a copy. So each
operation gives the same result if a part of it was done before.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from pyspark_checkpointer.errors import InvalidStateError, MalformedError
from pyspark_checkpointer.keyed.changes import ChangeSet
from pyspark_checkpointer.keyed.expiring import ExpiringPartition, without_times
from pyspark_checkpointer.keyed.partition import MapPartition, SavedChain
from pyspark_checkpointer.manifests.keyed_records import check_places, place_key
from pyspark_checkpointer.manifests.map_expiry import MapRule, encode_schema
from pyspark_checkpointer.manifests.model import Chain
from pyspark_checkpointer.manifests.msgpack_checks import ATOMS, UnsupportedValueError
from pyspark_checkpointer.manifests.msgpack_values import pack, unpack
from pyspark_checkpointer.manifests.shown import show

Step = tuple[Callable[..., Any], tuple[Any, ...]]
"""A change of one partition: the operation and its arguments.

The first argument is the number of the partition.
"""

Shared = tuple[MapPartition, dict[Any, bytes]]
"""A partition, and its packed values while somebody reads them."""

MISSING: Any = object()
"""Stands for a value where there is none."""

UNREADABLE = (MalformedError, InvalidStateError)
"""Errors of a value that cannot be unpacked."""


def unreadable_value(key: Any, error: Exception) -> Exception:
    """Return the error of a value that cannot be unpacked, with the name of its key."""
    return type(error)(f"the value of key {show(key)}: {error}")


class Content:
    """The partitions of a state, and the last capture, until its outcome is known."""

    __slots__ = ("captured", "parts", "rule", "timed")

    def __init__(self, parts: list[MapPartition]) -> None:
        self.parts = parts
        self.captured: ChangeSet | None = None
        self.rule: MapRule | None = None
        """The rule by which entries expire; None where they do not."""
        self.timed = False
        """True if stored values may carry times."""

    def copied(self) -> "Content":
        """Return a consistent copy that can be changed independently.

        The copy is consistent even if a change of this content stopped half way.
        """
        other = Content([part.copied() for part in self.parts])
        other.captured, other.rule, other.timed = self.captured, self.rule, self.timed
        return other

    # ---- single keys ----------------------------------------------------------------------------------------------

    def contains(self, number: int, key: Any) -> bool:
        """Return whether a key is there."""
        return self.parts[number].contains(key)

    def hand_out(self, number: int, key: Any, packed: bytes | None = None, value: Any = None) -> Any:
        """Return the value of a key; `MISSING` where there is none.

        The value becomes live unless it is plain. `value` is what the caller unpacked from `packed`. It is used if
        `packed` is still the key's value.
        """
        part = self.parts[number]
        found = part.live.get(key, MISSING)
        if found is not MISSING:
            return found
        now = part.data.get(key)
        if now is None:
            return MISSING
        # Packed values are replaced and never changed, so identity tells whether these are the same bytes, without a
        # comparison.
        if now is not packed:  # it was changed after the caller unpacked it
            try:
                value = unpack(now)
            except UNREADABLE as error:
                raise unreadable_value(key, error) from None
        if type(value) not in ATOMS:
            part.hand_out(key, now, value)
        return value

    def packed_value(self, number: int, key: Any) -> tuple[bytes | None, dict[Any, UnsupportedValueError]]:
        """Return the current value of a key, packed, and errors by key.

        The value is None where there is none. The error is that of a value that cannot be packed. Nothing becomes live.
        """
        part = self.parts[number]
        live = part.live.get(key, MISSING)
        if live is MISSING:
            return part.data.get(key), {}
        try:
            return pack(live), {}
        except UnsupportedValueError as error:
            return None, {key: error}

    def set_packed(self, number: int, key: Any, packed: bytes) -> None:
        """Set a value that nobody can change."""
        self.parts[number].set_packed(key, packed)

    def set_all_packed(self, number: int, values: dict[Any, bytes]) -> None:
        """Set values of one partition that nobody can change."""
        self.parts[number].set_all_packed(values)

    def assign(self, number: int, values: dict[Any, Any]) -> bool:
        """Set values that callers may still change.

        Returns whether it is time for `drop_unheld`.
        """
        part = self.parts[number]
        part.assign(values)
        return part.crowded

    def make_all(self, steps: Sequence[Step]) -> set[int]:
        """Make several changes as one and return the partitions to clean.

        For these it is time for `drop_unheld`.

        If a signal handler raises in the middle, the next user of the state makes all of them (`reentry.py`).
        """
        for operation, arguments in steps:
            operation(self, *arguments)
        numbers = {arguments[0] for _, arguments in steps}
        return {number for number in numbers if self.parts[number].crowded}

    def drop_unheld(self, number: int) -> None:
        """Drop the live values of a partition that nobody else holds.

        Their packed bytes stay.
        """
        self.parts[number].drop_unheld()

    def setdefault(self, number: int, key: Any, default: Any, packed: bytes | None) -> Any:
        """Set a key to `default` unless it is there, and return its value.

        `packed` is `default` packed, if that cannot change.
        """
        found = self.hand_out(number, key)
        if found is not MISSING:
            return found
        if packed is None:
            part = self.parts[number]
            part.assign({key: default})
            if part.crowded:
                part.drop_unheld()  # `default` stays, since the caller holds it
        else:
            self.parts[number].set_packed(key, packed)
        return default

    def delete(self, number: int, key: Any, found: list[bool]) -> None:
        """Remove a key and add to `found` whether it was there.

        If a copy completes the call, `found` already tells.
        """
        part = self.parts[number]
        if not found:
            found.append(part.contains(key))
        if found[0]:
            part.delete(key)

    def pop(self, number: int, key: Any, found: list[Any]) -> None:
        """Remove a key and add its value to `found`; `MISSING` where there is none.

        If the value cannot be unpacked, it stays, and `MISSING` and the error are added. If a copy completes the call,
        the value is in `found` already.
        """
        if not found:
            try:
                found.append(self._value(number, key))
            except UNREADABLE as error:  # returned: an exception here would have the next operation copy all content
                found += (MISSING, unreadable_value(key, error))
        if found[0] is not MISSING:
            self.parts[number].delete(key)

    def popitem(self, found: list[Any]) -> None:
        """Remove some key and add it and its value to `found`.

        Adds `MISSING` where there is none, and `MISSING` and the error if the value cannot be unpacked.
        """
        if not found:
            # The last key: a look for the first one would pass the places of all that were taken before.
            last = ((n, key) for n in range(len(self.parts)) for key in islice(reversed(self.parts[n].listed()), 1))
            number, key = next(last, (0, MISSING))
            try:
                found.append(MISSING if key is MISSING else (key, self._value(number, key)))
            except UNREADABLE as error:  # as in `pop`
                found += (MISSING, unreadable_value(key, error))
        if found[0] is not MISSING:
            key = found[0][0]
            # The key may have been found by a run that was interrupted, so its partition is looked up again.
            number, key = place_key(key, len(self.parts))
            self.parts[number].delete(key, last=True)

    def _value(self, number: int, key: Any) -> Any:
        """Return the value of a key; `MISSING` where there is none.

        The value does not become live.
        """
        part = self.parts[number]
        found = part.live.get(key, MISSING)
        if found is not MISSING:
            return found
        packed = part.data.get(key)
        return MISSING if packed is None else unpack(packed)

    # ---- all keys -------------------------------------------------------------------------------------------------

    def keys(self, number: int) -> list[Any]:
        """Return the keys of a partition as they are now."""
        return list(self.parts[number].listed())

    def count(self) -> int:
        """Return the number of keys."""
        return sum(len(part.listed()) for part in self.parts)

    def estimate(self) -> int:
        """Return the number of keys without changing anything.

        During a change the number is approximate.
        """
        return sum(part.estimate() for part in self.parts)

    def clear(self) -> None:
        """Remove all keys."""
        self.parts = [part.cleared() for part in self.parts]  # one step: nobody ever sees some of them cleared

    def share(self, reader: object) -> tuple[list[Shared], dict[Any, UnsupportedValueError]]:
        """Return the partitions with their packed values, and errors by key.

        The values stay as they are until the reader ends. The errors are those of values that cannot be packed.
        """
        refused = self._pack_all()
        return [] if refused else [(part, part.share(reader)) for part in self.parts], refused

    def _pack_all(self) -> dict[Any, UnsupportedValueError]:
        """Pack all live values and return the errors by key.

        They are the errors of the first partition with values that cannot be packed.
        """
        new = [(part, dict[Any, UnsupportedValueError](), list[Any]()) for part in self.parts if part.is_new]
        # A step of each partition in turn. Values that were made one after the other lie close together in memory, and
        # are spread over the partitions: one partition after the other, each would be brought from memory by itself.
        steps = [part.pack_in_steps(refused, free) for part, refused, free in new]
        while steps:
            steps = [step for step in steps if next(step, MISSING) is not MISSING]
        for part, refused, free in new:
            if refused:
                return refused
            part.finish_packing(free)
        for part in self.parts:
            # Values are looked up here too, and then one partition has room in the cache, and all of them have not.
            refused = part.pack_all() if part.live and not part.is_new else {}
            if refused:
                return refused
        return {}

    def check_places(self, saved: Sequence[SavedChain]) -> None:
        """Raise `CorruptionError` for a key that is not in its own partition.

        The key would never be found again, and the same key could be set a second time.

        This is for content that was just restored. `saved` has what each partition was restored from.
        """
        for number, (part, known) in enumerate(zip(self.parts, saved, strict=True)):
            check_places(part.data, number, len(self.parts), known.chain, known.deltas)

    # ---- expiry ---------------------------------------------------------------------------------------------------

    def set_rule(self, after: int | None, now: int) -> None:
        """Let entries expire `after` microseconds after their time, from `now` on.

        With None they do not expire.
        """
        self._learn_outcome()
        rule = self.rule
        if rule is None and after is not None:
            self.parts = [ExpiringPartition.of(part, now) for part in self.parts]
            self.timed, self.rule = True, MapRule(after, now)
        elif rule is not None and after is None:
            self.parts = [without_times(part) for part in self.parts]
            self.rule = None
        elif rule is not None and after is not None and after != rule.after:
            if after > rule.after:
                # What is expired by the old rule would be alive by the new one.
                for part in self._expiring():
                    part.needs_snapshot = part.needs_snapshot or part.may_hold_expired
            self.rule = MapRule(after, rule.since)
        self.expire(now)

    def expire(self, now: int) -> None:
        """Forget the entries that are expired at a time.

        Entries that were set since the last save stay.
        """
        # Before: what a save that failed should have written is still to be saved.
        self._learn_outcome()
        if self.rule is not None:
            for part in self._expiring():
                part.expire(self.rule.limit(now), part.pack_all())

    def _expiring(self) -> Iterable[ExpiringPartition]:
        return (part for part in self.parts if isinstance(part, ExpiringPartition))

    # ---- saving ---------------------------------------------------------------------------------------------------

    def capture(
        self, chains: Mapping[int, Chain], max_chain: int, now: int | None = None
    ) -> tuple[ChangeSet | None, dict[Any, UnsupportedValueError]]:
        """Return the changes to write on top of `chains`, and errors by key.

        The errors are those of values that cannot be packed. Returns no changes and no errors if entries expire and
        there is no clock (`now`).
        """
        if self.rule is not None and now is None:
            return None, {}
        self._learn_outcome()
        refused = self._pack_all()
        if refused:
            return None, refused
        if self.rule is not None and now is not None:
            limit = self.rule.limit(now)
            for part in self._expiring():
                part.expire(limit, ())
                part.set_times(now)
                # A rollback takes the clock back, and leaves the chain as it is.
                part.needs_snapshot = part.needs_snapshot or part.would_revive(limit)
        each = [part.capture(number, chains.get(number, ()), max_chain) for number, part in enumerate(self.parts)]
        captured = ChangeSet(len(self.parts), [change for change in each if change is not None])
        if self.timed:
            captured.schema = encode_schema(self.rule)
        # From here on an interruption loses nothing: the capture is known, and the next one asks for its outcome.
        self.captured = captured
        for change in captured.changes:
            self.parts[change.partition].mark_captured(change)
        return captured, {}

    def _learn_outcome(self) -> None:
        """Ask the last capture for its outcome.

        If the capture was not committed, its changes have to be saved again. A second call after an interruption
        changes nothing more.
        """
        if self.captured is None:
            return
        dirty = [
            change.dirty for change in self.captured.changes
        ]  # before the outcome: `record_outcome` drops them after it
        outcome = self.captured.outcome
        for change, again in zip(self.captured.changes, dirty, strict=True):
            part = self.parts[change.partition]
            if outcome is None:
                part.mark_dirty_again(again, change.needs_snapshot)
            else:
                part.mark_saved(change, outcome.get(change.partition, ()))
        self.captured = None


CHANGES = frozenset(
    {
        Content.set_packed,
        Content.set_all_packed,
        Content.assign,
        Content.make_all,
        Content.setdefault,
        Content.delete,
        Content.pop,
        Content.popitem,
        Content.clear,
    }
)
"""The operations that change keys or values.

A guard that closes a state for changes refuses them.
"""
