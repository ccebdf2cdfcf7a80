"""One partition of a keyed state: packed bytes at rest, and the live objects that somebody may still change.

data     every key with its packed value, but for new keys that are fresh
live     values that were handed out or assigned, for as long as somebody else refers to them
seen     what rests in `data` for those of them that were packed before
fresh    those of them that were assigned since, and may be new. To look a key up in `data`, which is large and in
         nobody's cache, costs more than all else that is done about a change: it is done once, when it is packed
dirty    what changed since the last save, None where a key was deleted

Every key of `seen` and of `fresh` is live; so is every key whose value in `data` is not packed yet. A change takes a
key out of `seen`, is noted in `dirty`, made in `data`, and only then seen. Where a change stopped half way, `copied`
makes a partition that is in order: each live value is packed and compared once more, and what `dirty` says is looked up
in `data`.

One key stands in all of these dicts: of those that are equal the one that is in `data` (`manifests/equal_keys.py`).
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from itertools import islice
from operator import or_
from typing import Any, TypeVar

from pyspark_checkpointer.compaction import keyed_fold_start, room_for_delta
from pyspark_checkpointer.keyed.changes import PartitionChange
from pyspark_checkpointer.keyed.references import unheld
from pyspark_checkpointer.manifests.equal_keys import EXACT, find_key, is_zoned, kinds_of, may_differ, may_meet, overlay
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Chain
from pyspark_checkpointer.manifests.msgpack_values import UnsupportedValueError, pack, pack_some

TOGETHER = 256
"""Values that are packed, and keys that are looked up, together: they are in the processor's cache the second time."""

_UNPACKED = b""
"""Rests in the place of a new key's value until that is packed for the first time."""

_NUMBERS = frozenset({int, float})
_SIMPLE = EXACT | {int}

_MISSING: Any = object()

V = TypeVar("V")


