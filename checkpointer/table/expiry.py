"""Decide which rows of a table are expired.

A row is expired once the job's clock has reached the time in one of its columns plus a duration. Expired rows stay in
the store until their partition is compacted; readers leave them out.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer import display
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.map_expiry import MAX_AFTER_US
from pyspark_checkpointer.manifests.model import Json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
DAY = timedelta(days=1) // _MICROSECOND

TYPES = ("timestamp", "timestamp_ntz", "date")
"""The types of a column by which rows may expire. One without a time zone is taken to be in UTC."""


@dataclass(frozen=True, slots=True)
class Expire:
    """The rule by which rows of a table expire: `after` the time in a column.

    Args:
        column: A column of type timestamp, timestamp_ntz or date; the latter two count as UTC. A row with null in it
            never expires.
        after: The time after which the row is expired, more than zero and at most 100,000,000 days.

    Raises:
        IllegalArgumentError: An argument is not what it must be.

    Examples:
        >>> from datetime import timedelta
        >>> Expire("last_seen", after=timedelta(days=30))
        Expire(column='last_seen', after=datetime.timedelta(days=30))
    """

    column: str
    after: timedelta

    def __post_init__(self) -> None:
        if not isinstance(self.column, str) or not self.column:
            raise IllegalArgumentError(f"Expire(column={self.column!r:.80}): expected the name of a column")
        if not isinstance(self.after, timedelta) or not 0 < self.after // _MICROSECOND <= MAX_AFTER_US:
            raise IllegalArgumentError(
                f"Expire(after={self.after!r:.80}): expected a timedelta above 0, of at most {MAX_AFTER_US // DAY} days"
            )

    def __str__(self) -> str:
        return f"{self.after} after {display.cut(self.column)}"


def limit(rule: Expire, clock: datetime) -> int:
    """Return the latest time of an expired row, in microseconds since 1970 in UTC."""
    # Of integers: a long time before the clock may be a time that Python does not have.
    return (clock - _EPOCH) // _MICROSECOND - rule.after // _MICROSECOND


def is_past(time: datetime | None, limit: int) -> bool:
    """Return whether a row of this time is expired.

    `limit` is the latest such time. A row whose time is null never is.
    """
    return time is not None and (time - _EPOCH) // _MICROSECOND <= limit


def is_within(rule: Expire, other: Expire) -> bool:
    """Return whether every row that is expired by `other` is expired by `rule` too."""
    return rule.column == other.column and rule.after <= other.after


def encode_rule(rule: Expire) -> Json:
    """Return a rule as it stands in a manifest."""
    return {"column": rule.column, "after_us": rule.after // _MICROSECOND}


def decode_rule(value: Json) -> Expire:
    """Return the rule in a manifest. Raises `ValueError` where it is none."""
    # `type` and not `isinstance`: True is an int too.
    after = value.get("after_us") if isinstance(value, dict) else None
    if type(after) is not int or after > MAX_AFTER_US or type(value.get("column")) is not str:
        raise ValueError(f"expire: expected a column and a duration after_us, found {value!r:.80}")
    return Expire(value["column"], timedelta(microseconds=after))


def is_expired(times: pa.ChunkedArray, limit: int) -> pa.ChunkedArray:
    """Return for each time whether it is at most `limit`, in microseconds.

    A null time never is.
    """
    # Compared as integers: limit may be a time that no type of Arrow shows.
    if pa.types.is_date32(times.type):
        found = pc.less_equal(times.cast(pa.int32()), pa.scalar(limit // DAY, pa.int32()))
    else:
        found = pc.less_equal(times.cast(pa.int64()), pa.scalar(limit, pa.int64()))
    return found.fill_null(False)
