"""Deleting one checkpoint because somebody asked: out of what is live with one swap, and gone at once."""

import logging
from dataclasses import replace
from datetime import timedelta

from pyspark_checkpointer.admin.retention.expire import Live, decide, without
from pyspark_checkpointer.admin.retention.plan import GarbageClassifier
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.retention.reachability import DELETE, index_live
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import is_live, walk
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop, read_consistent, read_head
from pyspark_checkpointer.checkpoint.resolve import CheckpointSelector, find
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import CheckpointError, CheckpointNotFoundError, CorruptionError, InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Pointer, Ref
from pyspark_checkpointer.storage.base import ObjectNotFoundError

logger = logging.getLogger("pyspark_checkpointer")

AGES = timedelta(days=36_500)
"""A grace period that outlasts all that the pointer still says was retired: others chose how long that stays."""


async def delete_checkpoint(session: Session, wanted: CheckpointSelector) -> None:
    """Delete a checkpoint and every object that nothing else names. Older ones stay, in the catalog.

    One whose own manifest is damaged or lost may be deleted too. What is older than that cannot be proven any more, and
    goes with it, but for what the catalog names.
    """
    url = session.store.url
    checkpoint = wanted.id or await find(session, wanted)
    meant: Ref | None = None

    async def step(head: Head) -> Pointer | None:
        nonlocal meant
        if head.prepared is not None and head.prepared.id == checkpoint:
            raise InvalidStateError(f"{url}: {checkpoint} is prepared: abort it instead")
        ref = await is_live(session.store, head, checkpoint)
        if ref is None and meant is not None:
            return None
        if ref is None:
            raise CheckpointNotFoundError(f"{url}: no live checkpoint {checkpoint}")
        if ref == head.committed:
            raise InvalidStateError(f"{url}: {checkpoint} is the committed checkpoint: roll back to another one first")
        live = await _read_live(session, head, ref)
        if ref in live.savepoints:
            raise InvalidStateError(
                f"{url}: {checkpoint} is kept by savepoint {live.savepoints[ref]!r}: delete_savepoint(), or "
                "`checkpointer savepoint ROOT --delete NAME`, first"
            )
        meant = ref
        planned = await without(session, head, live, {ref}, AGES)
        return replace(planned, retired=head.pointer.retired if head.pointer else ())  # nobody is to wait for it

    await cas_loop(session.store, await read_head(session.store), step)
    assert meant is not None
    logger.info("%s: %s was deleted", url, checkpoint)
    try:
        await _sweep(session, meant)
    except CheckpointError as error:  # it is deleted; what is left is garbage like any other
        logger.warning("%s: objects of %s are left to the next cleanup: %s", url, checkpoint, error)


async def _read_live(session: Session, head: Head, ref: Ref) -> Live:
    """Return what is live; where the manifest of `ref` cannot be read, the chain ends with it."""
    assert head.pointer is not None
    catalog = await metadata.read_catalog(session.store, head.pointer.catalog)
    chain: list[Ref] = []
    following: Ref | None = None
    try:
        async for known, manifest in walk(session.store, head, head.pointer.boundary):
            chain.append(known)
            following = manifest.parent
    except (CorruptionError, ObjectNotFoundError) as error:
        if following != ref:
            raise
        logger.warning("%s: nothing older than %s can be proven any more: %s", session.store.url, ref.id, error)
        chain.append(ref)
    return Live(tuple(chain), catalog)


async def _sweep(session: Session, gone: Ref) -> None:
    """Delete what only a deleted checkpoint named, and nothing that was retired lately and may be in use."""
    try:
        manifest = await metadata.read_manifest(session.store, session.host, gone)
    except ObjectNotFoundError:
        return  # somebody else swept it meanwhile

    async def judge(head: Head) -> tuple[GarbageClassifier, bool]:
        decision = await decide(session, head, RetentionPolicy())
        retired = head.pointer.retired if head.pointer is not None else ()
        leads_on = any(old.boundary <= gone.id.sequence for old in retired)
        return GarbageClassifier(
            head.sequence, await index_live(session, head, decision, AGES, (gone, manifest))
        ), leads_on

    found, leads_on = await read_consistent(session.store, judge)
    paths = metadata.objects_of(gone, manifest)
    if leads_on:  # its manifest names the one before it, which was retired lately, and must still be found
        paths.discard(object_paths.manifest(gone.id))
    await session.store.delete([path for path in sorted(paths) if found(path, 0).action == DELETE])
