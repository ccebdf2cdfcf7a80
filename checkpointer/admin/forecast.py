"""Forecast what a batch costs in requests and bytes.

The forecast needs a few numbers about the job. `checkpoint/metering.py` measures the real cost.

Model operators are changed batch by batch. `compaction.py` decides what is folded and when a snapshot is written, as it
does for a real job. The lists of chains are encoded as in a real manifest. No artifact is made, and no store is used.

The forecast assumes that a state keeps its size, that the changes of a batch are spread evenly over the partitions
that it changes, and that successive batches change different keys: where they change the same ones, folding writes
less.
"""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.upload import PACK, SMALL
from pyspark_checkpointer.compaction import (
    DRIVER_BYTES,
    ROW_GROUP_ROWS,
    STREAMED_SNAPSHOT_BYTES,
    keyed_delta,
    table_compactions,
)
from pyspark_checkpointer.manifests import codecs, manifest_json, object_paths
from pyspark_checkpointer.manifests.codecs import Codec
from pyspark_checkpointer.manifests.model import (
    DELTA,
    SNAPSHOT,
    Artifact,
    Chain,
    CheckpointId,
    Job,
    Kind,
    Manifest,
    Operator,
    Ref,
    Segment,
    SparkProgress,
)
from pyspark_checkpointer.storage.cloud import MAX_SINGLE_PUT, PART_SIZE

STORED_ROW = 32
"""Stored bytes that a row of a table is taken to have.

In memory it is taken to have `RAW` times as many.
"""

RAW = 2

SPARK_TASKS = 200
"""Tasks of a shuffle, unless Spark is configured otherwise."""

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
class OperatorLoad:
    """An operator, and what a batch changes in it.

    `state_bytes` and `changed_bytes` are stored bytes, so compressed ones. `tasks` is how many tasks of Spark write a
    table's changes where these are too many for the driver. `executors` is how many processes run these tasks.
    """

    is_table: bool
    state_bytes: int
    changed_bytes: int
    partitions: int
    changed_partitions: int
    tasks: int = SPARK_TASKS
    executors: int = 1


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
    """Return what a batch that changes these operators costs."""
    return _Job(loads, max_chain).run()


class _Objects:
    """The objects that one model batch writes."""

    def __init__(self, sequence: int) -> None:
        self.id = CheckpointId(sequence, sha256(b"%d" % sequence).hexdigest()[:8])
        self.sizes: list[int] = []
        self.reads: set[str] = set()
        self.gets = 0

    def digest(self) -> str:
        """Return another digest each time."""
        return sha256(b"%s %d" % (str(self.id).encode(), len(self.sizes))).hexdigest()

    def put(self, size: int) -> str:
        """Take an object of this size, and return its digest."""
        digest = self.digest()
        self.sizes.append(size)
        return digest


