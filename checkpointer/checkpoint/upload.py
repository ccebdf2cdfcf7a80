"""Write stored bytes to the store.

Large blobs are written alone. Small blobs of one operator are written together in packs.

`download.py` is the mirror image.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import Bytes, sha256
from pyspark_checkpointer.manifests.model import Artifact, Chain, CheckpointId, Kind
from pyspark_checkpointer.runtime.host import HASH_INLINE, Host
from pyspark_checkpointer.storage.base import ObjectExistsError, Store

SMALL = 256 << 10
"""Stored bytes up to which a blob is packed with others into one object."""

PACK = 16 << 20
"""Stored bytes at which a pack is sent without waiting for more."""

IN_FLIGHT = 256 << 20
"""Bytes of writes under way from which on the caller has to wait."""

MAX_CONCURRENT_COPIES = 16
"""Objects that are copied at the same time.

Fewer are copied at a time where they are large, since each is in memory as a whole.
"""


@dataclass(frozen=True, slots=True)
class EncodedBlob:
    """Encoded bytes of one snapshot or delta, as they will be stored."""

    kind: Kind
    data: bytes
    raw_size: int
    records: int


@dataclass(slots=True, eq=False)
class ChainSlot:
    """A place in a chain.

    Its artifacts are known once they are written or found in the parent.
    """

    operator: str
    partition: int
    codec: str
    artifacts: Chain = ()
    count: int = 1
    """Number of artifacts that there will be.

    There are more than one if older deltas are written again with the new one.
    """


class PendingPut(NamedTuple):
    """An object that is still to be written.

    The object that names it may be written at the same time.
    """

    path: str
    data: Bytes


@dataclass(slots=True)
class _OpenPack:
    size: int = 0
    slots: list[tuple[ChainSlot, EncodedBlob, str]] = field(default_factory=list)


class UploadQueue:
    """Writes that run in the background. The caller waits if very much is under way."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], int] = {}
        self.failure: BaseException | None = None
        """The error after which no write can be started or finished."""

    async def submit(self, write: Coroutine[Any, Any, None], size: int) -> None:
        """Begin a write of about `size` bytes, and wait while very much is under way.

        Raises the error of an earlier write that failed: after one lost write the attempt can only be aborted.
        """
        if self.failure is not None:
            # Python would warn of a coroutine that was never awaited.
            write.close()
            raise self.failure
        self._tasks[asyncio.ensure_future(write)] = size
        while True:
            self._collect()
            if sum(self._tasks.values()) <= IN_FLIGHT:
                return
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def submit_copy(self, copy: Coroutine[Any, Any, None], size: int) -> None:
        """Begin to copy an object of `size` bytes, as `submit` begins a write."""
        # A small object counts as a larger one, so that no more than this many are under way.
        await self.submit(copy, max(size, IN_FLIGHT // MAX_CONCURRENT_COPIES))

    async def join(self) -> None:
        """Wait until every write is done, or raise the error of the first that failed."""
        while self._tasks:
            # A failure is raised as soon as it is known. Whoever gives up then cancels the rest.
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            self._collect()
        self._collect()

    async def cancel(self, why: BaseException | None = None) -> BaseException | None:
        """Cancel the writes under way.

        From now on `submit` and `join` raise the error of the write that failed before, else `why`.

        Returns the error of the first write that failed, or None.
        """
        # Set before the first wait: a `submit` or `join` that goes on meanwhile must fail, and not take the queue for
        # done.
        failed, self.failure = self.failure, self.failure or why or asyncio.CancelledError()
        tasks = list(self._tasks)
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
                failed = failed or result
        return failed

    def _collect(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            del self._tasks[task]
            # `cancel` forgets the tasks before it cancels them. A cancelled task that is found here was cancelled by
            # somebody else, so what it was to write is not there.
            met = asyncio.CancelledError() if task.cancelled() else task.exception()
            self.failure = self.failure or met
        if self.failure is not None:
            raise self.failure


class Uploader:
    """Writes the slots of one attempt. All its coroutines run on one event loop."""

    def __init__(self, store: Store, host: Host, owner: CheckpointId) -> None:
        self._store = store
        self._host = host
        self._owner = owner
        self.queue = UploadQueue()
        """The writes that run."""
        self.paths: list[str] = []
        """Paths of the objects whose writing has begun."""
        self._waiting: dict[tuple[str, str], _OpenPack] = {}

    async def write(self, slot: ChainSlot, stored: EncodedBlob, known: Artifact | None) -> None:
        """Write one slice, or reuse `known` if it is the same.

        `known` is an artifact of the parent.
        """
        # Hashed first, before it is known whether the bytes are sent at all: equal bytes of the parent are found by it.
        digest = await hash_of(self._host, stored.data)
        if known is not None and (known.kind, known.length, known.digest) == (
            stored.kind,
            len(stored.data),
            digest,
        ):
            slot.artifacts = (known,)
        elif len(stored.data) > SMALL:
            await self.put(*self._alone(slot, stored, digest))
        else:
            # One request for many small partitions: a request costs more than their bytes.
            group = self._waiting.setdefault((slot.operator, slot.codec), _OpenPack())
            group.slots.append((slot, stored, digest))
            group.size += len(stored.data)
            if group.size >= PACK:
                await self.flush(slot.operator, slot.codec)

    async def write_together(self, slot: ChainSlot, blobs: list[EncodedBlob]) -> None:
        """Write several blobs of one partition as one object of their own."""
        digests = [await hash_of(self._host, stored.data) for stored in blobs]
        pack, artifacts = await self._pack(slot.operator, slot.codec, list(zip(blobs, digests, strict=True)))
        slot.artifacts = tuple(artifacts)
        await self.put(*pack)

    async def last_packs(self) -> list[PendingPut]:
        """Return the open packs once every write has ended.

        The caller writes them at the same time as the manifest. If they have more than `PACK` bytes together, they are
        written here, and nothing is returned: the manifest would have to wait for them too.
        """
        # A blob joins a pack only after it was hashed, so which packs there are is known once every write has ended.
        await self.queue.join()
        if sum(group.size for group in self._waiting.values()) > PACK:
            for (operator, codec), group in list(self._waiting.items()):
                await self.queue.submit(self.flush(operator, codec), group.size)
            await self.queue.join()
        return [await self._close_pack(operator, codec) for operator, codec in list(self._waiting)]

    async def put(self, path: str, data: Bytes) -> None:
        """Write an object that carries this attempt's id."""
        # Before the request: one that fails or is not answered may have left the object, and `_make_room` has to know
        # it.
        self.paths.append(path)
        await put_once(self._store, path, data)

    async def flush(self, operator: str, codec: str) -> None:
        """Write the open pack of an operator, if there is one."""
        if (operator, codec) in self._waiting:
            await self.put(*await self._close_pack(operator, codec))

    async def _close_pack(self, operator: str, codec: str) -> PendingPut:
        """Close an operator's open pack, and return it as the object to write.

        Its artifacts are known. The caller still has to write it.
        """
        # Taken out before the first wait: what is written meanwhile begins a new pack, since this one's content is
        # fixed.
        slots = self._waiting.pop((operator, codec)).slots
        # An object of its own needs no offset, length and digest in its row: its path says all of that.
        if len(slots) == 1:
            return self._alone(*slots[0])
        pack, artifacts = await self._pack(operator, codec, [(stored, digest) for _, stored, digest in slots])
        for (slot, _, _), artifact in zip(slots, artifacts, strict=True):
            slot.artifacts = (artifact,)
        return pack

    def _alone(self, slot: ChainSlot, stored: EncodedBlob, digest: str) -> PendingPut:
        path = object_paths.artifact(slot.operator, slot.partition, self._owner, stored.kind, digest, slot.codec)
        size = len(stored.data)
        slot.artifacts = (Artifact(path, stored.kind, 0, size, size, stored.raw_size, stored.records, digest),)
        return PendingPut(path, stored.data)

    async def _pack(
        self, operator: str, codec: str, blobs: list[tuple[EncodedBlob, str]]
    ) -> tuple[PendingPut, list[Artifact]]:
        whole = b"".join(stored.data for stored, _ in blobs)
        path = object_paths.pack(operator, self._owner, await hash_of(self._host, whole), codec)
        artifacts, offset = [], 0
        for stored, digest in blobs:
            length = len(stored.data)
            artifacts.append(
                Artifact(path, stored.kind, offset, length, len(whole), stored.raw_size, stored.records, digest)
            )
            offset += length
        return PendingPut(path, whole), artifacts


async def hash_of(host: Host, data: Bytes) -> str:
    """Return the SHA-256 of `data` in hex; in a thread if it is large."""
    return sha256(data) if len(data) <= HASH_INLINE else await host.run(lambda: sha256(data))


async def put_once(store: Store, path: str, data: Bytes) -> None:
    """Write an object whose path holds its own digest.

    If the object exists already, it has the same content.
    """
    try:
        await store.put(path, data)
    except ObjectExistsError:
        return
