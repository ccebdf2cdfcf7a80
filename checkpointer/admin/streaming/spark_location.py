"""Find Spark's checkpoint of a streaming query.

Also find the batch that a checkpoint of its state ended with.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.display import cut
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job, Manifest
from pyspark_checkpointer.storage import Fencing, are_together, open_files, options_near
from pyspark_checkpointer.storage.base import Store


@dataclass(frozen=True, slots=True)
class SparkCheckpointLocation:
    """The location of Spark's checkpoint; by default the last one of the query."""

    location: str | os.PathLike[str] | None
    storage_options: Mapping[str, Any] | None = field(repr=False)
    root_options: Mapping[str, Any] | None = field(repr=False)
    """The root's options.

    They are taken where none were given, as `options_near` says.
    """
    fencing: Fencing
    """The same as that of the root."""
    is_trusted: bool
    """True if the signatures of the root are checked: then whoever recorded a location may write the state."""

    def open(self, root: str, job: Job) -> Store:
        """Open Spark's checkpoint.

        Raises `IllegalArgumentError` where neither caller nor `job` says where it is, and for a place that only `job`
        names and that is not where the root is.
        """
        # The caller comes first: the checkpoint may have been moved since it was recorded.
        location = self.location or self._recorded(root, job)
        options = self.storage_options or options_near(location, root, self.root_options)
        return open_files(location, options, self.fencing)

    def _recorded(self, root: str, job: Job) -> str:
        """Return the location that a checkpoint of the root records."""
        location = job.spark.location if job.spark else None
        if not location:
            raise IllegalArgumentError(
                f"{root}: its checkpoint does not record the checkpointLocation, as after an export: give "
                "spark_checkpoint, or --spark-checkpoint on the command line, of a query that is yours to change"
            )
        # Whoever writes to a root may record any place. To open one sends it credentials, those of the environment too.
        if not self.is_trusted and not are_together(location, root, self.root_options):
            raise IllegalArgumentError(
                f"{root}: its checkpoint records the checkpointLocation {cut(repr(location), 200)}, which may not be "
                "where the root is, so nothing was sent there: give spark_checkpoint, or --spark-checkpoint on the "
                "command line, if that place is yours"
            )
        return location


def job_of(session: Session, manifest: Manifest) -> Job:
    """Return the batch that a checkpoint ended with.

    Raises `InvalidStateError` where no streaming query wrote it.
    """
    if manifest.job is None:
        raise InvalidStateError(
            f"{session.store.url}: {manifest.id} was not written by a streaming query: use `rollback` to go back"
        )
    return manifest.job
