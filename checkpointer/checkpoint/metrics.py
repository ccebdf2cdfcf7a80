"""Record the cost of commits and restores, for a callback.

The callback is given as `Checkpointer(root, metrics=callback)`.

There is one record for each commit that was asked for, also of a prepared checkpoint, a rollback or `update_latest`,
and one for each `restore()`. The record of a failed one has an `error`. There is no record of an attempt that ended
before its commit (by an exception in its block, or by `abort()`). A successful `prepare()` has no record either: its
second phase counts for both. The copies that `export()` and `repair()` make have no record.

**Requests** are operations of the store: get, put, swap (of `_latest`), list and delete. Every try counts. A large
object that is sent in parts is one request; each page of a listing is one. Only requests of calls on the checkpoint
itself are counted. Requests of Spark's executors, and of `save_snapshot` and `save_delta` called by hand, are not seen
here. The objects and bytes that these wrote are counted once the manifest names them.

**Times** are seconds of a clock that never goes back. **Bytes** are stored bytes: compressed where the codec does.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pyspark_checkpointer.manifests import object_paths, segments
from pyspark_checkpointer.manifests.model import SNAPSHOT, Artifact, Chain, CheckpointId, Manifest, Operator


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests by kind, every try counting."""

    get: int = 0
    """Reads of an object or of a part of it."""
    put: int = 0
    """Writes of an object."""
    swap: int = 0
    """Compare-and-swaps of an object."""
    list: int = 0
    """Pages of listings."""
    delete: int = 0
    """Deletions, each of one or more objects."""

    @property
    def total(self) -> int:
        """The number of requests of all kinds."""
        return self.get + self.put + self.swap + self.list + self.delete


@dataclass(frozen=True, slots=True)
class OperatorMetrics:
    """The part of one operator in a record.

    It says what a commit wrote for the operator, or what a restored checkpoint holds of it.
    """

    bytes: int = 0
    """Bytes of whole objects: artifacts, packs and segments."""
    objects: int = 0
    """The number of these objects."""
    partitions: int = 0
    """Partitions that have at least one of these artifacts in their chain."""
    snapshot_bytes: int = 0
    """Bytes of the snapshots in them that the checkpoint names, each stored range once."""
    delta_bytes: int = 0
    """Bytes of the deltas in them that the checkpoint names, each stored range once."""


@dataclass(frozen=True, slots=True)
class CommitMetrics:
    """One commit.

    Attributes:
        root: The root, without secrets.
        id: The attempt's id.
        epoch: The epoch it was begun with.
        error: None where it was committed, otherwise the name of the exception's class. After `OutcomeUnknownError` it
            may be committed all the same.
        bytes_written: Of the objects in `operators` together, whichever process wrote them. 0 where the attempt failed
            before its manifest was put together. Neither the manifest nor `_latest` is among them.
        objects: How many these are.
        bytes_read: What the attempt read, such as the checkpoint it goes on top of, where nothing was restored before.
        requests: Sent for the attempt, from `begin` to the acknowledged swap.
        blocked_seconds: How long the caller was held up: the time within `begin()` (waiting for an earlier commit in
            the background included), `snapshot()`, `delta()`, `save()`, `attach()`, `prepare()` and the commit. With
            `background=True` the commit itself is not in it. In a foreachBatch callback: also everything that a table
            does, such as the Spark jobs of `upsert()`, with what they compute first; and `write_partitions()`. Calls
            made by several threads at once count once.
        total_seconds: From the call of `begin()` until the swap was acknowledged, with what the caller did between. Of
            `rollback()` and `update_latest()`: from when an earlier commit in the background was done. Of a checkpoint
            that was found prepared: from then.
        operators: By name, those that something was written for.
    """

    root: str
    id: CheckpointId
    epoch: int | None
    error: str | None
    bytes_written: int
    objects: int
    bytes_read: int
    requests: Requests
    blocked_seconds: float
    total_seconds: float
    operators: Mapping[str, OperatorMetrics]


