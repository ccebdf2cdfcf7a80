"""Compute the sizes of a checkpoint from its manifest.

There is a size for the checkpoint, and for each operator, partition and commit in it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest
from statistics import median_low

from pyspark_checkpointer.checkpoint.metrics import slice_bytes
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Artifact, Manifest, Operator


@dataclass(frozen=True, slots=True)
class Spread:
    """The smallest, the median and the largest of some numbers."""

    minimum: int
    median: int
    maximum: int

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "Spread | None":
        """Return the spread of some numbers; None without any."""
        values = sorted(numbers)
        return cls(values[0], median_low(values), values[-1]) if values else None


@dataclass(frozen=True, slots=True)
class OperatorSize:
    """Sizes of one operator's chains, in stored bytes.

    An object that several partitions share counts once.
    """

    partitions: int
    chain: Spread | None
    snapshot_bytes: int
    delta_bytes: int
    records: int
    objects: int
    object_bytes: int
    """Bytes of the whole objects, which other checkpoints may share."""


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """The size of one partition.

    It is its share of the stored bytes, and the length of its chain.
    """

    operator: str
    partition: int
    bytes: int
    chain: int
    records: int


def is_loaded(operator: Operator) -> bool:
    """Return whether the chains are loaded.

    Chains in segments are read only if they are needed.
    """
    return len(operator.patches) == len(operator.segments)


def partitions(operator: Operator) -> int:
    """Return how many partitions have state.

    Where the chains are not loaded, it is how many could have.
    """
    return len(operator.chains) if is_loaded(operator) else operator.partitions


def operator_size(operator: Operator) -> OperatorSize:
    """Return the sizes of an operator whose chains are loaded."""
    artifacts = [*operator.artifacts()]
    snapshots, deltas = slice_bytes(artifacts)
    whole = {artifact.path: artifact.size for artifact in artifacts}
    return OperatorSize(
        partitions=len(operator.chains),
        chain=Spread.of(map(len, operator.chains.values())),
        snapshot_bytes=snapshots,
        delta_bytes=deltas,
        records=sum(artifact.records for artifact in artifacts),
        objects=len(whole),
        object_bytes=sum(whole.values()),
    )


def partition_bytes(operator: Operator) -> dict[int, int]:
    """Return the stored bytes of each partition.

    Shared bytes are divided by the records that each has in them.
    """
    records: Counter[tuple[str, int]] = Counter()
    sharers: Counter[tuple[str, int]] = Counter()
    for artifact in operator.artifacts():
        records[artifact.path, artifact.offset] += artifact.records
        sharers[artifact.path, artifact.offset] += 1

    def share(artifact: Artifact) -> float:
        """Return the part of a slice's bytes that this partition's records take."""
        place = artifact.path, artifact.offset
        # Without records there is nothing to divide by, so the sharers get equal parts.
        if sharers[place] == 1 or not records[place]:
            return artifact.length / sharers[place]
        return artifact.length * artifact.records / records[place]

    return {partition: round(sum(map(share, chain))) for partition, chain in operator.chains.items()}


MAX_BIGGEST = 10
"""Partitions that `biggest_partitions` returns, at most."""


def biggest_partitions(manifest: Manifest) -> tuple[PartitionSize, ...]:
    """Return the partitions that store the most bytes, the largest first.

    Partitions of all operators are compared.
    """
    sizes = (
        (size, name, partition)
        for name, operator in manifest.operators.items()
        for partition, size in partition_bytes(operator).items()
    )
    found = []
    for size, name, partition in nlargest(MAX_BIGGEST, sizes):
        chain = manifest.operators[name].chains[partition]
        found.append(PartitionSize(name, partition, size, len(chain), sum(artifact.records for artifact in chain)))
    return tuple(found)


def object_sizes(manifest: Manifest) -> dict[str, int]:
    """Return the size in bytes of each segment and each artifact's object, by path."""
    sizes: dict[str, int] = {}
    for operator in manifest.operators.values():
        sizes.update((segment.path, segment.size) for segment in operator.segments)
        sizes.update((artifact.path, artifact.size) for artifact in operator.artifacts())
    return sizes


def operators_of_objects(manifest: Manifest) -> dict[str, str]:
    """Return the operator that each object of an artifact belongs to, by path."""
    return {a.path: name for name, operator in manifest.operators.items() for a in operator.artifacts()}


def bytes_by_attempt(sizes: dict[str, int]) -> dict[str, int]:
    """Return the bytes that each attempt wrote, by its id as text.

    `sizes` has the bytes of objects by path.
    """
    written: defaultdict[str, int] = defaultdict(int)
    for path, size in sizes.items():
        written[str(object_paths.owner(path))] += size
    return written


def written_bytes(manifest: Manifest) -> tuple[int, int] | None:
    """Return the bytes of snapshots and of deltas that a checkpoint wrote itself.

    None where chains are not loaded.
    """
    if not all(map(is_loaded, manifest.operators.values())):
        return None
    return slice_bytes(
        artifact
        for operator in manifest.operators.values()
        for artifact in operator.artifacts()
        if _wrote(manifest, artifact.path)
    )


def checkpoint_bytes(manifest: Manifest) -> tuple[int, int] | None:
    """Return the bytes of all objects of a checkpoint, and of those it wrote.

    None where chains are not loaded.
    """
    if not all(map(is_loaded, manifest.operators.values())):
        return None
    sizes = object_sizes(manifest)
    return sum(sizes.values()), sum(size for path, size in sizes.items() if _wrote(manifest, path))


def _wrote(manifest: Manifest, path: str) -> bool:
    """Return whether a checkpoint wrote an object itself, not an older one."""
    # A file name begins with the id of the attempt that wrote it. Looking for it is faster than parsing each path.
    return f"/{manifest.id}." in path
