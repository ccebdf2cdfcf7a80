"""Hold the changes and chains that a save takes from a keyed state.

A save takes the changes of each partition, and keeps the chains in which they were committed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_checkpointer.manifests.model import SNAPSHOT, Chain, Json, Kind


@dataclass(slots=True, eq=False)
class PartitionChange:
    """The artifact that one partition writes: a delta or a snapshot.

    A delta goes above the first `keep` artifacts of its chain.
    """

    partition: int
    kind: Kind
    keep: int
    records: dict[Any, Any]
    """The packed values to write by key.

    A snapshot shares this dict with the partition until `release`.
    """
    size: int
    """Bytes of `records`, estimated: the memory that is in use until they are written."""
    dirty: dict[Any, bytes | None]
    """The changes since the last save, whether or not `records` holds more.

    They are for the next save if this one is not committed.
    """
    readers: set[object]
    """Those that read the partition's dict; this one leaves them once it reads it no longer."""
    needs_snapshot: bool = False
    """True if no delta can say what changed."""
    repeats: bool = False
    """True if the next save writes a snapshot, too, if this one is not committed. Then it needs no `dirty`."""

    def release(self) -> None:
        """Give up the records once they are encoded.

        The partition may change its dict in place again.
        """
        if self.kind == SNAPSHOT:
            self.readers.discard(self)
            self.records = {}
        if self.repeats:
            # To free millions of changes takes long. Here another thread compresses or writes meanwhile.
            self.needs_snapshot, self.dirty = True, {}


@dataclass(slots=True, eq=False)
class ChangeSet:
    """The changes of a state at one moment that have to be written.

    Later changes do not reach them.
    """

    partitions: int
    changes: list[PartitionChange]
    below: Mapping[int, Chain] | None = None
    """The chains of the operator on which the changes go; None where there is no operator yet."""
    schema: Json = None
    """The schema of the operator: the rule by which its entries expire."""
    outcome: Mapping[int, Chain] | None = field(default=None)
    """The chains that the changes were committed in.

    None until then, and for good if the commit failed.
    """

    def record_outcome(self, chains: Mapping[int, Chain] | None) -> None:
        """Record the outcome of the commit.

        It is the chains that the changes were committed in, or None if they were not committed.
        """
        # The outcome comes first. A state that asks for it between the two steps would else find the changes gone and
        # no commit, and would save them no more.
        self.outcome = chains
        if chains is not None:
            for change in self.changes:
                change.dirty = {}
