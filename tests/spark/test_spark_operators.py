"""Spark's own stateful operator and ours, on the same rows and the same clock: what is emitted and kept is the same.

Both run in one query: Spark's `transformWithStateInPandas` passes its input on beside what it emits, and our tables see
these rows in `foreachBatch`. So both have the same batches, at the times that Spark recorded for them. What they do is
what PySpark's own tests exercise: value, list and map state, state with a time to live, timers, and a restart.
"""

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pandas as pd
import pytest

pytest.importorskip(
    "pyspark.sql.streaming.stateful_processor", reason="PySpark 4.0 is the first with stateful processors"
)

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import Change, Expire, State, stateful
from tests.spark.conftest import Job

LIVES = timedelta(seconds=4)
"""How long a key may be without rows until its timer fires, and its state with a time to live is gone."""

KEYS = "abcd"

EMITTED = "kind string, key string, amount long, text string"

Told = dict[int, list[tuple[str, str]]]


def shown(count: int, total: int, amounts: list[int], kinds: dict[str, int], recent: int) -> str:
    """All that is known of a key, as both emit it."""
    return json.dumps([count, total, sorted(amounts), dict(sorted(kinds.items())), recent])


def spark_told(batch: DataFrame) -> list[tuple[str, str]]:
    """Return the states and time-outs that Spark's operator emitted in a batch."""
    rows = batch.where("kind IN ('fired', 'state')").select("kind", "key", "text").collect()
    return sorted((row.kind, f"{row.key} {row.text}") for row in rows)


def kind_of(amount: int) -> str:
    return "even" if amount % 2 == 0 else "odd"


