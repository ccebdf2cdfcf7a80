"""A job for real executor processes, which start once: `python cluster_job.py ROOT FOLDER SCENARIO...`.

Prints one JSON line about what each scenario did: `{"scenario": …, "answer": …}`, or `"failed"` and a traceback.
"""

import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import pyspark_checkpointer
from pyspark_checkpointer import compaction
from pyspark_checkpointer.spark import Snapshot, State, read_state, stateful, table_changes
from pyspark_checkpointer.spark.versions import HAS_DATA_SOURCES
from pyspark_checkpointer.spark.write_tasks import TaskOutput, WriteTask

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.task.maxFailures": "4",
    "spark.sql.adaptive.coalescePartitions.enabled": "false",
    "spark.sql.shuffle.partitions": "4",  # 200 tasks for each shuffle would take most of the time
}
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "200ms",
    "spark.executor.memory": "512m",
}


def attempt() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def executor_process() -> int:
    """The JVM above this Python worker and its daemon."""
    daemon = os.getppid()
    return int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])


def fail_after_writing() -> None:
    from pyspark_checkpointer.spark import raw_partitions

    save = raw_partitions._PartitionTask._save

    def planted(self: Any, *args: Any) -> Any:
        raw_partitions._PartitionTask._save = save  # type: ignore[method-assign]
        save(self, *args)
        raise RuntimeError("planted: written, then failed")

    raw_partitions._PartitionTask._save = planted  # type: ignore[method-assign]


def writer(scenario: str, folder: Path) -> Any:
    def write(partition: int, batches: Iterator[pa.RecordBatch]) -> Snapshot:
        rows = sum(batch.num_rows for batch in batches)
        if partition == 1 and scenario == "executor-lost" and not (folder / "killed").exists():
            (folder / "killed").touch()  # once: a stage that is run again counts its attempts from 0
            os.kill(executor_process(), signal.SIGKILL)
            time.sleep(5)
        if partition == 1 and attempt() == 0:
            if scenario == "retry":
                fail_after_writing()
            if scenario == "speculation":
                time.sleep(60)
        told = {"partition": partition, "rows": rows, "attempt": attempt(), "module": pyspark_checkpointer.__file__}
        return Snapshot(json.dumps(told).encode())

    return write


class Faulty(WriteTask):
    """The first attempt of one task of each job writes and then fails, or takes for ever."""

    scenario = ""

    def _write(self, given: pa.Table) -> TaskOutput:
        written = super()._write(given)
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            if self.scenario == "tables-speculation":
                time.sleep(60)
            raise RuntimeError("planted: written, then failed")
        return written


def totals(batch: DataFrame, batch_id: int, state: State) -> None:
    """Two steps, each by four tasks that write for themselves."""
    table = state.table("rows", ["n"], num_partitions=4, combine={"times": "sum"})
    once = batch.withColumn("times", F.lit(1)).repartition(4)
    table.upsert(once)
    table.upsert(once)
    table.compact()


def table_answer(spark: SparkSession, root: str, restored: Any) -> dict[str, Any]:
    options = json.loads(os.environ.get("TEST_STORAGE_OPTIONS", "{}"))
    read = read_state(spark, root, "rows", id=restored.id, storage_options=options).collect()
    chains = restored.manifest.operators["rows"].chains.values()
    return {
        "rows": sorted(tuple(row.values()) for row in restored.table("rows").to_pylist()),
        "read": sorted(tuple(row) for row in read),
        "paths": [artifact.path for chain in chains for artifact in chain],
    }


def play(spark: SparkSession, scenario: str, root: str, folder: Path) -> dict[str, Any]:
    """Run a query over a hundred rows, and return what it left."""
    if scenario == "relative":
        return relative(spark, folder)
    tables = scenario.startswith("tables")

    @stateful(root, json.loads(os.environ.get("TEST_STORAGE_OPTIONS", "{}")))
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        if tables:
            totals(batch, batch_id, state)
            return
        state.write_partitions("rows", batch.repartition(4), writer(scenario, folder))
        state.map("calls")[batch_id] = True

    source = folder / "input"
    source.mkdir(parents=True)
    (source / "0.csv").write_text("".join(f"{n}\n" for n in range(100)))
    frame = spark.readStream.schema("n long").csv(str(source))
    query = frame.writeStream.foreachBatch(update).trigger(availableNow=True)
    with tasks_that_write(scenario) if tables else nullcontext():
        query.option("checkpointLocation", f"{folder}/spark-checkpoint").start().awaitTermination()
    restored = update.checkpointer.restore()
    if tables:
        return table_answer(spark, root, restored)
    operator = restored.operator("rows")
    told = [json.loads(operator.partition(p)[-1]) for p in operator.partitions]
    return {"told": told, "paths": [a.path for p in operator.partitions for a in operator.chain(p)]}


def relative(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """Two batches under a root relative to where the driver is. Of each, executors write more than 4 MiB."""
    root = os.path.relpath(folder / "state")

    @stateful(root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        rows = batch.sparkSession.range(batch_id * 100_000, (batch_id + 1) * 100_000)
        wide = rows.withColumn("text", F.concat(F.sha2(F.col("id").cast("string"), 256), F.expr("uuid()")))
        state.table("big", key=["id"], num_partitions=4).upsert(wide)
        state.write_partitions("raw", rows.repartition(4), lambda partition, batches: Snapshot(b"x" * (1 << 20)))

    (folder / "input").mkdir(parents=True)
    for day in range(2):
        (folder / f"input/{day}.csv").write_text("1\n")
        source = spark.readStream.schema("n long").csv(str(folder / "input"))
        query = source.writeStream.foreachBatch(update).trigger(availableNow=True)
        query.option("checkpointLocation", str(folder / "spark-checkpoint")).start().awaitTermination()
    restored = update.checkpointer.restore()
    raw = restored.operator("raw")
    source = spark.read.format("checkpointer").option("operator", "big")
    return {
        "relative": root,
        "root": update.checkpointer.root,
        "count": read_state(spark, root, "big").count(),
        "source": source.load(root).count() if HAS_DATA_SOURCES else None,
        "here": restored.table("big").num_rows,
        "raw": [len(raw.partition(p)[0]) for p in raw.partitions],
        "findings": list(map(str, update.checkpointer.verify().findings)),
    }


@contextmanager
def tasks_that_write(scenario: str) -> Iterator[None]:
    """However few rows there are, tasks write them, and the first of their attempts fail or take for ever."""
    Faulty.scenario = scenario
    with (
        mock.patch.object(compaction, "DRIVER_BYTES", 1),
        mock.patch.object(table_changes, "WriteTask", Faulty),
    ):
        yield


def main(root: str, folder: str, *scenarios: str) -> None:
    builder = SparkSession.builder.appName("cluster")
    speculation = SPECULATION if any("speculation" in scenario for scenario in scenarios) else {}
    master = {"spark.master": os.environ["TEST_MASTER"]} if "TEST_MASTER" in os.environ else {}
    for key, value in (SETTINGS | master | speculation).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    for scenario in scenarios:
        try:
            told: dict[str, Any] = {"answer": play(spark, scenario, f"{root}/{scenario}", Path(folder) / scenario)}
        except Exception:
            told = {"failed": traceback.format_exc()}
        print(json.dumps({"scenario": scenario} | told), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
