"""A relative root is one folder for the driver and all tasks. What tasks wrote elsewhere is not acknowledged.

A task that reaches no store says so.

That it is one folder for executors, which are elsewhere from the first, stands in test_cluster.py.
"""

import pickle
import re
import socket
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import DependencyError
from pyspark_checkpointer.spark import Snapshot, State, read_state, stateful
from pyspark_checkpointer.spark.executors import own_version
from pyspark_checkpointer.spark.task_client import TaskRoot
from pyspark_checkpointer.storage.request_path import RetryingStore
from tests.spark.conftest import Job
from tests.spark.needs import DATA_SOURCES, needs_spark


def big(spark: SparkSession, batch_id: int) -> DataFrame:
    """Changes of more than 4 MiB, which tasks write themselves."""
    rows = spark.range(batch_id * 150_000, (batch_id + 1) * 150_000, 1, 2)
    return rows.withColumn("text", F.concat(F.sha2(F.col("id").cast("string"), 256), F.expr("uuid()")))


def root_of(client: Checkpointer) -> TaskRoot:
    return TaskRoot(own_version(), pickle.dumps(client), socket.gethostname())


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
        planted.setattr(TaskRoot, "of", lambda *_: root_of(elsewhere))
        job.feed(("a", 2))
        with pytest.raises(StreamingQueryException) as failed:
            job.run(sink)
    said = str(failed.value)
    assert "use different storage" in said
    assert str(elsewhere.root) in said
    assert sink.checkpointer.read_latest() == before
    job.run(sink)
    assert not sink.checkpointer.verify().findings


UNREACHED = re.compile(
    r"DependencyError: (s3://nowhere/root/\S+): .*127\.0\.0\.1:9.*: a task on \S+ asked, not the driver.*"
    "no network of their own.*keep the state in maps"
)


@pytest.mark.parametrize("callback", [tables, bytes_of_partitions])
def test_a_task_that_reaches_no_store_says_that_it_was_a_task(
    callback: Any, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver has its store. Tasks are sent a root whose server nobody is, as if they had no network."""
    update = stateful(job.root)(callback)
    job.feed(("a", 1))
    job.run(update)
    before = update.checkpointer.read_latest()
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "k", "secret": "s"}
    nowhere = Checkpointer("s3://nowhere/root", storage_options=options, timeout=1)
    with monkeypatch.context() as planted:
        planted.setattr(TaskRoot, "of", lambda *_: root_of(nowhere))
        job.feed(("a", 2))
        with pytest.raises(StreamingQueryException) as failed:
            job.run(update)
    assert UNREACHED.search(str(failed.value)), str(failed.value)
    assert update.checkpointer.read_latest() == before
    job.run(update)
    assert not update.checkpointer.verify().findings


@needs_spark("4.0", DATA_SOURCES)
@pytest.mark.parametrize("view", [{}, {"view": "changes"}])
def test_a_task_of_the_data_source_says_so_too(view: dict[str, str], job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark_checkpointer.spark.datasource import CheckpointerSource

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("small", key=["key"]).upsert(batch)

    job.feed(("a", 1))
    job.run(update)
    source = CheckpointerSource({"path": job.root, "operator": "small", **view})
    reader: Any = source.reader(source.schema())  # type: ignore[arg-type]
    planned = reader.partitions()
    assert len([row for part in planned for batch in reader.read(part) for row in batch.to_pylist()]) == 1

    async def unanswered(*_: Any) -> None:
        raise DependencyError("s3://nowhere/root/x: no answer")

    monkeypatch.setattr(RetryingStore, "_retry", unanswered)
    with pytest.raises(DependencyError, match=r"root/x: no answer: a task on .*: keep the state in maps"):
        list(reader.read(planned[0]))
