"""Choose a manifest that a root could be repaired to.

`repair_candidates.py` finds all of them in a store.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from pyspark_checkpointer import display
from pyspark_checkpointer.checkpoint.resolve import Known, resolve_candidate
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.display import table
from pyspark_checkpointer.manifests.model import CheckpointId, Job


@dataclass(frozen=True, slots=True)
class Candidate:
    """A manifest that a root could be repaired to, with the evidence for it."""

    id: CheckpointId
    """The id of the checkpoint."""
    problems: tuple[str, ...]
    """Its problems: objects that are damaged, missing or of a wrong size.

    Only `repair` compares digests.
    """
    epoch: int | None = None
    """Its epoch, such as Spark's batch id, or None."""
    created: datetime | None = None
    """When it was made, in UTC, by the writer's clock, or None."""
    job: Job | None = None
    """The streaming query that made it, and its batch, or None."""
    bytes: int = 0
    """Stored bytes of all objects it names."""
    committed: bool = False
    """True if `_latest`, or what is left of it, names it as the committed one.

    That is the strongest evidence.
    """
    children: int = 0
    """Manifests that name it as their parent, by id and digest.

    It was committed when they were begun.
    """
    catalogs: int = 0
    """Catalogs that name it: it was live when they were written."""
    savepoints: tuple[str, ...] = ()
    """The names it has in those catalogs."""
    batch_done: bool | None = None
    """True if Spark has finished its batch.

    None where nobody looked at Spark's checkpoint.
    """
    copied: bool = False
    """True if a repair wrote it, as the beginning of a new history."""

    @property
    def proven(self) -> bool:
        """Return whether anything shows that it was committed.

        Without proof it may be an attempt that never was.
        """
        if self.copied:
            # The catalog may be of the same repair, and the batch is that of the checkpoint which was copied.
            return self.committed or bool(self.children)
        return self.committed or bool(self.children or self.catalogs or self.batch_done)

    @property
    def unfinished(self) -> bool:
        """Return whether it may be a copy by a repair that never ended.

        Such a copy may have an old state, though its sequence is high.
        """
        return self.copied and not self.proven

    @property
    def evidence(self) -> list[str]:
        """Return the evidence for and against a commit, in words."""
        said = ["`_latest` names it as committed"] * self.committed
        said += [f"parent of {self.children}"] * bool(self.children)
        said += [f"in {self.catalogs} catalogs"] * bool(self.catalogs)
        said += [f"savepoint {name!r}" for name in self.savepoints]
        if self.batch_done is not None:
            said.append(f"its batch was {'' if self.batch_done else 'not '}finished, says Spark")
        said += ["a copy by a repair that may not have ended"] * self.unfinished
        return said

    def __repr__(self) -> str:
        proof = display.some(self.evidence) or "no evidence that it was committed"
        problems = (
            f"; {display.count(len(self.problems), 'problem')}: {display.some(self.problems, 2)}"
            if self.problems
            else "; whole"
        )
        return f"Candidate({self.id}, epoch {self.epoch}, {display.size(self.bytes)}; {proof}{problems})"

    def _repr_html_(self) -> str:
        return Candidates([self])._repr_html_()

    def __str__(self) -> str:
        said = [f"epoch {self.epoch}", f"{self.bytes} bytes", *self.evidence, *self.problems]
        return f"{self.id}: {', '.join(said)}"


def choose_candidate(found: Sequence[Candidate], url: str, wanted: CheckpointSelector) -> CheckpointId:
    """Return the candidate that the argument names.

    "latest" is the candidate that the remains of `_latest` name.
    """
    known = [Known(one.id, one.savepoints, one.epoch, one.committed, one.unfinished) for one in found]
    return resolve_candidate(known, url, wanted)


class Candidates(list[Candidate]):
    """A list of candidates that a notebook shows as a table, the best first."""

    def _repr_html_(self) -> str:
        rows = [
            (
                c.id,
                c.epoch,
                display.moment(c.created),
                display.size(c.bytes),
                display.some(c.evidence) or "none",
                display.some(c.problems, 3) or "none",
            )
            for c in self
        ]
        return table("Candidates for a repair", ("id", "epoch", "created", "size", "evidence", "problems"), rows)
