"""Hold the values of a report.

Bytes are stored bytes, durations are microseconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pyspark_checkpointer.admin.candidate import Candidate
from pyspark_checkpointer.admin.checkpoint_sizes import OperatorSize, PartitionSize, Spread
from pyspark_checkpointer.admin.retention.reachability import Action
from pyspark_checkpointer.checkpoint.listing import CheckpointState
from pyspark_checkpointer.checkpoint.verification import Verification
from pyspark_checkpointer.display import count
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Cost, Job, Json, Retired, Writer


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """One live checkpoint, or the prepared one.

    A value is None if it could not be read, or was too much to read.
    """

    id: CheckpointId
    epoch: int | None
    created: datetime | None
    state: CheckpointState
    savepoints: tuple[str, ...]
    bytes: int | None
    """Bytes of all objects that it is made of, without its manifest."""
    own_bytes: int | None
    """Bytes of those objects that it wrote itself."""
    snapshot_bytes: int | None
    """Bytes of snapshots that it wrote itself: the full state of a partition."""
    delta_bytes: int | None
    cost: Cost | None
    damaged: bool
    """True if a finding hurts it."""


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """One operator of the committed checkpoint."""

    name: str
    codec: str
    partitioner: str
    declared_partitions: int
    schema: Json
    size: OperatorSize
    lengths: tuple[tuple[int, int], ...]
    """Pairs: a length of chains, and the number of partitions with such a chain."""
    partition_bytes: Spread | None

    @property
    def skew(self) -> float | None:
        """The size of the largest partition, divided by the median."""
        spread = self.partition_bytes
        return spread.maximum / spread.median if spread is not None and spread.median else None


@dataclass(frozen=True, slots=True)
class CleanupRow:
    """The number and bytes of objects that cleanup treats alike."""

    action: Action
    reason: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Cleanup:
    """The actions of a cleanup. Without rows `note` says why."""

    rows: tuple[CleanupRow, ...]
    retired: tuple[CheckpointId, ...]
    note: str | None

    def bytes(self, action: Action) -> int:
        """Return the bytes of all objects with this action."""
        return sum(row.bytes for row in self.rows if row.action == action)


@dataclass(frozen=True, slots=True)
class SavepointRow:
    """One savepoint."""

    name: str
    id: CheckpointId
    created: datetime


@dataclass(frozen=True, slots=True)
class PointerSummary:
    """The content of `_latest`, apart from the committed checkpoint."""

    writer: Writer
    committed: CheckpointId | None
    prepared: CheckpointId | None
    boundary: int
    retired: tuple[Retired, ...]


@dataclass(frozen=True, slots=True)
class Committed:
    """The description of the committed checkpoint, from its manifest."""

    job: Job | None
    watermark: Json
    positions: Mapping[str, Json]
    properties: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Report:
    """A store at one moment, as far as it could be read.

    The findings name everything that could not be read.
    """

    root: str
    made: datetime
    pointer: PointerSummary | None
    """None if `_latest` is missing or cannot be read."""
    committed: Committed | None
    checkpoints: tuple[CheckpointRow, ...]
    """Ordered by id, the oldest first."""
    operators: tuple[OperatorRow, ...]
    unread_operators: tuple[str, ...]
    """Operators of the committed checkpoint whose segments are damaged."""
    biggest: tuple[PartitionSize, ...]
    savepoints: tuple[SavepointRow, ...]
    cleanup: Cleanup
    verification: Verification
    share: float
    """The chance that each object had of being read and compared."""
    chains_left_out: int
    """The number of checkpoints whose chains were not read, only the manifest.

    There are very many partitions.
    """
    candidates: tuple[Candidate, ...]
    """The checkpoints that the root could be repaired to.

    They are listed if `_latest` or the committed manifest cannot be read.
    """

    @property
    def lacks_catalog(self) -> bool:
        """True if the catalog, which names the savepoints, cannot be read."""
        return any(finding.path.startswith(object_paths.CATALOGS) for finding in self.verification.findings)

    @property
    def newest(self) -> CheckpointRow | None:
        """The newest committed checkpoint."""
        return next((row for row in reversed(self.checkpoints) if row.state != "prepared"), None)

    @property
    def intact(self) -> CheckpointRow | None:
        """The newest committed checkpoint that no finding hurts."""
        return next((row for row in reversed(self.checkpoints) if row.state != "prepared" and not row.damaged), None)

    @property
    def verdict(self) -> str:
        """The first thing to know, in a few words."""
        findings = self.verification.findings
        if not findings:
            return "Nothing is stored here" if self.pointer is None else "Nothing is wrong"
        missing = sum(finding.missing for finding in findings)
        parts = [
            f"{number} {what}"
            for number, what in ((missing, "missing"), (len(findings) - missing, "damaged"))
            if number
        ]
        said = f"{count(len(findings), 'finding')}: {' and '.join(parts)}"
        if self.pointer is None:
            return f"{said}; nothing can be restored"
        return f"{said}; the newest checkpoint is hurt" if self.newest and self.newest.damaged else said

    @property
    def is_empty(self) -> bool:
        """Return whether the root has nothing at all that belongs to a store."""
        return self.pointer is None and not self.verification.findings
