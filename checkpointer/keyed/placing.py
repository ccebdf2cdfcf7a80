"""Place keys in the partitions in which they are looked up."""

from collections.abc import Iterable
from typing import Any

from pyspark_checkpointer.keyed.key_kinds import MIXED
from pyspark_checkpointer.keyed.partition import NEVER_SAVED, MapPartition
from pyspark_checkpointer.manifests.equal_keys import find_key, is_zoned, now_equal
from pyspark_checkpointer.manifests.keyed_records import place_key


def move_misplaced_keys(parts: list[MapPartition]) -> None:
    """Move each key to the partition in which it is looked up.

    The partition of a key with a named zone depends on the rules of that zone, which may have changed since the key was
    written. The partitions that lose or gain a key are written whole with the next save.
    """
    misplaced = []
    for number, part in enumerate(parts):
        # Only a MIXED partition can have a time as a key. A scan of all keys of the others would be slow.
        if part.key_kinds is MIXED:
            keys = [key for key in part.data if is_zoned(key) and place_key(key, len(parts))[0] != number]
            misplaced += [(key, part.data.pop(key)) for key in keys]
            part.saved = NEVER_SAVED if keys else part.saved
    if misplaced:
        place_keys(parts, misplaced)


def place_keys(parts: list[MapPartition], pairs: Iterable[tuple[Any, bytes]]) -> None:
    """Add keys that are not in any partition yet.

    Raises `InvalidStateError` for a key that is now equal to another one.
    """
    for stored, packed in pairs:
        number, key = place_key(stored, len(parts))
        part = parts[number]
        # Checked before it is set: a dict would silently keep one of the two keys and lose the value of the other.
        if key in part.data:
            raise now_equal(find_key(part.data, key), key)
        part.data[key] = packed
        part.saved, part.is_new = NEVER_SAVED, False
    for part in parts:
        part.learn_keys()
