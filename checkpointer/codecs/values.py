"""Python values as msgpack, each type coming back as itself, or refused by name.

What msgpack itself knows (None, bool, 64-bit integers, floats, text, bytes, lists, maps) is written as msgpack; the
extension types are listed in `manifests/SPEC.md`. Subclasses (of dict, tuple, str, …) are refused, since they would
come back as something else.
"""

import re
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from itertools import chain
from typing import Any
from zoneinfo import ZoneInfo

import msgpack

from checkpointer.errors import MalformedError

MAX_DEPTH = 32
"""Extensions (tuples, sets) one inside the other. Each level takes some 40 KiB of the C stack, which has an end."""

UNCHECKED = 1024
"""Bytes up to which msgpack may make room for whatever they claim to hold: at most 2 MB."""

PIECE = 1 << 20
"""Bytes that an unpacker is fed, and that are packed, at once."""

AT_ONCE = 32
"""Values that are packed before their bytes are counted."""

TUPLE, INTEGER, DECIMAL, DATETIME, TIME, DURATION, SET, FROZENSET, DATE, UUID = range(1, 11)


class UnsupportedValueError(TypeError):
    """A value that cannot be stored. The message names its type and what to use instead."""


def pack(value: Any) -> bytes:
    """One value as msgpack; `UnsupportedValueError` names what in it cannot be stored."""
    try:
        packed: bytes = _packers.packer.pack(value)
        if type(value) not in _ATOMS and _MARKERS.search(packed):
            _refuse_lookalikes(value)
        return packed
    except UnsupportedValueError:
        raise
    except UnicodeEncodeError:
        raise UnsupportedValueError("text that is not valid Unicode (a lone surrogate)") from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise UnsupportedValueError(f"a value that msgpack refuses: {error}") from None


def pack_some(values: Sequence[Any]) -> list[bytes]:
    """The first of these values as `pack` packs each, in less than half of its time: about `PIECE` bytes of them.

    `UnsupportedValueError` if any of them cannot be stored; `pack` says which and why.
    """
    packed: list[bytes] = []
    size = 0
    try:
        while len(packed) < len(values) and size < PIECE:
            more = list(map(_packers.packer.pack, values[len(packed) : len(packed) + AT_ONCE]))
            packed += more
            size += sum(map(len, more))
        if _MARKERS.search(b"".join(packed)):
            _refuse_lookalikes(values[: len(packed)])
    except (RecursionError, ValueError, OverflowError) as error:
        raise UnsupportedValueError(f"a value that msgpack refuses: {error}") from None
    return packed


def pack_checked(members: list[Any]) -> bytes:
    """An array of keys, or of values that are packed already: each of them was checked when it was set."""
    return _packers.packer.pack(members)  # type: ignore[no-any-return]


def unpack(data: bytes) -> Any:
    """The value that `pack` was given."""
    try:
        if len(data) > UNCHECKED:
            check_whole(data)
        return msgpack.unpackb(data, ext_hook=from_extension, strict_map_key=False)
    except MalformedError:
        raise
    except Exception as error:  # whatever bad bytes make of msgpack or of a constructor
        raise MalformedError(f"expected a msgpack value, found {data[:40]!r}: {error}") from None


def check_whole(data: bytes) -> None:
    """Raise unless everything that arrays claim to hold is there: msgpack makes room for all of it beforehand.

    Arrays one inside the other can claim 8,000 times their bytes. Looking over them takes a small part of the time
    that making them takes.
    """
    for _ in cut_whole((data[start : start + PIECE] for start in range(0, len(data), PIECE)), len(data)):
        pass


