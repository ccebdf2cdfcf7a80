"""Make and ask the filter of a pack.

It says of most keys that the pack does not hold them. It is a Bloom filter in blocks of 32 bytes, as it lies in the
file: eight words of 32 bits, little-endian. A key has one hash of 32 bits. It chooses a block, and one bit in each word
of the block. A key that the pack holds has all of its bits set. About one of 170 other keys has, too.

One hash is enough: with a million keys in a pack, one of 4,000 others has the hash of one of them.
"""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.table.hashing import hashes_of, partitions_by_type
from pyspark_checkpointer.table.schema import PARTITION

FILTER_KEY = "checkpointer.filter"
"""The key of the filter in the metadata of a file: where it begins, its length, and its SHA-256."""

BITS_PER_KEY = 12
"""With 10 twice as many keys that are not there are taken to be there, with 16 a quarter as many."""

_SEED = 43
"""Not that of partitions: all keys of one partition would have hashes with the same remainder."""

_SALTS = np.array(
    [0x6A09E667, 0xBB67AE85, 0x3C6EF373, 0xA54FF53B, 0x510E527F, 0x9B05688D, 0x1F83D9AB, 0x5BE0CD19], np.uint32
)
"""The factors that make the bit of each word: the fractions of the square roots of the first primes, made odd."""

_WORDS = len(_SALTS)
_BLOCK_BYTES = 4 * _WORDS
_BLOCK_BITS = 8 * _BLOCK_BYTES


def key_hashes(keys: pa.Table) -> Any:
    """Return the hash of each key, by the types of its columns."""
    return hashes_of(keys, _SEED)


def build_filter(hashes: Any) -> bytes:
    """Return the filter of the keys with these hashes."""
    blocks = -(-len(hashes) * BITS_PER_KEY // _BLOCK_BITS)
    bits = np.zeros(blocks * _BLOCK_BITS, bool)
    firsts = _block_of(hashes, blocks) * _BLOCK_BITS
    for word, salt in enumerate(_SALTS):
        bits[firsts + (32 * word + (hashes * salt >> np.uint32(27)))] = True
    return np.packbits(bits, bitorder="little").tobytes()


def _block_of(hashes: Any, blocks: int) -> Any:
    return (hashes.astype(np.uint64) * np.uint64(blocks) >> np.uint64(32)).astype(np.int64)


class KeyFilter(NamedTuple):
    """The filter of a file, and the types that the file has stored its key columns in."""

    words: Any
    """An array of two dimensions: the words of each block."""
    kinds: tuple[pa.DataType, ...]

    @classmethod
    def parse(cls, data: bytes, kinds: Sequence[pa.DataType]) -> Self:
        """Read a filter. Raises `ValueError` for bytes that are no whole blocks."""
        return cls(np.frombuffer(data, "<u4").reshape(-1, _WORDS), tuple(kinds))

    def may_hold(self, hashes: Any) -> Any:
        """Return for each hash whether the file may hold a key that has it."""
        found = self.words[_block_of(hashes, len(self.words))]
        bits = np.uint32(1) << (hashes[:, None] * _SALTS >> np.uint32(27))
        return (found & bits != 0).all(axis=1)


class SoughtKeys:
    """Keys that are sought in many packs of a table, and their filters' hashes.

    `key` are the names of their columns. A file may have stored narrower types than the table has now. These types
    decide the hash of a key, and also its partition. If a wider type would change the partitions of keys, all rows were
    written again.
    """

    def __init__(self, keys: pa.Table, key: Sequence[str], partitions: int) -> None:
        self.keys = keys
        self._key = list(key)
        self._partitions = partitions
        self._known: dict[tuple[pa.DataType, ...], tuple[pa.Table, Any] | None] = {}
        """The keys with their partitions, and their hashes, by the types of a file."""
        self._lock = threading.Lock()

    def may_be_in(self, found: KeyFilter) -> pa.Table | None:
        """Return the keys that a pack with this filter may hold, with their partitions.

        Returns None where nothing is known of them.
        """
        with self._lock:  # Packs are decoded in several threads, and hashing takes longer than all else.
            if found.kinds not in self._known:
                self._known[found.kinds] = self._look(found.kinds)
        if (known := self._known[found.kinds]) is None:
            return None
        keys, hashes = known
        return keys.filter(pa.array(found.may_hold(hashes)))

    def _look(self, kinds: Sequence[pa.DataType]) -> tuple[pa.Table, Any] | None:
        """Return the keys with their partitions, and their hashes, by some types.

        A key that a narrower type does not have becomes any other one: the file does not hold it, whatever the filter
        says. Returns None where Arrow cannot cast a key, or a type is not hashed.
        """
        keys = self.keys.select(self._key)
        try:
            columns = [values.cast(kind, safe=False) for values, kind in zip(keys.columns, kinds, strict=True)]
            stored = pa.table(columns, names=self._key)
            numbers = pa.array(partitions_by_type(stored, self._partitions), pa.int32())
            return keys.append_column(PARTITION, numbers), key_hashes(stored)
        except (pa.ArrowException, IllegalArgumentError):
            return None


__all__ = ["FILTER_KEY", "KeyFilter", "SoughtKeys", "build_filter", "key_hashes"]
