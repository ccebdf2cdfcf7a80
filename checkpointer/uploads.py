"""Stored bytes on their way into the store: large ones at once and alone, small ones of an operator in packs."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from checkpointer.host import Host
from checkpointer.objects import hash_of, put
from checkpointer.store.base import Store
from manifests import layout
from manifests.digest import Bytes
from manifests.model import Artifact, Chain, CheckpointId, Kind

SMALL = 256 << 10
"""Stored bytes up to which a piece waits for others to share an object with."""

PACK = 16 << 20
"""Stored bytes at which a pack is sent without waiting for more."""

IN_FLIGHT = 256 << 20
"""Bytes handed over and not yet stored, above which the caller waits."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Encoded bytes of one snapshot or delta, as they will be stored."""

    kind: Kind
    data: bytes
    raw_size: int
    records: int


@dataclass(slots=True, eq=False)
class Piece:
    """A place in a chain; its artifacts are known once they are written or found in the parent."""

    operator: str
    partition: int
    codec: str
    artifacts: Chain = ()


@dataclass(slots=True)
class _Waiting:
    size: int = 0
    pieces: list[tuple[Piece, Slice, str]] = field(default_factory=list)


class Flight:
    """Writes that run beside the caller, who waits only where very much is under way."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], int] = {}
        self.failure: BaseException | None = None
        """What the first write that failed met."""

    async def start(self, write: Coroutine[Any, Any, None], size: int) -> None:
        """Begin a write of about `size` bytes. Raises what an earlier one met, now and ever after: what one lost write
        leaves behind can only be given up."""
        self._tasks[asyncio.ensure_future(write)] = size
        while True:
            self._collect()
            if sum(self._tasks.values()) <= IN_FLIGHT:
                return
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)

    async def land(self) -> None:
        """Wait until every write is done, or raise what the first failed one met."""
        while self._tasks:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
            self._collect()
        self._collect()

    async def cancel(self) -> None:
        tasks = list(self._tasks)
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _collect(self) -> None:
        for task in [task for task in self._tasks if task.done()]:
            del self._tasks[task]
            if not task.cancelled():
                self.failure = self.failure or task.exception()
        if self.failure is not None:
            raise self.failure


class Uploads:
    """Writes the pieces of one attempt. All its coroutines run on one event loop."""

    def __init__(self, store: Store, host: Host, owner: CheckpointId) -> None:
        self._store = store
        self._host = host
        self._owner = owner
        self.paths: list[str] = []
        """What was written, or begun to be."""
        self._waiting: dict[tuple[str, str], _Waiting] = {}

    async def write(self, piece: Piece, stored: Slice, known: Artifact | None) -> None:
        """Write one slice, or reuse `known`, an artifact of the parent, where it is the same."""
        digest = await hash_of(self._host, stored.data)
        if known is not None and (known.kind, known.length, known.digest) == (
            stored.kind,
            len(stored.data),
            digest,
        ):
            piece.artifacts = (known,)
        elif len(stored.data) > SMALL:
            await self._write_alone(piece, stored, digest)
        else:
            group = self._waiting.setdefault((piece.operator, piece.codec), _Waiting())
            group.pieces.append((piece, stored, digest))
            group.size += len(stored.data)
            if group.size >= PACK:
                await self.flush(piece.operator, piece.codec)

    async def write_together(self, piece: Piece, slices: list[Slice]) -> None:
        """Write several slices of one partition as one object of their own."""
        digests = [await hash_of(self._host, stored.data) for stored in slices]
        artifacts = await self._write_pack(piece.operator, piece.codec, list(zip(slices, digests, strict=True)))
        piece.artifacts = tuple(artifacts)

    def waiting(self) -> list[tuple[str, str, int]]:
        """The operators of which something still waits for company, each with its codec, and how many bytes."""
        return [(operator, codec, group.size) for (operator, codec), group in self._waiting.items()]

    async def put(self, path: str, data: Bytes) -> None:
        """Write an object that carries this attempt's id."""
        self.paths.append(path)
        await put(self._store, path, data)

    async def flush(self, operator: str, codec: str) -> None:
        """Write what waits of an operator."""
        group = self._waiting.pop((operator, codec), _Waiting())
        if len(group.pieces) == 1:
            await self._write_alone(*group.pieces[0])
            return
        artifacts = await self._write_pack(operator, codec, [(stored, digest) for _, stored, digest in group.pieces])
        for (piece, _, _), artifact in zip(group.pieces, artifacts, strict=True):
            piece.artifacts = (artifact,)

    async def _write_alone(self, piece: Piece, stored: Slice, digest: str) -> None:
        path = layout.artifact(piece.operator, piece.partition, self._owner, stored.kind, digest, piece.codec)
        await self.put(path, stored.data)
        size = len(stored.data)
        piece.artifacts = (Artifact(path, stored.kind, 0, size, size, stored.raw_size, stored.records, digest),)

    async def _write_pack(self, operator: str, codec: str, slices: list[tuple[Slice, str]]) -> list[Artifact]:
        whole = b"".join(stored.data for stored, _ in slices)
        path = layout.pack(operator, self._owner, await hash_of(self._host, whole), codec)
        await self.put(path, whole)
        artifacts, offset = [], 0
        for stored, digest in slices:
            length = len(stored.data)
            artifacts.append(
                Artifact(path, stored.kind, offset, length, len(whole), stored.raw_size, stored.records, digest)
            )
            offset += length
        return artifacts
