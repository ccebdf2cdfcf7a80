"""Measure a running sum, batch by batch: table state beside its alternatives, and beside no state at all.

All queries take the same files in turn. The final state of each is compared with the sums of these files. Tables of
lakes that Spark itself merges into are in `lakes.py`: they need an older Spark.
"""

import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.contenders import Synced
from benchmarks.measure import Finding, Grid, Target, Times
from benchmarks.micro_batches import Feed, Query, fingerprint, in_turns, location
from benchmarks.table_state import PARTITIONS, consume, session
from pyspark_checkpointer.spark import State, read_state, stateful

BATCH_ROWS, BATCH_KEYS = 50_000, 200_000

PROVIDERS = {
    "HDFS": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "RocksDB": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
"""The classes in which Spark's own aggregation keeps its state."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to keep the sums.

    `query` starts the query or goes on with it. `state` returns what it holds, as rows of key and amount, if it holds
    anything. `verified` says how bytes are checked when they are read again, `synced` whether a finished batch is
    durable, and `merged` when the new sums are computed from the old ones.
    """

    query: Query
    state: Callable[[], DataFrame] | None
    verified: str
    synced: str
    merged: str


def run(quick: bool) -> list[Finding]:
    folder = Path(tempfile.mkdtemp(prefix="bench-peers-"))
    spark = session(folder)
    try:
        return _micro_batches(spark, folder, *((1, 1) if quick else (3, 10)))
    finally:
        spark.stop()
        shutil.rmtree(folder)


def batch_part(number: int) -> pa.Table:
    draw = np.random.default_rng(number)
    return pa.table({"key": draw.integers(0, BATCH_KEYS, BATCH_ROWS), "amount": draw.integers(0, 100, BATCH_ROWS)})


def _micro_batches(spark: SparkSession, folder: Path, turns: int, batches: int) -> list[Finding]:
    feed = Feed(spark, folder / "stream", batch_part)
    contenders = {
        "ours": ours(spark, feed, folder / "ours"),
        "noop": noop(feed),
        **{f"Spark on {name}": _spark(spark, feed, folder, name) for name in PROVIDERS},
        "delta-rs": _delta(spark, feed, str(folder / "delta")),
    }
    times = in_turns(feed, {name: one.query for name, one in contenders.items()}, folder, turns, batches)
    sums = fingerprint(aggregated(feed.read()))
    for name, one in contenders.items():
        if one.state is not None and fingerprint(one.state()) != sums:
            raise AssertionError(f"{name}: the running sums are not the sums")
    return _findings(contenders, times)


def aggregated(batch: DataFrame) -> DataFrame:
    return batch.groupBy("key").agg(F.sum("amount").alias("amount"))


def noop(feed: Feed) -> Contender:
    """Return the contender that only aggregates: what a batch costs without any state."""
    return Contender(lambda: feed.stream().writeStream.foreachBatch(_only_aggregate), None, *["no state"] * 3)


def _only_aggregate(batch: DataFrame, batch_id: int) -> None:
    consume(aggregated(batch))


def ours(spark: SparkSession, feed: Feed, root: Path) -> Contender:
    @stateful(root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        totals = state.table("totals", ["key"], num_partitions=PARTITIONS, combine={"amount": "sum"})
        totals.upsert(aggregated(batch))

    return Contender(
        lambda: feed.stream().writeStream.foreachBatch(update),
        lambda: read_state(spark, root, "totals"),
        "yes, SHA-256",
        "yes",
        "when read or compacted",
    )


def _spark(spark: SparkSession, feed: Feed, folder: Path, name: str) -> Contender:
    def query() -> DataStreamWriter:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[name])
        spark.conf.set("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        return aggregated(feed.stream()).writeStream.outputMode("update").format("noop")

    def state() -> DataFrame:
        stored = spark.read.format("statestore").load(str(location(folder, f"Spark on {name}")))
        return stored.select("key.key", F.col("value.sum").alias("amount"))

    return Contender(query, state, "no; CRC by Hadoop in a local folder", "no", "in the batch")


def _delta(spark: SparkSession, feed: Feed, path: str) -> Contender:
    synced = Synced(Path(path))

    def merge(batch: DataFrame, batch_id: int) -> None:
        new = aggregated(batch).toArrow()
        if batch_id == 0:
            write_deltalake(path, new)
            synced()
            return
        merging = DeltaTable(path).merge(new, "t.key = s.key", source_alias="s", target_alias="t")
        merging = merging.when_matched_update({"amount": "t.amount + s.amount"})
        merging.when_not_matched_insert_all().execute()
        synced()

    return Contender(
        lambda: feed.stream().writeStream.foreachBatch(merge),
        lambda: spark.createDataFrame(DeltaTable(path).to_pyarrow_table()),
        "no",
        "yes, done for it",
        "in the batch",
    )


def _findings(contenders: dict[str, Contender], times: dict[str, Times]) -> list[Finding]:
    """Return means and not medians, so that work for many batches, such as compaction, counts."""
    means = {name: statistics.mean(one.seconds) for name, one in times.items()}
    rows = [
        [name, f"{means[name] / means['ours']:.2f}", one.verified, one.synced, one.merged, f"{times[name].spread:.0%}"]
        for name, one in contenders.items()
    ]
    title = (
        f"running sum, {BATCH_ROWS:,} rows a batch into {BATCH_KEYS:,} keys: mean time of a batch as a multiple of ours"
    )
    detail = ", ".join(f"{name} {mean:.2f} s" for name, mean in means.items())
    against = partial(_against, means, detail)
    return [
        Grid(title, ["contender", "time of a batch", "verified", "synced", "merged", "spread"], rows),
        against("table: micro-batch of a running sum / only aggregating", "noop", 1.2),
        against("table: micro-batch of a running sum / RocksDB", "Spark on RocksDB", 0.6),
        against("table: micro-batch of a running sum / delta-rs", "delta-rs", 0.9),
    ]


def _against(means: dict[str, float], detail: str, question: str, peer: str, limit: float) -> Target:
    return Target(question, means["ours"] / means[peer], limit, detail)
