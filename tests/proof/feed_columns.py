"""A table whose columns go, come back, become wider and are exchanged, batch by batch, without Spark."""

import random
from collections import Counter
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.spark import Expire
from pyspark_checkpointer.spark.state import State
from pyspark_checkpointer.table.types import is_wider, spark_type
from pyspark_checkpointer.table.version import TableVersion
from tests.proof.plain_spark import PlainFrame
from tests.table.plain_store import DAY, FIRST, Store

Rows = dict[int, dict[str, Any]]

KINDS = (
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.decimal128(12, 2),
    pa.decimal128(24, 4),
    pa.float32(),
    pa.float64(),
    pa.string(),
    pa.list_(pa.string()),
)
KEY_KINDS = KINDS[:3]
NAMES = ("a", "b", "at")
TIME = pa.timestamp("us", "UTC")


class ColumnHistory:
    """A root with a table `t`, what it holds at each checkpoint, and in which types."""

    def __init__(self, seed: int, store: Store, figures: Counter[str]) -> None:
        self.draw = random.Random(seed)
        self.store = store
        self.figures = figures
        self.day = 0
        self.key: pa.DataType = pa.int32()
        self.kinds: dict[str, pa.DataType] | None = None
        """The columns of today; None where there is no table."""
        self.known: list[tuple[CheckpointId, Rows, dict[str, Any]]] = []
        """The checkpoints, their rows, and the types of their columns as Spark names them."""

    def batch(self) -> None:
        """One batch, or a rollback."""
        if self.known and self.draw.random() < 0.2:
            self._roll_back()
        else:
            self.day += self.draw.choice([0, 1, 3])
            self.store.batch(self._work, self.day)
        self._note()

    def _note(self) -> None:
        restored: Any = self.store.client.copy().restore()
        operator = restored.manifest.operators.get("t")
        rows: Rows = {}
        kinds = {}
        if operator is not None:
            rows = {row["k"]: row for row in restored.table("t").to_pylist()}
            columns = TableVersion.of("t", operator, restored.manifest.clock).schema.columns
            kinds = {column.name: column.type for column in columns}
        self.known.append((restored.id, rows, kinds))

    def _roll_back(self) -> None:
        target, _, kinds = self.draw.choice(self.known)
        now = self.known[-1][2]
        self.figures["rollbacks"] += 1
        self.figures["widenings rolled back"] += any(is_wider(kinds[n], now[n]) for n in kinds.keys() & now.keys())
        self.figures["columns rolled back"] += kinds.keys() != now.keys()
        self.store.client.rollback(target)
        restored: Any = self.store.client.copy().restore(target)
        operator = restored.manifest.operators.get("t")
        self.kinds = None
        if operator is not None:
            fields = TableVersion.of("t", operator, restored.manifest.clock).schema.arrow()
            self.kinds = {field.name: field.type for field in fields}
            self.key = self.kinds.pop("k")

    # ---- batches -------------------------------------------------------------------------------------------------

    def _work(self, state: State) -> None:
        choose = self.draw.choice
        if self.kinds is not None and self.draw.random() < 0.08:
            state.drop("t")
            self.kinds = None
            self.figures["drops"] += 1
            if self.draw.random() < 0.4:
                return
        if self.kinds is None:
            self.key, self.kinds = choose(KEY_KINDS), {}
            self.figures["tables made"] += 1
            self._write(state, "upsert", None)
            return
        step = choose(
            ["upsert", "upsert", "widen", "widen", "widen key", "delete", "drop columns", "replace", "compact", "open"]
        )
        self.figures[step] += 1
        rule = None
        if self.kinds.get("at") == TIME and step not in ("drop columns", "replace") and self.draw.random() < 0.7:
            rule = Expire("at", after=choose([1, 2, 6]) * DAY)
        if step == "widen key":
            self.key = choose([kind for kind in KEY_KINDS if kind == self.key or _wider(self.key, kind)])
        if step in ("upsert", "widen", "widen key", "replace"):
            self._write(state, step, rule)
            return
        table = state.table("t", ["k"], num_partitions=choose([None, None, 1, 3]), expire=rule)
        if step == "delete":
            keys = self.draw.sample(range(8), 2)
            table.delete(PlainFrame(self.draw, [pa.table({"k": pa.array(keys, self.key)})]))
        elif step == "drop columns" and self.kinds:
            dropped = self.draw.sample(sorted(self.kinds), self.draw.randint(1, len(self.kinds)))
            table.drop_columns(dropped)
            for name in dropped:
                del self.kinds[name]
            if self.draw.random() < 0.4:  # and back at once
                table.upsert(self._frame(self._new_columns()))
        elif step == "compact":
            table.compact()

    def _write(self, state: State, step: str, rule: Expire | None) -> None:
        assert self.kinds is not None
        if step == "replace":
            kept = {name: kind for name, kind in self.kinds.items() if self.draw.random() < 0.5}
            # A column that a replace has keeps its type: new is only what was not there.
            columns = kept | self._new_columns()
            self.kinds = {}
        else:
            columns = {name: kind for name, kind in self.kinds.items() if self.draw.random() < 0.6}
            columns |= self._new_columns()
        if step == "widen":
            for name, kind in list(columns.items()):
                columns[name] = self.draw.choice([kind, *(wide for wide in KINDS if _wider(kind, wide))])
        self.kinds |= columns
        table = state.table("t", ["k"], num_partitions=self.draw.choice([None, None, 1, 3]), expire=rule)
        (table.replace if step == "replace" else table.upsert)(self._frame(columns))

    def _new_columns(self) -> dict[str, pa.DataType]:
        """Columns that the table does not have, which may have been there before, in any type."""
        assert self.kinds is not None
        new = {n: self._kind(n) for n in NAMES if n not in self.kinds and self.draw.random() < 0.5}
        self.kinds |= new
        return new

    def _kind(self, name: str) -> pa.DataType:
        if name == "at" and self.draw.random() < 0.8:
            return TIME
        return self.draw.choice(KINDS)

    def _frame(self, columns: dict[str, pa.DataType]) -> Any:
        keys = self.draw.sample(range(8), self.draw.choice([1, 3, 8]))
        values = {name: pa.array([self._value(kind) for _ in keys], kind) for name, kind in columns.items()}
        return PlainFrame(self.draw, [pa.table({"k": pa.array(keys, self.key), **values})])

    def _value(self, kind: pa.DataType) -> Any:
        if self.draw.random() < 0.2:
            return None
        number = self.draw.randrange(4)
        if pa.types.is_timestamp(kind):
            return FIRST + timedelta(days=self.day + number - 2)
        if pa.types.is_decimal(kind):
            return Decimal(number)
        if pa.types.is_string(kind):
            return str(number)
        return [str(number)] if pa.types.is_list(kind) else number


def _wider(old: pa.DataType, new: pa.DataType) -> bool:
    kinds = [spark_type(kind) for kind in (old, new) if not pa.types.is_timestamp(kind)]
    return len(kinds) == 2 and is_wider(*kinds)
