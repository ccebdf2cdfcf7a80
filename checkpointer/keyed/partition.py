"""Hold one partition of a keyed state: packed values, live objects, changes.

Callers may change the live objects.

Its content is in four dicts and a list, by key:

    data         packed value   every key, except new ones that are not packed yet (`unlisted`)
    live         object         values that were handed out or assigned, for as long as somebody else may hold them
    last_packed  packed value   the part of `data` that belongs to live keys, once they were packed
    unlisted     (a list)       live keys that were assigned since all were packed last; also keys that are in `data`
    dirty        packed value   what changed since the last save; None where the key was deleted

Invariants, whenever no change is running:

- Each key of `last_packed` is in `live`. Each key of `live` is in `data` or in `unlisted`. Each key of `unlisted` is in
  `live` or in `data`.
- `last_packed[key] == data[key]`.
- `data[key]` is `_UNPACKED` only while the key is live and was never packed. For any other key of `dirty`, `dirty[key]`
  is `data.get(key)`.
- If keys are equal and not the same, each dict and the list have the one that is in `data`
  (`manifests/equal_keys.py`).
- While `is_new`, `dirty` may lack changes: the first save writes a snapshot.
- `data` is not changed in place while somebody reads it without the lock, which is while `_readers` is not empty.

A change takes its key out of `last_packed`, notes it in `dirty`, makes it in `data`, and enters it in `last_packed`
again. If a change was interrupted at any of these steps, `copied` restores the invariants: every live value is packed
and compared again, and the values of `dirty` are looked up in `data`.

`last_packed` and `unlisted` save time. `data` is large and not in a cache of the processor, so a look-up there costs
more than the rest of a change. A changed live value is looked up there once, when it is packed.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from pyspark_checkpointer.compaction import has_shrunk, keyed_delta
from pyspark_checkpointer.keyed.changes import PartitionChange
from pyspark_checkpointer.keyed.key_kinds import INTEGERS, MIXED, NO_NUMBERS, SIMPLE, KeyKinds
from pyspark_checkpointer.keyed.packing import differing, pack_batches
from pyspark_checkpointer.manifests.equal_keys import EXACT, find_key, is_zoned, kinds_of, overlay
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Chain
from pyspark_checkpointer.manifests.msgpack_checks import UnsupportedValueError

RECORD_OVERHEAD = 16
"""Bytes that a key and the marks of a record take in estimates of sizes."""

SIZE_SAMPLE = 2048
"""Values whose sizes are measured to estimate the size of a snapshot."""

MIN_UNLISTED = 256
"""`unlisted` is made anew when it has more keys than twice those of `live` plus this number."""

LIVE_SHARE = 4
"""`last_packed` is used while `data` has at least this number of keys for each live one.

