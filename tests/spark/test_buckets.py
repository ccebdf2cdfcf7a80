"""A table in a bucket of Google Cloud Storage, and in a volume of Databricks: Spark's tasks write it and read it."""

import uuid

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import State, read_state, stateful, table_hints
from tests.servers import Server
from tests.spark.conftest import Job
from tests.spark.tables import rows


@pytest.mark.parametrize("kind", ["gcs", "databricks"])
def test_tasks_write_and_read_a_table_in_a_bucket(
    kind: str, job: Job, spark: SparkSession, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    server: Server = request.getfixturevalue(f"{kind}_server")
    monkeypatch.setattr(table_hints, "MAX_DRIVER_ROWS", 0)  # else the driver writes so few rows itself
    root, options = f"{server.url}/{uuid.uuid4().hex}", server.storage_options
    keys, seen = 2_000, []

    @stateful(root, storage_options=options)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("totals", ["k"], num_partitions=4, combine={"n": "sum"})
        table.upsert(spark.range(keys).select(F.col("id").alias("k"), F.lit(1).alias("n")))
        seen.append(rows(table.lookup(spark.createDataFrame([(7,), (keys,)], "k long"))))

    job.feed(("x", 1))
    job.run(update)
    job.forget_commit(0)  # the batch is replayed: the state has it already
    job.feed(("x", 1))
    job.run(update)
    assert seen == [[(7, 1)], [(7, 2)]]
    restored = read_state(spark, root, "totals", storage_options=options)
    assert restored.agg(F.count("*"), F.sum("n"), F.max("n")).collect()[0] == (keys, 2 * keys, 2)
    with Checkpointer(root, options) as ck:
        assert [checkpoint.sequence for checkpoint in ck.list_checkpoints()] == [1, 2]
        assert ck.verify()
