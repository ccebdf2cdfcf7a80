"""Encode a partition of keyed state as stored bytes, and decode it.

The codec is `msgpack+zstd`.

The bytes are a zstd frame around pairs of msgpack arrays, one pair after the other. An array has at most
`CHUNK_ENTRIES` entries. The first array of a pair has the keys. The second has as many values, each a packed value, or
nil if the key was deleted. Values stay packed until somebody asks for them. Two arrays are packed and unpacked faster
than a map, for which Python builds a dict for each chunk.
"""

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain, islice, repeat
from math import isnan
from operator import mod, ne
from typing import Any
from uuid import UUID
from zlib import crc32

import msgpack
import zstandard

from pyspark_checkpointer.manifests.equal_keys import find_key, is_zoned, now_equal
from pyspark_checkpointer.manifests.errors import IllegalArgumentError, InvalidStateError, MalformedError
from pyspark_checkpointer.manifests.idle import Idle
from pyspark_checkpointer.manifests.model import Chain
from pyspark_checkpointer.manifests.msgpack_checks import BAD_VALUE, cut_whole
from pyspark_checkpointer.manifests.msgpack_values import MAX_DEPTH, from_extension, pack, pack_checked
from pyspark_checkpointer.manifests.shown import show
from pyspark_checkpointer.manifests.zones import HOLDERS, normalise
from pyspark_checkpointer.manifests.zstd import decompress_pieces

CHUNK_ENTRIES = 4096
"""Entries that are packed at once.

Packing them holds the interpreter's lock, and other threads wait for that long.
"""

CHUNK_BYTES = 1 << 20
"""Bytes of values that are packed at once.

A packer keeps the memory of the most it ever packed.
"""

ZSTD_LEVEL = 1

Records = Mapping[Any, bytes | None]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_compressors = Idle(lambda: zstandard.ZstdCompressor(level=ZSTD_LEVEL))
"""Compressors that are kept for reuse: to make the tables of one takes longer than to compress a small delta."""


def encode(records: Records) -> tuple[bytes, int]:
    """Return the stored bytes, and their size before compression."""
    compressors = _compressors.take()
    compressor, stored, raw_size = compressors.compressobj(), io.BytesIO(), 0
    for keys, values, size in _chunks(records):
        for raw in _raw(keys, values, size):
            raw_size += len(raw)
            stored.write(compressor.compress(raw))
    stored.write(compressor.flush())
    _compressors.put_back(compressors)
    return stored.getvalue(), raw_size


def _raw(keys: list[Any], values: list[bytes | None], size: int) -> Iterator[bytes | memoryview]:
    """Yield the two arrays as msgpack. The values have `size` bytes.

    Large values come in pieces that are not copied.
    """
    if size <= 4 * CHUNK_BYTES:
        yield pack_checked(keys, values)
        return
    # 0xdd begins an array, 0xc6 binary data, each with a length of 32 bits. A packer would copy all large values into
    # its buffer first, and keep the memory.
    yield pack_checked(keys) + b"\xdd" + len(values).to_bytes(4, "big")
    for value in values:
        if value is None or not CHUNK_BYTES < len(value) < 2**32:
            yield pack(value)
            continue
        yield b"\xc6" + len(value).to_bytes(4, "big")
        for start in range(0, len(value), CHUNK_BYTES):
            yield memoryview(value)[start : start + CHUNK_BYTES]


def _chunks(records: Records) -> Iterator[tuple[list[Any], list[bytes | None], int]]:
    """Yield keys, values and their bytes, in chunks of at most `CHUNK_ENTRIES`.

    Where values are large, a chunk has about `CHUNK_BYTES`.
    """
    left, rest = iter(records), iter(records.values())
    while keys := list(islice(left, CHUNK_ENTRIES)):
        values = list(islice(rest, CHUNK_ENTRIES))
        size = sum(map(len, filter(None, values)))
        if size <= CHUNK_BYTES:
            yield keys, values, size
            continue
        start = size = 0
        for end, value in enumerate(values, 1):
            size += len(value or b"")
            if size >= CHUNK_BYTES:
                yield keys[start:end], values[start:end], size
                start, size = end, 0
        if start < len(keys):
            yield keys[start:], values[start:], size


