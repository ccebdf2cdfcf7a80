"""A relative root is one folder for the driver and all tasks. What tasks wrote elsewhere is not acknowledged.

That it is one folder for executors, which are elsewhere from the first, stands in test_cluster.py.
"""

import pickle
import socket
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import Snapshot, State, read_state, stateful
from pyspark_checkpointer.spark.task_client import TaskRoot
from tests.spark.conftest import Job


def big(spark: SparkSession, batch_id: int) -> DataFrame:
    """Changes of more than 4 MiB, which tasks write themselves."""
    rows = spark.range(batch_id * 150_000, (batch_id + 1) * 150_000, 1, 2)
    return rows.withColumn("text", F.concat(F.sha2(F.col("id").cast("string"), 256), F.expr("uuid()")))


def raw(partition: int, batches: Iterator[pa.RecordBatch]) -> Snapshot:
    return Snapshot(b"x" * 1000)


def tables(batch: DataFrame, batch_id: int, state: State) -> None:
    state.table("big", key=["id"], num_partitions=2).upsert(big(batch.sparkSession, batch_id))


def bytes_of_partitions(batch: DataFrame, batch_id: int, state: State) -> None:
    state.write_partitions("raw", batch.repartition(2), raw)


def compacted(batch: DataFrame, batch_id: int, state: State) -> None:
    table = state.table("big", key=["id"], num_partitions=2)
    table.upsert(big(batch.sparkSession, batch_id))
    table.compact()


def test_a_change_of_directory_between_batches(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home", "elsewhere"):
        (job.folder / name).mkdir()
    monkeypatch.chdir(job.folder / "home")

    @stateful("state/totals")
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        tables(batch, batch_id, state)
        bytes_of_partitions(batch, batch_id, state)
        state.map("seen")[batch_id] = True

    for number, place in enumerate(("home", "elsewhere", "home", "elsewhere")):
        monkeypatch.chdir(job.folder / place)
        job.feed(("a", number))
        job.run(update)
    assert list((job.folder / "elsewhere").iterdir()) == []
    monkeypatch.chdir(job.folder / "home")
    assert read_state(job.spark, "state/totals", "big").count() == 600_000
    frame = read_state(job.spark, "state/totals", "big")
    monkeypatch.chdir(job.folder / "elsewhere")
    assert frame.count() == 600_000
    assert not update.checkpointer.verify().findings


@pytest.mark.parametrize("callback", [tables, bytes_of_partitions, compacted])
def test_what_tasks_wrote_elsewhere_is_not_acknowledged(
    callback: Any, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the cause: here the tasks are sent a root that is not the driver's."""
    sink = stateful(job.root)(callback)
    job.feed(("a", 1))
    job.run(sink)
    before = sink.checkpointer.read_latest()
    elsewhere = Checkpointer(job.folder / "elsewhere")
    with monkeypatch.context() as planted:
        planted.setattr(TaskRoot, "of", classmethod(lambda cls, *_: cls(pickle.dumps(elsewhere), socket.gethostname())))
        job.feed(("a", 2))
        with pytest.raises(StreamingQueryException) as failed:
            job.run(sink)
    said = str(failed.value)
    assert "use different storage" in said
    assert str(elsewhere.root) in said
    assert sink.checkpointer.read_latest() == before
    job.run(sink)
    assert not sink.checkpointer.verify().findings
