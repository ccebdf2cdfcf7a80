"""Forecast the cost of a batch in requests and bytes.

The forecast needs a few numbers about the job. `checkpoint/metering.py` measures the real cost.

Model operators (`forecast_operators.py`) are changed batch by batch. The lists of chains are encoded as in a real
manifest. No artifact is made, and no store is used.

The forecast assumes that a state keeps its size, and that the changes of a batch are spread evenly over the partitions
that it changes. It also assumes that successive batches change different keys: if they change the same keys, folding
writes less.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark_checkpointer.admin.forecast_operators import MapModel, ModelObjects, OperatorLoad, TableModel
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.manifests import manifest_json
from pyspark_checkpointer.manifests.model import (
    Chain,
    Job,
    Manifest,
    Ref,
    Segment,
    SparkProgress,
)
from pyspark_checkpointer.storage.cloud import MAX_SINGLE_PUT, PART_SIZE

_MAX_WORK, _MIN_BATCHES, _MAX_BATCHES = 60_000, 30, 1500
"""Changes of partitions that are modelled, and the limits of the batches.

They are modelled in at least `_MIN_BATCHES` and at most `_MAX_BATCHES` batches.
"""

_SAMPLES = 8
"""Batches whose manifests are encoded to learn their size."""

_PROGRESS = SparkProgress(
    "s3://bucket/jobs/a-job/spark", f"v1\n{{}}\n{json.dumps(['0' * 200])}", (json.dumps(["0" * 200]),)
)
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class BatchForecast:
    """The means over many batches.

    `objects` and `bytes` count the objects that a batch leaves in the store, its manifest among them. The pointer
    `_latest` is not counted: it is replaced each time. `state_objects` and `state_bytes` count all objects that one
    checkpoint names.
    """

    puts: float
    """Requests that write, the swap of `_latest` among them."""
    gets: float
    objects: float
    bytes: float
    segments: float
    """Segments that one checkpoint names: each is read by a restore."""
    restore_gets: float
    """Requests of a restore with all maps.

    Tables are not among them: they are read when the job asks for their rows.
    """
    state_objects: float
    state_bytes: float


def upload_requests(size: int) -> int:
    """Return the requests that writing an object of `size` bytes to S3 or Azure takes."""
    return 1 if size <= MAX_SINGLE_PUT else 2 + math.ceil(size / PART_SIZE)


def forecast(loads: Sequence[OperatorLoad], max_chain: int) -> BatchForecast:
    """Return the cost of a batch that changes these operators."""
    return _Job(loads, max_chain).run()


class _Job:
    """Model operators, changed batch by batch, with the manifest of each batch."""

    def __init__(self, loads: Sequence[OperatorLoad], max_chain: int) -> None:
        self._models = [
            (TableModel if load.is_table else MapModel)(f"operator-{number}", load, max_chain)
            for number, load in enumerate(loads)
        ]
        work = sum(4 * load.partitions if load.is_table else load.changed_partitions for load in loads)
        self._batches = max(_MIN_BATCHES, min(_MAX_BATCHES, _MAX_WORK // max(work, 1)))

    def run(self) -> BatchForecast:
        """Change the operators for some batches that do not count, and for some that do."""
        warm, batches = self._batches // 4, self._batches
        sizes: list[int] = []
        manifest_sizes: list[int] = []
        segments: list[int] = []
        gets = 0
        state: list[tuple[int, int]] = []
        for number, objects, manifest in self._run(warm + batches):
            if number == warm:
                for model in self._models:
                    model.snapshots = 0
            if number < warm:
                continue
            sizes += objects.sizes
            gets += objects.gets + len(objects.reads)
            segments.append(len(_segments(manifest)))
            if (number - warm) % math.ceil(batches / _SAMPLES) == 0:
                manifest_sizes.append(len(manifest_json.encode_manifest(manifest)))
                state.append(_held(manifest))
        manifest_size = sum(manifest_sizes) / len(manifest_sizes)
        unseen = [(model.snapshots_each_batch(batches) - model.snapshots / batches, model) for model in self._models]
        alone = [(count, model.snapshot_size) for count, model in unseen if not model.shares(model.snapshot_size)]
        held_objects, held_bytes = (sum(each) / len(state) for each in zip(*state, strict=True))
        maps = sum(_objects_of(model.chains) for model in self._models if not model.load.is_table)
        return BatchForecast(
            puts=sum(map(upload_requests, sizes)) / batches
            + sum(count * upload_requests(size) for count, size in alone)
            + upload_requests(int(manifest_size))
            + 1,
            gets=gets / batches,
            objects=len(sizes) / batches + sum(count for count, _ in alone) + 1,
            bytes=sum(sizes) / batches + sum(count * model.snapshot_size for count, model in unseen) + manifest_size,
            segments=sum(segments) / len(segments),
            restore_gets=2 + sum(segments) / len(segments) + maps,
            state_objects=held_objects + 1,
            state_bytes=held_bytes + manifest_size,
        )

    def _run(self, batches: int) -> Iterator[tuple[int, ModelObjects, Manifest]]:
        parent, _ = metadata.spill(self._manifest(ModelObjects(1), None), None)
        for number in range(batches):
            objects = ModelObjects(number + 2)
            touched = {model.name: model.change(number, objects) for model in self._models}
            manifest, segments = metadata.spill(self._manifest(objects, parent), parent, touched)
            objects.sizes += [len(segment.data) for segment in segments]
            yield number, objects, manifest
            parent = manifest

    def _manifest(self, objects: ModelObjects, parent: Manifest | None) -> Manifest:
        """Return a manifest as a query with one source leaves it."""
        number = objects.id.sequence
        return Manifest(
            objects.id,
            None if parent is None else Ref(parent.id, objects.digest()),
            epoch=number,
            created=_START + timedelta(minutes=number),
            job=Job("0" * 36, "0" * 36, number, "host:1:1", _PROGRESS),
            operators={model.name: model.operator() for model in self._models},
        )


def _segments(manifest: Manifest) -> list[Segment]:
    return [segment for operator in manifest.operators.values() for segment in operator.segments]


def _objects_of(chains: dict[int, Chain]) -> int:
    return len({artifact.path for chain in chains.values() for artifact in chain})


def _held(manifest: Manifest) -> tuple[int, int]:
    """Return the number and the bytes of the objects that a manifest names."""
    sizes = {segment.path: segment.size for segment in _segments(manifest)}
    for operator in manifest.operators.values():
        sizes |= {artifact.path: artifact.size for artifact in operator.artifacts()}
    return len(sizes), sum(sizes.values())