class Everything(StatefulProcessor):
    """A value, a list, a map, a value with a time to live, and a timer for each key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.totals = handle.getValueState("totals", "count long, total long")
        self.amounts = handle.getListState("amounts", "amount long")
        self.kinds = handle.getMapState("kinds", "kind string", "count long")
        self.recent = handle.getValueState("recent", "batches long", ttlDurationMs=LIVES // timedelta(milliseconds=1))

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        given = [int(amount) for frame in rows for amount in frame["amount"]]
        now = timerValues.getCurrentProcessingTimeInMs()
        due = list(self.handle.listTimers())
        for at in due:
            self.handle.deleteTimer(at)
        # Rows come before the timers of a batch: one that is due would be forgotten with the new one.
        fired = [("fired", key[0], 0, "")] * sum(at <= now for at in due)
        self.handle.registerTimer(now + LIVES // timedelta(milliseconds=1))
        count, total = self.totals.get() if self.totals.exists() else (0, 0)
        self.totals.update((count + len(given), total + sum(given)))
        self.amounts.appendList([(amount,) for amount in given])
        for kind, more in Counter(map(kind_of, given)).items():
            before = self.kinds.getValue((kind,))[0] if self.kinds.containsKey((kind,)) else 0
            self.kinds.updateValue((kind,), (before + more,))
        self.recent.update(((self.recent.get()[0] if self.recent.exists() else 0) + 1,))
        text = shown(
            *self.totals.get(),
            [amount for (amount,) in self.amounts.get()],
            {kind: count for (kind,), (count,) in self.kinds.iterator()},
            *self.recent.get(),
        )
        yield frame_of([*(("row", key[0], amount, "") for amount in given), *fired, ("state", key[0], 0, text)])

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
        yield frame_of([("fired", key[0], 0, "")])

    def close(self) -> None:
        pass


def frame_of(rows: list[tuple[str, str, int, str]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["kind", "key", "amount", "text"])


COLUMNS = "key string, count long, total long, amounts array<long>, odd long, even long"
RECENT = "key string, batches long, seen timestamp"


def remember(key: tuple[Any, ...], rows: list[dict[str, Any]], stored: dict[str, Any] | None) -> Change:
    """The value, the list and the map of a key. How many batches it has come in is in the rows."""
    given, old = [row["amount"] for row in rows], stored or {"count": 0, "total": 0, "amounts": [], "odd": 0, "even": 0}
    kinds = Counter(map(kind_of, given))
    new = {
        "count": old["count"] + len(given),
        "total": old["total"] + sum(given),
        "amounts": [*old["amounts"], *given],
        "odd": old["odd"] + kinds["odd"],
        "even": old["even"] + kinds["even"],
    }
    shown_kinds = {kind: new[kind] for kind in ("odd", "even") if new[kind]}
    text = shown(new["count"], new["total"], new["amounts"], shown_kinds, rows[0]["batches"])
    return Change(new, output=[{"key": key[0], "text": text}])


def count_batches(key: tuple[Any, ...], rows: list[dict[str, Any]], stored: dict[str, Any] | None) -> Change:
    new = {"key": key[0], "batches": (stored["batches"] if stored else 0) + 1, "seen": rows[0]["seen"]}
    return Change(new, output=[new])


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Spark keeps state of several kinds in RocksDB only."""
    setting = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(setting, "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
    yield
    spark.conf.unset(setting)


@pytest.mark.prove
@pytest.mark.usefixtures("rocksdb")
def test_spark_and_we_emit_and_keep_the_same(
    job: Job, effort: Callable[[int, int], int], figures: Counter[str]
) -> None:
    draw = random.Random(1)
    sparks: Told = {}
    ours: Told = {}

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        batch = batch.persist()  # else Spark's operator would run for each use
        sparks[batch_id] = spark_told(batch)
        rows = batch.where("kind = 'row'").select("key", "amount")
        recent = state.table("recent", ["key"], num_partitions=2, schema=RECENT, expire=Expire("seen", after=LIVES))
        fired = [("fired", f"{row.key} ") for row in recent.expired().collect()]
        keys = rows.select("key").distinct().withColumn("seen", F.lit(state.clock))
        counted = recent.apply_groups(keys, count_batches, output=RECENT)
        everything = state.table("everything", ["key"], num_partitions=2, schema=COLUMNS)
        assert counted is not None
        given = rows.join(counted.select("key", "batches"), "key")
        emitted = everything.apply_groups(given, remember, output="key string, text string")
        assert emitted is not None
        ours[batch_id] = sorted(fired + [("state", f"{row.key} {row.text}") for row in emitted.collect()])
        batch.unpersist()

    for _ in range(effort(2, 20)):  # each begins the query anew
        for _ in range(2):
            some = draw.sample(KEYS, draw.choice([1, 2, 3]))
            job.feed(*((draw.choice(some), draw.randrange(100)) for _ in range(8)))
        files = sum(1 for _ in (job.folder / "input").iterdir())
        # One more batch has begun since the last one with rows, so that one is done on both sides.
        run(job, update, lambda files=files: len(ours) > (last := data(ours, files)) >= 0 and max(ours) > last)
        time.sleep(draw.choice([0, LIVES.total_seconds() * 0.6, LIVES.total_seconds() * 1.2]))
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.epoch is not None
    for told in (ours, sparks):  # the last batch may have been stopped
        told.pop(restored.epoch + 1, None)
    assert ours == sparks
    assert any(kind == "fired" for rows in ours.values() for kind, _ in rows)
    kept = {row["key"]: (row["count"], row["total"]) for row in restored.table("everything").to_pylist()}
    theirs = job.spark.read.format("statestore").option("stateVarName", "totals").load(str(job.location))
    assert kept == {row.key: (row.count_, row.total) for row in _totals(theirs).collect()}
    figures["batches"] += len(ours)
    figures["rows emitted by both"] += sum(map(len, ours.values()))
    figures["timers fired by both"] += sum(kind == "fired" for rows in ours.values() for kind, _ in rows)


def run(job: Job, update: Any, done: Callable[..., bool]) -> None:
    """Run a query until it has read everything. With processing time it has batches without rows for ever."""
    rows = job.source().groupBy("key").transformWithStateInPandas(Everything(), EMITTED, "update", "ProcessingTime")
    writer = rows.writeStream.outputMode("update").foreachBatch(update)
    query = writer.option("checkpointLocation", str(job.location)).start()
    try:
        deadline = time.monotonic() + 300
        # Not `processAllAvailable`, which waits for the end of the batches without rows.
        while query.isActive and not done():
            assert time.monotonic() < deadline, "the query has not read everything within five minutes"
            time.sleep(0.1)
    finally:
        query.stop()
    assert query.exception() is None


def data(ours: Told, files: int) -> int:
    """The last batch that had rows, once all files were read; else -1."""
    batches = [batch for batch, rows in ours.items() if any(kind == "state" for kind, _ in rows)]
    return max(batches) if len(batches) == files else -1


def _totals(kept: DataFrame) -> DataFrame:
    return kept.selectExpr("key.key AS key", "value.count AS count_", "value.total AS total")
