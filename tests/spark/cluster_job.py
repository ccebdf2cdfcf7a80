"""A job for real executor processes: `python cluster_job.py SCENARIO ROOT`. Prints one JSON line about what it did."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import pyspark_checkpointer
from pyspark_checkpointer.spark import Snapshot, State, read_state, stateful, table_changes, table_jobs
from pyspark_checkpointer.spark.write_tasks import TaskOutput, WriteTask

SETTINGS = {
    "retry": {"spark.task.maxFailures": "4"},
    "executor-lost": {"spark.task.maxFailures": "4"},
    "speculation": {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "200ms",
        "spark.executor.memory": "512m",
    },
    "submit": {},
}
SETTINGS["tables-retry"] = SETTINGS["retry"]
SETTINGS["tables-speculation"] = SETTINGS["speculation"]


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


def main(scenario: str, root: str, folder: str) -> None:
    master = {} if scenario == "submit" else {"spark.master": os.environ.get("TEST_MASTER", "local-cluster[2,1,1024]")}
    builder = SparkSession.builder.appName(scenario)
    common = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    for key, value in (common | master | SETTINGS[scenario]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    if scenario.startswith("tables"):
        Faulty.scenario = scenario
        spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
        table_jobs.DRIVER_BYTES, table_changes.WriteTask = 1, Faulty  # type: ignore[misc]

    @stateful(root, json.loads(os.environ.get("TEST_STORAGE_OPTIONS", "{}")))
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        if scenario.startswith("tables"):
            totals(batch, batch_id, state)
            return
        state.write_partitions("rows", batch.repartition(4), writer(scenario, Path(folder)))
        state.map("calls")[batch_id] = True

    source = Path(folder) / "input"
    source.mkdir(exist_ok=True)
    (source / "0.csv").write_text("".join(f"{n}\n" for n in range(100)))
    frame = spark.readStream.schema("n long").csv(str(source))
    query = frame.writeStream.foreachBatch(update).trigger(availableNow=True)
    query.option("checkpointLocation", f"{folder}/spark-checkpoint").start().awaitTermination()
    restored = update.checkpointer.restore()
    if scenario.startswith("tables"):
        print(json.dumps(table_answer(spark, root, restored)))
        spark.stop()
        return
    operator = restored.operator("rows")
    told = [json.loads(operator.partition(p)[-1]) for p in operator.partitions]
    print(json.dumps({"told": told, "paths": [a.path for p in operator.partitions for a in operator.chain(p)]}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
