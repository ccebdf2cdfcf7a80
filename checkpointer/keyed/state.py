"""Keep a mapping that knows which of its keys changed.

Every value is kept as packed bytes, which nobody can change from outside. A value that was returned or assigned is also
kept as a live object, as long as somebody else holds a reference to the object or to a part of it. Before a save the
live objects are packed again and compared. So `state[k]["n"] += 1` is found as a change. A checkpoint that is being
written holds bytes that no later change can reach.
"""

from collections import OrderedDict
from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, ValuesView
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.keyed.changes import ChangeSet
from pyspark_checkpointer.keyed.content import MISSING, UNREADABLE, Content, Step, unreadable_value
from pyspark_checkpointer.keyed.expiring import ExpiringPartition
from pyspark_checkpointer.keyed.key_kinds import MIXED
from pyspark_checkpointer.keyed.partition import NEVER_SAVED, MapPartition, SavedChain
from pyspark_checkpointer.keyed.placing import move_misplaced_keys, place_keys
from pyspark_checkpointer.keyed.reentry import Exclusive, Guard
from pyspark_checkpointer.keyed.updates import check_key, gather_steps, pack_plain, steps_to_set, steps_to_set_each
from pyspark_checkpointer.manifests.codecs import MAX_MAP_PARTITIONS
from pyspark_checkpointer.manifests.keyed_records import place_key
from pyspark_checkpointer.manifests.map_expiry import MapRule, living, now_of
from pyspark_checkpointer.manifests.model import Chain, Clock
from pyspark_checkpointer.manifests.msgpack_checks import ATOMS, UnsupportedValueError
from pyspark_checkpointer.manifests.msgpack_values import pack, unpack, unpack_all, unpack_by_msgspec
from pyspark_checkpointer.manifests.shown import show
from pyspark_checkpointer.manifests.zones import has_known_zones
from pyspark_checkpointer.runtime.not_picklable import NotPicklable

DEFAULT_MAP_PARTITIONS = 8
"""Partitions of a state unless the caller sets another number.

There are enough for every core of a small driver to encode at once.
"""

MIN_LIVE_VALUES = 256
"""Live values that all partitions together keep.

When there are more, the partitions drop those that nobody else holds.
"""

UPDATE_BATCH = 256
"""Pairs that are set together while they are produced one after the other."""

WHOLE_BATCH = 4096
"""Pairs that are set together if all of them exist already."""

UNPACK_BATCH = 1024
"""Values that are unpacked together."""

_EXISTING_ITEMS = (dict.items, OrderedDict.items)
_EXISTING_ELEMENTS = (list.__iter__, tuple.__iter__)
"""The methods by which inputs give their pairs, if all pairs exist already.

Subclasses such as `Counter` are among them. `update` sets such pairs in one change.

An input that gives its pairs in another way may look at the pairs that were set before.
"""


