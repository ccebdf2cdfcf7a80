"""The life of one attempt at a checkpoint.

An attempt begins and writes its manifest. Then one swap makes it the committed checkpoint.

    begin ─► open ─► writing ─► swapping ─► committed
               │        │  └───► preparing ─► prepared ─► see prepared.py
               └────────┴─► aborted or failed: nothing is visible

`AttemptState` shows all states.

A commit writes in this order: what a save left in the queue; packs, if they are large; segments, the last packs and
the manifest, in parallel. Then it waits for all of them and swaps `_latest`. Blobs of up to `upload.SMALL` bytes wait
in a pack until then; larger ones are on their way since `save` was called.

What is said to an open attempt, and written meanwhile, is in `save.py`; how the pointer moves in `session.py`.
"""

import os
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.attempt_state import INVISIBLE, NEARLY_PREPARED, AttemptState, proves_failure
from pyspark_checkpointer.checkpoint.latest import Head
from pyspark_checkpointer.checkpoint.metering import Meter, written
from pyspark_checkpointer.checkpoint.prepared import Prepared
from pyspark_checkpointer.checkpoint.save import CheckpointWriter
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.upload import PendingPut
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError, StoreRefusedError
from pyspark_checkpointer.manifests import codecs, manifest_json, object_paths
from pyspark_checkpointer.manifests.model import Job, Manifest, Pointer, Ref


async def begin(session: Session, epoch: int | None, job: Job | None, meter: Meter) -> CheckpointWriter:
    """Begin an attempt on top of what was restored, measured by `meter`."""
    if epoch is not None and (isinstance(epoch, bool) or not isinstance(epoch, int) or abs(epoch) >= 2**63):
        raise IllegalArgumentError(f"epoch {epoch!r:.40}: expected an integer or None")
    async with session.lock:  # after a commit whose caller stopped waiting
        base = await session.base()
    # Here to refuse before anything is written. The swap asks again, because others may prepare meanwhile.
    session.refuse_prepared(base.head.prepared)
    if epoch is None and base.manifest is not None:  # the same batch, changed by hand: its stream goes on after it
        epoch, job = base.manifest.epoch, base.manifest.job
    writer = CheckpointWriter(session, base, epoch, job, meter)
    try:
        if writer.migrated_objects:
            await _write_migrated_tables(writer)
    except BaseException:
        # The caller gets no writer, so nobody else could stop the writes that are under way.
        await abort(writer)
        raise
    return writer


async def commit(writer: CheckpointWriter) -> None:
    """Make the attempt the committed checkpoint, with one swap."""
    writer.check_undecided()
    with writer.session.reports.committing(writer.meter, writer.id, writer.epoch):
        await _commit(writer)


async def _commit(writer: CheckpointWriter) -> None:
    session = writer.session
    async with session.lock:
        ref, manifest = await _write(writer)
        try:
            await session.commit_pointer(writer.base, ref, manifest)
        except BaseException as error:
            writer.state = AttemptState.FAILED if proves_failure(error) else AttemptState.UNKNOWN
            # Also where the outcome is unknown: the session has to restore then, and the maps with it.
            writer.record_outcome(None)
            await _make_room(writer, error)
            raise
        writer.decide(manifest)


async def prepare(writer: CheckpointWriter) -> Prepared:
    """Record the attempt in `_latest` without making it the committed checkpoint."""
    writer.check_undecided()
    with writer.session.reports.preparing(writer.meter, writer.id, writer.epoch):
        return await _prepare(writer)


async def _prepare(writer: CheckpointWriter) -> Prepared:
    session = writer.session
    async with session.lock:
        base = writer.base
        ref, manifest = await _write(writer)
        # Known before the swap: where no answer comes, `abort` has to swap as well, since the prepare may still land.
        prepared = writer.prepared = Prepared(session, base, ref, manifest, writer.decide, writer.meter)
        writer.state = AttemptState.PREPARING

        async def edit_pointer(head: Head, pointer: Pointer) -> Pointer | None:
            # An earlier try of this swap landed, and others moved the pointer after it.
            if head.prepared == ref:
                return None
            session.refuse_prepared(head.prepared)
            return replace(pointer, prepared=ref)

        try:
            head = await session.swap_pointer(base, ref, edit_pointer)
        except BaseException as error:
            writer.state = AttemptState.UNPROVEN
            await _make_room(writer, error)
            raise
        if head.prepared == ref:
            prepared.base = replace(base, head=head)
            session.rebase(prepared.base)
            writer.state = AttemptState.PREPARED
        else:  # and what may be committed on top of it was never restored here
            prepared.found_committed()
        return prepared


