"""Read the rows that a user's function emitted while its batch goes on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_checkpointer.checkpoint import download
from pyspark_checkpointer.compaction import DRIVER_BYTES
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.connect import is_connect
from pyspark_checkpointer.spark.dataframes import run_tasks
from pyspark_checkpointer.spark.executors import parallelism
from pyspark_checkpointer.spark.scan import small_batches, task_numbers
from pyspark_checkpointer.spark.task_client import TaskRoot
from pyspark_checkpointer.spark.versions import takes_arrow, variants_of
from pyspark_checkpointer.spark.write_tasks import stream
from pyspark_checkpointer.storage.base import ObjectNotFoundError
from pyspark_checkpointer.table.types import whole_variants

PLANNED_BYTES = 128 << 10
"""The most bytes of Arrow whose rows Spark keeps in the plan of a DataFrame."""

_PLANNED = "spark.sql.execution.arrow.localRelationThreshold"

_setting = threading.Lock()


def frame_of_emitted(
    spark: SparkSession, root: TaskRoot, schema: StructType, columns: pa.Schema, emitted: list[bytes | str]
) -> DataFrame:
    """Return emitted rows as a DataFrame.

    The rows are those that the function emitted when the state was changed: it is not called again. `emitted` are
    streams of rows, and paths of objects that tasks wrote.
    """
    paths = [part for part in emitted if isinstance(part, str)]
    here = [pa.ipc.open_stream(part).read_all() for part in emitted if isinstance(part, bytes)]
    # In one chunk: Spark stops reading at a chunk without rows.
    made = pa.concat_tables([columns.empty_table(), *here]).combine_chunks()
    rows = whole_variants(made, variants_of(schema))
    found = None if paths and not rows.num_rows else frame_of_rows(spark, rows, schema)
    if not paths:
        assert found is not None
        return found
    task = EmittedTask(root, paths)
    # The driver has the rows of tasks that emitted few.
    stored = run_tasks(task_numbers(spark, len(paths), len(paths) * DRIVER_BYTES), task.run, schema)
    return stored if found is None else found.unionAll(stored)


def frame_of_rows(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Return rows that the driver has as a DataFrame."""
    if is_connect(spark):
        return spark.createDataFrame(rows, schema)
    if not takes_arrow(spark):
        return _frame_of_task(spark, rows, schema)
    if rows.nbytes <= PLANNED_BYTES:
        return spark.createDataFrame(rows, schema)
    # Spark has a task for each batch of Arrow, and a batch ends with its chunk. Chunks that were read from a stream are
    # no slices, which PySpark does not take.
    chunks = stream(rows, -(-rows.num_rows // parallelism(spark)))
    with _rows_out_of_plans(spark):
        return spark.createDataFrame(pa.ipc.open_stream(chunks).read_all(), schema)


@contextmanager
def _rows_out_of_plans(spark: SparkSession) -> Iterator[None]:
    """Let Spark keep only few rows in the plan of a DataFrame that is made meanwhile.

    By default it keeps up to 48 MiB there, which the driver decodes, and sends to tasks as Java objects. Tasks that
    decode Arrow themselves take a quarter of the time for 50,000 rows, and longer for a few hundred. What the user has
    set stays.
    """
    with _setting:
        if spark.conf.get(_PLANNED, None) is not None:
            yield
            return
        spark.conf.set(_PLANNED, str(PLANNED_BYTES))
        try:
            yield
        finally:
            spark.conf.unset(_PLANNED)


def _frame_of_task(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Return rows as a DataFrame that a task returns."""
    data = stream(rows)

    def load(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield from pa.ipc.open_stream(data)

    return run_tasks(task_numbers(spark, 1, rows.nbytes), load, schema)


@dataclass(frozen=True, slots=True)
class EmittedTask:
    """The task that reads objects of emitted rows."""

    root: TaskRoot
    paths: list[str]

    def run(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from small_batches(self.read(self.paths[number]))

    def read(self, path: str) -> pa.Table:
        """Return the rows of one object.

        Raises `InvalidStateError` once the batch has ended.
        """
        session = self.root.open().session
        try:
            data = run_sync(download.read_by_path(session.store, session.host, path))
        except ObjectNotFoundError:
            raise InvalidStateError(
                f"{path}: rows that a function emitted are kept until their batch ends, and it has ended: read or "
                "write them within the function of the batch"
            ) from None
        return pq.read_table(pa.BufferReader(data))


__all__ = ["EmittedTask", "frame_of_emitted"]