def cut_whole(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """The same bytes, of `size` in all, cut where values end: no piece claims to hold more than is there."""
    unpacker, waiting, begin, end = msgpack.Unpacker(max_buffer_size=max(size, 1)), bytearray(), 0, 0
    for piece in pieces:
        unpacker.feed(piece)
        waiting += piece
        with suppress(msgpack.OutOfData):  # it goes on from there with the next piece
            while True:
                unpacker.skip()
                end = unpacker.tell()
        if end > begin:
            yield bytes(memoryview(waiting)[: end - begin])
            del waiting[: end - begin]
            begin = end
    if waiting:
        raise ValueError("it claims to hold more than is there")


def _pack(value: Any) -> bytes:
    """Pack what stands in an extension, while the thread's own packer is busy with what is around it."""
    return msgpack.packb(value, default=_extension, strict_types=True)  # type: ignore[no-any-return]


_MARKERS = re.compile(rb"[\xc4-\xc9\xd4-\xd8]")
"""What msgpack puts before binary data and extensions; without any of these bytes there are none."""

_LOOKALIKES = frozenset({bytearray, memoryview, msgpack.ExtType, msgpack.Timestamp})
"""Types that msgpack itself writes, without asking, as something that comes back as another type."""

_ATOMS = frozenset({type(None), bool, int, float, str, bytes})
_GROUPS = frozenset({list, tuple, set, frozenset})


def _refuse_lookalikes(value: Any) -> None:
    """Look through a value level by level, which costs a few steps for each level and little for each member."""
    level: Sequence[Any] = [value]
    while level:
        kinds = set(map(type, level))
        for kind in kinds & _LOOKALIKES:
            raise _unsupported(kind)
        dicts = [member for member in level if type(member) is dict] if dict in kinds else []
        groups = [member for member in level if type(member) in _GROUPS] if kinds & _GROUPS else []
        members = (*dicts, *map(dict.values, dicts), *groups)
        if _ATOMS.issuperset(map(type, chain.from_iterable(members))):
            return
        level = list(chain.from_iterable(members))


def _unsupported(kind: type) -> UnsupportedValueError:
    name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
    return UnsupportedValueError(f"a value of type {name}: convert it to a built-in type first")


def _extension(value: Any) -> msgpack.ExtType:
    packer = _PACKERS.get(type(value))
    if packer is None:
        raise _unsupported(type(value))
    code, encode = packer
    with _nesting as depth:
        if depth > MAX_DEPTH:
            raise UnsupportedValueError(f"a value with more than {MAX_DEPTH} tuples or sets one inside the other")
        return msgpack.ExtType(code, encode(value))


def from_extension(code: int, data: bytes) -> Any:
    """The value of an extension type; the hook for msgpack's unpackers."""
    with _nesting as depth:
        if depth > MAX_DEPTH:
            raise MalformedError(f"expected msgpack, found more than {MAX_DEPTH} extensions one inside the other")
        return _UNPACKERS[code](data)


def _pack_members(values: Any) -> bytes:
    """Members in the order of their bytes, so that equal sets are equal bytes."""
    return _pack(sorted(map(_pack, values)))


def _unpack_members(data: bytes) -> list[Any]:
    return [unpack(member) for member in unpack(data)]


def _pack_zone(value: datetime) -> Any:
    zone = value.tzinfo
    if zone is None or zone is UTC:
        return None if zone is None else "UTC"
    if type(zone) is timezone:
        return _duration(zone.utcoffset(None))
    if type(zone) is ZoneInfo and zone.key is not None:
        return f"zone:{zone.key}"
    raise UnsupportedValueError(f"a datetime whose zone is a {type(zone).__name__}: use datetime.timezone or ZoneInfo")


def _unpack_zone(zone: Any) -> Any:
    if zone is None or zone == "UTC":
        return None if zone is None else UTC
    return timezone(timedelta(*zone)) if isinstance(zone, list) else ZoneInfo(zone.removeprefix("zone:"))


def _pack_datetime(value: datetime) -> bytes:
    return _pack([value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _pack_zone(value)])


def _unpack_datetime(data: bytes) -> datetime:
    text, fold, zone = unpack(data)
    return datetime.fromisoformat(text).replace(fold=fold, tzinfo=_unpack_zone(zone))


def _pack_time(value: time) -> bytes:
    if value.tzinfo is not None:
        raise UnsupportedValueError("a time of day with a zone: store a datetime")
    return _pack([value.isoformat(), value.fold])


def _unpack_time(data: bytes) -> time:
    text, fold = unpack(data)
    return time.fromisoformat(text).replace(fold=fold)


def _duration(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _pack_integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


_PACKERS: dict[type, tuple[int, Callable[[Any], bytes]]] = {
    tuple: (TUPLE, lambda value: _pack(list(value))),
    int: (INTEGER, _pack_integer),
    Decimal: (DECIMAL, lambda value: str(value).encode()),
    datetime: (DATETIME, _pack_datetime),
    time: (TIME, _pack_time),
    timedelta: (DURATION, lambda value: _pack(_duration(value))),
    set: (SET, _pack_members),
    frozenset: (FROZENSET, _pack_members),
    date: (DATE, lambda value: value.isoformat().encode()),
    uuid.UUID: (UUID, lambda value: value.bytes),
}

_UNPACKERS: dict[int, Callable[[bytes], Any]] = {
    TUPLE: lambda data: tuple(unpack(data)),
    INTEGER: lambda data: int.from_bytes(data, "big", signed=True),
    DECIMAL: lambda data: Decimal(data.decode()),
    DATETIME: _unpack_datetime,
    TIME: _unpack_time,
    DURATION: lambda data: timedelta(*unpack(data)),
    SET: lambda data: set(_unpack_members(data)),
    FROZENSET: lambda data: frozenset(_unpack_members(data)),
    DATE: lambda data: date.fromisoformat(data.decode()),
    UUID: lambda data: uuid.UUID(bytes=data),
}


class _Packers(threading.local):
    """A packer for each thread: making one anew costs more than packing a small value."""

    def __init__(self) -> None:
        self.packer = msgpack.Packer(default=_extension, strict_types=True)


_packers = _Packers()


class _Nesting(threading.local):
    """How many extensions this thread is inside of."""

    depth = 0

    def __enter__(self) -> int:
        self.depth += 1
        return self.depth

    def __exit__(self, *_: object) -> None:
        self.depth -= 1


_nesting = _Nesting()