def decode(name: str, stored: bytes | bytearray | memoryview, raw_size: int, records: int) -> dict[Any, bytes | None]:
    """Return the input of `encode`. `name` is the name of the object in errors."""
    decoded: dict[Any, bytes | None] = {}
    kinds: set[type] = set()
    end = 0
    # The default limit of msgpack is 100 MiB, and 0 means almost no limit.
    unpacker = msgpack.Unpacker(strict_map_key=False, ext_hook=from_extension, max_buffer_size=max(raw_size, 1))
    arrays: list[list[Any]] = []
    try:
        for whole in cut_whole(decompress_pieces(name, bytes(stored), raw_size), raw_size):
            unpacker.feed(whole)
            for array in unpacker:
                if type(array) is not list:
                    raise TypeError(f"found a {type(array).__name__}")
                arrays.append(array)
                if len(arrays) == 2:
                    keys, values = arrays
                    _check_keys(keys)
                    size = len(decoded) + len(keys)
                    decoded.update(zip(keys, values, strict=True))
                    kinds.update(map(type, values))
                    if b"" in values:  # No value is packed as nothing, and a map takes it for one not yet packed.
                        raise ValueError("an empty value")
                    if len(decoded) < size:
                        # Keys that are equal by Python's rules alone pass here. They are bad bytes, and the number of
                        # entries below tells.
                        _refuse_equal(decoded, keys)
                    arrays.clear()
                # Taken here, since after an array that is cut short `tell` counts bytes that were not used.
                end = unpacker.tell()
    except InvalidStateError as error:  # which zones this machine has, and their rules
        raise type(error)(f"{name}: {error}") from None
    except MalformedError as error:
        if str(error).startswith(f"{name}: "):
            raise
        raise MalformedError(f"{name}: {error}") from None  # of a part of a key
    except BAD_VALUE as error:
        raise MalformedError(f"{name}: expected pairs of msgpack arrays: {error}") from None
    if arrays or end != raw_size or len(decoded) != records or not kinds <= {bytes, type(None)}:
        raise MalformedError(f"{name}: expected {records} entries of packed values, found {len(decoded)}")
    return decoded


def _refuse_equal(decoded: Records, keys: list[Any]) -> None:
    """Raise `InvalidStateError` for a key that is equal to another one.

    The rules of named zones decide which keys are equal.
    """
    first: dict[Any, Any] = {}
    for key in keys:
        other = first.setdefault(key, key)
        other = find_key(decoded, key) if other is key else other
        if other is not key and (is_zoned(key) or is_zoned(other)):
            raise now_equal(other, key)
    raise ValueError("two keys are equal")


_NUMBERS = frozenset({int, bool, float})


def _check_keys(keys: Sequence[Any]) -> None:
    """Raise `ValueError` for a key that is NaN, or holds NaN.

    It also refuses a msgpack timestamp. Such a key could not be found again. Texts and numbers are checked all at once,
    which is much faster: a sum with NaN in it is NaN.
    """
    kind = type(keys[0]) if keys else str
    try:
        # Joining raises where one of them has another type. None of these types has a NaN.
        if kind is str:
            "".join(keys)
            return
        if kind is bytes:
            b"".join(keys)
            return
        if kind in _NUMBERS and (total := sum(keys)) == total and type(total) in _NUMBERS:
            return
    except (TypeError, ArithmeticError):
        pass  # keys of several types
    if kind is tuple and {*map(type, keys)} == {tuple}:
        # Tuples of one length are checked column by column.
        lengths = {*map(len, keys)}
        if len(lengths) == 1:
            for column in zip(*keys, strict=True):
                _check_keys(column)
            return
    level: Collection[Any] = keys
    while level:
        kinds = set(map(type, level))
        if msgpack.Timestamp in kinds:
            raise ValueError("an extension of type -1")
        # NaN is not equal to itself. Groups of keys are: they compare their members by identity first.
        if not kinds.isdisjoint(_REAL) and any(map(ne, level, level)):
            raise ValueError("a key that is or holds NaN")
        if kinds.isdisjoint(_GROUPS):
            return
        groups = level if kinds <= _GROUPS else [key for key in level if type(key) in _GROUPS]
        level = [*chain.from_iterable(groups)]


_REAL = frozenset({float, Decimal})
_GROUPS = frozenset({tuple, frozenset})


# ---- which partition a key belongs to: equal keys, equal partitions ------------------------------------------------


def partition_of(key: Any, partitions: int) -> int:
    """Return CRC-32 of the key's canonical bytes modulo the partition count.

    Keys that are equal in Python share a partition.
    """
    return place_key(key, partitions)[0]


def place_key(key: Any, partitions: int) -> tuple[int, Any]:
    """Return the partition of a key, and the key as it is compared and stored.

    Times of one zone name share a zone.
    """
    kind = type(key)
    try:
        if kind is str:
            return crc32(key.encode()) % partitions, key
        # Only these can hold a time. The look-up in a set spares all other keys the call.
        if kind in HOLDERS:
            key = normalise(key)
        return crc32(_canonical(key)) % partitions, key
    except UnicodeEncodeError:
        raise IllegalArgumentError(f"key {show(key)}: not valid Unicode (a lone surrogate)") from None
    except RecursionError:
        # The caller may have left too little of the stack, also for a key that is fine.
        if _is_too_deep(key):
            raise _too_deep() from None
        raise


