"""Compute the partition of a key without Spark.

The partition is Spark's `pmod(hash(keys), partitions)`. Spark hashes with 32-bit Murmur3 from seed 42, column by
column; the hash of one column is the seed of the next. A null leaves the hash unchanged.
"""

import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.table.schema import PARTITION, Column, TableSchema

_SEED = 42
_MASK = 0xFFFFFFFF
_INTS = ("boolean", "byte", "short", "integer", "date")
_MAX_CHECKED_PARTITIONS = 64
"""The most partitions of a task that are checked, by one row of each.

Hashing in Python takes microseconds a key.
"""

_MAX_LONG_DECIMAL_DIGITS = 18
"""Digits up to which Spark hashes a decimal as a 64-bit integer, not as bytes."""


def partitions_of(keys: pa.Table, schema: TableSchema, partitions: int) -> list[int]:
    """Return the partition of each row of `keys`, which has the key columns."""
    hashes = [_SEED] * keys.num_rows
    for column in schema.columns:
        if column.role == "key":
            hash_value = _hasher(column)
            for row, value in enumerate(_plain(keys[column.name], column)):
                if value is not None:
                    hashes[row] = hash_value(value, hashes[row])
    # Python's `%` of a negative number is not negative, which is what Spark's `pmod` returns.
    return [_signed(value) % partitions for value in hashes]


def check_partitions(rows: pa.Table, schema: TableSchema, partitions: int, table: str) -> None:
    """Raise `InvalidStateError` where Spark put rows into wrong partitions.

    Readers would look for these rows in other partitions. The rows are in order of their partitions. One row of a
    partition is enough to tell.
    """
    numbers, firsts = np.unique(rows[PARTITION].to_numpy(), return_index=True)
    sample, found = (
        rows.select(schema.key).take(pa.array(firsts[:_MAX_CHECKED_PARTITIONS])),
        numbers[:_MAX_CHECKED_PARTITIONS].tolist(),
    )
    # A row that is in a partition other than its key's would never be found again, as readers look only there.
    right = partitions_of(sample, schema, partitions)
    if len(numbers) and (numbers[0] < 0 or numbers[-1] >= partitions or found != right):
        raise InvalidStateError(
            f"table {table!r}: of {partitions} partitions, Spark put keys into {found}, but they belong to {right}: "
            "this version of Spark may hash keys in another way; use one that this library supports"
        )


def _plain(values: pa.ChunkedArray, column: Column) -> list[Any]:
    """Return the values as Spark hashes them: as Python numbers, bytes or decimals."""
    kind = column.field().type
    # The type decides the hash: to Spark 5 as an integer and 5 as a long are different keys.
    values = values.cast(kind)
    # Spark hashes dates as days and times as microseconds, which are the integers that Arrow stores.
    if pa.types.is_date32(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_temporal(kind):
        values = values.cast(pa.int64())
    elif pa.types.is_string(kind):
        values = values.cast(pa.binary())  # Spark has strings that are not UTF-8, which Python cannot decode.
    return values.to_pylist()  # type: ignore[no-any-return]


def _hasher(column: Column) -> Callable[[Any, int], int]:
    kind: Json = column.type
    if kind in _INTS:
        return lambda value, seed: _hash_int(int(value), seed)
    if kind == "float":
        return lambda value, seed: _hash_int(_bits("<f", "<i", value), seed)
    if kind == "double":
        return lambda value, seed: _hash_long(_bits("<d", "<q", value), seed)
    if kind in ("string", "binary"):
        return _hash_bytes
    arrow = column.field().type
    if pa.types.is_decimal(arrow):
        return _hash_short_decimal if arrow.precision <= _MAX_LONG_DECIMAL_DIGITS else _hash_long_decimal
    if pa.types.is_temporal(arrow) or kind == "long":
        return _hash_long
    raise IllegalArgumentError(f"column {column.name!r}: a key of this type is not hashed here: read without keys")


def _bits(real: str, integer: str, value: float) -> int:
    """Return the bits of a float as an integer.

    All NaNs are one value, and so are both zeros.
    """
    # Adding 0.0 turns -0.0 into 0.0. `float("nan")` has the bits of the one NaN that Java writes.
    found: int = struct.unpack(integer, struct.pack(real, float("nan") if value != value else value + 0.0))[0]
    return found


def _unscaled(value: Decimal) -> int:
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits)))
    return -number if sign else number


def _hash_short_decimal(value: Decimal, seed: int) -> int:
    return _hash_long(_unscaled(value), seed)


def _hash_long_decimal(value: Decimal, seed: int) -> int:
    """Hash the bytes of Java's BigInteger.

    They are two's complement, big-endian, as short as possible.
    """
    number = _unscaled(value)
    length = (number if number >= 0 else ~number).bit_length() // 8 + 1
    return _hash_bytes(number.to_bytes(length, "big", signed=True), seed)


def _hash_int(value: int, seed: int) -> int:
    return _finish(_mix(seed, value & _MASK), 4)


def _hash_long(value: int, seed: int) -> int:
    return _finish(_mix(_mix(seed, value & _MASK), value >> 32 & _MASK), 8)


def _hash_bytes(value: bytes, seed: int) -> int:
    """Hash whole words, then each remaining byte as a signed word.

    Only Spark's Murmur3 does this.
    """
    whole = len(value) - len(value) % 4
    for (word,) in struct.iter_unpack("<I", value[:whole]):
        seed = _mix(seed, word)
    for byte in value[whole:]:
        seed = _mix(seed, (byte - 256 if byte > 127 else byte) & _MASK)
    return _finish(seed, len(value))


def _mix(hashed: int, word: int) -> int:
    # Python's integers do not wrap around, so each step is cut to 32 bits.
    word = word * 0xCC9E2D51 & _MASK
    word = (word << 15 | word >> 17) & _MASK
    hashed ^= word * 0x1B873593 & _MASK
    hashed = (hashed << 13 | hashed >> 19) & _MASK
    return (hashed * 5 + 0xE6546B64) & _MASK


def _finish(hashed: int, length: int) -> int:
    hashed ^= length
    hashed = (hashed ^ hashed >> 16) * 0x85EBCA6B & _MASK
    hashed = (hashed ^ hashed >> 13) * 0xC2B2AE35 & _MASK
    return hashed ^ hashed >> 16


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
