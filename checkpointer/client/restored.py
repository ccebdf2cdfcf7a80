"""The parts of a restored checkpoint that both faces show without reading any artifact."""

from copy import deepcopy
from datetime import datetime

from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.checkpoint.verify import Finding
from pyspark_checkpointer.display import count, cut, note, some
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Job, Json, Manifest
from pyspark_checkpointer.runtime.not_picklable import NotPicklable


class RestoredView(NotPicklable):
    """The facts of a restored checkpoint that are known without reading any artifact."""

    _instead = (
        "read here what is needed and send the values; or send the Checkpointer, which is its configuration only, and "
        "restore(id=…) there"
    )

    def __init__(self, reader: CheckpointReader) -> None:
        self.reader = reader
        """The layer below, for other packages of this library."""

    @property
    def id(self) -> CheckpointId | None:
        """None where nothing is committed yet and only a prepared checkpoint was found."""
        return self.reader.manifest.id if self.reader.manifest else None

    @property
    def manifest(self) -> Manifest | None:
        return self.reader.manifest

    @property
    def epoch(self) -> int | None:
        return self.reader.manifest.epoch if self.reader.manifest else None

    @property
    def created(self) -> datetime | None:
        return self.reader.manifest.created if self.reader.manifest else None

    @property
    def job(self) -> Job | None:
        return self.reader.manifest.job if self.reader.manifest else None

    @property
    def positions(self) -> dict[str, Json]:
        # Copies, because the next attempt and other readers share the manifest.
        return deepcopy(dict(self.reader.manifest.positions)) if self.reader.manifest else {}

    @property
    def properties(self) -> dict[str, Json]:
        return deepcopy(dict(self.reader.manifest.properties)) if self.reader.manifest else {}

    @property
    def watermark(self) -> Json:
        return deepcopy(self.reader.manifest.watermark) if self.reader.manifest else None

    @property
    def skipped(self) -> tuple[Finding, ...]:
        """Why `on_corruption="previous"` gave an older checkpoint: the damage found, and whom it hurts."""
        return self.reader.skipped

    @property
    def operators(self) -> list[str]:
        """The names of the operators that have state."""
        return sorted(self.reader.manifest.operators) if self.reader.manifest else []

    def __repr__(self) -> str:
        if self.manifest is None:
            return f"{type(self).__name__}(nothing is committed{self._more})"
        return f"{type(self).__name__}({self.id}, epoch {self.epoch}, {some(self.operators) or 'no state'}{self._more})"

    @property
    def _more(self) -> str:
        """Return one line about the checkpoint for people."""
        said = f"; {self.reader.prepared.id} is prepared" if self.reader.prepared else ""
        damage = count(len(self.skipped), "finding")
        return said + (f"; newer ones were skipped: {damage}" if self.skipped else "")

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the operators, and what is to be known first."""
        from pyspark_checkpointer.client.html import manifest_html  # only in notebooks

        shown = note("Nothing is committed.") if self.manifest is None else manifest_html(self.manifest)
        return shown + (note(self._more.removeprefix("; ")) if self._more else "")


class OperatorView(NotPicklable):
    """One operator of a restored checkpoint."""

    _instead = RestoredView._instead

    def __init__(self, snapshot: CheckpointReader, name: str) -> None:
        self.reader = snapshot
        self._operator = snapshot.operator(name)
        self.name = name

    @property
    def partitions(self) -> list[int]:
        """The partitions that have state."""
        return sorted(self._operator.chains)

    def chain(self, partition: int) -> tuple[Artifact, ...]:
        """Return the artifacts that make up a partition: one snapshot, then deltas.

        What a migration transformed is in memory until it is committed, under other ids than it has here.
        """
        return self._operator.chains.get(partition, ())

    def __repr__(self) -> str:
        held = count(len(self._operator.chains), "partition")
        return f"{type(self).__name__}({cut(repr(self.name))}, {self._operator.codec}, {held} with state)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the first partitions and what they are made of."""
        from pyspark_checkpointer.client.html import operator_html  # only in notebooks

        return operator_html(self.name, self._operator)
