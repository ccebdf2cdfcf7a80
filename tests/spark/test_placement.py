"""A relative root is one folder for the driver and all tasks. What tasks wrote elsewhere is not acknowledged."""

import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import Snapshot, State, read_state, stateful
from pyspark_checkpointer.spark.task_client import TaskRoot
from tests.spark.conftest import Job

PROGRAM = """
import json, os, sys
from pathlib import Path
from pyspark.sql import SparkSession, functions as F
from pyspark_checkpointer.spark import Snapshot, read_state, stateful

builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "4").getOrCreate()
spark.sparkContext.setLogLevel("OFF")

@stateful("state/totals")
def update(batch, batch_id, state):
    rows = batch.sparkSession.range(batch_id * 300_000, (batch_id + 1) * 300_000)
    wide = rows.withColumn("text", F.concat(F.sha2(F.col("id").cast("string"), 256), F.uuid()))
    state.table("big", key=["id"], num_partitions=4).upsert(wide)
    state.write_partitions("raw", rows.repartition(4), lambda partition, batches: Snapshot(b"x" * (1 << 20)))

for day in range(2):
    Path("input").mkdir(exist_ok=True)
    Path(f"input/{day}.csv").write_text("1\\n")
    source = spark.readStream.schema("n long").csv(os.path.abspath("input"))
    query = source.writeStream.foreachBatch(update).trigger(availableNow=True)
    query.option("checkpointLocation", os.path.abspath("spark-checkpoint")).start().awaitTermination()
restored = update.checkpointer.restore()
print(json.dumps({
    "root": update.checkpointer.root,
    "count": read_state(spark, "state/totals", "big").count(),
    "source": spark.read.format("checkpointer").option("operator", "big").load("state/totals").count(),
    "here": restored.table("big").num_rows,
    "raw": [len(restored.operator("raw").partition(p)[0]) for p in restored.operator("raw").partitions],
    "findings": list(map(str, update.checkpointer.verify().findings)),
}))
spark.stop()
"""


def test_a_relative_root_on_real_executors(tmp_path: Path) -> None:
    """More than 4 MiB of each batch are written by executors, which run in folders of their own."""
    (tmp_path / "program.py").write_text(PROGRAM)
    project = Path(__file__).parents[2]
    environment = os.environ | {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": str(project),
        "PYSPARK_PIN_THREAD": "true",
    }
    done = subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=480,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["root"] == str(tmp_path / "state/totals")
    assert (found["count"], found["source"], found["here"]) == (600_000, 600_000, 600_000)
    assert found["raw"] == [1 << 20] * 4
    assert found["findings"] == []


def big(spark: SparkSession, batch_id: int) -> DataFrame:
    """Changes of more than 4 MiB, which tasks write themselves."""
    rows = spark.range(batch_id * 150_000, (batch_id + 1) * 150_000, 1, 2)
    return rows.withColumn("text", F.concat(F.sha2(F.col("id").cast("string"), 256), F.uuid()))


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
