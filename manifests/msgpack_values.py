"""Pack Python values as msgpack so that each type comes back as itself.

A type that would come back as another is refused by name.

Types that msgpack itself knows (None, bool, 64-bit integers, floats, text, bytes, lists, maps) are written as msgpack;
the extension types are in `msgpack_extensions.py`, and listed in `manifests/SPEC.md`. Subclasses (of dict, tuple, str,
…) are refused, since they would come back as something else.
"""

import io
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, pairwise
from typing import Any

import msgpack

from pyspark_checkpointer.manifests.errors import MalformedError
from pyspark_checkpointer.manifests.idle import Idle
from pyspark_checkpointer.manifests.msgpack_checks import (
    ATOMS,
    BAD_VALUE,
    MAX_KEPT_BYTES,
    MAX_UNCHECKED_BYTES,
    MAX_VALUE_BYTES,
    MINUS_ONE,
    PIECE_BYTES,
    TEXTS,
    TIMESTAMP_BYTES,
    UnsupportedValueError,
    calls_of_python,
    check_whole,
    explain,
    refuse_lookalikes,
    refuse_timestamps,
    refuse_torn,
    too_large,
    unsupported,
)
from pyspark_checkpointer.manifests.msgpack_extensions import PACKERS, UNPACKERS, Hook

MAX_DEPTH = 32
"""The most extensions (tuples, sets) that may be nested.

Each takes some 40 KiB of the C stack, which has an end.
"""

PACK_COUNT = 32
"""The number of values that are packed before their bytes are counted."""

PLAIN_DEPTH = 8
"""The most lists and dicts inside each other in a value that is unpacked together with others."""

SHORT_LENGTH = 1024
"""Length from which `_pack_atom` does not pack texts and bytes.

So its buffer stays small.
"""


def pack(value: Any) -> bytes:
    """Return one value as msgpack.

    Raises `UnsupportedValueError`, which names what in the value cannot be stored.
    """
    kind = type(value)
    if kind in ATOMS and (kind not in TEXTS or len(value) < SHORT_LENGTH):
        try:
            return _pack_atom(value)  # type: ignore[no-any-return]
        except (OverflowError, UnicodeEncodeError):  # a long integer, or what is refused
            return _pack_any(value)
    return _pack_any(value)


def _pack_any(value: Any) -> bytes:
    try:
        if type(value) in TEXTS and len(value) > MAX_KEPT_BYTES:
            return _pack_large(value)
        calls = next(calls_of_python)
        packed = _LEVELS[0].pack(value)
        # A search in the bytes takes far less time than the walk through the value that it mostly spares.
        if type(value) not in ATOMS and _MARKERS.search(packed):
            refuse_lookalikes(value)
            refuse_torn([packed], calls)
        return packed
    except UnsupportedValueError:
        raise
    except UnicodeEncodeError:
        raise UnsupportedValueError("text that is not valid Unicode (a lone surrogate)") from None
    except _REFUSED as error:
        raise UnsupportedValueError(f"a value that msgpack refuses: {error}") from None


def _pack_large(value: str | bytes) -> bytes:
    """Pack a long text or long bytes as a packer does.

    A packer would fill a buffer first; this function does not.
    """
    data = value.encode() if isinstance(value, str) and not value.isascii() else value
    if 5 + len(data) > MAX_VALUE_BYTES:  # the head has 5 bytes
        raise too_large(type(value))
    # Text is written as binary data is, but for this first byte.
    head = (b"\xdb" if isinstance(value, str) else b"\xc6") + len(data).to_bytes(4, "big")
    if isinstance(data, bytes):
        return head + data
    packed = io.BytesIO(head)
    packed.seek(0, io.SEEK_END)
    for start in range(0, len(data), PIECE_BYTES):
        packed.write(data[start : start + PIECE_BYTES].encode())
    return packed.getvalue()


