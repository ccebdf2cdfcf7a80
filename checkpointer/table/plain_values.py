"""Copy values that a user's function gave, as values of plain Python.

Nulls of pandas become None. Arrays, series and other sequences become lists.
"""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any

import numpy as np

_IMMUTABLE = frozenset({NoneType, bool, int, float, str, bytes, date, datetime, timedelta, Decimal})
_NULLS = ("NAType", "NaTType")


def plain_row(row: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a copy of a dict of columns.

    The function may change what it returned, and return it again.
    """
    # Most rows have such values alone: looking at each one by itself takes far longer.
    if _IMMUTABLE.issuperset(map(type, row.values())):
        return dict(row)
    try:
        return {name: _plain(value) for name, value in row.items()}
    except RecursionError:  # A value that has itself inside: Arrow refuses it, and names the column.
        return dict(row)


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if isinstance(value, Mapping):
        return plain_row(value)
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, str | bytes):
        return value
    if isinstance(value, bytearray):
        return bytes(value)
    # A view of anything but bytes is a list of numbers.
    if isinstance(value, memoryview):
        return bytes(value) if value.format == "B" else value.tolist()
    # Looked for by name: a package that is not installed cannot be imported, and needs no import then.
    module = kind.__module__.partition(".")[0]
    if module == "pandas" and kind.__name__ in _NULLS:
        return None
    # An array without dimensions is a number.
    is_series = module in ("pandas", "polars") and kind.__name__ == "Series"
    if is_series or isinstance(value, Sequence) or (isinstance(value, np.ndarray) and value.ndim):
        return list(map(_plain, value))
    return value


__all__ = ["plain_row"]
