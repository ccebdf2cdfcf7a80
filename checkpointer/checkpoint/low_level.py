"""Define the verbs that write or read one object each.

They are for callers that put a checkpoint together themselves.
"""

from dataclasses import replace

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.download import read_artifact, read_by_path
from pyspark_checkpointer.checkpoint.latest import Head, read_consistent, read_head
from pyspark_checkpointer.checkpoint.resolve import resolve
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.upload import ChainSlot, EncodedBlob, Uploader
from pyspark_checkpointer.errors import CheckpointNotFoundError, CorruptionError, IllegalArgumentError
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Kind, Manifest
from pyspark_checkpointer.storage.base import ObjectNotFoundError


async def save_artifact(
    session: Session, checkpoint: CheckpointId, operator: str, partition: int, kind: Kind, data: bytes
) -> Artifact:
    """Write opaque bytes as an object of their own, under the attempt's id.

    This needs no session state, because tasks call it.
    """
    slot = ChainSlot(operator, object_paths.check_partition(partition), codecs.RAW.name)
    object_paths.encode_name("operator", operator)
    # No cleanup deletes an object whose path is not exactly of the format.
    if object_paths.owner(object_paths.manifest(checkpoint)) != checkpoint:
        raise IllegalArgumentError(
            f"{checkpoint}: no checkpoint can have this id: take that of a checkpoint, or new_id()"
        )
    uploader = Uploader(session.store, session.host, checkpoint)
    await uploader.write(slot, EncodedBlob(kind, data, len(data), 1), None)
    await uploader.flush(operator, slot.codec)
    return slot.artifacts[0]


async def save_manifest(session: Session, manifest: Manifest) -> None:
    """Write a manifest, and the segments it needs.

    It becomes a checkpoint only by `update_latest`.
    """
    if not isinstance(manifest, Manifest):
        raise IllegalArgumentError(f"expected a Manifest, got {type(manifest).__name__}")
    base = await session.base()
    # Segments may only be taken over from the manifest that it names as its parent: others may be dead.
    parent = base.manifest if base.parent == manifest.parent else None
    complete = replace(manifest, created=manifest.created or session.host.now())
    await metadata.write_with_segments(session.store, session.host, lambda: metadata.spill(complete, parent))


async def load_artifact(session: Session, artifact: Artifact | str) -> bytes:
    """Return the verified stored bytes of an artifact.

    A path names a whole object. It must hold the object's digest.
    """
    if isinstance(artifact, Artifact):
        return await read_artifact(session.store, session.host, artifact)
    if not isinstance(artifact, str):
        raise IllegalArgumentError(f"expected an Artifact or its path, got {type(artifact).__name__}")
    try:
        # The path comes from the caller. Only one of the format's is looked up, so that nothing else below or outside
        # the root is read.
        object_paths.parse_artifact(artifact)
    except CorruptionError as error:
        raise IllegalArgumentError(str(error)) from None
    return await read_by_path(session.store, session.host, artifact)


async def load_manifest(session: Session, wanted: CheckpointSelector) -> Manifest:
    """Return the manifest that is meant, with all its chains.

    By its whole id it may be a manifest that nobody committed.
    """
    checkpoint = wanted.id
    # Only an id leads to what is in no history. In every other form a live checkpoint is meant, or the prepared one.
    if checkpoint is None:
        return await read_consistent(session.store, lambda head: _read_meant(session, head, wanted))
    try:
        _, manifest = await metadata.find_manifest(session.store, checkpoint)
    except ObjectNotFoundError:
        raise CheckpointNotFoundError(f"{session.store.url}: no manifest of {checkpoint}") from None
    return await metadata.load_operators(session.store, session.host, manifest)


async def _read_meant(session: Session, head: Head, wanted: CheckpointSelector) -> Manifest:
    return await metadata.read_manifest(session.store, session.host, await resolve(session, head, wanted))


async def read_latest(session: Session) -> CheckpointId | None:
    committed = (await read_head(session.store)).committed
    return None if committed is None else committed.id
