"""Spark's own stateful operators and ours by event time: late rows, watermarks, time-outs, an initial state, restarts.

As in `test_spark_operators.py` both run in one query, on the same batches. The watermark that Spark tells its function
moves the clock of our job, so both forget a key at the same time.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pandas as pd
import pytest

pytest.importorskip(
    "pyspark.sql.streaming.stateful_processor", reason="PySpark 4.0 is the first with stateful processors"
)

from pyspark.sql import DataFrame
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupStateTimeout

from pyspark_checkpointer.spark import Change, Expire, State, stateful
from tests.spark.conftest import Job
from tests.spark.test_spark_operators import Told, frame_of, rocksdb, spark_told

__all__ = ["rocksdb"]

LIVES = timedelta(seconds=20, milliseconds=500)
"""The time that a key lives without rows. Rows come at whole seconds, so that no time-out and watermark are equal."""

LIVES_MS = LIVES // timedelta(milliseconds=1)

LATE = "5 seconds"

KEYS = "abcdef"

EMITTED = "kind string, key string, amount long, text string"

INITIAL = [("a", 3, 100), ("f", 7, 104), ("z", 1, 90)]
"""Key, count and latest time, in seconds, of the keys that are known before the first row."""

Row = tuple[str, str, int, str]


def told_of(key: str, given: list[int], known: tuple[int, int] | None, watermark: int) -> tuple[list[Row], int, int]:
    """Return what Spark's operator emits for rows of a key, and the state it keeps: count and latest time."""
    fired: list[Row] = []
    if known is not None and known[1] * 1000 + LIVES_MS <= watermark:
        fired, known = [("fired", key, 0, "")], None  # Spark gives rows of a key before its time-out
    count, latest = known or (0, 0)
    count, latest = count + len(given), max(latest, *given)
    rows: list[Row] = [("row", key, amount, "") for amount in given]
    state: list[Row] = [("state", key, 0, f"{count} {latest}"), ("watermark", key, watermark, "")]
    return rows + fired + state, count, latest


class Visits(StatefulProcessor):
    """Count the rows of a key, until a timer of event time ends it."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.visits = handle.getValueState("visits", "count long, latest long")

    def keep(self, count: int, latest: int) -> None:
        self.visits.update((count, latest))
        for at in list(self.handle.listTimers()):
            self.handle.deleteTimer(at)
        self.handle.registerTimer(latest * 1000 + LIVES_MS)

    def handleInitialState(self, key: Any, initialState: pd.DataFrame, timerValues: Any) -> None:  # noqa: N802, N803
        self.keep(int(initialState["count"][0]), int(initialState["latest"][0]))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        given = [int(amount) for frame in rows for amount in frame["amount"]]
        known = self.visits.get() if self.visits.exists() else None
        told, count, latest = told_of(key[0], given, known, timerValues.getCurrentWatermarkInMs())
        self.keep(count, latest)
        yield frame_of(told)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        self.visits.clear()
        yield frame_of([("fired", key[0], 0, ""), ("watermark", key[0], timerValues.getCurrentWatermarkInMs(), "")])

    def close(self) -> None:
        pass


def visits(key: tuple[Any, ...], frames: Iterable[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
    """Do the same as `Visits`, for `applyInPandasWithState`."""
    watermark = state.getCurrentWatermarkMs()
    if state.hasTimedOut:
        state.remove()
        yield frame_of([("fired", key[0], 0, ""), ("watermark", key[0], watermark, "")])
        return
    given = [int(amount) for frame in frames for amount in frame["amount"]]
    told, count, latest = told_of(key[0], given, state.get if state.exists else None, watermark)
    state.update((count, latest))
    state.setTimeoutTimestamp(latest * 1000 + LIVES_MS)
    yield frame_of(told)


def by_processor(job: Job, rows: DataFrame) -> DataFrame:
    initial = job.spark.createDataFrame(INITIAL, "key string, count long, latest long").groupBy("key")
    grouped = rows.groupBy("key")
    return grouped.transformWithStateInPandas(Visits(), EMITTED, "append", "EventTime", initialState=initial)


def by_function(job: Job, rows: DataFrame) -> DataFrame:
    timeout = GroupStateTimeout.EventTimeTimeout
    return rows.groupBy("key").applyInPandasWithState(visits, EMITTED, "count long, latest long", "append", timeout)


OPERATORS = [(by_processor, INITIAL), (by_function, [])]

VISITS = "key string, count long, latest long, seen timestamp"


def visit(key: tuple[Any, ...], rows: list[dict[str, Any]], stored: dict[str, Any] | None) -> Change:
    """Do the same for our table, which forgets a key by itself."""
    given = [row["amount"] for row in rows]
    count = (stored["count"] if stored else 0) + len(given)
    latest = max([*given, stored["latest"] if stored else 0])
    new = {"count": count, "latest": latest, "seen": datetime.fromtimestamp(latest, UTC)}
    return Change(new, output=[{"key": key[0], "text": f"{count} {latest}"}])


def our_visits(
    state: State, known: list[tuple[str, int, int]], batch: DataFrame, batch_id: int
) -> list[tuple[str, str]]:
    """Return what our table emits in a batch."""
    (moved,) = batch.where("kind = 'watermark'").selectExpr("max(amount)").collect()
    if moved[0] is not None:
        state.advance_clock(datetime.fromtimestamp(moved[0] / 1000, UTC))
    table = state.table("visits", ["key"], num_partitions=2, schema=VISITS, expire=Expire("seen", after=LIVES))
    if batch_id == 0 and known:
        table.upsert(
            batch.sparkSession.createDataFrame([(*row, datetime.fromtimestamp(row[2], UTC)) for row in known], VISITS)
        )
    fired = [("fired", f"{row.key} ") for row in table.expired().collect()]
    emitted = table.apply_groups(
        batch.where("kind = 'row'").select("key", "amount"), visit, output="key string, text string"
    )
    assert emitted is not None
    return sorted(fired + [("state", f"{row.key} {row.text}") for row in emitted.collect()])


@pytest.mark.prove
@pytest.mark.usefixtures("rocksdb")
@pytest.mark.parametrize(("operator", "known"), OPERATORS, ids=lambda value: getattr(value, "__name__", ""))
def test_spark_and_we_forget_the_same_keys_by_event_time(
    job: Job,
    operator: Callable[[Job, DataFrame], DataFrame],
    known: list[tuple[str, int, int]],
    effort: Callable[[int, int], int],
    figures: Counter[str],
) -> None:
    draw = random.Random(operator.__name__)
    sparks: Told = {}
    ours: Told = {}

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        batch = batch.persist()  # else Spark's operator would run for each use
        sparks[batch_id] = spark_told(batch)
        ours[batch_id] = our_visits(state, known, batch, batch_id)
        batch.unpersist()

    now = 100
    for _ in range(effort(2, 20)):  # each begins the query anew
        for _ in range(3):
            now += draw.choice([1, 8, 30])
            some = draw.sample(KEYS, draw.choice([1, 2, 4]))
            # Some rows come late, and of these some are later than the watermark.
            job.feed(*((draw.choice(some), now - draw.choice([0, 0, 1, 4, 12])) for _ in range(8)))
        rows = job.source().selectExpr("key", "amount", "timestamp_seconds(amount) AS at").withWatermark("at", LATE)
        job.run(update, operator(job, rows))
    assert ours == sparks
    assert any(kind == "fired" for rows in ours.values() for kind, _ in rows)
    figures["batches by event time"] += len(ours)
    figures["time-outs of event time in both"] += sum(kind == "fired" for rows in ours.values() for kind, _ in rows)