async def abort(writer: CheckpointWriter) -> None:
    """Give the attempt up, leaving nothing visible.

    Objects that were already written are garbage. Cleanup knows them by this attempt's id.

    Does nothing in a child process, which leaves its parent's attempt alone, and nothing once the swap has begun.
    """
    if writer.session.process != os.getpid():
        return
    if writer.state in NEARLY_PREPARED:
        assert writer.prepared is not None
        await writer.prepared.abort()
    elif writer.state in INVISIBLE:
        # Before the first wait: a commit that waits for the lock, or for the writes, has to find that it may not go on.
        writer.state = AttemptState.ABORTED
        failure = await writer.uploader.queue.cancel(InvalidStateError(f"{writer.id}: this attempt was aborted"))
        writer.record_outcome(None)
        await _make_room(writer, failure)


# ---- everything up to the manifest: durable, and not yet visible --------------------------------------------------


async def _write(writer: CheckpointWriter) -> tuple[Ref, Manifest]:
    """Write what is left, and the manifest.

    From here on the attempt takes no more writes.
    """
    writer.check_undecided()  # again: another commit of this attempt may have held the lock
    # Before the first wait, so that nothing is added which the manifest would not name.
    writer.state = AttemptState.WRITING
    session, queue = writer.session, writer.uploader.queue
    try:
        # Before the manifest: an abort while the conditions are tried must find nothing that could still be swapped in.
        await session.prove_conditions(writer.base.head)
        writer.freeze()
        last = await writer.uploader.last_packs()
        small = writer.is_small
        make = partial(_manifest, writer, last)
        manifest, encoded = make() if small else await session.host.run(make)
        # Beside the manifest, and not before it: this saves a round trip. Both are durable before the swap, which is
        # all that matters, since a manifest without its objects is an attempt that died.
        for path, data in last:
            await queue.submit(writer.uploader.put(path, data), len(data))
        ref = await metadata.put_manifest(session.store, writer.id, encoded)
        await queue.join()
    except BaseException as error:
        if writer.state is not AttemptState.ABORTED:
            writer.state = AttemptState.FAILED
        # All writes have to end before anything is deleted: one that lands later would leave its object behind.
        failed = await queue.cancel(error)
        writer.record_outcome(None)
        await _make_room(writer, error if isinstance(error, StoreRefusedError) else failed)
        raise
    # Nothing is awaited between the join and this line: an abort comes before and makes the join fail, or it comes
    # after and leaves the rest to the swap.
    writer.state = AttemptState.SWAPPING
    return ref, manifest


def _manifest(writer: CheckpointWriter, last: list[PendingPut]) -> tuple[Manifest, bytes]:
    """Return the attempt's manifest, and its bytes. Adds to `last` what has to be written beside it."""
    operators, touched = writer.changed_operators()
    assert writer.frozen is not None
    manifest = Manifest(
        id=writer.id,
        parent=writer.base.head.committed,
        epoch=writer.epoch,
        created=writer.session.host.now(),
        job=writer.job,
        operators=operators,
        **writer.frozen,
        clock=writer.clock,
    )
    parent = writer.base.manifest
    manifest, segments = metadata.spill(manifest, parent, touched)
    last += [PendingPut(segment.path, segment.data) for segment in segments]
    last += _still_named(writer, manifest)
    writer.meter.operators = written(manifest, parent, touched)
    # The cost stands in the manifest itself, so the PUTs that follow are counted before they are sent.
    manifest = replace(manifest, cost=writer.meter.cost(unsent=len(last)))
    return manifest, manifest_json.encode_manifest(manifest)


def _still_named(writer: CheckpointWriter, manifest: Manifest) -> list[PendingPut]:
    """Return the objects of a migration that `manifest` still names.

    The attempt did not replace them. They are written last, because much of what a migration made may be replaced.
    """
    if not writer.migrated_objects:
        return []
    # The digest of the manifest is not known yet. Only the id counts for the paths.
    named = metadata.objects_of(Ref(writer.id, ""), manifest)
    return [PendingPut(path, data) for path, data in writer.migrated_objects.items() if path in named]


async def _write_migrated_tables(writer: CheckpointWriter) -> None:
    """Write the tables that a migration made.

    They are written early, because tasks may read and extend them before the commit.
    """
    uploader = writer.uploader
    for path in [path for path in writer.migrated_objects if path.endswith(codecs.PARQUET.name)]:
        # Taken out, or the commit would write it a second time.
        data = writer.migrated_objects.pop(path)
        await uploader.queue.submit(uploader.put(path, data), len(data))
    await uploader.queue.join()


async def _make_room(writer: CheckpointWriter, failure: BaseException | None) -> None:
    """Delete what the attempt wrote if the store refused to take more.

    The reason may be a full disk. No cleanup may delete these objects before the next commit, for which there might
    never be room again. A swap that was refused was never made, so the manifest is not the committed one.
    """
    if isinstance(failure, StoreRefusedError):
        # The caller has to learn of the refusal, not of a deletion that failed after it.
        with suppress(CheckpointError):
            await writer.session.store.delete([object_paths.manifest(writer.id), *writer.uploader.paths])
