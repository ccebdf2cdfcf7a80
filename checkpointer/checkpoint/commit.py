"""Begin, prepare, commit or abort one attempt at a checkpoint.

An attempt begins and writes its manifest. Then one swap makes it the committed checkpoint.

    begin ─► open ─► writing ─► swapping ─► committed
               │        │  └───► preparing ─► prepared ─► see prepared.py
               └────────┴─► aborted or failed: nothing is visible

`AttemptState` shows all states.

A commit writes in this order: the objects that a save left in the queue; packs, if they are large; segments, the last
packs and the manifest, in parallel. Then it waits for all of them and swaps `_latest`. Blobs of up to `upload.SMALL`
bytes wait in a pack until then; larger ones are on their way since `save` was called.

`save.py` has the calls on an open attempt, and what is written meanwhile. `session.py` moves the pointer.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.attempt_state import (
    INVISIBLE,
    NEARLY_PREPARED,
    AttemptState,
    promotion,
    proves_failure,
)
from pyspark_checkpointer.checkpoint.latest import Head, find_head
from pyspark_checkpointer.checkpoint.metering import Meter
from pyspark_checkpointer.checkpoint.metrics import written
from pyspark_checkpointer.checkpoint.prepared import Prepared
from pyspark_checkpointer.checkpoint.save import CheckpointAttempt
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.upload import PendingPut
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError, StoreRefusedError
from pyspark_checkpointer.manifests import codecs, manifest_json, object_paths
from pyspark_checkpointer.manifests.model import Job, Manifest, Pointer, Ref
from pyspark_checkpointer.runtime import forks


async def begin(session: Session, epoch: int | None, job: Job | None, meter: Meter) -> CheckpointAttempt:
    """Begin an attempt on top of the restored checkpoint, measured by `meter`.

    It waits for the commit in the background, and raises its error.
    """
    await session.await_background()
    if epoch is not None and (isinstance(epoch, bool) or not isinstance(epoch, int) or abs(epoch) >= 2**63):
        raise IllegalArgumentError(f"epoch {epoch!r:.40}: expected an integer or None")
    async with session.lock:  # after a commit whose caller stopped waiting
        base = await session.base()
    # Here to refuse before anything is written. The swap asks again, because others may prepare meanwhile.
    session.refuse_prepared(base.head.prepared)
    if epoch is None and base.manifest is not None:  # the same batch, changed by hand: its stream goes on after it
        epoch, job = base.manifest.epoch, base.manifest.job
    attempt = CheckpointAttempt(session, base, epoch, job, meter)
    try:
        if attempt.migrated_objects:
            await _write_migrated_tables(attempt)
    except BaseException:
        # The caller gets no attempt, so nobody else could stop the writes that are under way.
        await abort(attempt)
        raise
    return attempt


async def commit(attempt: CheckpointAttempt) -> None:
    """Make the attempt the committed checkpoint, with one swap."""
    attempt.check_undecided()
    with attempt.session.reports.committing(attempt.meter, attempt.id, attempt.epoch):
        await _commit(attempt)


async def _commit(attempt: CheckpointAttempt) -> None:
    session = attempt.session
    async with session.lock:
        ref, manifest = await _write(attempt)
        try:
            await session.commit_pointer(attempt.base, ref, manifest)
        except BaseException as error:
            attempt.state = AttemptState.FAILED if proves_failure(error) else AttemptState.UNKNOWN
            # Also where the outcome is unknown: the session has to restore then, and the maps with it.
            attempt.record_outcome(None)
            await _make_room(attempt, error)
            raise
        attempt.decide(manifest)


async def prepare(attempt: CheckpointAttempt) -> Prepared:
    """Record the attempt in `_latest` without making it the committed checkpoint."""
    attempt.check_undecided()
    with attempt.session.reports.preparing(attempt.meter, attempt.id, attempt.epoch):
        return await _prepare(attempt)


async def _prepare(attempt: CheckpointAttempt) -> Prepared:
    session = attempt.session
    async with session.lock:
        base = attempt.base
        ref, manifest = await _write(attempt)
        # Known before the swap: where no answer comes, `abort` has to swap as well, since the prepare may still land.
        known = promotion(session.root, ref.id, is_new=True)
        prepared = attempt.prepared = Prepared(session, base, ref, manifest, known, attempt.decide, attempt.meter)
        attempt.state = AttemptState.PREPARING

        async def edit_pointer(head: Head, pointer: Pointer) -> Pointer | None:
            # An earlier try of this swap landed, and others moved the pointer after it.
            if head.prepared == ref:
                return None
            session.refuse_prepared(head.prepared)
            return replace(pointer, prepared=ref)

        try:
            head = await session.swap_pointer(base, ref, edit_pointer)
        except BaseException as error:
            attempt.state = AttemptState.UNPROVEN
            await _make_room(attempt, error)
            raise
        if head.prepared == ref:
            prepared.base = replace(base, head=head)
            session.move_to(base, head)
            attempt.state = AttemptState.PREPARED
        else:  # and what may be committed on top of it was never restored here
            prepared.found_committed()
        return prepared


async def abort(attempt: CheckpointAttempt) -> None:
    """Give the attempt up, leaving nothing visible.

    Objects that were already written are garbage. Cleanup knows them by this attempt's id.

    Does nothing in a child process, which leaves its parent's attempt alone, and nothing once the swap has begun.
    """
    if attempt.session.process is not forks.current:
        return
    if attempt.state in NEARLY_PREPARED:
        assert attempt.prepared is not None
        await attempt.prepared.abort()
    elif attempt.state in INVISIBLE:
        # Before the first wait: a commit that waits for the lock, or for the writes, has to find that it may not go on.
        attempt.state = AttemptState.ABORTED
        failure = await attempt.uploader.queue.cancel(InvalidStateError(f"{attempt.id}: this attempt was aborted"))
        attempt.record_outcome(None)
        await _make_room(attempt, failure)


# ---- everything up to the manifest: durable, and not yet visible --------------------------------------------------


async def _write(attempt: CheckpointAttempt) -> tuple[Ref, Manifest]:
    """Write the remaining artifacts, and the manifest.

    From here on the attempt takes no more writes.
    """
    attempt.check_undecided()  # again: another commit of this attempt may have held the lock
    # Before the first wait, so that nothing is added which the manifest would not name.
    attempt.state = AttemptState.WRITING
    session, queue = attempt.session, attempt.uploader.queue
    try:
        # Before the manifest: an abort while the conditions are tried must find nothing that could still be swapped in.
        await session.prove_conditions(attempt.base.head)
        attempt.freeze()
        last = await attempt.uploader.last_packs()
        small = attempt.has_small_manifest
        make = partial(_manifest, attempt, last)
        manifest, encoded = make() if small else await session.host.run(make)
        # Beside the manifest, and not before it: this saves a round trip. Both are durable before the swap, which is
        # all that matters, since a manifest without its objects is an attempt that died.
        for path, data in last:
            await queue.submit(attempt.uploader.put(path, data), len(data))
        ref = await metadata.put_manifest(session.store, attempt.id, encoded)
        await queue.join()
    except BaseException as error:
        if attempt.state is not AttemptState.ABORTED:
            attempt.state = AttemptState.FAILED
        # All writes have to end before anything is deleted: one that lands later would leave its object behind.
        failed = await queue.cancel(error)
        attempt.record_outcome(None)
        await _make_room(attempt, error if isinstance(error, StoreRefusedError) else failed)
        raise
    # Nothing is awaited between the join and this line: an abort comes before and makes the join fail, or it comes
    # after and leaves the rest to the swap.
    attempt.state = AttemptState.SWAPPING
    return ref, manifest


def _manifest(attempt: CheckpointAttempt, last: list[PendingPut]) -> tuple[Manifest, bytes]:
    """Return the manifest of the attempt, and its bytes.

    Adds to `last` the objects that have to be written beside it.
    """
    operators, touched = attempt.changed_operators()
    assert attempt.frozen is not None
    manifest = Manifest(
        id=attempt.id,
        parent=attempt.base.head.committed,
        epoch=attempt.epoch,
        created=attempt.session.host.now(),
        job=attempt.job,
        operators=operators,
        **attempt.frozen,
        clock=attempt.clock,
    )
    parent = attempt.base.manifest
    manifest, segments = metadata.spill(manifest, parent, touched)
    last += [PendingPut(segment.path, segment.data) for segment in segments]
    last += _still_named(attempt, manifest)
    attempt.meter.operators = written(manifest, parent, touched)
    # The cost stands in the manifest itself, so the PUTs that follow are counted before they are sent.
    manifest = replace(manifest, cost=attempt.meter.cost(unsent=len(last)))
    return manifest, manifest_json.encode_manifest(manifest)


def _still_named(attempt: CheckpointAttempt, manifest: Manifest) -> list[PendingPut]:
    """Return the objects of a migration that `manifest` still names.

    The attempt did not replace them. They are written last, because much of what a migration made may be replaced.
    """
    if not attempt.migrated_objects:
        return []
    # The digest of the manifest is not known yet. Only the id counts for the paths.
    named = metadata.objects_of(Ref(attempt.id, ""), manifest)
    return [PendingPut(path, data) for path, data in attempt.migrated_objects.items() if path in named]


async def _write_migrated_tables(attempt: CheckpointAttempt) -> None:
    """Write the tables that a migration made.

    They are written early, because tasks may read and extend them before the commit.
    """
    uploader = attempt.uploader
    for path in [path for path in attempt.migrated_objects if path.endswith(codecs.PARQUET.name)]:
        # Taken out, or the commit would write it a second time.
        data = attempt.migrated_objects.pop(path)
        await uploader.queue.submit(uploader.put(path, data), len(data))
    await uploader.queue.join()


async def _make_room(attempt: CheckpointAttempt, failure: BaseException | None) -> None:
    """Delete the objects of the attempt if the store refused to take more.

    The reason may be a full disk. No cleanup may delete these objects before the next commit, and that commit might
    never find room.
    """
    if not isinstance(failure, StoreRefusedError):
        return
    # The caller has to learn of the refusal, not of a request that failed after it.
    with suppress(CheckpointError):
        await _delete_unseen(attempt, [object_paths.manifest(attempt.id), *attempt.uploader.paths])


async def discard(attempt: CheckpointAttempt, operators: Iterable[str], known: Iterable[str] = ()) -> None:
    """Delete what was written for an attempt that failed.

    `known` are objects that tasks are known to have written. They go first: of what else tasks wrote to some operators
    only a listing knows, which may be refused or take long. What a task writes later stays for a cleanup. Does nothing
    while the attempt may go on, as it does in the parent of a forked process.
    """
    if attempt.state not in (AttemptState.ABORTED, AttemptState.FAILED):
        return
    store, manifest = attempt.session.store, object_paths.manifest(attempt.id)
    if paths := [*attempt.uploader.paths, *known]:
        await _delete_unseen(attempt, [manifest, *paths])
    written: list[str] = []
    for operator in operators:
        entries = await store.list(object_paths.artifacts(operator))
        written += [entry.path for entry in entries if object_paths.owner(entry.path) == attempt.id]
    if written:
        await _delete_unseen(attempt, [manifest, *written])


async def _delete_unseen(attempt: CheckpointAttempt, paths: list[str]) -> None:
    store = attempt.session.store
    head = await find_head(store)
    # A store may say "refused" of a swap that took effect, because something after it failed. The pointer tells.
    is_prepared = head.prepared is not None and head.prepared.id == attempt.id
    if head.committed == attempt.base.head.committed and not is_prepared:
        await store.delete(paths)
