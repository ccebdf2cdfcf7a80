"""Say how a rewind is to be done, and what it changed."""

from dataclasses import dataclass

from pyspark_checkpointer.display import count, cut, facts
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime.host import Progress


@dataclass(frozen=True, slots=True)
class RewindOptions:
    """The options of a rewind, apart from its target."""

    stopped: bool = False
    """True if the caller says that the query does not run.

    A query that is seen running is still refused.
    """
    dry_run: bool = False
    verify: bool = True
    """True if a dry run reads the target's objects too. A real rewind always does."""
    progress: Progress | None = None
    """Told bytes while the target is read."""


@dataclass(frozen=True, slots=True)
class Rewind:
    """The changes of a rewind, made or planned. Paths are those in Spark's checkpoint."""

    left: CheckpointId
    """The checkpoint that was committed before."""
    left_batch: int
    """Its batch."""
    to: CheckpointId
    """The checkpoint whose content is the state now."""
    batch: int
    """Its batch: Spark goes on with the next one."""
    query_id: str
    """The id of the streaming query."""
    spark_checkpoint: str
    """The URL or path of Spark's checkpoint, without secrets."""
    cut: tuple[str, ...]
    """Files that were taken out of Spark's progress, in that order."""
    written: tuple[str, ...]
    """Files that were added to Spark's progress.

    An earlier rewind cut them, or they were made from what the checkpoint recorded.
    """
    changes: bool
    """True if anything was to be changed: False where both sides were there already."""
    savepoint: str | None = None
    """The name of the savepoint that keeps the state before the rewind.

    None where that is the same state, or nothing was done.
    """
    kept_in: str | None = None
    """The folder of Spark's checkpoint that has the files that were cut.

    None where nothing was to be done.
    """
    new: CheckpointId | None = None
    """The new commit; None where nothing was done."""
    refused: str | None = None
    """For a dry run: why the rewind itself would be refused now; else None.

    For example, the query runs.
    """

    def __repr__(self) -> str:
        return f"Rewind({', '.join(f'{name} {value}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return facts("Rewind", self._facts())

    def _facts(self) -> dict[str, object]:
        """Return the facts that a person wants to see, by name."""
        if not self.changes:
            return {"query": self.query_id, "at batch": self.batch, "changes": "nothing"}
        found: dict[str, object] = {
            "query": self.query_id,
            "batch": f"{self.left_batch} → {self.batch}",
            "state": f"{self.left} → {self.to}",
            "in": cut(self.spark_checkpoint, 200),
            "cut": count(len(self.cut), "file"),
            "written": count(len(self.written), "file"),
            "committed as": self.new or "nothing yet",
        }
        if self.refused is not None:
            found["refused"] = cut(self.refused, 200)
        return found | ({"savepoint": repr(self.savepoint)} if self.savepoint else {})
