"""As much of Spark as a table's driver side asks for, in this process: frames of Arrow rows, and tasks that are called.

`State` and `TableState` are the real ones, and so is what their tasks do. What a query plan would say is drawn.
"""

import json
import random
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import StructType

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import Job, SparkProgress
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import batch_attempt, driver_task, table_changes, table_columns, table_jobs
from pyspark_checkpointer.spark import write_tasks as write_module
from pyspark_checkpointer.spark.apply_task import ApplyTask
from pyspark_checkpointer.spark.batch_attempt import BatchAttempt
from pyspark_checkpointer.spark.emitted import EmittedTask
from pyspark_checkpointer.spark.query_run import QueryRun
from pyspark_checkpointer.spark.scan import LookupTask
from pyspark_checkpointer.spark.scan_expired import Due, ExpiredTask
from pyspark_checkpointer.spark.state import State
from pyspark_checkpointer.spark.table_hints import TableHints, VerbHints
from pyspark_checkpointer.spark.write_tasks import WriteTask
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.key_floats import canonical_rows
from pyspark_checkpointer.table.local_copies import LocalCopies
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import PARTITION, TableSchema
from pyspark_checkpointer.table.types import spark_type
from pyspark_checkpointer.table.version import TableVersion

Part = pa.Table

_running = threading.local()
"""The task that runs in this thread."""


class PlainFrame:
    """Rows as the tasks have them: one table for each."""

    def __init__(self, draw: random.Random, parts: Sequence[Part]) -> None:
        self.draw = draw
        self.parts = list(parts)

    @classmethod
    def of(cls, draw: random.Random, rows: pa.Table) -> "PlainFrame":
        """Rows, spread over some tasks."""
        cuts = sorted(draw.randrange(rows.num_rows + 1) for _ in range(draw.choice([0, 0, 1, 3])))
        edges = [0, *cuts, rows.num_rows]
        return cls(draw, [rows.slice(a, b - a) for a, b in pairwise(edges)])

    @property
    def rows(self) -> pa.Table:
        return pa.concat_tables(self.parts)

    @property
    def columns(self) -> list[str]:
        return list(self.parts[0].column_names)

    @property
    def schema(self) -> StructType:
        return StructType.fromJson({"type": "struct", "fields": _fields(self)})

    def repartition(self, column: str) -> "PlainFrame":
        rows, tasks = self.rows, self.draw.choice([1, 2, 5])
        numbers = rows[column].to_numpy() % tasks
        return PlainFrame(self.draw, [rows.filter(pa.array(numbers == task)) for task in range(tasks)])

    def toArrow(self) -> pa.Table:  # noqa: N802
        _running.task = None  # What follows is done in the driver.
        return self.rows

    def collect(self) -> list[dict[str, bytes]]:
        return [{"written": row} for row in self.rows["written"].to_pylist()]


def _first(frame: PlainFrame, count: int) -> PlainFrame:
    return PlainFrame(frame.draw, [part.slice(0, count) for part in frame.parts])


def _fields(frame: PlainFrame) -> list[dict[str, Any]]:
    return [{"name": f.name, "type": spark_type(f.type), "nullable": True, "metadata": {}} for f in frame.rows.schema]


def _keys(table: str, frame: PlainFrame, schema: TableSchema) -> PlainFrame:
    if not set(schema.key) <= set(frame.rows.column_names):
        raise IllegalArgumentError(f"table {table!r}: a key column is missing")
    return PlainFrame(frame.draw, [part.select(schema.key) for part in frame.parts])


def _placed(frame: PlainFrame, schema: TableSchema, partitions: int) -> PlainFrame:
    """The rows in the types of the table, each with its partition."""

    def place(part: Part) -> Part:
        columns = [column.field() for column in schema.columns if column.name in part.column_names]
        rows = part.select([field.name for field in columns]).cast(pa.schema(columns))
        rows = canonical_rows(rows, schema)
        numbers = partitions_of(rows.select(schema.key), schema, partitions)
        return rows.append_column(PARTITION, pa.array(numbers, pa.int32()))

    return PlainFrame(frame.draw, list(map(place, frame.parts)))


def _all_columns(frame: PlainFrame, schema: TableSchema, partitions: int) -> PlainFrame:
    """All columns, each row with its partition."""
    keys = _placed(_keys("", frame, schema), schema, partitions)
    parts = []
    for part, of_key in zip(frame.parts, keys.parts, strict=True):
        others = {name: part[name] for name in part.column_names if name not in schema.key}
        parts.append(pa.table({name: of_key[name] for name in of_key.column_names} | others))
    return PlainFrame(frame.draw, parts)


def _together(frame: PlainFrame, order: list[str], tasks: int | None) -> PlainFrame:
    """All rows of a partition in one task, in order."""
    keys = [(name, "ascending", "at_start") for name in order]
    moved = frame.repartition(PARTITION)
    return PlainFrame(frame.draw, [part.take(pc.sort_indices(part, keys)) for part in moved.parts])


def _mapped(frame: PlainFrame, work: Callable[[Iterator[Any]], Iterator[Any]], result: Any) -> PlainFrame:
    """Call the task for each part, some of them twice, as Spark does where one is slow or its executor is lost."""
    parts = []
    for number, part in enumerate(frame.parts):
        for _ in range(frame.draw.choice([1, 1, 1, 2])):
            _running.task = SimpleNamespace(partitionId=lambda n=number: n)
            found = list(work(iter(part.to_batches(max_chunksize=frame.draw.choice([3, 1000])))))
        parts.append(pa.Table.from_batches(found, pa.schema([("written", pa.binary())])))
    return PlainFrame(frame.draw, parts)


