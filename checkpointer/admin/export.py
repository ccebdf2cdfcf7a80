"""Copy a checkpoint with all objects that it needs.

The target is another root, or a new id in a root that is repaired.

    GET object → size and digest → PUT under the id of this attempt … → PUT manifest → compare-and-swap _latest

A copy is a new commit: the path of every object has the id of the attempt that writes it. The content of the objects,
their digests and the chains stay the same. A crash leaves only garbage in the target.
"""

import logging
from dataclasses import replace

from pyspark_checkpointer.checkpoint import metadata, upload
from pyspark_checkpointer.checkpoint.comparison import Comparison
from pyspark_checkpointer.checkpoint.fencing import Base
from pyspark_checkpointer.checkpoint.latest import Head, find_head, read_consistent
from pyspark_checkpointer.checkpoint.resolve import read_live
from pyspark_checkpointer.checkpoint.restore import explaining
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.upload import UploadQueue
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Manifest, Operator, Pointer, Ref
from pyspark_checkpointer.manifests.segments import SegmentObject
from pyspark_checkpointer.runtime.host import HASH_INLINE, Progress, tell
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import Store


class Copier:
    """Copies checkpoints from one store to another, or within one.

    The paths of all copies have the id of `owner`. Objects that several checkpoints share are copied once.
    """

    def __init__(self, source: Store, target: Session, owner: CheckpointId, progress: Progress | None = None) -> None:
        self._source = source
        self._target = target
        self._owner = owner
        self._progress = progress
        self._written: set[str] = set()
        self._moved: dict[str, str] = {}
        """The path of each object's copy."""
        self._done = self._total = 0

    async def copy(self, manifest: Manifest, checkpoint: CheckpointId) -> tuple[Ref, Manifest]:
        """Write a checkpoint of this content without a parent, and its manifest.

        Nothing is committed.
        """
        await self.copy_objects(manifest)
        return await self.write_manifest(manifest, checkpoint)

    async def copy_objects(self, manifest: Manifest) -> None:
        """Copy the objects that a checkpoint of this content needs."""
        names: dict[str, set[Artifact]] = {}
        for operator in manifest.operators.values():
            for artifact in operator.artifacts():
                names.setdefault(artifact.path, set()).add(artifact)
        # The objects get the id of this attempt: an object of another attempt may be garbage that a cleanup is deleting
        # (SPEC.md, the one rule).
        moved = {path: object_paths.under(path, self._owner) for path in names}
        self._moved |= moved
        # One of which nobody reads a byte may be missing (SPEC, Restore), also under its new path.
        read = {path: artifacts for path, artifacts in names.items() if any(one.length for one in artifacts)}
        await self._copy_missing({moved[path]: artifacts for path, artifacts in read.items()})

    async def write_manifest(self, manifest: Manifest, checkpoint: CheckpointId) -> tuple[Ref, Manifest]:
        """Write the segments and the manifest of a checkpoint whose objects are copied."""
        host = self._target.host

        def make_manifest() -> tuple[Manifest, list[SegmentObject]]:
            operators = {name: _with_new_paths(operator, self._moved) for name, operator in manifest.operators.items()}
            # What the source cost, and fields that a later version added, say nothing about the copy.
            copied = replace(
                manifest, id=checkpoint, parent=None, created=host.now(), operators=operators, cost=None, extra={}
            )
            return metadata.spill(copied, None)

        return await metadata.write_with_segments(self._target.store, host, make_manifest)

    async def _copy_missing(self, wanted: dict[str, set[Artifact]]) -> None:
        """Copy the objects that are not copied yet.

        `wanted` has the artifacts in each object, by its new path. Equal deltas that several attempts wrote become one
        object here.
        """
        # What several checkpoints share was copied with the first of them.
        missing = {path: artifacts for path, artifacts in wanted.items() if path not in self._written}
        sizes = {path: min(artifact.size for artifact in artifacts) for path, artifacts in missing.items()}
        self._total += sum(sizes.values())
        await self._tell(0)
        queue = UploadQueue()
        try:
            for path, artifacts in missing.items():
                await queue.submit_copy(self._copy_object(path, sizes[path], artifacts), sizes[path])
            await queue.join()
        finally:
            # After an error, no copy may go on in the background: the caller closes the stores.
            await queue.cancel()

    async def _copy_object(self, path: str, size: int, artifacts: set[Artifact]) -> None:
        """Read an object, compare it with its name and the manifest, then write the copy."""
        source = next(iter(artifacts)).path
        data = (await self._source.get(source, limit=size)).data
        comparison = Comparison(source, size, artifacts)
        # The copy is compared before it is written. Damage is found here, and not by whoever restores the copy.
        if len(data) <= HASH_INLINE:
            comparison.compare(data)
        else:
            await self._target.host.run(lambda: comparison.compare(data))
        await upload.put_once(self._target.store, path, data)
        self._written.add(path)
        await self._tell(size)

    async def _tell(self, size: int) -> None:
        """Tell the caller's `progress` that `size` more bytes are copied."""
        self._done += size
        await tell(self._target.host, self._progress, self._done, self._total)


