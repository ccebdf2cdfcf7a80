"""Turn the pairs of an update into as few changes of partitions as possible."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.keyed.content import Content, Step
from pyspark_checkpointer.keyed.packing import PACK_BATCH
from pyspark_checkpointer.keyed.references import unheld
from pyspark_checkpointer.manifests.keyed_records import partitions_of, place_key
from pyspark_checkpointer.manifests.msgpack_checks import ATOMS, UnsupportedValueError
from pyspark_checkpointer.manifests.msgpack_values import pack, pack_some
from pyspark_checkpointer.manifests.shown import show


def check_key(key: Any) -> None:
    """Raise `IllegalArgumentError` for a key that cannot be stored.

    `place_key` has checked those of a plain type.
    """
    if type(key) in ATOMS:
        return
    try:
        pack(key)
    except UnsupportedValueError as error:
        raise IllegalArgumentError(f"key {show(key)}: {error}") from None


def pack_plain(value: Any) -> bytes | None:
    """Return a value packed if it cannot change, else None.

    None also if the value cannot be stored; a save will say so.
    """
    if type(value) not in ATOMS:
        return None
    try:
        return pack(value)
    except UnsupportedValueError:
        return None


def steps_to_set(pairs: list[Any], partitions: int, *, are_held: bool) -> Iterator[Step]:
    """Yield the changes that set pairs, and empty the list.

    Pairs of the usual types are set by one change for each partition. `are_held` says that somebody else holds all
    values until the pairs are set.

    Raises what a dict would for the first that is no pair, once those before it were yielded.
    """
    keys, values, failure = _split(pairs)
    pairs.clear()  # a value that the list still holds would count as held
    yield from steps_to_set_each(keys, values, partitions, are_held=are_held)
    if failure is not None:
        raise failure


def steps_to_set_each(keys: list[Any], values: list[Any], partitions: int, *, are_held: bool) -> Iterator[Step]:
    """Yield the changes that set each key to its value, as `steps_to_set` does.

    The list of values may be empty afterwards.
    """
    types = set(map(type, values))
    all_plain = types <= ATOMS
    # The fast ways take values of one sort only: plain ones are packed now, others become live. A mixed batch is set
    # pair by pair, since the last value of a key counts, of whichever sort it is.
    numbers = partitions_of(keys, partitions) if all_plain or types.isdisjoint(ATOMS) else None
    # What nobody else holds cannot change any more. It is packed now, and not looked at again.
    at_once = numbers is not None and (all_plain or (not are_held and all(unheld(values, dicts=0))))
    # Partition by partition, so that the packed values of one lie together in memory. A full save reads them in this
    # order, and waits for memory most of its time.
    places = _by_partition(numbers or [])
    ordered = [values[place] for some in places.values() for place in some]
    packed = _pack_whole(ordered) if at_once else None
    if numbers is None or (packed is None and all_plain):
        for key, value in zip(keys, values, strict=True):
            yield _step_to_set(key, value, partitions)
    else:
        operation = Content.assign if packed is None else Content.set_all_packed
        left = iter(ordered if packed is None else packed)
        # Nobody needs a value that is packed. Others are held by `left` until they are assigned.
        values.clear()
        del ordered
        for number, some in places.items():
            yield operation, (number, dict(zip([keys[place] for place in some], islice(left, len(some)), strict=True)))


def _by_partition(numbers: list[int]) -> Mapping[int, list[int]]:
    """Return by partition at which places of `numbers` it stands."""
    places: defaultdict[int, list[int]] = defaultdict(list)
    for place, number in enumerate(numbers):
        places[number].append(place)
    return places


def _split(pairs: list[Any]) -> tuple[list[Any], list[Any], Exception | None]:
    """Return the keys and values of pairs, up to the first malformed pair.

    The last result is the error of that pair.
    """
    if {*map(type, pairs)} == {tuple} and {*map(len, pairs)} == {2}:
        return list(map(_FIRST, pairs)), list(map(_SECOND, pairs)), None
    keys, values = [], []
    try:
        for key, value in pairs:
            keys.append(key)
            values.append(value)
    except (TypeError, ValueError) as error:  # one that is no pair
        return keys, values, error
    return keys, values, None


_FIRST, _SECOND = itemgetter(0), itemgetter(1)


def _step_to_set(key: Any, value: Any, partitions: int) -> Step:
    """Return the change that sets one key."""
    number, key = place_key(key, partitions)
    if type(key) not in ATOMS:
        check_key(key)
    if type(value) in ATOMS:
        try:  # as `pack_plain`, without one more call for each pair
            return Content.set_all_packed, (number, {key: pack(value)})
        except UnsupportedValueError:
            pass  # it is kept as a live object, and refused by name when the state is saved
    return Content.assign, (number, {key: value})


def _pack_whole(values: list[Any]) -> list[bytes] | None:
    """Return values packed; None where one cannot be stored, or where they are large."""
    packed: list[bytes] = []
    try:
        for start in range(0, len(values), PACK_BATCH):
            packed += pack_some(some := values[start : start + PACK_BATCH])
            if len(packed) < start + len(some):
                return None
    except UnsupportedValueError:
        return None
    return packed


def gather_steps(steps: Iterable[Step], gathered: list[Step]) -> None:
    """Add steps to `gathered`.

    Steps that follow each other in one partition and do the same share one dict.
    """
    last: dict[int, Step] = {}
    for operation, (number, values) in steps:
        before = last.get(number)
        # Only the latest step of its partition is extended: a step of another kind in between has to come first.
        if before is not None and before[0] is operation:
            before[1][1].update(values)
        else:
            last[number] = (operation, (number, values))
            gathered.append(last[number])
