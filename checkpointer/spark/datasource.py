"""The data source `spark.read.format("checkpointer")`.

It reads tables of live checkpoints, and views of a store.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.errors import CheckpointNotFoundError, IllegalArgumentError, RetiredError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.spark.dataframes import struct_of
from pyspark_checkpointer.spark.interpreter import offer
from pyspark_checkpointer.spark.read import restore, version_of
from pyspark_checkpointer.spark.scan import batches_of, group_by_bytes
from pyspark_checkpointer.storage import absolute
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.types import whole_variants
from pyspark_checkpointer.table.version import TableVersion

OPTIONS = ("path", "operator", "view", "id", "epoch", "savepoint", "columns", "storage_options", "fencing")

MAX_SCAN_TASKS = 32
"""The most tasks of a scan, unless there are very many bytes.

A data source does not know how many tasks the session can run at once.
"""

SCAN_TASK_BYTES = 1 << 20
"""Stored bytes for which a further task is started: reading fewer takes less time than starting one."""


class CheckpointerSource(DataSource):
    """The data source `checkpointer` of Spark: tables and views of a root.

    Use `spark.read.format("checkpointer")`.

    Spark makes one source for each DataFrame or temporary view. It plans the scan at the first query, keeps that plan,
    and replaces it whenever it offers filters to the reader. So the source chooses the checkpoint of a table when it is
    made: then all scans of one DataFrame agree, whenever Spark plans them.

    The reader takes no filters, although Spark offers them (`pushFilters`). Spark uses the plan of the last filtered
    scan for all other scans of the same DataFrame, filtered or not. What was pruned for one would be missing in them.

    Args:
        options: Spark's options. `path` is the root. `operator` is the table to read, or `view` is "checkpoints",
            "artifacts" or "positions". `id`, `epoch` or `savepoint` choose a live checkpoint, by default the last one;
            `id` takes every form that `Checkpointer.restore` takes. `columns` are names, separated by commas.
            `storage_options` is JSON. `fencing` is as in `Checkpointer`.

    Examples:
        >>> spark.read.format("checkpointer").option("operator", "totals").load("state/shop").count()
        2
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._request = ReadRequest.of(options).pin()

    @classmethod
    def name(cls) -> str:
        """Return the name by which Spark finds this data source."""
        return "checkpointer"

    def schema(self) -> StructType | str:
        """Return the columns of the table or view.

        Spark calls this.
        """
        if self._request.view is not None:
            return VIEWS[self._request.view][0]
        version = version_of(self._request.restore(), self._request.operator)
        return struct_of(version.schema.choose(version.name, self._request.columns or None))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of the table or view.

        Spark calls this.

        Args:
            schema: The columns, as `schema` returned them.
        """
        return (
            TableSourceReader(self._request, schema) if self._request.view is None else ViewSourceReader(self._request)
        )


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """The options of a scan: the table or view, and its checkpoint."""

    root: str
    operator: str
    view: str | None
    id: str | None
    epoch: int | None
    savepoint: str | None
    columns: tuple[str, ...] | None
    storage_options: dict[str, Any] | None = field(repr=False)
    fencing: Any

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "ReadRequest":
        given = {name.lower(): value for name, value in options.items()}
        if any(name.startswith("option.") for name in given):  # So a catalog keeps the options of a table.
            raise IllegalArgumentError(
                "CREATE TABLE … USING checkpointer: Spark does not hand the options of a table to a source written in "
                "Python; use CREATE OR REPLACE TEMP VIEW … USING checkpointer OPTIONS (…), which shows the "
                "checkpoint that is the latest one when the view is made"
            )
        unknown = sorted(set(given) - set(OPTIONS))
        if unknown:
            raise IllegalArgumentError(f"option {', '.join(unknown)}: is not known; there are {', '.join(OPTIONS)}")
        if "path" not in given:
            raise IllegalArgumentError("option path: say the root, as in load('s3://bucket/jobs/orders')")
        view, operator = given.get("view"), given.get("operator")
        if (view is None) == (operator is None):
            raise IllegalArgumentError(
                f"option operator or view: {'there is neither' if view is None else 'there are both'}: say one table, "
                f"as in option('operator', 'totals'), or one of the views {', '.join(VIEWS)}, as in option('view', …)"
            )
        if view is not None and view not in VIEWS:
            raise IllegalArgumentError(f"view {view!r:.40}: there are {', '.join(VIEWS)}")
        columns = given.get("columns")
        try:
            epoch = None if "epoch" not in given else int(given["epoch"])
            storage = None if "storage_options" not in given else json.loads(given["storage_options"])
        except ValueError as error:
            raise IllegalArgumentError(f"option epoch or storage_options: {error}") from None
        return cls(
            # Spark plans and reads in processes of their own, which may have another working directory.
            root=absolute(given["path"]),
            operator=operator or "",
            view=view,
            id=given.get("id"),
            epoch=epoch,
            savepoint=given.get("savepoint"),
            columns=None if columns is None else tuple(name.strip() for name in columns.split(",")),
            storage_options=storage,
            fencing=given.get("fencing", "required"),
        )

    def client(self) -> Checkpointer:
        return Checkpointer(self.root, self.storage_options, fencing=self.fencing)

    def restore(self) -> Restored:
        return restore(self.client(), self.id, self.epoch, self.savepoint)

    def pin(self) -> "ReadRequest":
        """Choose the checkpoint of a table, once for all scans.

        A view shows the store at the time it is read.
        """
        if self.view is not None:
            return self
        # The id takes the place of epoch and savepoint: a savepoint of that name could be another one later.
        return replace(self, id=str(self.restore().id), epoch=None, savepoint=None)


@dataclass
class PartitionRead(InputPartition):
    """Some partitions of the version that a scan is pinned to, for one task."""

    checkpoint: CheckpointId | None
    version: TableVersion
    partitions: list[int]


class TableSourceReader(DataSourceReader):
    """The planner of a scan of the checkpoint that the source chose.

    Tasks read only what was planned.
    """

    def __init__(self, request: ReadRequest, schema: StructType) -> None:
        self._request = request
        self._schema = schema
        self._columns = schema.fieldNames()

    def partitions(self) -> Sequence[InputPartition]:
        restored = self._restore()
        version = version_of(restored, self._request.operator)
        self._check_schema(version)
        sizes = version.sizes()
        # For no partitions PySpark would make one of its own, which `read` cannot understand.
        groups = group_by_bytes(sizes, scan_tasks(sum(sizes.values()))) or [[]]
        return [PartitionRead(restored.id, version.only(group), group) for group in groups]

    def _restore(self) -> Restored:
        try:
            return self._request.restore()
        except CheckpointNotFoundError:
            raise RetiredError(
                f"{self._request.root}: {self._request.id}, which this DataFrame or view was made of, was retired "
                "meanwhile: make it again"
            ) from None

    def _check_schema(self, version: TableVersion) -> None:
        """Raise `IllegalArgumentError` where the table has another schema.

        It must be the schema of `spark.read.schema(…)`.
        """
        # Compared by name and type alone, as nullability varies between runs.
        now = {field.name: field.dataType for field in struct_of(list(version.schema.columns))}
        for asked in self._schema:
            if now.get(asked.name) != asked.dataType:
                raise IllegalArgumentError(
                    f"table {version.name!r}: column {asked.name!r} was asked for as {asked.dataType.simpleString()}, "
                    f"but {self._request.id} has {version.schema}: leave the schema out, and cast what was read"
                )

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, PartitionRead)
        session = self._request.client().session
        reader = TableReader(session.store, session.host, partition.version, self._columns)
        for number in partition.partitions:
            for batch in batches_of(session, partition.checkpoint, reader, number):
                yield from whole_variants(pa.Table.from_batches([batch])).to_batches()


def scan_tasks(size: int) -> int:
    """Return how many tasks a scan of so many stored bytes is worth."""
    return min(MAX_SCAN_TASKS, 1 + size // SCAN_TASK_BYTES)


# ---- views -----------------------------------------------------------------------------------------------------------


class ViewSourceReader(DataSourceReader):
    """The reader of the few rows of a view of the store, in one task."""

    def __init__(self, request: ReadRequest) -> None:
        self._request = request

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert self._request.view is not None
        yield from VIEWS[self._request.view][1](self._request)


def _checkpoints(request: ReadRequest) -> Iterator[tuple[Any, ...]]:
    client = request.client()
    names = {savepoint.id: savepoint.name for savepoint in client.savepoints()}
    latest = client.read_latest()
    for checkpoint in client.list_checkpoints():
        manifest = client.load_manifest(checkpoint)
        job = manifest.job
        chains = [chain for operator in manifest.operators.values() for chain in operator.chains.values()]
        # By path, as several partitions can share an object.
        size = sum({a.path: a.size for chain in chains for a in chain}.values())
        yield (
            str(checkpoint),
            manifest.epoch,
            manifest.created,
            None if manifest.parent is None else str(manifest.parent.id),
            checkpoint == latest,
            names.get(checkpoint),
            None if job is None else job.query_id,
            None if job is None else job.run_id,
            None if job is None else job.batch_id,
            sorted(manifest.operators),
            size,
        )


def _artifacts(request: ReadRequest) -> Iterator[tuple[Any, ...]]:
    restored = request.restore()
    assert restored.manifest is not None
    for name, operator in sorted(restored.manifest.operators.items()):
        for partition, chain in sorted(operator.chains.items()):
            for index, artifact in enumerate(chain):
                yield (
                    str(restored.id),
                    name,
                    partition,
                    index,
                    artifact.kind,
                    artifact.path,
                    artifact.offset,
                    artifact.length,
                    artifact.size,
                    artifact.raw_size,
                    artifact.records,
                    artifact.digest,
                )


def _positions(request: ReadRequest) -> Iterator[tuple[Any, ...]]:
    restored = request.restore()
    for source, position in sorted(restored.positions.items()):
        yield str(restored.id), restored.epoch, source, json.dumps(position, sort_keys=True)


VIEWS: dict[str, tuple[str, Callable[[ReadRequest], Iterator[tuple[Any, ...]]]]] = {
    "checkpoints": (
        "id string, epoch bigint, created timestamp, parent string, latest boolean, savepoint string, query_id string, "
        "run_id string, batch_id bigint, operators array<string>, bytes bigint",
        _checkpoints,
    ),
    "artifacts": (
        "checkpoint string, operator string, partition int, position int, kind string, path string, offset bigint, "
        "length bigint, size bigint, raw_size bigint, records bigint, digest string",
        _artifacts,
    ),
    "positions": ("checkpoint string, epoch bigint, source string, position string", _positions),
}

offer(CheckpointerSource)

__all__ = ["CheckpointerSource"]
