"""Turn stored values into JSON for people and scripts, without losing their types.

Values that JSON has stand as themselves. Anything else is an object with one name that begins with `$`:

    tuple       {"$tuple": […]}                 bytes      {"$bytes": "base64"}
    set         {"$set": […]}                   Decimal    {"$decimal": "1.10"}
    frozenset   {"$frozenset": […]}             UUID       {"$uuid": "…"}
    date        {"$date": "2024-02-29"}         time       {"$time": "02:30:00"}
    datetime    {"$datetime": "2024-01-02T03:04:05+01:00"}
    timedelta   {"$timedelta": [days, seconds, microseconds]}
    float       {"$float": "nan"}, also "inf" and "-inf"
    int         {"$integer": "0x…"} where it is longer than Python writes in decimal digits
    dict        {"$map": [[key, value], …]} where a key is no text, or begins with `$`

A time or datetime of a repeated hour also has "fold": 1. A datetime in a zone of the time zone database has the name of
the zone as "zone". A datetime in a named zone of a fixed offset has this name as "name".
"""

from base64 import b64encode
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from math import isfinite
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from pyspark_checkpointer.manifests.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.manifests.msgpack_extensions import zone_name

MAX_DECIMAL_BITS = 2_000
"""Bits of an integer that stands as itself, at most.

Python itself refuses to write more than some 14,000 in digits.
"""


def to_json(value: Any) -> Json:
    """Return a value as JSON can carry it.

    Members of sets are sorted, so that equal sets give equal JSON.
    """
    try:
        return _tag(value)
    except RecursionError:
        raise IllegalArgumentError("a value with too many levels, one inside the other, to be shown as JSON") from None


def _tag(value: Any) -> Json:
    kind = type(value)
    if kind is int and value.bit_length() > MAX_DECIMAL_BITS:
        return {"$integer": hex(value)}
    if kind in (str, int, bool, type(None)):
        return value
    if kind is float:
        return value if isfinite(value) else {"$float": repr(value)}
    if kind is list:
        return [_tag(member) for member in value]
    if kind is dict:
        return _mapping(value)
    tagged = _TAGGED.get(kind)
    return {"$repr": repr(value)} if tagged is None else tagged(value)


def _mapping(value: dict[Any, Any]) -> Json:
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _tag(member) for key, member in value.items()}
    return {"$map": [[_tag(key), _tag(member)] for key, member in value.items()]}


def _members(value: Iterable[Any]) -> list[Json]:
    # Tagged members may be objects and lists, which have no order among themselves.
    return sorted(map(_tag, value), key=repr)


def _moment(tag: str, value: datetime | time) -> Json:
    marks: dict[str, Json] = {tag: value.isoformat()}
    if value.fold:
        marks["fold"] = 1
    if isinstance(value.tzinfo, ZoneInfo):
        marks["zone"] = value.tzinfo.key
    elif isinstance(value.tzinfo, timezone) and (given := zone_name(value.tzinfo)):
        marks["name"] = given[0]
    return marks


_TAGGED: dict[type, Callable[[Any], Json]] = {
    tuple: lambda value: {"$tuple": [_tag(member) for member in value]},
    set: lambda value: {"$set": _members(value)},
    frozenset: lambda value: {"$frozenset": _members(value)},
    bytes: lambda value: {"$bytes": b64encode(value).decode()},
    Decimal: lambda value: {"$decimal": str(value)},
    UUID: lambda value: {"$uuid": str(value)},
    date: lambda value: {"$date": value.isoformat()},
    time: lambda value: _moment("$time", value),
    datetime: lambda value: _moment("$datetime", value),
    timedelta: lambda value: {"$timedelta": [value.days, value.seconds, value.microseconds]},
}
