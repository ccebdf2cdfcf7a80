"""Retire checkpoints with one swap.

The swap raises the boundary and replaces the catalog. Nothing is deleted here.

ancestry, newest first   5   4   3   2   1        the policy keeps 5, 4 and 2
history                  5   4                    the newest run of kept checkpoints, down to the new boundary
catalog                              2            what else is kept, beside the savepoints
retired                          3       1        not live any more; their objects stay for the grace period
"""

import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pyspark_checkpointer.admin.followers import read_positions
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.retention.waiting import NOBODY, PlannedFollower, find_waiting, reason_of
from pyspark_checkpointer.admin.savepoints import replace_catalog
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import read_in_turn, walk
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop, read_head
from pyspark_checkpointer.checkpoint.old_copy import refuse_old_copy
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests.model import Catalog, CatalogEntry, CheckpointId, Manifest, Pointer, Ref, Retired
from pyspark_checkpointer.runtime.user_functions import log_safely

RETIREMENTS_PER_GRACE = 8
"""Times that checkpoints are retired in one grace period, at most.

It bounds the list `retired` in `_latest`.
"""


@dataclass(frozen=True, slots=True)
class LiveCheckpoints:
    """The live checkpoints of one version of `_latest`.

    The ancestry has some of them, newest first; the catalog has the others.
    """

    ancestry: tuple[Ref, ...]
    catalog: Catalog | None
    begins: bool = True
    """True if nothing came before the ancestry, as far as is known."""

    @property
    def entries(self) -> tuple[CatalogEntry, ...]:
        """Return the entries of the catalog; none without a catalog."""
        return () if self.catalog is None else self.catalog.entries

    @property
    def savepoints(self) -> dict[Ref, str]:
        """Return the checkpoints that a savepoint keeps, each with the name of one."""
        return {entry.ref: entry.name for entry in self.entries if entry.name is not None}


@dataclass(frozen=True, slots=True)
class RetentionDecision:
    """The checkpoints that a policy keeps and retires in one version of `_latest`.

    Each that is kept has the reason.
    """

    live: LiveCheckpoints
    kept: dict[Ref, str]
    """With the reason for each, newest first."""
    retired: tuple[Ref, ...]
    """Oldest first."""
    followers: tuple[PlannedFollower, ...] = ()


KnownManifests = dict[Ref, Manifest]
"""Manifests that were read already, with as much of each as the policy needs."""

ChooseRetired = Callable[[Head], Awaitable[tuple[LiveCheckpoints, tuple[Ref, ...]]]]
"""A function that returns the live checkpoints of a version of `_latest`.

It also returns the ones to retire, oldest first.
"""


async def decide_retention(
    session: Session, head: Head, policy: RetentionPolicy, known: KnownManifests | None = None
) -> RetentionDecision:
    """Ask the policy about every live checkpoint, the newest first.

    Manifests that are read are added to `known`. Those that are in it already, from an older version, are not read
    again.
    """
    known = {} if known is None else known
    assert head.pointer is not None
    catalog = await metadata.read_catalog(session.store, head.pointer.catalog)
    light: dict[Ref, Manifest] = {}

    def add(ref: Ref, manifest: Manifest) -> None:
        # Only `keep_if` can look at the content. Without it, a long history must not fill the memory.
        light[ref] = manifest if policy.keep_if else replace(manifest, operators={}, positions={}, properties={})

    async for ref, manifest in walk(session.store, head, head.pointer.boundary, known, session.host):
        add(ref, manifest)
    live = LiveCheckpoints(tuple(light), catalog, all(light[ref].parent is None for ref in list(light)[-1:]))
    # What the catalog alone keeps is not in the ancestry.
    kept_apart = [ref for ref in dict.fromkeys(entry.ref for entry in live.entries) if ref not in light]
    light |= {ref: known[ref] for ref in kept_apart if ref in known}
    others = [ref for ref in kept_apart if ref not in known]
    async for ref, manifest in read_in_turn(session.store, others, session.host):
        add(ref, manifest)
    known |= light
    # Sorted by id: checkpoints of the catalog and of the ancestry are mixed, and the policy wants the newest first.
    newest_first = sorted(light, key=lambda ref: ref.id, reverse=True)
    waiting = NOBODY
    if not policy.keeps_all:
        # After `head` was read: whoever registered since has made that version an old one, and the swap is refused.
        waiting = find_waiting(await read_positions(session.store), live.ancestry, live.begins, policy.max_follower_lag)
    chosen = {} if policy.keeps_all else await _ask(session, policy, [light[ref] for ref in newest_first])
    kept: dict[Ref, str] = {}
    for ref in newest_first:
        # These two come before the policy's own rules: no rule can give them up.
        if ref == head.committed:
            kept[ref] = "committed"
        elif ref in live.savepoints:
            kept[ref] = f"savepoint {live.savepoints[ref]!r}"
        elif policy.keeps_all:
            kept[ref] = "no rule retires anything"
        elif ref.id in chosen:
            kept[ref] = chosen[ref.id]
        elif ref in waiting.needed:
            kept[ref] = reason_of(waiting.needed[ref])
    retired = tuple(ref for ref in reversed(newest_first) if ref not in kept)
    return RetentionDecision(live, kept, retired, waiting.planned(kept, retired))


