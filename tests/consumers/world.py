"""Several workers on one root, each behind a faulty store of its own and with a host that the test controls."""

import itertools
import time
import uuid
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from pyspark_checkpointer import runtime
from pyspark_checkpointer.consumers.group import Group
from pyspark_checkpointer.consumers.lease import Lease, Value
from pyspark_checkpointer.consumers.leases import Leases
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.errors import LeaseLostError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.positions_json import Ownership, Position, Row, decode_ownership, decode_position
from pyspark_checkpointer.storage.base import ObjectNotFoundError, Store
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore

T = TypeVar("T")

LEASE = 10.0
"""Seconds of a lease, by the clocks of the tests."""

FOLDER = object_paths.group_folder("tests", "stream", "group")
OWNERSHIP = object_paths.ownership(FOLDER)

_starts = itertools.count(1)


def run(work: Coroutine[Any, Any, T]) -> T:
    return runtime.run_sync(work)


class TestHost:
    """A clock that stands still until the test moves it, and a time of day that may be any. Tokens are counted."""

    __test__ = False

    def __init__(self, skew: timedelta = timedelta(0)) -> None:
        self.seconds = 1000.0
        self.skew = skew
        self._tokens = itertools.count(1)
        self._number = next(_starts)

    def now(self) -> datetime:
        return datetime(2024, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds) + self.skew

    def clock(self) -> int:
        return int(self.seconds * 1e9)

    def token(self, digits: int) -> str:
        return f"{self._number:08x}{next(self._tokens):0{digits - 8}x}"

    async def run(self, compute: Callable[[], T]) -> T:
        return compute()

    async def call(self, function: Callable[[], T]) -> T:
        return function()


def eventually(true: Callable[[], object]) -> None:
    """Wait until something is true."""
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.002)


def path(partition: str) -> str:
    return object_paths.position(FOLDER, partition)


class Worker:
    """A process: its host, its faulty store, and its leases. Nothing of it is shared but the root."""

    def __init__(self, store: Store, name: str, *, skew: timedelta = timedelta(0)) -> None:
        self.name = name
        self.host = TestHost(skew)
        self.faults = Faults()
        self.group = Group(StoreContext(FaultyStore(store, self.faults), self.host), FOLDER)
        self.leases = Leases(self.group, name, LEASE)

    def take(self, partition: str, **options: bool) -> Lease | None:
        return run(self.leases.take(partition, **options))

    def must_take(self, partition: str, **options: bool) -> Lease:
        lease = self.take(partition, **options)
        assert lease is not None
        return lease

    def counts(self, work: Coroutine[Any, Any, object]) -> dict[str, int]:
        """The requests that `work` makes."""
        self.faults.forget()
        run(work)
        return dict(self.faults.counts)


def write(lease: Lease, number: int) -> Value | None:
    return run(lease.write(lambda value: {"at": number}))


def lost(lease: Lease) -> bool:
    """Whether its owner is told, once it asks."""
    try:
        run(lease.write(lambda value: None))
    except LeaseLostError:
        return True
    return False


class World:
    """A root in memory, and what an onlooker sees of it."""

    def __init__(self) -> None:
        self.url = f"memory://{uuid.uuid4().hex}"
        self.store: Store = MemoryStore(self.url)
        self.workers: list[Worker] = []

    def worker(self, name: str, **options: Any) -> Worker:
        worker = Worker(MemoryStore(self.url), name, **options)
        worker.host.seconds = self.workers[0].host.seconds if self.workers else 1000.0
        self.workers.append(worker)
        return worker

    def create(self, *partitions: str) -> None:
        run(Worker(MemoryStore(self.url), "setup").leases.create(partitions))

    def wait(self, seconds: float) -> None:
        """Let time pass for everybody."""
        for worker in self.workers:
            worker.host.seconds += seconds

    def rows(self) -> dict[str, Row]:
        return dict(self.ownership().rows)

    def ownership(self) -> Ownership:
        return decode_ownership(OWNERSHIP, self.read(OWNERSHIP))

    def position(self, partition: str) -> Position:
        return decode_position(path(partition), self.read(path(partition)))

    def at(self, partition: str) -> int | None:
        """Return what `write` recorded last."""
        value = self.position(partition).value
        return None if value is None else value["at"]

    def read(self, name: str) -> bytes:
        return run(self.store.get(name)).data

    def exists(self, name: str) -> bool:
        try:
            self.read(name)
        except ObjectNotFoundError:
            return False
        return True

    def delete(self, *paths: str) -> None:
        run(self.store.delete(paths))

    def put(self, name: str, data: bytes) -> None:
        """Write something over whatever is there."""
        self.delete(name)
        run(self.store.put(name, data))