def _with_new_paths(operator: Operator, moved: dict[str, str]) -> Operator:
    """Return the operator with the paths of the copied objects, and without segments."""
    chains = {
        partition: tuple(replace(artifact, path=moved[artifact.path]) for artifact in chain)
        for partition, chain in operator.chains.items()
    }
    return replace(operator, chains=chains, segments=(), patches=())


async def export(
    session: Session, what: CheckpointSelector, target: Session, progress: Progress | None
) -> CheckpointId:
    """Copy a live checkpoint to an empty root, and return its id there.

    It is the first commit of the target. Nothing is written to the source, and nobody is fenced. Raises `RetiredError`
    where the checkpoint was retired meanwhile, and `InvalidStateError` where the target is in use. Closes the session
    of the target.
    """
    try:
        return await _export(session, what, target, progress)
    finally:
        await target.close()


async def _export(
    session: Session, what: CheckpointSelector, target: Session, progress: Progress | None
) -> CheckpointId:
    """Export as `export` does, without closing the target."""
    # Asked first, before anything is read: reading may take long.
    await refuse_used(target)
    ref, manifest = await read_consistent(session.store, lambda head: read_live(session, head, what))
    job = manifest.job
    if job is not None and job.spark is not None:
        # The query goes on with the first root: a rewind of the copy must not cut its progress in Spark.
        job = replace(job, spark=replace(job.spark, location=""))
    return await create_root(session, ref.id, replace(manifest, job=job), target, progress)


async def create_root(
    session: Session, source: CheckpointId, manifest: Manifest, target: Session, progress: Progress | None
) -> CheckpointId:
    """Copy a live checkpoint to an empty root, and commit it there as the first one.

    The copy has the content of `manifest`, and a new id, which is returned.
    """
    # Before anything is copied: on a store that ignores conditions, the swap at the end could bury a history.
    await target.prove_conditions(Head())
    checkpoint = target.draw_id(0)
    copier = Copier(session.store, target, checkpoint, progress)
    # The source is not locked, so the checkpoint may be retired and swept while it is copied; then the error says so.
    copied, _ = await explaining(session, lambda: copier.copy(manifest, checkpoint), source)

    async def edit_pointer(head: Head, pointer: Pointer) -> Pointer:
        return replace(pointer, committed=copied)

    # On the condition that there is no `_latest`: of two exports to one root, one fails.
    await target.swap_pointer(Base(Head(), None), copied, edit_pointer)
    log_safely(logging.INFO, "%s: copied %s to %s, as %s", session.store.url, source, target.store.url, checkpoint)
    return checkpoint


async def refuse_used(target: Session) -> None:
    """Raise `InvalidStateError` unless a root is empty.

    A copy to a root in use could bury its history. An export that was interrupted left only objects of sequence 1. They
    are no obstacle.
    """
    url = target.store.url
    if (await find_head(target.store)).version is not None:
        raise InvalidStateError(f"{url}: holds a store already: export to an empty root")
    # A missing `_latest` alone does not make a root empty: it may be lost, and then the root is one to repair.
    owners = (object_paths.owner(entry.path) for entry in await target.store.list(object_paths.MANIFESTS))
    if any(owner is not None and owner.sequence > 1 for owner in owners):
        raise InvalidStateError(
            f"{url}: holds checkpoints, and no {object_paths.LATEST}: export to an empty root; if this one was in use, "
            "repair_candidates(), or `checkpointer repair`, lists what it can be repaired to"
        )
