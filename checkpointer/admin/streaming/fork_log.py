"""Write the checkpoint of Spark for a query that was forked.

    delete metadata and what a query left that started too soon → sources/ → metadata, offsets/, commits/

The commit of the batch is written last. From then on the second query may run, and may have files that this call would
delete or replace. Another call of the same fork may write it while this one is on its way, so this one asks again each
time before it deletes or replaces.
"""

import json
import re

from pyspark_checkpointer.admin.streaming.file_source_log import check_lists
from pyspark_checkpointer.admin.streaming.log_edit import put_new, remove_file
from pyspark_checkpointer.admin.streaming.offset_log import (
    COMMITS,
    METADATA,
    OFFSETS,
    SOURCES,
    query_id_of,
    read_file,
)
from pyspark_checkpointer.errors import ConflictError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.storage.base import ObjectNotFoundError, Store

MAX_COPY_ATTEMPTS = 5
"""Times that the files of a running query are copied before the fork gives up.

They may change while they are copied.
"""


async def keep_complete(target_log: Store, copy: Job) -> bool:
    """Keep a copy that is complete as it is, and return whether it is.

    A call has then written all of Spark's files. Puts `metadata` back where another call of the same fork has deleted
    it meanwhile. Raises `InvalidStateError` if a query was started without it.
    """
    if await read_file(target_log, f"{COMMITS}{copy.batch_id}") is None:
        return False
    await _refuse_other_query(target_log, copy)
    if not await put_new(target_log, METADATA, _metadata(copy)):
        # Another query may have been started since. What Spark wrote for this one may have other spaces.
        await _refuse_other_query(target_log, copy)
    return True


async def write_log(spark: Store, target_log: Store, copy: Job, files: dict[str, bytes]) -> None:
    """Write Spark's files in an order that refuses a query started too soon.

    A query that is started before `metadata` exists gets another id. Files of such a query are deleted first. Files
    that an earlier call wrote are the same, and stay.
    """
    if await keep_complete(target_log, copy):
        return
    await _refuse_other_query(target_log, copy)
    # `metadata` goes first and comes back after the sources: while it is missing, a query that starts here gets another
    # id.
    await remove_file(target_log, METADATA)
    listed = [entry.path for folder in (COMMITS, OFFSETS) for entry in await target_log.list(folder)]
    # What was listed before this is no file of the second query.
    if await keep_complete(target_log, copy):
        return
    for path in listed:
        if path not in files:
            await remove_file(target_log, path)
    if not await _copy_sources(spark, target_log, copy):
        return
    if copy.spark is not None:
        # The first query may have compacted or lost entries while they were copied, so the copies are checked.
        await check_lists(target_log, copy)
    if await keep_complete(target_log, copy):
        return
    for path, data in {METADATA: _metadata(copy), **files}.items():
        await _put(target_log, path, data)


async def _copy_sources(spark: Store, target_log: Store, copy: Job) -> bool:
    """Copy the files of the sources, also those of later batches.

    A listing of a running query does not show one moment. So the files are copied until a listing shows exactly the
    files that were copied. Returns False where another call has completed the fork meanwhile.
    """
    copied: set[str] = set()
    for _ in range(MAX_COPY_ATTEMPTS):
        names = await _source_files(spark)
        others = await _source_files(target_log) - names
        if await keep_complete(target_log, copy):
            return False
        # Files that the first query has deleted since must not stay in the copy, where they would count.
        for path in others:
            await remove_file(target_log, path)
        for path in sorted(names - copied):
            try:
                data = (await spark.get(path)).data
            except ObjectNotFoundError:  # The running query deleted it since the listing.
                continue
            if await keep_complete(target_log, copy):
                return False
            await _put(target_log, path, data)
            copied.add(path)
        if copied & names == await _source_files(spark):
            return not await keep_complete(target_log, copy)
    raise ConflictError(f"{spark.url}/{SOURCES}: changes faster than it can be copied: stop the query, or call again")


async def _refuse_other_query(target_log: Store, copy: Job) -> None:
    """Raise `InvalidStateError` if `metadata` is of a query that was started too soon."""
    if await query_id_of(target_log) not in (None, copy.query_id):
        raise InvalidStateError(
            f"{target_log.url}: a query was started here before the copy was complete: give another, new "
            "checkpointLocation and root to keep what this one holds; or empty both, then call again"
        )


def _metadata(copy: Job) -> bytes:
    return json.dumps({"id": copy.query_id}).encode()


async def _put(target_log: Store, path: str, data: bytes) -> None:
    """Write a file, or replace one that a query left because it started too soon."""
    if not await put_new(target_log, path, data):
        await remove_file(target_log, path)
        if not await put_new(target_log, path, data):
            raise ConflictError(
                f"{target_log.url}/{path}: was written meanwhile: stop the query that runs there, then call again"
            )


async def _source_files(spark: Store) -> set[str]:
    """Return the paths of the sources' files that Spark has finished writing.

    Checksums are left out.
    """
    # Spark writes a file under a hidden name and renames it; checksums are hidden too.
    return {e.path for e in await spark.list(SOURCES) if not re.match(r"[._]", e.path.rpartition("/")[2])}
