"""What is done to the history of checkpoints: listing, savepoints, deleting, going back.

Savepoint and delete never take over: they swap in the name of whoever is the writer, so that a command line does not
fence the running job. After a refused swap each plans again, wholly, from the version that is there then.
"""

import asyncio
import logging
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import is_live, read_entries, read_history
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop, read_consistent, read_head
from pyspark_checkpointer.checkpoint.metering import Meter, written
from pyspark_checkpointer.checkpoint.prepared import refuse_prepared
from pyspark_checkpointer.checkpoint.require_intact import refuse_damaged
from pyspark_checkpointer.checkpoint.resolve import CheckpointSelector, means_two_things, read_live, resolve_live
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.standing import Base
from pyspark_checkpointer.display import cut, moment, table
from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    ConflictError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    RetiredError,
    SavepointNotFoundError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Catalog, CatalogEntry, CheckpointId, Job, Manifest, Pointer, Ref
from pyspark_checkpointer.runtime.host import Progress
from pyspark_checkpointer.storage.base import ObjectNotFoundError

logger = logging.getLogger("pyspark_checkpointer")


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A checkpoint kept by name until the name is deleted."""

    name: str
    id: CheckpointId
    created: datetime

    def __repr__(self) -> str:
        return f"Savepoint({cut(repr(self.name))}, {self.id}, {moment(self.created)})"

    def _repr_html_(self) -> str:
        return Savepoints([self])._repr_html_()


class Savepoints(list[Savepoint]):
    """A list of savepoints that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        rows = [(savepoint.name, savepoint.id, moment(savepoint.created)) for savepoint in self]
        return table("Savepoints", ("name", "id", "created"), rows)


async def list_checkpoints(session: Session) -> list[CheckpointId]:
    """Return every live checkpoint, oldest first."""

    async def read(head: Head) -> list[CheckpointId]:
        return list((await read_history(session.store, head)).refs())

    return await read_consistent(session.store, read)


async def savepoints(session: Session) -> list[Savepoint]:
    """Every savepoint, oldest checkpoint first. Reads the catalog only, so that damage elsewhere does not matter."""

    async def read(head: Head) -> tuple[CatalogEntry, ...]:
        return await read_entries(session.store, head)

    entries = await read_consistent(session.store, read)
    found = [Savepoint(e.name, e.ref.id, e.created) for e in entries if e.name is not None]
    return Savepoints(sorted(found, key=lambda savepoint: (savepoint.id, savepoint.name)))


async def savepoint(session: Session, name: str, wanted: CheckpointSelector) -> Savepoint:
    """Keep a live checkpoint under a name that is used once."""
    object_paths.encode_name("savepoint", name)
    if means_two_things(name):
        raise IllegalArgumentError(
            f"savepoint {name!r}: reads like the id of a checkpoint, or a number, or like `latest`, `prepared` or "
            "`epoch=41`, and would mean two things: choose another name, such as one that begins with a letter"
        )
    nonce, created = session.host.token(32), session.host.now()
    kept: Ref | None = None

    async def step(head: Head) -> Pointer | None:
        nonlocal kept
        entries = await read_entries(session.store, head)
        taken = next((entry for entry in entries if entry.name == name), None)
        if taken is not None and taken.nonce == nonce:
            return None
        if taken is not None:
            raise IllegalArgumentError(f"savepoint {name!r}: the name is taken, by {taken.ref.id}: choose another")
        if kept is None:
            kept = await resolve_live(session, head, wanted)
        elif await is_live(session.store, head, kept.id) != kept:
            raise RetiredError(f"{session.store.url}: {kept.id} was retired before it became savepoint {name!r}")
        return await recatalogue(session, head, (*entries, CatalogEntry(kept, name, created, nonce)))

    await cas_loop(session.store, await read_head(session.store), step)
    assert kept is not None
    logger.info("%s: savepoint %r keeps %s", session.store.url, name, kept.id)
    return Savepoint(name, kept.id, created)


