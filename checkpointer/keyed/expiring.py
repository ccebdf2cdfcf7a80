"""Hold one partition of a keyed state whose entries expire.

The time of an entry is the clock of the checkpoint that it was set for last. So all that a batch sets has one time,
whenever in the batch the clock was moved, and times are given when changes are captured. Until then `touched` and
`dirty` tell which keys were set.

An entry that expires is forgotten here, and noted nowhere: readers leave it out by its time, and its bytes go with the
next snapshot. That one is due, also without a change, once less than half of the last one is left (`has_shrunk`).
`buried` tells that the chain may hold such entries. Where another rule, or the earlier clock of a rollback, would bring
them back, a snapshot is written instead of a delta.

To expire costs what is due, and not what is there: `times` begins with the oldest entry.
"""

from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile
from operator import itemgetter
from types import MappingProxyType
from typing import Any

from pyspark_checkpointer.keyed.changes import PartitionChange
from pyspark_checkpointer.keyed.key_kinds import MIXED
from pyspark_checkpointer.keyed.partition import Delta, MapPartition
from pyspark_checkpointer.manifests.equal_keys import holds_time, is_zoned
from pyspark_checkpointer.manifests.map_expiry import with_time
from pyspark_checkpointer.manifests.model import SNAPSHOT, Chain

_NEVER = -(1 << 63)


