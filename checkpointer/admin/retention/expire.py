"""Retiring checkpoints: one swap that raises the boundary and replaces the catalog. Nothing is deleted here.

The chain's newest run of kept checkpoints stays history; what else is kept goes into the catalog.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.savepoints import recatalogue
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import walk
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop, read_head
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests.model import Catalog, CatalogEntry, CheckpointId, Manifest, Pointer, Ref, Retired

logger = logging.getLogger("pyspark_checkpointer")

EIGHTH = 8
"""Retire at most every eighth of the grace period: that keeps the list of what was retired lately short."""


@dataclass(frozen=True, slots=True)
class Live:
    """What is live in one version of `_latest`, by reference only: the chain, newest first, and the catalog."""

    chain: tuple[Ref, ...]
    catalog: Catalog | None

    @property
    def entries(self) -> tuple[CatalogEntry, ...]:
        return () if self.catalog is None else self.catalog.entries

    @property
    def savepoints(self) -> dict[Ref, str]:
        """The checkpoints that a savepoint keeps, with one of its names."""
        return {entry.ref: entry.name for entry in self.entries if entry.name is not None}


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy makes of one version of `_latest`: what it keeps and why, and what it retires."""

    live: Live
    kept: dict[Ref, str]
    retired: tuple[Ref, ...]


Known = dict[Ref, Manifest]
"""Manifests that were read, as far as a policy is asked about them."""

Choose = Callable[[Head], Awaitable[tuple[Live, tuple[Ref, ...]]]]
"""What is live in a version, and what of it is to be retired, oldest first."""


async def decide(session: Session, head: Head, policy: RetentionPolicy, known: Known | None = None) -> Decision:
    """Ask the policy about every live checkpoint. Newest first, with few manifests in memory at once.

    What it reads is added to `known`, and what is known already, from an older version, is not read again.
    """
    known = {} if known is None else known
    assert head.pointer is not None
    catalog = await metadata.read_catalog(session.store, head.pointer.catalog)
    light: dict[Ref, Manifest] = {}
    async for ref, manifest in walk(session.store, head, head.pointer.boundary, known):
        light[ref] = manifest if policy.keep_if else replace(manifest, operators={}, positions={}, properties={})
    live = Live(tuple(light), catalog)
    kept_apart = [ref for ref in dict.fromkeys(entry.ref for entry in live.entries) if ref not in light]
    light |= {ref: known[ref] for ref in kept_apart if ref in known}
    others = [ref for ref in kept_apart if ref not in known]
    read = await asyncio.gather(*(metadata.read_manifest_alone(session.store, ref) for ref in others))
    light |= dict(zip(others, read, strict=True))
    known |= light
    newest_first = sorted(light, key=lambda ref: ref.id, reverse=True)
    chosen = {} if policy.keeps_all else await _ask(session, policy, [light[ref] for ref in newest_first])
    kept: dict[Ref, str] = {}
    for ref in newest_first:
        if ref == head.committed:
            kept[ref] = "committed"
        elif ref in live.savepoints:
            kept[ref] = f"savepoint {live.savepoints[ref]!r}"
        elif policy.keeps_all:
            kept[ref] = "no rule retires anything"
        elif ref.id in chosen:
            kept[ref] = chosen[ref.id]
    retired = tuple(ref for ref in reversed(newest_first) if ref not in kept)
    return Decision(live, kept, retired)


async def _ask(session: Session, policy: RetentionPolicy, newest_first: list[Manifest]) -> dict[CheckpointId, str]:
    """In a thread of its own: `keep_if` is the user's."""
    now = session.host.now()
    return await session.host.call(lambda: policy.kept(newest_first, now))


async def retire(session: Session, policy: RetentionPolicy) -> tuple[tuple[Ref, ...], str | None]:
    """Retire what the policy does not keep, with one swap. What was retired, and why nothing was that could be."""
    note: str | None = None
    known: Known = {}  # a job that commits faster than its history can be read does not keep retention from its swap

    async def choose(head: Head) -> tuple[Live, tuple[Ref, ...]]:
        nonlocal note
        if head.pointer is None:
            return Live((), None), ()
        decision, note = await decide_now(session, head, policy, known)
        return decision.live, decision.retired

    return await retire_chosen(session, choose, policy.grace), note


async def retire_chosen(session: Session, choose: Choose, grace: timedelta) -> tuple[Ref, ...]:
    """Retire what `choose` says, with one swap; where the pointer moved, it chooses again. What was retired."""
    planned: dict[str, tuple[Ref, ...]] = {}

    async def step(head: Head) -> Pointer | None:
        live, gone = await choose(head)
        if not gone:
            return None
        swap = await without(session, head, live, gone, grace)
        planned[swap.nonce] = gone
        return swap

    head = await cas_loop(session.store, await read_head(session.store), step)
    done = planned.get(head.pointer.nonce, ()) if head.pointer is not None else ()
    if done:
        logger.info("%s: retired %d checkpoints, %s to %s", session.store.url, len(done), done[0].id, done[-1].id)
    return done


async def decide_now(
    session: Session, head: Head, policy: RetentionPolicy, known: Known | None = None
) -> tuple[Decision, str | None]:
    """Like `decide`; but nothing is retired, and a note says why, where something was a moment ago."""
    decision = await decide(session, head, policy, known)
    if decision.retired and too_soon(head, policy.grace, session.host.now()):
        kept = decision.kept | dict.fromkeys(decision.retired, "to be retired with a later cleanup")
        note = f"nothing more is retired now: that is done every eighth of the grace period of {policy.grace} at most"
        return Decision(decision.live, kept, ()), note
    return decision, None


def is_young(old: Retired, now: datetime, grace: timedelta) -> bool:
    """Whether readers may still be using what was retired. A clock that was far ahead does not keep it for years."""
    return abs(now - old.at) < grace


def too_soon(head: Head, grace: timedelta, now: datetime) -> bool:
    """Return whether something was retired so lately that the next time has to wait."""
    assert head.pointer is not None
    return any(timedelta(0) <= now - old.at < grace / EIGHTH for old in head.pointer.retired)


async def without(session: Session, head: Head, live: Live, gone: Collection[Ref], grace: timedelta) -> Pointer:
    """Return the pointer once some checkpoints are retired. Never the committed one."""
    assert head.pointer is not None
    old, now = head.pointer, session.host.now()
    run = 0
    while run < len(live.chain) and live.chain[run] not in gone:
        run += 1
    boundary = max(old.boundary, live.chain[run - 1].id.sequence) if run < len(live.chain) else old.boundary
    entries = [entry for entry in live.entries if entry.ref not in gone]
    listed = {entry.ref for entry in entries}
    for ref in live.chain[run:]:
        if ref not in gone and ref not in listed:
            entries.append(CatalogEntry(ref, None, now, session.host.token(32)))
    young = tuple(former for former in old.retired if is_young(former, now, grace))
    if tuple(entries) == live.entries:
        planned = replace(old, nonce=session.host.token(32))
    else:
        planned = await recatalogue(session, head, tuple(entries))
    return replace(planned, boundary=boundary, retired=(*young, Retired(old.boundary, old.catalog, now)))


def protected(head: Head, live: Live, refs: Collection[Ref]) -> Ref | None:
    """Return one of `refs` that must not be retired in this version, whatever an older version said."""
    never = {head.committed, head.prepared, *live.savepoints}
    return next((ref for ref in refs if ref in never), None)