def pack_some(values: Sequence[Any]) -> list[bytes]:
    """Return the first of these values packed, about `PIECE_BYTES` of them.

    This takes less than half of the time of `pack`.

    Raises `UnsupportedValueError` if any of them cannot be stored; `pack` says which and why.
    """
    packed: list[bytes] = []
    size, calls = 0, next(calls_of_python)
    try:
        # Some at a time: the sizes are known only once they are packed, and large values must not all be in memory
        # twice.
        while len(packed) < len(values) and size < PIECE_BYTES:
            more, more_bytes = _LEVELS[0].pack_each(values[len(packed) : len(packed) + PACK_COUNT])
            packed += more
            size += more_bytes
        if size > MAX_VALUE_BYTES and max(map(len, packed)) > MAX_VALUE_BYTES:
            raise UnsupportedValueError("a value that is too large")
        if suspects := _find_marked(packed):
            refuse_lookalikes([values[number] for number in suspects])
            refuse_torn([packed[number] for number in suspects], calls)
    except _REFUSED as error:
        raise UnsupportedValueError(f"a value that msgpack refuses: {error}") from None
    return packed


def _find_marked(packed: list[bytes]) -> Sequence[int]:
    """Return the numbers of the packed values that a marker occurs in.

    Only these can have a part that would change its type. If there are many, all numbers are returned.
    """
    marks = b"".join(packed).translate(_MARKS)
    count = marks.count(1)
    # To find the value of a marker takes longer than to look into a value.
    if 2 * count > len(packed):
        return range(len(packed))
    ends, found = list(accumulate(map(len, packed))) if count else [], list[int]()
    at = marks.find(1)
    while at >= 0:
        found.append(bisect_right(ends, at))
        at = marks.find(1, ends[found[-1]])
    return found


def pack_checked(*arrays: list[Any]) -> bytes:
    """Return arrays of keys or of packed values, one after the other.

    They are not checked again, since they were checked when they were set.
    """
    return b"".join(_LEVELS[0].pack_each(arrays)[0])


_unpackb = msgpack.unpackb


def unpack(data: bytes, hook: Hook | None = None) -> Any:
    """Return the value that `pack` was given.

    `hook` unpacks its extensions, at their level; None for the first one.

    Raises `MalformedError` for bytes that are not a value, and `InvalidStateError` for a time in a zone that the time
    zone database of this machine does not have.
    """
    try:
        # The check is a second pass, which short values, the most frequent ones, are spared.
        if len(data) > MAX_UNCHECKED_BYTES:
            check_whole(data)
        # msgpack by itself takes only text and bytes as keys of a map.
        value = _unpackb(data, ext_hook=hook or from_extension, strict_map_key=False)
        if 0xFF in data and len(data) >= TIMESTAMP_BYTES and MINUS_ONE.search(data):
            refuse_timestamps(value)
        return value
    except MalformedError:
        raise
    except BAD_VALUE as error:
        raise MalformedError(f"expected a msgpack value, found {data[:40]!r}: {explain(error)}") from None


def unpack_by_msgspec(data: bytes) -> Any:
    """Return the result of `unpack` for a short value of plain types.

    This takes half of the time. Any other value is refused with `ValueError` or `RecursionError`, which takes longer
    than to unpack it.
    """
    if len(data) > MAX_UNCHECKED_BYTES:
        raise ValueError("a long value")
    return _plain_decoder()(data)


def unpack_all(packed: Sequence[bytes]) -> list[Any] | None:
    """Return the result of `unpack` for each of some values.

    Returns None if one of them must be unpacked by itself: it is malformed, long, nested deeply, or has another part
    than texts, numbers, lists, and dicts whose keys are texts. This takes less than half of the time of `unpack`.
    """
    if max(map(len, packed), default=0) > MAX_UNCHECKED_BYTES:
        return None
    try:
        return list(map(_plain_decoder(), packed))
    except (ValueError, RecursionError):  # `msgspec.MsgspecError` is a ValueError
        return None


