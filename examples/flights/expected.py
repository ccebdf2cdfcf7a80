"""Compute all totals at once with pandas. No code is shared with the streaming jobs."""

import io
from collections.abc import Hashable, Sequence
from typing import Any

import pandas as pd

from examples.flights.data import ADDED, KEYS, SUMS, Day

Values = dict[str, Any]

State = dict[str, dict[Hashable, Values]]
"""The state of a job by name and key: a tail number, or a tuple of several columns. Flights without one have None."""


def batch_maps(days: Sequence[Day]) -> State:
    """Return the mappings that the first job must have after `days`: by tail number, and by tail number and month."""
    flights = _read(days, ["tailnum", "month", *SUMS.values()])
    flights = flights.fillna(dict.fromkeys(SUMS.values(), 0)).astype(dict.fromkeys(SUMS.values(), "int64"))
    return {"aircraft": _sum(flights, ["tailnum"]), "months": _sum(flights, ["tailnum", "month"])}


def batch_tables(days: Sequence[Day]) -> State:
    """Return the tables that the second job must have after `days`, and their sums."""
    flights = _read(days, ["year", "month", "day", "tailnum", "origin", "dest", *ADDED.values(), "air_time"])
    flights = flights.astype(dict.fromkeys([*ADDED.values(), "air_time"], "Int64"))  # with nulls, and exact
    flights["date"] = pd.to_datetime(flights[["year", "month", "day"]])
    state = {name: _summarize(flights, list(key)) for name, key in KEYS.items()}
    total = {"flights": len(flights)} | {name: int(flights[column].sum()) for name, column in ADDED.items()}
    return state | {"totals": dict.fromkeys(KEYS, total)}


def _read(days: Sequence[Day], columns: list[str]) -> pd.DataFrame:
    text = days[0].header + "".join(line for day in days for line in day.lines)
    return pd.read_csv(io.StringIO(text), usecols=columns, na_values="NA", keep_default_na=False)


def _sum(flights: pd.DataFrame, key: list[str]) -> dict[Hashable, Values]:
    groups = flights.groupby(key, dropna=False)
    table = groups[list(SUMS.values())].sum().set_axis(list(SUMS), axis=1)
    table.insert(0, "flights", groups.size())
    return _by_key(table)


def _summarize(flights: pd.DataFrame, key: list[str]) -> dict[Hashable, Values]:
    groups = flights.groupby(key, dropna=False)
    columns = {
        "miles": groups["distance"].sum(min_count=1),  # of nothing but nulls: null
        "late": groups["arr_delay"].sum(min_count=1),
        "first_day": groups["date"].min(),
        "last_day": groups["date"].max(),
        "quickest": groups["air_time"].min(),
        "longest": groups["air_time"].max(),
    }
    table = pd.concat(columns, axis=1)
    table.insert(0, "flights", groups.size())
    return _by_key(table)


def _by_key(table: pd.DataFrame) -> dict[Hashable, Values]:
    """Return the rows of a table by its index: plain values, None for missing ones."""
    found: dict[Hashable, Values] = {}
    levels = [table.index.get_level_values(level) for level in range(table.index.nlevels)]
    for *parts, row in zip(*levels, table.to_dict("records"), strict=True):
        key = tuple(None if pd.isna(part) else part for part in parts)
        found[key if len(key) > 1 else key[0]] = {str(name): _plain(value) for name, value in row.items()}
    return found


def _plain(value: Any) -> Any:
    if pd.isna(value):
        return None
    return value.date() if isinstance(value, pd.Timestamp) else int(value)
