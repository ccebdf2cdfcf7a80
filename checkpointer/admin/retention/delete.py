"""Delete one checkpoint.

One swap takes it out of the live checkpoints. Then its objects are deleted at once.
"""

import logging
import shlex
from dataclasses import replace
from datetime import timedelta

from pyspark_checkpointer.admin.followers import read_positions
from pyspark_checkpointer.admin.retention.classifier import GarbageClassifier
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.retention.reachability import DELETE, index_live
from pyspark_checkpointer.admin.retention.retire import LiveCheckpoints, decide_retention, pointer_without
from pyspark_checkpointer.admin.retention.waiting import find_waiting
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import is_live, walk
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop, read_consistent, read_head
from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    InvalidStateError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Pointer, Ref
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import ObjectNotFoundError

logger = logging.getLogger("pyspark_checkpointer")

LONGEST_GRACE = timedelta(days=36_500)
"""A grace period that keeps all that `retired` in `_latest` still lists.

The cleanups that retired these checkpoints chose a grace period of their own.
"""


async def delete_checkpoint(session: Session, wanted: CheckpointSelector) -> None:
    """Delete a checkpoint and every object that nothing else references.

    Older checkpoints stay, in the catalog. A checkpoint whose own manifest is damaged, lost or not trusted any more may
    be deleted too. Below it the history cannot be proven, so older ones go with it, except for those that the catalog
    names. A manifest of a newer format version is no damage, and is refused.
    """
    url = session.store.url
    # Resolved once: after a refused swap, the selector must not come to mean another checkpoint.
    checkpoint = wanted.id or await find(session, wanted)
    meant: Ref | None = None

    async def plan_swap(head: Head) -> Pointer | None:
        nonlocal meant
        # Asked before liveness, since a prepared checkpoint does not count as live and the error would not say what to
        # do.
        if head.prepared is not None and head.prepared.id == checkpoint:
            raise InvalidStateError(f"{url}: {checkpoint} is prepared: abort it instead")
        ref = await is_live(session.store, head, checkpoint)
        if ref is None and meant is not None:
            return None  # An earlier swap of this call took effect, or somebody else retired it meanwhile.
        if ref is None:
            raise CheckpointNotFoundError(f"{url}: no live checkpoint {checkpoint}")
        if ref == head.committed:
            raise InvalidStateError(f"{url}: {checkpoint} is the committed checkpoint: roll back to another one first")
        # Read for each attempt anew: a savepoint may have been made, or deleted, since the swap that was refused.
        live = await _read_live(session, head, ref)
        if ref in live.savepoints:
            raise InvalidStateError(
                f"{url}: {checkpoint} is kept by savepoint {live.savepoints[ref]!r}: delete_savepoint(), or "
                "`checkpointer savepoint ROOT --delete NAME`, first"
            )
        waiting = find_waiting(await read_positions(session.store), live.ancestry, live.begins)
        if ref in waiting.needed:
            name = waiting.needed[ref]
            raise InvalidStateError(
                f"{url}: {checkpoint} is needed by follower {name!r}, which has not read what came after: "
                f"remove_follower(), or `checkpointer followers ROOT --remove {shlex.quote(name)}`, first"
            )
        meant = ref
        planned = await pointer_without(session, head, live, {ref}, LONGEST_GRACE)
        # Without an entry in `retired`: the caller wants the objects gone at once, whoever is reading them.
        return replace(planned, retired=head.pointer.retired if head.pointer else ())

    await cas_loop(session.store, await read_head(session.store), plan_swap)
    assert meant is not None
    log_safely(logging.INFO, "%s: %s was deleted", url, checkpoint)
    try:
        await _sweep_deleted(session, meant)
    except CheckpointError as error:  # The checkpoint is deleted; its objects are garbage like any other.
        logger.warning("%s: the next cleanup deletes the objects of %s: %s", url, checkpoint, error)


async def _read_live(session: Session, head: Head, ref: Ref) -> LiveCheckpoints:
    """Return the live checkpoints.

    Where the manifest of `ref` is damaged, the ancestry ends with `ref`.
    """
    assert head.pointer is not None
    catalog = await metadata.read_catalog(session.store, head.pointer.catalog)
    ancestry: list[Ref] = []
    following: Ref | None = None
    try:
        async for known, manifest in walk(session.store, head, head.pointer.boundary):
            ancestry.append(known)
            following = manifest.parent
    except UnsupportedFormatError:
        raise  # A newer version of the library reads on, and nothing is damaged.
    except (CorruptionError, ObjectNotFoundError) as error:
        # Only the checkpoint that is to be deleted may be unreadable. Damage of another manifest is an error like any
        # other.
        if following != ref:
            raise
        logger.warning("%s: nothing older than %s can be proven any more: %s", session.store.url, ref.id, error)
        # Its child names it, so it is live, and it has to be in the ancestry to be taken out.
        ancestry.append(ref)
    return LiveCheckpoints(tuple(ancestry), catalog, begins=following is None)


async def _sweep_deleted(session: Session, gone: Ref) -> None:
    """Delete the objects that only the deleted checkpoint named.

    The objects of checkpoints that were retired lately stay.
    """
    try:
        manifest = await metadata.read_manifest(session.store, session.host, gone)
    except ObjectNotFoundError:
        return  # Somebody else swept it meanwhile.

    async def classifier(head: Head) -> tuple[GarbageClassifier, bool]:
        # A policy that keeps everything: whatever is live keeps its objects.
        decision = await decide_retention(session, head, RetentionPolicy())
        retired = head.pointer.retired if head.pointer is not None else ()
        leads_to_retired = any(old.boundary <= gone.id.sequence for old in retired)
        return GarbageClassifier(
            head.sequence, await index_live(session, head, decision, LONGEST_GRACE, (gone, manifest))
        ), leads_to_retired

    classify, leads_to_retired = await read_consistent(session.store, classifier)
    paths = metadata.objects_of(gone, manifest)
    # Checkpoints that were retired lately are found by going from parent to parent, so this manifest has to stay.
    if leads_to_retired:
        paths.discard(object_paths.manifest(gone.id))
    # The classifier decides: another live checkpoint, or the prepared one, may share an object with the deleted one.
    await session.store.delete([path for path in sorted(paths) if classify(path, 0).action == DELETE])
