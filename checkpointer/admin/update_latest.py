"""Commit a manifest that the caller saved.

This is the verb `update_latest` of the nine low-level ones.
"""

import asyncio
from dataclasses import replace

from pyspark_checkpointer.admin.rollback import rollback
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.fencing import Base
from pyspark_checkpointer.checkpoint.latest import Head, read_head
from pyspark_checkpointer.checkpoint.metering import Meter, blocking
from pyspark_checkpointer.checkpoint.metrics import written
from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Pointer, Ref
from pyspark_checkpointer.storage.base import ObjectNotFoundError


async def update_latest(session: Session, wanted: CheckpointSelector) -> CheckpointId:
    """Commit a saved manifest; an older live checkpoint is a rollback.

    Returns the id that is committed now. Nothing changes where that is committed already.
    """
    since = session.swaps
    # A manifest that was only saved is in no history, so only its whole id can name it.
    checkpoint = wanted.id or await find(session, wanted)
    base = await session.base()
    if base.migrated is not None:
        raise InvalidStateError(
            f"{session.store.url}: a migration is pending, and a saved manifest would not contain it: commit it "
            "with begin(), or discard it with restore()"
        )
    if base.parent is not None and base.parent.id == checkpoint:
        # The session's base may be old. If somebody has committed on top since, the id is not what is committed now,
        # and the call is no success.
        now = (await read_head(session.store)).committed
        if now is not None and now.id == checkpoint:
            return checkpoint
    if checkpoint.sequence <= base.head.sequence:
        session.refuse_late(since, "this one looked for the checkpoint: call it again")
        return await rollback(session, CheckpointSelector.parse(checkpoint))
    return await _commit_saved(session.reports.meter(), session, base, checkpoint)


@blocking
async def _commit_saved(meter: Meter, session: Session, base: Base, checkpoint: CheckpointId) -> CheckpointId:
    """Commit a saved manifest with one swap.

    The manifest and all objects that it names are checked first.
    """
    async with session.lock:
        try:
            ref, found = await metadata.find_manifest(session.store, checkpoint)
        except ObjectNotFoundError:
            raise CheckpointNotFoundError(
                f"{session.store.url}: no manifest of {checkpoint}: save_manifest() first"
            ) from None
        try:
            manifest = await metadata.load_operators(session.store, session.host, found)
            # First what the manifest says, then what is there: a wrong parent needs no requests to be refused.
            _check_attempt(session, base.parent, base.manifest, manifest)
            await _check_written(session, manifest)
        except ObjectNotFoundError as error:
            # On the version that was restored nobody has cleaned up, so the object was never written.
            if (await read_head(session.store)).version == base.head.version:
                raise InvalidStateError(
                    f"{session.store.url}: {checkpoint} names an object that was never written ({error}): write "
                    "all objects of a manifest before you commit it, or begin another attempt"
                ) from None
            raise ConflictError(
                f"{session.store.url}: objects of {checkpoint} were deleted by a cleanup, because another "
                f"writer committed meanwhile: it was not committed ({error}); call restore() and go on from there"
            ) from None

        async def edit_pointer(head: Head, pointer: Pointer) -> Pointer:
            # Somebody else's prepared checkpoint has to be committed or dropped explicitly; a saved manifest must not
            # push it aside.
            if head.prepared != ref:
                session.refuse_prepared(head.prepared)
            return replace(pointer, committed=ref, prepared=None)

        meter.operators = await session.host.run(lambda: written(manifest, base.manifest))
        with session.reports.committing(meter, checkpoint, manifest.epoch):
            await session.commit_pointer(base, ref, manifest, edit_pointer)
        return checkpoint


def _check_attempt(session: Session, parent: Ref | None, before: Manifest | None, manifest: Manifest) -> None:
    """Raise unless a saved manifest may be committed.

    It has to follow the parent, and to name only objects of the parent and objects written for it.
    """
    expected = 1 if parent is None else parent.id.sequence + 1
    if manifest.parent != parent or manifest.id.sequence != expected:
        raise InvalidStateError(
            f"{session.store.url}: {manifest.id} has parent {manifest.parent and manifest.parent.id}, but "
            f"{parent and parent.id} was restored: save it again on top of that, under a new id"
        )
    # Only the parent's objects may be reused: an object of an abandoned attempt may be deleted at any time by a cleanup
    # that found it to be garbage.
    known = metadata.objects_of(parent, before) if parent is not None and before is not None else set()
    for path in metadata.objects_of(Ref(manifest.id, ""), manifest) - known:
        if object_paths.owner(path) != manifest.id:
            raise IllegalArgumentError(f"{path}: neither of the parent nor written for {manifest.id}")
    for name, operator in manifest.operators.items():
        for artifact in set(operator.artifacts()):
            written = object_paths.parse_artifact(artifact.path)
            # Objects of the parent may be in the folder of an operator's former name; new ones have no reason to be.
            if written.id == manifest.id and written.operator != name:
                raise IllegalArgumentError(f"{artifact.path}: was written for {written.operator!r}, not for {name!r}")


async def _check_written(session: Session, manifest: Manifest) -> None:
    """Read the last byte of every object that the attempt wrote.

    A saved manifest may name objects that were never written.
    """
    artifacts = (artifact for operator in manifest.operators.values() for artifact in operator.artifacts())
    sizes = {artifact.path: artifact.size for artifact in artifacts}

    async def check(path: str, size: int) -> None:
        # An empty object has no last byte to read, so it is read as a whole.
        if not size:
            await session.store.get(path, limit=0)
        # The last byte shows that the object is there and long enough. Reading all of it would cost as much as writing
        # it did.
        elif not await session.store.get_range(path, size - 1, 1):
            raise CorruptionError(f"{path}: expected {size} bytes, found fewer: begin another attempt")

    await asyncio.gather(
        *(check(path, size) for path, size in sizes.items() if object_paths.owner(path) == manifest.id)
    )
