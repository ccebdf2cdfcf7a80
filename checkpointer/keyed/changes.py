"""A keyed state as it was at one moment: what of it has to be written, and what became of that."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_checkpointer.manifests.model import SNAPSHOT, Chain, Kind


@dataclass(slots=True, eq=False)
class PartitionChange:
    """What one partition writes: a delta above the first `keep` artifacts of its chain, or a snapshot."""

    partition: int
    kind: Kind
    keep: int
    records: dict[Any, Any]
    size: int
    """About the bytes of `records`: as much is under way until they are written."""
    dirty: dict[Any, bytes | None]
    """What changed since the last save, whether or not `records` holds more."""
    unshare: "Callable[[PartitionChange], None]"
    whole: bool = False
    """Whether no delta can say what changed."""

    def release(self) -> None:
        """The records are encoded: the state may change them in place again."""
        if self.kind == SNAPSHOT:
            self.unshare(self)
            self.records = {}


@dataclass(slots=True, eq=False)
class ChangeSet:
    """A state as it was at one moment, as far as it has to be written; later changes do not reach it."""

    partitions: int
    changes: list[PartitionChange]
    outcome: Mapping[int, Chain] | None = field(default=None)
    """The chains it was committed in; None until then, and ever after if it was not."""

    def settle(self, chains: Mapping[int, Chain] | None) -> None:
        """What became of it: the chains it was committed in, or None."""
        self.outcome = chains
        if chains is not None:
            for change in self.changes:
                change.dirty = {}