def _is_too_deep(key: Any) -> bool:
    """Return whether a key has more than `MAX_DEPTH` levels of tuples or frozen sets.

    Level by level, because a function that calls itself needs a part of the stack for each of them.
    """
    level: Collection[Any] = (key,)
    for _ in range(MAX_DEPTH + 1):
        # Each object once, since one object may stand in many places.
        groups = {id(member): member for member in level if type(member) in _GROUPS}
        if not groups:
            return False
        level = [*chain.from_iterable(groups.values())]
    return True


def _too_deep() -> IllegalArgumentError:
    return IllegalArgumentError(
        f"a key with more than {MAX_DEPTH} tuples or frozen sets one inside the other cannot be stored"
    )


def partitions_of(keys: list[Any], partitions: int) -> list[int] | None:
    """Return the partition of each key in half of the time.

    None if the keys are of several types or one may be refused.
    """
    kinds = set(map(type, keys))
    try:
        if kinds == {str}:
            return list(map(mod, map(crc32, map(str.encode, keys)), repeat(partitions)))
        if kinds == {bytes}:
            return list(map(mod, map(crc32, keys), repeat(partitions)))
        # Of one type, so that one rule holds for all of them. NaN goes the slow way, which refuses it by name.
        if kinds == {int} or (kinds == {float} and not any(map(isnan, keys))):
            return [crc32(b"%d" % hash(key)) % partitions for key in keys]
    except UnicodeEncodeError:
        return None
    return None


def check_places(
    keys: Collection[Any], partition: int, partitions: int, chain: Chain, deltas: Sequence[Records]
) -> None:
    """Raise `MalformedError` for a key that belongs to another partition.

    `chain` and the records of its deltas tell which object the error has to name. The partition of a key with a named
    time zone depends on the rules of that zone, and these may have changed since the key was written. So such a key may
    be in any partition.
    """
    left = iter(keys)
    while some := list(islice(left, CHUNK_ENTRIES)):
        numbers = partitions_of(some, partitions) or [partition_of(key, partitions) for key in some]
        if set(numbers) == {partition}:
            continue
        for key, number in zip(some, numbers, strict=True):
            if number != partition and not is_zoned(key):
                newest_first = zip(reversed(chain), reversed(deltas), strict=False)
                path = next((artifact.path for artifact, delta in newest_first if key in delta), chain[0].path)
                raise MalformedError(
                    f"{path}: expected keys of partition {partition} of {partitions}, found {show(key)}, which belongs "
                    f"to partition {number}"
                )


def _canonical(key: Any) -> bytes:
    """Return bytes that equal keys share.

    Raises `IllegalArgumentError` for a key that cannot be stored.
    """
    canonical = _CANONICAL.get(type(key))
    if canonical is None:
        raise IllegalArgumentError(f"key {show(key)}: a key of type {type(key).__name__} cannot be stored")
    return canonical(key)


def _number(key: Any) -> bytes:
    # A decimal is asked, because comparing a signalling NaN raises an error of its own.
    if key.is_nan() if type(key) is Decimal else key != key:
        raise IllegalArgumentError(f"key {show(key)}: NaN is not equal to itself and would never be found again")
    # Python defines the hash of numbers by their value, so that 1, 1.0 and Decimal(1) share it.
    return b"%d" % hash(key)


def _text(key: str) -> bytes:
    return key.encode("utf-8", "surrogatepass")


def _moment(key: datetime) -> bytes:
    # Python takes times that differ in their fold only for equal, and equal keys must share a partition.
    if key.utcoffset() is None:
        return key.replace(fold=0).isoformat().encode()
    return b"%d" % ((key.replace(fold=0) - _EPOCH) // timedelta(microseconds=1))


_CANONICAL: dict[type, Callable[[Any], bytes]] = {
    str: _text,
    bytes: bytes,
    bool: _number,
    int: _number,
    float: _number,
    Decimal: _number,
    type(None): lambda key: b"nil",
    tuple: lambda key: b"(" + b",".join(map(_canonical, key)) + b")",
    # Sorted, because a set has no order, and that of its hashes differs from process to process.
    frozenset: lambda key: b"{" + b",".join(sorted(map(_canonical, key))) + b"}",
    datetime: _moment,
    date: lambda key: key.isoformat().encode(),
    time: lambda key: key.replace(fold=0).isoformat().encode(),
    timedelta: lambda key: b"%d" % (key // timedelta(microseconds=1)),
    UUID: lambda key: key.bytes,
}
