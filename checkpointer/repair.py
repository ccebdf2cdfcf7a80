"""Repair: giving a root whose `_latest` is missing, damaged, or leads nowhere a committed checkpoint again.

Nothing is decided here: somebody chose one of the candidates (`candidates.py`). It is copied under a new id above
every sequence in the store, with all its objects, since whatever lies at or below may be swept by somebody who saw it
dead. Before the swap nothing has changed.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

from checkpointer import objects
from checkpointer.candidates import Survey, survey
from checkpointer.errors import CheckpointNotFoundError, CorruptionError, InvalidStateError
from checkpointer.export import Copier
from checkpointer.fallback import find_intact
from checkpointer.history import newest_above, read_history
from checkpointer.pointer import Head, read_damaged, read_head, reading
from checkpointer.session import Base, Session
from checkpointer.store.base import ObjectNotFoundError
from manifests.model import Catalog, CatalogEntry, CatalogRef, CheckpointId, Manifest, Pointer, Ref

logger = logging.getLogger("checkpointer")


async def repair(session: Session, to: CheckpointId) -> CheckpointId:
    """Commit a copy of a candidate as the first checkpoint of a new history. Returns the new id.

    Savepoints are kept where the catalog is known, and copied too where only its remains are.
    """
    url = session.store.url
    async with session.lock:
        head, latest = await read_damaged(session.store)
        found = await survey(session, latest)
        if head.pointer is not None and not await _is_old(session, head):
            await _refuse_sound(session)
        ref, manifest = await _choose(session, found, to)
        top = max(found.top, head.sequence)
        catalogued = head.pointer is not None and await _reads_catalog(session, head)
        savepoints = [] if catalogued else found.savepoints
        ids = [session.draw_id(top + number) for number in range(len(savepoints) + 1)]
        copier = Copier(session.store, session, ids[0])
        try:
            entries = await _copy_savepoints(session, copier, savepoints, ids)
            copied, whole = await copier.copy(manifest, ids[-1])
        except ObjectNotFoundError as missing:
            raise CorruptionError(f"{url}: {ref.id} names an object that is gone: {missing}: choose another") from None
        catalog = await _write_catalog(session, copied.id, entries)

        async def plan(head: Head, pointer: Pointer) -> Pointer:
            epoch = max(pointer.writer.epoch, copied.id.sequence)  # how many there were cannot be read any more
            return replace(
                pointer,
                writer=replace(pointer.writer, epoch=epoch),
                committed=copied,
                prepared=None,
                boundary=copied.id.sequence,
                catalog=pointer.catalog if catalogued else catalog,
                retired=(),
            )

        session.stand_on_commit(await session.move(Base(head, None), copied, plan), copied, whole)
    logger.warning("%s: repaired to %s, as %s; nothing older is kept but savepoints", url, ref.id, copied.id)
    return copied.id


async def _is_old(session: Session, head: Head) -> bool:
    """Whether `_latest` is an old copy that somebody put there."""
    newest = await newest_above(session.store, head)
    return newest is not None and (await read_head(session.store)).version == head.version


async def _refuse_sound(session: Session) -> None:
    """Where the history can be proven, and something in it is intact, a rollback does all that is needed."""
    store = session.store
    try:
        await reading(store, lambda head: read_history(store, head))
        intact = (await find_intact(session)).manifest
    except CorruptionError:
        return
    raise InvalidStateError(
        f"{store.url}: its history can be read, and {intact.id if intact else 'all there is, nothing,'} is intact: "
        "there is nothing to repair; rollback(to=…) goes back to an older checkpoint"
    )


async def _choose(session: Session, found: Survey, to: CheckpointId) -> tuple[Ref, Manifest]:
    url = session.store.url
    chosen = next((candidate for candidate in found.candidates if candidate.id == to), None)
    if chosen is None:
        raise CheckpointNotFoundError(f"{url}: no manifest of {to}: repair_candidates() lists those there are")
    if chosen.problems:
        raise CorruptionError(f"{url}: {to} is not whole: {'; '.join(chosen.problems[:3])}: choose another candidate")
    ref, manifest = found.manifests[to]
    return ref, await objects.load_operators(session.store, session.host, manifest)


async def _reads_catalog(session: Session, head: Head) -> bool:
    assert head.pointer is not None
    try:
        await objects.read_catalog(session.store, head.pointer.catalog)
    except (CorruptionError, ObjectNotFoundError):
        return False
    return True


async def _copy_savepoints(
    session: Session, copier: Copier, savepoints: Sequence[CatalogEntry], ids: Sequence[CheckpointId]
) -> list[CatalogEntry]:
    """The entries of their copies. One that is damaged is lost, and does not hold up the rest."""
    entries = []
    for entry, checkpoint in zip(savepoints, ids, strict=False):
        try:
            manifest = await objects.read_manifest(session.store, session.host, entry.ref)
            ref, _ = await copier.copy(manifest, checkpoint)
        except (CorruptionError, ObjectNotFoundError) as error:
            logger.warning("%s: savepoint %r of %s is lost: %s", session.store.url, entry.name, entry.ref.id, error)
            continue
        entries.append(replace(entry, ref=ref, nonce=session.host.token(32)))
    return entries


async def _write_catalog(
    session: Session, committed: CheckpointId, entries: Sequence[CatalogEntry]
) -> CatalogRef | None:
    if not entries:
        return None
    return await objects.write_catalog(session.store, Catalog(session.draw_id(committed.sequence), tuple(entries)))