class MapPartition:
    __slots__ = (
        "_deltas",
        "_least",
        "_limit",
        "_sharing",
        "chain",
        "data",
        "dirty",
        "fresh",
        "live",
        "mixed",
        "number",
        "seen",
        "whole",
    )

    def __init__(self, limit: int) -> None:
        """`limit` live objects at least are let be before those that nobody holds any more are put to rest."""
        self.data: dict[Any, bytes] = {}
        self.dirty: dict[Any, bytes | None] = {}
        self.live: dict[Any, Any] = {}
        self.seen: dict[Any, bytes] = {}
        self.fresh: dict[Any, None] = {}
        self._least = self._limit = limit
        self.chain: Chain = ()
        """What it was last saved in or restored from."""
        self._deltas: list[dict[Any, bytes | None]] = []
        """What the deltas of that chain hold."""
        self._sharing: set[PartitionChange] = set()
        self.mixed = False
        """Whether keys may be equal and not the same."""
        self.number: type | None = None
        """What those keys are that are numbers, int or float, unless they are mixed. It never becomes the other."""
        self.whole = False
        """Whether the next save writes a snapshot: under other rules of a zone, a delta would say another thing."""

    def restore(self, chain: Chain, data: dict[Any, bytes], deltas: list[dict[Any, bytes | None]]) -> None:
        self.chain, self.data, self._deltas = chain, data, deltas
        self.learn_keys()

    def learn_keys(self) -> None:
        """Take in what keys are here, after they were placed by somebody else."""
        groups: list[Mapping[Any, bytes | None]] = [self.data, *self._deltas]
        self.mixed = self.mixed or may_meet(groups)
        self.number = next(iter(kinds_of(groups) & _NUMBERS), None)

    def copied(self) -> "MapPartition":
        """Return a copy to change independently, in order even where a change of this one stopped half way."""
        other = MapPartition(self._least)
        other._limit, other.mixed, other.chain, other._deltas = self._limit, self.mixed, self.chain, self._deltas
        other.number = self.number
        other.data, other.live = dict(self.data), dict(self.live)
        other.fresh = dict.fromkeys(other.live)
        other.dirty = {other.standing(key): other.data.get(key) for key in self.dirty}
        # Whether a key gave way to another may not be noted yet.
        other.whole = self.whole or (self.mixed and any(map(is_zoned, self.dirty)))
        return other

    # ---- changes ----------------------------------------------------------------------------------------------------

    def standing(self, key: Any) -> Any:
        """Return the key that is there and equal to `key`, or else `key`."""
        kind = type(key)
        if kind in EXACT:
            return key
        if not self.mixed:
            if kind is int or kind is float:
                self.number = self.number or kind
                if kind is self.number and (key or kind is int):  # 0.0 may stand as -0.0
                    return key
            elif (kind is tuple and _SIMPLE.issuperset(map(type, key))) or not may_differ((key,)):
                return key
        self.mixed = True
        found = find_key(self.data, key, _MISSING)
        return find_key(self.fresh, key, key) if found is _MISSING else found

    def _standing(self, values: dict[Any, V]) -> dict[Any, V]:
        """Return values by the keys that are there and equal to theirs."""
        kinds = set(map(type, values))
        if kinds <= EXACT or (not self.mixed and kinds == {self.number} and (int in kinds or 0.0 not in values)):
            return values
        return {self.standing(key): value for key, value in values.items()}

    def assign(self, values: dict[Any, Any]) -> None:
        """Set values that may be changed from outside for as long as somebody refers to them."""
        if not EXACT.issuperset(map(type, values)):
            values = self._standing(values)
        self.live.update(values)
        self.fresh.update(dict.fromkeys(values))

    @property
    def crowded(self) -> bool:
        """Whether there are so many live objects that it is worth looking which of them nobody holds any more."""
        return len(self.live) > self._limit

    def hand_out(self, key: Any, packed: bytes, value: Any) -> None:
        """What rests as `packed` may be changed from outside from now on."""
        key = self.standing(key)
        self.seen[key] = packed
        self.live[key] = value
        if self.crowded:
            self.put_to_rest()

    def rest(self, key: Any, packed: bytes) -> None:
        """Set a value that nobody can change."""
        if type(key) not in EXACT:
            key = self.standing(key)
        data = self.data
        if data.get(key) != packed:
            if self._sharing:
                data = self._writable()
            if self.seen:
                self.seen.pop(key, None)
            if self.mixed:
                self._note_all({key: packed})
            else:
                self.dirty[key] = packed
            data[key] = packed
        if key in self.live:
            self._let_go([key])

    def rest_all(self, values: dict[Any, bytes]) -> None:
        """Set values that nobody can change."""
        values = self._standing(values)
        changed = _other_than(self.data, values)
        if changed:
            data = self._writable()
            for key in self.seen.keys() & changed.keys():
                del self.seen[key]
            self._note_all(changed)
            data.update(changed)
        if self.live and (live := [key for key in values if key in self.live]):
            self._let_go(live)

    def listed(self) -> dict[Any, bytes]:
        """`data` with every key that there is."""
        if self.fresh:
            data = self._writable()
            for key in self.fresh:
                data.setdefault(key, _UNPACKED)
            self.fresh = {}
        return self.data

    def estimate(self) -> int:
        """Return the number of keys without changing anything; during a change, about the number."""
        data = self.data
        return len(data) + sum(key not in data for key in list(self.fresh))

    def delete(self, key: Any, *, last: bool = False) -> bool:
        """Delete a key, which is the `last` one unless this was begun before. Whether it was there."""
        if type(key) not in EXACT:
            key = self.standing(key)
        if key not in (self.listed() if self.fresh else self.data):
            return False
        data = self._writable()
        if self.seen:
            self.seen.pop(key, None)
        if self.mixed:
            self._note_all({key: None})
        else:
            self.dirty[key] = None
        if last and next(reversed(data)) == key:
            data.popitem()  # unlike `del`, this leaves no empty place for the next look at the last key to pass
        else:
            del data[key]
        if key in self.live:
            self._let_go([key])
        return True

    def cleared(self) -> "MapPartition":
        """Return a partition that takes the place of this one and holds nothing."""
        other = MapPartition(self._least)
        other.chain, other._deltas, other.mixed, other.whole = self.chain, self._deltas, self.mixed, self.whole
        other.number = self.number
        other.dirty = dict(self.dirty)
        other._note_all(dict.fromkeys(self.listed()))
        return other

    def _writable(self) -> dict[Any, bytes]:
        """`data` to change, a copy where a capture still reads the old one."""
        if self._sharing:
            self.data, self._sharing = dict(self.data), set()
        return self.data

    def _note_all(self, changes: Mapping[Any, bytes | None]) -> None:
        """Take note of changes of keys that stand, or that did not stand before."""
        if not self.mixed:
            self.dirty.update(changes)
        elif overlay(self.dirty, changes):
            # A delta cannot say that one was deleted and the other added: under other rules both would be there.
            self.whole = True

    # ---- live objects ------------------------------------------------------------------------------------------------

    def pack_all(self) -> dict[Any, UnsupportedValueError]:
        """Take in what every live value has become, and let go of those that nobody else holds.

        Returns those that cannot be packed; where there are any, nothing is let go of.
        """
        refused = self._pack(self.live.items())
        if not refused:
            self.fresh = {}  # all of them are in `data` now
            self._let_go(unheld(self.live))
        return refused

    def put_to_rest(self) -> None:
        """Let go of the live values that nobody else holds, unless they cannot be packed."""
        keys = unheld(self.live)
        refused = self._pack((key, self.live[key]) for key in keys)
        self._let_go([key for key in keys if key not in refused])
        self._limit = max(self._least, 2 * len(self.live))

    def _let_go(self, keys: list[Any]) -> None:
        """What they are is in `data` by now."""
        if len(keys) == len(self.live):
            self.live, self.seen, self.fresh = {}, {}, {}
            return
        for key in keys:
            self.fresh.pop(key, None)
            self.seen.pop(key, None)
            del self.live[key]
        if len(keys) > len(self.live):  # else who goes through them still passes the places of those that are gone
            self.live, self.seen, self.fresh = dict(self.live), dict(self.seen), dict(self.fresh)

    def _pack(self, values: Iterable[tuple[Any, Any]]) -> dict[Any, UnsupportedValueError]:
        """Take in what live values have become. Returns what could not be packed."""
        refused: dict[Any, UnsupportedValueError] = {}
        for packed in _packed(values, refused):
            changed = _other_than(self.seen, packed)
            if not changed:
                continue
            changed = _other_than(self.data, changed)
            if changed:
                data = self._writable()
                for key in self.seen.keys() & changed.keys():
                    del self.seen[key]
                self._note_all(changed)
                data.update(changed)
            self.seen.update(packed)
        return refused

    # ---- saving ------------------------------------------------------------------------------------------------------

    def capture(self, number: int, chain: Chain, max_chain: int) -> PartitionChange | None:
        """What has to be written on top of `chain`: a delta where it is the one it was last saved in, a snapshot, or
        nothing. Later changes do not reach what is returned; what changed is `dirty` still, until it is `taken`."""
        dirty = self.dirty
        known = bool(chain) and chain == self.chain and not self.whole
        if (known and not dirty) or not (chain or self.data):
            return None
        if known:
            sizes = [artifact.raw_size for artifact in chain[1:]]
            room = room_for_delta(chain[0].raw_size, sizes)
            size, values = 16 * len(dirty), iter(dirty.values())
            while size <= room and (some := list(islice(values, 1024))):  # no further than is needed to know
                size += sum(map(len, filter(None, some)))
            if size <= room:
                first = keyed_fold_start(sizes, size, max_chain)
                records = self._folded(self._deltas[first:])
                if records is not None:
                    return PartitionChange(
                        number, DELTA, 1 + first, records, size + sum(sizes[first:]), dirty, self._unshare
                    )
        sample = [len(value) for value in islice(self.data.values(), 2048)]
        size = len(self.data) * (16 + sum(sample) // max(len(sample), 1))
        change = PartitionChange(number, SNAPSHOT, 0, self.data, size, dirty, self._unshare, self.whole)
        self._sharing.add(change)
        return change

    def _folded(self, deltas: list[dict[Any, bytes | None]]) -> dict[Any, bytes | None] | None:
        """Return what these deltas and the changes since make together; None where one delta cannot say it."""
        if not deltas:
            return self.dirty
        if not self.mixed:
            return reduce(or_, [*deltas, self.dirty])
        records: dict[Any, bytes | None] = {}
        return None if any(overlay(records, delta) for delta in (*deltas, self.dirty)) else records

    def taken(self, change: PartitionChange) -> None:
        """What changed is in a capture, which gives it back unless it is committed."""
        if self.dirty is change.dirty:
            self.dirty, self.whole = {}, False

    def saved(self, change: PartitionChange, chain: Chain) -> None:
        """A capture was committed, in this chain."""
        self.chain = chain
        self._deltas = [*self._deltas[: change.keep - 1], change.records] if change.kind == DELTA else []

    def change_again(self, dirty: dict[Any, bytes | None]) -> None:
        """A capture was not committed: what changed before it is a change still."""
        if not self.mixed:
            self.dirty = dirty | self.dirty
            return
        dirty = dict(dirty)
        if overlay(dirty, self.dirty):
            self.whole = True
        self.dirty = dirty

    def _unshare(self, change: PartitionChange) -> None:
        self._sharing.discard(change)


def _other_than(known: dict[Any, bytes], packed: dict[Any, bytes]) -> dict[Any, bytes]:
    """Return what of `packed` is not known so."""
    if not known:
        return packed
    before = list(map(known.get, packed))
    if before == list(packed.values()):
        return {}
    return {key: now for (key, now), old in zip(packed.items(), before, strict=True) if now != old}


def _packed(values: Iterable[tuple[Any, Any]], refused: dict[Any, UnsupportedValueError]) -> Iterator[dict[Any, bytes]]:
    """Some keys with their values packed, until all are through; why one cannot be stored is added to `refused`."""
    left = iter(values)
    while some := dict(islice(left, TOGETHER)):
        keys = list(some)
        done = 0
        while rest := keys[done:]:
            try:
                packed = pack_some(list(some.values())[done:])
            except UnsupportedValueError:
                one_by_one = {}
                for key in rest:
                    try:
                        one_by_one[key] = pack(some[key])
                    except UnsupportedValueError as error:
                        refused[key] = error
                yield one_by_one
                break
            yield dict(zip(rest, packed, strict=False))
            done += len(packed)
