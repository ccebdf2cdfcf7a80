"""Encode the times of the entries of maps, and the rule by which they expire.

A value carries its time in front of its packed bytes. So one chain can have records with and without times, and a map
can get a rule, and lose it, without being written again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark_checkpointer.manifests.errors import MalformedError
from pyspark_checkpointer.manifests.json_fields import Fields
from pyspark_checkpointer.manifests.json_text import format_time
from pyspark_checkpointer.manifests.model import Clock, Json

MARK = b"\xc1"
"""The first byte of a value that carries a time: the one with which no packed value begins."""

_HEAD = 9
"""Bytes of the mark and the time."""

MAX_AFTER_US = 8_640_000_000_000_000_000
"""The longest time after which an entry of a map, or a row of a table, may expire, in microseconds: 100,000,000 days.

With it, the time from which on they live fits into 64 bits.
"""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class MapRule:
    """The rule by which entries of a map expire: all times in microseconds since 1970."""

    after: int
    """The duration after which an entry is expired, counted from its time."""
    since: int
    """When the map took a rule: entries that carry no time, or an older one, count from then."""

    def limit(self, now: int) -> int:
        """Return the latest time of an entry that is expired."""
        return now - self.after


def micros(at: datetime) -> int:
    """Return a time in microseconds since 1970."""
    return (at - _EPOCH) // _MICROSECOND


def with_time(packed: bytes, time: int) -> bytes:
    """Return a packed value with its time in front."""
    return MARK + time.to_bytes(8, "big", signed=True) + packed


def split_value(name: str, value: bytes) -> tuple[int | None, bytes]:
    """Return the time that a stored value carries, or None, and the packed value."""
    if value[:1] != MARK:
        return None, value
    if len(value) <= _HEAD:
        raise MalformedError(f"{name}: expected a time and a value, found {len(value)} bytes")
    return int.from_bytes(value[1:_HEAD], "big", signed=True), value[_HEAD:]


def encode_schema(rule: MapRule | None) -> Json:
    """Return the `schema` of a map whose values may carry times."""
    if rule is None:
        return {"expire": None}
    since = _EPOCH + timedelta(microseconds=rule.since)
    return {"expire": {"after_us": rule.after, "since": format_time(since)}}


def decode_schema(name: str, schema: Json) -> MapRule | None:
    """Return the rule in the `schema` of a map.

    Raises `MalformedError` where the schema is not a rule.
    """
    if schema is None:
        return None
    expire = Fields(f"{name}: schema", schema).inner("expire")
    if expire is None:
        return None
    after = expire.integer("after_us", minimum=1)
    if after > MAX_AFTER_US:
        expire.fail(f"after_us: expected at most {MAX_AFTER_US}, found {after}")
    return MapRule(after, micros(expire.time("since")))


def now_of(name: str, clock: Clock | None) -> int:
    """Return the time of a checkpoint's clock, by which entries expire."""
    if clock is None:
        raise MalformedError(f"{name}: entries expire, and the manifest has no clock")
    return micros(clock.at)


def living(
    name: str, records: Mapping[Any, bytes], rule: MapRule | None, clock: Clock | None
) -> tuple[dict[Any, bytes], dict[Any, int]]:
    """Return the packed values of the entries that are not expired, and their times.

    An entry that counts from `rule.since` has no time.
    """
    apart = {key: split_value(name, value) for key, value in records.items()}
    if rule is None:
        return {key: packed for key, (_, packed) in apart.items()}, {}
    limit, since = rule.limit(now_of(name, clock)), rule.since
    values, times = {}, {}
    for key, (time, packed) in apart.items():
        own = since if time is None else max(time, since)
        if own > limit:
            values[key] = packed
            if own > since:
                times[key] = own
    return values, times
