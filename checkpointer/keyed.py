"""A mapping that knows what changed.

Every value rests as its packed bytes, which nobody can change from outside. A value that was handed out or assigned is
also kept as the live object for as long as somebody else holds a reference to it or to something inside it; before a
save the live objects are packed again and compared. So `state[k]["n"] += 1` is a change, whatever path it took, and a
checkpoint that is being written holds bytes that no later change can reach.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from checkpointer.codecs.fold import fold_start
from checkpointer.codecs.keyed_codec import Records, partition_of
from checkpointer.codecs.values import UnsupportedValueError, pack, pack_some, unpack, unpack_some
from checkpointer.errors import IllegalArgumentError
from checkpointer.references import is_held
from manifests.model import DELTA, SNAPSHOT, Chain, Kind

PARTITIONS = 8
"""Partitions of a state unless told otherwise: enough for every core of a small driver to encode at once."""

LIVE = 256
"""Live objects of all partitions that are let be before those that nobody holds any more are put to rest."""

TOGETHER = 256
"""Values that are packed or unpacked together."""

_PLAIN = frozenset({str, int, float, bool, type(None), bytes})
"""Types whose values cannot change and hold nothing that can."""

_UNPACKED = b""
"""Rests in the place of a new key's value until that is packed for the first time."""

_MISSING: Any = object()


@dataclass(slots=True, eq=False)
class PartitionChange:
    """What one partition writes: a delta above the first `keep` artifacts of its chain, or a snapshot."""

    partition: int
    kind: Kind
    keep: int
    records: Records
    size: int
    owner: "KeyedState"

    def release(self) -> None:
        """The records are written: the state may change them in place again."""
        self.owner._unshare(self)
        self.records = {}


@dataclass(slots=True, eq=False)
class Capture:
    """A state as it was at one moment, as far as it has to be written; later changes do not reach it."""

    partitions: int
    changes: list[PartitionChange]
    dirty: list[dict[Any, bytes | None]]
    levels: dict[int, set[Any]]
    outcome: Mapping[int, Chain] | None = field(default=None)

    def settle(self, chains: Mapping[int, Chain] | None) -> None:
        """What became of it: the chains it was committed in, or None."""
        self.outcome = chains
        if chains is not None:
            self.dirty = []


def _packed(
    values: dict[Any, Any], keys: list[Any], refused: dict[Any, UnsupportedValueError]
) -> Iterator[tuple[Any, bytes]]:
    """The packed values of these keys; why one cannot be stored is added to `refused` instead."""
    done = 0
    while some := keys[done : done + TOGETHER]:
        try:
            packed = pack_some([values[key] for key in some])
        except UnsupportedValueError:
            for key in some:
                try:
                    yield key, pack(values[key])
                except UnsupportedValueError as error:
                    refused[key] = error
            done += len(some)
        else:
            yield from zip(some, packed, strict=False)
            done += len(packed)


def _check_key(key: Any) -> None:
    try:
        pack(key)
    except UnsupportedValueError as error:
        raise IllegalArgumentError(f"key {key!r:.80}: {error}") from None


