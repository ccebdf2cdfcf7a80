"""A mapping that knows what changed.

Every value rests as its packed bytes, which nobody can change from outside. A value that was handed out or assigned is
also kept as the live object for as long as somebody else holds a reference to it or to something inside it; before a
save the live objects are packed again and compared. So `state[k]["n"] += 1` is a change, whatever path it took, and a
checkpoint that is being written holds bytes that no later change can reach.
"""

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import islice
from typing import Any

from checkpointer.capture import Capture, PartitionChange
from checkpointer.codecs.fold import fold_start
from checkpointer.codecs.keyed_codec import partition_of, partitions_of
from checkpointer.codecs.values import UnsupportedValueError, pack, pack_some, unpack
from checkpointer.errors import IllegalArgumentError
from checkpointer.references import unheld
from manifests.model import DELTA, SNAPSHOT, Chain

PARTITIONS = 8
"""Partitions of a state unless told otherwise: enough for every core of a small driver to encode at once."""

LIVE = 256
"""Live objects of all partitions that are let be before those that nobody holds any more are put to rest."""

TOGETHER = 256
"""Values that are set or packed together."""

_PLAIN = frozenset({str, int, float, bool, type(None), bytes})
"""Types whose values cannot change and hold nothing that can."""

_UNPACKED = b""
"""Rests in the place of a new key's value until that is packed for the first time."""

_MISSING: Any = object()


def _packed(
    values: dict[Any, Any], keys: list[Any], refused: dict[Any, UnsupportedValueError]
) -> Iterator[tuple[list[Any], list[bytes]]]:
    """Some keys, and their values packed, until all are through; why one cannot be stored is added to `refused`."""
    done = 0
    while some := keys[done : done + TOGETHER]:
        try:
            packed = pack_some([values[key] for key in some])
        except UnsupportedValueError:
            packed = []
            for key in some:
                try:
                    yield [key], [pack(values[key])]
                except UnsupportedValueError as error:
                    refused[key] = error
        else:
            yield some[: len(packed)], packed
        done += len(packed) or len(some)


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

    def update(self, other: Any = (), /, **more: Any) -> None:
        """As of a dict."""
        if isinstance(other, Mapping):
            pairs: Iterable[tuple[Any, Any]] = other.items()
        elif hasattr(other, "keys"):
            pairs = ((key, other[key]) for key in other.keys())  # noqa: SIM118
        else:
            pairs = other
        for each in (iter(pairs), iter(more.items())):
            while self._set_some(each):
                pass

    def _set_some(self, pairs: Iterator[tuple[Any, Any]]) -> bool:
        """Set the next ones. Whether there may be more."""
        some: list[tuple[Any, Any]] = []
        try:
            some.extend(islice(pairs, TOGETHER))
        finally:  # as in a dict, those before an error are set
            self._set(some)
        return len(some) == TOGETHER

    def _set(self, pairs: list[tuple[Any, Any]]) -> None:
        """Set one after the other; keys and values as most are, all in one go."""
        keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        usual = set(map(type, keys)) == {str} and _PLAIN.isdisjoint(map(type, values)) and not any(self._shared)
        numbers = partitions_of(keys, self.partitions) if usual else None
        if numbers is None:
            for key, value in pairs:
                self[key] = value
            return
        for number, key, value in zip(numbers, keys, values, strict=True):
            self._live[number][key] = value
            self._data[number].setdefault(key, _UNPACKED)
        for number in set(numbers):
            if len(self._live[number]) > self._live_limits[number]:
                self._put_to_rest(number)

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
        return {key: unpack(data) for part in self._data for key, data in part.items()}

    def __repr__(self) -> str:
        return f"KeyedState({len(self):,} keys in {self.partitions} partitions)"

    # ---- live objects and resting bytes -------------------------------------------------------------------------

    def _hold(self, partition: int, key: Any, value: Any) -> None:
        live = self._live[partition]
        live[key] = value
        if len(live) > self._live_limits[partition]:
            self._put_to_rest(partition)

    def _pack(self, partition: int, keys: list[Any]) -> dict[Any, UnsupportedValueError]:
        """Take in what live values have become. Returns what could not be packed."""
        refused: dict[Any, UnsupportedValueError] = {}
        data, dirty = self._data[partition], self._dirty[partition]
        for some, packed in _packed(self._live[partition], keys, refused):
            before = list(map(data.get, some))
            if before == packed:
                continue
            changed = {key: new for key, old, new in zip(some, before, packed, strict=True) if new != old}
            if self._shared[partition]:
                data = self._writable(partition)
            data.update(changed)
            dirty.update(changed)
        return refused

    def _put_to_rest(self, partition: int) -> None:
        """Let go of the live values that nobody else holds, unless they cannot be packed."""
        live = self._live[partition]
        keys = unheld(live)
        refused = self._pack(partition, keys)
        for key in keys:
            if key not in refused:
                del live[key]
        self._live_limits[partition] = max(LIVE // len(self._live), 2 * len(live), 1)

    def _pack_all(self) -> None:
        """Take in what every live value has become, and let go of those that nobody else holds."""
        for partition, live in enumerate(self._live):
            for key, error in self._pack(partition, list(live)).items():
                raise IllegalArgumentError(f"key {key!r:.80}: {error}")
            for key in unheld(live):
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
            deltas = [artifact.raw_size for artifact in chain[1:]]
            room = chain[0].raw_size // 2 - sum(deltas)
            size = 16 * len(dirty)
            if size <= room:  # else there is no need to look at every value
                size += sum(map(len, filter(None, dirty.values())))
            if size <= room:
                first = fold_start([*deltas, size], max_chain - 1)
                older = set().union(*self._levels[partition][first:]).difference(dirty)
                records = {key: data.get(key) for key in older} | dirty if older else dirty
                capture.levels[partition] = set(records)
                return PartitionChange(partition, DELTA, 1 + first, records, size, self._unshare)
        size = chain[0].raw_size if chain else 32 * len(data)
        change = PartitionChange(partition, SNAPSHOT, 0, data, size, self._unshare)
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
