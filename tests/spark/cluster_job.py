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

import checkpointer
from checkpointer.spark import Snapshot, State, stateful

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


def attempt() -> int:
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def executor_process() -> int:
    """The JVM above this Python worker and its daemon."""
    daemon = os.getppid()
    return int(Path(f"/proc/{daemon}/stat").read_text().rpartition(")")[2].split()[1])


def fail_after_writing() -> None:
    from checkpointer.spark import partitions

    save = partitions._Task._save

    def planted(self: Any, *args: Any) -> Any:
        partitions._Task._save = save  # type: ignore[method-assign]
        save(self, *args)
        raise RuntimeError("planted: written, then failed")

    partitions._Task._save = planted  # type: ignore[method-assign]


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
        told = {"partition": partition, "rows": rows, "attempt": attempt(), "module": checkpointer.__file__}
        return Snapshot(json.dumps(told).encode())

    return write


def main(scenario: str, root: str, folder: str) -> None:
    master = {} if scenario == "submit" else {"spark.master": os.environ.get("TEST_MASTER", "local-cluster[2,1,1024]")}
    builder = SparkSession.builder.appName(scenario)
    common = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    for key, value in (common | master | SETTINGS[scenario]).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    @stateful(root, json.loads(os.environ.get("TEST_STORAGE_OPTIONS", "{}")))
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.write_partitions("rows", batch.repartition(4), writer(scenario, Path(folder)))
        state.map("calls")[batch_id] = True

    source = Path(folder) / "input"
    source.mkdir(exist_ok=True)
    (source / "0.csv").write_text("".join(f"{n}\n" for n in range(100)))
    frame = spark.readStream.schema("n long").csv(str(source))
    query = frame.writeStream.foreachBatch(update).trigger(availableNow=True)
    query.option("checkpointLocation", f"{folder}/spark-checkpoint").start().awaitTermination()
    restored = update.checkpointer.restore()
    operator = restored.operator("rows")
    told = [json.loads(operator.partition(p)[-1]) for p in operator.partitions]
    print(json.dumps({"told": told, "paths": [a.path for p in operator.partitions for a in operator.chain(p)]}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
