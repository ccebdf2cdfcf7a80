"""The states of a session.

They say what it restored, and whether it may save on top of that.
"""

from dataclasses import dataclass

from pyspark_checkpointer.checkpoint.latest import Head
from pyspark_checkpointer.checkpoint.migrated import Migrated
from pyspark_checkpointer.errors import FencedError
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Ref


@dataclass(frozen=True, slots=True)
class Base:
    """A version of `_latest`, and the checkpoint that was committed in it.

    The next attempt goes on top of it. If a migration is pending, the next commit starts from `migrated` instead.
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
    """A checkpoint was restored that is not the committed one.

    Nothing can be saved on top of it.
    """

    checkpoint: CheckpointId


@dataclass(frozen=True, slots=True)
class MustRestore:
    """The restored checkpoint may be out of date.

    `why` says what happened and what to do.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another writer took over. This is final: a restore does not change it."""

    error: FencedError


Standing = Base | ViewOnly | MustRestore | Fenced | None
"""The standing of a session; None if nothing was restored yet.

Then the first attempt reads the pointer itself.
"""
