"""Ask Spark which query and run a batch of foreachBatch belongs to.

Also ask whether the batch can be replayed. Spark's driver is in this process.
"""

import os
from contextlib import suppress
from typing import Any, NamedTuple

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer.checkpoint.liveness import ask, this_driver
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job

_QUERY_ID = "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"  # Spark runs the jobs of a streaming query in a group that has the run's id.


class Token(NamedTuple):
    """The name of one batch of one query: the same after every restart and replay.

    Store it with what the function writes elsewhere, in the same transaction, to write each batch once.

    Attributes:
        query_id: The id of the streaming query, which lives in its `checkpointLocation`.
        batch_id: The number of the batch, from 0.

    Examples:
        >>> str(Token("5f3c9a1e-2b7d-4d6a-9f5e-0c1b2a3d4e5f", 41))
        '5f3c9a1e-2b7d-4d6a-9f5e-0c1b2a3d4e5f:41'
    """

    query_id: str
    batch_id: int

    def __str__(self) -> str:
        return f"{self.query_id}:{self.batch_id}"


def identify(batch: DataFrame, batch_id: int) -> Job:
    """Return the query, run and batch that the calling thread works for.

    Raises `IllegalArgumentError` outside of foreachBatch, and `InvalidStateError` where PySpark cannot tell.
    """
    context = batch.sparkSession.sparkContext
    query_id, run_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_RUN_ID)
    if not query_id or not run_id:
        # Without pinned threads py4j may ask another thread of the JVM than the one that runs the query.
        if (pinned := os.environ.get("PYSPARK_PIN_THREAD", "true")).lower() != "true":
            raise InvalidStateError(
                f"PYSPARK_PIN_THREAD={pinned} hides which streaming query calls: remove the variable, and start the "
                "program anew"
            )
        raise IllegalArgumentError(
            "not called from a streaming query: pass the decorated function to writeStream.foreachBatch(…). If its "
            "function calls that in a thread, this has to be a pyspark.InheritableThread"
        )
    query = find_query(batch.sparkSession, query_id)
    if query is not None:
        run_id = str(query.runId())  # The property changes where the callback sets a job group of its own.
    return Job(query_id, run_id, batch_id, this_driver())


def refuse_temporary(batch: DataFrame, query_id: str) -> None:
    """Raise `InvalidStateError` for a query with a temporary Spark checkpoint.

    Spark deletes such a checkpoint when the query stops.
    """
    query = find_query(batch.sparkSession, query_id)
    if query is not None and _is_temporary(query):
        raise InvalidStateError(
            f"streaming query {query_id} has no checkpointLocation, so Spark would start it from scratch each time: "
            "set .option('checkpointLocation', …)"
        )


def find_query(session: Any, query_id: str) -> Any:
    """Return the JVM object of an active query, or None.

    The query may be of any session of this process.
    """
    # Not `streams.get(id)`, which is None inside foreachBatch. The shared state knows the queries of all sessions.
    # By its whole name: for each part of it, py4j would look in all jars.
    identifier = getattr(session._jvm, "java.util.UUID").fromString(query_id)
    return session._jsparkSession.sharedState().activeStreamingQueries().get(identifier)


def is_active(query_id: str) -> bool:
    """Return whether a streaming query of this process runs, its first batch included."""
    # The active session is one of the calling thread. Another thread finds the one that the process made.
    session = SparkSession.getActiveSession() or SparkSession._instantiatedSession
    with suppress(Py4JError, AttributeError, OSError):  # Without a JVM there is no query either.
        return session is not None and find_query(session, query_id) is not None
    return False


ask(is_active)  # A rewind or fork asks this before it changes what a query uses.


def _is_temporary(query: Any) -> bool:
    """Return whether Spark made up the checkpoint location of a query.

    Spark deletes such a location when the query stops.
    """
    kind = query.getClass()
    # The field is private, in a class that moved between versions of Spark, so it is looked for in all of them. Where
    # none has it, the name of the folder tells.
    while kind is not None:
        for declared in kind.getDeclaredFields():
            if declared.getName() == "deleteCheckpointOnStop":
                declared.setAccessible(True)
                return bool(declared.get(query))
        kind = kind.getSuperclass()
    return "/temporary-" in str(query.resolvedCheckpointRoot())


def drain(batch: DataFrame) -> None:
    """Consume a batch, or rows of it, without doing anything with them.

    Rows that nobody needs still have to be read, such as those of a batch whose state is committed already. Spark's own
    stateful operators upstream record their state while they are read, and fail the batch where they were not.
    """
    batch.write.format("noop").mode("overwrite").save()