async def _ask(session: Session, policy: RetentionPolicy, newest_first: list[Manifest]) -> dict[CheckpointId, str]:
    """Ask the policy in a thread of its own.

    `keep_if` is the user's function, which may take long or call this library.
    """
    now = session.host.now()
    return await session.host.call(lambda: policy.kept(newest_first, now))


@dataclass(frozen=True, slots=True)
class Retirement:
    """The retired checkpoints, oldest first, and the named followers.

    There is a note if retirement had to wait.
    """

    retired: tuple[Ref, ...]
    note: str | None
    followers: tuple[PlannedFollower, ...]


async def retire(session: Session, policy: RetentionPolicy) -> Retirement:
    """Retire, with one swap, the checkpoints that the policy does not keep.

    Raises `InvalidStateError` if it would retire some, and `_latest` is an old copy that somebody put back.
    """
    note: str | None = None
    followers: tuple[PlannedFollower, ...] = ()
    # Kept when a swap is refused: to read the history anew takes so long that a fast job would refuse every next swap.
    known: KnownManifests = {}

    async def choose(head: Head) -> tuple[LiveCheckpoints, tuple[Ref, ...]]:
        nonlocal note, followers
        if head.pointer is None:
            return LiveCheckpoints((), None), ()
        decision, note = await decide_retention_now(session, head, policy, known)
        followers = decision.followers
        if decision.retired:
            # A savepoint of the newer commits may keep them.
            await refuse_old_copy(session.store, head)
        return decision.live, decision.retired

    retired = await retire_chosen(session, choose, policy.grace)
    warn_of(session.store.url, followers)
    return Retirement(retired, note, followers)


def warn_of(url: str, followers: Collection[PlannedFollower]) -> None:
    """Log the followers that hold up retirement, or that are lost."""
    for follower in followers:
        if follower.matters:
            log_safely(
                logging.WARNING,
                "%s: %s. If it is no longer needed: `checkpointer followers ROOT --remove NAME`",
                url,
                follower,
            )


async def retire_chosen(session: Session, choose: ChooseRetired, grace: timedelta) -> tuple[Ref, ...]:
    """Retire the checkpoints that `choose` returns, with one swap, and return them.

    If the pointer moved, `choose` is asked again.
    """
    planned: dict[str, tuple[Ref, ...]] = {}

    async def plan_swap(head: Head) -> Pointer | None:
        live, gone = await choose(head)
        # No swap where nothing is retired: it would only make the swaps of others fail.
        if not gone:
            return None
        pointer = await pointer_without(session, head, live, gone, grace)
        # Noted before the swap is sent, since a swap whose answer is lost may have taken effect.
        planned[pointer.nonce] = gone
        return pointer

    head = await cas_loop(session.store, await read_head(session.store), plan_swap)
    # By nonce: of several attempts at the swap only one took effect, and the last version may be another writer's.
    done = planned.get(head.pointer.nonce, ()) if head.pointer is not None else ()
    if done:
        log_safely(
            logging.INFO, "%s: retired %d checkpoints, %s to %s", session.store.url, len(done), done[0].id, done[-1].id
        )
    return done