@dataclass(frozen=True, slots=True)
class RestoreMetrics:
    """One `restore()`, which reads the pointer and a manifest.

    Artifacts are read later, when they are asked for. Only `on_corruption="previous"` reads them all, to verify them.

    Attributes:
        root: The root, without secrets.
        id: What was restored; None on an empty root, and after an error.
        epoch: The epoch of that.
        error: None where it went well, otherwise the name of the exception's class.
        bytes_read: What `restore()` itself read.
        requests: What `restore()` itself sent.
        blocked_seconds: How long the caller waited: all the time.
        total_seconds: From the call to the answer, waiting for an earlier commit in the background included.
        operators: By name, what the checkpoint holds: what reading all of it will take.
    """

    root: str
    id: CheckpointId | None
    epoch: int | None
    error: str | None
    bytes_read: int
    requests: Requests
    blocked_seconds: float
    total_seconds: float
    operators: Mapping[str, OperatorMetrics]


Metrics = CommitMetrics | RestoreMetrics

MetricsCallback = Callable[[Metrics], object]
"""Function that is called with each record, in a thread of the library.

It gets one record after the other, in the order in which commits and restores of the process ended. They do not wait
for the function. Only `close()` waits for it, and not for ever. An exception that it raises is logged. It is not
pickled: a checkpointer that arrives in another process has no callback.
"""


def written(
    manifest: Manifest, parent: Manifest | None, touched: Mapping[str, Collection[int]] = MappingProxyType({})
) -> dict[str, OperatorMetrics]:
    """Return the sizes of what an attempt wrote for each operator.

    It counts objects that the manifest names and whose path has the attempt's id. With `parent`, unchanged chains are
    not looked at. With `touched`, changed chains need not be searched for.
    """

    def is_own(path: str) -> bool:
        return object_paths.owner(path) == manifest.id

    found = {}
    for name, operator in manifest.operators.items():
        before = parent.operators.get(name) if parent else None
        old = before.chains if before else {}
        # Only chains that changed can name objects of this attempt, and there may be many that did not.
        changed = [
            operator.chains[partition] for partition in segments.touched(old, operator.chains, touched.get(name))
        ]
        found[name] = _sum(operator, changed, is_own)
    return {name: part for name, part in found.items() if part.objects}


def contents(manifest: Manifest) -> dict[str, OperatorMetrics]:
    """Return the sizes of what a checkpoint holds of each operator."""
    return {name: _sum(op, op.chains.values(), lambda path: True) for name, op in manifest.operators.items()}


def _sum(operator: Operator, chains: Iterable[Chain], counts: Callable[[str], bool]) -> OperatorMetrics:
    """Return the sums of the artifacts in `chains` and the operator's segments.

    `counts` says which paths count.
    """
    sizes = {segment.path: segment.size for segment in operator.segments if counts(segment.path)}
    counted: list[Artifact] = []
    partitions = 0
    for chain in chains:
        own = [artifact for artifact in chain if counts(artifact.path)]
        partitions += bool(own)
        counted += own
    sizes |= {artifact.path: artifact.size for artifact in counted}
    snapshots, deltas = slice_bytes(counted)
    return OperatorMetrics(
        bytes=sum(sizes.values()),
        objects=len(sizes),
        partitions=partitions,
        snapshot_bytes=snapshots,
        delta_bytes=deltas,
    )


def slice_bytes(artifacts: Iterable[Artifact]) -> tuple[int, int]:
    """Return the stored bytes of the snapshots and of the deltas among some artifacts."""
    # By slice, because two partitions may name the same bytes, which were written once.
    slices = {(artifact.path, artifact.offset, artifact.length): artifact.kind for artifact in artifacts}
    snapshots = sum(length for (_, _, length), kind in slices.items() if kind == SNAPSHOT)
    return snapshots, sum(length for _, _, length in slices) - snapshots


__all__ = ["CommitMetrics", "OperatorMetrics", "Requests", "RestoreMetrics"]
