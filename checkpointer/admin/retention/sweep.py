"""Delete the objects of a cleanup plan, many at a time."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import islice

from pyspark_checkpointer.admin.retention.classifier import PlanRow
from pyspark_checkpointer.admin.retention.spool import Total
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.runtime.host import Progress, tell
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import WriteLeftover

DELETE_BATCH = 1000
"""Objects that are deleted with one call. S3 takes this many in one request."""

MAX_CONCURRENT_DELETES = 4
"""Batches that are deleted at the same time."""


async def delete_rows(
    session: Session, rows: Callable[[], Iterator[PlanRow]], total: int, progress: Progress | None
) -> Total:
    """Delete the objects of the rows of a plan, and return how many they were.

    `rows` yields them from the beginning with each call. `total` is about how many they are, for `progress`.

    Manifests and catalogs go first, so that none references an object that is gone.
    """
    done, size = 0, 0

    async def delete(batch: list[PlanRow]) -> None:
        nonlocal done, size
        await session.store.delete([row.path for row in batch if row.leftover is None])
        # Leftovers are no objects: only the store knows how to remove them.
        left = [WriteLeftover(row.path, row.leftover) for row in batch if row.leftover is not None]
        if left:
            await session.store.discard(left)
        done += len(batch)
        size += sum(row.size for row in batch)
        await tell(session.host, progress, done, total)

    for is_artifact in (False, True):
        some = (row for row in rows() if row.path.startswith(object_paths.ARTIFACTS) == is_artifact)
        # The rows are read from a file, a few batches at a time, so a million deletions take no more memory than a
        # thousand.
        while batches := await session.host.run(lambda some=some: _next_batches(some)):  # type: ignore[misc]
            await asyncio.gather(*map(delete, batches))
    if done:
        log_safely(logging.INFO, "%s: deleted %d objects with %d bytes", session.store.url, done, size)
    return Total(done, size)


def _next_batches(rows: Iterator[PlanRow]) -> list[list[PlanRow]]:
    """Take the next rows, in batches that are deleted at the same time."""
    return [batch for _ in range(MAX_CONCURRENT_DELETES) if (batch := [*islice(rows, DELETE_BATCH)])]
