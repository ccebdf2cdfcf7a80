"""Compute what a job costs in a month.

That is requests by price class, bytes written and kept, and money. What a batch costs comes from `admin/forecast.py`,
or from the manifests of a real root. The requests of a cleanup are counted here, step by step as
`retention/garbage_collect.py` sends them.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from pyspark_checkpointer.admin import checkpoint_sizes
from pyspark_checkpointer.admin.forecast import BatchForecast, upload_requests
from pyspark_checkpointer.admin.retention.garbage_collect import DELETE_BATCH
from pyspark_checkpointer.admin.retention.policy import DEFAULT_GRACE
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import NEAR_STEPS, walk
from pyspark_checkpointer.checkpoint.latest import Head, list_sizes, read_consistent
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import CheckpointNotFoundError
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.model import Manifest
from pyspark_checkpointer.storage import registry
from pyspark_checkpointer.storage.registry import PriceClass, StoreCosts, folder_of
from pyspark_checkpointer.storage.url import parse

HOURS = 730
"""Hours of a month: a twelfth of a year."""

GIB = 1 << 30
"""Bytes of the gigabyte that stores are paid for."""

MIN_MEASURED_TIME = timedelta(minutes=1)
"""The shortest time between checkpoints that tells how often a batch comes.

A test, or a job that catches up, makes hundreds in a second. A month at that rate is no forecast.
"""

OTHER = "other"
"""The name of all stores whose prices are not known here."""

STORES = {folder_of(kind): kind.costs for kind in registry.STORES if kind.costs is not None} | {
    OTHER: StoreCosts(
        "none are known for this store",
        {"put": 0.0, "get": 0.0, "delete": 0.0, "gb": 0.0},
        page=1000,
        deleted_at_once=1000,
        lists_uploads=True,
    )
}
"""By the name that `--store` takes. The first is taken where nothing is said."""


def costs_of(root: str) -> StoreCosts:
    """Return the costs of the store that a root is on."""
    return parse(root).kind.costs or STORES[OTHER]


@dataclass(frozen=True, slots=True)
class BilledRequests:
    """Requests by price class. LIST counts as PUT, and HEAD as GET."""

    put: float = 0
    get: float = 0
    delete: float = 0

    def __add__(self, other: "BilledRequests") -> "BilledRequests":
        return BilledRequests(self.put + other.put, self.get + other.get, self.delete + other.delete)

    def times(self, count: float) -> "BilledRequests":
        return BilledRequests(self.put * count, self.get * count, self.delete * count)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The number of batches, starts and cleanups of a job.

    Each of these costs something. Without `keep_last` nothing is ever deleted.
    """

    batches_per_hour: float
    starts_per_day: float = 1
    keep_last: int | None = None
    cleanups_per_day: float = 24
    grace: timedelta = DEFAULT_GRACE


@dataclass(frozen=True, slots=True)
class Month:
    """The costs of a month.

    `kept` is the bytes in the store: their mean, or without cleanup the bytes at the end of the month.
    """

    batches: float
    cleanups: float
    per_batch: BilledRequests
    per_start: BilledRequests
    per_cleanup: BilledRequests
    requests: BilledRequests
    bytes_per_batch: float
    written: float
    kept: float
    objects: float

    def money(self, prices: Mapping[PriceClass, float]) -> dict[PriceClass, float]:
        """Return what each class costs."""
        return {
            "put": self.requests.put / 1000 * prices["put"],
            "get": self.requests.get / 1000 * prices["get"],
            "delete": self.requests.delete / 1000 * prices["delete"],
            "gb": self.kept / GIB * prices["gb"],
        }


@dataclass(frozen=True, slots=True)
class Window:
    """The number of checkpoints in the store when a cleanup begins.

    The job is cleaned up regularly. The first `kept` stay. `retired` are retired by this cleanup. `in_grace` were
    retired before, and stay for their readers. `gone` were retired so long ago that their objects are deleted now.
    """

    kept: float
    retired: float
    in_grace: float
    gone: float

    @classmethod
    def of(cls, schedule: Schedule) -> "Window":
        """Return the window of a job that has been running for long."""
        assert schedule.keep_last is not None
        between = schedule.batches_per_hour * 24 / schedule.cleanups_per_day
        if not schedule.grace:
            return cls(schedule.keep_last, between, 0, 0)
        hours = 24 / schedule.cleanups_per_day
        earlier = max(math.ceil(schedule.grace.total_seconds() / 3600 / hours) - 1, 0)
        return cls(schedule.keep_last, between, between * earlier, between)

    @property
    def at_cleanup(self) -> float:
        """Return how many there are when a cleanup begins."""
        return self.kept + self.retired + self.in_grace + self.gone

    @property
    def mean(self) -> float:
        """Return how many there are in the mean.

        A cleanup deletes as many checkpoints as were made since the last one.
        """
        return self.at_cleanup - (self.gone or self.retired) / 2


