"""Repair a root whose `_latest` is missing, damaged, or leads nowhere.

The root gets a committed checkpoint again.

    scan the store → examine the candidate → copy all objects → write manifests and a catalog → compare-and-swap _latest

The caller chose one of the candidates (`repair_candidates.py`). It is copied with all its objects under a new id, above
every sequence in the store. A cleanup that found an object to be garbage may still delete it, unless its sequence is
above those in the store. Before the swap nothing has changed, and a repair that fails deletes what it wrote. Where a
candidate is damaged, `salvage.py` finds its intact parts; they are committed only for a caller who accepts the loss.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark_checkpointer.admin.candidate import choose_candidate
from pyspark_checkpointer.admin.export import Copier
from pyspark_checkpointer.admin.losses import RepairPlan
from pyspark_checkpointer.admin.repair_candidates import scan_store
from pyspark_checkpointer.admin.salvage import Salvage, salvage
from pyspark_checkpointer.admin.slices import extract_slices
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.fencing import Base
from pyspark_checkpointer.checkpoint.history import is_live, read_history
from pyspark_checkpointer.checkpoint.intact import Intact, find_intact
from pyspark_checkpointer.checkpoint.latest import NEWEST, Head, read_consistent, read_damaged
from pyspark_checkpointer.checkpoint.old_copy import find_above
from pyspark_checkpointer.checkpoint.resolve import repair_copy
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Catalog, CatalogEntry, CatalogRef, CheckpointId, Manifest, Pointer, Ref
from pyspark_checkpointer.runtime.host import Progress
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import DAMAGE, ObjectNotFoundError, ObjectRefusedError

_COMMITS_LEFT = 1_000_000
"""Sequences that have to be left for a repair, and for the commits after it."""


async def plan_repair(session: Session, to: CheckpointSelector, progress: Progress | None = None) -> RepairPlan:
    """Return what `repair` would keep of a candidate, and what would be missing.

    Only reads.
    """
    return (await _examine(session, to, progress)).salvage.plan


async def repair(
    session: Session,
    wanted: CheckpointSelector,
    *,
    accept_loss: bool = False,
    older_partitions: bool = False,
    progress: Progress | None = None,
) -> CheckpointId:
    """Commit a copy of a candidate as the first checkpoint of a new history.

    Returns the new id. Savepoints are kept if `_latest` leads to the newest catalog. Otherwise those in the newest
    catalogs of the store are copied too. If something would be missing, nothing is written unless the caller accepts
    the loss.
    """
    if older_partitions and not accept_loss:
        raise IllegalArgumentError("older_partitions=True: makes a mix of batches, which goes with accept_loss=True")
    url = session.store.url
    since = session.swaps
    # Without the lock: `progress` is the user's, and may call this library.
    examined = await _examine(session, wanted, progress)
    async with session.lock:
        # What was prepared since would be dropped, and its caller was told that it is there.
        session.refuse_late(since, "the repair compared objects: call it again")
        head, plan = examined.head, examined.salvage.plan
        to = plan.id
        if not plan and not accept_loss:
            other = (
                f"rollback(to=…), or `checkpointer rollback`: {examined.intact} is intact; or "
                if examined.intact
                else ""
            )
            raise CorruptionError(
                f"{url}: {to} is not whole: {plan.summary()}: {other}choose another candidate; or repair_plan() "
                "lists what would be missing of this one, and accept_loss=True, or --accept-loss on the command "
                "line, "
                "commits the rest. Nothing was written"
            )
        savepoints = [entry for entry in examined.savepoints if entry.name not in plan.savepoints]
        top = examined.top
        # The committed checkpoint needs the highest sequence, so the candidate is copied last, after the savepoints.
        ids = [session.draw_id(top + number) for number in range(len(savepoints) + 1)]
        own_catalog = session.draw_id(ids[-1].sequence)
        # Before anything is copied: a store that ignores conditions is refused.
        await session.prove_conditions(head)
        try:
            copied, whole, entries = await _copy_all(session, examined, savepoints, ids, older_partitions)
            catalog = await _write_catalog(session, own_catalog, entries)
        except BaseException as error:
            await _discard(session, head, {*ids, own_catalog})
            if isinstance(error, ObjectNotFoundError):
                raise CorruptionError(f"{url}: {to} names an object that is gone: {error}: choose another") from None
            raise

        async def edit_pointer(head: Head, pointer: Pointer) -> Pointer:
            # The number of takeovers may be lost with `_latest`. The epoch must not fall, so the sequence stands in.
            epoch = max(pointer.writer.epoch, copied.id.sequence)
            return replace(
                pointer,
                writer=replace(pointer.writer, epoch=epoch),
                committed=copied,
                prepared=None,
                boundary=copied.id.sequence,
                # A catalog that can be read stays: its savepoints are live in the version that is swapped on.
                catalog=pointer.catalog if examined.has_catalog else catalog,
                retired=(),
            )

        # The swap begins on the version that was examined: of two repairs, or of a repair and a commit, only one takes
        # effect.
        try:
            await session.commit_pointer(Base(head, None), copied, whole, edit_pointer)
        except StoreRefusedError:
            # The disk may be full. A store may say so of a swap that took effect too, so `_latest` is asked.
            await _discard(session, head, {*ids, own_catalog})
            raise
    log_safely(
        logging.WARNING,
        "%s: repaired to %s, as %s; of the older checkpoints only savepoints are kept",
        url,
        to,
        copied.id,
    )
    if plan.unproven:
        log_safely(logging.WARNING, "%s: %s", url, "; ".join(plan.renames))
    if not plan:
        instead = "replaced by an older state if there was one" if older_partitions else "left out"
        log_safely(logging.WARNING, "%s: %s was committed with a loss, %s: %s", url, copied.id, instead, plan)
    return copied.id


@dataclass(frozen=True, slots=True)
class _Examined:
    """A root that is to be repaired, and the candidate that was chosen."""

    head: Head
    top: int
    """The highest sequence in any name, and in `_latest`."""
    has_catalog: bool
    """True if `_latest` leads to the newest catalog, and that can be read, or to none.

    Then the catalog stays as it is.
    """
    savepoints: Sequence[CatalogEntry]
    """The savepoints that have to be copied, as the catalog cannot be read."""
    salvage: Salvage
    intact: CheckpointId | None
    """A live checkpoint that needs no repair, where there is one."""


async def _examine(session: Session, wanted: CheckpointSelector, progress: Progress | None) -> _Examined:
    """Read all that a repair needs to know.

    Raises `InvalidStateError` where there is nothing to repair.
    """
    # The version is read first, before the listing: a commit that comes later makes the swap fail.
    head, latest = await read_damaged(session.store)
    found = await scan_store(session, head, latest)
    to = choose_candidate(found.candidates, session.store.url, wanted)
    # Where the history can be proven and has an intact checkpoint, only a live checkpoint that is damaged is repaired.
    intact = None
    is_proven = head.pointer is not None and (await find_above(session.store, head)).newer is None
    if is_proven:
        intact = await _find_intact(session)
    if intact is not None and not await read_consistent(session.store, lambda head: is_live(session.store, head, to)):
        raise _nothing_to_repair(session, intact, retired=to if to.sequence < head.boundary else None)
    # An old copy knows nothing of the savepoints that were made since. An earlier repair that died may have left newer
    # manifests too, and no newer catalog.
    has_catalog = head.pointer is not None and (is_proven or _is_newest(head.pointer.catalog, found.catalogs))
    has_catalog = has_catalog and await _reads_catalog(session, head)
    savepoints = () if has_catalog else found.savepoints
    # `_latest` may name a sequence that no object in the store has any more.
    top, top_path = max((found.top, found.top_path), (head.sequence, object_paths.LATEST))
    if top + len(savepoints) + _COMMITS_LEFT > NEWEST:
        raise InvalidStateError(
            f"{session.store.url}/{top_path}: has the sequence {top}, and a repair needs higher ones, of which too few "
            "are left: no job gets so far, so somebody put it there: keep a copy of it, delete it, and repair then"
        )
    made = await salvage(session, found, to, savepoints, progress)
    if intact is not None and made.plan:
        raise _nothing_to_repair(session, intact)
    return _Examined(
        head, top, has_catalog, savepoints, made, intact.manifest.id if intact and intact.manifest else None
    )


async def _find_intact(session: Session) -> Intact | None:
    """Return the newest intact checkpoint; None where the history cannot be proven.

    Where there is one, a rollback is enough.
    """
    store = session.store
    try:
        # An intact committed checkpoint is not enough: where its ancestry is broken, going back is not possible.
        await read_consistent(store, lambda head: read_history(store, head))
        return await find_intact(session)
    # Only damage counts, and what the store shows to nobody. One that does not answer is no reason for a repair.
    except (CorruptionError, ObjectRefusedError):
        return None


def _nothing_to_repair(session: Session, intact: Intact, retired: CheckpointId | None = None) -> InvalidStateError:
    """Return the error for a root that needs no repair.

    `retired` is the wanted checkpoint where retention may have retired it: no rollback goes back to that.
    """
    what = intact.manifest.id if intact.manifest else "all there is, nothing,"
    if retired is None:
        advice = "rollback(to=…), or `checkpointer rollback`, goes back to an older checkpoint"
    else:
        advice = f"{retired} was retired, or never committed; {repair_copy(retired)}"
    return InvalidStateError(
        f"{session.store.url}: its history can be read, and {what} is intact: there is nothing to repair; {advice}"
    )


def _is_newest(catalog: CatalogRef | None, sequences: Mapping[str, int]) -> bool:
    """Return whether no catalog may be newer than the one that `_latest` names."""
    path = None if catalog is None else catalog.path
    own = sequences.get(path, 0) if path is not None else 0
    return all(sequence < own for other, sequence in sequences.items() if other != path)


async def _reads_catalog(session: Session, head: Head) -> bool:
    """Return whether the catalog that `_latest` names can be read.

    No catalog at all counts as one.
    """
    assert head.pointer is not None
    try:
        await metadata.read_catalog(session.store, head.pointer.catalog)
    except DAMAGE:
        return False
    return True


async def _copy_all(
    session: Session,
    examined: _Examined,
    savepoints: Sequence[CatalogEntry],
    ids: Sequence[CheckpointId],
    older_partitions: bool,
) -> tuple[Ref, Manifest, list[CatalogEntry]]:
    """Copy the candidate, and the savepoints that are whole.

    Returns the copy of the candidate, and the entries of the copied savepoints.
    """
    # One copier for all, so that objects which savepoints and the candidate share are copied once. They carry the
    # lowest of the new ids, which is at or below that of every checkpoint that names them.
    copier = Copier(session.store, session, ids[0])
    for entry in savepoints:
        await copier.copy_objects(await metadata.read_manifest(session.store, session.host, entry.ref))
    content = examined.salvage.content(older_partitions=older_partitions)
    content = await extract_slices(session, content, examined.salvage.copied_by_slice, ids[0])
    await copier.copy_objects(content)
    # The manifests come after all objects, which take long to copy: a repair that is killed meanwhile leaves no old
    # states with high sequences. They are read once more, since all of them together may not fit into the memory.
    entries = []
    # There is one id more than savepoints: the last one is for the candidate.
    for entry, checkpoint in zip(savepoints, ids, strict=False):
        manifest = await metadata.read_manifest(session.store, session.host, entry.ref)
        ref, _ = await copier.write_manifest(manifest, checkpoint)
        entries.append(replace(entry, ref=ref, nonce=session.host.token(32)))
    copied, whole = await copier.write_manifest(content, ids[-1])
    return copied, whole, entries


async def _discard(session: Session, head: Head, ids: Collection[CheckpointId]) -> None:
    """Delete what a repair wrote under its ids, unless `_latest` has moved since.

    No cleanup deletes it before the root is repaired, and a full disk may have no room for another try.
    """
    store = session.store
    # The caller has to learn why the repair failed, not of a request that failed after it.
    with suppress(CheckpointError):
        owned = [entry.path for entry in await store.list("") if object_paths.owner(entry.path) in ids]
        now, _ = await read_damaged(store)
        if now.version == head.version:
            # One after the other, so that none names an object that is gone: the next repair looks at what is left.
            for folder in (object_paths.CATALOGS, object_paths.MANIFESTS, object_paths.ARTIFACTS):
                await store.delete([path for path in owned if path.startswith(folder)])


async def _write_catalog(session: Session, catalog: CheckpointId, entries: Sequence[CatalogEntry]) -> CatalogRef | None:
    """Write a catalog of the copied savepoints under an id; return None without any."""
    if not entries:
        return None
    return await metadata.write_catalog(session.store, Catalog(catalog, tuple(entries)))