With more live keys it stays empty, because it would be about as large as `data`.
"""

_UNPACKED = b""
"""Stands for the value of a new key until that is packed for the first time."""

_MISSING: Any = object()

V = TypeVar("V")

Delta = dict[Any, bytes | None]
"""Packed values by key; None where the key was deleted."""


@dataclass(frozen=True, slots=True)
class SavedChain:
    """The chain that a partition was last saved in or restored from.

    It comes with the records of its deltas.
    """

    chain: Chain = ()
    deltas: Sequence[Delta] = ()


NEVER_SAVED = SavedChain()


class MapPartition:
    """A part of a keyed state.

    The docstring of the module describes its dicts and its invariants.
    """

    __slots__ = (
        "_least_limit",
        "_limit",
        "_readers",
        "data",
        "dirty",
        "has_deletions",
        "is_new",
        "key_kinds",
        "last_packed",
        "live",
        "needs_snapshot",
        "saved",
        "unlisted",
    )

    def __init__(self, limit: int) -> None:
        """Make an empty partition.

        It keeps at least `limit` live objects before it checks which of them are unheld.
        """
        self.data: dict[Any, bytes] = {}
        self.live: dict[Any, Any] = {}
        self.last_packed: dict[Any, bytes] = {}
        self.unlisted: list[Any] = []
        self.dirty: Delta = {}
        self.has_deletions = False
        """True if `dirty` may have deletions. It is noted before they are."""
        self.is_new = True
        """True until the first capture, unless the partition was restored or its keys came from other partitions.

        The first save writes a snapshot and no delta, so earlier changes need not be noted.
        """
        self.needs_snapshot = False
        """True if a delta of `dirty` would not bring readers to the content of this partition.

        - A key gave way to one that is equal to it by the rules of a time zone. Under other rules a reader of the delta
          would have both.
        - The chain may hold entries that expired by a rule which no longer holds. A reader would have them again.
        - A snapshot was encoded and not committed. It gave up its changes, so `dirty` has only those since.
        """
        self.saved = NEVER_SAVED
        self.key_kinds = NO_NUMBERS
        self._readers: set[object] = set()
        """Readers of `data` that do not take the lock, such as a captured snapshot."""
        self._least_limit = self._limit = limit

    def restore(self, saved: SavedChain, data: dict[Any, bytes], types: Set[type] | None = None) -> None:
        """Take over the content of a chain in this new partition.

        `types` are the types of the keys, if they are known.
        """
        self.saved, self.data, self.is_new = saved, data, False
        self.learn_keys(types)

    def learn_keys(self, types: Set[type] | None = None) -> None:
        """Find the kinds of the keys, after somebody else placed them here.

        `types` are the types of the keys, if they are known.
        """
        if self.key_kinds is not MIXED:
            groups: list[Mapping[Any, Any]] = [self.data, *self.saved.deltas]
            self.key_kinds = KeyKinds.of(groups, kinds_of(groups) if types is None else types)

    def copied(self) -> "MapPartition":
        """Return a consistent copy that can be changed independently.

        The copy is consistent even if a change of this partition stopped half way.
        """
        other = type(self)(self._least_limit)
        other._limit, other.key_kinds, other.saved = self._limit, self.key_kinds, self.saved
        other.data, other.live = dict(self.data), dict(self.live)
        other.unlisted, other.is_new = list(other.live), self.is_new
        other.dirty = {other.stored_key(key): other.data.get(key) for key in self.dirty}
        other.has_deletions = True  # also of a key that was noted and not set yet
        # Whether a key gave way to another may not be noted yet.
        other.needs_snapshot = self.needs_snapshot or (self.key_kinds is MIXED and any(map(is_zoned, self.dirty)))
        return other

    # ---- keys -------------------------------------------------------------------------------------------------------

    def stored_key(self, key: Any) -> Any:
        """Return the key that is stored here and equal to `key`, or else `key`."""
        kind = type(key)
        if kind in EXACT:
            return key
        if self.key_kinds is not MIXED:
            # The usual keys are told apart here, without a call.
            if (kind is int and self.key_kinds is INTEGERS) or (kind is tuple and SIMPLE.issuperset(map(type, key))):
                return key
            # Noted before the key is stored: if that never happens, the kinds are only wider than they need to be.
            self.key_kinds = self.key_kinds.with_key(key)
            if self.key_kinds is not MIXED:
                return key
        found = find_key(self.data, key, _MISSING)
        return find_key(self.live, key, key) if found is _MISSING else found

    def _by_stored_key(self, values: dict[Any, V]) -> dict[Any, V]:
        """Return values by the keys that are stored here and equal to theirs."""
        if self.key_kinds.are_unambiguous(values):
            return values
        return {self.stored_key(key): value for key, value in values.items()}

    def contains(self, key: Any) -> bool:
        """Return whether a key is there."""
        return key in self.live or key in self.data

    def listed(self) -> dict[Any, bytes]:
        """Return `data` with every key in it, new ones too."""
        if self.unlisted:
            data = self._writable()
            for key in self.unlisted:
                data.setdefault(key, _UNPACKED)
            self.unlisted = []
        return self.data

    def estimate(self) -> int:
        """Return the number of keys without changing anything.

        During a change the number is approximate.
        """
        data = self.data
        return len(data) + sum(key not in data for key in {*self.unlisted})

    # ---- changes ----------------------------------------------------------------------------------------------------

    def assign(self, values: dict[Any, Any]) -> None:
        """Set values that callers may still change.

        They may do so for as long as somebody else refers to them.
        """
        if not EXACT.issuperset(map(type, values)):
            values = self._by_stored_key(values)
        # An interruption between the two lines loses no key: `copied` takes every live key as unlisted.
        self.live.update(values)
        self.unlisted += values
        # The same keys may be assigned again and again.
        if len(self.unlisted) > 2 * len(self.live) + MIN_UNLISTED:
            self.unlisted = list(self.live)

    def hand_out(self, key: Any, packed: bytes, value: Any) -> None:
        """Keep a value that was unpacked from `packed` as a live one.

        From now on the caller may change it.
        """
        if type(key) not in EXACT:
            key = self.stored_key(key)
        self.last_packed[key] = packed
        self.live[key] = value
        if len(self.live) > self._limit:  # `crowded`, without one more call for each value
            self.drop_unheld()

    def set_packed(self, key: Any, packed: bytes) -> None:
        """Set a value that nobody can change."""
        if type(key) not in EXACT:
            key = self.stored_key(key)
        data = self.data
        if data.get(key) != packed:
            if self._readers:
                data = self._writable()
            if self.last_packed:
                self.last_packed.pop(key, None)
            if self.is_new:
                pass  # as in `_mark_dirty`
            elif self.key_kinds is MIXED:
                self._mark_dirty({key: packed})
            else:
                self.dirty[key] = packed
            data[key] = packed
        if key in self.live:
            self._drop_live([key])

    def set_all_packed(self, values: dict[Any, bytes]) -> None:
        """Set values that nobody can change."""
        values = self._by_stored_key(values)
        self._set_differing(differing(self.data, values, list(values.values())))
        if self.live and (live := [key for key in values if key in self.live]):
            self._drop_live(live)

    def _set_differing(self, changed: dict[Any, bytes]) -> None:
        """Set values of which each differs from the one in `data`."""
        if not changed:
            return
        data = self._writable()
        if self.last_packed:
            for key in self.last_packed.keys() & changed.keys():
                del self.last_packed[key]
        # Dirty first: a key that is noted without a change is harmless, while a change that is not noted would be
        # missing in the next delta.
        self._mark_dirty(changed)
        data.update(changed)

    def delete(self, key: Any, *, last: bool = False) -> None:
        """Delete a key if it is there.

        `last` says that the key is the last one, unless an interrupted run began this before.
        """
        if type(key) not in EXACT:
            key = self.stored_key(key)
        if key not in (self.listed() if self.unlisted else self.data):
            return
        data = self._writable()
        self.has_deletions = True
        if self.last_packed:
            self.last_packed.pop(key, None)
        if self.is_new:
            pass  # as in `_mark_dirty`
        elif self.key_kinds is MIXED:
            self._mark_dirty({key: None})
        else:
            self.dirty[key] = None
        if last and next(reversed(data)) == key:
            data.popitem()  # unlike `del`, this leaves no empty place for the next look at the last key to pass
        else:
            del data[key]
        if key in self.live:
            self._drop_live([key])

    def cleared(self) -> "MapPartition":
        """Return an empty partition to take the place of this one, with each key deleted."""
        other = type(self)(self._least_limit)
        other.saved, other.key_kinds, other.needs_snapshot = self.saved, self.key_kinds, self.needs_snapshot
        other.dirty, other.is_new, other.has_deletions = dict(self.dirty), self.is_new, True
        other._mark_dirty(dict.fromkeys(self.listed()))
        return other

    def _writable(self) -> dict[Any, bytes]:
        """Return `data` to be changed in place.

        If somebody still reads the old dict, `data` is copied first.
        """
        if self._readers:
            # The readers keep the old dict, which nobody changes any more, so that they need no lock.
            self.data, self._readers = dict(self.data), set()
        return self.data

    def share(self, reader: object) -> dict[Any, bytes]:
        """Return `data` to a reader. It stays as it is until `unshare`."""
        self._readers.add(reader)
        return self.data

    def unshare(self, reader: object) -> None:
        """Note that a reader has ended.

        `data` may be changed in place again if nobody else reads it.
        """
        self._readers.discard(reader)

    def _mark_dirty(self, changes: Mapping[Any, bytes | None]) -> None:
        """Note changes of stored keys, or of keys that are about to be stored."""
        if self.is_new:
            return
        if self.key_kinds is not MIXED:
            self.dirty.update(changes)
        elif overlay(self.dirty, changes):
            # A delta cannot say that one was deleted and the other added: under other rules both would be there.
            self.needs_snapshot = True

    # ---- live objects ------------------------------------------------------------------------------------------------

    @property
    def crowded(self) -> bool:
        """Return whether there are enough live objects to look for unheld ones."""
        return len(self.live) > self._limit

    def pack_all(self) -> dict[Any, UnsupportedValueError]:
        """Pack every live value, note the changes, and drop unheld values.

        Unheld values are those that nobody else holds. Returns the errors of values that cannot be packed, by key. If
        there are any, nothing is dropped.
        """
        refused, free = dict[Any, UnsupportedValueError](), list[Any]()
        for _ in self.pack_in_steps(refused, free):
            pass
        # Otherwise all live values stay, so that the user can mend the one that was refused, and save again.
        if not refused:
            self.finish_packing(free)
        return refused

    def finish_packing(self, free: list[Any]) -> None:
        """Drop the unheld values once all live values are packed.

        `pack_in_steps` found their keys.
        """
        self.unlisted = []  # all of them are in `data` now
        self._drop_live(free)

    def drop_unheld(self) -> None:
        """Drop the live values that nobody else holds, once they are packed.

        Values that cannot be packed stay.
        """
        refused, free = dict[Any, UnsupportedValueError](), list[Any]()
        for _ in self.pack_in_steps(refused, free, only_free=True):
            pass
        self._drop_live([key for key in free if key not in refused])
        # Where most values are held, the next look waits until there are twice as many, so each value is looked at a
        # few times only.
        self._limit = max(self._least_limit, 2 * len(self.live))

    def _drop_live(self, keys: list[Any]) -> None:
        """Forget the objects of live keys.

        The values of these keys are in `data`, or the keys are deleted.
        """
        if len(keys) == len(self.live):
            self.live, self.last_packed, self.unlisted = {}, {}, []
            return
        live, last_packed = self.live, self.last_packed
        for key in keys:
            last_packed.pop(key, None)
            del live[key]
        # A dict keeps the places of deleted keys, which every walk through it passes. A copy does not have them.
        if len(keys) > len(live):
            self.live, self.last_packed = dict(live), dict(last_packed)

    def pack_in_steps(
        self, refused: dict[Any, UnsupportedValueError], free: list[Any], *, only_free: bool = False
    ) -> Iterator[None]:
        """Pack live values and note the changes, one batch in each step.

        With `only_free`, pack only values that nobody else holds. Errors of values that cannot be packed are added to
        `refused`, by key. The keys of values that nobody else holds are added to `free`. Nothing else may use the
        partition until the last step.
        """
        if self.is_new and not self.data and not only_free:
            yield from self._pack_first(refused, free)
            return
        batches = pack_batches(self.live, refused, free, only_free=only_free)
        if self.is_new or LIVE_SHARE * len(self.live) > len(self.data):
            self.last_packed = {}
            for keys, packed in batches:
                if self.is_new:
                    self._writable().update(zip(keys, packed, strict=True))  # what changed need not be known
                else:
                    self._set_differing(differing(self.data, keys, packed))
                yield
            return
        known, new = self.last_packed, dict[Any, bytes]()
        for keys, packed in batches:
            # What is as it was packed last is not looked up in `data`, which is large.
            changed = differing(known, keys, packed)
            if changed:
                self._set_differing(differing(self.data, changed, list(changed.values())))
                # While it is empty, nothing has to be looked up there for the next batch, whose keys are others.
                (known or new).update(changed)
            yield
        known.update(new)

    def _pack_first(self, refused: dict[Any, UnsupportedValueError], free: list[Any]) -> Iterator[None]:
        """Pack all values for the first time, as `pack_in_steps` does.

        A save packs the partitions in turn, one batch each, and the cache has no room for the dicts of all of them. So
        a dict is made once its partition is packed. To copy `live` and replace the values takes half of the time of
        making it key by key.
        """
        values: list[bytes] = []
        for _, packed in pack_batches(self.live, refused, free):
            values += packed
            yield
        # If one was refused, there are fewer values than keys.
        if not refused:
            data: dict[Any, Any] = dict(self.live)
            data.update(zip(self.live, values, strict=True))
            self.data, self._readers = data, set()

    # ---- saving ------------------------------------------------------------------------------------------------------

    def capture(self, number: int, chain: Chain, max_chain: int) -> PartitionChange | None:
        """Return what to write on top of `chain`; None if that is nothing.

        `chain` is the operator's chain of partition `number`.

        The result can be a delta only if `chain` is the chain that this partition was last saved in or restored from.
        It is a snapshot also if no delta can say what changed (`needs_snapshot`), or if `keyed_delta` decides so.

        Later changes do not change the result. The changes stay in `dirty` until `mark_captured`.
        """
        self.is_new = False
        known = bool(chain) and chain == self.saved.chain and not self.needs_snapshot
        # What expired is noted nowhere. It would stay in the chain for ever if nothing else changes.
        if known and not self.dirty and not has_shrunk(chain[0].records, len(self.data)):
            return None
        # A partition that is empty and was never saved needs no artifact, while one that was emptied does.
        if not (chain or self.data):
            return None
        delta = self._capture_delta(number, chain, max_chain) if known else None
        return self._capture_snapshot(number) if delta is None else delta

    def _capture_delta(self, number: int, chain: Chain, max_chain: int) -> PartitionChange | None:
        """Return the changes as one delta; None where a snapshot has to be written.

        The delta is folded with the newest ones.
        """
        dirty = self.dirty
        sizes = [artifact.raw_size for artifact in chain[1:]]
        decided = keyed_delta(
            chain[0].raw_size,
            sizes,
            _sizes_of_parts(dirty),
            max_chain,
            records=chain[0].records,
            changed=len(dirty),
            keys=len(self.data),
            whole=_sizes_of_parts(self.data) if self.has_deletions else None,
        )
        if decided is None:
            return None
        records = self._folded(self.saved.deltas[decided.first :])
        if records is None:
            return None
        return PartitionChange(number, DELTA, 1 + decided.first, records, decided.size, dirty, self._readers)

    def _capture_snapshot(self, number: int) -> PartitionChange:
        """Return all of the partition without copying it.

        `data` is copied if it is changed before the snapshot is encoded.
        """
        sample = [len(value) for value in islice(self.data.values(), SIZE_SAMPLE)]
        size = len(self.data) * (RECORD_OVERHEAD + sum(sample) // max(len(sample), 1))
        change = PartitionChange(
            number,
            SNAPSHOT,
            0,
            self.data,
            size,
            self.dirty,
            self._readers,
            needs_snapshot=self.needs_snapshot,
            repeats=True,
        )
        self.share(change)
        return change

    def _folded(self, deltas: Sequence[Delta]) -> Delta | None:
        """Return these deltas and the changes since as one delta.

        Returns None if one delta cannot hold them.
        """
        newest = self._records_of(self.dirty)
        if not deltas:
            return newest
        if self.key_kinds is not MIXED:
            # Into one dict: a union of two at a time would copy the oldest entries again and again.
            folded = dict(deltas[0])
            for delta in (*deltas[1:], newest):
                folded.update(delta)
            return folded
        # One delta cannot delete a key and set another key that is equal to it in its time zone. So deltas with such
        # keys stay apart, as in `_mark_dirty`.
        records: Delta = {}
        return None if any(overlay(records, delta) for delta in (*deltas, newest)) else records

    def _records_of(self, values: Delta) -> Delta:
        """Return packed values as they are stored."""
        return values

    def mark_captured(self, change: PartitionChange) -> None:
        """Leave the changes to a capture.

        If the capture is not committed, it gives the changes back to `mark_dirty_again`.
        """
        if self.dirty is change.dirty:
            self.dirty, self.has_deletions, self.needs_snapshot = {}, False, False

    def mark_saved(self, change: PartitionChange, chain: Chain) -> None:
        """Note that a capture was committed in `chain`."""
        deltas = [*self.saved.deltas[: change.keep - 1], change.records] if change.kind == DELTA else []
        self.saved = SavedChain(chain, deltas)

    def mark_dirty_again(self, dirty: Delta, needs_snapshot: bool) -> None:
        """Take back the changes of a capture that was not committed.

        Changes made since then take precedence over them.
        """
        self.has_deletions = True
        if self.key_kinds is not MIXED:
            self.dirty = dirty | self.dirty
        else:
            dirty = dict(dirty)
            if overlay(dirty, self.dirty):
                self.needs_snapshot = True
            self.dirty = dirty
        self.needs_snapshot = self.needs_snapshot or needs_snapshot


def _sizes_of_parts(records: Mapping[Any, bytes | None]) -> Iterator[int]:
    """Yield numbers that add up to the size of a delta or snapshot of these records."""
    yield RECORD_OVERHEAD * len(records)
    values = iter(records.values())
    while some := list(islice(values, 1024)):
        yield sum(map(len, filter(None, some)))
