"""Delete one checkpoint.

One swap takes it out of the live checkpoints. Then its objects are deleted at once.
"""

import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from pyspark_checkpointer.admin.followers import read_positions
from pyspark_checkpointer.admin.retention.classifier import GarbageClassifier
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.retention.reachability import DELETE, index_live
from pyspark_checkpointer.admin.retention.retire import LiveCheckpoints, decide_retention, pointer_without
from pyspark_checkpointer.admin.retention.waiting import find_waiting
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import NONE, is_live, note_link, walk
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop, list_sizes, read_consistent, read_head
from pyspark_checkpointer.checkpoint.old_copy import refuse_old_copy
from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.display import count
from pyspark_checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    InvalidStateError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Pointer, Ref
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import DAMAGE, ObjectNotFoundError

LONGEST_GRACE = timedelta(days=36_500)
"""A grace period that keeps all that `retired` in `_latest` still lists.

The cleanups that retired these checkpoints chose a grace period of their own.
"""


@dataclass(frozen=True, slots=True)
class Deletion:
    """A checkpoint to delete, and what is live beside it."""

    ref: Ref
    live: LiveCheckpoints
    ended: tuple[CheckpointId, ...]
    """The older checkpoints that go with it, oldest first: its manifest alone led to them."""


async def delete_checkpoint(session: Session, wanted: CheckpointSelector) -> tuple[CheckpointId, ...]:
    """Delete a checkpoint and every object that nothing else references.

    Older checkpoints stay, in the catalog. A checkpoint whose own manifest is damaged, lost or not trusted any more may
    be deleted too. Below it the history cannot be proven, so older ones go with it, except for those that the catalog
    names. A manifest of a newer format version is no damage, and is refused.

    Returns the older ones that went with it, as `find_ended` does.
    """
    url = session.store.url
    # Resolved once: after a refused swap, the selector must not come to mean another checkpoint.
    checkpoint = wanted.id or await find(session, wanted)
    deletion: Deletion | None = None

    async def plan_swap(head: Head) -> Pointer | None:
        nonlocal deletion
        try:
            deletion = await _plan(session, head, checkpoint)
        except CheckpointNotFoundError:
            if deletion is None:
                raise
            return None  # An earlier swap of this call took effect, or somebody else retired it meanwhile.
        planned = await pointer_without(session, head, deletion.live, {deletion.ref}, LONGEST_GRACE)
        # Without an entry in `retired`: the caller wants the objects gone at once, whoever is reading them.
        return replace(planned, retired=head.retired)

    head = await read_head(session.store)
    # What only the newer commits name would be deleted with it.
    await refuse_old_copy(session.store, head)
    await cas_loop(session.store, head, plan_swap)
    assert deletion is not None
    if deletion.ended:
        older = describe_ended(deletion.ended)
        log_safely(logging.WARNING, "%s: %s was deleted, and with it %s", url, checkpoint, older)
    else:
        log_safely(logging.INFO, "%s: %s was deleted", url, checkpoint)
    try:
        await _sweep_deleted(session, deletion.ref)
    except CheckpointError as error:  # The checkpoint is deleted; its objects are garbage like any other.
        log_safely(logging.WARNING, "%s: the next cleanup deletes the objects of %s: %s", url, checkpoint, error)
    return deletion.ended


async def find_ended(session: Session, wanted: CheckpointSelector) -> tuple[CheckpointId, ...]:
    """Return the older checkpoints that a deletion would take with it.

    They come oldest first. Attempts that failed may be among them: nothing tells them apart any more. Raises as
    `delete_checkpoint` does.
    """
    checkpoint = wanted.id or await find(session, wanted)
    return (await read_consistent(session.store, lambda head: _plan(session, head, checkpoint))).ended


def describe_ended(ended: Sequence[CheckpointId]) -> str:
    """Return in words which checkpoints go with a deleted one."""
    span = f"{ended[0]}" if len(ended) == 1 else f"{ended[0]} to {ended[-1]}"
    return f"{count(len(ended), 'older checkpoint')}, {span}"


async def _plan(session: Session, head: Head, checkpoint: CheckpointId) -> Deletion:
    """Return what a deletion would do in one version of `_latest`.

    Raises if the checkpoint cannot be deleted.
    """
    url = session.store.url
    # Asked before liveness, since a prepared checkpoint does not count as live and the error would not say what to do.
    if head.prepared is not None and head.prepared.id == checkpoint:
        raise InvalidStateError(f"{url}: {checkpoint} is prepared: abort it instead")
    ref = await is_live(session.store, head, checkpoint, session.links)
    if ref is None:
        raise CheckpointNotFoundError(f"{url}: no live checkpoint {checkpoint}")
    if ref == head.committed:
        raise InvalidStateError(f"{url}: {checkpoint} is the committed checkpoint: roll back to another one first")
    # Read for each attempt anew: a savepoint may have been made, or deleted, since the swap that was refused.
    live, ended = await _read_live(session, head, ref)
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
    return Deletion(ref, live, ended)


async def _read_live(session: Session, head: Head, ref: Ref) -> tuple[LiveCheckpoints, tuple[CheckpointId, ...]]:
    """Return the live checkpoints, and those that end with `ref`.

    Where the manifest of `ref` is damaged, the ancestry ends with `ref`.
    """
    catalog = await metadata.read_catalog(session.store, head.catalog)
    ancestry: list[Ref] = []
    following: Ref | None = None
    ended: tuple[CheckpointId, ...] = ()
    try:
        async for known, manifest in walk(session.store, head, head.boundary, session.links or NONE):
            note_link(session.links, known, manifest)
            ancestry.append(known)
            following = manifest.parent
    except UnsupportedFormatError:
        raise  # A newer version of the library reads on, and nothing is damaged.
    except DAMAGE:
        # Only the checkpoint that is to be deleted may be unreadable. Damage of another manifest is an error like any
        # other.
        if following != ref:
            raise
        # Its child names it, so it is live, and it has to be in the ancestry to be taken out.
        ancestry.append(ref)
        kept = {entry.ref.id for entry in (() if catalog is None else catalog.entries)}
        older = await list_sizes(session.store, head.boundary, ref.id.sequence - 1)
        ended = tuple(one for one, _ in older if one not in kept)
    return LiveCheckpoints(tuple(ancestry), catalog, begins=following is None), ended


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
        decision = await decide_retention(session, head, RetentionPolicy(), dict(session.links or {}))
        leads_to_retired = any(old.boundary <= gone.id.sequence for old in head.retired)
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
