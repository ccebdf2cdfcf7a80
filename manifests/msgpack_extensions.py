"""Pack and unpack the types that msgpack does not know, each as an extension.

`manifests/SPEC.md` lists them. An extension that holds other values is given the functions that pack and unpack these.
"""

import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgpack

from pyspark_checkpointer.manifests import zones
from pyspark_checkpointer.manifests.errors import InvalidStateError
from pyspark_checkpointer.manifests.msgpack_checks import (
    TIMESTAMP_BYTES,
    UnsupportedValueError,
    calls_of_python,
    refuse_merging,
    refuse_torn,
)

TUPLE, INTEGER, DECIMAL, DATETIME, TIME, DURATION, SET, FROZENSET, DATE, UUID = range(1, 11)


_Set = TypeVar("_Set", set[Any], frozenset[Any])

Pack = Callable[[Any], bytes]
"""A function that packs the content of an extension, which is one level deeper."""

Hook = Callable[[int, bytes], Any]
"""A function that unpacks an extension, given its type and its bytes."""

Unpack = Callable[[bytes, Hook], Any]
"""A function that unpacks the content of an extension, given the hook of the next level."""

_unpackb = msgpack.unpackb

# Here, where it is used: Python calls a method of an imported object more slowly.
_CHANGEABLE = frozenset({list, dict})


def _pack_tuple(value: tuple[Any, ...], pack: Pack) -> bytes:
    calls = next(calls_of_python)
    packed = pack(list(value))
    # What another thread can change is checked here too: who checks the whole value does not look into extensions.
    if not _CHANGEABLE.isdisjoint(map(type, value)):
        refuse_torn([packed], calls)
    return packed


def _pack_members(values: Any, pack: Pack) -> bytes:
    """Pack members in the order of their bytes, so that equal sets are equal bytes."""
    refuse_merging(values)
    # Each member is packed by itself: bytes can be sorted, whatever the types of the members are.
    return pack(sorted(map(pack, values)))


def _unpack_list(data: bytes, hook: Hook, unpack: Unpack) -> list[Any]:
    members = unpack(data, hook)
    if type(members) is not list:
        raise TypeError(f"a {type(members).__name__} in the place of a list")
    return members


def _unpack_tuple(data: bytes, hook: Hook, unpack: Unpack) -> tuple[Any, ...]:
    members = unpack(data, hook)
    if type(members) is not list:
        raise TypeError(f"a {type(members).__name__} in the place of a list")
    return tuple(members)


def _unpack_members(kind: Callable[[list[Any]], _Set], data: bytes, hook: Hook, unpack: Unpack) -> _Set:
    """Unpack a set, each of whose members was packed by itself."""
    packed: Any = unpack(data, hook)
    # First: to compare or show lists in lists takes a part of the stack for each one.
    if not {*map(type, packed)} <= {bytes}:
        raise TypeError("members that are not packed")
    if sorted(packed) != packed:
        raise ValueError("a set whose members are not in the order of their bytes")
    # Short members are unpacked without the steps that only longer ones need.
    members = [
        _unpackb(member, ext_hook=hook, strict_map_key=False) if len(member) < TIMESTAMP_BYTES else unpack(member, hook)
        for member in packed
    ]
    made = kind(members)
    if len(made) < len(members):
        raise ValueError(
            "a set of which two members are equal, by the rules that their zones have here if they are times"
        )
    return made


def _pack_zone(value: datetime) -> Any:
    zone = value.tzinfo
    if zone is None or zone is UTC:
        return None if zone is None else "UTC"
    if type(zone) is timezone:
        return [*_duration(zone.utcoffset(None)), *zone_name(zone)]
    if type(zone) is ZoneInfo:
        # Its key may be the name of another zone, which would then come back in its place.
        if zones.is_unnamed(zone):
            raise UnsupportedValueError(
                "a datetime whose zone was read from a file: use ZoneInfo(name), which is found again by its name"
            )
        return f"zone:{zone.key}"
    raise UnsupportedValueError(f"a datetime whose zone is a {type(zone).__name__}: use datetime.timezone or ZoneInfo")


def zone_name(zone: timezone) -> list[str]:
    """Return the name given to a zone of a fixed offset, in a list of one.

    The list is empty if the zone has no name.
    """
    return list(zone.__getinitargs__()[1:])  # type: ignore[attr-defined]  # what it is pickled by


def _unpack_zone(zone: Any) -> Any:
    if zone is None or zone == "UTC":
        return None if zone is None else UTC
    if isinstance(zone, list):
        offset = _make_duration(zone[:3])
        if not offset and len(zone) == 3:
            raise ValueError("an offset of nothing, which is UTC")
        return timezone(offset, *zone[3:])
    if not zone.startswith("zone:"):
        raise ValueError(f"{zone!r:.60} in the place of a zone")
    try:
        return zones.find_zone(zone[5:])
    except ZoneInfoNotFoundError:
        # The bytes may be sound: zones are added to the database, and renamed.
        raise InvalidStateError(
            f"time zone {zone[5:]!r:.80} is not in the time zone database of this machine. Nothing is lost: install "
            "the database that the writer had (the package tzdata, or PYTHONTZPATH), and read again"
        ) from None