class KeyedState(MutableMapping[Any, Any]):
    """A mutable mapping whose changes are saved as deltas. Used by one thread at a time, like a dict.

    Keys are text, bytes, numbers, None, dates and times, UUIDs, and tuples or frozen sets of these. Values are whatever
    `checkpointer.codecs.values` packs; others are refused when the state is saved, by key and type. Iteration goes
    partition by partition. `partitions` is how many parts the keys are spread over; it may differ at every restore.
    """

    def __init__(
        self, initial: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (), *, partitions: int = PARTITIONS
    ) -> None:
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 65_536:
            raise IllegalArgumentError(f"partitions {partitions!r:.40}: expected an integer from 1 to 65536")
        self._data: list[dict[Any, bytes]] = [{} for _ in range(partitions)]
        self._dirty: list[dict[Any, bytes | None]] = [{} for _ in range(partitions)]
        self._shared: list[set[PartitionChange]] = [set() for _ in range(partitions)]
        self._live: list[dict[Any, Any]] = [{} for _ in range(partitions)]
        self._live_limits = [max(LIVE // partitions, 1)] * partitions
        self._chains: list[Chain] = [()] * partitions
        self._levels: list[list[set[Any]]] = [[] for _ in range(partitions)]
        self._captured: Capture | None = None
        self.update(initial)

    @classmethod
    def _restored(cls, parts: list[tuple[Chain, dict[Any, bytes], list[set[Any]]]]) -> "KeyedState":
        """A state as its chains hold it: for each partition the chain, the packed values, each delta's keys."""
        state = cls(partitions=len(parts))
        state._chains = [chain for chain, _, _ in parts]
        state._data = [data for _, data, _ in parts]
        state._levels = [levels for _, _, levels in parts]
        return state

    def _repartitioned(self, partitions: int) -> "KeyedState":
        """The same mapping in another number of partitions; its next save writes snapshots."""
        state = KeyedState(partitions=partitions)
        for part in self._data:
            for key, data in part.items():
                state._data[partition_of(key, partitions)][key] = data
        return state

    @property
    def partitions(self) -> int:
        return len(self._data)

    # ---- the mapping --------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        partition = partition_of(key, len(self._data))
        value = self._live[partition].get(key, _MISSING)
        if value is not _MISSING:
            return value
        value = unpack(self._data[partition][key])
        if type(value) not in _PLAIN:
            self._hold(partition, key, value)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        partition = partition_of(key, len(self._data))
        if type(key) not in _PLAIN and key not in self._data[partition]:
            _check_key(key)
        if type(value) in _PLAIN:
            try:
                packed = pack(value)
            except UnsupportedValueError:
                packed = None
            if packed is not None:
                self._live[partition].pop(key, None)
                self._rest(partition, key, packed)
                return
        if key not in self._data[partition]:
            self._writable(partition)[key] = _UNPACKED
        self._hold(partition, key, value)

    def __delitem__(self, key: Any) -> None:
        partition = partition_of(key, len(self._data))
        if key not in self._data[partition]:
            raise KeyError(key)
        del self._writable(partition)[key]
        self._live[partition].pop(key, None)
        self._dirty[partition][key] = None

    def __contains__(self, key: object) -> bool:
        try:
            return key in self._data[partition_of(key, len(self._data))]
        except IllegalArgumentError:
            return False

    def __len__(self) -> int:
        return sum(map(len, self._data))

    def __iter__(self) -> Iterator[Any]:
        for part in self._data:
            yield from part

    def clear(self) -> None:
        for partition, part in enumerate(self._data):
            self._live[partition].clear()
            self._dirty[partition].update(dict.fromkeys(part))
            self._data[partition], self._shared[partition] = {}, set()

    def to_dict(self) -> dict[Any, Any]:
        """A plain dict of everything, whose values have nothing to do with the state any more.

        Takes half of the time of `dict(state)`. Raises `IllegalArgumentError` for a value that cannot be stored.
        """
        self._pack_all()
        found: dict[Any, Any] = {}
        for part in self._data:
            left, rest = iter(part), iter(part.values())
            while keys := list(islice(left, TOGETHER)):
                found.update(zip(keys, unpack_some(list(islice(rest, TOGETHER))), strict=True))
        return found

    def __repr__(self) -> str:
        return f"KeyedState({len(self):,} keys in {self.partitions} partitions)"

    # ---- live objects and resting bytes -------------------------------------------------------------------------

    def _hold(self, partition: int, key: Any, value: Any) -> None:
        live = self._live[partition]
        live[key] = value
        if len(live) > self._live_limits[partition]:
            free = self._free(partition)
            refused = self._pack(partition, free)
            for one in free:
                if one not in refused:
                    del live[one]
            self._live_limits[partition] = max(LIVE // len(self._live), 2 * len(live), 1)

    def _free(self, partition: int) -> list[Any]:
        """The keys of the live values that nobody else holds."""
        live, keys = self._live[partition], []
        for key in live:
            value = live[key]
            if not is_held(value, besides=1):
                keys.append(key)
        return keys

    def _pack(self, partition: int, keys: list[Any]) -> dict[Any, UnsupportedValueError]:
        """Take in what live values have become. Returns what could not be packed."""
        refused: dict[Any, UnsupportedValueError] = {}
        data, dirty = self._data[partition], self._dirty[partition]
        for key, packed in _packed(self._live[partition], keys, refused):
            if data.get(key) != packed:
                data = self._writable(partition)
                data[key] = dirty[key] = packed
        return refused

    def _pack_all(self) -> None:
        """Take in what every live value has become, and let go of those that nobody else holds."""
        for partition, live in enumerate(self._live):
            for key, error in self._pack(partition, list(live)).items():
                raise IllegalArgumentError(f"key {key!r:.80}: {error}")
            for key in self._free(partition):
                del live[key]

    def _rest(self, partition: int, key: Any, packed: bytes) -> None:
        if self._data[partition].get(key) != packed:
            self._writable(partition)[key] = self._dirty[partition][key] = packed

    def _writable(self, partition: int) -> dict[Any, bytes]:
        """A partition's own dict: a copy where a capture still reads the old one."""
        if self._shared[partition]:
            self._data[partition], self._shared[partition] = dict(self._data[partition]), set()
        return self._data[partition]

    def _unshare(self, change: PartitionChange) -> None:
        self._shared[change.partition].discard(change)

    # ---- saving -------------------------------------------------------------------------------------------------

    def _capture(self, chains: Mapping[int, Chain], max_chain: int) -> Capture:
        """What has to be written on top of `chains`, the operator's chains in the parent.

        A partition whose chain is the one it was last saved in or restored from writes a delta, or nothing; any other
        writes a snapshot. Raises `IllegalArgumentError` for the first value that cannot be stored.
        """
        self._learn_outcome()
        self._pack_all()
        capture = Capture(self.partitions, [], self._dirty, {})
        for partition in range(self.partitions):
            chain = chains.get(partition, ())
            change = self._change(capture, partition, chain, max_chain)
            if change is not None:
                capture.changes.append(change)
        self._dirty = [{} for _ in range(self.partitions)]
        self._captured = capture
        return capture

    def _change(self, capture: Capture, partition: int, chain: Chain, max_chain: int) -> PartitionChange | None:
        data, dirty = self._data[partition], self._dirty[partition]
        known = bool(chain) and chain == self._chains[partition]
        if (known and not dirty) or not (chain or data):
            return None
        if known:
            size = sum(map(len, filter(None, dirty.values()))) + 16 * len(dirty)
            deltas = [artifact.raw_size for artifact in chain[1:]]
            if 2 * (sum(deltas) + size) <= chain[0].raw_size:
                first = fold_start([*deltas, size], max_chain - 1)
                older = set().union(*self._levels[partition][first:]).difference(dirty)
                records = {key: data.get(key) for key in older} | dirty if older else dirty
                capture.levels[partition] = set(records)
                return PartitionChange(partition, DELTA, 1 + first, records, size, self)
        size = chain[0].raw_size if chain else 32 * len(data)
        change = PartitionChange(partition, SNAPSHOT, 0, data, size, self)
        self._shared[partition].add(change)
        return change

    def _learn_outcome(self) -> None:
        """Take in what became of the last capture. Unless it was committed, its changes are changes still."""
        capture, self._captured = self._captured, None
        if capture is None:
            return
        if capture.outcome is None:
            self._dirty = [again | dirty for again, dirty in zip(capture.dirty, self._dirty, strict=True)]
            return
        for change in capture.changes:
            partition = change.partition
            self._chains[partition] = capture.outcome.get(partition, ())
            kept = self._levels[partition][: max(change.keep - 1, 0)]
            self._levels[partition] = [*kept, capture.levels[partition]] if change.kind == DELTA else []


__all__ = ["Capture", "KeyedState", "PartitionChange"]
