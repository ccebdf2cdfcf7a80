"""`spark.read.format("checkpointer")`: tables of any live checkpoint, and what a store is made of."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    In,
    InputPartition,
)
from pyspark.sql.types import StructType

from checkpointer.errors import IllegalArgumentError
from checkpointer.restore import explaining
from checkpointer.runtime import run_sync
from checkpointer.spark.frames import struct_of
from checkpointer.spark.read import restore, version_of
from checkpointer.spark.scan import BATCH_ROWS, spread
from checkpointer.sync import Checkpointer
from checkpointer.sync_handles import Restored
from checkpointer.table.hashing import partitions_of
from checkpointer.table.opening import key_table
from checkpointer.table.types import whole_variants
from checkpointer.table.version import Reader, Version
from manifests.model import CheckpointId

OPTIONS = ("path", "operator", "view", "id", "epoch", "savepoint", "columns", "storage_options", "fencing")

TASKS = 32
"""Most tasks of a scan: a data source does not know how many the session can run at once."""


class CheckpointerSource(DataSource):
    """Options: `path` (the root), and `operator`, the table to read, or `view`: "checkpoints", "artifacts" or
    "positions". `id`, `epoch` or `savepoint` choose a live checkpoint, else it is the last one. `columns`: names,
    separated by commas. `storage_options`: JSON. `fencing`: as for `Checkpointer`."""

    @classmethod
    def name(cls) -> str:
        return "checkpointer"

    def schema(self) -> StructType | str:
        request = Request.of(self.options)
        if request.view is not None:
            return VIEWS[request.view][0]
        version = version_of(request.restore(), request.operator)
        return struct_of(version.schema.choose(version.name, request.columns or None))

    def reader(self, schema: StructType) -> DataSourceReader:
        request = Request.of(self.options)
        if request.view is not None:
            return ViewReader(request)
        return PruningReader(request, schema) if _may_push() else TableReader(request, schema)


@dataclass(frozen=True, slots=True)
class Request:
    """The options of a scan, checked."""

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
    def of(cls, options: Mapping[str, str]) -> "Request":
        given = {name.lower(): value for name, value in options.items()}
        unknown = sorted(set(given) - set(OPTIONS))
        if unknown:
            raise IllegalArgumentError(f"option {', '.join(unknown)}: is none; there are {', '.join(OPTIONS)}")
        if "path" not in given:
            raise IllegalArgumentError("option path: say the root, as in load('s3://bucket/jobs/orders')")
        view, operator = given.get("view"), given.get("operator")
        if (view is None) == (operator is None):
            raise IllegalArgumentError(f"say an operator, or one of the views {', '.join(VIEWS)}")
        if view is not None and view not in VIEWS:
            raise IllegalArgumentError(f"view {view!r:.40}: there are {', '.join(VIEWS)}")
        columns = given.get("columns")
        try:
            epoch = None if "epoch" not in given else int(given["epoch"])
            storage = None if "storage_options" not in given else json.loads(given["storage_options"])
        except ValueError as error:
            raise IllegalArgumentError(f"option epoch or storage_options: {error}") from None
        return cls(
            root=given["path"],
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


@dataclass
class Slice(InputPartition):
    """Some partitions of the one version that a scan is pinned to."""

    checkpoint: CheckpointId | None
    version: Version
    partitions: list[int]


class TableReader(DataSourceReader):
    """Pins the checkpoint when the scan is planned; the tasks read nothing but what was pinned."""

    def __init__(self, request: Request, schema: StructType) -> None:
        self._request = request
        self._schema = schema
        self._columns = schema.fieldNames()
        self._keys: dict[str, list[Any]] = {}

    def partitions(self) -> Sequence[InputPartition]:
        restored = self._request.restore()
        version = version_of(restored, self._request.operator)
        self._check_schema(version)
        wanted = self._wanted(version)
        groups = spread(version.only(wanted).sizes(), TASKS) or [[]]
        return [Slice(restored.id, version.only(group), group) for group in groups]

    def _check_schema(self, version: Version) -> None:
        """A view knows the columns that the table had when it was made."""
        now = {field.name: field.dataType for field in struct_of(list(version.schema.columns))}
        for asked in self._schema:
            if now.get(asked.name) != asked.dataType:
                raise IllegalArgumentError(
                    f"table {version.name!r}: column {asked.name!r} was {asked.dataType.simpleString()} when this "
                    f"DataFrame or view was made, now the table has {version.schema}: make it again"
                )

    def _wanted(self, version: Version) -> list[int]:
        """The partitions that may hold the keys that filters ask for."""
        everything = sorted(version.chains)
        if set(version.schema.key) - set(self._keys):
            return everything
        rows: list[dict[str, Any]] = [{}]
        for name in version.schema.key:
            rows = [row | {name: value} for row in rows for value in self._keys[name]]
            if len(rows) > version.partitions * 8:
                return everything
        try:
            keys = key_table(version, rows)
        except IllegalArgumentError:  # a value of another type than the key's: Spark finds out what equals it
            return everything
        found = set(partitions_of(keys, version.schema, version.partitions))
        return [partition for partition in everything if partition in found]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Slice)
        session = self._request.client()._session
        reader = Reader(session.store, session.host, partition.version, self._columns)
        for number in partition.partitions:
            rows = run_sync(explaining(session, partition.checkpoint, lambda n=number: reader.rows(n)))  # type: ignore[misc]
            yield from whole_variants(rows).to_batches(max_chunksize=BATCH_ROWS)


class PruningReader(TableReader):
    """Also takes filters on key columns. Spark evaluates them again: partitions hold other keys too."""

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802  # Spark's name
        for pushed in filters:
            if isinstance(pushed, EqualTo | EqualNullSafe | In) and len(pushed.attribute) == 1:
                values = list(pushed.value) if isinstance(pushed, In) else [pushed.value]
                self._keys.setdefault(pushed.attribute[0], values)
            yield pushed


def _may_push() -> bool:
    """Whether Spark is asking for filters to push. It refuses a reader that takes them while its conf is off, and only
    the worker that it starts for pushing them has this module."""
    import sys

    return "pyspark.sql.worker.data_source_pushdown_filters" in sys.modules


# ---- views -----------------------------------------------------------------------------------------------------------


class ViewReader(DataSourceReader):
    """A few rows about the store itself, read in one task."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert self._request.view is not None
        yield from VIEWS[self._request.view][1](self._request)


def _checkpoints(request: Request) -> Iterator[tuple[Any, ...]]:
    client = request.client()
    names = {savepoint.id: savepoint.name for savepoint in client.savepoints()}
    latest = client.read_latest()
    for checkpoint in client.list_checkpoints():
        manifest = client.load_manifest(checkpoint)
        job = manifest.job
        chains = [chain for operator in manifest.operators.values() for chain in operator.chains.values()]
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


def _artifacts(request: Request) -> Iterator[tuple[Any, ...]]:
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


def _positions(request: Request) -> Iterator[tuple[Any, ...]]:
    restored = request.restore()
    for source, position in sorted(restored.positions.items()):
        yield str(restored.id), restored.epoch, source, json.dumps(position, sort_keys=True)


VIEWS: dict[str, tuple[str, Callable[[Request], Iterator[tuple[Any, ...]]]]] = {
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


__all__ = ["CheckpointerSource"]