def _pack_datetime(value: datetime, pack: Pack) -> bytes:
    # The text of a time leaves out its fold and the name of its zone, so these are kept beside it.
    return pack([value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _pack_zone(value)])


def _unpack_datetime(data: bytes, hook: Hook, unpack: Unpack) -> datetime:
    text, fold, zone = _unpack_list(data, hook, unpack)
    value = datetime.fromisoformat(text)
    if text[4:17:3] != "--T::" or not _is_canonical(text[11:], value) or type(fold) is not int:
        raise ValueError("a date and time that is not written as YYYY-MM-DDTHH:MM:SS with a fold")
    if fold:
        value = value.replace(fold=fold)
    # `combine` takes a fraction of the time of `replace`.
    return value if zone is None else datetime.combine(value, value.time(), _unpack_zone(zone))


def _is_canonical(text: str, value: datetime | time) -> bool:
    """Return whether a time of day is written as `isoformat` writes it.

    The text is HH:MM:SS with its colons in their places. `fromisoformat` reads many more forms. To write the value
    again would take much longer.
    """
    if len(text) == 8:
        return value.hour > 0 or text[:2] == "00"  # not 24:00, which newer versions of Python read
    return len(text) == 15 and text[8] == "." and value.microsecond > 0 and value.tzinfo is None


def _pack_time(value: time, pack: Pack) -> bytes:
    if value.tzinfo is not None:
        raise UnsupportedValueError("a time of day with a zone: store a datetime")
    return pack([value.isoformat(), value.fold])


def _unpack_time(data: bytes, hook: Hook, unpack: Unpack) -> time:
    text, fold = _unpack_list(data, hook, unpack)
    value = time.fromisoformat(text)
    if text[2:6:3] != "::" or not _is_canonical(text, value) or type(fold) is not int:
        raise ValueError("a time of day that is not written as HH:MM:SS with a fold")
    return value.replace(fold=fold) if fold else value


def _duration(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _make_duration(parts: Any) -> timedelta:
    """Return the duration of days, seconds and microseconds.

    The arguments are in the form that `_duration` writes.
    """
    days, seconds, microseconds = parts
    if type(parts) is not list or not (type(days) is type(seconds) is type(microseconds) is int):
        raise TypeError("a duration that is not three integers")
    if not 0 <= seconds < 86_400 or not 0 <= microseconds < 1_000_000:
        raise ValueError("a duration with more seconds than a day has, or microseconds than a second")
    return timedelta(days, seconds, microseconds)


def _unpack_duration(data: bytes, hook: Hook, unpack: Unpack) -> timedelta:
    return _make_duration(unpack(data, hook))


def _pack_integer(value: int, _: Pack) -> bytes:
    # There is always room for the sign, one bit more than the magnitude needs.
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


def _unpack_integer(data: bytes, _: Hook, __: Unpack) -> int:
    value = int.from_bytes(data, "big", signed=True)
    if -(2**63) <= value < 2**64 or len(data) != value.bit_length() // 8 + 1:
        raise ValueError("an integer that is written in another way")
    return value


def _unpack_decimal(data: bytes, _: Hook, __: Unpack) -> Decimal:
    text = data.decode()
    value = Decimal(text)
    if str(value) != text and str(value).replace("e", "E") != text:
        raise ValueError("a decimal that is written in another way")
    return value


def _unpack_date(data: bytes, _: Hook, __: Unpack) -> date:
    if len(data) != 10 or data[7] != 0x2D:  # a week date has its second hyphen elsewhere
        raise ValueError("a date that is not written as YYYY-MM-DD")
    return date.fromisoformat(data.decode())


PACKERS: dict[type, tuple[int, Callable[[Any, Pack], bytes]]] = {
    tuple: (TUPLE, _pack_tuple),
    int: (INTEGER, _pack_integer),
    Decimal: (DECIMAL, lambda value, _: str(value).replace("e", "E").encode()),  # the thread's context may ask for "e"
    datetime: (DATETIME, _pack_datetime),
    time: (TIME, _pack_time),
    timedelta: (DURATION, lambda value, pack: pack(_duration(value))),
    set: (SET, _pack_members),
    frozenset: (FROZENSET, _pack_members),
    date: (DATE, lambda value, _: value.isoformat().encode()),
    uuid.UUID: (UUID, lambda value, _: value.bytes),
}

UNPACKERS: dict[int, Callable[[bytes, Hook, Unpack], Any]] = {
    TUPLE: _unpack_tuple,
    INTEGER: _unpack_integer,
    DECIMAL: _unpack_decimal,
    DATETIME: _unpack_datetime,
    TIME: _unpack_time,
    DURATION: _unpack_duration,
    SET: lambda data, hook, unpack: _unpack_members(set, data, hook, unpack),
    FROZENSET: lambda data, hook, unpack: _unpack_members(frozenset, data, hook, unpack),
    DATE: _unpack_date,
    UUID: lambda data, _, __: uuid.UUID(bytes=data),
}
