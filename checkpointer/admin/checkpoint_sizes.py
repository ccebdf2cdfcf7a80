"""How large a checkpoint is, and how much of it each operator, partition and commit has. Functions of manifests."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import nlargest
from statistics import median_low

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import SNAPSHOT, Artifact, Manifest, Operator


@dataclass(frozen=True, slots=True)
class Spread:
    """The smallest, the middle and the largest of some numbers."""

    minimum: int
    median: int
    maximum: int

    @classmethod
    def of(cls, numbers: Iterable[int]) -> "Spread | None":
        values = sorted(numbers)
        return cls(values[0], median_low(values), values[-1]) if values else None


@dataclass(frozen=True, slots=True)
class OperatorSize:
    """What one operator's chains hold. Bytes are stored bytes; what several partitions share counts once."""

    partitions: int
    chain: Spread | None
    snapshot_bytes: int
    delta_bytes: int
    records: int
    objects: int
    object_bytes: int
    """Whole objects, with what they hold for others."""


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """One partition of one operator: its share of the stored bytes, and the length of its chain."""

    operator: str
    partition: int
    bytes: int
    chain: int
    records: int


def is_loaded(operator: Operator) -> bool:
    """Return whether the chains are known: those that stand in segments are read only when somebody asks."""
    return len(operator.patches) == len(operator.segments)


def partitions(operator: Operator) -> int:
    """Partitions that have state; where the chains are not loaded, partitions that could have."""
    return len(operator.chains) if is_loaded(operator) else operator.partitions


def operator_size(operator: Operator) -> OperatorSize:
    artifacts = [artifact for chain in operator.chains.values() for artifact in chain]
    slices = {(a.path, a.offset, a.length): a for a in artifacts}.values()
    whole = {artifact.path: artifact.size for artifact in artifacts}
    return OperatorSize(
        partitions=len(operator.chains),
        chain=Spread.of(map(len, operator.chains.values())),
        snapshot_bytes=sum(a.length for a in slices if a.kind == SNAPSHOT),
        delta_bytes=sum(a.length for a in slices if a.kind != SNAPSHOT),
        records=sum(artifact.records for artifact in artifacts),
        objects=len(whole),
        object_bytes=sum(whole.values()),
    )


def partition_bytes(operator: Operator) -> dict[int, int]:
    """Stored bytes of each partition. Bytes that several share are divided by the records each has in them."""
    records: Counter[tuple[str, int]] = Counter()
    sharers: Counter[tuple[str, int]] = Counter()
    for artifact in _artifacts(operator):
        records[artifact.path, artifact.offset] += artifact.records
        sharers[artifact.path, artifact.offset] += 1

    def share(artifact: Artifact) -> float:
        place = artifact.path, artifact.offset
        if sharers[place] == 1 or not records[place]:
            return artifact.length / sharers[place]
        return artifact.length * artifact.records / records[place]

    return {partition: round(sum(map(share, chain))) for partition, chain in operator.chains.items()}


def biggest_partitions(manifest: Manifest, most: int = 10) -> tuple[PartitionSize, ...]:
    """Return those of all operators that store the most bytes, the largest first."""
    sizes = (
        (size, name, partition)
        for name, operator in manifest.operators.items()
        for partition, size in partition_bytes(operator).items()
    )
    found = []
    for size, name, partition in nlargest(most, sizes):
        chain = manifest.operators[name].chains[partition]
        found.append(PartitionSize(name, partition, size, len(chain), sum(artifact.records for artifact in chain)))
    return tuple(found)


def _artifacts(operator: Operator) -> Iterator[Artifact]:
    for chain in operator.chains.values():
        yield from chain


def object_sizes(manifest: Manifest) -> dict[str, int]:
    """Return every artifact's object and every segment that the checkpoint is made of, with its size in bytes."""
    sizes: dict[str, int] = {}
    for operator in manifest.operators.values():
        sizes.update((segment.path, segment.size) for segment in operator.segments)
        sizes.update((artifact.path, artifact.size) for artifact in _artifacts(operator))
    return sizes


def operators_of_objects(manifest: Manifest) -> dict[str, str]:
    """For every artifact's object the operator that it belongs to."""
    return {a.path: name for name, operator in manifest.operators.items() for a in _artifacts(operator)}


def bytes_by_attempt(sizes: dict[str, int]) -> dict[str, int]:
    """Return bytes of objects by the id, as text, of the attempt that wrote them."""
    written: defaultdict[str, int] = defaultdict(int)
    for path, size in sizes.items():
        written[str(object_paths.owner(path))] += size
    return written


def written_bytes(manifest: Manifest) -> tuple[int, int] | None:
    """Bytes of the snapshots and of the deltas that a checkpoint wrote itself; None where chains are not loaded."""
    if not all(map(is_loaded, manifest.operators.values())):
        return None
    own = f"/{manifest.id}."
    slices = {
        (a.path, a.offset, a.length): a.kind
        for operator in manifest.operators.values()
        for a in _artifacts(operator)
        if own in a.path
    }
    snapshots = sum(length for (_, _, length), kind in slices.items() if kind == SNAPSHOT)
    return snapshots, sum(length for _, _, length in slices) - snapshots


def checkpoint_bytes(manifest: Manifest) -> tuple[int, int] | None:
    """Bytes of all objects of a checkpoint, and of those it wrote itself; None where chains are not loaded."""
    if not all(map(is_loaded, manifest.operators.values())):
        return None
    sizes, own = object_sizes(manifest), f"/{manifest.id}."
    return sum(sizes.values()), sum(size for path, size in sizes.items() if own in path)
