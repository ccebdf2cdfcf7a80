"""A history of two tables of one root: batches as the real `State` takes them, each compared with plain Python.

Without Spark the frames are Arrow rows (`plain_spark`); with a session all of it is real, tasks and shuffles too.
"""

import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pyspark_checkpointer import Checkpointer, compaction
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import Expire, apply_task, table_jobs
from pyspark_checkpointer.spark.state import State
from pyspark_checkpointer.spark.table import TableState
from pyspark_checkpointer.table import large_rows
from pyspark_checkpointer.table import reader as version_module
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.version import TableVersion
from tests.proof.plain_spark import PlainFrame, new_state
from tests.proof.table_model import COMBINE, DAY, FIRST, KEY, TIMES, Decide, Drawn, Key, Row, TableModel

Figures = Counter[str]

EMITTED = StructType().add("k", "long").add("part", "string").add("saw", "string")
Found = dict[Key, list[Any]]


class History:
    """One root, two tables, and what they should hold. `width`: bytes of the largest values."""

    def __init__(self, seed: int, figures: Figures, root: str, width: int, spark: SparkSession | None = None) -> None:
        self.draw = random.Random(seed)
        self.figures = figures
        self.spark = spark
        self.max_chain = self.draw.choice([2, 4, 10])
        self.drawn = Drawn(self.draw, width, self.draw.choice([4, 40]))
        self.models = {"t": TableModel(), "other": TableModel()}
        self.moves_clock = self.draw.random() < 0.5
        """Whether the job moves its clock itself, or Spark's batches do."""
        self.clock: datetime | None = None
        self.day = 5
        self.client = self._open(root)

    def _open(self, root: str) -> Checkpointer:
        client = Checkpointer(root, max_chain=self.max_chain)
        client.restore()
        return client

    def limits(self, patch: pytest.MonkeyPatch) -> None:
        """Rows and bytes at which something changes, most of them so small that it does."""
        choose = self.draw.choice
        patch.setattr(table_jobs, "DRIVER_BYTES", choose([1, 3000, 16 << 20]))
        patch.setattr(apply_task, "MAX_CALL_ROWS", choose([1, 7, 1 << 20]))
        patch.setattr(apply_task, "MAX_CALL_STATE_BYTES", choose([1, 500, 128 << 20]))
        patch.setattr(apply_task, "MAX_HELD_BYTES", choose([1, 3000, 128 << 20]))
        patch.setattr(compaction, "COMPACT_ROWS", choose([8, 65_536]))
        patch.setattr(compaction, "COMPACT_BYTES", choose([1000, 64 << 20]))
        patch.setattr(compaction, "MAX_DELTA_BYTES", choose([1, 5000, 512 << 20]))
        patch.setattr(compaction, "SMALL_PARTITION", choose([1, 5, 4096]))
        patch.setattr(compaction, "SMALL_BYTES", choose([1, 8 << 20]))
        patch.setattr(large_rows, "NARROW_BYTES", choose([1, 1 << 30]))
        patch.setattr(version_module, "STREAMED_SNAPSHOT_BYTES", choose([1, 64 << 20]))
        patch.setattr(version_module, "MAX_PIECE_ROW_GROUPS", choose([1, 16]))
        patch.setattr("pyspark_checkpointer.table.parquet_encode.ROW_GROUP_ROWS", choose([2, 16_384]))

    def batch(self, number: int) -> None:
        """One batch, which is committed or fails."""
        before, clock_before = {name: model.copy() for name, model in self.models.items()}, self.clock
        self.day += self.draw.choice([-1, 0, 0, 1, 1, 4])
        time = FIRST + self.day * DAY
        state = new_state(self.client, self.client.restore(), number, self.spark, None if self.moves_clock else time)
        if self.moves_clock:
            self._tick(time)
            state.advance_clock(time)
        partitions = self.draw.choice([None, None, 1, 3])
        opened = [name for name in self.models if self.draw.random() < 0.9]
        work = [self._open_table(state, name, partitions, before[name], time) for name in opened]
        if len(work) > 1 and self.draw.random() < 0.3:
            together(*work)
        else:
            for one in work:
                one()
        if self.draw.random() < 0.1:
            state._attempt.abort()
            self.models, self.clock = before, clock_before
        else:
            if self.clock is not None:
                self._tick(time)
            for model in self.models.values():
                model.tick(self.clock)
            state._attempt.commit()
        if self.draw.random() < 0.3:
            self.client = self._open(self.client.root)  # the working directory may be another one since
        self.figures["batches"] += 1

    def _tick(self, time: datetime) -> None:
        """The clock follows the time, and never goes back."""
        self.clock = time if self.clock is None else max(self.clock, time)

    def _rule(self, model: TableModel, planned: list[tuple[str, list[str]]], drops: bool) -> Expire | None:
        """Draw how rows expire, mostly as before; the columns that are written get the time where they need it."""
        rule = model.rule
        if self.draw.random() < 0.3:
            rule = self.draw.choice([None, *(Expire(column, days * DAY) for column in TIMES for days in (1, 3, 10))])
        if rule is None or (rule.column not in model.columns and (drops or planned[0][0] not in ("upsert", "replace"))):
            return None
        for step, columns in planned:
            needs = step == "replace" or rule.column not in model.columns
            if rule.column not in columns and needs:
                columns.append(rule.column)
        return rule

    def _open_table(
        self, state: State, name: str, partitions: int | None, before: TableModel, time: datetime
    ) -> Callable[[], None]:
        """Draw what is done to a table in this batch, and how it is opened for that."""
        steps = [self.drawn.step() for _ in range(self.draw.choice([1, 1, 2, 3]))]
        drops = "drop columns" in steps
        planned = [(step, [c for c in self.drawn.columns() if not (drops and c in COMBINE)]) for step in steps]
        if drops and any(step == "replace" for step in steps):
            planned = [(step, columns) for step, columns in planned if step != "replace"]
        rule = self._rule(self.models[name], planned, drops) if planned else None
        writes = [columns for step, columns in planned if step in ("upsert", "replace")]
        known = [*self.models[name].columns, *(column for columns in writes for column in columns)]
        combine = {} if drops else {column: how for column, how in COMBINE.items() if column in known}
        table = state.table(
            name,
            KEY,
            num_partitions=partitions,
            combine=combine,  # type: ignore[arg-type]
            expire=rule,
        )
        if rule is not None:
            self._tick(time)
        # Only now: what the rule of before would let expire with this batch lives on.
        self.models[name].rule = rule
        self.models[name].tick(self.clock)
        draw = random.Random(self.draw.random())  # of its own: threads would take turns otherwise
        drawn = Drawn(draw, self.drawn.width, self.drawn.keys)
        drawn.types = self.drawn.types

        def work() -> None:
            if rule is not None and before.columns and draw.random() < 0.5:
                self._check_expired(table, rule, before)
            for step, columns in planned:
                self.figures[step] += 1
                Step(table, self.models[name], drawn, list(combine), self.spark).do(step, columns)

        return work

    def _check_expired(self, table: TableState, rule: Expire, before: TableModel) -> None:
        """The rows of the last checkpoint that expire with this batch."""
        if table._changes.version is None or rule.column not in table._changes.version.schema.names:
            return
        due = before.due(rule, self.clock) if rule.column in before.columns else []
        found = table.expired()
        rows = found.rows.to_pylist() if self.spark is None else [row.asDict() for row in found.collect()]  # type: ignore
        assert sorted(map(repr, (tuple(row[name] for name in KEY) for row in rows))) == sorted(map(repr, due))
        self.figures["rows expired"] += len(due)

    def check(self) -> None:
        """What is committed, by each way in which it can be read."""
        restored = self.client.copy().restore()
        operators = {} if restored is None or restored.manifest is None else restored.manifest.operators
        for name, model in self.models.items():
            if name not in operators:
                assert (model.columns, model.rows) == ([], {})
                continue
            assert restored is not None
            columns = self.draw.sample(model.columns, self.draw.randrange(len(model.columns) + 1))
            assert sorted(restored.table(name).column_names) == sorted([*KEY, *model.columns])
            assert found(restored.table(name), model.columns) == model.found(model.columns)
            assert found(restored.table(name, columns=[*columns, *KEY]), columns) == model.found(columns)
            keys = [key for key in (*model.rows, (10**6, "a")) if self.draw.random() < 0.3]
            wanted = {key: row for key, row in model.found(columns).items() if key in keys}
            sought: Any = [dict(zip(KEY, key, strict=True)) for key in keys]
            assert found(restored.table(name, columns=[*KEY, *columns], keys=sought), columns) == wanted
            assert restored.clock == self.clock
            version = TableVersion.of(name, operators[name], restored.manifest.clock if restored.manifest else None)
            assert max(map(len, version.chains.values()), default=0) <= self.max_chain
            pieces: Found = {}
            for partition in version.chains:
                rows = run_sync(in_pieces(self.client, version, partition))
                keyed = rows.select(KEY)
                assert keyed.equals(in_order(keyed, KEY))
                pieces |= found(rows, model.columns)
            assert pieces == model.found(model.columns)
            self.figures["rows compared"] += len(model.rows)


