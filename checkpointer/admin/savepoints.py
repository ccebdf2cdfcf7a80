"""List checkpoints, and keep some of them by name as savepoints.

Making and deleting a savepoint never fences the running job: the swap keeps the writer that is in `_latest`. After a
refused swap each function plans again, from the start, on the version that is there then.
"""

import logging
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import is_live, read_entries, read_history
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop, read_consistent, read_head
from pyspark_checkpointer.checkpoint.resolve import resolve_live
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector, means_two_things
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.display import cut, moment, table
from pyspark_checkpointer.errors import (
    IllegalArgumentError,
    RetiredError,
    SavepointNotFoundError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Catalog, CatalogEntry, CheckpointId, Pointer, Ref
from pyspark_checkpointer.runtime.user_functions import log_safely


@dataclass(frozen=True, slots=True)
class Savepoint:
    """A checkpoint kept by name until the name is deleted."""

    name: str
    """The name."""
    id: CheckpointId
    """The checkpoint that it keeps."""
    created: datetime
    """When it was made, in UTC, by the clock of the process that made it."""

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
    """Return every savepoint, oldest checkpoint first.

    Reads the catalog only, so damage elsewhere does not matter.
    """

    async def read(head: Head) -> tuple[CatalogEntry, ...]:
        return await read_entries(session.store, head)

    entries = await read_consistent(session.store, read)
    found = [Savepoint(e.name, e.ref.id, e.created) for e in entries if e.name is not None]
    return Savepoints(sorted(found, key=lambda savepoint: (savepoint.id, savepoint.name)))


async def savepoint(session: Session, name: str, wanted: CheckpointSelector) -> Savepoint:
    """Keep a live checkpoint under a name that no other savepoint has."""
    object_paths.encode_name("savepoint", name)
    if means_two_things(name):
        raise IllegalArgumentError(
            f"savepoint {name!r}: reads like the id of a checkpoint, or a number, or like `latest`, `prepared` or "
            "`epoch=41`, which would be ambiguous: choose another name, such as one that begins with a letter"
        )
    # Drawn once for all attempts, so that a repeated plan recognises its own entry.
    nonce, created = session.host.token(32), session.host.now()
    kept: Ref | None = None

    async def plan_swap(head: Head) -> Pointer | None:
        nonlocal kept
        entries = await read_entries(session.store, head)
        taken = next((entry for entry in entries if entry.name == name), None)
        if taken is not None and taken.nonce == nonce:
            return None  # An earlier swap of this call took effect, though its answer was lost.
        if taken is not None:
            raise IllegalArgumentError(f"savepoint {name!r}: the name is taken, by {taken.ref.id}: choose another")
        # The checkpoint is resolved once: "latest" must not come to mean another one after a refused swap.
        if kept is None:
            kept = await resolve_live(session, head, wanted)
        elif await is_live(session.store, head, kept.id, session.links) != kept:
            raise RetiredError(f"{session.store.url}: {kept.id} was retired before it became savepoint {name!r}")
        return await replace_catalog(session, head, (*entries, CatalogEntry(kept, name, created, nonce)))

    await cas_loop(session.store, await read_head(session.store), plan_swap)
    assert kept is not None
    log_safely(logging.INFO, "%s: savepoint %r keeps %s", session.store.url, name, kept.id)
    return Savepoint(name, kept.id, created)


async def delete_savepoint(session: Session, name: str) -> None:
    """Delete the name of a savepoint.

    Its checkpoint stays live until a retention in which no rule keeps it.
    """
    meant: CatalogEntry | None = None
    nonce, now = session.host.token(32), session.host.now()

    async def plan_swap(head: Head) -> Pointer | None:
        nonlocal meant
        entries = await read_entries(session.store, head)
        # Only the first attempt looks for the name. Later ones go on with that very entry (SPEC.md, "Delete the
        # savepoint that was first seen").
        if meant is None:
            meant = next((entry for entry in entries if entry.name == name), None)
            if meant is None:
                raise SavepointNotFoundError(f"{session.store.url}: no savepoint {name!r:.80}")
        # By nonce: somebody may have deleted the name and given it to another checkpoint since.
        rest = tuple(entry for entry in entries if entry.nonce != meant.nonce)
        if len(rest) == len(entries):
            return None
        # Below the boundary only the catalog keeps the checkpoint live. Retention decides about it, with its grace
        # period: a rule may keep it, and readers may use it.
        is_below = meant.ref.id.sequence < head.boundary
        if is_below and all(entry.ref != meant.ref for entry in rest):
            rest = (*rest, CatalogEntry(meant.ref, None, now, nonce))
        return await replace_catalog(session, head, rest)

    await cas_loop(session.store, await read_head(session.store), plan_swap)
    log_safely(logging.INFO, "%s: savepoint %r was deleted", session.store.url, name)


async def replace_catalog(session: Session, head: Head, entries: tuple[CatalogEntry, ...]) -> Pointer:
    """Return the pointer with a new catalog of these entries.

    The catalog gets a new id above the committed sequence, so that no cleanup that stalled takes it for garbage.
    """
    assert head.pointer is not None
    ordered = tuple(sorted(entries, key=lambda entry: (entry.ref.id, entry.name or "")))
    ref = (
        await metadata.write_catalog(session.store, Catalog(session.draw_id(head.sequence), ordered))
        if ordered
        else None
    )
    # The writer is carried through: a command line must not fence the running job.
    return replace(head.pointer, catalog=ref, nonce=session.host.token(32))
