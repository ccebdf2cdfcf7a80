"""The daemon from which Spark forks its Python workers: they begin with all that tasks need."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

NEEDED = ("pandas", "pyarrow.parquet", "pyspark_checkpointer.spark.apply_task", "pyspark_checkpointer.spark.scan")


def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say what a worker has loaded, and which process it comes from."""
    loaded = [name for name in NEEDED if name in sys.modules]
    parent = Path(f"/proc/{os.getppid()}/cmdline").read_text().replace("\0", " ")
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"loaded": [loaded], "parent": [parent]})


def test_a_worker_begins_with_all_that_tasks_need(spark: SparkSession) -> None:
    (told,) = spark.range(1).coalesce(1).mapInArrow(look, "loaded array<string>, parent string").collect()
    assert told.loaded == list(NEEDED)
    assert "-m pyspark_checkpointer.spark.daemon " in told.parent
