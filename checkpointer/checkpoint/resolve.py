"""Find the checkpoint that a caller means.

Every verb asks here. `selector.py` has the grammar. A checkpoint is looked for in the history of one version of
`_latest`, or among the candidates of a repair, where there is no history to ask.
"""

from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import (
    NONE,
    ancestor_at,
    is_live,
    note_link,
    read_entries,
    read_in_turn,
    walk,
)
from pyspark_checkpointer.checkpoint.latest import Head, list_sizes, read_consistent
from pyspark_checkpointer.checkpoint.selector import LATEST, CheckpointSelector, begins
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.display import some
from pyspark_checkpointer.errors import CheckpointNotFoundError, IllegalArgumentError, SavepointNotFoundError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.json_text import format_time
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Ref
from pyspark_checkpointer.storage.base import Store

_SHOWN = 5
"""Largest number of candidates that an error names."""


@dataclass(frozen=True, slots=True)
class Known:
    """A checkpoint or candidate of a repair, with all that a selector can name it by."""

    id: CheckpointId
    names: Collection[str] = ()
    """Its savepoints."""
    epoch: int | None = None
    is_latest: bool = False
    """True if `_latest`, or what is left of it, names it as the committed one."""
    is_unfinished: bool = False
    """True if it may be a leftover copy of a repair that was killed; its high sequence is no evidence then."""

    def fits(self, wanted: CheckpointSelector) -> bool:
        """Return whether the selector names this checkpoint.

        It does so by its epoch, one of its savepoints, or the beginning of its id.
        """
        if wanted.kind == "epoch":
            return self.epoch == wanted.value
        # A name that looks like the beginning of an id could be given to savepoints once.
        if wanted.value in self.names:
            return True
        return wanted.kind == "beginning" and begins(self.id, str(wanted.value))


# ---- in a history ----------------------------------------------------------------------------------------------------


async def find(session: Session, wanted: CheckpointSelector) -> CheckpointId:
    """Return the id of the checkpoint that is meant. The prepared one counts."""
    return (await read_consistent(session.store, lambda head: resolve(session, head, wanted))).id


async def read_live(session: Session, head: Head, wanted: CheckpointSelector) -> tuple[Ref, Manifest]:
    """Read the live checkpoint that is meant, with all its chains."""
    ref = await resolve_live(session, head, wanted)
    return ref, await metadata.read_manifest(session.store, session.host, ref)


async def resolve_live(session: Session, head: Head, wanted: CheckpointSelector) -> Ref:
    """Return the live checkpoint that is meant. The prepared one is refused."""
    ref = await resolve(session, head, wanted)
    if ref == head.prepared:
        raise CheckpointNotFoundError(
            f"{session.store.url}: no live checkpoint {ref.id}: it is prepared: commit it first, or abort it"
        )
    return ref


async def resolve(session: Session, head: Head, wanted: CheckpointSelector) -> Ref:
    """Return the wanted checkpoint of one version of `_latest`.

    The prepared one counts. Nothing is read that is older than the checkpoint, so that damage there does not matter.
    """
    value = wanted.value
    if isinstance(value, CheckpointId):
        return await _of_id(session, head, value)
    if isinstance(value, int):
        return await _of_epoch(session, head, value)
    if isinstance(value, datetime):
        return await _of_time(session, head, value)
    if wanted.kind == "beginning":
        return await _of_beginning(session, head, wanted, value)
    if wanted.kind in ("savepoint", "name"):
        return await _of_name(session, head, value, bare=wanted.kind == "name")
    ref = head.committed if wanted.kind == LATEST else head.prepared
    if ref is None:
        what = "is committed yet" if wanted.kind == LATEST else "is prepared"
        raise CheckpointNotFoundError(f"{session.store.url}: no checkpoint {what}")
    return ref


async def _of_id(session: Session, head: Head, wanted: CheckpointId) -> Ref:
    # The prepared one is neither in the ancestry nor in the catalog, so `is_live` would not find it.
    if head.prepared is not None and head.prepared.id == wanted:
        return head.prepared
    ref = await is_live(session.store, head, wanted, session.links)
    if ref is None:
        why = await _why_missing(session.store, head, wanted.sequence, str(wanted))
        raise CheckpointNotFoundError(f"{session.store.url}: no live checkpoint {wanted}{why}")
    return ref


async def _why_missing(store: Store, head: Head, sequence: int, text: str) -> str:
    """Say that a checkpoint may have been retired, if its manifest is there.

    `text` begins its id.
    """
    if sequence >= head.boundary:
        return ""
    stored = [one for one, _ in await list_sizes(store, sequence, sequence) if begins(one, text)]
    return f": {some(stored, _SHOWN)} was retired, or never committed; {repair_copy(stored[0])}" if stored else ""


def repair_copy(checkpoint: CheckpointId) -> str:
    """Return how to bring back a checkpoint that retention retired too early."""
    return (
        "as long as its objects are there, a copy of the root can go back to it: stop every cleanup, copy the root, "
        f"delete `{object_paths.LATEST}` in the copy, then `checkpointer repair COPY --to {checkpoint}`"
    )


