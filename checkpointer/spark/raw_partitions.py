"""Write partitions in the job's own format.

The job's function runs on executors, and the driver commits. Only the results of a finished task reach the manifest.
Objects of failed, retried or speculative task attempts carry the checkpoint's id and another digest, or are the same
object. No manifest names the others, and cleanup removes them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyspark_checkpointer.checkpoint import save_bytes
from pyspark_checkpointer.checkpoint.metering import blocking
from pyspark_checkpointer.checkpoint.save import CheckpointAttempt
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.client.base import as_bytes
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError, StoreRefusedError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Artifact, CheckpointId, Json, Kind
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.arguments import check_frame, check_names, check_num_partitions
from pyspark_checkpointer.spark.dataframes import bring_together, map_batches, quote
from pyspark_checkpointer.spark.task_client import TaskRoot
from pyspark_checkpointer.table import row_order
from pyspark_checkpointer.table.schema import PARTITION
from pyspark_checkpointer.table.types import plain_type

_RESULT = "path string, size bigint, written_by string, refused string"
_ARROW_RESULT = pa.schema(
    [("path", pa.string()), ("size", pa.int64()), ("written_by", pa.string()), ("refused", pa.string())]
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a partition, as bytes of your own format.

    It is a result for `State.write_partitions`.

    Args:
        data: The bytes.

    Raises:
        IllegalArgumentError: `data` is not bytes.

    Examples:
        >>> def write(partition, batches):
        ...     return Snapshot(b"%d" % sum(batch.num_rows for batch in batches))
    """

    data: bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", as_bytes(self.data))


@dataclass(frozen=True, slots=True)
class Delta:
    """A change on top of a partition, as bytes of your own format.

    It is a result for `State.write_partitions`.

    Args:
        data: The bytes.

    Raises:
        IllegalArgumentError: `data` is not bytes.

    Examples:
        >>> def write(partition, batches):
        ...     return Delta(b"+%d" % sum(batch.num_rows for batch in batches))
    """

    data: bytes

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", as_bytes(self.data))


Write = Callable[[int, Iterator[pa.RecordBatch]], Snapshot | Delta | None]


def partitioning(operator: str, frame: DataFrame, key: Sequence[str] | None, num_partitions: int | None) -> Json:
    """Return the partitioning by a key, as in a manifest; None without a key.

    It has the types of the key, since Spark's hash of 5 as an integer differs from that of 5 as a long.
    """
    check_frame(f"operator {operator!r}: write_partitions()", frame)
    if (key is None) != (num_partitions is None):
        raise IllegalArgumentError(f"operator {operator!r}: give both key and num_partitions, or neither")
    if key is None:
        return None
    names = check_names(f"operator {operator!r}: key", key)
    number = check_num_partitions(f"operator {operator!r}", num_partitions)
    fields = frame.select(*_columns(frame, names)).schema.fields
    for field in fields:
        # Spark gives equal collated texts different hashes, so rows of one key would lie in several partitions.
        if " collate " in (shown := field.dataType.simpleString()):
            raise IllegalArgumentError(
                f"operator {operator!r}: key: column {field.name!r} is {shown}, which cannot be a key: use a text "
                "made of it, such as lower(collate(…, 'UTF8_BINARY'))"
            )
    types = [plain_type(field.dataType.jsonValue()) for field in fields]
    return {"key": names, "types": types, "num_partitions": number}


def _columns(frame: DataFrame, names: Sequence[str]) -> list[str]:
    """Return the names as Spark takes them.

    One that is no column may be the path of a field in a column.
    """
    return [quote(name) if name in frame.columns else name for name in names]


