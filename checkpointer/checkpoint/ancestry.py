"""Read the checkpoints from one to a later one: those that each were made on the one before.

after ──> … ──> to        found from `to` down, parent by parent, and returned oldest first
"""

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import read_history
from pyspark_checkpointer.checkpoint.latest import Head, read_consistent
from pyspark_checkpointer.checkpoint.resolve import CheckpointSelector, resolve_live
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import IllegalArgumentError, RetiredError
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Ref


async def read_ancestry(
    session: Session, after: CheckpointSelector | None, to: CheckpointSelector
) -> tuple[Manifest | None, list[Manifest]]:
    """Return the manifest of `after`, and those of all later ones up to `to`, with their chains.

    They are the ancestors of `to`, oldest first. Without `after` they begin with the first checkpoint of the store, and
    the first result is None. Raises `RetiredError` where retention has deleted one of them, and `IllegalArgumentError`
    where `to` was not made on top of `after`.
    """

    async def read(head: Head) -> tuple[Manifest | None, list[Manifest]]:
        start = None if after is None else await resolve_live(session, head, after)
        refs = await _path(session, head, start, await resolve_live(session, head, to))
        segments = metadata.Segments(session.store, session.host)
        found = [await segments.load(await metadata.read_manifest_alone(session.store, ref)) for ref in refs]
        return (None, found) if start is None else (found[0], found[1:])

    return await read_consistent(session.store, read)


async def _path(session: Session, head: Head, start: Ref | None, end: Ref) -> list[Ref]:
    """Return the references from `start` to `end`, both of them included."""
    history = await read_history(session.store, head)
    live, known = set(history.refs().values()), dict(history.chain)
    path, url = [end], session.store.url
    while path[-1] != start:
        here = path[-1]
        manifest = known.get(here) or await metadata.read_manifest_alone(session.store, here)
        parent = manifest.parent
        if parent is None or (start is not None and parent.id.sequence < start.id.sequence):
            if start is None:
                break
            raise IllegalArgumentError(
                f"{url}: {end.id} was not made on top of {start.id}: after a rollback or rewind its history is another "
                f"one: read from a checkpoint that both have"
            )
        if parent not in live:
            raise RetiredError(_retired(url, parent.id, end.id, here.id))
        path.append(parent)
    return path[::-1]


def _retired(url: str, gone: CheckpointId, end: CheckpointId, oldest: CheckpointId) -> str:
    return (
        f"{url}: the changes up to {end} begin before {gone}, which retention has deleted: the oldest checkpoint that "
        f"they can be read after is {oldest}, as in after={str(oldest)!r}; read_state(…, id={str(oldest)!r}) has the "
        f"rows until then"
    )


__all__ = ["read_ancestry"]
