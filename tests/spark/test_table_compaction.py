"""How batches write a table: objects, chains, partitions, and what is done by tasks and by the driver."""

import itertools
import random
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer, compaction
from pyspark_checkpointer.compaction import SMALL_PARTITION
from pyspark_checkpointer.spark import State, read_state, stateful, table_hints
from pyspark_checkpointer.spark.versions import is_at_least
from tests.spark.conftest import Job
from tests.spark.tables import artifacts, once, rows


def test_many_changes_are_brought_together_from_the_next_batch_on(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pack of each task makes all chains longer; that happens once, not in every batch."""
    monkeypatch.setattr(compaction, "DRIVER_BYTES", 4 << 10)
    monkeypatch.setattr(table_hints, "MAX_DRIVER_ROWS", -1)
    lengths = []

    @stateful(job.root, max_chain=30)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        changed = batch.sparkSession.range(4000).repartition(4).withColumn("n", F.lit(1))
        state.table("t", ["id"], num_partitions=4, combine={"n": "sum"}).upsert(changed)

    for _ in range(4):
        job.feed(("x", 1))
    job.run(update)
    for checkpoint in Checkpointer(job.root).list_checkpoints():
        restored = Checkpointer(job.root).restore(checkpoint)
        assert restored is not None
        assert restored.manifest is not None
        lengths.append(max(len(chain) for chain in restored.manifest.operators["t"].chains.values()))
    # Before 4.1 Spark leaves the first rows in several tasks, so that the second batch is brought together already.
    longer = [4, 1, 1] if is_at_least("4.1") else [1, 1, 1]
    assert [later - sooner for sooner, later in itertools.pairwise(lengths)] == longer
    assert read_state(spark, job.root, "t").where("n = 4").count() == 4000


def test_small_changes_of_many_partitions_are_one_object(job: Job, spark: SparkSession) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        changed = batch.sparkSession.range(10_000).repartition(4)
        state.table("t", ["id"], num_partitions=200).upsert(changed.withColumn("v", F.lit(batch_id)))

    once(job, body)
    once(job, body)
    newest = Checkpointer(job.root).read_latest()
    paths = {artifact.path for artifact in artifacts(job.root, "t")}
    assert len({path for path in paths if str(newest) in path}) == 1
    assert len(paths) == 2
    assert read_state(spark, job.root, "t").where("v = 1").count() == 10_000


def test_a_batch_that_changes_nothing_writes_no_artifact(job: Job) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("t", ["id"]).upsert(batch.sparkSession.range(10 if batch_id == 0 else 0))

    once(job, body)
    before = artifacts(job.root, "t")
    once(job, body)
    assert artifacts(job.root, "t") == before


def test_rows_that_come_out_of_a_group_by_of_the_key_are_not_shuffled_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffled = []
    classic = type(job.spark.range(1))  # since PySpark 4 it is a class below `DataFrame`
    repartition = classic.repartition

    def watched(self: DataFrame, *columns: Any) -> DataFrame:
        shuffled.append(columns)
        return repartition(self, *columns)

    monkeypatch.setattr(classic, "repartition", watched)

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        grouped = batch.groupBy("key").agg(F.sum("amount").alias("amount")).where("amount > 0")
        state.table("t", ["key"]).upsert(grouped if batch_id else batch)

    once(job, body)
    assert len(shuffled) == 1  # the first rows of a table
    once(job, body)
    assert len(shuffled) == 1
    once(job, lambda batch, _, state: state.table("t", ["key"]).upsert(batch))
    assert len(shuffled) == 2


@pytest.mark.parametrize("driver_bytes", [1, 1200, pytest.param(16 << 20, marks=pytest.mark.prove)])
def test_any_history_of_changes_is_what_a_dict_would_hold(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, driver_bytes: int
) -> None:
    """Written and compacted by tasks and by the driver, in changing numbers of partitions, with chains of at most 4."""
    monkeypatch.setattr(compaction, "DRIVER_BYTES", driver_bytes)
    monkeypatch.setattr(compaction, "COMPACT_ROWS", 8)
    draw, model = random.Random(driver_bytes), {}
    keys = [None, "a", "b", "c", "ß", "d"]
    chains = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["k", "f"], num_partitions=draw.choice([3, 3, 5]), combine={"n": "sum", "top": "max"})
        for _ in range(draw.choice([1, 1, 2])):
            given = [
                (
                    draw.choice(keys),
                    draw.choice([None, 0.0, -0.0, 1.5]),
                    draw.choice([None, draw.randrange(9)]),
                    batch_id,
                )
                for _ in range(draw.choice([1, 5, 30]))
            ]
            frame = batch.sparkSession.createDataFrame(given, "k string, f double, n long, top int")
            what = draw.choice(["upsert"] * 6 + ["delete", "replace"]) if model else "upsert"
            if what == "delete":
                table.delete(frame)
            else:
                getattr(table, what)(frame)
            if what == "replace":
                model.clear()
            for k, f, n, top in given:
                key = (k, f)  # -0.0 and 0.0 are one key of a dict too
                if what == "delete":
                    model.pop(key, None)
                else:
                    old = model.get(key, (None, top))[0]
                    model[key] = (n if old is None else old + (n or 0), top)
        if what != "delete" or table._changes.version is not None:
            assert {(r.k, r.f): (r.n, r.top) for r in table.read().collect()} == model

    for _ in range(8):
        once(job, body, max_chain=4)
        found = {(r.k, r.f): (r.n, r.top) for r in read_state(spark, job.root, "t").collect()}
        assert found == model
        restored = Checkpointer(job.root).restore()
        assert restored is not None
        assert restored.manifest is not None
        chains += [len(chain) for chain in restored.manifest.operators["t"].chains.values()]
        assert restored.table("t").num_rows == len(model)
    assert 1 < max(chains) <= 5


def test_snapshots_due_at_once_are_spread_over_batches(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "COMPACT_ROWS", 1)
    snapshots = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("t", ["id"], num_partitions=20).upsert(
            batch.sparkSession.range(1000).withColumn("v", F.lit(batch_id))
        )

    for _ in range(3):
        once(job, body)
        newest = str(Checkpointer(job.root).read_latest())
        written = {a.path for a in artifacts(job.root, "t") if newest in a.path and a.length and a.kind == "snapshot"}
        snapshots.append(len(written))
    assert snapshots == [2, 2, 2]


def test_compaction_on_demand_leaves_one_snapshot_for_each_partition(job: Job, spark: SparkSession) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["id"], num_partitions=4, combine={"v": "sum"})
        table.upsert(batch.sparkSession.range(100).withColumn("v", F.lit(1)))
        if batch_id == 2:
            table.compact()

    for _ in range(3):
        once(job, body)
    assert sorted(artifact.kind for artifact in artifacts(job.root, "t")) == ["snapshot"] * 4
    assert read_state(spark, job.root, "t").where("v = 3").count() == 100


def test_a_new_number_of_partitions_takes_effect_with_the_next_commit_and_reads_right_before(
    job: Job, spark: SparkSession
) -> None:
    once(job, lambda b, _, state: state.table("t", ["id"], num_partitions=3).upsert(b.sparkSession.range(100)))
    seen = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["id"], num_partitions=7)
        seen.append(table.read().count())

    once(job, body)
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.manifest is not None
    assert restored.manifest.operators["t"].partitions == 7
    assert seen == [100]
    assert rows(read_state(spark, job.root, "t")) == rows(spark.range(100))
    found = restored.table("t", keys=[{"id": 5}, {"id": 1000}])
    assert found.to_pylist() == [{"id": 5}]


@pytest.mark.parametrize("driver_bytes", [1, 16 << 20])
def test_a_deletion_from_nothing_adds_nothing(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, driver_bytes: int
) -> None:
    """Of a table that is empty, of one that became empty, and of partitions that are."""
    monkeypatch.setattr(compaction, "DRIVER_BYTES", driver_bytes)
    found = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        keys = batch.sparkSession.range(2 * SMALL_PARTITION)
        table = state.table("t", ["id"], num_partitions=1, schema="id long, v string")
        table.delete(keys)
        found.append(table.read().count())
        table.upsert(keys.selectExpr("id", "'x' v"))
        table.delete(keys)
        table.compact()

    def later(batch: DataFrame, batch_id: int, state: State) -> None:
        keys = batch.sparkSession.range(2 * SMALL_PARTITION)
        table = state.table("t", ["id"])
        assert table._changes.version is not None
        assert table._changes.version.chains == {}
        table.delete(keys)
        found.append(table.read().count())
        few = state.table("few", ["id"], num_partitions=64)
        few.upsert(keys.limit(1))
        few.delete(keys.where("id > 0"))
        found.append(few.read().count())

    once(job, body)
    once(job, later)
    assert found == [0, 0, 1]
    assert artifacts(job.root, "t") == []
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.manifest is not None
    assert len(restored.manifest.operators["few"].chains) == 1


def test_nothing_stays_persisted(job: Job, spark: SparkSession) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["id"], num_partitions=3 + batch_id)
        table.upsert(batch.sparkSession.range(1000))
        table.compact()

    once(job, body)
    once(job, body)
    assert dict(spark.sparkContext._jsc.getPersistentRDDs()) == {}  # type: ignore[attr-defined]


def test_a_snapshot_is_a_plain_parquet_file(job: Job, tmp_path: Path) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["id"], num_partitions=1)
        table.upsert(batch.sparkSession.range(100).withColumn("name", F.concat(F.lit("n"), "id")))
        table.compact()

    once(job, body)
    (artifact,) = artifacts(job.root, "t")
    found = duckdb.sql(f"select count(*), min(name), max(id) from read_parquet('{job.root}/{artifact.path}')")
    assert found.fetchall() == [(100, "n0", 99)]
