"""Several users of one root in one process, each behind a faulty store of its own."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark_checkpointer import Checkpointer, runtime
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.history import read_history
from pyspark_checkpointer.checkpoint.latest import Head, read_head
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint, Restored
from pyspark_checkpointer.manifests.model import CheckpointId, Pointer, Ref
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage import compare_and_swap
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.storage.local.store import LocalStore
from pyspark_checkpointer.storage.memory.store import MemoryStore
from pyspark_checkpointer.storage.request_path import RetryingStore
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.store import FaultyStore

Contents = dict[str, dict[int, list[bytes]]]

# Many tests lose the answers to swaps, and nothing is gained by the pauses.
compare_and_swap.FIRST_PAUSE = 0.0


async def at_once(seconds: float) -> None:
    """Sleeps no time."""


class Actor(Checkpointer):
    """A checkpointer whose requests go through `faults`. Without `retries` it sees every single failure."""

    def __init__(
        self,
        store: Store,
        *,
        retries: bool = True,
        seed: int | None = None,
        faults: Faults | None = None,
        **options: Any,
    ) -> None:
        self.faults = faults or Faults(seed=seed)
        self._faulty = FaultyStore(store, self.faults)
        self._retries = retries
        super().__init__(store.url, **options)

    def _open_session(self) -> Session:
        session = super()._open_session()
        session.store = RetryingStore(self._faulty, sleep=at_once) if self._retries else self._faulty
        return session


class World:
    """A root, in memory unless a folder is given."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._url = f"memory://{uuid.uuid4().hex}"
        self.store: Store = MemoryStore(self._url) if folder is None else LocalStore(str(folder))

    def actor(self, **options: Any) -> Actor:
        """Somebody who has restored nothing yet."""
        store = MemoryStore(self._url) if self._folder is None else LocalStore(str(self._folder))
        return Actor(store, **options)

    def pointer(self) -> Pointer:
        pointer = runtime.run_sync(read_head(self.store)).pointer
        assert pointer is not None
        return pointer

    def latest(self) -> bytes:
        """The bytes of `_latest`."""
        return self.read("_latest")

    def read(self, path: str) -> bytes:
        return runtime.run_sync(self.store.get(path)).data

    def objects(self, prefix: str = "") -> set[str]:
        return {entry.path for entry in runtime.run_sync(self.store.list(prefix))}

    def delete(self, *paths: str) -> None:
        runtime.run_sync(self.store.delete(paths))

    def contents(self) -> dict[CheckpointId, Contents]:
        """Every live checkpoint with every byte of it, each verified."""
        return runtime.run_sync(self._contents())

    async def _contents(self) -> dict[CheckpointId, Contents]:
        session = self.actor(retries=False).session
        history = await read_history(self.store, await read_head(self.store))
        return {ref.id: await read_whole(session, ref) for ref in history.refs().values()}


async def live_objects(store: Store, host: Host, head: Head) -> set[str]:
    """Every path that a version keeps alive: what the committed, kept and prepared checkpoints are made of."""
    history = await read_history(store, head)
    paths = {"_latest"}
    if head.pointer is not None and head.pointer.catalog is not None:
        paths.add(head.pointer.catalog.path)
    for ref in set(history.refs().values()) | ({head.prepared} if head.prepared else set()):
        paths |= metadata.objects_of(ref, await metadata.read_manifest(store, host, ref))
    return paths


async def read_whole(session: Session, ref: Ref) -> Contents:
    """Every byte of one checkpoint, live or not."""
    manifest = await metadata.read_manifest(session.store, session.host, ref)
    snapshot = CheckpointReader(session, manifest, None)
    return {
        name: {partition: await snapshot.partition(name, partition) for partition in operator.chains}
        for name, operator in manifest.operators.items()
    }


def put(client: Checkpointer, value: bytes, *, epoch: int | None = None) -> CheckpointId:
    """Commit a checkpoint that holds `value` in operator "op", partition 0."""
    with client.begin(epoch) as cp:
        cp.snapshot("op", 0, value)
    return cp.id


def attempt(client: Checkpointer, value: bytes) -> Checkpoint:
    """Like `put`, up to the commit."""
    cp = client.begin()
    cp.snapshot("op", 0, value)
    return cp


def got(restored: Restored | None) -> bytes:
    """What `put` committed."""
    assert restored is not None
    (value,) = restored.operator("op").partition(0)
    return value


def latest(client: Checkpointer) -> bytes:
    return got(client.restore())


def contents(restored: Restored | None) -> Contents:
    """Every byte of every operator."""
    if restored is None or restored.manifest is None:
        return {}
    return {
        name: {p: restored.operator(name).partition(p) for p in restored.operator(name).partitions}
        for name in restored.operators
    }


def line(client: Checkpointer, length: int) -> list[CheckpointId]:
    """Commit checkpoints 1 to `length`; number n holds its number as text."""
    return [put(client, str(number).encode()) for number in range(1, length + 1)]


Verb = Callable[[Checkpointer], object]