def cleanup_requests(window: Window, batch: BatchForecast, store: StoreCosts) -> BilledRequests:
    """Return what one cleanup asks the store for.

    Exact where every checkpoint stands on its own: no savepoints and nothing else in the catalog, nothing prepared, and
    no segments. It reads `_latest` twice, the positions of followers once, each kept manifest three
    times, and the others once or twice.
    """
    every = window.kept + window.retired
    young = window.in_grace + window.retired if window.in_grace or window.gone else 0
    objects = batch.state_objects + (window.at_cleanup - 1) * batch.objects + 1
    followers = 1
    gets = 1 + every + followers + 1 + window.kept + window.kept + young
    pages = math.ceil(window.at_cleanup / store.page)
    # A few manifests are found from parent to parent, without a listing.
    lists = [pages for count in (every, window.kept, young) if count > NEAR_STEPS]
    lists += [math.ceil(objects / store.page), int(store.lists_uploads)]
    going = (window.gone or window.retired) * batch.objects
    swap = min(window.retired, 1)
    return BilledRequests(sum(lists) + swap, gets + batch.segments, _deletions(going, batch, store))


def _deletions(going: float, batch: BatchForecast, store: StoreCosts) -> float:
    """Return the number of requests that delete `going` objects.

    Manifests are deleted before artifacts, in batches of their own.
    """
    if not going:
        return 0
    if store.deleted_at_once == 1:
        return going
    manifests = going / batch.objects
    size = min(store.deleted_at_once, DELETE_BATCH)
    # Below 1, most cleanups find nothing to delete.
    return sum(min(math.ceil(count / size), count) for count in (manifests, going - manifests))


@dataclass(frozen=True, slots=True)
class Present:
    """The present content of a store: the objects that live checkpoints name."""

    objects: float
    bytes: float


def month(batch: BatchForecast, schedule: Schedule, store: StoreCosts, present: Present | None = None) -> Month:
    """Return what a month costs.

    `present` is what the store holds at the beginning. Unless it is given, that is one checkpoint. Where nothing is
    deleted, everything that is written in the month comes on top.
    """
    present = present or Present(batch.state_objects + 1, batch.state_bytes)
    batches = schedule.batches_per_hour * HOURS
    per_batch, per_start = BilledRequests(batch.puts, batch.gets), BilledRequests(get=batch.restore_gets)
    cleanups, per_cleanup = 0.0, BilledRequests()
    kept = Present(present.objects + batches * batch.objects, present.bytes + batches * batch.bytes)
    if schedule.keep_last is not None:
        window = Window.of(schedule)
        cleanups, per_cleanup = schedule.cleanups_per_day * HOURS / 24, cleanup_requests(window, batch, store)
        later = window.mean - 1
        kept = Present(batch.state_objects + later * batch.objects + 1, batch.state_bytes + later * batch.bytes)
    starts = schedule.starts_per_day * HOURS / 24
    return Month(
        batches,
        cleanups,
        per_batch,
        per_start,
        per_cleanup,
        per_batch.times(batches) + per_start.times(starts) + per_cleanup.times(cleanups),
        bytes_per_batch=batch.bytes,
        written=batch.bytes * batches,
        kept=kept.bytes,
        objects=kept.objects,
    )


# ---- a real root -----------------------------------------------------------------------------------------------------


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
    """Read the newest `last` manifests, and return the means of what they recorded.

    Requests of Spark's tasks are not recorded, apart from the objects that these wrote.

    Raises:
        CheckpointNotFoundError: No checkpoint says what it cost.
    """

    async def read(head: Head) -> Measured:
        if head.pointer is None or head.committed is None:
            raise CheckpointNotFoundError(
                f"{session.store.url}: nothing was committed yet: there is nothing to measure"
            )
        oldest = max(head.pointer.boundary, head.sequence - last + 1)
        found = {ref.id: manifest async for ref, manifest in walk(session.store, head, oldest)}
        listed = await list_sizes(session.store, oldest, head.sequence)
        sizes = {owner: size for owner, size in listed if owner in found}
        segments = metadata.Segments(session.store, session.host)
        objects: dict[str, int] = {}
        for manifest in found.values():  # one by one: neighbours share most of their segments
            objects |= checkpoint_sizes.object_sizes(await segments.load(manifest))
            segments.forget_but([manifest])
        newest = await segments.load(found[head.committed.id])
        mean = _mean(session.store.url, found.values(), newest, sum(sizes.values()) / len(sizes))
        older = head.sequence - head.pointer.boundary + 1 - len(found)
        return Measured(
            mean,
            sum(manifest.cost is not None for manifest in found.values()),
            Present(
                len(objects) + len(found) + older * mean.objects + 1,
                sum(objects.values()) + sum(sizes.values()) + older * mean.bytes,
            ),
            *_rate([*found.values()]),
        )

    return await read_consistent(session.store, read)


def _mean(url: str, manifests: Iterable[Manifest], newest: Manifest, manifest_size: float) -> BatchForecast:
    """Return the means of the costs that manifests recorded.

    The size of the state comes from the newest manifest.
    """
    told = [(manifest, manifest.cost) for manifest in manifests if manifest.cost is not None]
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
        for artifact in checkpoint_sizes.artifacts_of(operator)
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
