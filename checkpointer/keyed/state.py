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

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.keyed.changes import ChangeSet
from pyspark_checkpointer.keyed.content import MISSING, PLAIN, Content, Step, fill, place_anew
from pyspark_checkpointer.keyed.partition import MapPartition
from pyspark_checkpointer.keyed.reentry import Exclusive, Guard
from pyspark_checkpointer.manifests.keyed_records import in_known_zones, partition_of, partitions_of
from pyspark_checkpointer.manifests.model import Chain
from pyspark_checkpointer.manifests.msgpack_values import UnsupportedValueError, pack, pack_some, unpack
from pyspark_checkpointer.manifests.shown import show
from pyspark_checkpointer.manifests.zones import HOLDERS
from pyspark_checkpointer.runtime.not_picklable import NotPicklable

PARTITIONS = 8
"""Partitions of a state unless told otherwise: enough for every core of a small driver to encode at once."""

MOST_PARTITIONS = 131_072
"""Partitions that a state may have: 100,000 are proven, and no manifest makes a restore ask for memory without end."""

LIVE = 256
"""Live objects of all partitions that are let be before those that nobody holds any more are put to rest."""

TOGETHER = 256
"""Values that are set together, of all partitions."""

_COLLECTED = frozenset({dict, list, tuple})
"""Inputs that exist completely, so that `update` can set them in one change."""


def _check_key(key: Any) -> None:
    try:
        pack(key)
    except UnsupportedValueError as error:
        raise IllegalArgumentError(f"key {show(key)}: {error}") from None


