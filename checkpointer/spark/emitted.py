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
from pyspark_checkpointer.spark.versions import frame_of_rows, variants_of
from pyspark_checkpointer.storage.base import ObjectNotFoundError
from pyspark_checkpointer.table.types import whole_variants

PLANNED_BYTES = 128 << 10
"""The most bytes of Arrow whose rows Spark keeps in the plan of a DataFrame."""

_PLANNED = "spark.sql.execution.arrow.localRelationThreshold"
_BATCH = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BATCH_ROWS = 10_000  # Spark's own

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
    with _few_rows_in_plans(spark, rows.num_rows):
        found = None if paths and not rows.num_rows else frame_of_rows(spark, rows, schema)
    if not paths:
        assert found is not None
        return found
    task = EmittedTask(root, paths)
    # The driver has the rows of tasks that emitted few.
    stored = run_tasks(task_numbers(spark, len(paths), len(paths) * DRIVER_BYTES), task.run, schema)
    return stored if found is None else found.unionAll(stored)


@contextmanager
def _few_rows_in_plans(spark: SparkSession, rows: int) -> Iterator[None]:
    """Let Spark keep only few rows in the plan of a DataFrame that is made meanwhile.

    By default it keeps up to 48 MiB there, which the driver decodes, and sends to tasks as Java objects. Tasks that
    decode Arrow themselves take a quarter of the time for 50,000 rows, and longer for a few hundred. There is a task
    for each batch of Arrow, so the rows come in as many as Spark runs tasks at once. What the user has set stays.
    """
    if is_connect(spark):
        yield
        return
    wanted = {_PLANNED: PLANNED_BYTES, _BATCH: max(1, min(_BATCH_ROWS, -(-rows // parallelism(spark))))}
    with _setting:
        ours = [name for name in wanted if spark.conf.get(name, None) is None]
        try:
            for name in ours:
                spark.conf.set(name, str(wanted[name]))
            yield
        finally:
            for name in ours:
                spark.conf.unset(name)


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
