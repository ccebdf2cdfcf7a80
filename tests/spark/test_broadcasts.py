"""Destroy the broadcasts of a batch after it: PySpark keeps a file of each on the driver's disk."""

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer import RetentionPolicy
from pyspark_checkpointer.spark import State, clean, executors, read_state, stateful
from tests.spark.conftest import Job
from tests.spark.tables import rows


def files(spark: SparkSession) -> set[Path]:
    context: Any = spark.sparkContext
    return {path for path in Path(context._temp_dir).iterdir() if path.is_file()}


def count(given: pa.Table, state: pa.Table, ballast: bytes) -> pa.Table:
    return given.group_by("key").aggregate([("amount", "sum")]).rename_columns(["key", "n"])


def test_a_large_function_leaves_no_file(job: Job) -> None:
    before = files(job.spark)

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["key"], num_partitions=2, schema="key string, n long")
        table.apply(batch, partial(count, ballast=bytes(2 << 20)))

    job.feed(("a", 1), ("b", 2))
    job.run(update)
    assert rows(read_state(job.spark, job.root, "t")) == [("a", 1), ("b", 2)]
    assert files(job.spark) <= before


def test_what_a_batch_reads_leaves_no_file(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "MAX_WORK_BYTES", 1)
    before, during = files(job.spark), []
    kept: list[DataFrame] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["key"], num_partitions=2, schema="key string, n long")
        table.upsert(batch.withColumnRenamed("amount", "n"))
        kept[:] = [table.read(), table.lookup(batch.select("key"))]
        during.append((len(files(job.spark) - before), rows(kept[0]), rows(kept[1])))
        if batch_id == 2:
            raise ZeroDivisionError

    for batch_id in range(2):
        job.feed(("a", batch_id))
        job.run(update)
        assert files(job.spark) <= before
    job.feed(("a", 2))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        job.run(update)
    assert files(job.spark) <= before
    assert during == [(2, [("a", n)], [("a", n)]) for n in range(3)]


def test_a_cleanup_leaves_no_file(job: Job) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("m")[batch_id] = 1

    job.feed(("a", 1))
    job.run(update)
    before = files(job.spark)
    for _ in range(2):
        clean(job.spark, job.root, RetentionPolicy(keep_last=1))
    assert files(job.spark) <= before
