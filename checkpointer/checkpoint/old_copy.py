"""Find out whether `_latest` is lost, or is an old copy that somebody put back.

A manifest above all attempts on `_latest` proves it. Who deletes or buries what `_latest` does not lead to asks first.
"""

from pyspark_checkpointer.checkpoint.latest import NEWEST, Head, find_head, list_sizes, read_head
from pyspark_checkpointer.checkpoint.metadata import find_manifest, is_copy
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.storage.base import DAMAGE, Store


async def read_whole_head(store: Store) -> Head:
    """Return the content of `_latest`, for work that deletes what it does not lead to.

    Raises `InvalidStateError` where `read_head` does. Raises it, too, where `_latest` is an old copy that somebody put
    back, and where it is missing beside a manifest with the sequence 1.
    """
    head = await read_head(store)
    await refuse_old_copy(store, head)
    # Without `_latest`, nothing tells whether the only manifest is of an attempt, or of the only commit.
    if head.pointer is None and (first := await list_sizes(store, 1, 1)) and await _is_unmoved(store, head):
        raise _lost(store, head, first[-1][0])
    return head


async def refuse_old_copy(store: Store, head: Head | None = None) -> None:
    """Raise `InvalidStateError` if `_latest` is lost or is an old copy.

    With `head` that version is looked at. For work that deletes or buries what `_latest` does not lead to. It costs a
    listing.
    """
    head = head or await read_head(store)
    if (newer := await find_above(store, head)) is not None:
        raise _lost(store, head, newer)


def _lost(store: Store, head: Head, newer: CheckpointId) -> InvalidStateError:
    return InvalidStateError(
        f"{store.url}: has {'no' if head.pointer is None else 'an old copy of its'} {object_paths.LATEST}, and "
        f"{newer} may be a commit, which would be lost, or an attempt that failed: repair_candidates(), or "
        "`checkpointer repair`, lists what it can be repaired to"
    )


async def find_above(store: Store, head: Head) -> CheckpointId | None:
    """Return the manifest that proves this version to be old or lost, or None.

    It is the newest one above all attempts on this version, as in `newest_above`. Beside a `_latest`, copies by a
    repair do not count: a repair that was killed leaves them above it. What is committed on top of a copy counts.
    Returns None if `_latest` moved meanwhile: the manifest may belong to that newer commit.
    """
    for checkpoint, _ in reversed(await list_sizes(store, head.sequence + 2, NEWEST)):
        if head.pointer is None or not await _is_copy(store, checkpoint):
            return checkpoint if await _is_unmoved(store, head) else None
    return None


async def _is_copy(store: Store, checkpoint: CheckpointId) -> bool:
    """Return whether a manifest can be read, and a repair wrote it."""
    try:
        _, manifest = await find_manifest(store, checkpoint)
    except DAMAGE:
        return False
    return is_copy(manifest)


async def _is_unmoved(store: Store, head: Head) -> bool:
    return (await find_head(store)).version == head.version
