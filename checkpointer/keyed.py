"""A mapping that knows what changed.

Every value rests as its packed bytes, which nobody can change from outside. A value that was handed out or assigned is
also kept as the live object for as long as somebody else holds a reference to it or to something inside it; before a
save the live objects are packed again and compared. So `state[k]["n"] += 1` is a change, whatever path it took, and a
checkpoint that is being written holds bytes that no later change can reach.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import islice
from typing import Any

from checkpointer.capture import Capture
from checkpointer.codecs.keyed_codec import partition_of, partitions_of
from checkpointer.codecs.values import UnsupportedValueError, pack, unpack
from checkpointer.errors import IllegalArgumentError
from checkpointer.partition import Partition
from manifests.model import Chain

PARTITIONS = 8
"""Partitions of a state unless told otherwise: enough for every core of a small driver to encode at once."""

LIVE = 256
"""Live objects of all partitions that are let be before those that nobody holds any more are put to rest."""

TOGETHER = 256
"""Values that are set together, of all partitions."""

_PLAIN = frozenset({str, int, float, bool, type(None), bytes})
"""Types whose values cannot change and hold nothing that can."""

_COLLECTED = frozenset({dict, list, tuple})
"""Types of what is there as a whole before any of it is set."""

_MISSING: Any = object()


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
    A state follows one operator: saved under another name, or on another root, it is written whole.
    """

    def __init__(
        self, initial: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (), *, partitions: int = PARTITIONS
    ) -> None:
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 65_536:
            raise IllegalArgumentError(f"partitions {partitions!r:.40}: expected an integer from 1 to 65536")
        self._parts = [Partition(max(LIVE // partitions, 1)) for _ in range(partitions)]
        self._captured: Capture | None = None
        if isinstance(initial, Mapping) or not hasattr(initial, "keys"):
            self._set_all(initial.items() if isinstance(initial, Mapping) else initial)
        else:
            self.update(initial)

    @classmethod
    def _restored(cls, parts: list[tuple[Chain, dict[Any, bytes], list[dict[Any, bytes | None]]]]) -> "KeyedState":
        """A state as its chains hold it: for each partition the chain, the packed values, what each delta holds."""
        state = cls(partitions=len(parts))
        for part, (chain, data, deltas) in zip(state._parts, parts, strict=True):
            part.restore(chain, data, deltas)
        return state

    def _repartitioned(self, partitions: int) -> "KeyedState":
        """The same mapping in another number of partitions; its next save writes snapshots."""
        state = KeyedState(partitions=partitions)
        for part in self._parts:
            for key, data in part.data.items():
                state._parts[partition_of(key, partitions)].data[key] = data
        return state

    @property
    def partitions(self) -> int:
        return len(self._parts)

    # ---- the mapping --------------------------------------------------------------------------------------------

    def _part(self, key: Any) -> Partition:
        return self._parts[partition_of(key, len(self._parts))]

    def __getitem__(self, key: Any) -> Any:
        part = self._part(key)
        value = part.live.get(key, _MISSING)
        if value is not _MISSING:
            return value
        packed = part.data[key]
        value = unpack(packed)
        if type(value) not in _PLAIN:
            part.hand_out(key, packed, value)
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        part = self._part(key)
        if type(key) not in _PLAIN and key not in part.data:
            _check_key(key)
        if type(value) in _PLAIN:
            try:
                packed = pack(value)
            except UnsupportedValueError:
                packed = None
            if packed is not None:
                part.rest(key, packed)
                return
        part.assign({key: value})

    def update(self, other: Any = (), /, **more: Any) -> None:
        """As of a dict."""
        if type(other) in _COLLECTED:
            self._set_all(other.items() if type(other) is dict else other)
            other = ()
        super().update(other, **more)  # one by one: what makes the pairs may look at those before

    def _set_all(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """Set what cannot depend on what is set meanwhile, many together."""
        left = iter(pairs)
        while self._set_some(left):
            pass

    def _set_some(self, pairs: Iterator[tuple[Any, Any]]) -> bool:
        """Set the next ones. Whether there may be more."""
        some: list[tuple[Any, Any]] = []
        try:
            some.extend(islice(pairs, TOGETHER))
            return len(some) == TOGETHER
        finally:  # as in a dict, those before an error are set
            self._set(some)

    def _set(self, pairs: list[tuple[Any, Any]]) -> None:
        """Set one after the other; keys and values as most are, all in one go."""
        try:
            keys, values = [key for key, _ in pairs], [value for _, value in pairs]
        except (TypeError, ValueError):  # one that is no pair: those before it are set
            keys, values = [], []
        usual = set(map(type, keys)) == {str} and _PLAIN.isdisjoint(map(type, values))
        numbers = partitions_of(keys, self.partitions) if usual else None
        if numbers is None:
            for key, value in pairs:
                self[key] = value
            return
        each: defaultdict[int, dict[Any, Any]] = defaultdict(dict)
        for number, key, value in zip(numbers, keys, values, strict=True):
            each[number][key] = value
        pairs.clear()  # and what else holds values that nobody else may hold: such as it are put to rest
        values.clear()
        value = None
        for number, some in each.items():
            self._parts[number].assign(some)

    def __delitem__(self, key: Any) -> None:
        self._part(key).delete(key)

    def __contains__(self, key: object) -> bool:
        try:
            part = self._part(key)
        except IllegalArgumentError:
            return False
        return key in part.live or key in part.data

    def __len__(self) -> int:
        return sum(len(part.listed()) for part in self._parts)

    def __iter__(self) -> Iterator[Any]:
        for part in self._parts:
            yield from part.listed()

    def clear(self) -> None:
        for part in self._parts:
            part.clear()

    def to_dict(self) -> dict[Any, Any]:
        """A plain dict of everything, whose values have nothing to do with the state any more.

        Takes half of the time of `dict(state)`. Raises `IllegalArgumentError` for a value that cannot be stored.
        """
        self._pack_all()
        return {key: unpack(data) for part in self._parts for key, data in part.data.items()}

    def __repr__(self) -> str:
        return f"KeyedState({len(self):,} keys in {self.partitions} partitions)"

    # ---- saving -------------------------------------------------------------------------------------------------

    def _pack_all(self) -> None:
        for part in self._parts:
            for key, error in part.pack_all().items():
                raise IllegalArgumentError(f"key {key!r:.80}: {error}")

    def _capture(self, chains: Mapping[int, Chain], max_chain: int) -> Capture:
        """What has to be written on top of `chains`, the operator's chains in the parent.

        A partition whose chain is the one it was last saved in or restored from writes a delta, or nothing; any other
        writes a snapshot. Raises `IllegalArgumentError` for the first value that cannot be stored.
        """
        self._learn_outcome()
        self._pack_all()
        each = [part.capture(number, chains.get(number, ()), max_chain) for number, part in enumerate(self._parts)]
        self._captured = Capture(self.partitions, [change for change in each if change is not None])
        for change in self._captured.changes:
            self._parts[change.partition].taken(change)
        return self._captured

    def _learn_outcome(self) -> None:
        """Take in what became of the last capture. Unless it was committed, its changes are changes still.

        To do this twice, since the first time was interrupted, does nothing more.
        """
        if self._captured is None:
            return
        dirty = [change.dirty for change in self._captured.changes]  # before the outcome: who settles it drops them
        outcome = self._captured.outcome
        for change, again in zip(self._captured.changes, dirty, strict=True):
            part = self._parts[change.partition]
            if outcome is None:
                part.change_again(again)
            else:
                part.saved(change, outcome.get(change.partition, ()))
        self._captured = None
