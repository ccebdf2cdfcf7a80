"""What a table should hold, in plain Python: rows as dicts, and what each operation does to them.

The histories with and without Spark draw their operations here, so that both have the same dimensions.
"""

import math
import random
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from pyspark_checkpointer.spark import Change, Expire
from pyspark_checkpointer.table.frames import from_arrow, to_arrow

KEY = ["k", "part"]
Row = dict[str, Any]
Key = tuple[Any, ...]

NAN = math.nan
"""The one NaN of the models: a dict finds it by its identity."""

COMBINE = {"n": "sum", "top": "max", "low": "min", "until": "max"}
TYPES = {
    "n": pa.int64(),
    "top": pa.int32(),
    "low": pa.string(),
    "title": pa.string(),
    "body": pa.binary(),
    "x": pa.int32(),
    "tags": pa.list_(pa.string()),
    "seen": pa.timestamp("us", "UTC"),
    "until": pa.timestamp("us", "UTC"),
}
TIMES = ("seen", "until")
"""Columns by which rows may expire."""

DAY = timedelta(days=1)
FIRST = datetime(2024, 1, 1, tzinfo=UTC)
"""Columns that an upsert may have, of which it has some. `x` becomes wider one day."""

STEPS = {
    "upsert": 12,
    "apply": 6,
    "first seen": 2,
    "lookup": 2,
    "keys alone": 1,
    "delete": 3,
    "delete all": 1,
    "replace": 1,
    "drop columns": 1,
    "compact": 1,
}


def key_of(row: Row) -> Key:
    """The key of a row: 0.0 and -0.0 are one, and so are all NaN."""
    return tuple(_canonical(row[name]) for name in KEY)


def _canonical(value: Any) -> Any:
    if isinstance(value, float):
        return NAN if math.isnan(value) else value + 0.0
    return value


@dataclass
class TableModel:
    """A table as dicts: columns that a row does not have are null. What is expired is removed at once."""

    columns: list[str] = field(default_factory=list)
    rows: dict[Key, Row] = field(default_factory=dict)
    rule: Expire | None = None
    clock: datetime | None = None
    late: list[Key] = field(default_factory=list)
    """Keys of the rows that were expired when a call of this batch wrote them, once for each call."""

    def copy(self) -> "TableModel":
        rows = {key: dict(row) for key, row in self.rows.items()}
        return TableModel(list(self.columns), rows, self.rule, self.clock)

    def tick(self, clock: datetime | None) -> None:
        """The clock moves."""
        self.clock = clock
        for key in self.due(self.rule, clock):
            del self.rows[key]

    def _written(self, keys: set[Key]) -> None:
        """Forget what was written with a time that has passed, and note its keys."""
        self.late += keys & set(self.due(self.rule, self.clock))
        self.tick(self.clock)

    def _is_past(self, row: Row) -> bool:
        time = None if self.rule is None or self.clock is None else row.get(self.rule.column)
        return time is not None and self.rule is not None and time + self.rule.after <= self.clock

    def due(self, rule: Expire | None, clock: datetime | None) -> list[Key]:
        """The keys of the rows that are expired by a rule at a time."""
        if rule is None or clock is None:
            return []
        times = {key: row.get(rule.column) for key, row in self.rows.items()}
        return [key for key, time in times.items() if time is not None and time + rule.after <= clock]

    def upsert(self, given: list[Row], columns: list[str]) -> None:
        self.columns += [name for name in columns if name not in self.columns]
        for row in given:
            old = self.rows.setdefault(key_of(row), {})
            for name in columns:
                old[name] = combined(COMBINE.get(name, "last"), old.get(name), row[name])
        self._written({key_of(row) for row in given})

    def replace(self, given: list[Row], columns: list[str]) -> None:
        self.columns, self.rows = [], {}
        self.upsert(given, columns)

    def apply(self, given: list[Row], decide: "Decide") -> list[Row]:
        """What the function does to each key, and what it emits."""
        emitted = []
        by_key: dict[Key, list[Row]] = {}
        for row in sorted(given, key=lambda row: row["at"]):
            by_key.setdefault(key_of(row), []).append(row)
        for key, rows in by_key.items():
            old = self.rows.get(key)
            below = None if old is None else {name: old.get(name) for name in self.columns}
            made, saw = decide.one(rows, below)
            emitted.append(dict(zip(KEY, key, strict=True)) | {"saw": saw})
            if made == "delete":
                self.delete([key])
            elif isinstance(made, dict):
                self.upsert([made | dict(zip(KEY, key, strict=True))], decide.columns)
        return emitted

    def first_seen(self, given: list[Row], columns: list[str]) -> list[Row]:
        """Take in the first row of each new key, and return these rows."""
        first: dict[Key, Row] = {}
        # A row that has expired already is not remembered: it is taken only where all rows of its key have.
        for row in sorted(given, key=lambda row: (self._is_past(row), row["at"])):
            first.setdefault(key_of(row), row)
        new = {key: row for key, row in first.items() if key not in self.rows}
        self.upsert(list(new.values()), columns)
        return [row | dict(zip(KEY, key, strict=True)) for key, row in new.items()]

    def delete(self, keys: list[Key]) -> None:
        for key in keys:
            self.rows.pop(key, None)

    def drop(self, columns: list[str]) -> None:
        self.columns = [name for name in self.columns if name not in columns]
        for row in self.rows.values():
            for name in columns:
                row.pop(name, None)

    def found(self, columns: list[str]) -> dict[Key, list[Any]]:
        """The rows, as a reader of these columns has them."""
        return {key: [row.get(name) for name in columns] for key, row in self.rows.items()}


