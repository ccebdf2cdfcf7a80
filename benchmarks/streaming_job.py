"""Run a job on real executors: `python -m benchmarks.streaming_job MASTER TURNS BATCHES DIVISOR`.

It works in the current folder. All sizes are divided by DIVISOR. For each kind of state it prints JSON: the seconds of
its batches ("ours"), the seconds of a foreachBatch that does the same work without state ("plain"), and how long saving
blocked.
"""

import json
import sys
from collections.abc import MutableMapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.micro_batches import FIRST, WARM, Feed, fingerprint, in_turns, session
from pyspark_checkpointer.checkpoint.metrics import CommitMetrics
from pyspark_checkpointer.spark import State, read_state, stateful

SETTINGS = {"spark.driver.memory": "1g", "spark.executor.memory": "512m", "spark.sql.shuffle.partitions": "4"}

Seconds = dict[str, list[float]]


def main(master: str, turns: str, batches: str, divisor: str) -> None:
    with session(master, SETTINGS) as spark:
        each = partial(_measure, spark, turns=int(turns), batches=int(batches))
        found = {work.what: each(work) for work in (Map(int(divisor)), Table(int(divisor)))}
        print(json.dumps(found))


class Map:
    """State on the driver, compared with a dict."""

    def __init__(self, divisor: int) -> None:
        self.keys, self.changed = 100_000 // divisor, 1_000 // divisor
        self.what = f"{self.changed:,} of {self.keys:,} keys of a map"
        self._dict: dict[Any, Any] = {}

    def plain(self, batch: DataFrame, batch_id: int) -> None:
        self._add(batch, self._dict)

    def ours(self, batch: DataFrame, batch_id: int, state: State) -> None:
        self._add(batch, state.map("last"))

    def check(self, feed: Feed, spark: SparkSession, root: Path, restored: Any) -> None:
        if dict(restored.keyed("last")) != self._dict or len(self._dict) != self.keys:
            raise AssertionError("the map is not what was put into it")

    @staticmethod
    def _add(batch: DataFrame, state: MutableMapping[Any, Any]) -> None:
        for row in batch.toArrow().to_pylist():
            known = state.get(row["key"], {"seen": 0})
            state[row["key"]] = {"last": row["amount"], "seen": known["seen"] + 1}


class Table:
    """State on the executors, compared with rows that are not kept."""

    def __init__(self, divisor: int) -> None:
        self.keys, self.changed = 1_000_000 // divisor, 50_000 // divisor
        self.what = f"an upsert of {self.changed:,} rows into a table of {self.keys:,}"

    def plain(self, batch: DataFrame, batch_id: int) -> None:
        self._totals(batch).write.format("noop").mode("overwrite").save()

    def ours(self, batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("totals", ["key"], num_partitions=8, combine={"amount": "sum"}).upsert(self._totals(batch))

    def check(self, feed: Feed, spark: SparkSession, root: Path, restored: Any) -> None:
        stored, given = read_state(spark, root, "totals"), self._totals(feed.read())
        if fingerprint(stored) != fingerprint(given):
            raise AssertionError("the running sums are not the sums")

    @staticmethod
    def _totals(batch: DataFrame) -> DataFrame:
        return batch.groupBy("key").agg(F.sum("amount").alias("amount"))


def _measure(spark: SparkSession, work: Map | Table, turns: int, batches: int) -> Seconds:
    folder = Path.cwd() / type(work).__name__
    folder.mkdir()
    feed = Feed(spark, folder / "input", partial(_part, work.keys, work.changed))
    blocked: list[float] = []

    def note(record: Any) -> None:
        if isinstance(record, CommitMetrics):
            blocked.append(record.blocked_seconds)

    ours = stateful(folder / "root", metrics=note)(work.ours)
    queries = {
        "plain": lambda: feed.stream().writeStream.foreachBatch(work.plain),
        "ours": lambda: feed.stream().writeStream.foreachBatch(ours),
    }
    times = in_turns(feed, queries, folder, turns, batches)
    work.check(feed, spark, folder / "root", ours.checkpointer.restore())
    turn_of = WARM + batches
    counted = [blocked[FIRST + turn * turn_of + WARM : FIRST + (turn + 1) * turn_of] for turn in range(turns)]
    if len(blocked) != FIRST + turns * turn_of:
        raise AssertionError(f"{len(blocked)} commits of {FIRST + turns * turn_of} batches")
    return {name: list(found.seconds) for name, found in times.items()} | {"blocked": list(chain(*counted))}


def _part(keys: int, changed: int, number: int) -> pa.Table:
    """Return the rows of a batch: all keys in the first one, some of them in each later one."""
    draw = np.random.default_rng(number)
    chosen = draw.permutation(keys) if number == 0 else draw.choice(keys, changed, replace=False)
    return pa.table({"key": chosen, "amount": draw.integers(0, 100, len(chosen))})


if __name__ == "__main__":
    main(*sys.argv[1:])
