"""The states of a session: what it restored, and whether it may save on top of that."""

from dataclasses import dataclass

from pyspark_checkpointer.checkpoint.latest import Head
from pyspark_checkpointer.checkpoint.migrated import Migrated
from pyspark_checkpointer.errors import FencedError
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Ref


@dataclass(frozen=True, slots=True)
class Base:
    """A version of `_latest` and the checkpoint that was committed in it: the next attempt goes on top of it.

    `migrated` is what the next commit starts from instead, where a migration is pending.
    """

    head: Head
    manifest: Manifest | None
    migrated: Migrated | None = None

    @property
    def parent(self) -> Ref | None:
        """The committed checkpoint; None before the first."""
        return self.head.committed


@dataclass(frozen=True, slots=True)
class ViewOnly:
    """A checkpoint that is not the committed one was restored: nothing can be saved on top of it."""

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class MustRestore:
    """What was restored is not the truth any more, or nobody knows: `why` says what happened and what to do."""

    why: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another writer took over. This is the end: a restore does not change it."""

    error: FencedError


Standing = Base | ViewOnly | MustRestore | Fenced | None
"""None where nothing was restored yet: the first attempt reads the pointer itself."""