def combined(role: str, old: Any, new: Any) -> Any:
    if role == "last" or old is None or new is None:
        return new if role == "last" or old is None else old
    return old + new if role == "sum" else max(old, new) if role == "max" else min(old, new)


@dataclass
class Decide:
    """A function for `apply`, or for `apply_groups`: what it does follows from the rows, their order and the state."""

    key: list[str]
    columns: list[str]
    groups: bool
    returned: Any = "arrow"
    """The kind of frames that it returns; it takes any."""

    def one(self, rows: list[Row], below: Row | None) -> tuple[Any, str]:
        """What becomes of a key, and what the function saw of it."""
        below = {} if below is None else {name: value for name, value in below.items() if name not in self.key}
        shown = {name: value.timestamp() if isinstance(value, datetime) else value for name, value in below.items()}
        saw = repr((sorted(shown.items()), [row["at"] for row in rows]))
        match zlib.crc32(saw.encode()) % 5:
            case 0:
                return None, saw
            case 1:
                return "delete", saw
        made = {name: rows[-1][name] for name in self.columns}
        if "title" in made:
            made["title"] = f"{below.get('title')}|{len(rows)}"[-9:]
        return made, saw

    def __call__(self, *arguments: Any) -> Change:
        if self.groups:
            _, rows, below = arguments
            made, saw = self.one(rows if isinstance(rows, list) else _rows(rows).to_pylist(), below)
            emitted = [dict(zip(self.key, arguments[0], strict=True)) | {"saw": saw}]
            return Change(made if isinstance(made, dict) else None, made == "delete", emitted)
        given, state = map(_rows, arguments)
        below_of = {key_of(row): row for row in state.to_pylist()}
        by_key: dict[Key, list[Row]] = {}
        for row in given.to_pylist():
            by_key.setdefault(key_of(row), []).append(row)
        found = {key: self.one(rows, below_of.get(key)) for key, rows in by_key.items()}
        keys = {key: dict(zip(self.key, key, strict=True)) for key in by_key}
        upserts = [keys[key] | made for key, (made, _) in found.items() if isinstance(made, dict)]
        deletes = [keys[key] for key, (made, _) in found.items() if made == "delete"]
        emitted = [keys[key] | {"saw": saw} for key, (_, saw) in found.items()]
        kinds = pa.schema([given.schema.field(name) for name in (*self.key, *self.columns)])
        of_key = [kinds.field(name) for name in self.key]
        return Change(
            from_arrow(pa.Table.from_pylist(upserts, schema=kinds), self.returned),
            from_arrow(pa.Table.from_pylist(deletes, schema=pa.schema(of_key)), self.returned),
            from_arrow(pa.Table.from_pylist(emitted, schema=pa.schema([*of_key, ("saw", pa.string())])), self.returned),
        )


