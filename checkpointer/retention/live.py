"""What a version of `_latest` keeps alive, and who names it: a small index that any path can be looked up in.

It holds eight bytes of hash for each live object, not its path, and is built from few manifests at a time, so that
neither a long history nor much garbage costs memory. Two paths with one hash make garbage look live, which is harmless.
"""

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from hashlib import blake2b
from typing import Literal

from checkpointer import objects
from checkpointer.errors import CorruptionError
from checkpointer.history import walk
from checkpointer.pointer import Head
from checkpointer.retention.retire import Decision
from checkpointer.session import Session
from checkpointer.store.base import ObjectNotFoundError
from manifests import layout
from manifests.model import Catalog, CatalogRef, CheckpointId, Ref

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
        """The strongest of those that name a path, and how many do; None for what nobody names."""
        value = self._found.get(_hash(path))
        return None if value is None else (self.namers[value % _ONE_MORE], value // _ONE_MORE)


AT_ONCE = 32
"""Manifests that are read, and in memory, at the same time."""

_ONE_MORE = 1 << 32


def _hash(path: str) -> int:
    return int.from_bytes(blake2b(path.encode(), digest_size=8).digest(), "big")


async def index_live(session: Session, head: Head, decision: Decision, grace: timedelta) -> Index:
    """The index of one version, once what `decision` retires is retired.

    Raises `ObjectNotFoundError` or `CorruptionError` where something live cannot be read: then nothing may be deleted.
    """
    assert head.pointer is not None
    index = Index()
    lineage = decision.lineage
    catalog = [] if head.pointer.catalog is None else [head.pointer.catalog.path]
    index.add(Namer(None, "_latest, or its catalog", KEEP), [layout.LATEST, *catalog])
    chain = set(lineage.chain)

    def strength(ref: Ref) -> tuple[bool, bool, CheckpointId]:
        return (ref == head.committed, ref in chain, ref.id)

    order = sorted(decision.kept, key=strength, reverse=True)
    named = [(ref, Namer(ref.id, decision.kept[ref], KEEP)) for ref in order]
    if head.prepared is not None:
        named.append((head.prepared, Namer(head.prepared.id, "prepared", KEEP)))
    action = LATER if grace else DELETE
    named += [(ref, Namer(ref.id, "retired by this plan", action)) for ref in decision.retired]
    for start in range(0, len(named), AT_ONCE):
        some = named[start : start + AT_ONCE]
        for (_, namer), paths in zip(some, await asyncio.gather(*(_paths(session, r) for r, _ in some)), strict=True):
            index.add(namer, paths)
    await _add_retired(session, index, head, {*decision.kept, *decision.retired}, grace)
    return index


async def _paths(session: Session, ref: Ref) -> set[str]:
    return objects.objects_of(ref, await objects.read_manifest(session.store, session.host, ref))


async def _add_retired(session: Session, index: Index, head: Head, known: Collection[Ref], grace: timedelta) -> None:
    """What was retired less than the grace period ago: readers may be using it.

    Nothing depends on it, so what is not there any more, or cannot be read, is passed over.
    """
    assert head.pointer is not None
    now = session.host.now()
    seen = set(known)
    for old in head.pointer.retired:
        left = grace - (now - old.at)
        if left <= timedelta(0):
            continue
        reason = f"retired at {old.at:%Y-%m-%dT%H:%M:%SZ}: stays for its readers until the grace period is over"
        if old.catalog is not None:
            index.add(Namer(None, reason, LATER), [old.catalog.path])
        async for ref in _kept_by(session, head, old.boundary, old.catalog):
            if ref not in seen:
                seen.add(ref)
                with suppress(ObjectNotFoundError, CorruptionError):
                    index.add(Namer(ref.id, reason, LATER), await _paths(session, ref))


async def _kept_by(session: Session, head: Head, boundary: int, catalog: CatalogRef | None) -> AsyncIterator[Ref]:
    try:
        found: Catalog | None = await objects.read_catalog(session.store, catalog)
    except (ObjectNotFoundError, CorruptionError):
        found = None
    for entry in found.entries if found is not None else ():
        yield entry.ref
    try:
        async for ref, _ in walk(session.store, head, boundary):
            yield ref
    except (ObjectNotFoundError, CorruptionError):
        return  # an explicit delete took a part of the chain away at once
