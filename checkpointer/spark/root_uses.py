"""Know which batch uses each root in this process.

A root belongs to one query at a time, and a batch to one call of a decorated function.
"""

import threading
from typing import NamedTuple

from pyspark.sql import DataFrame

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.spark.batch import find_query


class _Use(NamedTuple):
    """The batch that a root was last used for.

    The id of the batch is None before its first call, and once that has failed.
    """

    query_id: str
    run_id: str
    batch_id: int | None


_uses: dict[str, _Use] = {}
"""The last use of each root."""

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


__all__ = ["allow_again", "claim_root", "is_first_call"]
