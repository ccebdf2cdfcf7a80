"""Convert rows to Python values, and deal with values that Python does not have.

Spark stores text that is not UTF-8, and dates and times of the years -290308 to 294247 and beyond. Arrow holds all of
these. Python decodes no such text, and has the years 1 to 9999 only.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.manifests.tagged_json import to_json
from pyspark_checkpointer.table import row_order

_DAY = 86_400_000_000
"""Microseconds."""

_NO_VALUE = (OverflowError, UnicodeDecodeError)
"""Raised by Arrow for a value that Python does not have: a date or time, and text."""


def python_rows(what: str, rows: pa.Table, key: list[str], advice: str) -> list[dict[str, Any]]:
    """Return rows as dicts.

    Raises `IllegalArgumentError`, which begins with `what` and names the row by its `key` columns, for a value that
    Python does not have.
    """
    try:
        return rows.to_pylist()  # type: ignore[no-any-return]
    except _NO_VALUE:
        name, row, said = _first_without_value(rows)
        raise IllegalArgumentError(
            f"{what}: column {name!r} of the row {row_order.show_key(rows, key, row)}: Python has no value for "
            f"{said:.80}: {advice}"
        ) from None


def _first_without_value(rows: pa.Table) -> tuple[str, int, str]:
    """Return the first value that Python does not have, as text.

    Its column and its index come before it.
    """
    for name in rows.column_names:
        for row, value in enumerate(rows[name]):
            try:
                value.as_py()
            except _NO_VALUE:
                return name, row, str(_to_json(value))
    raise AssertionError("Python has all values of these rows")


def json_rows(rows: pa.Table) -> Iterator[dict[str, Json]]:
    """Yield rows as tagged JSON, with every value that a table can have."""
    try:
        found = rows.to_pylist()
    except _NO_VALUE:
        for row in range(rows.num_rows):
            yield {name: _to_json(rows[name][row]) for name in rows.column_names}
        return
    for row in found:
        yield {name: to_json(value) for name, value in row.items()}


def _to_json(value: pa.Scalar) -> Json:
    """Return one value as tagged JSON.

    Text that is not UTF-8 is shown as its bytes, and a year beyond Python's with a sign, as Spark writes it.
    """
    try:
        return to_json(value.as_py())
    except _NO_VALUE:
        kind = value.type
    if pa.types.is_date(kind):
        return {"$date": _iso(value.cast(pa.int32()).as_py(), "D")}
    if pa.types.is_timestamp(kind):
        shown = _iso(value.value, "us")
        return {"$datetime": f"{shown}+00:00", "zone": kind.tz} if kind.tz else {"$datetime": shown}
    if pa.types.is_map(kind):
        return [{"$tuple": [_to_json(pair["key"]), _to_json(pair["value"])]} for pair in value.values]
    if pa.types.is_list(kind):
        return [_to_json(member) for member in value.values]
    if pa.types.is_struct(kind):
        return {name: _to_json(member) for name, member in value.items()}
    return to_json(value.cast(pa.binary()).as_py())


def _iso(number: int, unit: str) -> str:
    """Return a date or a time, which is counted from 1970, in the form of ISO 8601."""
    # As days and the time of the day: to numpy the least number of microseconds is no time.
    days, time = divmod(number, _DAY) if unit == "us" else (number, 0)
    found = str(np.datetime64(days, "D"))
    if unit == "us":
        found += (datetime.min + timedelta(microseconds=time)).strftime("T%H:%M:%S.%f")
    # numpy counts the sign among the four digits of a year.
    year, _, rest = found.lstrip("-").partition("-")
    sign = "-" if found.startswith("-") else "+" if len(year) > 4 else ""
    return f"{sign}{year:0>4}-{rest}"


__all__ = ["json_rows", "python_rows"]
