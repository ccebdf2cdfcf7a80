"""Compute what a job costs in a month.

That is requests by price class, bytes written and kept, and money. The cost of a batch comes from `admin/forecast.py`,
or from the manifests of a real root (`admin/measured_cost.py`). The requests of a cleanup are counted here, step by
step as `retention/garbage_collect.py` sends them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from pyspark_checkpointer.admin.forecast import BatchForecast
from pyspark_checkpointer.admin.retention.policy import DEFAULT_GRACE
from pyspark_checkpointer.admin.retention.sweep import DELETE_BATCH
from pyspark_checkpointer.checkpoint.history import NEAR_STEPS
from pyspark_checkpointer.storage import registry
from pyspark_checkpointer.storage.registry import PriceClass, StoreCosts, folder_of
from pyspark_checkpointer.storage.url import parse

HOURS = 730
"""Hours of a month: a twelfth of a year."""

GIB = 1 << 30
"""Bytes of the gigabyte that stores are paid for."""

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
        """Return the cost of each price class."""
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
    """Return the requests of one cleanup.

    The number is exact if each checkpoint is independent: the catalog is empty, nothing is prepared, and there are no
    segments. A cleanup reads `_latest` twice, the positions of followers once, each kept manifest three times, and the
    others once or twice. One that retires lists the manifests once more, to see whether `_latest` is an old copy.
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
    retires = min(window.retired, 1)
    return BilledRequests(sum(lists) + retires * (pages + 1), gets + batch.segments, _deletions(going, batch, store))


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
    """Return the cost of a month.

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
