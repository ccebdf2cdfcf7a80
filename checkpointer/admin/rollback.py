"""Roll back: commit the content of an older live checkpoint on top of the history."""

import logging
from dataclasses import replace

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.fencing import Base
from pyspark_checkpointer.checkpoint.history import is_live
from pyspark_checkpointer.checkpoint.latest import Head, read_consistent
from pyspark_checkpointer.checkpoint.metering import Meter, blocking
from pyspark_checkpointer.checkpoint.old_copy import refuse_old_copy
from pyspark_checkpointer.checkpoint.require_intact import refuse_damaged
from pyspark_checkpointer.checkpoint.resolve import read_live
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import (
    ConflictError,
    RetiredError,
)
from pyspark_checkpointer.manifests.model import CheckpointId, Job, Manifest, Pointer, Ref
from pyspark_checkpointer.runtime.host import Progress
from pyspark_checkpointer.runtime.user_functions import log_safely


async def rollback(
    session: Session,
    to: CheckpointSelector,
    new: CheckpointId | None = None,
    job: Job | None = None,
    *,
    base: Base | None = None,
    verified: Ref | None = None,
    progress: Progress | None = None,
) -> CheckpointId:
    """Commit an older live checkpoint's content on top of the history.

    A prepared checkpoint is dropped.

    Args:
        to: The checkpoint. Every object of it is read and compared first.
        new: The id of the commit, where the caller drew it on what is committed; else a new one is drawn.
        job: The job of the new commit; by default the job of the old one.
        base: The version that `new` was drawn on; by default the one that the session stands on.
        verified: A checkpoint that the caller has compared just now: it is not read again.
        progress: Told bytes.

    Raises:
        CorruptionError: An object of the checkpoint is damaged. Nothing was changed.
        InvalidStateError: `_latest` is an old copy that somebody put back. Or another call of this session committed or
            prepared meanwhile. Nothing was changed.
        ConflictError: The checkpoint was committed since this session last restored.
        RetiredError: The checkpoint was retired meanwhile.
    """
    return await _rollback(session.reports.meter(), session, to, new, job, base, verified, progress)


@blocking
async def _rollback(
    meter: Meter,
    session: Session,
    to: CheckpointSelector,
    new: CheckpointId | None,
    job: Job | None,
    base: Base | None,
    verified: Ref | None,
    progress: Progress | None,
) -> CheckpointId:
    """Roll back. See `rollback` for the arguments."""
    # Before anything is read: a fenced writer must not roll back, and need not read for long to hear of it.
    session.check_may_write()
    since = session.swaps

    async def read_target(head: Head) -> tuple[Ref, Manifest]:
        # A rewind has looked already. The newer commits, which an old copy of `_latest` does not name, would be buried.
        if base is None:
            await refuse_old_copy(session.store, head)
        return await read_live(session, head, to)

    target, old = await read_consistent(session.store, read_target)
    # A rewind has just read every object of it, so it is not read twice. Without the lock: `progress` is the user's,
    # and may call this library.
    if target != verified:
        await refuse_damaged(session, target, old, progress)
    async with session.lock:
        session.check_may_write()
        # The caller may have given this up and gone on with this session: what it was told is committed or prepared
        # must stay.
        session.refuse_late(since, "the rollback compared objects: call it again")
        # The base is read only now: comparing may take long, and another client that commits meanwhile is no reason to
        # give up.
        base = base or await session.rollback_base()
        # The target is newer than what this session stands on. A commit on that base would not follow the target, and
        # its swap would be refused.
        if target.id.sequence > base.head.sequence:
            raise ConflictError(
                f"{session.store.url}: {target.id} was committed since this session last restored: call restore() first"
            )
        manifest = replace(
            old,
            id=new or session.draw_id(base.head.sequence),
            parent=base.parent,
            created=session.host.now(),
            job=job or old.job,
            cost=meter.cost(),
            extra={},
        )

        async def edit_pointer(head: Head, pointer: Pointer) -> Pointer:
            # A cleanup may have retired the target since it was read, and be deleting its objects.
            if await is_live(session.store, head, target.id, session.links) != target:
                raise RetiredError(f"{session.store.url}: {target.id} was retired before the rollback: choose another")
            # `prepared` is cleared: its parent is not the committed checkpoint any more, so it must not be committed on
            # top.
            return replace(pointer, committed=ref, prepared=None)

        with session.reports.committing(meter, manifest.id, manifest.epoch):
            ref = await metadata.write_manifest(session.store, session.host, manifest)
            await session.commit_pointer(base, ref, manifest, edit_pointer)
        log_safely(logging.INFO, "%s: rolled back to %s, as %s", session.store.url, target.id, ref.id)
        return ref.id
