"""Take a streaming query back: its state, and Spark's progress with it.

A new commit takes the state back. The state goes back first, so Spark is ahead of the state until the last file is
removed. A job that is started then is refused, or is aligned with the state already. Each file is copied aside before
it is deleted. A second call finishes what was interrupted. A rewind does these steps. Next to each step is what a crash
right after it leaves:

    1. plan the changes of Spark's files; refuse a query       nothing
       that runs, is another one, or has state in Spark
    2. read and compare every object of the target            nothing
    3. write `rewound/<number>/record.json`                    a record whose commit is not live: the rewind did not
                                                               happen, and the next one takes the next number
    4. make a savepoint of the state that is left              the same, and a savepoint that somebody may delete
    5. write the manifest of the new commit                    the same, and garbage for the next cleanup
    6. compare-and-swap `_latest`                              the rewind happened: the state is the target's, Spark is
                                                               ahead; the record leads the same call to step 7
    7. for each file of `commits/` that goes, newest first:    Spark repeats a batch that the state does not wait for,
       copy it into `rewound/<number>/`, delete it             and is refused
    8. the same for each file of `offsets/`                    the same; once the last one is cut, Spark is in step
    9. write the files that come: offsets before commits,      a start is refused until Spark has the offsets
       oldest first                                            that follow the state

After step 9 the plan is made once more: a batch that Spark planned meanwhile is cut too. An undo is a rewind to the
savepoint of step 4 that puts the files of steps 7 and 8 back in step 9.
"""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from pyspark_checkpointer.admin.streaming.rewind_attempt import RewindAttempt, RewoundQuery
from pyspark_checkpointer.admin.streaming.rewind_record import (
    RewindRecord,
    read_log_before,
    read_record,
    read_records,
)
from pyspark_checkpointer.admin.streaming.rewind_result import Rewind, RewindOptions
from pyspark_checkpointer.admin.streaming.spark_location import SparkCheckpointLocation, job_of
from pyspark_checkpointer.checkpoint.history import is_live
from pyspark_checkpointer.checkpoint.latest import Head, read_consistent
from pyspark_checkpointer.checkpoint.old_copy import refuse_old_copy
from pyspark_checkpointer.checkpoint.resolve import find, read_live
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import CheckpointNotFoundError, InvalidStateError, NotFoundError
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Ref


async def rewind(
    session: Session, to: CheckpointSelector, where: SparkCheckpointLocation, options: RewindOptions
) -> Rewind:
    """Take state and Spark's progress back to a live checkpoint.

    See `Checkpointer.rewind`.
    """
    since = session.swaps
    target = await find(session, to)
    async with _open_query(session, since, where) as query:
        return await (await _attempt_to(query, target)).run(options)


async def undo(session: Session, where: SparkCheckpointLocation, options: RewindOptions) -> Rewind:
    """Put back the state and progress from before the last rewind.

    See `Checkpointer.undo_rewind`.
    """
    async with _open_query(session, session.swaps, where) as query:
        attempt = await _plan_undo(query)
        return query.unchanged() if attempt is None else await attempt.run(options)


@asynccontextmanager
async def _open_query(session: Session, since: int, where: SparkCheckpointLocation) -> AsyncIterator[RewoundQuery]:
    """Open Spark's checkpoint, and yield the query with the rewinds begun so far."""
    # Read once, at the beginning: the rewind's swap has to be on what the plan was made for.
    base = await session.read_base()
    # The newer commits, which an old copy of `_latest` does not name, would be buried.
    await refuse_old_copy(session.store, base.head)
    if base.manifest is None or base.parent is None:
        raise CheckpointNotFoundError(f"{session.store.url}: nothing is committed")
    last = job_of(session, base.manifest)
    spark = where.open(session.store.url, last)
    with ExitStack() as refusing:
        try:
            yield RewoundQuery(session, since, base, base.parent, last, spark, await read_records(spark), refusing)
        finally:
            await spark.close()


async def _attempt_to(query: RewoundQuery, to: CheckpointId) -> RewindAttempt:
    """Return the rewind to a checkpoint: the last one, or a new one.

    The last rewind is returned if it had the same target, because it may have been interrupted.
    """
    ref, manifest = await _find(query, to)
    job = job_of(query.session, manifest)
    # Only a rewind that made the checkpoint which is committed now can be finished. After a later commit it is a new
    # rewind.
    begun = next((record for record in query.records if record.leads_to(query.committed.id, to)), None)
    # Spark's own files may be of the line of batches after the earlier rewind, and nothing in the checkpoint could
    # tell.
    if job.spark is None and begun is None and any([await _happened(query, record) for record in query.records]):
        raise InvalidStateError(
            f"{query.session.store.url}: {to} did not record the offsets of its batch, and those of Spark may be of "
            "another one since it was rewound: only an undo can go back there"
        )
    return RewindAttempt(query, ref, manifest, job, begun, None, None)


async def _plan_undo(query: RewoundQuery) -> RewindAttempt | None:
    """Return a new undo of the last rewind, or the undo that was interrupted.

    None where the last was a finished undo.
    """
    for record in query.records:
        if not await _happened(query, record):
            continue  # A rewind that was not committed changed nothing, so there is nothing to undo.
        if record.undoes is None:
            to = record.to if record.savepoint is None else await _find_left(query, record, record.savepoint)
            ref, manifest = await _find(query, to)
            job, before = job_of(query.session, manifest), await read_log_before(query.spark, record)
            return RewindAttempt(query, ref, manifest, job, None, record, before)
        # The last rewind was an undo itself. It may have been interrupted before all files were back.
        undone = await read_record(query.spark, record.undoes)
        if record.new != query.committed.id or undone is None:
            return None
        ref, manifest = await _find(query, record.new)
        job, before = job_of(query.session, manifest), await read_log_before(query.spark, undone)
        unfinished = RewindAttempt(query, ref, manifest, job, record, undone, before)
        return unfinished if await unfinished.plan() else None
    raise InvalidStateError(f"{query.spark.url}: no rewind was done here: there is nothing to undo")


async def _find(query: RewoundQuery, to: CheckpointId) -> tuple[Ref, Manifest]:
    """Return a live checkpoint's reference and manifest."""
    session, wanted = query.session, CheckpointSelector.parse(to)
    return await read_consistent(session.store, lambda head: read_live(session, head, wanted))


async def _find_left(query: RewoundQuery, record: RewindRecord, savepoint: str) -> CheckpointId:
    """Return the checkpoint that a rewind left, by its savepoint or else by its id."""
    try:
        return await find(query.session, CheckpointSelector("savepoint", savepoint))
    except NotFoundError:
        # The savepoint may have been deleted while the history still has the checkpoint.
        return record.left


async def _happened(query: RewoundQuery, record: RewindRecord) -> bool:
    """Return whether the commit of a rewind is in the history.

    Raises `InvalidStateError` where the history was retired since: then nobody can tell.
    """
    store = query.session.store

    async def look(head: Head) -> bool | None:
        if await is_live(store, head, record.new):
            return True
        # Below the boundary a commit is not live, whether it happened or not.
        return None if head.boundary > record.new.sequence else False

    happened = await read_consistent(store, look)
    if happened is None:
        raise InvalidStateError(
            f"{query.spark.url}/{record.folder}: the history does not reach back to the commit of this rewind, "
            f"{record.new}: rewind to {record.savepoint or record.to} instead"
        )
    return happened
