"""Compute the partition of a key without Spark.

The partition is Spark's `pmod(hash(keys), partitions)`. Spark hashes with 32-bit Murmur3 from seed 42, column by
column; the hash of one column is the seed of the next. A null leaves the hash unchanged.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.table.schema import PARTITION, TableSchema

_SEED = 42
_INTS = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.date32())
_MAX_CHECKED_PARTITIONS = 64
"""The most partitions of a task that are checked, by one row of each."""

_GATHERED_BYTES = 1 << 20
"""The most bytes of texts that are hashed at once."""

_MAX_LONG_DECIMAL_DIGITS = 18
"""Digits up to which Spark hashes a decimal as a 64-bit integer, not as bytes."""


def partitions_of(keys: pa.Table, schema: TableSchema, partitions: int) -> list[int]:
    """Return the partition of each row of `keys`, which has the key columns."""
    return _partitions_of(keys, schema, partitions).tolist()  # type: ignore[no-any-return]


def with_partitions(rows: pa.Table, schema: TableSchema, partitions: int) -> pa.Table:
    """Return rows with the partition of each as a column, unless they have it."""
    if PARTITION in rows.column_names:
        return rows
    return rows.append_column(PARTITION, pa.array(_partitions_of(rows, schema, partitions), pa.int32()))


def _partitions_of(keys: pa.Table, schema: TableSchema, partitions: int) -> Any:
    stored = schema.arrow_key()
    return partitions_by_type(keys.select(stored.names).cast(stored), partitions)


def partitions_by_type(keys: pa.Table, partitions: int) -> Any:
    """Return the partition of each row of `keys`, by the types of its columns."""
    # Python's `%` of a negative number is not negative, which is what Spark's `pmod` returns. numpy's is the same.
    return hashes_of(keys, _SEED).view(np.int32).astype(np.int64) % partitions


def hashes_of(keys: pa.Table, seed: int) -> Any:
    """Return the hash of each row, as unsigned integers of 32 bits.

    All columns are hashed, in their order.
    """
    hashes = np.full(keys.num_rows, seed, np.uint32)
    for name, values in zip(keys.column_names, keys.columns, strict=True):
        at = 0
        for chunk in values.chunks:
            here = slice(at, at + len(chunk))
            hashes[here] = _with_nulls(chunk, name, hashes[here])
            at += len(chunk)
    return hashes


def _with_nulls(values: pa.Array, name: str, seeds: Any) -> Any:
    """Return the hashes of values. A null leaves the hash as it is."""
    if values.null_count == len(values):
        return seeds
    if not values.null_count:
        return _hash_column(values, name, seeds)
    there = values.is_valid().to_numpy(zero_copy_only=False)
    found = seeds.copy()
    found[there] = _hash_column(values.drop_null(), name, seeds[there])
    return found


def check_row_partitions(rows: pa.Table, schema: TableSchema, partitions: int, table: str) -> None:
    """Raise `InvalidStateError` where Spark put rows into wrong partitions.

    Readers would look for these rows in other partitions. The rows are in order of their partitions. One row of a
    partition is enough to tell.
    """
    numbers, firsts = np.unique(rows[PARTITION].to_numpy(), return_index=True)
    firsts, found = firsts[:_MAX_CHECKED_PARTITIONS].tolist(), numbers[:_MAX_CHECKED_PARTITIONS].tolist()
    keys = rows.select(schema.key)
    # Not by `take`: of all chunks Arrow would make one array first, which fails for 2 GiB of texts.
    sample = pa.concat_tables([keys.slice(0, 0), *(keys.slice(first, 1) for first in firsts)]).combine_chunks()
    # A row that is in a partition other than its key's would never be found again, as readers look only there.
    right = partitions_of(sample, schema, partitions)
    if len(numbers) and (numbers[0] < 0 or numbers[-1] >= partitions or found != right):
        raise InvalidStateError(
            f"table {table!r}: of {partitions} partitions, Spark put keys into {found}, but they belong to {right}: "
            "this version of Spark may hash keys in another way, so use one that this library supports; or this "
            "session has a function of its own that is named hash or pmod: give it another name"
        )


def _hash_column(values: pa.Array, name: str, seeds: Any) -> Any:
    """Return the hashes of values that are not null, each with its own seed."""
    kind = values.type
    if kind in _INTS:
        return _hash_int(values.cast(pa.int32()).to_numpy().astype(np.int64), seeds)
    if pa.types.is_floating(kind):
        # All NaNs are one value, and so are both zeros: adding 0.0 turns -0.0 into 0.0. This NaN is the one of Java.
        numbers = values.to_numpy() + kind.to_pandas_dtype()(0.0)
        numbers = np.where(np.isnan(numbers), kind.to_pandas_dtype()("nan"), numbers)
        if kind == pa.float32():
            return _hash_int(numbers.view(np.int32).astype(np.int64), seeds)
        return _hash_long(numbers.view(np.int64), seeds)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        ends = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
        # Arrow may have no buffer where all texts are empty.
        return _hash_texts(np.frombuffer(values.buffers()[2] or b"", np.uint8), ends.astype(np.int64), seeds)
    if pa.types.is_decimal(kind):
        # Arrow holds a decimal as an unscaled integer of 128 bits, the lower half first.
        halves = np.frombuffer(values.buffers()[1], np.int64).reshape(-1, 2)[
            values.offset : values.offset + len(values)
        ]
        if kind.precision <= _MAX_LONG_DECIMAL_DIGITS:
            return _hash_long(halves[:, 0], seeds)
        return _hash_long_decimals(halves, seeds)
    if pa.types.is_temporal(kind) or kind == pa.int64():
        return _hash_long(values.cast(pa.int64()).to_numpy(), seeds)
    raise IllegalArgumentError(f"column {name!r}: a key of this type is not hashed here: read without keys")


def _hash_texts(data: Any, ends: Any, seeds: Any) -> Any:
    """Hash texts, all texts of one length at once.

    `ends` has the place where each text begins, and the place where the last one ends.
    """
    found, starts, lengths = np.empty_like(seeds), ends[:-1], np.diff(ends)
    by_length = np.argsort(lengths, kind="stable")
    sizes, firsts = np.unique(lengths[by_length], return_index=True)
    for size, first, last in zip(sizes.tolist(), firsts, [*firsts[1:], len(lengths)], strict=True):
        texts = np.lib.stride_tricks.sliding_window_view(data, size) if size else np.empty((len(data) + 1, 0), np.uint8)
        # A part of them at a time: hashing takes many times their memory.
        step = max(_GATHERED_BYTES // max(size, 1), 1)
        for begin in range(first, last, step):
            some = by_length[begin : min(begin + step, last)]
            found[some] = _hash_bytes(texts[starts[some]], seeds[some])
    return found


def _hash_long_decimals(halves: Any, seeds: Any) -> Any:
    """Hash the bytes of Java's BigInteger.

    They are two's complement, big-endian, as short as possible.
    """
    data = np.ascontiguousarray(halves[:, ::-1]).astype(">i8").view(np.uint8).reshape(-1, 16)
    sign = (data[:, :1] >> 7) * np.uint8(255)
    # A byte is needed if it, or the highest bit of the next one, says more than the sign.
    tells = (data != sign)[:, :-1] | ((data[:, 1:] ^ sign) > 127)
    firsts = np.where(tells.any(axis=1), tells.argmax(axis=1), 15)
    found = np.empty_like(seeds)
    for first in np.unique(firsts).tolist():
        some = firsts == first
        found[some] = _hash_bytes(data[some, first:], seeds[some])
    return found


def _hash_int(values: Any, seeds: Any) -> Any:
    return _finish(_mix(seeds, _word(values)), 4)


def _hash_long(values: Any, seeds: Any) -> Any:
    return _finish(_mix(_mix(seeds, _word(values)), _word(values >> 32)), 8)


def _hash_bytes(data: Any, seeds: Any) -> Any:
    """Hash texts of one length, one in each row.

    Whole words are hashed first, then each remaining byte as a signed word. Only Spark's Murmur3 has signed words
    there.
    """
    size = data.shape[1]
    words = np.ascontiguousarray(data[:, : size - size % 4]).view("<u4")
    for at in range(words.shape[1]):
        seeds = _mix(seeds, words[:, at].astype(np.uint32))
    for at in range(size - size % 4, size):
        seeds = _mix(seeds, _word(data[:, at].astype(np.int8).astype(np.int64)))
    return _finish(seeds, size)


def _word(values: Any) -> Any:
    """Return the lower 32 bits of integers of 64 bits."""
    return (values & 0xFFFFFFFF).astype(np.uint32)


def _mix(hashed: Any, word: Any) -> Any:
    # Arrays of 32 bits wrap around, as Java's integers do.
    word = word * np.uint32(0xCC9E2D51)
    word = (word << np.uint32(15)) | (word >> np.uint32(17))
    hashed = hashed ^ (word * np.uint32(0x1B873593))
    hashed = (hashed << np.uint32(13)) | (hashed >> np.uint32(19))
    return hashed * np.uint32(5) + np.uint32(0xE6546B64)


def _finish(hashed: Any, length: int) -> Any:
    hashed = hashed ^ np.uint32(length)
    hashed = (hashed ^ (hashed >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    hashed = (hashed ^ (hashed >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return hashed ^ (hashed >> np.uint32(16))