class KeyedState(NotPicklable, MutableMapping[Any, Any]):
    """A mutable mapping that knows its changes, so that a save writes only these.

    Keys are text, bytes, numbers, None, dates and times, UUIDs, and tuples or frozen sets of these. Values are these,
    and lists, dicts, tuples and sets of them. Another value is refused when the state is saved, with its key and type.
    Subclasses, such as `Counter`, are refused too.

    Like a dict, it may be used by several threads, and by signal handlers. Each operation happens as a whole, also a
    save, and an `update` from a dict or list. Two operations do not happen as a whole: `state[k] += 1` reads, then
    sets. `items()` and `values()` read key by key, and leave out keys that were removed meanwhile. `to_dict()` returns
    the state of one moment. `dict(state)` reads key by key too, and raises `KeyError` for a key that was removed
    meanwhile. Code that interrupts an operation must not wait for another thread that uses the state: that thread
    raises `InvalidStateError` after a minute.

    Times in zones of the same name are compared by their local time. So 02:30 before and after a clock is set back is
    one key. Use times in UTC as keys to tell them apart.

    Iteration goes partition by partition, in no promised order. A state belongs to one operator: if it is saved under
    another name, or on another root, it is written as a whole.

    Args:
        initial: A mapping, or pairs, to begin with.
        partitions: The number of parts that the keys are spread over, from 1 to 131,072. A save writes a delta for
            each part that changed. It may differ at every restore.

    Raises:
        IllegalArgumentError: `partitions` is out of its range, or a key cannot be stored.

    Examples:
        >>> from pyspark_checkpointer import KeyedState
        >>> visits = KeyedState({"ann": {"count": 1, "pages": ["home"]}})
        >>> visits["ann"]["pages"].append("shop")  # a change inside a value is found
        >>> visits["bob"] = {"count": 1, "pages": []}
        >>> len(visits), visits["ann"]["pages"]
        (2, ['home', 'shop'])
    """

    _instead = (
        "what another process changed in its copy would never be saved. Pass state.to_dict() to functions that run "
        "elsewhere, and set what they return in the state on the driver"
    )

    def __init__(
        self, initial: Mapping[Any, Any] | Iterable[tuple[Any, Any]] = (), *, partitions: int = DEFAULT_MAP_PARTITIONS
    ) -> None:
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MAX_MAP_PARTITIONS:
            raise IllegalArgumentError(
                f"partitions {partitions!r:.40}: expected an integer from 1 to {MAX_MAP_PARTITIONS}"
            )
        self._partitions = partitions
        self._tries_msgspec = True  # until it refuses a value
        parts = [MapPartition(max(MIN_LIVE_VALUES // partitions, 1)) for _ in range(partitions)]
        self._owner = Exclusive(Content(parts), {Content.make_all})
        self._check_save: Callable[[], None] | None = None
        if type(initial) is tuple and not initial:
            return
        # Nobody else has this state yet, so its pairs need not be set as one change, which would hold all of them in
        # memory.
        if isinstance(initial, Mapping) or not hasattr(initial, "keys"):
            if _pairs_exist(initial):
                for steps in self._steps(initial):
                    # Nobody looks for unheld values: their owner holds all of them until this ends.
                    self._make(steps, clean=False)
            else:
                self._set_in_batches(initial.items() if isinstance(initial, Mapping) else initial)
        else:
            self.update(initial)

    @property
    def _parts(self) -> list[MapPartition]:
        """Return the current partitions.

        Only for a caller that knows that nobody changes them.
        """
        return self._owner.last().content.parts

    @property
    def partitions(self) -> int:
        """The number of parts that the keys are spread over."""
        return self._partitions

    # ---- the mapping --------------------------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        number, key = place_key(key, self._partitions)
        owner = self._owner
        if owner.guard is not None:
            return self._copied(number, key)
        packed = value = None
        version = owner.version
        if not version.running and not version.successor:
            part = version.content.parts[number]
            live = part.live.get(key, MISSING)
            if live is MISSING:
                try:
                    packed = part.data[key]
                except KeyError:
                    owner.exclusively(owner.pass_check)  # it may stand in another partition, where it is no use
                    raise
                # An empty value stands for one that was never packed. It is live by now, so `change` below finds it.
                if packed:
                    value = self._unpack(key, packed)
                    if type(value) in ATOMS:
                        return value
            # This frame holds the object now, so whoever looks for unheld values finds it held. If no change ran
            # meanwhile, nobody dropped it before that either.
            elif not version.running and not version.successor and part.live.get(key) is live:
                return live
        value = owner.change(Content.hand_out, number, key, packed, value)
        if value is MISSING:
            raise KeyError(key)
        return value

    def _unpack(self, key: Any, packed: bytes) -> Any:
        """Return a value.

        Most maps have values of one form. So a value that is not plain tells how to unpack those after it.
        """
        if self._tries_msgspec:
            try:
                return unpack_by_msgspec(packed)
            except (ValueError, RecursionError):
                self._tries_msgspec = False
        return _unpack(key, packed)

    def _copied(self, number: int, key: Any) -> Any:
        """Return a copy of a value.

        Otherwise a caller could change the value, and so a state that is closed for changes.
        """
        packed, refused = self._owner.change(Content.packed_value, number, key)
        _refuse(refused)
        if packed is None:
            raise KeyError(key)
        return _unpack(key, packed)

    def __setitem__(self, key: Any, value: Any) -> None:
        number, key = place_key(key, self._partitions)
        if type(key) not in ATOMS:  # `place_key` checked these
            part = self._parts[number]
            # A stored key was checked when it was set first. But it may only be equal to this one, and then this one is
            # stored if another thread deletes the stored one meanwhile.
            if key not in part.data or (part.key_kinds is MIXED and not has_known_zones(key)):
                check_key(key)
        if type(value) in ATOMS:
            try:  # as `pack_plain`, without one more call for each key that is set
                packed = pack(value)
            except UnsupportedValueError:
                pass  # it is kept as a live object, and refused by name when the state is saved
            else:
                self._owner.change(Content.set_packed, number, key, packed)
                return
        self._assign(number, {key: value})

    def _assign(self, number: int, values: dict[Any, Any]) -> None:
        """Set values that callers may still change, and empty `values`."""
        crowded = self._owner.change(Content.assign, number, values)
        values.clear()  # while the dict holds them, no value counts as unheld
        if crowded:
            self._owner.change(Content.drop_unheld, number)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        """Return the value of a key. Set it to a default first if it is not there.

        Args:
            key: The key.
            default: The value to set.

        Raises:
            IllegalArgumentError: A key cannot be stored, such as a list.
            InvalidStateError: The state is a map of a batch that has ended.

        Examples:
            >>> visits.setdefault("cat", {"count": 0, "pages": []})
            {'count': 0, 'pages': []}
        """
        # A closed state refuses this in `change`, whether or not the key is there.
        if self._owner.guard is None and (found := self.get(key, MISSING)) is not MISSING:
            return found
        number, key = place_key(key, self._partitions)
        check_key(key)
        return self._owner.change(Content.setdefault, number, key, default, pack_plain(default))

    def pop(self, key: Any, default: Any = MISSING) -> Any:
        """Remove a key and return its value.

        Args:
            key: The key.
            default: What to return if the key is not there.

        Raises:
            KeyError: The key is not there, and no `default` was given.
            IllegalArgumentError: A key cannot be stored, such as a list.
            InvalidStateError: The state is a map of a batch that has ended.

        Examples:
            >>> visits.pop("bob")
            {'count': 1, 'pages': []}
            >>> visits.pop("bob", None) is None
            True
        """
        number, key = place_key(key, self._partitions)
        found: list[Any] = []
        self._owner.change(Content.pop, number, key, found)
        if found[0] is not MISSING:
            return found[0]
        if len(found) > 1:
            raise found[1]
        if default is MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[Any, Any]:
        """Remove some key, in no promised order, and return it with its value.

        Raises:
            KeyError: The state is empty.
            InvalidStateError: The state is a map of a batch that has ended.

        Examples:
            >>> key, value = visits.popitem()
            >>> key in visits, len(visits)
            (False, 1)
        """
        found: list[Any] = []
        self._owner.change(Content.popitem, found)
        if found[0] is MISSING:
            raise found[1] if len(found) > 1 else KeyError("popitem(): the state is empty")
        return found[0]  # type: ignore[no-any-return]

    def items(self) -> ItemsView[Any, Any]:
        """Return the keys and values, read key by key.

        Raises:
            InvalidStateError: The state is a map of a batch that has ended.

        Examples:
            >>> sorted((name, value["count"]) for name, value in visits.items())
            [('ann', 1), ('bob', 1)]
        """
        return _Items(self)

    def values(self) -> ValuesView[Any]:
        """Return the values, read key by key.

        Raises:
            InvalidStateError: The state is a map of a batch that has ended.

        Examples:
            >>> sum(value["count"] for value in visits.values())
            2
        """
        return _Values(self)

    def update(self, other: Any = (), /, **more: Any) -> None:
        """Set pairs.

        The pairs of a dict, list or tuple, and those given by name, are set in one change. If one of them is malformed,
        none is set.

        Args:
            other: A mapping, or pairs.
            more: Values by names, which are text keys.

        Raises:
            IllegalArgumentError: A key cannot be stored, such as a list.
            InvalidStateError: The state is a map of a batch that has ended.

        Examples:
            >>> visits.update({"cat": 1, "dan": 2}, eve=3)
            >>> visits["cat"], visits["eve"]
            (1, 3)
        """
        if self._owner.guard is not None:  # also where there is nothing to set
            self._owner.guard(Content.assign)
        pairs = [more]
        if _pairs_exist(other):
            pairs = [other, more]
        else:
            super().update(other)  # one by one: what makes the pairs may look at those before
        # In one change: nobody sees a state in which only some of them are set.
        self._make(step for some in pairs for steps in self._steps(some) for step in steps)

    def _steps(self, pairs: Any) -> Iterator[Iterator[Step]]:
        """Yield the changes that set pairs that exist already, in batches."""
        if type(pairs) is not dict:
            for batch in _batches(pairs.items() if isinstance(pairs, dict) else pairs):
                yield steps_to_set(batch, self._partitions, are_held=True)
            return
        # Without a tuple for each pair, which the garbage collector would look at.
        for keys, values in zip(_batches(pairs), _batches(pairs.values()), strict=True):
            yield steps_to_set_each(keys, values, self._partitions, are_held=True)

    def _set_in_batches(self, pairs: Iterable[Any]) -> None:
        """Set pairs that may be produced one after the other.

        Each batch of them is one change.
        """
        left, more = iter(pairs), True
        while more:
            batch = [*islice(left, UPDATE_BATCH)]
            more = len(batch) == UPDATE_BATCH
            self._make(steps_to_set(batch, self._partitions, are_held=False))

    def _make(self, steps: Iterable[Step], *, clean: bool = True) -> None:
        """Make changes as one change.

        Then drop values that nobody holds, if it is time to `clean`. If a pair or a key is malformed, no change is
        made.
        """
        gathered: list[Step] = []
        gather_steps(steps, gathered)
        crowded = self._owner.change(Content.make_all, gathered)
        gathered.clear()  # while the list holds them, no value counts as unheld
        for number in crowded if clean else ():
            self._owner.change(Content.drop_unheld, number)

    def __delitem__(self, key: Any) -> None:
        number, key = place_key(key, self._partitions)
        found: list[bool] = []
        self._owner.change(Content.delete, number, key, found)
        if not found[0]:
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        try:
            number, key = place_key(key, self._partitions)
        except IllegalArgumentError:  # a key that cannot be stored
            return False
        version = self._owner.version
        # While no change runs, one look-up needs no lock, which would take longer than the look-up itself.
        if not version.running and not version.successor and self._owner.guard is None:
            if version.content.parts[number].contains(key):
                return True
            if self._owner.check is None:
                return False
        return self._owner.change(Content.contains, number, key)

    def __len__(self) -> int:
        return self._owner.change(Content.count)

    def __iter__(self) -> Iterator[Any]:
        owner = self._owner
        for number in range(self._partitions):
            # The keys of one partition are copied at a time: the caller may change the state meanwhile, and a dict that
            # changes size cannot be walked through.
            for key in owner.change(Content.keys, number):
                if owner.guard is not None:
                    owner.guard(Content.keys)
                yield key

    def clear(self) -> None:
        """Remove all keys.

        Raises:
            InvalidStateError: The state is a map of a batch that has ended.

        Examples:
            >>> visits.clear()
            >>> len(visits)
            0
        """
        self._owner.change(Content.clear)

    def to_dict(self) -> dict[Any, Any]:
        """Return a plain dict of everything at one moment.

        Changes of its values do not reach the state.

        Takes less than half of the time of `dict(state)`.

        Raises:
            IllegalArgumentError: A value cannot be stored.
            InvalidStateError: The state is a map of a batch that has ended.

        Examples:
            >>> visits.to_dict()["bob"]
            {'count': 1, 'pages': []}
        """
        unpacked: list[Any] = []
        with self._packed() as parts:
            for part in parts:
                left, keys, begin = iter(part.values()), list[Any](), len(unpacked)
                while some := list(islice(left, UNPACK_BATCH)):
                    found = unpack_all(some)
                    if found is None:
                        # One by one, the error names the key of a value that is malformed.
                        keys, done = keys or list(part), len(unpacked) - begin
                        found = list(map(_unpack, keys[done : done + len(some)], some))
                    unpacked += found
            return dict(zip(chain.from_iterable(parts), unpacked, strict=True))

    @contextmanager
    def _packed(self) -> Iterator[list[dict[Any, bytes]]]:
        """Yield everything at one moment, packed, to be read and not changed.

        The content is copied only if somebody changes the state meanwhile.
        """
        reader = object()
        shared, refused = self._owner.change(Content.share, reader)
        try:
            _refuse(refused)
            yield [data for _, data in shared]
        finally:
            for part, _ in shared:
                part.unshare(reader)

    # ---- copies ---------------------------------------------------------------------------------------------------

    def __copy__(self) -> "KeyedState":
        """Return a state with equal values that is changed independently, and saved whole."""
        state = KeyedState(partitions=self._partitions)
        with self._packed() as parts:
            for part, data in zip(state._parts, parts, strict=True):
                part.restore(NEVER_SAVED, dict(data))
        state._check_save = self._check_save
        return state

    def __deepcopy__(self, memo: dict[int, Any]) -> "KeyedState":
        return self.__copy__()

    def __repr__(self) -> str:
        """Return the number of keys, or why the state is closed.

        The number is an estimate while another thread changes the state.
        """
        owner = self._owner
        if owner.guard is not None:
            try:
                owner.guard(Content.count)
            except InvalidStateError as error:
                return f"KeyedState({self.partitions} partitions, closed: {error})"
        # A debugger may ask while the thread that makes a change is stopped: this must not wait for its lock.
        count = owner.last().content.estimate()
        return f"KeyedState({count:,} keys in {self.partitions} partitions)"

    def set_guard(self, guard: Guard | None) -> None:
        """Let a guard refuse operations from now on; None allows all again.

        This is for `spark/maps.py`.

        The guard also refuses operations of bound methods, views and iterators that a caller kept.
        """
        self._owner.set_guard(guard)

    # ---- for the checkpoint layer, which saves and restores states ------------------------------------------------

    def check_saves_for_restore(self, check: Callable[[], None]) -> None:
        """Let a function raise for a save that must not be made.

        This is for `checkpoint/restore.py`.
        """
        self._check_save = check

    @classmethod
    def from_checkpoint(
        cls, parts: list[tuple[Chain, dict[Any, bytes], list[dict[Any, bytes | None]], set[type] | None]]
    ) -> "KeyedState":
        """Return the state that a checkpoint holds.

        `parts` has for each partition its chain, its packed values, the records of its deltas, and the types of its
        keys if they are known.

        Raises `InvalidStateError` if two keys are equal by the time zones of this machine. This is for
        `checkpoint/restore.py`.
        """
        state = cls(partitions=len(parts))
        made = state._parts
        saved = [SavedChain(chain, deltas) for chain, _, deltas, _ in parts]
        for part, known, (_, data, _, types) in zip(made, saved, parts, strict=True):
            part.restore(known, data, types)
        move_misplaced_keys(made)
        if len(parts) > 1:
            # Asking every key takes a fifth of the time of a restore, and much more for tuples. So it waits until
            # somebody uses more of the state than a key that is found.
            state._owner.check = lambda content: content.check_places(saved)
        return state

    def repartitioned_for_restore(self, partitions: int) -> "KeyedState":
        """Return the same mapping in another number of partitions.

        Its next save writes snapshots.

        Live values are not copied, so nobody may have used the state yet. This is for `checkpoint/restore.py`.
        """
        self._owner.pass_check()
        state = KeyedState(partitions=partitions)
        place_keys(state._parts, (pair for part in self._parts for pair in part.data.items()))
        return state

    def take_times_for_restore(self, name: str, rule: MapRule | None, clock: Clock | None) -> None:
        """Take the times off the values, and forget expired entries.

        A rule says which entries are expired. This is for `checkpoint/restore.py`, and only for a state that nobody has
        used yet.
        """
        # First, since it looks for keys of expired entries too.
        self._owner.pass_check()
        content = self._owner.last().content
        for number, part in enumerate(content.parts):
            stored = part.data
            part.data, times = living(name, stored, rule, clock)
            if rule is not None:
                content.parts[number] = expiring = ExpiringPartition.of(part, rule.since, times)
                if len(part.data) < len(stored):
                    expiring.bury(stored.keys() - part.data.keys(), rule.limit(now_of(name, clock)))
        content.rule, content.timed = rule, True

    def set_rule(self, after: int | None, now: int) -> None:
        """Let entries expire `after` microseconds after their time.

        The rule holds from `now` on. With None, entries do not expire. This is for `spark/maps.py`.
        """
        content = self._owner.last().content
        if content.rule is not None or after is not None:
            self._owner.change(Content.set_rule, after, now)

    def expire(self, now: int) -> None:
        """Forget the entries that are expired at a time. This is for `spark/maps.py`."""
        if self._owner.last().content.rule is not None:
            self._owner.change(Content.expire, now)

    @property
    def expires(self) -> bool:
        """True if entries expire. This is for `spark/maps.py`."""
        return self._owner.last().content.rule is not None

    def capture_for_checkpoint(self, chains: Mapping[int, Chain], max_chain: int, now: int | None = None) -> ChangeSet:
        """Return the changes to write on top of `chains`.

        `chains` are the operator's chains in the parent. `now` is the job's clock in microseconds since 1970, for a
        state whose entries expire.

        This is for `checkpoint/save.py`, which reports the outcome to `ChangeSet.record_outcome`. A partition writes a
        delta, a snapshot, or nothing, if its chain is the one that it was last saved in or restored from. Any other
        partition writes a snapshot, or nothing if it has neither a chain nor keys. Raises `IllegalArgumentError` for
        the first value that cannot be stored.
        """
        if self._check_save is not None:
            self._check_save()
        capture, refused = self._owner.change(Content.capture, chains, max_chain, now)
        _refuse(refused)
        if capture is None:
            raise IllegalArgumentError(
                "its entries expire, and this root has no clock: save them on the root that they were restored from, "
                "or save KeyedState(state.to_dict()), whose entries do not expire"
            )
        return capture


def _pairs_exist(given: Any) -> bool:
    """Return whether all pairs of an input exist already.

    Then the input cannot look at pairs that were set before.
    """
    if isinstance(given, dict):
        return type(given).items in _EXISTING_ITEMS
    return isinstance(given, list | tuple) and type(given).__iter__ in _EXISTING_ELEMENTS


def _batches(given: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield the existing pairs in batches."""
    left = iter(given)
    return iter(lambda: [*islice(left, WHOLE_BATCH)], [])


def _unpack(key: Any, packed: bytes) -> Any:
    """Return a value.

    Raises what `unpack` raises, with the name of the key.
    """
    try:
        return unpack(packed)
    except UNREADABLE as error:
        raise unreadable_value(key, error) from None


def _refuse(refused: Mapping[Any, UnsupportedValueError]) -> None:
    """Raise `IllegalArgumentError` for the first value that cannot be packed.

    Return if there is none.
    """
    for key, error in refused.items():
        raise IllegalArgumentError(f"key {show(key)}: {error}")


class _Items(ItemsView[Any, Any]):
    """Keys and values of a state that may lose keys meanwhile."""

    def __init__(self, state: KeyedState) -> None:
        super().__init__(state)
        self._state = state

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for key in self._state:
            value = self._state.get(key, MISSING)
            if value is not MISSING:
                yield key, value


class _Values(ValuesView[Any]):
    """Values of a state that may lose keys meanwhile."""

    def __init__(self, state: KeyedState) -> None:
        super().__init__(state)
        self._state = state

    def __iter__(self) -> Iterator[Any]:
        return (value for _, value in self._state.items())

    def __contains__(self, value: object) -> bool:
        # The base class looks up each key again, and raises `KeyError` for one that is gone by then.
        return any(found is value or found == value for found in self)