async def decide_retention_now(
    session: Session, head: Head, policy: RetentionPolicy, known: KnownManifests | None = None
) -> tuple[RetentionDecision, str | None]:
    """Decide as `decide_retention` does, but not soon after the last retirement.

    Nothing is retired soon after the last retirement. The note says so then; else the note is None.
    """
    decision = await decide_retention(session, head, policy, known)
    # Each retirement adds an entry to `retired`, which every sweep has to follow. Without this limit, a cleanup after
    # each batch would make the list long, and `_latest` with it.
    if decision.retired and is_too_soon(head, policy.grace, session.host.now()):
        kept = decision.kept | dict.fromkeys(decision.retired, "to be retired with a later cleanup")
        note = f"nothing more is retired now: that is done every eighth of the grace period of {policy.grace} at most"
        followers = tuple(replace(follower, outrun=0) for follower in decision.followers)
        return RetentionDecision(decision.live, kept, (), followers), note
    return decision, None


def is_in_grace(old: Retired, now: datetime, grace: timedelta) -> bool:
    """Return whether readers may still use the retired checkpoints."""
    # `abs`: an entry that a clock far ahead has written must not keep objects for years.
    return abs(now - old.at) < grace


def is_too_soon(head: Head, grace: timedelta, now: datetime) -> bool:
    """Return whether the last retirement was so lately that the next one has to wait."""
    assert head.pointer is not None
    # An entry from the future, of a clock that is ahead, does not count. Otherwise nothing would be retired until that
    # time.
    return any(timedelta(0) <= now - old.at < grace / RETIREMENTS_PER_GRACE for old in head.pointer.retired)


async def pointer_without(
    session: Session, head: Head, live: LiveCheckpoints, gone: Collection[Ref], grace: timedelta
) -> Pointer:
    """Return the pointer that retires the checkpoints `gone`.

    The committed one must not be among them. A new catalog is written where its entries change.
    """
    assert head.pointer is not None
    old, now = head.pointer, session.host.now()
    # The newest run of kept checkpoints stays history, and the boundary rises to the oldest of them.
    run = 0
    while run < len(live.ancestry) and live.ancestry[run] not in gone:
        run += 1
    # The boundary never decreases: what is below it may be half deleted already. Where nothing of the ancestry goes, it
    # stays.
    boundary = max(old.boundary, live.ancestry[run - 1].id.sequence) if run < len(live.ancestry) else old.boundary
    entries = [entry for entry in live.entries if entry.ref not in gone]
    listed = {entry.ref for entry in entries}
    # What is kept below the new boundary is no longer in the ancestry, so the catalog has to keep it.
    for ref in live.ancestry[run:]:
        if ref not in gone and ref not in listed:
            entries.append(CatalogEntry(ref, None, now, session.host.token(32)))
    # Entries past the grace period are left out in the same swap, so the list stays short.
    young = tuple(former for former in old.retired if is_in_grace(former, now, grace))
    # The catalog stays where it is; only the nonce has to be new, as with every swap.
    if tuple(entries) == live.entries:
        planned = replace(old, nonce=session.host.token(32))
    else:
        planned = await replace_catalog(session, head, tuple(entries))
    # What was live until now is noted with the time, so that sweeps keep its objects for readers until the grace period
    # is over.
    return replace(planned, boundary=boundary, retired=(*young, Retired(old.boundary, old.catalog, now)))


def find_protected(head: Head, live: LiveCheckpoints, refs: Collection[Ref]) -> Ref | None:
    """Return one of `refs` that must not be retired in this version of `_latest`.

    None where all may be.
    """
    never = {head.committed, head.prepared, *live.savepoints}
    return next((ref for ref in refs if ref in never), None)
