"""Model the chains of one operator, and how a batch changes them.

`forecast.py` runs a job of such operators. `compaction.py` decides here as for a real job.
"""

import math
from dataclasses import dataclass, replace
from hashlib import sha256

from pyspark_checkpointer.checkpoint.upload import PACK, SMALL
from pyspark_checkpointer.compaction import (
    DRIVER_BYTES,
    ROW_GROUP_ROWS,
    STREAMED_SNAPSHOT_BYTES,
    keyed_delta,
    table_compactions,
)
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.codecs import Codec
from pyspark_checkpointer.manifests.model import (
    DELTA,
    SNAPSHOT,
    Artifact,
    Chain,
    CheckpointId,
    Kind,
    Operator,
)

STORED_ROW = 32
"""The assumed stored bytes of a row of a table.

In memory a row is assumed to have `MEMORY_RATIO` times as many.
"""

MEMORY_RATIO = 2

SPARK_TASKS = 200
"""Tasks of a shuffle, unless Spark is configured otherwise."""


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


class ModelObjects:
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


class OperatorModel:
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

    def change(self, batch: int, objects: ModelObjects) -> list[int]:
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
        objects, count = ModelObjects(1), self.load.partitions
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

    def _alone(self, objects: ModelObjects, partition: int, kind: Kind, size: int) -> Artifact:
        digest = objects.put(size)
        path = object_paths.artifact(self.name, partition, objects.id, kind, digest, self.codec.name)
        return self._artifact(path, kind, 0, size, size, digest)

    def _pack_path(self, objects: ModelObjects, size: int) -> str:
        return object_paths.pack(self.name, objects.id, objects.put(size), self.codec.name)

    def _artifact(self, path: str, kind: Kind, offset: int, length: int, size: int, digest: str) -> Artifact:
        return Artifact(path, kind, offset, length, size, length, max(1, length // STORED_ROW), digest)


class MapModel(OperatorModel):
    codec = codecs.MAP_CODEC

    def change(self, batch: int, objects: ModelObjects) -> list[int]:
        waiting: list[tuple[int, int, Kind, int]] = []
        touched = self.touched(batch)
        for partition in touched:
            snapshot, *deltas = self.chains[partition]
            sizes = [artifact.raw_size for artifact in deltas]
            kind, keep, size = SNAPSHOT, 0, self.snapshot_size
            # Entries are taken to be equally large, so that bytes stand for numbers of keys. The state keeps its size.
            changed, keys = self.delta_size, self.snapshot_size
            decided = keyed_delta(
                snapshot.raw_size, sizes, [changed], self.max_chain, records=keys, changed=changed, keys=keys
            )
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

    def _pack(self, objects: ModelObjects, parts: list[tuple[int, int, Kind, int]]) -> None:
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


class TableModel(OperatorModel):
    codec = codecs.PARQUET

    def change(self, batch: int, objects: ModelObjects) -> list[int]:
        touched = self.touched(batch)
        packs = 1
        if MEMORY_RATIO * self.load.changed_bytes > DRIVER_BYTES // 4:
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

    def _pack(self, objects: ModelObjects, parts: dict[int, tuple[int | None, int]]) -> None:
        """Write deltas of several partitions as one object.

        Each delta goes on top of the first artifacts of its chain.
        """
        whole = sum(size for _, size in parts.values())
        path = self._pack_path(objects, whole)
        for partition, (keep, size) in parts.items():
            # The object is one file: each partition names all of it, with the rows and raw bytes that are its own.
            records, digest = max(1, size // STORED_ROW), object_paths.digest_of(path)
            one = Artifact(path, DELTA, 0, whole, whole, MEMORY_RATIO * size, records, digest)
            self.chains[partition] = (*self.chains[partition][:keep], one)

    @staticmethod
    def _own_size(artifact: Artifact) -> int:
        return artifact.raw_size // MEMORY_RATIO

    def _artifact(self, path: str, kind: Kind, offset: int, length: int, size: int, digest: str) -> Artifact:
        found = super()._artifact(path, kind, offset, length, size, digest)
        # Nothing of a table is a part of an object, so that its digest is that in the path.
        return replace(found, raw_size=MEMORY_RATIO * length, digest=object_paths.digest_of(path))


def _snapshot_gets(snapshot: Artifact) -> int:
    """Return the requests that reading a snapshot of a table takes.

    It is read in order to write the next one.
    """
    return 1 if snapshot.raw_size < STREAMED_SNAPSHOT_BYTES else 1 + math.ceil(snapshot.records / ROW_GROUP_ROWS)
