"""Define the views of a store that the data source `checkpointer` has."""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_checkpointer.checkpoint.listing import read_listing
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.executors import own_version
from pyspark_checkpointer.spark.source_options import ReadRequest
from pyspark_checkpointer.spark.task_client import refuse_other_version


class ViewSourceReader(DataSourceReader):
    """The reader of the few rows of a view of the store, in one task."""

    def __init__(self, request: ReadRequest) -> None:
        self._request = request

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(own_version())]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        refuse_other_version(partition.value)
        assert self._request.view is not None
        yield from VIEWS[self._request.view][1](self._request)


def _checkpoints(request: ReadRequest) -> Iterator[tuple[Any, ...]]:
    # All of them at once: a deletion may take away each that is read later.
    for listed in run_sync(read_listing(request.client().session, chains=True)).checkpoints:
        if listed.state == "prepared":
            continue
        manifest, job = listed.manifest, listed.manifest.job
        artifacts = (artifact for operator in manifest.operators.values() for artifact in operator.artifacts())
        # By path, as several partitions can share an object.
        size = sum({artifact.path: artifact.size for artifact in artifacts}.values())
        yield (
            str(listed.ref.id),
            manifest.epoch,
            manifest.created,
            None if manifest.parent is None else str(manifest.parent.id),
            listed.state == "committed",
            ", ".join(listed.savepoints) or None,
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

__all__ = ["VIEWS", "ViewSourceReader"]