@contextmanager
def plain_spark(draw: random.Random) -> Iterator[None]:
    """Tables of this process need no Spark meanwhile."""

    def scanned(spark: Any, client: Any, checkpoint: Any, version: TableVersion, columns: Any = None) -> PlainFrame:
        session = client.session
        reader = TableReader(session.store, session.host, version, columns, copies=copies_of_task())
        parts = [run_sync(reader.rows(partition)) for partition in version.chains]
        return PlainFrame(draw, parts or [run_sync(reader.rows(0))])

    def expired(spark: Any, client: Any, checkpoint: Any, due: Due, columns: Any) -> PlainFrame:
        empty = TableReader(client.session.store, client.session.host, due.before, columns).empty()
        task = ExpiredTask(root_of(client), checkpoint, due, [], empty.column_names)  # type: ignore[arg-type]
        found = [pa.Table.from_batches([batch]) for number in due.sizes() for batch in task.read([number])]
        return PlainFrame(draw, [empty, *found])

    def looked_up(
        spark: Any, client: Any, checkpoint: Any, version: TableVersion, keys: PlainFrame, columns: Any = None
    ) -> PlainFrame:
        wanted = _placed(_keys(version.name, keys, version.schema), version.schema, version.partitions)
        empty = TableReader(client.session.store, client.session.host, version, columns).empty()
        rows = wanted.rows.group_by(wanted.rows.column_names).aggregate([])
        parts = PlainFrame(draw, [rows]).repartition(PARTITION).parts
        task = LookupTask(root_of(client), checkpoint, version, columns)  # type: ignore[arg-type]
        found = [batch for part in parts for batch in task.run(iter(part.to_batches()))]
        return PlainFrame(draw, [empty, *(pa.Table.from_batches([batch]) for batch in found)])

    def task_numbers(spark: Any, tasks: int) -> PlainFrame:
        return PlainFrame(draw, [pa.table({"id": [task]}) for task in range(tasks)])

    def emitted(spark: Any, root: Any, schema: Any, columns: pa.Schema, given: list[bytes | str]) -> PlainFrame:
        parts = [
            EmittedTask(root, [part]).read(part) if isinstance(part, str) else pa.ipc.open_stream(part).read_all()
            for part in given
        ]
        return PlainFrame(draw, [part.cast(columns) for part in parts] or [columns.empty_table()])

    # Few bytes: copies are removed while other tasks of the history still use them.
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        copies = LocalCopies(Path(folder), max_bytes=draw.choice([20_000, 1 << 20]))

        def root_of(client: Checkpointer, *_: Any) -> Any:
            return SimpleNamespace(open=lambda: client, executor="a task", copies=copies_of_task)

        def drawn() -> VerbHints:
            return VerbHints(driver_rows=draw.choice([0, 5, 1000]))

        def learn_nothing(hints: VerbHints, *_: Any) -> None:
            hints.driver_rows = drawn().driver_rows

        def copies_of_task() -> LocalCopies | None:
            return draw.choice([copies, copies, None])

        patch.setattr(write_module, "TaskContext", SimpleNamespace(get=lambda: _running.task))
        patch.setattr(table_changes, "check_frame", lambda call, given: given)  # which refuses all but Spark's own
        patch.setattr(table_columns, "fields_of", _fields)
        patch.setattr(table_changes, "keys_of", _keys)
        patch.setattr(table_changes, "drain", lambda frame: None)
        patch.setattr(table_changes, "rows_of", _placed)
        patch.setattr(table_changes, "all_columns_of", _all_columns)
        patch.setattr(table_changes, "bring_together", _together)
        patch.setattr(table_changes, "frame_of_emitted", emitted)
        patch.setattr(table_jobs, "map_batches", _mapped)
        patch.setattr(table_changes, "has_unique_keys", lambda frame, key: draw.random() < 0.5)
        patch.setattr(table_changes, "scan", scanned)
        patch.setattr(table_changes, "lookup", looked_up)
        patch.setattr(table_changes, "scan_expired", expired)
        patch.setattr(table_jobs, "task_numbers", task_numbers)
        patch.setattr(table_jobs.TaskRoot, "of", root_of)
        patch.setattr(table_jobs.DriverRoot, "of", root_of)
        patch.setattr(driver_task, "first_of_each_partition", _first)
        patch.setattr(driver_task, "fields_of", _fields)
        patch.setattr(table_changes, "can_place", lambda *given: driver_task.can_place(*given) and draw.random() < 0.7)
        patch.setattr(table_changes, "works_alike", lambda context: True)
        patch.setattr(table_changes, "has_same_surroundings", lambda found: True)
        # No copy of the function: those of tests note their calls.
        patch.setattr(ApplyTask, "in_driver", WriteTask.in_driver)
        # Whatever the sizes are, the driver does some of the work, and tasks the rest.
        patch.setattr(batch_attempt, "TableHints", lambda: TableHints(defaultdict(drawn)))
        patch.setattr(VerbHints, "learn_size", learn_nothing)
        yield


def new_state(
    client: Checkpointer,
    restored: Restored | None,
    batch_id: int,
    session: Any = None,
    time: datetime | None = None,
    hints: dict[str, TableHints] | None = None,
) -> State:
    """Return what a callback would be handed for this batch, which Spark began at this time.

    With `hints` it goes on with those of the run's batches before.
    """
    spark: Any = session or SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=2))
    run = QueryRun(client, restored, SimpleNamespace())  # type: ignore[arg-type]
    run.table_hints = {} if hints is None else hints
    spark_progress = None
    if time is not None:
        offsets = json.dumps({"batchTimestampMs": int(time.timestamp() * 1000)})
        spark_progress = SparkProgress("", f"v1\n{offsets}\n", ())
    job = Job("query", "run", batch_id, spark=spark_progress)
    return State(spark, BatchAttempt(run, job, client.begin_batch(batch_id, job)))
