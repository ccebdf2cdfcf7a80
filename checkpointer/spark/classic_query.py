"""Find the query and run of a batch of foreachBatch, in classic PySpark."""

from dataclasses import dataclass

from pyspark.sql import DataFrame

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.spark.batch import find_query, identify, refuse_temporary
from pyspark_checkpointer.spark.batch_offsets import QueryOffsets
from pyspark_checkpointer.storage.url import parse


@dataclass(frozen=True, slots=True)
class ClassicQuery:
    """The streaming query that calls the sink, in the process of Spark's driver.

    `location` is the checkpointLocation that the job gave for it, if any.
    """

    location: str | None

    def identify(self, batch: DataFrame, batch_id: int) -> Job:
        """Return the query, run and batch that the calling thread works for."""
        return identify(batch, batch_id)

    def begin_run(self, batch: DataFrame, job: Job) -> QueryOffsets:
        """Return the offsets of a run.

        Raises `InvalidStateError` for a query that could not be continued, or that has another checkpointLocation than
        the job gave.
        """
        refuse_temporary(batch, job.query_id)
        query = find_query(batch.sparkSession, job.query_id)
        if self.location is not None and query is not None:
            self._check(str(query.resolvedCheckpointRoot()), job)
        return QueryOffsets(batch.sparkSession, job.query_id)

    def _check(self, url: str, job: Job) -> None:
        try:
            found = parse(url).url
        except IllegalArgumentError:  # It may hold credentials, and is not compared.
            return
        if found != self.location:
            raise InvalidStateError(
                f"stateful(checkpoint_location={self.location!r}): query {job.query_id} has the checkpointLocation "
                f"{found}: give the same to both, or leave this argument out"
            )


__all__ = ["ClassicQuery"]