@blocking
def write_partitions(
    attempt: CheckpointAttempt,
    client: Checkpointer,
    operator: str,
    frame: DataFrame,
    write: Write,
    key: Sequence[str] | None,
    num_partitions: int | None,
) -> None:
    """Run `write` on the executors, and attach the artifacts to the checkpoint.

    Each partition has an artifact.
    """
    # Before any task runs, so that a name that no path can have costs no work.
    object_paths.encode_name("operator", operator)
    if not callable(write):
        raise IllegalArgumentError(
            f"operator {operator!r}: write_partitions(): write={write!r:.80}: expected a function of a partition's "
            "number and its record batches, as in write(partition, batches)"
        )
    task = _PartitionTask(TaskRoot.of(client, frame.sparkSession), attempt.id, operator, write)
    if key is None:
        written = map_batches(frame, task.run_partition, _RESULT)
    else:
        assert num_partitions is not None
        # Spark takes names that differ in case alone for one, and would replace the column.
        if taken := [column for column in frame.columns if column.lower() == PARTITION]:
            raise IllegalArgumentError(
                f"operator {operator!r}: column {taken[0]!r}: the name is taken, rename the column"
            )
        # By a column and never by the index of a task: adaptive execution moves rows between tasks.
        keyed = frame.withColumn(PARTITION, F.pmod(F.hash(*_columns(frame, key)), F.lit(num_partitions)))
        # Not by `applyInArrow`, which takes texts of one width alone: that which the session has set for Arrow.
        written = map_batches(bring_together(keyed, [PARTITION]), task.run_partitions, _RESULT)
    rows = written.collect()
    # The error comes back as a value, since Spark would run a task again that raises it.
    if refused := [row["refused"] for row in rows if row["refused"]]:
        raise StoreRefusedError(refused[0])
    for artifact, place in _artifacts(operator, [(row["path"], row["size"], row["written_by"]) for row in rows]):
        run_sync(save_bytes.attach(attempt, artifact, place))


def _artifacts(operator: str, written: list[tuple[str, int, str]]) -> list[tuple[Artifact, str]]:
    """Return the artifact of each partition, and where its task ran."""
    artifacts: dict[int | None, tuple[Artifact, str]] = {}
    for path, size, written_by in written:
        # The path says partition, kind and digest, so a task returns no more than that.
        name = object_paths.parse_artifact(path)
        # One of two artifacts of a partition would be lost without a word.
        if name.partition in artifacts or name.kind is None:
            raise InvalidStateError(f"operator {operator!r}: partition {name.partition} was written by two tasks")
        artifacts[name.partition] = Artifact(path, name.kind, 0, size, size, size, 1, name.digest), written_by
    return list(artifacts.values())


def _partitions(batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[int, list[pa.RecordBatch]]]:
    """Yield the rows of each partition.

    They come in order of the partitions, whose numbers are in the last column.
    """
    number, held = -1, list[pa.RecordBatch]()
    for batch in batches:
        numbers = batch.column(batch.num_columns - 1)
        rows = batch.select(range(batch.num_columns - 1))
        # A batch without rows has no start.
        starts = row_order.key_starts(pa.table({PARTITION: numbers}), [PARTITION]).tolist()
        for start, end in pairwise([*starts, batch.num_rows]):
            found = numbers[start].as_py()
            if held and found != number:
                yield number, held
                held = []
            number = found
            held.append(rows.slice(start, end - start))
    if held:
        yield number, held


@dataclass(frozen=True, slots=True)
class _PartitionTask:
    """The task for executors: the root and the user's function."""

    root: TaskRoot
    checkpoint: CheckpointId
    operator: str
    write: Write

    def run_partition(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        # Without a key the partitions are those of the DataFrame, whose index is the only name that they have.
        yield from self._store(context.partitionId(), batches).to_batches()

    def run_partitions(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for partition, rows in _partitions(batches):
            yield from self._store(partition, iter(rows)).to_batches()

    def _store(self, partition: int, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        client = self.root.open()
        result = self.write(partition, batches)
        if result is None:
            return _ARROW_RESULT.empty_table()
        if not isinstance(result, Snapshot | Delta):
            raise IllegalArgumentError(
                f"partition {partition}: return Snapshot, Delta or None, not {type(result).__name__}"
            )
        try:
            artifact = self._save(client, partition, SNAPSHOT if isinstance(result, Snapshot) else DELTA, result.data)
        except StoreRefusedError as error:
            return pa.Table.from_pylist([{"refused": str(error)}], schema=_ARROW_RESULT)
        row = {"path": artifact.path, "size": artifact.size, "written_by": self.root.executor}
        return pa.Table.from_pylist([row], schema=_ARROW_RESULT)

    def _save(self, client: Checkpointer, partition: int, kind: Kind, data: bytes) -> Artifact:
        save = client.save_snapshot if kind == SNAPSHOT else client.save_delta
        return save(self.checkpoint, self.operator, partition, data)