class KeyedState(NotPicklable, MutableMapping[Any, Any]):
    """A mutable mapping whose changes are saved as deltas.

    Like a dict, it may be used by several threads, and by whoever interrupts them, such as a signal handler: each
    operation, a save and an `update` from a dict or list among them, is whole or not there. Several together are not:
    `state[k] += 1` reads, then sets; going through `items()` or `values()` reads key by key. `to_dict()` is one moment.
    What interrupts an operation must not wait for another thread that uses the state: that thread cannot go on before
    the operation does, and raises `InvalidStateError` after a minute.

    Keys are text, bytes, numbers, None, dates and times, UUIDs, and tuples or frozen sets of these. Times in zones of
    one name are compared by their clocks, as if all these zones were one object. Values are whatever
    `manifests/msgpack_values.py` packs; others are refused when the state is saved, by key and type. Iteration goes
    partition by partition. `partitions` is how many parts the keys are spread over; it may differ at every restore.
    A state follows one operator: saved under another name, or on another root, it is written whole.
    """

    _instead = (
        "what another process changed in its copy would never be saved. Pass state.to_dict() to functions that run "
        "elsewhere, and set what they return in the state on the driver"
    )

    def __init__(
        self, initial: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (), *, partitions: int = PARTITIONS
    ) -> None:
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MOST_PARTITIONS:
            raise IllegalArgumentError(
                f"partitions {partitions!r:.40}: expected an integer from 1 to {MOST_PARTITIONS}"
            )
        self._partitions = partitions
        self._owner = Exclusive(Content([MapPartition(max(LIVE // partitions, 1)) for _ in range(partitions)]))
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
        place_anew(state._parts)
        return state

    def _repartitioned(self, partitions: int) -> "KeyedState":
        """Return the same mapping in another number of partitions; its next save writes snapshots.

        Only for a state that nobody has used yet: live values are not taken along.
        """
        state = KeyedState(partitions=partitions)
        fill(state._parts, (pair for part in self._parts for pair in part.data.items()))
        return state

    @property
    def _parts(self) -> list[MapPartition]:
        return self._owner.last().content.parts

    @property
    def partitions(self) -> int:
        return self._partitions

    # ---- the mapping --------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        if type(key) in HOLDERS:
            key = in_known_zones(key)
        number = partition_of(key, self._partitions)
        owner = self._owner
        if owner.guard is not None:
            return self._copied(number, key)
        packed = value = None
        version = owner.version
        if not version.running and not version.heir:
            part = version.content.parts[number]
            live = part.live.get(key, MISSING)
            if live is MISSING:
                packed = part.data[key]
                if packed:
                    value = unpack(packed)
                    if type(value) in PLAIN:
                        return value
            # From here on others see that it is held. If none was looking meanwhile, it is live for as long as that.
            elif not version.running and not version.heir and part.live.get(key) is live:
                return live
        value = owner.change(Content.hand_out, number, key, packed, value)
        if value is MISSING:
            raise KeyError(key)
        return value

    def _copied(self, number: int, key: Any) -> Any:
        """Return a copy of a value: the value itself could be changed while the state is closed for changes."""
        packed = self._owner.change(Content.packed_value, number, key)
        if packed is None:
            raise KeyError(key)
        return unpack(packed)

    def __setitem__(self, key: Any, value: Any) -> None:
        if type(key) in HOLDERS:
            key = in_known_zones(key)
        number = partition_of(key, self._partitions)
        if type(key) not in PLAIN and key not in self._parts[number].data:
            _check_key(key)
        if type(value) in PLAIN:
            try:
                packed = pack(value)
            except UnsupportedValueError:
                packed = None
            if packed is not None:
                self._owner.change(Content.rest, number, key, packed)
                return
        self._assign(number, {key: value})

    def _assign(self, number: int, values: dict[Any, Any]) -> None:
        """Set values that may be changed from outside; `values` does no more."""
        crowded = self._owner.change(Content.assign, number, values)
        values.clear()
        if crowded:
            self._owner.change(Content.put_to_rest, number)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """As of a dict."""
        if self._owner.guard is None and (found := self.get(key, MISSING)) is not MISSING:
            return found
        if type(key) in HOLDERS:
            key = in_known_zones(key)
        number = partition_of(key, self._partitions)
        if type(key) not in PLAIN:
            _check_key(key)
        try:
            packed = pack(default) if type(default) in PLAIN else None
        except UnsupportedValueError:
            packed = None
        return self._owner.change(Content.setdefault, number, key, default, packed)

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        """As of a dict."""
        if type(key) in HOLDERS:
            key = in_known_zones(key)
        found: list[Any] = []
        self._owner.change(Content.pop, partition_of(key, self._partitions), key, found)
        if found[0] is not MISSING:
            return found[0]
        if default is MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[Any, Any]:
        """As of a dict, but for the order."""
        found: list[Any] = []
        self._owner.change(Content.popitem, found)
        if found[0] is MISSING:
            raise KeyError("popitem(): the state is empty")
        return found[0]  # type: ignore[no-any-return]

    def update(self, other: Any = (), /, **more: Any) -> None:
        """As of a dict. What a dict, list or tuple has, and what is given by name, is set in one change each."""
        if self._owner.guard is not None:  # also where there is nothing to set
            self._owner.guard(Content.assign)
        if type(other) in _COLLECTED:
            self._set_whole(other.items() if type(other) is dict else other)
        else:
            super().update(other)  # one by one: what makes the pairs may look at those before
        self._set_whole(more.items())

    def _set_whole(self, pairs: Iterable[Any]) -> None:
        """Set pairs in one change, which nobody sees half."""
        left = iter(pairs)
        self._make(step for some in iter(lambda: [*islice(left, TOGETHER)], []) for step in self._steps(some))

    def _set_all(self, pairs: Iterable[Any]) -> None:
        """Set pairs that somebody may make one after the other, in many changes."""
        left = iter(pairs)
        while self._set_some(left):
            pass

    def _set_some(self, pairs: Iterator[Any]) -> bool:
        """Set the next pairs. Whether there may be more."""
        some: list[Any] = []
        try:
            some.extend(islice(pairs, TOGETHER))
            return len(some) == TOGETHER
        finally:  # as in a dict, those before an error are set
            self._make(self._steps(some))

    def _make(self, steps: Iterable[Step]) -> None:
        """Make changes as one. Those before a pair or key that is none are made, as in a dict."""
        made: list[Step] = []
        failure = None
        try:
            _gather(steps, made)
        except (TypeError, ValueError) as error:
            failure = error
        crowded = self._owner.change(Content.several, made)
        made.clear()  # values that nobody else holds can be put to rest
        for number in crowded:
            self._owner.change(Content.put_to_rest, number)
        if failure is not None:
            raise failure

    def _steps(self, pairs: list[Any]) -> Iterator[Step]:
        """Yield the changes that set pairs, and empty the list: keys and values as most are, many in one."""
        keys, values = [], []
        failure = None
        try:
            for key, value in pairs:
                keys.append(key)
                values.append(value)
        except (TypeError, ValueError) as error:  # one that is no pair
            failure = error
        pairs.clear()
        kinds = set(map(type, values))
        numbers = partitions_of(keys, self._partitions) if kinds <= PLAIN or kinds.isdisjoint(PLAIN) else None
        packed = _packed(values) if numbers is not None and kinds <= PLAIN else None
        if numbers is None or (packed is None and kinds <= PLAIN):
            for key, value in zip(keys, values, strict=True):
                yield self._step(key, value)
        else:
            operation = Content.assign if packed is None else Content.rest_all
            each: defaultdict[int, dict[Any, Any]] = defaultdict(dict)
            for number, key, data in zip(numbers, keys, values if packed is None else packed, strict=True):
                each[number][key] = data
            for number, some in each.items():
                yield operation, (number, some)
        if failure is not None:
            raise failure

    def _step(self, key: Any, value: Any) -> Step:
        """Return the change that sets one key."""
        if type(key) in HOLDERS:
            key = in_known_zones(key)
        number = partition_of(key, self._partitions)
        if type(key) not in PLAIN:
            _check_key(key)
        if type(value) in PLAIN:
            try:
                return Content.rest_all, (number, {key: pack(value)})
            except UnsupportedValueError:  # a live object, which is refused when it is saved
                pass
        return Content.assign, (number, {key: value})

    def __delitem__(self, key: Any) -> None:
        if type(key) in HOLDERS:
            key = in_known_zones(key)
        found: list[bool] = []
        self._owner.change(Content.delete, partition_of(key, self._partitions), key, found)
        if not found[0]:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        try:
            if type(key) in HOLDERS:
                key = in_known_zones(key)
            number = partition_of(key, self._partitions)
        except IllegalArgumentError:
            return False
        version = self._owner.version
        if not version.running and not version.heir and self._owner.guard is None:
            part = version.content.parts[number]
            return key in part.live or key in part.data
        return self._owner.change(Content.contains, number, key)

    def __len__(self) -> int:
        return self._owner.change(Content.count)

    def __iter__(self) -> Iterator[Any]:
        owner = self._owner
        for number in range(self._partitions):
            for key in owner.change(Content.keys, number):
                if owner.guard is not None:
                    owner.guard(Content.keys)
                yield key

    def clear(self) -> None:
        """As of a dict."""
        self._owner.change(Content.clear)

    def to_dict(self) -> dict[Any, Any]:
        """Return a plain dict of everything at one moment, whose values have nothing to do with the state any more.

        Takes half of the time of `dict(state)`. Raises `IllegalArgumentError` for a value that cannot be stored.
        """
        return {key: unpack(data) for part in self._packed() for key, data in part.items()}

    def _packed(self) -> list[dict[Any, bytes]]:
        """Return everything at one moment, packed."""
        packed, refused = self._owner.change(Content.packed)
        _refuse(refused)
        return packed

    # ---- copies ---------------------------------------------------------------------------------------------------

    def __copy__(self) -> "KeyedState":
        """Return a state of its own with equal values, which is saved whole."""
        state = KeyedState(partitions=self._partitions)
        for part, data in zip(state._parts, self._packed(), strict=True):
            part.restore((), data, [])
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> "KeyedState":
        return self.__copy__()

    def __repr__(self) -> str:
        """Return the number of keys, or why the state is closed. While another thread changes it, an estimate."""
        owner = self._owner
        if owner.guard is not None:
            try:
                owner.guard(Content.count)
            except InvalidStateError as error:
                return f"KeyedState({self.partitions} partitions, closed: {error})"
        # A debugger may ask while the thread that makes a change is stopped: this must not wait for its lock.
        count = owner.last().content.estimate()
        return f"KeyedState({count:,} keys in {self.partitions} partitions)"

    def _guard(self, guard: Guard | None) -> None:
        """Let a guard refuse operations from now on, also to whoever kept a bound method, a view or an iterator."""
        self._owner.close(guard)

    # ---- saving -------------------------------------------------------------------------------------------------

    def _capture(self, chains: Mapping[int, Chain], max_chain: int) -> ChangeSet:
        """Return what has to be written on top of `chains`, the operator's chains in the parent.

        A partition whose chain is the one it was last saved in or restored from writes a delta, or nothing; any other
        writes a snapshot. Raises `IllegalArgumentError` for the first value that cannot be stored.
        """
        capture, refused = self._owner.change(Content.capture, chains, max_chain)
        _refuse(refused)
        assert capture is not None
        return capture


def _packed(values: list[Any]) -> list[bytes] | None:
    """Return plain values as their bytes; None where one cannot be stored, or where they are large."""
    try:
        packed = pack_some(values)
    except UnsupportedValueError:
        return None
    return packed if len(packed) == len(values) else None


def _refuse(refused: Mapping[Any, UnsupportedValueError]) -> None:
    for key, error in refused.items():
        raise IllegalArgumentError(f"key {show(key)}: {error}")


def _gather(steps: Iterable[Step], made: list[Step]) -> None:
    """Add steps to `made`, with one dict for those of a partition that follow each other and do the same."""
    last: dict[int, Step] = {}
    for operation, (number, values) in steps:
        before = last.get(number)
        if before is not None and before[0] is operation:
            before[1][1].update(values)
        else:
            last[number] = (operation, (number, values))
            made.append(last[number])
