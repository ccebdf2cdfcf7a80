"""Index the objects that a version of `_latest` keeps alive.

Each object has the checkpoint that references it. The index holds a hash of each live object's path, not the path, and
is built from few manifests at a time. So neither a long history nor much garbage costs memory. If two paths have the
same hash, garbage looks live, which is harmless.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Literal

from pyspark_checkpointer.admin.retention.retire import RetentionDecision, is_in_grace
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import begin_walk
from pyspark_checkpointer.checkpoint.latest import Head
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Ref, Retired
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import DAMAGE, Store

Action = Literal["keep", "later", "delete"]
KEEP: Action = "keep"
LATER: Action = "later"
DELETE: Action = "delete"


@dataclass(frozen=True, slots=True)
class Referrer:
    """A checkpoint, or `_latest`, that references objects, and its fate in a cleanup.

    `id` is None for `_latest` and catalogs.
    """

    id: CheckpointId | None
    reason: str
    action: Action


@dataclass(slots=True)
class ReferenceIndex:
    """The first referrer of each live object, and the number of its referrers.

    Referrers are added strongest first, and an object keeps the first one. The value of an object in `_values` is one
    integer, to be small: the position of its referrer in `referrers`, plus `_ONE_REFERENCE` for each reference.
    """

    referrers: list[Referrer] = field(default_factory=list)
    _values: dict[int, int] = field(default_factory=dict)
    """By the hash of the object's path."""
    _shared_integers: dict[int, int] = field(default_factory=dict)
    """Each value that occurs.

    Objects with equal values share one integer in memory.
    """

    def add(self, referrer: Referrer, paths: Iterable[str]) -> None:
        """Add a referrer with all objects that it references.

        The strongest referrer has to be added first.
        """
        position = len(self.referrers)
        self.referrers.append(referrer)
        for path in paths:
            key = _hash(path)
            value = self._values.get(key, position) + _ONE_REFERENCE
            self._values[key] = self._shared_integers.setdefault(value, value)

    def find(self, path: str) -> tuple[Referrer, int] | None:
        """Return the strongest referrer of an object, and the number of its referrers.

        None where the object has none.
        """
        value = self._values.get(_hash(path))
        return None if value is None else (self.referrers[value % _ONE_REFERENCE], value // _ONE_REFERENCE)


MAX_MANIFESTS_IN_MEMORY = 32
"""Manifests that are read, and in memory, at the same time."""

_ONE_REFERENCE = 1 << 32


def _hash(path: str) -> int:
    """Return 64 bits of a path's BLAKE2b hash."""
    # A file of somebody else may have a name that is no UTF-8.
    return int.from_bytes(blake2b(path.encode("utf-8", "surrogateescape"), digest_size=8).digest(), "big")


async def index_live(
    session: Session,
    head: Head,
    decision: RetentionDecision,
    grace: timedelta,
    deleted: tuple[Ref, Manifest] | None = None,
) -> ReferenceIndex:
    """Index the objects that are needed after the retirements of `decision`.

    `deleted` is a checkpoint that was deleted just now. Its own objects may go at once, but its parent may lead to
    checkpoints that were retired lately.

    Raises `ObjectNotFoundError` or `CorruptionError` where something live cannot be read: then nothing may be deleted.
    """
    assert head.pointer is not None
    index = ReferenceIndex()
    live = decision.live
    catalog = [] if head.pointer.catalog is None else [head.pointer.catalog.path]
    index.add(Referrer(None, "_latest, or its catalog", KEEP), [object_paths.LATEST, *catalog])
    ancestry = set(live.ancestry)

    def strength(ref: Ref) -> tuple[bool, bool, CheckpointId]:
        return (ref == head.committed, ref in ancestry, ref.id)

    # Strongest first, since an object keeps the reason of its first referrer.
    order = sorted(decision.kept, key=strength, reverse=True)
    named = [(ref, Referrer(ref.id, decision.kept[ref], KEEP)) for ref in order]
    # A prepared checkpoint is not in the ancestry, and may be committed at any moment.
    if head.prepared is not None:
        named.append((head.prepared, Referrer(head.prepared.id, "prepared", KEEP)))
    action = LATER if grace else DELETE
    # Last, so that an object that a kept checkpoint shares with a retired one stays.
    named += [(ref, Referrer(ref.id, "retired by this plan", action)) for ref in decision.retired]
    segments = metadata.Segments(session.store, session.host)
    parents: set[Ref] = set()
    for start in range(0, len(named), MAX_MANIFESTS_IN_MEMORY):
        some = named[start : start + MAX_MANIFESTS_IN_MEMORY]
        # Errors are raised: if something live cannot be read, nobody knows which objects it names.
        found = await asyncio.gather(
            *(metadata.read_manifest_alone(session.store, ref, session.host) for ref, _ in some)
        )
        whole = await asyncio.gather(*map(segments.load, found))
        segments.forget_but(found)
        # Retired checkpoints of the ancestry are reached from what followed them, so the parent of every live one is a
        # place to begin.
        parents |= {manifest.parent for manifest in found if manifest.parent is not None}

        # The arguments are bound as defaults, since the loop goes on to other values.
        def add(some: list[tuple[Ref, Referrer]] = some, whole: list[Manifest] = whole) -> None:
            for (ref, referrer), manifest in zip(some, whole, strict=True):
                index.add(referrer, metadata.objects_of(ref, manifest))

        # Hashing many paths takes long, so it runs in a thread.
        await session.host.run(add)
    known = {ref for ref, _ in named}
    if deleted is not None:
        known.add(deleted[0])
        parents |= {deleted[1].parent} if deleted[1].parent is not None else set()
    await _add_retired(session, index, head, known, parents, grace)
    return index


async def _add_retired(
    session: Session, index: ReferenceIndex, head: Head, known: set[Ref], parents: set[Ref], grace: timedelta
) -> None:
    """Add the objects of checkpoints that were retired within the grace period.

    Readers may be using them. These checkpoints are found from the parents of all live ones, and in the catalogs of
    that time. No live checkpoint depends on them, so those that are gone or unreadable are skipped.
    """
    if head.pointer is None or not head.pointer.retired:
        return
    now = session.host.now()
    young = [old for old in head.pointer.retired if is_in_grace(old, now, grace)]
    for old in young:
        if old.catalog is not None:
            # Readers of that version read this catalog too.
            index.add(Referrer(None, _reason(old), LATER), [old.catalog.path])
    segments = metadata.Segments(session.store, session.host)

    async def load(manifest: Manifest) -> Manifest:
        # Segments that only a deleted checkpoint named are gone. Its manifest still leads to older ones.
        with suppress(*DAMAGE):
            return await segments.load(manifest)
        return manifest

    async def add(some: list[tuple[Ref, Manifest]]) -> None:
        whole = await asyncio.gather(*(load(manifest) for _, manifest in some))
        segments.forget_but(whole)

        def add_all() -> None:
            for (ref, _), manifest in zip(some, whole, strict=True):
                newest = max(
                    (old for old in young if old.boundary <= ref.id.sequence), default=young[-1], key=_retired_at
                )
                index.add(Referrer(ref.id, _reason(newest), LATER), metadata.objects_of(ref, manifest))

        await session.host.run(add_all)

    some: list[tuple[Ref, Manifest]] = []
    async for pair in walk_retired(session.store, young, known, parents, session.host):
        some.append(pair)
        if len(some) == MAX_MANIFESTS_IN_MEMORY:
            await add(some)
            some = []
    if some:
        await add(some)


async def walk_retired(
    store: Store,
    young: Sequence[Retired],
    live: Collection[Ref],
    parents: Collection[Ref],
    host: Host | None = None,
) -> AsyncIterator[tuple[Ref, Manifest]]:
    """Yield the checkpoints that were live in some retired versions, and are not now.

    `parents` are those of all live checkpoints. The manifests come without the chains in segments.
    `host` is as in `read_manifest_alone`.
    """
    known = set(live)
    passed: set[Ref] = set()
    # In the ancestry, no entry that still counts kept anything below this sequence.
    lowest = min((old.boundary for old in young), default=0)
    # A parent below it was live in no version that still counts, unless the catalog of that time names it.
    starts = {ref for ref in parents if ref.id.sequence >= lowest}
    for old in young:
        if old.catalog is not None:
            with suppress(*DAMAGE):
                catalog = await metadata.read_catalog(store, old.catalog)
                starts |= {entry.ref for entry in catalog.entries} if catalog else set()
    for start in sorted(starts - known, key=lambda ref: ref.id, reverse=True) if young else ():
        if start in passed:
            continue
        # A refused listing is raised: it does not prove that nothing was retired lately.
        steps = await begin_walk(store, start, min(lowest, start.id.sequence), host=host)
        with suppress(*DAMAGE):
            async for ref, manifest in steps:
                if ref in passed:
                    break  # From here on the ancestry was walked already.
                passed.add(ref)
                # Live ones are passed over: a walk for each gap between them would list and fetch all below it anew.
                if ref not in known:
                    yield ref, manifest


def _retired_at(old: Retired) -> datetime:
    """Return when checkpoints were retired."""
    return old.at


def _reason(old: Retired) -> str:
    """Return why an object of retired checkpoints stays."""
    return f"retired at {old.at:%Y-%m-%dT%H:%M:%SZ}: stays for its readers until the grace period is over"
