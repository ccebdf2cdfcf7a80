"""Count what a whole store holds.

Every object that a live manifest references counts once.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass

from pyspark_checkpointer.admin import checkpoint_sizes
from pyspark_checkpointer.admin.checkpoint_sizes import Spread
from pyspark_checkpointer.checkpoint.latest import read_consistent
from pyspark_checkpointer.checkpoint.listing import Listing, batched, read_listing
from pyspark_checkpointer.checkpoint.metadata import Segments
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Operator
from pyspark_checkpointer.runtime.host import Progress, tell
from pyspark_checkpointer.storage.base import SWAP_LIMIT


@dataclass(frozen=True, slots=True)
class HeldObjects:
    """The objects of one kind that an operator has."""

    operator: str
    """The newest name of the operator."""
    kind: str
    """"snapshot", "delta", or "pack" for an object that several partitions share."""
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The content of the live checkpoints and the prepared one together."""

    checkpoints: int
    savepoints: int
    held: tuple[HeldObjects, ...]
    metadata_objects: int
    """`_latest`, manifests, segments and the catalog."""
    metadata_bytes: int
    current: dict[str, Operator]
    """The operators of the committed checkpoint, by name."""
    growth: Spread | None
    """Bytes of artifacts and segments that each commit of the history wrote.

    None without history.
    """

    @property
    def objects(self) -> int:
        """Return the number of all objects."""
        return self.metadata_objects + sum(held.objects for held in self.held)

    @property
    def bytes(self) -> int:
        """Return the bytes of all objects."""
        return self.metadata_bytes + sum(held.bytes for held in self.held)


async def read_stats(session: Session, progress: Progress | None = None) -> StoreStats:
    """Return the statistics of a store.

    Reads and lists manifests and segments, but reads no artifact. `progress` is told checkpoints.
    """
    # A deletion may take a segment away that was listed before.
    return await read_consistent(session.store, lambda _: _read_stats(session, progress))


async def _read_stats(session: Session, progress: Progress | None) -> StoreStats:
    listing = await read_listing(session)
    segments = Segments(session.store, session.host)
    sizes: dict[str, int] = {}
    named: dict[str, str] = {}
    current: dict[str, Operator] = {}
    done = 0
    for batch in batched(listing.checkpoints):
        manifests = await asyncio.gather(*(segments.load(listed.manifest) for listed in batch))
        # A long history must not fill the memory: of the segments only those of this batch stay, which the next may
        # share.
        segments.forget_but(listed.manifest for listed in batch)
        for listed, manifest in zip(batch, manifests, strict=True):
            # By path, so an object that many checkpoints share counts once.
            sizes |= checkpoint_sizes.object_sizes(manifest)
            # Later batches overwrite earlier ones, so the newest name of a renamed operator stays.
            named |= checkpoint_sizes.operators_of_objects(manifest)
            if listed.state == "committed":
                current = dict(sorted(manifest.operators.items()))
        done += len(batch)
        await tell(session.host, progress, done, len(listing.checkpoints))
    written = checkpoint_sizes.bytes_by_attempt(sizes)
    metadata = await _metadata(session, listing, set(sizes))
    return StoreStats(
        checkpoints=len(listing.checkpoints),
        savepoints=sum(entry.name is not None for entry in listing.history.entries),
        held=_held(sizes, named),
        metadata_objects=len(metadata),
        metadata_bytes=sum(metadata.values()),
        current=current,
        growth=Spread.of(written.get(str(ref.id), 0) for ref, _ in listing.history.ancestry),
    )


async def _metadata(session: Session, listing: Listing, known: set[str]) -> dict[str, int]:
    """Return the sizes of live objects that are no artifacts, by path.

    A listing alone tells the size of a manifest.
    """
    wanted = {object_paths.LATEST, *(object_paths.manifest(listed.ref.id) for listed in listing.checkpoints)}
    wanted |= {path for path in known if path.startswith(object_paths.SEGMENTS)}
    sections = await asyncio.gather(*(session.store.list(p) for p in (object_paths.MANIFESTS, object_paths.CATALOGS)))
    sizes = {entry.path: entry.size for section in sections for entry in section}
    if listing.history.catalog is not None:
        # By the id before the digest: the digest in the path is not at hand here.
        wanted |= {path for path in sizes if path.startswith(f"{object_paths.CATALOGS}{listing.history.catalog.id}.")}
    sizes[object_paths.LATEST] = len((await session.store.get(object_paths.LATEST, limit=SWAP_LIMIT)).data)
    return {path: size for path, size in sizes.items() if path in wanted}


def _held(sizes: dict[str, int], named: dict[str, str]) -> tuple[HeldObjects, ...]:
    """Return the artifacts' objects, counted by operator and kind.

    `named` has the operator of each object: its folder may have the name that the operator had before.
    """
    count: Counter[tuple[str, str]] = Counter()
    stored: Counter[tuple[str, str]] = Counter()
    for path, size in sizes.items():
        if path.startswith(object_paths.ARTIFACTS):
            key = named[path], object_paths.parse_artifact(path).kind or "pack"
            count[key] += 1
            stored[key] += size
    return tuple(HeldObjects(*key, count[key], stored[key]) for key in sorted(count))