class ExpiringPartition(MapPartition):
    """A part of a keyed state whose entries expire."""

    __slots__ = (
        "_has_untimed",
        "_is_in_order",
        "buried",
        "buried_at_capture",
        "has_buried_zoned",
        "since",
        "times",
        "touched",
    )

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.since = _NEVER
        self.times: dict[Any, int] = {}
        """Times of stored keys, the oldest first if `_is_in_order`; a key that is not there has the time `since`."""
        self._is_in_order = True
        self._has_untimed = True
        """False if each key without a time was set since the last save, so that the next save gives it one."""
        self.touched: dict[Any, None] = {}
        """Keys that were set since the last capture, also to the value that they had."""
        self.buried = _NEVER
        """The latest limit by which entries were forgotten that the chain may still hold.

        `_NEVER` if the chain holds none.
        """
        self.buried_at_capture = _NEVER
        """`buried` at the last capture of a snapshot, until its outcome is known."""
        self.has_buried_zoned = False
        """True if one of the forgotten keys that the chain may still hold is zoned."""

    @classmethod
    def of(cls, part: MapPartition, since: int, times: Mapping[Any, int] = MappingProxyType({})) -> "ExpiringPartition":
        """Return a copy of a partition whose entries expire.

        They have these times, or count from `since`.
        """
        other = cls(0)
        _take(other, part)
        if part.is_new:
            # Here each change has to be noted: it gives an entry its time.
            other.is_new, other.dirty = False, {**part.data}
        other.since, other.times, other._is_in_order = since, dict(times), not times
        return other

    def without_times(self) -> MapPartition:
        """Return a copy whose entries do not expire. Expired entries do not come back."""
        other = MapPartition(0)
        _take(other, self)
        other.needs_snapshot = other.needs_snapshot or self.may_hold_expired
        return other

    @property
    def may_hold_expired(self) -> bool:
        """Return whether the chain may hold entries that expired."""
        return self.would_revive(_NEVER)

    def would_revive(self, limit: int) -> bool:
        """Return whether a reader with an earlier `limit` may find more entries.

        These are forgotten here, and the chain may still hold them.
        """
        return max(self.buried, self.buried_at_capture) > limit

    def copied(self) -> "ExpiringPartition":
        other = super().copied()
        assert isinstance(other, ExpiringPartition)
        other.since, other.times, other.touched = self.since, dict(self.times), dict(self.touched)
        other._is_in_order, other._has_untimed = self._is_in_order, self._has_untimed
        other.buried, other.buried_at_capture = self.buried, self.buried_at_capture
        other.has_buried_zoned = self.has_buried_zoned
        return other

    def cleared(self) -> "ExpiringPartition":
        other = super().cleared()
        assert isinstance(other, ExpiringPartition)
        other.since, other.times, other._is_in_order = self.since, dict(self.times), self._is_in_order
        other.buried, other.buried_at_capture = self.buried, self.buried_at_capture
        other.has_buried_zoned = self.has_buried_zoned
        return other

    # ---- changes ----------------------------------------------------------------------------------------------------

    def assign(self, values: dict[Any, Any]) -> None:
        super().assign(values)
        self.touched.update(dict.fromkeys(values))

    def set_packed(self, key: Any, packed: bytes) -> None:
        super().set_packed(key, packed)
        self.touched[key] = None

    def set_all_packed(self, values: dict[Any, bytes]) -> None:
        super().set_all_packed(values)
        self.touched.update(dict.fromkeys(values))

    def expire(self, limit: int, refused: Collection[Any]) -> None:
        """Forget the entries with a time of at most `limit`, once live values are packed.

        Entries that were set since the last save stay. Refused values stay too, since they are still to be set.
        """
        if not self._is_in_order:
            self.times, self._is_in_order = dict(sorted(self.times.items(), key=itemgetter(1))), True
        times, dirty, touched = self.times, self.dirty, self.touched
        # All of them have one time. Once it is due, one look at all keys forgets them.
        untimed = (
            [key for key in self.listed() if key not in times] if self._has_untimed and self.since <= limit else []
        )
        old = (*untimed, *takewhile(lambda key: times[key] <= limit, times))
        due = [key for key in old if key not in dirty and key not in touched and key not in refused]
        if due:
            self.listed()  # a key that goes must not stay in `unlisted`
            # First, and the objects before the values: a copy that completes this takes live keys for new ones.
            self.bury(due, limit)
            if live := [key for key in due if key in self.live]:
                self._drop_live(live)
            data = self._writable()
            for key in due:
                data.pop(key, None)
                times.pop(key, None)
        if self.since <= limit and not refused:
            self._has_untimed = False

    def bury(self, keys: Iterable[Any], limit: int) -> None:
        """Note that the chain may hold these keys, which were forgotten by `limit`."""
        self.has_buried_zoned = self.has_buried_zoned or (self.key_kinds is MIXED and any(map(is_zoned, keys)))
        self.buried = max(self.buried, limit)

    def set_times(self, now: int) -> None:
        """Set the time of entries set since the last save, once live values are packed."""
        for key in self.touched:
            if key in self.data and key not in self.dirty:
                key = self.stored_key(key)
                self._mark_dirty({key: self.data[key]})
        self.touched = {}
        times = self.times
        # The clock may have gone back: by a rollback.
        self._is_in_order = self._is_in_order and next(reversed(times.values()), now) <= now
        for key, value in self.dirty.items():
            times.pop(key, None)
            if value is not None:
                times[key] = now

    # ---- saving -----------------------------------------------------------------------------------------------------

    def _records_of(self, values: Delta) -> Delta:
        times, since = self.times, self.since
        return {k: None if value is None else with_time(value, times.get(k, since)) for k, value in values.items()}

    def _capture_delta(self, number: int, chain: Chain, max_chain: int) -> PartitionChange | None:
        # A reader of the chain still has a forgotten key. If a new key is equal to it by the rules of a zone, no delta
        # can replace it: under other rules both would be there.
        if self.key_kinds is MIXED and self.may_hold_expired:
            may_meet = holds_time if self.has_buried_zoned else is_zoned
            if any(map(may_meet, self.dirty)):
                return None
        return super()._capture_delta(number, chain, max_chain)

    def _capture_snapshot(self, number: int) -> PartitionChange:
        change = super()._capture_snapshot(number)
        # Records of its own, so that nobody has to leave `data` alone until they are written.
        change.records = self._records_of(self.data)  # type: ignore[arg-type]  # a dict is no dict of more types
        # If it is not committed, these get the time of the next save.
        change.repeats = False
        self.unshare(change)
        return change

    def mark_captured(self, change: PartitionChange) -> None:
        super().mark_captured(change)
        if change.kind == SNAPSHOT:
            self.buried_at_capture, self.buried = max(self.buried, self.buried_at_capture), _NEVER

    def mark_saved(self, change: PartitionChange, chain: Chain) -> None:
        super().mark_saved(change, chain)
        if change.kind == SNAPSHOT:
            self.buried_at_capture, self.has_buried_zoned = _NEVER, False

    def mark_dirty_again(self, dirty: Delta, needs_snapshot: bool) -> None:
        super().mark_dirty_again(dirty, needs_snapshot)
        self.buried, self.buried_at_capture = max(self.buried, self.buried_at_capture), _NEVER


def without_times(part: MapPartition) -> MapPartition:
    """Return a partition whose entries do not expire."""
    return part.without_times() if isinstance(part, ExpiringPartition) else part


def _take(other: MapPartition, part: MapPartition) -> None:
    """Take over the content of a consistent copy of `part`."""
    copy = part.copied()
    for name in MapPartition.__slots__:
        setattr(other, name, getattr(copy, name))
