"""What a whole store holds: every object that a live manifest names, counted once."""

import asyncio
from collections import Counter
from dataclasses import dataclass

from pyspark_checkpointer.admin import checkpoint_sizes
from pyspark_checkpointer.admin.checkpoint_sizes import Spread
from pyspark_checkpointer.checkpoint.listing import Overview, batched, read_overview
from pyspark_checkpointer.checkpoint.metadata import Segments
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Operator
from pyspark_checkpointer.runtime.host import Progress, tell


@dataclass(frozen=True, slots=True)
class Held:
    """Objects of one operator, by its newest name, and of one kind: "snapshot", "delta", or "pack" for those that
    several partitions share."""

    operator: str
    kind: str
    objects: int
    bytes: int


@dataclass(frozen=True, slots=True)
class StoreStats:
    """All that is live and prepared. `current` has the operators of the committed checkpoint, by name."""

    checkpoints: int
    savepoints: int
    held: tuple[Held, ...]
    metadata_objects: int
    """`_latest`, manifests, segments and the catalog."""
    metadata_bytes: int
    current: dict[str, Operator]
    growth: Spread | None
    """Bytes of artifacts and segments that a commit of the recent history wrote."""

    @property
    def objects(self) -> int:
        return self.metadata_objects + sum(held.objects for held in self.held)

    @property
    def bytes(self) -> int:
        return self.metadata_bytes + sum(held.bytes for held in self.held)


async def read_stats(session: Session, progress: Progress | None = None) -> StoreStats:
    """Count what is live. Reads manifests and segments, and lists those; reads no artifact.

    `progress` is told checkpoints.
    """
    overview = await read_overview(session)
    segments = Segments(session.store, session.host)
    sizes: dict[str, int] = {}
    named: dict[str, str] = {}
    current: dict[str, Operator] = {}
    done = 0
    for some in batched(overview.checkpoints):
        manifests = await asyncio.gather(*(segments.load(listed.manifest) for listed in some))
        segments.forget_but(listed.manifest for listed in some)
        for listed, manifest in zip(some, manifests, strict=True):
            sizes |= checkpoint_sizes.object_sizes(manifest)
            named |= checkpoint_sizes.operators_of_objects(manifest)
            if listed.state == "committed":
                current = dict(sorted(manifest.operators.items()))
        done += len(some)
        await tell(session.host, progress, done, len(overview.checkpoints))
    written = checkpoint_sizes.bytes_by_attempt(sizes)
    metadata = await _metadata(session, overview, set(sizes))
    return StoreStats(
        checkpoints=len(overview.checkpoints),
        savepoints=sum(entry.name is not None for entry in overview.history.entries),
        held=_held(sizes, named),
        metadata_objects=len(metadata),
        metadata_bytes=sum(metadata.values()),
        current=current,
        growth=Spread.of(written.get(str(ref.id), 0) for ref, _ in overview.history.chain),
    )


async def _metadata(session: Session, overview: Overview, known: set[str]) -> dict[str, int]:
    """Return the sizes of what is no artifact. Nothing but a listing tells how large a manifest is."""
    wanted = {object_paths.LATEST, *(object_paths.manifest(listed.ref.id) for listed in overview.checkpoints)}
    wanted |= {path for path in known if path.startswith(object_paths.SEGMENTS)}
    sections = await asyncio.gather(*(session.store.list(p) for p in (object_paths.MANIFESTS, object_paths.CATALOGS)))
    sizes = {entry.path: entry.size for section in sections for entry in section}
    if overview.history.catalog is not None:
        wanted |= {path for path in sizes if path.startswith(f"{object_paths.CATALOGS}{overview.history.catalog.id}.")}
    sizes[object_paths.LATEST] = len((await session.store.get(object_paths.LATEST)).data)
    return {path: size for path, size in sizes.items() if path in wanted}


def _held(sizes: dict[str, int], named: dict[str, str]) -> tuple[Held, ...]:
    """By the operator that an object belongs to: its folder may have the name of an older one."""
    count: Counter[tuple[str, str]] = Counter()
    stored: Counter[tuple[str, str]] = Counter()
    for path, size in sizes.items():
        if path.startswith(object_paths.ARTIFACTS):
            key = named[path], object_paths.parse_artifact(path).kind or "pack"
            count[key] += 1
            stored[key] += size
    return tuple(Held(*key, count[key], stored[key]) for key in sorted(count))