class _Model:
    """One operator: its chains, and how a batch changes them."""

    codec: Codec

    def __init__(self, name: str, load: OperatorLoad, max_chain: int) -> None:
        self.name, self.load, self.max_chain = name, load, max_chain
        self.snapshot_size = max(load.state_bytes // load.partitions, 1)
        self.delta_size = max(load.changed_bytes // load.changed_partitions, 1)
        self.snapshots = 0
        """Snapshots that were written in the batches that count."""
        self.chains = self._first_chains()

    def touched(self, batch: int) -> list[int]:
        """Return the partitions that a batch changes: in turn, where these are not all."""
        first = batch * self.load.changed_partitions
        return [(first + n) % self.load.partitions for n in range(self.load.changed_partitions)]

    def shares(self, size: int) -> bool:
        """Return whether a snapshot or delta of this size shares its object.

        Snapshots or deltas of other partitions are in the same object.
        """
        return size <= SMALL

    def change(self, batch: int, objects: _Objects) -> list[int]:
        """Write the changes of a batch, and return the partitions whose chains changed."""
        raise NotImplementedError

    def operator(self) -> Operator:
        return Operator(self.load.partitions, self.codec.partitioner, self.codec.name, dict(self.chains))

    def snapshots_each_batch(self, batches: int) -> float:
        """Return how many snapshots a batch writes.

        The number is counted, or computed where `batches` are too few to count it. A snapshot is due when the deltas
        are half as large.
        """
        cycle = self.snapshot_size / 2 / self.delta_size * self.load.partitions / self.load.changed_partitions
        if cycle <= batches / 2:
            return self.snapshots / batches
        return self.load.changed_partitions * self.delta_size / (self.snapshot_size / 2)

    def _first_chains(self) -> dict[int, Chain]:
        """Return a snapshot of each partition, and deltas on top of it.

        The deltas are half as many as the next snapshot takes.
        """
        objects, count = _Objects(1), self.load.partitions
        full = self.snapshot_size // 4
        shared = [self._pack_path(objects, size * count) for size in (self.snapshot_size, full)]

        def one(partition: int, kind: Kind, size: int, path: str) -> Artifact:
            if self.shares(size) or (self.load.is_table and kind == DELTA):
                return self._artifact(path, kind, 0, size, size, objects.digest())
            return self._alone(objects, partition, kind, size)

        return {
            partition: (one(partition, SNAPSHOT, self.snapshot_size, shared[0]),)
            + ((one(partition, DELTA, full, shared[1]),) if full else ())
            for partition in range(count)
        }

    def _alone(self, objects: _Objects, partition: int, kind: Kind, size: int) -> Artifact:
        digest = objects.put(size)
        path = object_paths.artifact(self.name, partition, objects.id, kind, digest, self.codec.name)
        return self._artifact(path, kind, 0, size, size, digest)

    def _pack_path(self, objects: _Objects, size: int) -> str:
        return object_paths.pack(self.name, objects.id, objects.put(size), self.codec.name)

    def _artifact(self, path: str, kind: Kind, offset: int, length: int, size: int, digest: str) -> Artifact:
        return Artifact(path, kind, offset, length, size, length, max(1, length // STORED_ROW), digest)


class _Map(_Model):
    codec = codecs.MAP_CODEC

    def change(self, batch: int, objects: _Objects) -> list[int]:
        waiting: list[tuple[int, int, Kind, int]] = []
        touched = self.touched(batch)
        for partition in touched:
            base, *deltas = self.chains[partition]
            sizes = [artifact.raw_size for artifact in deltas]
            kind, keep, size = SNAPSHOT, 0, self.snapshot_size
            # Entries are taken to be equally large, so that bytes stand for numbers of keys.
            changed, keys = self.delta_size, self.snapshot_size
            decided = keyed_delta(base.raw_size, sizes, [changed], self.max_chain, changed=changed, keys=keys)
            if decided is not None:
                kind, keep, size = DELTA, 1 + decided.first, decided.size
            self.snapshots += kind == SNAPSHOT
            if not self.shares(size):
                self.chains[partition] = (*self.chains[partition][:keep], self._alone(objects, partition, kind, size))
                continue
            waiting.append((partition, keep, kind, size))
            if sum(size for *_, size in waiting) >= PACK:
                self._pack(objects, waiting)
                waiting = []
        self._pack(objects, waiting)
        return touched

    def _pack(self, objects: _Objects, parts: list[tuple[int, int, Kind, int]]) -> None:
        if len(parts) == 1:
            ((partition, keep, kind, size),) = parts
            self.chains[partition] = (*self.chains[partition][:keep], self._alone(objects, partition, kind, size))
        elif parts:
            whole = sum(size for *_, size in parts)
            path, offset = self._pack_path(objects, whole), 0
            for partition, keep, kind, size in parts:
                digest = sha256(b"%s %d" % (path.encode(), partition)).hexdigest()
                one = self._artifact(path, kind, offset, size, whole, digest)
                self.chains[partition] = (*self.chains[partition][:keep], one)
                offset += size


class _Table(_Model):
    codec = codecs.PARQUET

    def change(self, batch: int, objects: _Objects) -> list[int]:
        touched = self.touched(batch)
        packs = 1
        if RAW * self.load.changed_bytes > DRIVER_BYTES // 4:
            packs = min(self.load.tasks, len(touched))
            objects.gets += self.load.executors  # the driver reads a byte of what each of them wrote
        for number in range(packs):
            self._pack(objects, dict.fromkeys(touched[number::packs], (None, self.delta_size)))
        changed = dict.fromkeys(touched)
        folds: dict[int, tuple[int | None, int]] = {}
        for partition, keep in table_compactions(self.chains, self.max_chain, self.load.partitions).items():
            chain = self.chains[partition]
            objects.reads |= {artifact.path for artifact in chain[max(keep, 1) :]}
            changed[partition] = None
            if keep:
                folds[partition] = keep, sum(self._own_size(artifact) for artifact in chain[keep:])
            else:
                objects.gets += _snapshot_gets(chain[0])
                self.snapshots += 1
                self.chains[partition] = (self._alone(objects, partition, SNAPSHOT, self.snapshot_size),)
        if folds:
            self._pack(objects, folds)
        return [*changed]

    def shares(self, size: int) -> bool:
        return False

    def _pack(self, objects: _Objects, parts: dict[int, tuple[int | None, int]]) -> None:
        """Write deltas of several partitions as one object.

        Each delta goes on top of the first artifacts of its chain.
        """
        whole = sum(size for _, size in parts.values())
        path = self._pack_path(objects, whole)
        for partition, (keep, size) in parts.items():
            # The object is one file: each partition names all of it, with the rows and raw bytes that are its own.
            records, digest = max(1, size // STORED_ROW), object_paths.digest_of(path)
            one = Artifact(path, DELTA, 0, whole, whole, RAW * size, records, digest)
            self.chains[partition] = (*self.chains[partition][:keep], one)

    @staticmethod
    def _own_size(artifact: Artifact) -> int:
        return artifact.raw_size // RAW

    def _artifact(self, path: str, kind: Kind, offset: int, length: int, size: int, digest: str) -> Artifact:
        found = super()._artifact(path, kind, offset, length, size, digest)
        # Nothing of a table is a part of an object, so that its digest is that in the path.
        return replace(found, raw_size=RAW * length, digest=object_paths.digest_of(path))


def _snapshot_gets(base: Artifact) -> int:
    """Return the requests that reading a snapshot of a table takes.

    It is read in order to write the next one.
    """
    return 1 if base.raw_size < STREAMED_SNAPSHOT_BYTES else 1 + math.ceil(base.records / ROW_GROUP_ROWS)


class _Job:
    """Model operators, changed batch by batch, with the manifest of each batch."""

    def __init__(self, loads: Sequence[OperatorLoad], max_chain: int) -> None:
        self._models = [
            (_Table if load.is_table else _Map)(f"operator-{number}", load, max_chain)
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

    def _run(self, batches: int) -> Iterator[tuple[int, _Objects, Manifest]]:
        parent, _ = metadata.spill(self._manifest(_Objects(1), None), None)
        for number in range(batches):
            objects = _Objects(number + 2)
            touched = {model.name: model.change(number, objects) for model in self._models}
            manifest, segments = metadata.spill(self._manifest(objects, parent), parent, touched)
            objects.sizes += [len(segment.data) for segment in segments]
            yield number, objects, manifest
            parent = manifest

    def _manifest(self, objects: _Objects, parent: Manifest | None) -> Manifest:
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
        sizes |= {artifact.path: artifact.size for chain in operator.chains.values() for artifact in chain}
    return len(sizes), sum(sizes.values())
