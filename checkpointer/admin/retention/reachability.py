"""What a version of `_latest` keeps alive, and who names it: a small index that any path can be looked up in.

It holds a hash of each live object's path, not the path, and is built from few manifests at a time, so that
neither a long history nor much garbage costs memory. Two paths with one hash make garbage look live, which is harmless.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Literal

from pyspark_checkpointer.admin.retention.expire import Decision, is_young
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import walk_from
from pyspark_checkpointer.checkpoint.latest import Head
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Ref, Retired
from pyspark_checkpointer.storage.base import ObjectNotFoundError

Action = Literal["keep", "later", "delete"]
KEEP: Action = "keep"
LATER: Action = "later"
DELETE: Action = "delete"


@dataclass(frozen=True, slots=True)
class Namer:
    """Something that names objects: a checkpoint, or `_latest` itself. `action` is what that means for them."""

    id: CheckpointId | None
    reason: str
    action: Action


@dataclass(slots=True)
class Index:
    """Who names each live object: the first to do so, strongest first, and how many do."""

    namers: list[Namer] = field(default_factory=list)
    _found: dict[int, int] = field(default_factory=dict)
    _values: dict[int, int] = field(default_factory=dict)

    def add(self, namer: Namer, paths: Iterable[str]) -> None:
        position = len(self.namers)
        self.namers.append(namer)
        for path in paths:
            key = _hash(path)
            value = self._found.get(key, position) + _ONE_MORE
            self._found[key] = self._values.setdefault(value, value)  # one number for all objects of one kind

    def who(self, path: str) -> tuple[Namer, int] | None:
        """Return the strongest of those that name a path, and how many do; None for what nobody names."""
        value = self._found.get(_hash(path))
        return None if value is None else (self.namers[value % _ONE_MORE], value // _ONE_MORE)


AT_ONCE = 32
"""Manifests that are read, and in memory, at the same time."""

_ONE_MORE = 1 << 32


def _hash(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "big")


async def index_live(
    session: Session, head: Head, decision: Decision, grace: timedelta, deleted: tuple[Ref, Manifest] | None = None
) -> Index:
    """Return the index of one version, once what `decision` retires is retired. Nobody waits for what was `deleted`.

    Raises `ObjectNotFoundError` or `CorruptionError` where something live cannot be read: then nothing may be deleted.
    """
    assert head.pointer is not None
    index = Index()
    live = decision.live
    catalog = [] if head.pointer.catalog is None else [head.pointer.catalog.path]
    index.add(Namer(None, "_latest, or its catalog", KEEP), [object_paths.LATEST, *catalog])
    chain = set(live.chain)

    def strength(ref: Ref) -> tuple[bool, bool, CheckpointId]:
        return (ref == head.committed, ref in chain, ref.id)

    order = sorted(decision.kept, key=strength, reverse=True)
    named = [(ref, Namer(ref.id, decision.kept[ref], KEEP)) for ref in order]
    if head.prepared is not None:
        named.append((head.prepared, Namer(head.prepared.id, "prepared", KEEP)))
    action = LATER if grace else DELETE
    named += [(ref, Namer(ref.id, "retired by this plan", action)) for ref in decision.retired]
    segments = metadata.Segments(session.store, session.host)
    parents: set[Ref] = set()
    for start in range(0, len(named), AT_ONCE):
        some = named[start : start + AT_ONCE]
        found = await asyncio.gather(*(metadata.read_manifest_alone(session.store, ref) for ref, _ in some))
        whole = await asyncio.gather(*map(segments.load, found))
        segments.forget_but(found)
        parents |= {manifest.parent for manifest in found if manifest.parent is not None}

        def add(some: list[tuple[Ref, Namer]] = some, whole: list[Manifest] = whole) -> None:
            for (ref, namer), manifest in zip(some, whole, strict=True):
                index.add(namer, metadata.objects_of(ref, manifest))

        await session.host.run(add)
    known = {ref for ref, _ in named}
    if deleted is not None:
        known.add(deleted[0])
        parents |= {deleted[1].parent} if deleted[1].parent is not None else set()
    await _add_retired(session, index, head, known, parents, grace)
    return index


async def _add_retired(
    session: Session, index: Index, head: Head, known: set[Ref], parents: set[Ref], grace: timedelta
) -> None:
    """What was retired less than the grace period ago: readers may be using it.

    It is found from the parents of all that is live, and in the catalogs of then. Nothing depends on it, so what is not
    there any more, or cannot be read, is passed over.
    """
    if head.pointer is None or not head.pointer.retired:
        return
    now = session.host.now()
    young = [old for old in head.pointer.retired if is_young(old, now, grace)]
    starts = set(parents)
    for old in young:
        if old.catalog is not None:
            index.add(Namer(None, _why(old), LATER), [old.catalog.path])
            with suppress(ObjectNotFoundError, CorruptionError):
                catalog = await metadata.read_catalog(session.store, old.catalog)
                starts |= {entry.ref for entry in catalog.entries} if catalog else set()
    lowest = min((old.boundary for old in young), default=0)
    segments = metadata.Segments(session.store, session.host)
    for start in sorted(starts - known, key=lambda ref: ref.id, reverse=True) if young else ():
        with suppress(ObjectNotFoundError, CorruptionError):
            async for ref, manifest in walk_from(session.store, start, min(lowest, start.id.sequence)):
                if ref in known:
                    break
                known.add(ref)
                newest = max((old for old in young if old.boundary <= ref.id.sequence), default=young[-1], key=_when)
                paths = metadata.objects_of(ref, await segments.load(manifest))
                segments.forget_but([manifest])
                index.add(Namer(ref.id, _why(newest), LATER), paths)


def _when(old: Retired) -> datetime:
    return old.at


def _why(old: Retired) -> str:
    return f"retired at {old.at:%Y-%m-%dT%H:%M:%SZ}: stays for its readers until the grace period is over"