async def _of_beginning(session: Session, head: Head, wanted: CheckpointSelector, text: str) -> Ref:
    store, sequence = session.store, int(text.partition("-")[0])
    entries = await read_entries(store, head)
    refs = {entry.ref for entry in entries} | {ref for ref in (head.committed, head.prepared) if ref is not None}
    named = {entry.ref for entry in entries if entry.name == text}
    # Every beginning has the whole sequence, so at most one more can fit, and nothing below it matters.
    if all(ref.id.sequence != sequence for ref in refs):
        ancestor = await ancestor_at(store, head, sequence, session.links)
        refs |= set() if ancestor is None else {ancestor}
    fitting = (ref for ref in refs if Known(ref.id, {text} if ref in named else ()).fits(wanted))
    found = sorted(fitting, key=lambda ref: ref.id)
    if not refs:
        raise CheckpointNotFoundError(f"{store.url}: no checkpoint is committed yet")
    if not found:
        oldest = await ancestor_at(store, head, head.boundary, session.links)
        ids = sorted(ref.id for ref in (*refs, *([] if oldest is None else [oldest])))
        why = await _why_missing(store, head, sequence, text)
        raise CheckpointNotFoundError(f"{store.url}: no live checkpoint {text}: there are {ids[0]} to {ids[-1]}{why}")
    if len(found) > 1:
        known = [str(ref.id) + (f" (savepoint {text})" if ref in named else "") for ref in found]
        raise IllegalArgumentError(f"{text} could be {some(known, _SHOWN)}: give more of the id, or savepoint=NAME")
    return found[0]


async def _of_name(session: Session, head: Head, name: str, *, bare: bool) -> Ref:
    entries = {entry.name: entry.ref for entry in await read_entries(session.store, head) if entry.name is not None}
    if name in entries:
        return entries[name]
    close = get_close_matches(name, entries, n=1, cutoff=0.4)
    known = some(map(repr, sorted(entries)), _SHOWN) or "none"
    hint = f"did you mean {close[0]!r}?" if close else f"the savepoints are {known}"
    what = f"{name!r:.80} is no id and no savepoint" if bare else f"no savepoint {name!r:.80}"
    raise SavepointNotFoundError(f"{session.store.url}: {what}: {hint}")


async def _of_epoch(session: Session, head: Head, epoch: int) -> Ref:
    found, _ = await _newest(session, head, lambda manifest: manifest.epoch == epoch)
    if found is None:
        raise CheckpointNotFoundError(f"{session.store.url}: no live checkpoint of epoch {epoch}")
    return found


async def _of_time(session: Session, head: Head, at: datetime) -> Ref:
    """Return the newest checkpoint made by a time, by the writers' clocks.

    These clocks may be wrong.
    """
    found, oldest = await _newest(session, head, lambda made: made.created is not None and made.created <= at)
    if found is None:
        since = f"the oldest is of {format_time(oldest)}" if oldest else "none says when it was made"
        raise CheckpointNotFoundError(
            f"{session.store.url}: no live checkpoint of {format_time(at)} or before: {since}"
        )
    return found


async def _newest(session: Session, head: Head, fits: Callable[[Manifest], bool]) -> tuple[Ref | None, datetime | None]:
    """Return the newest live checkpoint that fits.

    If none fits, the earliest time that one was made is returned too. The search ends at the first that fits, so that
    damage of older ones does not matter. Checkpoints that only the catalog keeps are older than the ancestry.
    """
    made: list[datetime] = []
    # The newest first, because an epoch can be committed again: after a rollback, or by hand.
    async for ref, manifest in _newest_first(session, head):
        if fits(manifest):
            return ref, None
        made += [] if manifest.created is None else [manifest.created]
    return None, min(made, default=None)


async def _newest_first(session: Session, head: Head) -> AsyncIterator[tuple[Ref, Manifest]]:
    store, links = session.store, session.links
    async for ref, manifest in walk(store, head, head.boundary, links or NONE):
        note_link(links, ref, manifest)
        yield ref, manifest
    kept = {entry.ref for entry in await read_entries(store, head) if entry.ref.id.sequence < head.boundary}
    async for pair in read_in_turn(store, sorted(kept, key=lambda ref: ref.id, reverse=True)):
        yield pair


# ---- among the candidates of a repair --------------------------------------------------------------------------------


def resolve_candidate(found: Sequence[Known], url: str, wanted: CheckpointSelector) -> CheckpointId:
    """Return the candidate of a repair that is meant.

    There is no history to ask, only what manifests and catalogs say, and an attempt that was never committed is a
    candidate too. So a selector that fits several candidates is refused, and so is a time.
    """
    if wanted.id is not None:
        return wanted.id  # Not checked here: the repair says why an id cannot be.
    if wanted.kind == LATEST:
        return _latest_candidate(found, url)
    if wanted.kind == "at":
        raise IllegalArgumentError(
            f"{wanted}: nothing proves which candidate was the committed one at that time: give an id, which "
            "`checkpointer repair` lists with the time that it was made"
        )
    fitting = [candidate.id for candidate in found if candidate.fits(wanted)]
    if not fitting:
        raise CheckpointNotFoundError(
            f"{url}: {str(wanted)!r:.80} is no candidate for a repair: `checkpointer repair` lists the candidates"
        )
    # Two attempts may have one epoch, and nothing proves which was committed: the caller has to say.
    if len(fitting) > 1:
        raise IllegalArgumentError(f"{wanted} could be {some(sorted(fitting))}: give the whole id")
    return fitting[0]


def _latest_candidate(found: Sequence[Known], url: str) -> CheckpointId:
    """Return the candidate that `_latest` names.

    Raises where `_latest` is an older copy that somebody put there.
    """
    named = next((candidate.id for candidate in found if candidate.is_latest), None)
    if named is None:
        raise CheckpointNotFoundError(
            f"{url}: `_latest` no longer says which checkpoint was the last one: choose one by its id"
        )
    newest = max(candidate.id for candidate in found if not candidate.is_unfinished)
    # A failed attempt is one above the committed checkpoint. Anything higher was begun on a newer `_latest`.
    if newest.sequence > named.sequence + 1:
        raise CheckpointNotFoundError(
            f"{url}: `_latest` names {named}, and {newest} was written after it, so it is an old copy: "
            "choose one by its id"
        )
    return named
