"""Find Spark's checkpoint of a streaming query.

Also find the batch that a checkpoint of its state ended with.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job, Manifest
from pyspark_checkpointer.storage import Fencing, open_files, options_near
from pyspark_checkpointer.storage.base import Store


@dataclass(frozen=True, slots=True)
class SparkCheckpointLocation:
    """The location of Spark's checkpoint; by default the last one of the query."""

    location: str | os.PathLike[str] | None
    storage_options: Mapping[str, Any] | None = field(repr=False)
    root_options: Mapping[str, Any] | None = field(repr=False)
    """The root's options.

    They are taken where none were given and Spark's checkpoint is on a store of the same kind.
    """
    fencing: Fencing
    """The same as that of the root."""

    def open(self, root: str, job: Job) -> Store:
        """Open Spark's checkpoint.

        Raises `IllegalArgumentError` where neither caller nor `job` says where it is.
        """
        # The caller comes first: the checkpoint may have been moved since it was recorded.
        location = self.location or (job.spark.location if job.spark else None)
        if not location:
            raise IllegalArgumentError(
                f"{root}: its checkpoint does not record the checkpointLocation, as after an export: give "
                "spark_checkpoint, or --spark-checkpoint on the command line, of a query that is yours to change"
            )
        options = self.storage_options or options_near(location, root, self.root_options)
        return open_files(location, options, self.fencing)


def job_of(session: Session, manifest: Manifest) -> Job:
    """Return the batch that a checkpoint ended with.

    Raises `InvalidStateError` where no streaming query wrote it.
    """
    if manifest.job is None:
        raise InvalidStateError(
            f"{session.store.url}: {manifest.id} was not written by a streaming query: use `rollback` to go back"
        )
    return manifest.job
