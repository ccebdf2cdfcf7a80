"""Pack many values of a partition at once, and find those that changed.

A value changed if its bytes differ from the known ones.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from pyspark_checkpointer.manifests.msgpack_values import UnsupportedValueError, pack, pack_some

PACK_BATCH = 256
"""Values packed, or keys looked up, in one batch.

The second time they are in the cache.
"""


def pack_batches(
    values: Iterable[tuple[Any, Any]], refused: dict[Any, UnsupportedValueError]
) -> Iterator[dict[Any, bytes]]:
    """Yield batches of packed values by key.

    For each value that cannot be stored, its error is added to `refused`.
    """
    left = iter(values)
    while batch := dict(islice(left, PACK_BATCH)):
        keys = list(batch)
        done = 0
        while rest := keys[done:]:
            try:
                packed = pack_some(list(batch.values())[done:])
            except UnsupportedValueError:
                # `pack_some` does not say which value it refused. The user is told the key.
                yield _pack_one_by_one({key: batch[key] for key in rest}, refused)
                break
            # Where values are large, `pack_some` packs only the first of them.
            yield dict(zip(rest, packed, strict=False))
            done += len(packed)


def _pack_one_by_one(values: dict[Any, Any], refused: dict[Any, UnsupportedValueError]) -> dict[Any, bytes]:
    """Return the values that can be packed.

    For each value that cannot, its error is added to `refused`.
    """
    packed = {}
    for key, value in values.items():
        try:
            packed[key] = pack(value)
        except UnsupportedValueError as error:
            refused[key] = error
    return packed


def differing(known: dict[Any, bytes], packed: dict[Any, bytes]) -> dict[Any, bytes]:
    """Return the entries of `packed` that are not the same in `known`."""
    if not known:
        return packed
    before = list(map(known.get, packed))
    # Mostly nothing differs, and comparing two lists tells that without a loop in Python.
    if before == list(packed.values()):
        return {}
    return {key: now for (key, now), old in zip(packed.items(), before, strict=True) if now != old}
