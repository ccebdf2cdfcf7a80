"""The verbs that write one object each.

They are for callers that put a checkpoint together themselves.

Those that read one object, `load_manifest`, `load_artifact` and `read_latest`, are in `restore.py`.
"""

from dataclasses import replace

from pyspark_checkpointer.checkpoint import metadata, upload
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.upload import ChainSlot, EncodedBlob, Uploader
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Kind, Manifest


async def save_artifact(
    session: Session, checkpoint: CheckpointId, operator: str, partition: int, kind: Kind, data: bytes
) -> Artifact:
    """Write opaque bytes as an object of their own, under the attempt's id.

    This needs no session state, because tasks call it.
    """
    slot = ChainSlot(operator, object_paths.check_partition(partition), codecs.RAW.name)
    object_paths.encode_name("operator", operator)
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
    written, segments = await session.host.run(lambda: metadata.spill(complete, parent))
    for segment in segments:
        await upload.put_once(session.store, segment.path, segment.data)
    await metadata.write_manifest(session.store, session.host, written)
