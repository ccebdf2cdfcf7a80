"""Classify objects: whether cleanup keeps or deletes each, and why.

The path of an object alone decides.
"""

from dataclasses import dataclass
from typing import NamedTuple

from pyspark_checkpointer.admin.retention.reachability import DELETE, KEEP, Action, ReferenceIndex
from pyspark_checkpointer.manifests import object_paths


class PlanRow(NamedTuple):
    """One object, and what cleanup does with it."""

    path: str
    """The path of the object, below the root."""
    size: int
    """Its bytes; 0 for a leftover, since stores do not tell."""
    action: Action
    """"keep", "delete", or "later": once the grace period for readers is over."""
    reason: str
    """Why that is done."""
    referenced_by: str | None = None
    """The strongest of the live checkpoints that reference it; None if none does."""
    reference_count: int = 0
    """The number of live checkpoints that reference it."""
    leftover: str | None = None
    """The store's own name of what an interrupted write left behind; else None."""


@dataclass(frozen=True, slots=True)
class GarbageClassifier:
    """A function of an object's path that returns what a cleanup does with the object.

    It needs only the path, so executors can classify parts of a store by themselves.
    """

    sequence: int
    """The committed sequence of the version that `index` was made from.

    Newer objects may be about to become live.
    """
    index: ReferenceIndex

    def __call__(self, path: str, size: int) -> PlanRow:
        # Asked first: whatever a live checkpoint names stays, whatever its sequence is.
        found = self.index.find(path)
        if found is not None:
            referrer, references = found
            by = None if referrer.id is None else str(referrer.id)
            return PlanRow(path, size, referrer.action, referrer.reason, by, references)
        owner = object_paths.owner(path)
        # Somebody else's file may lie in the root. A name that is not of the format is never ours to delete.
        if owner is None:
            return PlanRow(path, size, KEEP, "not a file of the format: never touched")
        # Garbage at or below the committed sequence stays garbage, so this plan may be applied at any later time. A
        # newer object may belong to an attempt that commits next (SPEC.md, the one rule).
        if owner.sequence > self.sequence:
            return PlanRow(path, size, KEEP, "newer than the committed checkpoint: may belong to a running commit")
        return PlanRow(path, size, DELETE, "no live checkpoint names it")

    def is_above(self, path: str) -> bool:
        """Return whether a path is a manifest above all attempts on this `_latest`."""
        # Most paths are told apart by their first characters.
        if not path.startswith(object_paths.MANIFESTS):
            return False
        owner = object_paths.owner(path)
        return owner is not None and owner.sequence > self.sequence + 1

    def leftover(self, path: str, token: str) -> PlanRow:
        """Return what a cleanup does with an interrupted write of `path`.

        That depends on the sequence that the object would have had. An object that is only ever swapped has no
        sequence, and needs none: the store removes such a file only where no swap of it can be under way.
        """
        owner = object_paths.owner(path)
        alone = (object_paths.LATEST, object_paths.KEYS, object_paths.SIGNERS, object_paths.FOLLOWERS)
        swapped = path in alone or object_paths.parse_position_path(path) is not None
        if not swapped and (owner is None or owner.sequence > self.sequence):
            return PlanRow(path, 0, KEEP, "a write that may still be running", leftover=token)
        return PlanRow(path, 0, DELETE, "left behind by an interrupted write", leftover=token)
