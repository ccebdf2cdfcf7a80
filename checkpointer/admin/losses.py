"""Describe what the repair of a damaged checkpoint keeps and loses."""

from dataclasses import dataclass

from pyspark_checkpointer.display import count
from pyspark_checkpointer.manifests.model import CheckpointId

MAX_NAMED_LOSSES = 3
"""Losses that an error names."""


@dataclass(frozen=True, slots=True)
class OlderState:
    """An older state of a damaged partition, or operator, that is whole."""

    id: CheckpointId | None
    """The newest checkpoint that had this state.

    None where no manifest is left that says which one it was.
    """
    epoch: int | None
    records: int
    """Records and changes in it."""

    def __str__(self) -> str:
        if self.id is None:
            return f"of a batch that is not known, before the others, with {count(self.records, 'record')}"
        return f"of {self.id}, epoch {self.epoch}, with {count(self.records, 'record')}"


@dataclass(frozen=True, slots=True)
class Loss:
    """A damaged partition, or an operator whose list of partitions cannot be read."""

    operator: str
    partition: int | None
    """None for all partitions of the operator."""
    problem: str
    records: int | None
    """Records and changes that its chain held when it was whole.

    None where that cannot be read.
    """
    older: OlderState | None
    """The state that it can be taken back to."""

    def __str__(self) -> str:
        back = "" if self.older is None else f"; there is an older state of it, {self.older}"
        return f"{self._what}: {self.problem}{back}"

    def outcome(self, *, older_partitions: bool) -> str:
        """Return the outcome for the partition after the loss was accepted, in words."""
        if older_partitions and self.older is not None:
            return f"{self._what} went back to a state {self.older}"
        return f"{self._what} was left out"

    @property
    def _what(self) -> str:
        """Return the name of the damaged part, in words."""
        where = "all partitions" if self.partition is None else f"partition {self.partition}"
        held = "" if self.records is None else f" with {count(self.records, 'record')}"
        return f"operator {self.operator!r}, {where}{held}"


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """The parts of a checkpoint that `repair` would keep, and the missing ones.

    True where nothing would be missing.
    """

    id: CheckpointId
    """The candidate."""
    epoch: int | None
    """Its epoch, such as Spark's batch id, or None."""
    kept: int
    """Partitions that are whole."""
    losses: tuple[Loss, ...]
    """Partitions that are damaged, each with the older state that it can be taken back to."""
    savepoints: tuple[str, ...] = ()
    """Savepoints that are damaged and would be lost, since the catalog is damaged too."""
    unproven: tuple[tuple[str, str], ...] = ()
    """Savepoints of a signed root that would get other names: the old name and the new one.

    Nobody signed which checkpoint the old name was of. Look at the checkpoint before you give it this name again.
    """

    def __bool__(self) -> bool:
        return not (self.losses or self.savepoints)

    def __str__(self) -> str:
        said = [*map(str, self.losses), *(f"savepoint {name!r}: is damaged" for name in self.savepoints)]
        head = f"{self.id}, epoch {self.epoch}: {count(self.kept, 'partition')} whole"
        return "\n".join([f"{head}, {len(said) or 'nothing'} missing", *said, *self.renames])

    @property
    def renames(self) -> list[str]:
        """The savepoints that get other names, in words."""
        return [
            f"savepoint {old!r} gets the name {new!r}: nobody signed which checkpoint it is of"
            for old, new in self.unproven
        ]

    def outcome(self, *, older_partitions: bool) -> list[str]:
        """Return what is missing in the commit that this plan led to.

        Args:
            older_partitions: What `repair` was given.

        Returns:
            A few words for each loss.

        Examples:
            >>> from pathlib import Path
            >>> from pyspark_checkpointer import Checkpointer
            >>> ck = Checkpointer("state/visits")
            >>> with ck.begin(epoch=1) as cp:
            ...     cp.snapshot("totals", 0, b"ann=1")
            >>> Path("state/visits/_latest").unlink()  # an accident
            >>> plan = ck.repair_plan("epoch=1")
            >>> plan.outcome(older_partitions=False)
            []
        """
        told = [loss.outcome(older_partitions=older_partitions) for loss in self.losses]
        return [*told, *(f"savepoint {name!r} is gone" for name in self.savepoints)]

    def summary(self) -> str:
        """Return in one sentence what would be missing, with the first losses by name.

        Examples:
            >>> from pathlib import Path
            >>> from pyspark_checkpointer import Checkpointer
            >>> ck = Checkpointer("state/visits")
            >>> with ck.begin(epoch=1) as cp:
            ...     cp.snapshot("totals", 0, b"ann=1")
            >>> Path("state/visits/_latest").unlink()  # an accident
            >>> ck.repair_plan("epoch=1").summary()
            ''
        """
        said = [*map(str, self.losses), *(f"savepoint {name!r} is damaged" for name in self.savepoints)]
        more = f"; and {len(said) - MAX_NAMED_LOSSES} more" if len(said) > MAX_NAMED_LOSSES else ""
        return "; ".join(said[:MAX_NAMED_LOSSES]) + more
