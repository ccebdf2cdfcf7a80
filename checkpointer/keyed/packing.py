"""Pack many values of a partition at once, and find those that changed.

A value changed if its bytes differ from the known ones.
"""

from collections.abc import Collection, Iterator
from itertools import compress, islice
from operator import ne
from typing import Any

from pyspark_checkpointer.keyed.references import unheld
from pyspark_checkpointer.manifests.msgpack_checks import UnsupportedValueError
from pyspark_checkpointer.manifests.msgpack_values import pack, pack_some

PACK_BATCH = 256
"""Values packed, or keys looked up, in one batch.

So few that the processor still has all of them in its cache when they are looked at again.
"""


def pack_batches(
    live: dict[Any, Any],
    refused: dict[Any, UnsupportedValueError],
    free: list[Any],
    *,
    only_free: bool = False,
) -> Iterator[tuple[list[Any], list[bytes]]]:
    """Yield batches of the keys of live values, and of their packed values.

    For each value that cannot be stored, its error is added to `refused`. The keys of values that nobody else holds are
    added to `free`; with `only_free` only these values are packed.
    """
    left, rest = iter(live), iter(live.values())
    while keys := list(islice(left, PACK_BATCH)):
        values = list(islice(rest, PACK_BATCH))
        # Before they are packed: whoever holds a value while it is packed may change it after that, and let it go.
        # Also, a look at a value brings it into the cache.
        found = unheld(values)
        free += compress(keys, found)
        if only_free:
            keys, values = list(compress(keys, found)), list(compress(values, found))
        while keys:
            try:
                packed = pack_some(values)
            except UnsupportedValueError:
                # `pack_some` does not say which value it refused. The user is told the key.
                yield _pack_one_by_one(keys, values, refused)
                break
            # Where values are large, `pack_some` packs only the first of them.
            done = len(packed)
            yield keys[:done], packed
            keys, values = keys[done:], values[done:]


def _pack_one_by_one(
    keys: list[Any], values: list[Any], refused: dict[Any, UnsupportedValueError]
) -> tuple[list[Any], list[bytes]]:
    """Return the values that can be packed, after their keys.

    For each value that cannot, its error is added to `refused`.
    """
    packed = {}
    for key, value in zip(keys, values, strict=True):
        try:
            packed[key] = pack(value)
        except UnsupportedValueError as error:
            refused[key] = error
    return list(packed), list(packed.values())


def differing(known: dict[Any, bytes], keys: Collection[Any], packed: list[bytes]) -> dict[Any, bytes]:
    """Return the packed values that are not the same in `known`, by their keys."""
    if not known:
        return dict(zip(keys, packed, strict=True))
    before = list(map(known.get, keys))
    # Mostly nothing differs, or everything does. Comparing tells that without a loop in Python.
    if before == packed:
        return {}
    if all(map(ne, packed, before)):
        return dict(zip(keys, packed, strict=True))
    return {key: now for key, now, old in zip(keys, packed, before, strict=True) if now != old}