class Step:
    """One call of a table, and the same in its model. What is combined is in the table from the first rows on."""

    def __init__(
        self, table: TableState, model: TableModel, drawn: Drawn, combine: list[str], spark: SparkSession | None
    ) -> None:
        self.table = table
        self.model = model
        self.drawn = drawn
        self.combine = combine
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
                self._apply([name for name in model.columns if name not in self.combine or draw.random() < 0.5])
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
        if self.spark is not None and self.table._changes.version is not None and draw.random() < 0.3:
            columns = list(model.columns)
            rows = [row.asDict(recursive=True) for row in self.table.read([*KEY, *columns]).collect()]
            by_key = {tuple(row[name] for name in KEY): [_plain(row[name]) for name in columns] for row in rows}
            assert (by_key, len(rows)) == (model.found(columns), len(model.rows))

    def _apply(self, columns: list[str]) -> None:
        """Rows of some keys, several of some of them, and a function that looks at the state; once it is repeated."""
        draw, model = self.drawn.draw, self.model
        columns = draw.sample(columns, draw.randrange(len(columns) + 1))
        given = [row | {"at": at} for at in range(draw.choice([1, 3])) for row in self.drawn.rows(columns)]
        draw.shuffle(given)
        groups = draw.random() < 0.5
        decide = Decide(list(KEY), columns, groups)
        apply: Any = self.table.apply_groups if groups else self.table.apply
        output = apply(self.frame(given, [*columns, "at"]), decide, EMITTED, order_by=["at"])
        expected = model.apply(given, decide)
        for _ in range(2):
            rows = output.rows.to_pylist() if self.spark is None else [row.asDict() for row in output.collect()]
            assert sorted(map(str, rows)) == sorted(map(str, expected))

    def frame(self, rows: list[Row], columns: list[str]) -> Any:
        table = self.drawn.table(rows, columns)
        if self.spark is None:
            return PlainFrame.of(self.drawn.draw, table)
        return self.spark.createDataFrame(table).repartition(self.drawn.draw.choice([1, 2, 4]))


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


def found(rows: pa.Table, columns: list[str]) -> Found:
    """Rows by their key, each of which is there once."""
    rows.validate(full=True)
    by_key = {tuple(row[name] for name in KEY): [row[name] for name in columns] for row in rows.to_pylist()}
    assert len(by_key) == rows.num_rows
    return by_key


async def in_pieces(client: Checkpointer, version: TableVersion, partition: int) -> pa.Table:
    session = client.session
    reader = TableReader(session.store, session.host, version)
    return pa.concat_tables([rows async for rows in reader.pieces(partition, ordered=True)])