async def delete_savepoint(session: Session, name: str) -> None:
    """Take a savepoint's name away. Its checkpoint is no longer live then, unless the history still has it."""
    meant: CatalogEntry | None = None

    async def step(head: Head) -> Pointer | None:
        nonlocal meant
        entries = await read_entries(session.store, head)
        if meant is None:
            meant = next((entry for entry in entries if entry.name == name), None)
            if meant is None:
                raise SavepointNotFoundError(f"{session.store.url}: no savepoint {name!r:.80}")
        rest = tuple(entry for entry in entries if entry.nonce != meant.nonce)
        return None if len(rest) == len(entries) else await recatalogue(session, head, rest)

    await cas_loop(session.store, await read_head(session.store), step)
    logger.info("%s: savepoint %r was deleted", session.store.url, name)


async def recatalogue(session: Session, head: Head, entries: tuple[CatalogEntry, ...]) -> Pointer:
    """Return the pointer with a new catalog, under a newly drawn id: no stalled sweep can take it for an old one."""
    assert head.pointer is not None
    ordered = tuple(sorted(entries, key=lambda entry: (entry.ref.id, entry.name or "")))
    ref = (
        await metadata.write_catalog(session.store, Catalog(session.draw_id(head.sequence), ordered))
        if ordered
        else None
    )
    return replace(head.pointer, catalog=ref, nonce=session.host.token(32))


async def rollback(
    session: Session,
    to: CheckpointSelector,
    new: CheckpointId | None = None,
    job: Job | None = None,
    *,
    verified: Ref | None = None,
    progress: Progress | None = None,
) -> CheckpointId:
    """Commit an older live checkpoint's content on top of the history. Drops a prepared one.

    Every object of it is read and compared first: `CorruptionError` where one is damaged. `new` is the id of the
    attempt, where it was drawn already on what is committed; `job` what it says of the job, where that is not what the
    old one says; `verified` a checkpoint that the caller compared just now. `progress` is told bytes.
    """
    meter = session.reports.meter()
    with meter.blocking():
        return await _rollback(session, to, meter, new, job, verified, progress)


async def _rollback(
    session: Session,
    to: CheckpointSelector,
    meter: Meter,
    new: CheckpointId | None,
    job: Job | None,
    verified: Ref | None,
    progress: Progress | None,
) -> CheckpointId:
    async with session.lock:
        session.check_may_write()
        target, old = await read_consistent(session.store, lambda head: read_live(session, head, to))
        if target != verified:
            await refuse_damaged(session, target, old, progress)
        # Only now: comparing may take long, and a job that commits meanwhile is no reason to give up.
        base = await session.rollback_base()  # whatever is committed now, if that is not what was restored
        if target.id.sequence > base.head.sequence:
            raise ConflictError(
                f"{session.store.url}: {target.id} was committed since this session last restored: call restore() first"
            )
        manifest = replace(
            old,
            id=new or session.draw_id(base.head.sequence),
            parent=base.parent,
            created=session.host.now(),
            job=job or old.job,
            cost=meter.cost(),
            extra={},
        )

        async def plan(head: Head, pointer: Pointer) -> Pointer:
            if await is_live(session.store, head, target.id) != target:
                raise RetiredError(f"{session.store.url}: {target.id} was retired before the rollback: choose another")
            return replace(pointer, committed=ref, prepared=None)

        with session.reports.committing(meter, manifest.id, manifest.epoch):
            ref = await metadata.write_manifest(session.store, session.host, manifest)
            head = await session.swap_pointer(base, ref, plan)
        session.rebase_on_commit(head, ref, manifest)
        logger.info("%s: rolled back to %s, as %s", session.store.url, target.id, ref.id)
        return ref.id


