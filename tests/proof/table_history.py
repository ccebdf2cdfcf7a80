"""A history of two tables of one root: batches as the real `State` takes them, each compared with plain Python.

Without Spark the frames are Arrow rows (`plain_spark`); with a session all of it is real, tasks and shuffles too.
"""

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from pyspark_checkpointer import Checkpointer, compaction
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import Expire, apply_task
from pyspark_checkpointer.spark.state import State
from pyspark_checkpointer.spark.table import TableState
from pyspark_checkpointer.spark.table_hints import TableHints
from pyspark_checkpointer.table import large_rows
from pyspark_checkpointer.table import reader as version_module
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.types import spark_type
from pyspark_checkpointer.table.version import TableVersion
from tests.proof.plain_spark import new_state
from tests.proof.table_model import COMBINE, DAY, FIRST, KEY, TIMES, TYPES, Drawn, Key, TableModel, key_of
from tests.proof.table_step import Step, rows_of, together

Figures = Counter[str]

Found = dict[Key, list[Any]]


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a history is. With `few_reads`, each checkpoint is read in one of the ways, and not in all."""

    keys: Sequence[int] = (4, 40)
    partitions: Sequence[int | None] = (None, None, 1, 3)
    types: Mapping[str, pa.DataType] = field(default_factory=lambda: TYPES)
    few_reads: bool = False
    soon: bool = False
    """Whether the times in rows are around those of their batches, so that most of them expire soon."""
    opened: float = 0.9
    """How often a batch opens each table."""
    threads: float = 0.3
    """How often a batch uses both tables at the same time."""
    steps: Sequence[int] = (1, 1, 2, 3)
    after: Sequence[int] = (1, 3, 10)
    """Days after which rows expire."""
    rules: float = 0.3
    """How often a batch lets rows expire by a rule that is drawn anew."""


class History:
    """One root, two tables, and what they should hold. `width`: bytes of the largest values."""

    def __init__(
        self,
        seed: int,
        figures: Figures,
        root: str,
        width: int,
        spark: SparkSession | None = None,
        shape: Shape = Shape(),  # it is frozen
    ) -> None:
        self.shape = shape
        self.draw = random.Random(seed)
        self.figures = figures
        self.spark = spark
        self.max_chain = self.draw.choice([2, 4, 10])
        self.drawn = Drawn(self.draw, width, self.draw.choice(shape.keys), self.draw.random() < 0.4, shape.types)
        self.models = {"t": TableModel(), "other": TableModel()}
        self.moves_clock = self.draw.random() < 0.5
        """Whether the job moves its clock itself, or Spark's batches do."""
        self.clock: datetime | None = None
        self.day = 5
        self.hints: dict[str, TableHints] = {}
        """What the batches of a run carry on, here also over a rewind and a fork."""
        self.client = self._open(root)

    def _open(self, root: str) -> Checkpointer:
        client = Checkpointer(root, max_chain=self.max_chain)
        client.restore()
        return client

    def limits(self, patch: pytest.MonkeyPatch) -> None:
        """Rows and bytes at which something changes, most of them so small that it does."""
        choose = self.draw.choice
        patch.setattr(compaction, "DRIVER_BYTES", choose([1, 3000, 16 << 20]))
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
        patch.setattr("pyspark_checkpointer.table.parquet_encode.ROW_GROUP_ROWS", choose([2, 5, 16_384]))
        patch.setattr("pyspark_checkpointer.table.parquet_encode.BLOCK_ROWS", choose([1, 2, 512]))
        patch.setattr("pyspark_checkpointer.table.parquet_encode.MIN_BLOCKS", choose([1, 16]))
        patch.setattr("pyspark_checkpointer.table.parquet_encode.PACK_BLOCK_ROWS", choose([1, 3, 2048]))
        patch.setattr("pyspark_checkpointer.table.parquet_encode.MIN_PACK_BLOCKS", choose([1, 16]))
        patch.setattr("pyspark_checkpointer.table.parquet_encode.LARGE_PACK_BYTES", choose([1, 1500, 256 << 10]))
        patch.setattr("pyspark_checkpointer.table.packs.LARGE_PACK_BYTES", choose([1, 256 << 10]))
        patch.setattr("pyspark_checkpointer.table.packs.ROWS_PER_KEY", choose([1, 32]))

    def batch(self, number: int) -> None:
        """One batch, which is committed or fails."""
        before, clock_before = {name: model.copy() for name, model in self.models.items()}, self.clock
        self.day += self.draw.choice([-1, 0, 0, 1, 1, 4])
        state = self.begin(number)
        if self.draw.random() < 0.1:
            state._attempt.abort()
            self.models, self.clock, self.hints = before, clock_before, {}
        else:
            self.commit(state)
        if self.draw.random() < 0.3:
            self.client = self._open(self.client.root)  # the working directory may be another one since
        self.figures["batches"] += 1

    def begin(self, number: int) -> State:
        """Do all that a batch does, up to its commit."""
        before, time = {name: model.copy() for name, model in self.models.items()}, FIRST + self.day * DAY
        time_of_spark = None if self.moves_clock else time
        state = new_state(self.client, self.client.restore(), number, self.spark, time_of_spark, self.hints)
        if self.moves_clock:
            self._tick(time)
            state.advance_clock(time)
        if self.shape.soon:
            self.drawn.days = range(self.day - 1, self.day + 3)
        partitions = self.draw.choice(self.shape.partitions)
        opened = [name for name in self.models if self.draw.random() < self.shape.opened]
        work = [self._open_table(state, name, partitions, before[name], time) for name in opened]
        if len(work) > 1 and self.draw.random() < self.shape.threads:
            together(*work)
        else:
            for one in work:
                one()
        return state

    def commit(self, state: State) -> None:
        """Commit a batch: its tables and the clock."""
        if self.clock is not None:
            self._tick(FIRST + self.day * DAY)
        for model in self.models.values():
            model.tick(self.clock)
        early = {name: hints.early for name, hints in self.hints.items()}
        state._attempt.commit()
        self.figures["compacted early"] += sum(
            table._hints.early is not early.get(name) and bool(table._hints.early._keep)
            for name, table in state._attempt.tables.items()
        )

    def _tick(self, time: datetime) -> None:
        """The clock follows the time, and never goes back."""
        self.clock = time if self.clock is None else max(self.clock, time)

    def _rule(self, model: TableModel, planned: list[tuple[str, list[str]]], drops: bool) -> Expire | None:
        """Draw how rows expire, mostly as before; the columns that are written get the time where they need it."""
        rule = model.rule
        if self.draw.random() < self.shape.rules:
            times = [column for column in TIMES if column in self.shape.types]
            rule = self.draw.choice(
                [None, *(Expire(column, days * DAY) for column in times for days in self.shape.after)]
            )
        if rule is None or (rule.column not in model.columns and (drops or planned[0][0] not in ("upsert", "replace"))):
            return None
        for step, columns in planned:
            needs = step == "replace" or rule.column not in model.columns
            needs = needs or (self.shape.soon and not (drops and rule.column in COMBINE))
            if rule.column not in columns and needs:
                columns.append(rule.column)
        return rule

    def _open_table(
        self, state: State, name: str, partitions: int | None, before: TableModel, time: datetime
    ) -> Callable[[], None]:
        """Draw what is done to a table in this batch, and how it is opened for that."""
        steps = [self.drawn.step() for _ in range(self.draw.choice(self.shape.steps))]
        drops = "drop columns" in steps
        planned = [(step, [c for c in self.drawn.columns() if not (drops and c in COMBINE)]) for step in steps]
        if drops and any(step == "replace" for step in steps):
            planned = [(step, columns) for step, columns in planned if step != "replace"]
        rule = self._rule(self.models[name], planned, drops) if planned else None
        writes = [columns for step, columns in planned if step in ("upsert", "replace")]
        declared = [] if drops or not before.columns else self._declared(planned)
        known = [*self.models[name].columns, *declared, *(column for columns in writes for column in columns)]
        combine = {} if drops else {column: how for column, how in COMBINE.items() if column in known}
        table = state.table(
            name,
            KEY,
            num_partitions=partitions,
            combine=combine,  # type: ignore[arg-type]
            schema=self._schema_of(declared) if declared else None,
            expire=rule,
        )
        if rule is not None:
            self._tick(time)
        # Only now: what the rule of before would let expire with this batch lives on.
        self.models[name].rule = rule
        self.models[name].tick(self.clock)
        self.models[name].late = []
        drawn = self.drawn.of_thread()
        draw = drawn.draw

        def work() -> None:
            if rule is not None and before.columns and draw.random() < 0.7:
                self._check_expired(table, rule, before, self.models[name])
            for step, columns in planned:
                self.figures[step] += 1
                Step(table, self.models[name], drawn, list(combine), declared, self.spark).do(step, columns)
            if rule is not None and not drops and draw.random() < 0.7:
                self._check_expired(table, rule, before, self.models[name])

        return work

    def _declared(self, planned: list[tuple[str, list[str]]]) -> list[str]:
        """Columns that `schema=` adds to a table when a function is applied to it."""
        if self.draw.random() < 0.5 or all(step not in ("apply", "first seen") for step, _ in planned):
            return []
        return self.drawn.columns()

    def _schema_of(self, columns: list[str]) -> StructType:
        """Columns, with the key, as a job declares them."""
        kinds = {"k": self.drawn.kind, "part": pa.string()} | {name: self.drawn.types[name] for name in columns}
        fields = [{"name": n, "type": spark_type(kind), "nullable": True, "metadata": {}} for n, kind in kinds.items()]
        return StructType.fromJson({"type": "struct", "fields": fields})

    def _check_expired(self, table: TableState, rule: Expire, before: TableModel, now: TableModel) -> None:
        """The rows of the last checkpoint that expire with this batch, and those that the batch wrote too late."""
        if table._changes.version is None or rule.column not in table._changes.version.schema.names:
            return
        due = before.due(rule, self.clock) if rule.column in before.columns else []
        expected = sorted(map(repr, [*due, *now.late]))
        assert sorted(repr(key_of(row)) for row in rows_of(table.expired())) == expected
        self.figures["rows expired"] += len(due)
        self.figures["rows written too late"] += len(now.late)

    def check(self) -> None:
        """What is committed, by each way in which it can be read."""
        restored = self.client.copy().restore()
        operators = {} if restored is None or restored.manifest is None else restored.manifest.operators
        for name, model in self.models.items():
            if name not in operators:
                assert (model.columns, model.rows) == ([], {})
                continue
            assert restored is not None
            assert restored.clock == self.clock
            version = TableVersion.of(name, operators[name], restored.manifest.clock if restored.manifest else None)
            assert max(map(len, version.chains.values()), default=0) <= self.max_chain
            ways = [self._check_rows, self._check_some, self._check_pieces]
            for check in [self.draw.choice(ways)] if self.shape.few_reads else ways:
                check(restored, version, model)
            self.figures["rows compared"] += len(model.rows)

    def _check_rows(self, restored: Restored, version: TableVersion, model: TableModel) -> None:
        rows = restored.table(version.name)
        assert sorted(rows.column_names) == sorted([*KEY, *model.columns])
        assert found(rows, model.columns) == model.found(model.columns)

    def _check_some(self, restored: Restored, version: TableVersion, model: TableModel) -> None:
        """Some columns, and some columns of some keys."""
        name, columns = version.name, self.draw.sample(model.columns, self.draw.randrange(len(model.columns) + 1))
        assert found(restored.table(name, columns=[*columns, *KEY]), columns) == model.found(columns)
        keys = [key for key in (*model.rows, (10**6, "a")) if self.draw.random() < 0.3]
        wanted = {key: row for key, row in model.found(columns).items() if key in keys}
        sought: Any = [dict(zip(KEY, key, strict=True)) for key in keys]
        assert found(restored.table(name, columns=[*KEY, *columns], keys=sought), columns) == wanted

    def _check_pieces(self, restored: Restored, version: TableVersion, model: TableModel) -> None:
        pieces: Found = {}
        for partition in version.chains:
            rows = run_sync(in_pieces(self.client, version, partition))
            keyed = rows.select(KEY)
            assert repr(keyed.to_pylist()) == repr(in_order(keyed, KEY).to_pylist())  # NaN does not equal itself
            pieces |= found(rows, model.columns)
        assert pieces == model.found(model.columns)


def found(rows: pa.Table, columns: list[str]) -> Found:
    """Rows by their key, each of which is there once."""
    rows.validate(full=True)
    by_key = {key_of(row): [row[name] for name in columns] for row in rows.to_pylist()}
    assert len(by_key) == rows.num_rows
    return by_key


async def in_pieces(client: Checkpointer, version: TableVersion, partition: int) -> pa.Table:
    session = client.session
    reader = TableReader(session.store, session.host, version)
    return pa.concat_tables([rows async for rows in reader.pieces(partition, ordered=True)])
