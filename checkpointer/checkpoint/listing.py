"""List the checkpoints of a store, as far as manifests and the catalog tell."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import History, read_history
from pyspark_checkpointer.checkpoint.latest import Head, read_consistent
from pyspark_checkpointer.checkpoint.resolve import resolve
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests.model import Manifest, Ref

CheckpointState = Literal["committed", "prepared", "history", "kept"]
"""The role of a checkpoint in the store.

`history`: in the ancestry below the committed one. `kept`: below the boundary, only in the catalog.
"""

LOAD_BATCH = 8
"""Manifests whose chains are loaded at the same time."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint, its state in the store, and the names of its savepoints."""

    ref: Ref
    manifest: Manifest
    state: CheckpointState
    savepoints: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """Every live checkpoint and the prepared one, oldest first.

    Chains that are in segments are not loaded.
    """

    checkpoints: tuple[Listed, ...]
    history: History


async def read_listing(session: Session, *, chains: bool = False) -> Listing:
    """Return all manifests at once.

    This takes few round trips, however many manifests there are. With `chains`, the segments are read too.
    """

    async def read(head: Head) -> Listing:
        listing = await _listing(session, head)
        if not chains:
            return listing
        # One cache for all, because neighbours share most of their segments.
        segments = metadata.Segments(session.store, session.host)
        checkpoints: list[Listed] = []
        for batch in batched(listing.checkpoints):
            manifests = await asyncio.gather(*(segments.load(listed.manifest) for listed in batch))
            checkpoints += (replace(listed, manifest=m) for listed, m in zip(batch, manifests, strict=True))
        return replace(listing, checkpoints=tuple(checkpoints))

    return await read_consistent(session.store, read)


def batched(checkpoints: tuple[Listed, ...]) -> Iterator[tuple[Listed, ...]]:
    """Yield checkpoints in groups of `LOAD_BATCH`, whose chains are loaded together."""
    for start in range(0, len(checkpoints), LOAD_BATCH):
        yield checkpoints[start : start + LOAD_BATCH]


async def _listing(session: Session, head: Head) -> Listing:
    history = await read_history(session.store, head)
    known = dict(history.ancestry)
    refs = history.refs_with(head.prepared)
    # The ancestry came with its manifests. The catalog and the pointer give only references.
    others = [ref for ref in refs if ref not in known]
    known.update(
        zip(
            others, await asyncio.gather(*(metadata.read_manifest_alone(session.store, r) for r in others)), strict=True
        )
    )
    names = _names(history)
    listed = (Listed(r, known[r], state_of(head, r), names.get(r, ())) for r in refs)
    return Listing(tuple(listed), history)


def _names(history: History) -> dict[Ref, tuple[str, ...]]:
    names: dict[Ref, tuple[str, ...]] = {}
    for entry in history.entries:
        if entry.name is not None:
            names[entry.ref] = (*names.get(entry.ref, ()), entry.name)
    return names


def state_of(head: Head, ref: Ref) -> CheckpointState:
    if ref == head.committed:
        return "committed"
    if ref == head.prepared:
        return "prepared"
    return "kept" if ref.id.sequence < head.boundary else "history"


async def read_listed(session: Session, wanted: CheckpointSelector) -> Listed:
    """Read one checkpoint with all its chains. The prepared one counts."""

    async def read(head: Head) -> Listed:
        ref = await resolve(session, head, wanted)
        catalog = await metadata.read_catalog(session.store, head.catalog)
        manifest = await metadata.read_manifest(session.store, session.host, ref)
        return Listed(ref, manifest, state_of(head, ref), _names(History((), catalog)).get(ref, ()))

    return await read_consistent(session.store, read)
