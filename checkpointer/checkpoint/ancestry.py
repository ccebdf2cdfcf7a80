"""Read the ancestry between two checkpoints.

after ──> … ──> to        found from `to` down, parent by parent, and returned oldest first
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import read_history, walk
from pyspark_checkpointer.checkpoint.latest import Head, read_consistent
from pyspark_checkpointer.checkpoint.resolve import resolve_live
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import CheckpointNotFoundError, IllegalArgumentError, RetiredError
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Ref


async def read_ancestry(
    session: Session, after: CheckpointSelector | None, to: CheckpointSelector
) -> tuple[Manifest | None, list[Manifest]]:
    """Return the manifests of `after` and of all later ones up to `to`.

    They are the ancestors of `to`, oldest first, with their chains. Without `after` they begin with the first
    checkpoint of the store, and the first result is None. Raises `RetiredError` where retention has deleted one of
    them, and `IllegalArgumentError` where `to` was not made on top of `after`.
    """

    return await _read(session, after, to, whole=True)


async def read_live_ancestry(
    session: Session, after: CheckpointSelector | None, to: CheckpointSelector, operator: str | None = None
) -> tuple[Manifest | None, list[Manifest]]:
    """Return what `read_ancestry` does, but from the oldest live ancestor.

    It begins with this ancestor if `after` is None. The manifest of the ancestor is then the first result. The result
    is None only if the ancestor is the first checkpoint of the store. Of a manifest that has `operator`, all others are
    left out, and their chains in segments are not read.
    """
    return await _read(session, after, to, whole=False, only=operator)


async def read_unbroken_ancestry(
    session: Session, after: CheckpointSelector | None, to: CheckpointSelector
) -> list[Manifest]:
    """Return the manifests of `to` and of its ancestors after `after`.

    They go back as far as all are live, without a gap. They come oldest first, without the chains that are in segments.
    The result is empty if `after` is no ancestor.
    """

    async def read(head: Head) -> list[Manifest]:
        start = None if after is None else await resolve_live(session, head, after)
        here = await resolve_live(session, head, to)
        live, known = await _live(session, head, start, here)
        ancestry = list[Manifest]()
        while here != start and (here in live or not ancestry):
            if start is not None and here.id.sequence < start.id.sequence:
                return []
            ancestry.append(known.get(here) or await metadata.read_manifest_alone(session.store, here))
            parent = ancestry[-1].parent
            if parent is None:
                break
            here = parent
        return ancestry[::-1]

    return await read_consistent(session.store, read)


async def read_clocks(session: Session, before: CheckpointId, after: Manifest) -> list[Manifest]:
    """Return the manifests whose clocks may have let rows expire.

    They lie between `before` and `after`. They come oldest first: the live ancestors of `after` that are newer than
    `before`, then `after`. A manifest is left out if a rollback has taken its clock back: rows that had expired by this
    clock live again. If `before` is no ancestor, or not live, the result is `after` alone.
    """
    ancestry = list[Manifest]()
    # A job's clock stays in all later checkpoints, so without one nothing expired before.
    if after.clock is not None and after.parent is not None and before.sequence < after.parent.id.sequence:
        start, end = (CheckpointSelector("id", one) for one in (before, after.parent.id))
        with suppress(CheckpointNotFoundError):
            ancestry = await read_unbroken_ancestry(session, start, end)
    found = list[Manifest]()
    for manifest in (*ancestry, after):
        clock = manifest.clock
        found = (
            [] if clock is None else [*(m for m in found if m.clock is not None and m.clock.at <= clock.at), manifest]
        )
    return found


async def _read(
    session: Session, after: CheckpointSelector | None, to: CheckpointSelector, *, whole: bool, only: str | None = None
) -> tuple[Manifest | None, list[Manifest]]:
    async def read(head: Head) -> tuple[Manifest | None, list[Manifest]]:
        start = None if after is None else await resolve_live(session, head, after)
        path = await _path(session, head, start, await resolve_live(session, head, to), whole=whole)
        segments = metadata.Segments(session.store, session.host)
        found = [await segments.load(_with_only(only, manifest)) for manifest in path]
        return (None, found) if start is None and found[0].parent is None else (found[0], found[1:])

    return await read_consistent(session.store, read)


def _with_only(name: str | None, manifest: Manifest) -> Manifest:
    """Return a manifest without the operators beside one, if it has this one."""
    if name is None or name not in manifest.operators:
        return manifest
    return replace(manifest, operators={name: manifest.operators[name]})


async def _path(session: Session, head: Head, start: Ref | None, end: Ref, *, whole: bool) -> list[Manifest]:
    """Return the manifests from `start` to `end`, both included.

    Without `start` they begin with the oldest one.
    """
    live, known = await _live(session, head, start, end)
    path, here, url = list[Manifest](), end, session.store.url
    while True:
        path.append(known.get(here) or await metadata.read_manifest_alone(session.store, here))
        parent = path[-1].parent
        if here == start:
            break
        if start is not None and (parent is None or parent.id.sequence < start.id.sequence):
            raise IllegalArgumentError(f"{url}: {end.id} was not made on top of {start.id}: {_other(start, end)}")
        if parent is None:
            break
        if parent not in live:
            if start is None and not whole:
                break
            raise RetiredError(_retired(url, parent.id, end.id, here.id))
        here = parent
    return path[::-1]


async def _live(
    session: Session, head: Head, start: Ref | None, end: Ref
) -> tuple[Collection[Ref], Mapping[Ref, Manifest]]:
    """Return the live checkpoints, at least those from `start` to `end`.

    The second result has the manifests that were read to find them.
    """
    if start is not None and head.pointer is not None and start.id.sequence >= head.pointer.boundary:
        # A stream asks for the newest checkpoints again and again, and the whole history may be long.
        newest = {ref: manifest async for ref, manifest in walk(session.store, head, start.id.sequence)}
        if start in newest and end in newest:
            return newest.keys(), newest
    history = await read_history(session.store, head)
    return set(history.refs().values()), dict(history.ancestry)


def _other(start: Ref, end: Ref) -> str:
    if end.id.sequence <= start.id.sequence:
        return "it is the older one: exchange them"
    # A rollback or rewind commits on top of the history. Only a repair begins another one.
    return "a repair has begun a new history between them: read each by itself"


def _retired(url: str, gone: CheckpointId, end: CheckpointId, oldest: CheckpointId) -> str:
    return (
        f"{url}: the changes up to {end} begin before {gone}, which retention has deleted: the oldest checkpoint that "
        f"they can be read after is {oldest}, as in after={str(oldest)!r}; read_state(…, id={str(oldest)!r}) has the "
        f"rows until then"
    )


__all__ = ["read_ancestry", "read_clocks", "read_live_ancestry", "read_unbroken_ancestry"]
