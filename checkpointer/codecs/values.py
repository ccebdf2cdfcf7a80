"""Python values as msgpack, each type coming back as itself, or refused by name.

What msgpack itself knows (None, bool, 64-bit integers, floats, text, bytes, lists, maps) is written as msgpack; the
extension types are listed in `manifests/SPEC.md`. Subclasses (of dict, tuple, str, …) are refused, since they would come
back as something else.
"""

import threading
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import msgpack

from checkpointer.errors import MalformedError

TUPLE, INTEGER, DECIMAL, DATETIME, TIME, DURATION, SET, FROZENSET, DATE, UUID = range(1, 11)


class UnsupportedValueError(TypeError):
    """A value that cannot be stored. The message names its type and what to use instead."""


def pack(value: Any) -> bytes:
    """One value as msgpack; `UnsupportedValueError` names what in it cannot be stored."""
    try:
        return _packers.packer.pack(value)  # type: ignore[no-any-return]
    except UnsupportedValueError:
        raise
    except UnicodeEncodeError:
        raise UnsupportedValueError("text that is not valid Unicode (a lone surrogate)") from None
    except (RecursionError, ValueError, OverflowError) as error:
        raise UnsupportedValueError(f"a value that msgpack refuses: {error}") from None


def unpack(data: bytes) -> Any:
    """The value that `pack` was given."""
    try:
        return msgpack.unpackb(data, ext_hook=from_extension, strict_map_key=False)
    except Exception as error:  # whatever bad bytes make of msgpack or of a constructor
        raise MalformedError(f"expected a msgpack value, found {data[:40]!r}: {error}") from None


def _pack(value: Any) -> bytes:
    """Pack what stands in an extension, while the thread's own packer is busy with what is around it."""
    return msgpack.packb(value, default=_extension, strict_types=True)  # type: ignore[no-any-return]


def _extension(value: Any) -> msgpack.ExtType:
    packer = _PACKERS.get(type(value))
    if packer is None:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise UnsupportedValueError(f"a value of type {kind}: convert it to a built-in type first")
    code, encode = packer
    return msgpack.ExtType(code, encode(value))


def from_extension(code: int, data: bytes) -> Any:
    """The value of an extension type; the hook for msgpack's unpackers."""
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