async def update_latest(session: Session, checkpoint: CheckpointId) -> CheckpointId:
    """Commit a manifest that was saved under an id of this attempt. A live, older id is a rollback."""
    base = await session.base()
    if base.migrated is not None:
        raise InvalidStateError(
            f"{session.store.url}: a migration is pending, which a saved manifest would leave out: begin() commits it, "
            "restore() gives it up"
        )
    if base.parent is not None and base.parent.id == checkpoint:
        now = (await read_head(session.store)).committed
        if now is not None and now.id == checkpoint:
            return checkpoint
    if checkpoint.sequence <= base.head.sequence:
        return await rollback(session, CheckpointSelector.parse(checkpoint))
    meter = session.reports.meter()
    with meter.blocking():
        return await _commit_saved(session, base, checkpoint, meter)


async def _commit_saved(session: Session, base: Base, checkpoint: CheckpointId, meter: Meter) -> CheckpointId:
    async with session.lock:
        try:
            ref, found = await metadata.find_manifest(session.store, checkpoint)
        except ObjectNotFoundError:
            raise CheckpointNotFoundError(
                f"{session.store.url}: no manifest of {checkpoint}: save_manifest() first"
            ) from None
        try:
            manifest = await metadata.load_operators(session.store, session.host, found)
            _check_attempt(session, base.parent, base.manifest, manifest)
            await _check_written(session, manifest)
        except ObjectNotFoundError as error:
            if (await read_head(session.store)).version == base.head.version:
                raise InvalidStateError(
                    f"{session.store.url}: {checkpoint} names an object that was never written ({error}): write all "
                    "that a manifest names before it is committed, or begin another attempt"
                ) from None
            raise ConflictError(
                f"{session.store.url}: what {checkpoint} names was cleaned up, as others moved on meanwhile: "
                f"it was not committed ({error}); call restore() and go on from there"
            ) from None

        async def plan(head: Head, pointer: Pointer) -> Pointer:
            if head.prepared != ref:
                refuse_prepared(session, head.prepared)
            return replace(pointer, committed=ref, prepared=None)

        meter.operators = await session.host.run(lambda: written(manifest, base.manifest))
        with session.reports.committing(meter, checkpoint, manifest.epoch):
            head = await session.swap_pointer(base, ref, plan)
        session.rebase_on_commit(head, ref, manifest)
        return checkpoint


def _check_attempt(session: Session, parent: Ref | None, before: Manifest | None, manifest: Manifest) -> None:
    """What makes a saved manifest fit to be committed: it follows the parent, and reuses nothing but the parent's."""
    expected = 1 if parent is None else parent.id.sequence + 1
    if manifest.parent != parent or manifest.id.sequence != expected:
        raise InvalidStateError(
            f"{session.store.url}: {manifest.id} has parent {manifest.parent and manifest.parent.id}, but "
            f"{parent and parent.id} was restored: save it again on top of that, under a new id"
        )
    known = metadata.objects_of(parent, before) if parent is not None and before is not None else set()
    for path in metadata.objects_of(Ref(manifest.id, ""), manifest) - known:
        if object_paths.owner(path) != manifest.id:
            raise IllegalArgumentError(f"{path}: neither of the parent nor written for {manifest.id}")
    for name, operator in manifest.operators.items():
        for artifact in {artifact for chain in operator.chains.values() for artifact in chain}:
            written = object_paths.parse_artifact(artifact.path)
            if written.id == manifest.id and written.operator != name:
                raise IllegalArgumentError(f"{artifact.path}: was written for {written.operator!r}, not for {name!r}")


async def _check_written(session: Session, manifest: Manifest) -> None:
    """Ask for the last byte of every object that the attempt wrote: a manifest may stand without what it names."""
    chains = (chain for operator in manifest.operators.values() for chain in operator.chains.values())
    sizes = {artifact.path: artifact.size for chain in chains for artifact in chain}

    async def check(path: str, size: int) -> None:
        if not size:
            await session.store.get(path, limit=0)
        elif not await session.store.get_range(path, size - 1, 1):
            raise CorruptionError(f"{path}: expected {size} bytes, found fewer: begin another attempt")

    await asyncio.gather(
        *(check(path, size) for path, size in sizes.items() if object_paths.owner(path) == manifest.id)
    )
