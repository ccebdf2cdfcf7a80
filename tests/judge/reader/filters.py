"""Tables: the filter of the keys of a pack."""

import decimal
import math
import struct

import pyarrow as pa

from tests.judge.reader.checks import digest, integer, need, size
from tests.judge.reader.objects import compare

SEED = 43
SALTS = (0x6A09E667, 0xBB67AE85, 0x3C6EF373, 0xA54FF53B, 0x510E527F, 0x9B05688D, 0x1F83D9AB, 0x5BE0CD19)
INTS = (pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.date32())
MASK = 0xFFFFFFFF
EXACT = decimal.Context(prec=200)


def rotated(n, by):
    return (n << by | n >> 32 - by) & MASK


def murmur(data, h):
    """Partitioners, spark-murmur3-1: the hash of bytes, with the hash so far as its seed."""
    whole = len(data) // 4 * 4
    for word in (
        *struct.unpack(f"<{whole // 4}i", data[:whole]),
        *struct.unpack(f"{len(data) - whole}b", data[whole:]),
    ):
        h = rotated(h ^ rotated(word * 0xCC9E2D51 & MASK, 15) * 0x1B873593 & MASK, 13) * 5 + 0xE6546B64 & MASK
    h ^= len(data)
    for by, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ h >> by) * factor & MASK
    return h ^ h >> 16


def data_of(v):
    """The bytes of a value of a key that are hashed."""
    t = v.type
    if t in INTS:
        return struct.pack("<i", v.value if t == pa.date32() else v.as_py())
    if pa.types.is_floating(t):
        n = math.nan if math.isnan(v.as_py()) else v.as_py() + 0.0
        return struct.pack("<f" if t == pa.float32() else "<d", n)
    if isinstance(t, pa.Decimal128Type):
        n = int(v.as_py().scaleb(t.scale, EXACT))
        if t.precision <= 18:
            return struct.pack("<q", n)
        return n.to_bytes((n if n >= 0 else ~n).bit_length() // 8 + 1, "big", signed=True)
    if t == pa.int64() or pa.types.is_temporal(t):
        return struct.pack("<q", v.as_py() if t == pa.int64() else v.value)
    return v.as_buffer().to_pybytes()


def places(key, blocks):
    """The bits of a key in a filter."""
    h = SEED
    for v in key:
        h = murmur(data_of(v), h) if v.is_valid else h
    return [(h * blocks >> 32) * 256 + 32 * word + (h * salt & MASK) // 2**27 for word, salt in enumerate(SALTS)]


def check_filter(described, data, at, keys):
    """The filter that begins at a byte: that it has the bits of all keys and no others. Where it ends."""
    need(type(described) is list and len(described) == 3 and size(described[0]) == at, f"filter {described!r:.80}")
    end = at + integer(32, len(data) - at)(described[1])
    compare(data[at:end], digest(described[2]))
    need((end - at) % 32 == 0, f"filter {described!r:.80}")
    bits = bytearray(end - at)
    for key in zip(*keys, strict=True):
        for place in places(key, (end - at) // 32):
            bits[place // 8] |= 1 << place % 8
    need(bits == data[at:end], "a filter of other keys")
    return end