@cache
def _plain_decoder() -> Callable[[bytes], Any]:
    """Return a function that unpacks values of plain types alone.

    They may have `PLAIN_DEPTH` levels of lists and dicts. The function refuses all types that it does not name, also
    where msgspec would convert them: a timestamp, or a list as the key of a dict. With keys other than texts it would
    take twice as long, and it cannot tell bytes from texts.
    """
    # Here, because only who reads whole maps needs it: neither a task nor most commands.
    import msgspec

    plain: Any = None | bool | int | float | str
    kind: Any = plain
    for _ in range(PLAIN_DEPTH):
        kind = plain | list[kind] | dict[str, kind]
    return msgspec.msgpack.Decoder(kind).decode


_MARKERS = re.compile(rb"[\xc4-\xc9\xd4-\xd8]")
"""The bytes that msgpack puts before binary data and extensions.

If none of them occurs, there are no binary data and no extensions.
"""

_MARKS = bytes(_MARKERS.match(bytes([number])) is not None for number in range(256))
"""A table for `bytes.translate`, which is much faster than a pattern: 1 for a marker, 0 for all other bytes."""

_REFUSED = (RuntimeError, ValueError, OverflowError)
"""Errors that a packer raises for a value, such as one nested too deep, or a dict that another thread changes."""

_pack_atom = msgpack.Packer(strict_types=True).pack
"""Packer of values without parts.

No Python code runs meanwhile, so one packer is enough for all threads.
"""


class _Level:
    """Packs and unpacks values that are inside a given number of extensions.

    A packer has one buffer, and Python code runs while it packs an extension. A signal handler, a `__del__`, a callback
    of the garbage collector or another greenlet may then pack something else, and needs another packer.
    """

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self.deeper: Hook | None = None
        """The hook of the next level; None for the last one."""
        # Strict: a subclass of dict or text would otherwise be packed as its base, and come back as another type.
        self._packers = Idle(lambda: msgpack.Packer(default=self._extension, strict_types=True))

    def pack(self, value: Any) -> bytes:
        """Pack one value."""
        packer = self._packers.take()
        packed: bytes = packer.pack(value)
        if len(packed) <= MAX_KEPT_BYTES:
            self._packers.put_back(packer)
        elif self._depth == 0 and len(packed) > MAX_VALUE_BYTES:
            raise too_large(type(value))
        return packed

    def pack_each(self, values: Sequence[Any]) -> tuple[list[bytes], int]:
        """Pack several values, each by itself, and return their size too."""
        packer = self._packers.take()
        packed = list(map(packer.pack, values))
        size = sum(map(len, packed))
        if size <= MAX_KEPT_BYTES:
            self._packers.put_back(packer)
        return packed, size

    def _extension(self, value: Any) -> msgpack.ExtType:
        """Pack a value that msgpack does not know; called by the packers of this level."""
        try:
            code, encode = PACKERS[type(value)]
        except KeyError:
            raise unsupported(type(value)) from None
        if self._depth == MAX_DEPTH:
            raise UnsupportedValueError(f"a value with more than {MAX_DEPTH} tuples or sets one inside the other")
        next(calls_of_python)
        return msgpack.ExtType(code, encode(value, _LEVELS[self._depth + 1].pack))

    def from_extension(self, code: int, data: bytes) -> Any:
        """Unpack an extension; the hook of this level's unpackers."""
        deeper = self.deeper
        if deeper is None:
            raise MalformedError(f"expected msgpack, found more than {MAX_DEPTH} extensions one inside the other")
        try:
            decode = UNPACKERS[code]
        except KeyError:
            # `unpack` and the decoders turn it into a `MalformedError`.
            raise ValueError(f"an extension of type {code}, which this version does not know") from None
        return decode(data, deeper, unpack)


_LEVELS = [_Level(depth) for depth in range(MAX_DEPTH + 1)]
for _level, _next in pairwise(_LEVELS):
    _level.deeper = _next.from_extension

from_extension = _LEVELS[0].from_extension
"""The hook for unpackers of values that are in no extension."""
