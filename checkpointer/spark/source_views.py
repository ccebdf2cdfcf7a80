"""Define the views of a store that the data source `checkpointer` has."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_checkpointer.checkpoint.latest import read_consistent
from pyspark_checkpointer.checkpoint.listing import Listed, batched, read_listing
from pyspark_checkpointer.checkpoint.metadata import Segments
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests.model import Manifest
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
    session = request.client().session
    # All of them at once: a deletion may take away each that is read later.
    yield from run_sync(read_consistent(session.store, lambda _: _read_checkpoints(session)))


async def _read_checkpoints(session: Session) -> list[tuple[Any, ...]]:
    listing = await read_listing(session)
    # One cache for all, because neighbours share most of their segments.
    segments = Segments(session.store, session.host)
    rows = []
    for batch in batched(tuple(listed for listed in listing.checkpoints if listed.state != "prepared")):
        for listed, size in zip(batch, await _sizes(batch, segments), strict=True):
            manifest, job = listed.manifest, listed.manifest.job
            rows.append(
                (
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
            )
    return rows


async def _sizes(batch: Sequence[Listed], segments: Segments) -> list[int]:
    """Return the bytes of the objects of each checkpoint.

    A long history must not fill the memory: no chains stay, and only those segments that the next batch may share.
    """
    manifests = await asyncio.gather(*(segments.load(listed.manifest) for listed in batch))
    segments.forget_but(listed.manifest for listed in batch)
    return [_size(manifest) for manifest in manifests]


def _size(manifest: Manifest) -> int:
    artifacts = (artifact for operator in manifest.operators.values() for artifact in operator.artifacts())
    # By path, as several partitions can share an object.
    return sum({artifact.path: artifact.size for artifact in artifacts}.values())


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
