"""What both faces show of a restored checkpoint without reading any artifact."""

from copy import deepcopy
from datetime import datetime

from checkpointer.restore import Snapshot
from checkpointer.retention.verify import Finding
from manifests.model import Artifact, CheckpointId, Job, Json, Manifest


class RestoredView:
    """What a restored checkpoint says about itself, without reading any artifact."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @property
    def id(self) -> CheckpointId | None:
        """None where nothing is committed yet and only a prepared checkpoint was found."""
        return self._snapshot.manifest.id if self._snapshot.manifest else None

    @property
    def manifest(self) -> Manifest | None:
        return self._snapshot.manifest

    @property
    def epoch(self) -> int | None:
        return self._snapshot.manifest.epoch if self._snapshot.manifest else None

    @property
    def created(self) -> datetime | None:
        return self._snapshot.manifest.created if self._snapshot.manifest else None

    @property
    def job(self) -> Job | None:
        return self._snapshot.manifest.job if self._snapshot.manifest else None

    @property
    def positions(self) -> dict[str, Json]:
        return deepcopy(dict(self._snapshot.manifest.positions)) if self._snapshot.manifest else {}

    @property
    def properties(self) -> dict[str, Json]:
        return deepcopy(dict(self._snapshot.manifest.properties)) if self._snapshot.manifest else {}

    @property
    def watermark(self) -> Json:
        return deepcopy(self._snapshot.manifest.watermark) if self._snapshot.manifest else None

    @property
    def skipped(self) -> tuple[Finding, ...]:
        """Why `on_corruption="previous"` gave an older checkpoint: the damage found, and whom it hurts."""
        return self._snapshot.skipped

    @property
    def operators(self) -> list[str]:
        """The names of the operators that have state."""
        return sorted(self._snapshot.manifest.operators) if self._snapshot.manifest else []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id}, epoch={self.epoch}, operators={self.operators})"


class OperatorView:
    """One operator of a restored checkpoint."""

    def __init__(self, snapshot: Snapshot, name: str) -> None:
        self._snapshot = snapshot
        self._operator = snapshot.operator(name)
        self.name = name

    @property
    def partitions(self) -> list[int]:
        """The partitions that have state."""
        return sorted(self._operator.chains)

    def chain(self, partition: int) -> tuple[Artifact, ...]:
        """The artifacts that make up a partition: one snapshot, then deltas.

        What a migration transformed is in memory until it is committed, under other ids than it has here.
        """
        return self._operator.chains.get(partition, ())
