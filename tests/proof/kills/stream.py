"""A streaming job whose driver or executors are killed: `python -m tests.proof.kills.stream ROOT FOLDER MASTER`.

It counts how often it saw each row: in a map on the driver, in a table that Spark's tasks write, and in one that a
function of the job changes. What that function emits is written under the token of its batch. Each row also starts a
timer, which fires two batches later; what fires is written under the token too. Each batch has one row, which is
acknowledged in the ledger once the callback has returned.
"""

import json
import os
import sys
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from examples.flights.events import emit
from pyspark_checkpointer import compaction
from pyspark_checkpointer.spark import Change, Expire, State, stateful, table_hints
from tests.proof.kills.ledger import ADDED, Ledger

OPTIONS = "TEST_STORAGE_OPTIONS"

APPLIED = "row string, times long, made string"

START = datetime(2024, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
"""The time between two rows, by which the clock of the job goes."""

FIRES_AFTER = 2
"""The number of rows after which a timer fires."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.task.maxFailures": "1000",
    "spark.stage.maxConsecutiveAttempts": "1000",
    "spark.executor.memory": "512m",
}


def write_input(folder: Path, first: int, batches: int) -> None:
    """A file for each batch, the oldest first."""
    (folder / "input").mkdir(exist_ok=True)
    for batch in range(first, first + batches):
        path = folder / "input" / f"{batch:05}.csv"
        path.write_text(f"row-{batch}\n")
        os.utime(path, (1_700_000_000 + batch,) * 2)


def count(key: tuple[Any, ...], rows: list[dict[str, Any]], stored: dict[str, Any] | None) -> Change:
    """Count a row in state that is read before, and emit the count with a number that no other call makes."""
    counted = {"row": key[0], "times": len(rows) + (stored["times"] if stored else 0), "made": uuid.uuid4().hex}
    return Change(counted, output=[counted])


def main(root: str, folder: str, master: str) -> None:
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master(master)
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    compaction.DRIVER_BYTES = 1  # what is written is written by tasks
    if master != "local[2]":
        table_hints.MAX_DRIVER_ROWS = -1  # and it is done on executors, which are killed meanwhile
    ledger = Ledger(Path(folder) / "ledgers" / "driver.jsonl")

    @stateful(root, json.loads(os.environ.get(OPTIONS, "{}")) or None)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        emit("batch", batch=batch_id)
        seen = state.map("seen")
        for (row,) in batch.collect():
            seen[row] = seen.get(row, 0) + 1
        now = START + int(row.rpartition("-")[2]) * MINUTE
        state.advance_clock(now)
        rows = state.table("rows", ["row"], num_partitions=2, combine={"times": "sum"})
        rows.upsert(batch.withColumn("times", F.lit(1)))
        applied = state.table("applied", ["row"], num_partitions=2, schema=APPLIED)
        emitted = applied.apply_groups(batch, count, output=APPLIED)
        assert emitted is not None
        emitted.write.mode("overwrite").json(f"{folder}/emitted/{state.token.batch_id}")
        timers = state.table("timers", ["row"], num_partitions=2, expire=Expire("at", after=FIRES_AFTER * MINUTE))
        timers.upsert(batch.withColumn("at", F.lit(now)))
        timers.expired().write.mode("overwrite").json(f"{folder}/fired/{state.token.batch_id}")

    def acknowledged(batch: DataFrame, batch_id: int) -> None:
        update(batch, batch_id)
        for (row,) in batch.collect():
            ledger.tell(ADDED, row)
        emit("acknowledged", batch=batch_id)

    source = spark.readStream.schema("row string").option("maxFilesPerTrigger", 1).csv(f"{folder}/input")
    query = source.writeStream.foreachBatch(acknowledged).option("checkpointLocation", f"{folder}/spark")
    emit("started")
    query.trigger(availableNow=True).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