def _rows(frame: Any) -> pa.Table:
    rows = to_arrow(frame, pa.schema([]))
    assert rows is not None
    return rows


class Drawn:
    """Draws rows and operations. `width`: bytes of a large value; `keys`: how many there are.

    `floats`: the first column of the key is a float. `types` are the columns that there may be.
    """

    def __init__(
        self, draw: random.Random, width: int, keys: int, floats: bool, types: Mapping[str, pa.DataType] = TYPES
    ) -> None:
        self.draw = draw
        self.width = width
        self.keys = keys
        self.floats = floats
        self.types = dict(types)
        self.days = range(30)
        """What the times in rows are drawn of."""
        self.spread = random.Random(draw.random())
        """How rows lie in tasks. Apart from the rest: a batch that is repeated has its rows in other tasks."""

    def of_thread(self) -> "Drawn":
        """One for a table of a batch: threads would take turns with one for all."""
        drawn = Drawn(random.Random(self.draw.random()), self.width, self.keys, self.floats)
        drawn.types, drawn.days, drawn.spread = self.types, self.days, random.Random(self.spread.random())
        return drawn

    @property
    def kind(self) -> pa.DataType:
        """The type of the first column of the key."""
        return pa.float64() if self.floats else pa.int64()

    def step(self) -> str:
        return self.draw.choices(list(STEPS), list(STEPS.values()))[0]

    def some_keys(self) -> list[Key]:
        count = min(self.draw.choice([0, 1, 3, 10, self.keys]), self.keys)
        return [self._key(number) for number in self.draw.sample(range(self.keys), count)]

    def _key(self, number: int) -> Key:
        first: Any = None if number == 0 else number
        if self.floats and number:
            first = {1: self.draw.choice([0.0, -0.0]), 2: math.nan}.get(number, number / 2)
        return (first, "ab"[number % 2])

    def columns(self) -> list[str]:
        if self.draw.random() < 0.02 and "x" in self.types:
            self.types["x"] = pa.int64()
        return [name for name in self.types if self.draw.random() < 0.5]

    def rows(self, columns: list[str]) -> list[Row]:
        return [
            dict(zip(KEY, key, strict=True)) | {name: self._value(name) for name in columns} for key in self.some_keys()
        ]

    def _value(self, name: str) -> Any:
        draw = self.draw
        if draw.random() < 0.2:
            return None
        match name:
            case "n" | "top" | "x":
                return draw.randrange(-9, 9)
            case "seen" | "until":
                return FIRST + draw.choice(self.days) * DAY
            case "body":
                return bytes([draw.randrange(256)]) * draw.choice([0, 3, self.width])
            case "tags":
                return [draw.choice("abc") * draw.choice([1, self.width]) for _ in range(draw.choice([0, 1, 3]))]
        return draw.choice(["", "a", "bb", "ü"])

    def table(self, rows: list[Row], columns: list[str]) -> pa.Table:
        """Rows as Arrow, their columns in any order."""
        kinds: Mapping[str, pa.DataType] = {"k": self.kind, "part": pa.string(), "at": pa.int64(), **self.types}
        names = [*KEY, *columns]
        self.draw.shuffle(names)
        return pa.table({name: pa.array([row[name] for row in rows], kinds[name]) for name in names})
