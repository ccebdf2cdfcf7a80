"""Find out which checkpoints exist.

These are the ancestry of the committed checkpoint, down to the boundary, and the checkpoints of the catalog.

Liveness is by id in the ancestry, never by sequence alone: an abandoned attempt can have a good sequence.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pyspark_checkpointer.checkpoint.latest import Head, list_sizes
from pyspark_checkpointer.checkpoint.metadata import find_manifest, read_catalog, read_manifest_alone
from pyspark_checkpointer.errors import OutcomeUnknownError
from pyspark_checkpointer.manifests import model
from pyspark_checkpointer.manifests.model import Catalog, CatalogEntry, CheckpointId, Manifest, Ref
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store

NEAR_STEPS = 4
"""Number of newest checkpoints that are read by walking, not by listing.

For checkpoints so close to the committed one, walking costs less than listing.
"""

READ_BATCH = 256
"""Largest number of manifests that are fetched at once.

As many are in memory at once if the caller does not keep them.
"""

NONE: Mapping[Ref, Manifest] = MappingProxyType({})

Links = dict[Ref, Manifest]
"""Manifests of one ancestry without their content: they never change, so a second walk can learn nothing of them."""

MAX_LINKS = 1 << 15
"""Largest number of links that are kept. They take up to 30 MB."""


def note_link(links: Links | None, ref: Ref, manifest: Manifest) -> None:
    """Keep a manifest for a later walk.

    Walks come to the newest ones first, so these are kept.
    """
    if links is not None and len(links) < MAX_LINKS:
        links[ref] = model.without_content(manifest)


@dataclass(frozen=True, slots=True)
class History:
    """The live checkpoints of one version of `_latest`.

    These are the contiguous ancestry, newest first, and the catalog.
    """

    ancestry: tuple[tuple[Ref, Manifest], ...]
    catalog: Catalog | None

    @property
    def entries(self) -> tuple[CatalogEntry, ...]:
        return () if self.catalog is None else self.catalog.entries

    def refs(self) -> dict[CheckpointId, Ref]:
        """Return every live checkpoint, oldest first."""
        live = {ref.id: ref for ref, _ in self.ancestry} | {entry.ref.id: entry.ref for entry in self.entries}
        return dict(sorted(live.items()))

    def refs_with(self, prepared: Ref | None) -> list[Ref]:
        """Return every live checkpoint and the prepared one, oldest first."""
        refs = self.refs() if prepared is None else {**self.refs(), prepared.id: prepared}
        return [ref for _, ref in sorted(refs.items())]


async def read_history(store: Store, head: Head) -> History:
    """Return all checkpoints that are live in `head`.

    Manifests are fetched in parallel, then proven to be one ancestry.

    Raises `ObjectNotFoundError` if `head` is out of date, or if the store is damaged: see `latest.read_consistent`.
    """
    catalog, ancestry = await asyncio.gather(read_catalog(store, head.catalog), _read_ancestry(store, head))
    return History(ancestry, catalog)


async def _read_ancestry(store: Store, head: Head) -> tuple[tuple[Ref, Manifest], ...]:
    return tuple([pair async for pair in walk(store, head, head.boundary)])


async def walk(
    store: Store, head: Head, oldest: int, known: Mapping[Ref, Manifest] = NONE, host: Host | None = None
) -> AsyncIterator[tuple[Ref, Manifest]]:
    """Yield the ancestry from the committed checkpoint down to sequence `oldest`.

    See `walk_from`.
    """
    if head.committed is not None:
        async for pair in walk_from(store, head.committed, oldest, known, host):
            yield pair


async def walk_from(
    store: Store, start: Ref, oldest: int, known: Mapping[Ref, Manifest] = NONE, host: Host | None = None
) -> AsyncIterator[tuple[Ref, Manifest]]:
    """Yield the ancestry from `start` down to sequence `oldest`.

    It goes from parent to parent, and each link is proven.

    Many manifests are fetched at a time. They come without the chains in segments. Those that are `known`, from a walk
    on an older version, are not fetched again. `host` is as in `read_manifest_alone`.
    """
    async for pair in await begin_walk(store, start, oldest, known, host):
        yield pair


async def begin_walk(
    store: Store, start: Ref | None, oldest: int, known: Mapping[Ref, Manifest] = NONE, host: Host | None = None
) -> AsyncIterator[tuple[Ref, Manifest]]:
    """List the manifests of a walk, and return what `walk_from` yields.

    A short walk needs no listing. So an error of the listing is no error of a manifest.
    """
    if start is None or start.id.sequence < oldest:
        return _walk_listed(store, start, oldest, known, [], host)
    # Those that are known have no gaps, so only what is newer or older has to be listed.
    sequences = [one.id.sequence for one in known]
    unknown = max([oldest, *(sequence + 1 for sequence in sequences)])
    far = start.id.sequence - unknown >= NEAR_STEPS
    listed = await list_sizes(store, unknown, start.id.sequence) if far else []
    if sequences and min(sequences) - oldest > NEAR_STEPS:
        listed = [*await list_sizes(store, oldest, min(sequences) - 1), *listed]
    return _walk_listed(store, start, oldest, known, listed, host)


async def _walk_listed(
    store: Store,
    ref: Ref | None,
    oldest: int,
    known: Mapping[Ref, Manifest],
    waiting: list[tuple[CheckpointId, int]],
    host: Host | None,
) -> AsyncIterator[tuple[Ref, Manifest]]:
    """Yield the ancestry from `ref` on, as `walk_from` does.

    `waiting` are the listed manifests.
    """
    found: dict[Ref, Manifest] = {}
    child: Manifest | None = None
    while ref is not None and ref.id.sequence >= oldest:
        # The newest of the list first, as the walk needs them; a search that ends early never fetches the rest.
        while not (ref in found or ref in known) and waiting and waiting[-1][0].sequence >= ref.id.sequence:
            found |= await read_found(store, waiting[-READ_BATCH:], host)
            del waiting[-READ_BATCH:]
        # Popped, so that a long walk holds no manifests that the caller does not keep. One that is not among them is
        # read alone, which says what is wrong with it.
        manifest = known.get(ref) or found.pop(ref, None) or await read_manifest_alone(store, ref, host)
        # Callers may keep all of a long history, in which each manifest repeats nearly all of the one before.
        child = manifest if ref in known else model.share_operators(manifest, child)
        yield ref, child
        ref = manifest.parent


async def read_found(
    store: Store, listed: Sequence[tuple[CheckpointId, int]], host: Host | None
) -> dict[Ref, Manifest]:
    found = await asyncio.gather(*(find_manifest(store, *one, host) for one in listed), return_exceptions=True)
    # What could not be read matters only if the ancestry leads there; reading it again then says what is wrong.
    return dict(pair for pair in found if not isinstance(pair, BaseException))


async def read_in_turn(
    store: Store, refs: Sequence[Ref], host: Host | None = None
) -> AsyncIterator[tuple[Ref, Manifest]]:
    """Yield the manifests of some checkpoints, many fetched at a time.

    One that cannot be read raises when its turn comes: a search that ends before does not need it.
    """
    for begin in range(0, len(refs), READ_BATCH):
        batch = refs[begin : begin + READ_BATCH]
        read = await asyncio.gather(*(read_manifest_alone(store, ref, host) for ref in batch), return_exceptions=True)
        for ref, manifest in zip(batch, read, strict=True):
            if isinstance(manifest, BaseException):
                raise manifest
            yield ref, manifest


async def is_live(store: Store, head: Head, checkpoint: CheckpointId, links: Links | None = None) -> Ref | None:
    """Return the checkpoint's reference if `head` makes it live, else None.

    The prepared checkpoint does not count. The manifest of the checkpoint's child is the proof: the checkpoint's own
    manifest may be damaged, or those of older checkpoints. `links` are those of a session.
    """
    if head.committed is not None and head.committed.id == checkpoint:
        return head.committed
    # The catalog before the ancestry: it is one request, and needs no manifest that may be damaged.
    kept = {entry.ref.id: entry.ref for entry in await read_entries(store, head)}
    if checkpoint in kept:
        return kept[checkpoint]
    ref = await ancestor_at(store, head, checkpoint.sequence, links)
    return ref if ref is not None and ref.id == checkpoint else None


async def ancestor_at(store: Store, head: Head, sequence: int, links: Links | None = None) -> Ref | None:
    """Return the checkpoint of the ancestry that has a sequence, or None.

    The manifest of its child names it, so its own manifest is not read.
    """
    ref = head.committed
    if ref is None or sequence < head.boundary:
        return None
    async for one, manifest in walk(store, head, sequence + 1, links or NONE):
        note_link(links, one, manifest)
        ref = manifest.parent
    return ref if ref is not None and ref.id.sequence == sequence else None


async def read_entries(store: Store, head: Head) -> tuple[CatalogEntry, ...]:
    """Return the checkpoints that the catalog of a version keeps.

    This needs no manifest, so damage elsewhere does not matter.
    """
    catalog = await read_catalog(store, head.catalog)
    return () if catalog is None else catalog.entries


async def became_live(store: Store, head: Head, attempt: Ref) -> bool:
    """Return whether an attempt was committed although its swap found another pointer.

    Raises `OutcomeUnknownError` if the history that would tell is gone.
    """
    history = await read_history(store, head)
    if attempt.id in history.refs():
        return True
    # Nothing is committed on this version, and what is committed once never becomes nothing again.
    if not history.ancestry:
        return False
    oldest_ref, oldest = history.ancestry[-1]
    # Retired meanwhile, but a committed checkpoint was made on top of it.
    if oldest.parent is not None and oldest.parent.id == attempt.id:
        return True
    # The ancestry has another checkpoint at its sequence, so this one never was in it.
    if oldest_ref.id.sequence <= attempt.id.sequence:
        return False
    raise OutcomeUnknownError(
        f"{store.url}: it is not known whether {attempt.id} was committed: the history now begins at {oldest_ref.id}. "
        "Call restore() and go on from there"
    )
