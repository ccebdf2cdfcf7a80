"""Know which run and batch use each root in this process.

A root belongs to one query and one run of it at a time, and a batch to one call of a decorated function.
"""

import threading
from typing import NamedTuple

from pyspark.sql import DataFrame

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.spark.batch import find_query
from pyspark_checkpointer.spark.query_run import QueryRun


class _Use(NamedTuple):
    """The batch that a root was last used for.

    The id of the batch is None before its first call, and once that has failed.
    """

    query_id: str
    run_id: str
    batch_id: int | None


_uses: dict[str, _Use] = {}
"""The last use of each root."""


class _Run(NamedTuple):
    """The run of a root, and the decorated function that began it."""

    function: object
    run_id: str
    run: QueryRun


_runs: dict[str, _Run] = {}
"""The present run of each root: none before its first batch, and none after a batch that failed.

Only this holds a run, with its maps and connections. A function must not: PySpark holds each function of foreachBatch
until the process ends.
"""

_lock = threading.Lock()


def claim_root(root: str, batch: DataFrame, job: Job) -> None:
    """Refuse a second query on a root that another active query of this process uses."""
    # Two queries may begin their first batches at the same time.
    with _lock:
        owner = _uses.get(root)
        # An owner that has stopped gives the root free: a job may be started anew as another query.
        if (
            owner is not None
            and owner.query_id != job.query_id
            and find_query(batch.sparkSession, owner.query_id) is not None
        ):
            raise InvalidStateError(
                f"{root}: query {owner.query_id} of this process uses it, query {job.query_id} cannot: give each query "
                "its own root"
            )
        if owner is None or owner.query_id != job.query_id:
            _uses[root] = _Use(job.query_id, job.run_id, None)


def is_first_call(root: str, job: Job) -> bool:
    """Return whether nobody was called for this batch of this run before.

    Spark repeats a batch in another run only.
    """
    use = _Use(job.query_id, job.run_id, job.batch_id)
    with _lock:
        found, _uses[root] = _uses.get(root), use
        return found != use


def allow_again(root: str, job: Job) -> None:
    """Let a batch that failed be tried again by its caller.

    This does nothing if the root was used for another batch since.
    """
    with _lock:
        if _uses.get(root) == _Use(job.query_id, job.run_id, job.batch_id):
            _uses[root] = _Use(job.query_id, job.run_id, None)


def find_run(root: str, function: object, run_id: str) -> QueryRun | None:
    """Return the present run of a root, if this function and query run began it."""
    found = _runs.get(root)
    return found.run if found is not None and found[:2] == (function, run_id) else None


def begin_run(root: str, function: object, run_id: str, run: QueryRun) -> None:
    """Make a run the present one of its root, and end the one before it.

    That one may be of another function: in a notebook a function is decorated anew, and what else kept a map of the run
    before is not made anew.
    """
    with _lock:
        before, _runs[root] = _runs.get(root), _Run(function, run_id, run)
    if before is not None:
        before.run.end()


def end_run(root: str, run: QueryRun | None = None) -> None:
    """End a run of a root, or its present one, and let go of it."""
    with _lock:
        present = _runs.get(root)
        if present is not None and run in (None, present.run):
            del _runs[root]
            run = present.run
    if run is not None:
        run.end()


__all__ = ["allow_again", "begin_run", "claim_root", "end_run", "find_run", "is_first_call"]
