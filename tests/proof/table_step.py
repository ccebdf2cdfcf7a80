"""One call of a table in a batch of a history, and the same in its model."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pyspark_checkpointer.spark.table import TableState
from tests.proof.plain_spark import PlainFrame
from tests.proof.table_model import KEY, Decide, Drawn, Row, TableModel, key_of


class Step:
    """One call of a table, and the same in its model. What is combined is in the table from the first rows on."""

    def __init__(
        self,
        table: TableState,
        model: TableModel,
        drawn: Drawn,
        combine: list[str],
        declared: list[str],
        spark: SparkSession | None,
    ) -> None:
        self.table = table
        self.model = model
        self.drawn = drawn
        self.combine = combine
        self.declared = declared
        self.spark = spark

    def do(self, step: str, columns: list[str]) -> None:
        draw, model = self.drawn.draw, self.model
        missing = [name for name in self.combine if name not in model.columns]
        match step:
            case "upsert" | "keys alone":
                columns = missing if step == "keys alone" else list(dict.fromkeys([*columns, *missing]))
                given = self.drawn.rows(columns)
                parts = [given[start::3] for start in range(3)] if draw.random() < 0.2 else [given]
                model.upsert(given, columns)
                together(*(partial(self.table.upsert, self.frame(part, columns)) for part in parts))
            case "apply" if self.table._changes.version is not None:
                model.columns += [name for name in self.declared if name not in model.columns]
                self._apply([name for name in model.columns if name not in self.combine or draw.random() < 0.5])
            case "first seen" if self.table._changes.version is not None:
                model.columns += [name for name in self.declared if name not in model.columns]
                self._first_seen(model.columns)
            case "lookup" if self.table._changes.version is not None:
                self._lookup(model.columns)
            case "replace":
                columns = list(dict.fromkeys([*columns, *self.combine]))
                given = self.drawn.rows(columns)
                model.replace(given, columns)
                self.table.replace(self.frame(given, columns))
            case "delete" | "delete all":
                keys = [*self.drawn.some_keys(), *(model.rows if step == "delete all" else ())]
                model.delete(keys)
                self.table.delete(self.frame([dict(zip(KEY, key, strict=True)) for key in keys], []))
            case "drop columns" if model.columns:
                free = [name for name in model.columns if model.rule is None or name != model.rule.column]
                dropped = draw.sample(free, draw.choice([0, min(1, len(free)), len(free)]))
                model.drop(dropped)
                self.table.drop_columns(dropped)
            case "compact" if self.table._changes.version is not None:
                self.table.compact()
        if self.table._changes.version is not None and draw.random() < 0.3:
            columns = list(model.columns)
            rows = rows_of(self.table.read([*KEY, *columns]))
            by_key = {key_of(row): [row[name] for name in columns] for row in rows}
            assert (by_key, len(rows)) == (model.found(columns), len(model.rows))

    def _apply(self, columns: list[str]) -> None:
        """Rows of some keys, several of some of them, and a function that looks at the state; once it is repeated."""
        draw, model = self.drawn.draw, self.model
        columns = draw.sample(columns, draw.randrange(len(columns) + 1))
        given = self._several(columns)
        groups = draw.random() < 0.5
        frames = draw.choice([*(["rows"] * 3 if groups else []), "arrow", "arrow", "pandas", "polars"])
        decide = Decide(list(KEY), columns, groups, draw.choice(["arrow", "pandas", "polars"]))
        apply: Any = self.table.apply_groups if groups else self.table.apply
        emitted = StructType().add("k", "double" if self.drawn.floats else "long").add("part", "string")
        rows, wanted = self.frame(given, [*columns, "at"]), emitted.add("saw", "string")
        output = apply(rows, decide, wanted, order_by=["at"], frames=frames)
        expected = model.apply(given, decide)
        for _ in range(2):
            assert sorted(map(str, rows_of(output))) == sorted(map(str, expected))

    def _first_seen(self, columns: list[str]) -> None:
        """The rows whose key has no living row."""
        columns = self.drawn.draw.sample(columns, self.drawn.draw.randrange(len(columns) + 1))
        rule = self.model.rule
        columns += [rule.column] if rule is not None and rule.column not in columns else []
        given = self._several(columns)
        output = self.table.first_seen(self.frame(given, [*columns, "at"]), order_by=["at"])
        expected = self.model.first_seen(given, columns)
        names = [*KEY, *columns, "at"]
        assert texts(rows_of(output), names) == texts(expected, names)

    def _several(self, columns: list[str]) -> list[Row]:
        """Rows of some keys, some of which have several, in any order."""
        draw = self.drawn.draw
        given = [row | {"at": at} for at in range(draw.choice([1, 3])) for row in self.drawn.rows(columns)]
        draw.shuffle(given)
        return given

    def _lookup(self, columns: list[str]) -> None:
        """The rows of some keys, in some columns."""
        draw = self.drawn.draw
        names = [*KEY, *draw.sample(columns, draw.randrange(len(columns) + 1))]
        keys = self.drawn.some_keys()
        rows = rows_of(self.table.lookup(self.frame([dict(zip(KEY, key, strict=True)) for key in keys], []), names))
        sought = {key_of(dict(zip(KEY, key, strict=True))) for key in keys}
        found = self.model.found(names[2:])
        expected = [dict(zip(names, (*key, *found[key]), strict=True)) for key in found if key in sought]
        assert texts(rows, names) == texts(expected, names)

    def frame(self, rows: list[Row], columns: list[str]) -> Any:
        table = self.drawn.table(rows, columns)
        if self.spark is None:
            return PlainFrame.of(self.drawn.spread, table)
        return self.spark.createDataFrame(table).repartition(self.drawn.spread.choice([1, 2, 4]))


def rows_of(frame: Any) -> list[Row]:
    """The rows of a frame, with values as Arrow shows them."""
    if isinstance(frame, PlainFrame):
        return list(frame.rows.to_pylist())
    return [{name: _plain(value) for name, value in row.asDict(recursive=True).items()} for row in frame.collect()]


def texts(rows: list[Row], names: list[str]) -> list[str]:
    """Rows as text, in order: NaN does not equal itself, -0.0 is a key like 0.0, and UTC has several names."""
    values = ([*key_of(row), *(row[name] for name in names if name not in KEY)] for row in rows)
    return sorted(repr([v.timestamp() if isinstance(v, datetime) else v for v in row]) for row in values)


def _plain(value: Any) -> Any:
    """A value as Arrow shows it. Spark returns times in local time."""
    if isinstance(value, datetime):
        return value.astimezone(UTC)
    return bytes(value) if isinstance(value, bytearray) else value


def together(*work: Callable[[], None]) -> None:
    """Do all of it, each in a thread of its own where it is more than one; raises what one of them raised."""
    if len(work) == 1:
        work[0]()
        return
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(one) for one in work]:
            done.result()
