"""A root in memory whose tables expire, without Spark."""

import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import Expire, State
from tests.proof.plain_spark import PlainFrame, new_state

START = datetime(2024, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
MICROSECOND = timedelta(microseconds=1)
UTC_TIME = pa.timestamp("us", "UTC")
RULE = Expire("seen", after=10 * DAY)
COLUMNS = StructType().add("k", "long").add("seen", "timestamp")


class Place:
    """A root in memory, and tables without Spark: `day` is the clock that the job moves."""

    def __init__(self) -> None:
        self.draw = random.Random(7)
        self.client = Checkpointer(f"memory://{uuid.uuid4().hex}")
        self.number = -1

    def begin(self, day: float | None = None, time: datetime | None = None) -> State:
        self.number += 1
        state = new_state(self.client, self.client.restore(), self.number, time=time)
        if day is not None:
            state.advance_clock(START + day * DAY)
        return state

    def commit(self, state: State) -> None:
        state._attempt.commit()

    def batch(self, day: float, *given: pa.Table, **options: Any) -> None:
        """A batch that upserts."""
        state = self.begin(day)
        table = state.table("t", ["k"], **({"num_partitions": 2, "expire": RULE} | options))
        for one in given:
            table.upsert(self.frame(one))
        self.commit(state)

    def frame(self, *parts: pa.Table) -> Any:
        return PlainFrame(self.draw, parts)

    def rows(self, **options: Any) -> list[dict[str, Any]]:
        restored = self.client.copy().restore()
        assert restored is not None
        found: list[dict[str, Any]] = restored.table("t", **options).sort_by("k").to_pylist()
        return found


def given(*found: tuple[int, float | None], **columns: list[Any]) -> pa.Table:
    """Rows of a key and the day on which it was seen."""
    times = [None if day is None else START + day * DAY for _, day in found]
    return pa.table({"k": [k for k, _ in found], "seen": pa.array(times, UTC_TIME), **columns})


def keys(found: list[dict[str, Any]]) -> list[int]:
    return [row["k"] for row in found]
