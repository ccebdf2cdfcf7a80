"""Measure the cost of the batches of a real root from its newest checkpoints.

Each checkpoint recorded the cost of its batch. `cost.py` says what a month of such batches costs.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta

from pyspark_checkpointer.admin import checkpoint_sizes
from pyspark_checkpointer.admin.cost import Present
from pyspark_checkpointer.admin.forecast import BatchForecast, upload_requests
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import READ_BATCH, walk
from pyspark_checkpointer.checkpoint.latest import Head, list_sizes, read_consistent
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import CheckpointNotFoundError
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Ref
from pyspark_checkpointer.storage.base import DAMAGE

MIN_MEASURED_TIME = timedelta(minutes=1)
"""The shortest time between checkpoints that tells how often a batch comes.

A test, or a job that catches up, makes hundreds in a second. A month at that rate is no forecast.
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of the batches of a root, as its newest checkpoints recorded it."""

    batch: BatchForecast
    checkpoints: int
    """Checkpoints whose manifests say what they cost."""
    present: Present
    batches_per_hour: float | None
    """The rate by the times at which the checkpoints were made.

    None where these are too few or too close together to tell.
    """
    span: timedelta
    """The time from the oldest to the newest of them."""


async def measure(session: Session, last: int) -> Measured:
    """Read the newest `last` manifests, and return the means of their costs.

    BilledRequests of Spark's tasks are not recorded, apart from the objects that these wrote.

    Raises:
        CheckpointNotFoundError: No checkpoint says what it cost.
    """

    async def read(head: Head) -> Measured:
        if head.committed is None:
            raise CheckpointNotFoundError(
                f"{session.store.url}: nothing was committed yet: there is nothing to measure"
            )
        oldest = max(head.boundary, head.sequence - last + 1)
        found = {ref.id: manifest async for ref, manifest in walk(session.store, head, oldest)}
        listed = await list_sizes(session.store, oldest, head.sequence)
        sizes = {owner: size for owner, size in listed if owner in found}
        segments = metadata.Segments(session.store, session.host)
        objects: dict[str, int] = {}
        for manifest in found.values():  # one by one: neighbours share most of their segments
            objects |= checkpoint_sizes.object_sizes(await segments.load(manifest))
            segments.forget_but([manifest])
        kept = await _catalogued(session, head)
        for begin in range(0, len(kept), READ_BATCH):
            with suppress(*DAMAGE):  # `verify` names what cannot be read
                some = kept[begin : begin + READ_BATCH]
                found_there = await asyncio.gather(*(metadata.read_manifest_alone(session.store, ref) for ref in some))
                for manifest in found_there:
                    objects |= checkpoint_sizes.object_sizes(await segments.load(manifest))
                    segments.forget_but([manifest])
        newest = await segments.load(found[head.committed.id])
        manifest_size = sum(sizes.values()) / len(sizes)
        mean = _mean(session.store.url, [*found.values()], newest, manifest_size)
        older = head.sequence - head.boundary + 1 - len(found)
        return Measured(
            mean,
            sum(manifest.cost is not None for manifest in found.values()),
            Present(
                len(objects) + len(found) + len(kept) + older * mean.objects + 1,
                sum(objects.values()) + sum(sizes.values()) + len(kept) * manifest_size + older * mean.bytes,
            ),
            *_rate([*found.values()]),
        )

    return await read_consistent(session.store, read)


async def _catalogued(session: Session, head: Head) -> list[Ref]:
    """Return the checkpoints that the catalog alone keeps.

    These are savepoints, and what a policy keeps for longer. There are none where the catalog cannot be read.
    """
    with suppress(*DAMAGE):
        catalog = await metadata.read_catalog(session.store, head.catalog)
        entries = () if catalog is None else catalog.entries
        refs = {entry.ref for entry in entries if entry.ref.id.sequence < head.boundary}
        return sorted(refs, key=lambda ref: ref.id)
    return []


def _is_unusual(manifest: Manifest, parents: Mapping[CheckpointId, Manifest]) -> bool:
    """Return whether a checkpoint made requests that no other batch makes.

    The first one of a root proves that the store compares versions. A rollback has another state than its parent, of
    which it wrote nothing: it has read all of it to verify it.
    """
    if manifest.parent is None:
        return True
    parent = parents.get(manifest.parent.id)
    cost = manifest.cost
    return cost is not None and not cost.objects and parent is not None and parent.operators != manifest.operators


def _mean(url: str, manifests: Sequence[Manifest], newest: Manifest, manifest_size: float) -> BatchForecast:
    """Return the means of the costs that manifests recorded.

    The size of the state comes from the newest manifest.
    """
    known = {manifest.id: manifest for manifest in manifests}
    every = [(manifest, manifest.cost) for manifest in manifests if manifest.cost is not None]
    told = [(manifest, cost) for manifest, cost in every if not _is_unusual(manifest, known)] or every
    if not told:
        raise CheckpointNotFoundError(
            f"{url}: no checkpoint records its cost: describe what a batch changes with --map and --table, "
            "without a root"
        )
    count = len(told)
    # Beside the objects, a commit writes its manifest and swaps `_latest`. All else that it asks for is read.
    read = sum(max(cost.requests - cost.objects - 2, 0) for _, cost in told)
    parts = sum(upload_requests(size) - 1 for manifest, _ in told for size in _own_sizes(manifest))
    segments = sum(len(operator.segments) for operator in newest.operators.values())
    maps = {
        artifact.path
        for operator in newest.operators.values()
        if codecs.kind_of(operator) == "map"
        for artifact in operator.artifacts()
    }
    state = checkpoint_sizes.object_sizes(newest)
    return BatchForecast(
        puts=(sum(cost.objects for _, cost in told) + parts) / count + 2,
        gets=read / count,
        objects=sum(cost.objects for _, cost in told) / count + 1,
        bytes=sum(cost.bytes for _, cost in told) / count + manifest_size,
        segments=segments,
        restore_gets=2 + segments + len(maps),
        state_objects=len(state) + 1,
        state_bytes=sum(state.values()) + manifest_size,
    )


def _own_sizes(manifest: Manifest) -> list[int]:
    """Return the sizes of the objects that a checkpoint wrote itself.

    Chains that its manifest does not hold are left out.
    """
    sizes = checkpoint_sizes.object_sizes(manifest)
    return [size for path, size in sizes.items() if object_paths.owner(path) == manifest.id]


def _rate(manifests: list[Manifest]) -> tuple[float | None, timedelta]:
    """Return the number of checkpoints in an hour, and the time that tells it.

    The time is that from the oldest to the newest. Below `MIN_MEASURED_TIME` there is no rate.
    """
    times = [manifest.created for manifest in manifests if manifest.created is not None]
    span = max(times) - min(times) if times else timedelta()
    return (len(times) - 1) / (span / timedelta(hours=1)) if span >= MIN_MEASURED_TIME else None, span
