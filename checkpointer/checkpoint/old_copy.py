"""Find out whether `_latest` is lost, or is an old copy that somebody put back.

A manifest above all attempts on `_latest` proves it. Who deletes or buries what `_latest` does not lead to asks first.
"""

import logging
from dataclasses import dataclass

from pyspark_checkpointer.checkpoint.latest import NEWEST, UNREADABLE, Head, find_head, list_sizes, read_head
from pyspark_checkpointer.checkpoint.metadata import MAX_MANIFEST, find_manifest, is_copy
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import DAMAGE, Store


@dataclass(frozen=True, slots=True)
class Above:
    """The manifests above all attempts on a version of `_latest`."""

    newer: CheckpointId | None = None
    """A manifest that proves this version to be old or lost, or None."""
    unproven: CheckpointId | None = None
    """The newest manifest that nobody signed whose signature counts, that cannot be decrypted, or that is too large.

    None without any.
    """

    def unproven_problem(self) -> str:
        """Return what is wrong with the unproven manifest, and what to do."""
        assert self.unproven is not None
        return (
            f"{object_paths.manifest(self.unproven)}: has no signature that counts, or cannot be decrypted, or is "
            "too large: somebody without a key put it there, or it is a newer commit that was damaged, and "
            f"{object_paths.LATEST} is an old copy: compare them with a copy of the root"
        )


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
    above = await find_above(store, head)
    if above.newer is not None:
        raise _lost(store, head, above.newer)
    if above.unproven is not None:
        log_safely(logging.WARNING, "%s: %s", store.url, above.unproven_problem())


def _lost(store: Store, head: Head, newer: CheckpointId) -> InvalidStateError:
    return InvalidStateError(
        f"{store.url}: has {'no' if head.pointer is None else 'an old copy of its'} {object_paths.LATEST}, and "
        f"{newer} may be a commit, which would be lost, or an attempt that failed: repair_candidates(), or "
        "`checkpointer repair`, lists what it can be repaired to"
    )


async def find_above(store: Store, head: Head) -> Above:
    """Return what the manifests above all attempts on this version prove.

    The newest one proves it to be old or lost. Beside a `_latest`, two kinds do not count. The first are copies by a
    repair: a repair that was killed leaves them above it. What is committed on top of a copy counts. The second are
    those that nobody signed who may, that cannot be decrypted, or that are too large: otherwise whoever writes to a
    signed or encrypted root could stop all that deletes. But where such a one lies right above a manifest that can be
    trusted, it may be the damaged child of a commit, and then that commit would be lost. What `_latest` names as
    prepared has no child.

    Returns nothing if `_latest` moved meanwhile: the manifest may belong to that newer commit.
    """
    attempts = head.sequence + 1
    unproven: dict[int, CheckpointId] = {}
    newer = None
    for checkpoint, size in reversed(await list_sizes(store, attempts, NEWEST)):
        sequence = checkpoint.sequence
        is_prepared = head.prepared is not None and checkpoint == head.prepared.id
        has_child = sequence + 1 in unproven and not is_prepared
        # What an attempt on this version left proves nothing by itself.
        if sequence == attempts and not has_child:
            continue
        counts = head.pointer is None or await _counts(store, checkpoint, size)
        if counts is None:
            unproven.setdefault(sequence, checkpoint)
        elif counts or has_child:
            newer = checkpoint
            break
    if not (newer or unproven) or not await _is_unmoved(store, head):
        return Above()
    return Above(newer, max(unproven.values(), default=None))


async def _counts(store: Store, checkpoint: CheckpointId, size: int) -> bool | None:
    """Return whether a manifest counts as a commit. A copy by a repair does not.

    Returns None for one that nobody signed whose signature counts, or that cannot be decrypted. So it does for one that
    is too large: no client writes such a one, and the store refuses to read it before anybody looks at its signature.
    """
    try:
        _, manifest = await find_manifest(store, checkpoint)
    except UNREADABLE as error:
        if error.version is None:  # it is of the list of signers
            raise
        return None
    except DAMAGE:
        return True if size <= MAX_MANIFEST else None
    return not is_copy(manifest)


async def _is_unmoved(store: Store, head: Head) -> bool:
    return (await find_head(store)).version == head.version
