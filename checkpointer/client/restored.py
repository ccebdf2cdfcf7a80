"""Answer questions about a restored checkpoint without reading an artifact.

The synchronous and the asynchronous checkpointer share them.
"""

from copy import deepcopy
from datetime import datetime

from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.checkpoint.verification import Finding
from pyspark_checkpointer.display import count, cut, note, some
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Job, Json, Manifest
from pyspark_checkpointer.runtime.not_picklable import NotPicklable


class RestoredView(NotPicklable):
    """The facts of a restored checkpoint that need no artifact.

    Once `prepared` is committed, they are those of the state before it. A map that was read before cannot be saved once
    this process knows of the commit. If this checkpointer committed it, all but `prepared` and `skipped` raise
    `InvalidStateError`, too.
    """

    _instead = (
        "read here what is needed and send the values; or send the Checkpointer, which is its configuration only, and "
        "restore(id=…) there"
    )

    def __init__(self, reader: CheckpointReader) -> None:
        self.reader = reader
        """The layer below, for other packages of this library."""

    @property
    def id(self) -> CheckpointId | None:
        """The id of the checkpoint, or None.

        It is None if nothing is committed yet and only a prepared checkpoint was found.
        """
        return self.manifest.id if self.manifest else None

    @property
    def manifest(self) -> Manifest | None:
        """The manifest of the checkpoint; None if `id` is None.

        It has all that is known without reading an artifact.
        """
        return self.reader.manifest

    @property
    def epoch(self) -> int | None:
        """The epoch of the checkpoint, such as Spark's batch id, or None."""
        return self.manifest.epoch if self.manifest else None

    @property
    def created(self) -> datetime | None:
        """The time when the checkpoint was made, in UTC, by the writer's clock, or None."""
        return self.manifest.created if self.manifest else None

    @property
    def job(self) -> Job | None:
        """The streaming query that made the checkpoint, and its batch, or None."""
        return self.manifest.job if self.manifest else None

    @property
    def positions(self) -> dict[str, Json]:
        """The source positions of the checkpoint, JSON values by name. A copy."""
        # Copies, because the next attempt and other readers share the manifest.
        return deepcopy(dict(self.manifest.positions)) if self.manifest else {}

    @property
    def properties(self) -> dict[str, Json]:
        """The properties of the checkpoint, JSON values by name. A copy."""
        return deepcopy(dict(self.manifest.properties)) if self.manifest else {}

    @property
    def watermark(self) -> Json:
        """The watermark of the job, a JSON value, or None."""
        return deepcopy(self.manifest.watermark) if self.manifest else None

    @property
    def clock(self) -> datetime | None:
        """The job's clock at the checkpoint, in UTC, or None for a job that has none.

        Rows of tables with `expire=` are gone once this clock has passed their time.
        """
        clock = self.manifest.clock if self.manifest else None
        return None if clock is None else clock.at

    @property
    def skipped(self) -> tuple[Finding, ...]:
        """The damage that made `on_corruption="previous"` step back.

        Each finding says which checkpoints it hurts. Otherwise this is empty.
        """
        return self.reader.skipped

    @property
    def operators(self) -> list[str]:
        """The names of the operators that have state."""
        return sorted(self.manifest.operators) if self.manifest else []

    def __repr__(self) -> str:
        try:
            manifest = self.manifest
        except InvalidStateError as error:
            return f"{type(self).__name__}(out of date: {error})"
        if manifest is None:
            return f"{type(self).__name__}(nothing is committed{self._more})"
        return f"{type(self).__name__}({self.id}, epoch {self.epoch}, {some(self.operators) or 'no state'}{self._more})"

    @property
    def _more(self) -> str:
        """Return one line about the checkpoint for people."""
        said = f"; {self.reader.prepared.id} is prepared" if self.reader.prepared else ""
        damage = count(len(self.skipped), "finding")
        return said + (f"; newer ones were skipped: {damage}" if self.skipped else "")

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the operators, then important facts."""
        from pyspark_checkpointer.client.html import manifest_html  # only in notebooks

        try:
            shown = note("Nothing is committed.") if self.manifest is None else manifest_html(self.manifest)
        except InvalidStateError as error:
            return note(f"Out of date: {error}")
        return shown + (note(self._more.removeprefix("; ")) if self._more else "")


class OperatorView(NotPicklable):
    """One operator of a restored checkpoint."""

    _instead = RestoredView._instead

    def __init__(self, reader: CheckpointReader, name: str) -> None:
        self.reader = reader
        self._operator = reader.operator(name)
        self.name = name

    @property
    def partitions(self) -> list[int]:
        """The numbers of the partitions that have state, in order."""
        return sorted(self._operator.chains)

    def chain(self, partition: int) -> tuple[Artifact, ...]:
        """Return the artifacts that make up a partition: one snapshot, then deltas.

        This reads nothing. Artifacts that a migration transformed are in memory until the next commit, which gives them
        other ids.

        Args:
            partition: The number of the partition.

        Returns:
            The artifacts; empty if the partition has no state.

        Examples:
            >>> [artifact.kind for artifact in operator.chain(0)]
            ['snapshot']
        """
        return self._operator.chains.get(partition, ())

    def __repr__(self) -> str:
        held = count(len(self._operator.chains), "partition")
        return f"{type(self).__name__}({cut(repr(self.name))}, {self._operator.codec}, {held} with state)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the first partitions and what they are made of."""
        from pyspark_checkpointer.client.html import operator_html  # only in notebooks

        return operator_html(self.name, self._operator)
