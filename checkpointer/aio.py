"""The asynchronous checkpointer: the same verbs, awaitable from any running event loop.

Cancelling a verb stops the waiting, not the work: a commit that was under way still ends, one way or the other.
"""

from collections.abc import Coroutine, Generator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from checkpointer import lineage, prepared, restore, save, verbs
from checkpointer.client import Client, as_bytes, as_id, as_target
from checkpointer.errors import CheckpointError, InvalidStateError
from checkpointer.keyed import KeyedState
from checkpointer.lineage import Savepoint
from checkpointer.retention.verify import Verification, verify_store
from checkpointer.runtime import bridge
from checkpointer.views import OperatorView, RestoredView
from manifests.model import DELTA, SNAPSHOT, Artifact, CheckpointId, Json, Kind, Manifest

if TYPE_CHECKING:
    from checkpointer.table.opening import Table

T = TypeVar("T")


class AsyncCheckpointer(Client):
    """State snapshots of one job under one root. See `Client.__init__` for the arguments."""

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return await bridge(self._settled(work))

    # ---- what people use ----------------------------------------------------------------------------------------

    def begin(self, epoch: int | None = None, *, background: bool = False) -> "AsyncCheckpoint":
        """Begin a checkpoint on top of what was restored: `async with a.begin(…) as cp`, or `cp = await a.begin(…)`.

        Leaving the block commits it, or leaves nothing visible after an exception. With `background` the block ends
        as soon as everything is captured; what becomes of the commit is raised by the next call, or by `close()`.
        """
        return AsyncCheckpoint(self, epoch, background)

    async def restore(
        self,
        id: CheckpointId | str | None = None,  # noqa: A002  # the field's name, and the contract's
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
    ) -> "AsyncRestored | None":
        """The committed checkpoint, or a live one by id, epoch or savepoint. None on an empty root."""
        wanted = None if id is None else as_id(id)
        snapshot = await self._run(restore.restore(self._session, wanted, epoch, savepoint))
        return None if snapshot is None else AsyncRestored(snapshot)

    async def savepoint(self, name: str, id: CheckpointId | str | None = None) -> Savepoint:  # noqa: A002
        """Keep the committed checkpoint, or another live one, under a name that can be used once."""
        return await self._run(lineage.savepoint(self._session, name, None if id is None else as_id(id)))

    async def savepoints(self) -> list[Savepoint]:
        """Every savepoint, oldest first."""
        return await self._run(lineage.savepoints(self._session))

    async def delete_savepoint(self, name: str) -> None:
        """Take a savepoint's name away."""
        await self._run(lineage.delete_savepoint(self._session, name))

    async def rollback(self, to: CheckpointId | str) -> CheckpointId:
        """Commit an older checkpoint's content, by id or savepoint name, on top of the history. Returns the new id."""
        return await self._run(lineage.rollback(self._session, as_target(to)))

    async def close(self) -> None:
        """Wait for a commit in the background, raise what became of it, and release connections."""
        await bridge(self._session.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- the nine verbs -----------------------------------------------------------------------------------------

    async def new_id(self) -> CheckpointId:
        """The id of the next attempt on top of what was restored. Each call draws another."""
        return await self._run(self._session.new_id())

    async def save_manifest(self, manifest: Manifest) -> None:
        """Write a manifest once. It becomes a checkpoint by `update_latest`."""
        await self._run(verbs.save_manifest(self._session, manifest))

    async def load_manifest(self, id: CheckpointId | str) -> Manifest:  # noqa: A002
        """A manifest by id, whether it was committed or not."""
        return await self._run(restore.load_manifest(self._session, as_id(id)))

    async def save_snapshot(
        self,
        id: CheckpointId | str,  # noqa: A002
        operator: str,
        partition: int,
        data: bytes,
    ) -> Artifact:
        """Write bytes as given, as a snapshot of one partition, under an attempt's id."""
        return await self._save(SNAPSHOT, as_id(id), operator, partition, data)

    async def save_delta(
        self,
        id: CheckpointId | str,  # noqa: A002
        operator: str,
        partition: int,
        data: bytes,
    ) -> Artifact:
        """Write bytes as given, as a delta of one partition, under an attempt's id."""
        return await self._save(DELTA, as_id(id), operator, partition, data)

    async def _save(self, kind: Kind, id: CheckpointId, operator: str, partition: int, data: bytes) -> Artifact:  # noqa: A002
        return await bridge(verbs.save_artifact(self._session, id, operator, partition, kind, as_bytes(data)))

    async def load_artifact(self, artifact: Artifact | str) -> bytes:
        """The stored bytes of an artifact, or of the object at a path, verified."""
        return await bridge(restore.load_artifact(self._session, artifact))

    async def update_latest(self, id: CheckpointId | str) -> CheckpointId:  # noqa: A002
        """Commit a saved manifest; an older live id is a rollback. Returns the id that is committed now."""
        return await self._run(lineage.update_latest(self._session, as_id(id)))

    async def read_latest(self) -> CheckpointId | None:
        """The committed checkpoint's id, as it is now."""
        return await self._run(restore.read_latest(self._session))

    async def verify(
        self,
        id: CheckpointId | str | None = None,  # noqa: A002
        *,
        operator: str | None = None,
        share: float = 1.0,
    ) -> Verification:
        """Compare what is stored with what `_latest` and the manifests say; damage is reported, not raised.

        All live checkpoints, or one; all operators, or one; every object, or a random `share` of them. Only reads.
        """
        return await self._run(verify_store(self._session, None if id is None else as_id(id), operator, share))

    async def list_checkpoints(self) -> list[CheckpointId]:
        """Every live checkpoint, oldest first."""
        return await self._run(lineage.list_checkpoints(self._session))

    async def delete_checkpoint(self, id: CheckpointId | str) -> None:  # noqa: A002
        """Delete a checkpoint and every object that nothing else names."""
        await self._run(lineage.delete_checkpoint(self._session, as_id(id)))


class AsyncCheckpoint:
    """A checkpoint being made. What is not mentioned stays as it was in the parent."""

    def __init__(self, client: AsyncCheckpointer, epoch: int | None, background: bool) -> None:
        self._client = client
        self._epoch = epoch
        self._background = background
        self._begun: save.Draft | None = None

    async def _begin(self) -> Self:
        self._begun = await self._client._run(save.begin(self._client._session, self._epoch))
        return self

    def __await__(self) -> Generator[Any, None, Self]:
        return self._begin().__await__()

    @property
    def _draft(self) -> save.Draft:
        if self._begun is None:
            raise InvalidStateError("this checkpoint was not begun: use `async with`, or await begin(…)")
        return self._begun

    @property
    def id(self) -> CheckpointId:
        """The id of this attempt, which every object it writes carries."""
        return self._draft.id

    @property
    def epoch(self) -> int | None:
        """The epoch given to `begin`."""
        return self._epoch

    @property
    def parent(self) -> "AsyncRestored | None":
        """The checkpoint that this one goes on top of; None for the first."""
        manifest = self._draft.base.manifest
        return None if manifest is None else AsyncRestored(restore.Snapshot(self._client._session, manifest, None))

    @property
    def positions(self) -> dict[str, Json]:
        """Source positions, those of the parent to begin with. JSON values."""
        return self._draft.positions

    @property
    def properties(self) -> dict[str, Json]:
        """User properties, those of the parent to begin with. JSON values."""
        return self._draft.properties

    @property
    def watermark(self) -> Json:
        """The job's watermark, that of the parent to begin with. A JSON value."""
        return self._draft.watermark

    @watermark.setter
    def watermark(self, value: Json) -> None:
        self._draft.watermark = value

    async def snapshot(self, operator: str, partition: int, data: bytes) -> None:
        """The whole state of a partition, as bytes of the caller's own format."""
        await bridge(self._draft.add(operator, partition, SNAPSHOT, as_bytes(data)))

    async def delta(self, operator: str, partition: int, data: bytes) -> None:
        """A change on top of the partition's chain, as bytes of the caller's own format."""
        await bridge(self._draft.add(operator, partition, DELTA, as_bytes(data)))

    async def save(self, operator: str, state: KeyedState) -> None:
        """What changed in a keyed state. It is captured before anything is awaited, and written meanwhile."""
        await bridge(self._draft.save(operator, self._draft.capture(operator, state)))

    async def attach(self, artifact: Artifact) -> None:
        """An artifact that `save_snapshot` or `save_delta` wrote under this checkpoint's id, on any machine."""
        await bridge(self._draft.attach(artifact))

    def keep(self, operator: str, partition: int | None = None) -> None:
        """Say aloud that an operator, or one partition, stays as it was; refused where there is none."""
        self._draft.keep(operator, partition)

    def drop(self, operator: str, partition: int | None = None) -> None:
        """Leave an operator, or one partition, out from now on."""
        self._draft.drop(operator, partition)

    async def prepare(self) -> "AsyncPrepared":
        """The first of two phases: durable and protected, not yet committed."""
        return AsyncPrepared(await bridge(self._draft.prepare()))

    async def commit(self) -> CheckpointId:
        """Commit now, for callers without an `async with` block."""
        await bridge(self._draft.commit())
        return self.id

    async def abort(self) -> None:
        """Give up, leaving nothing visible."""
        await bridge(self._draft.abort())

    async def __aenter__(self) -> Self:
        return self if self._begun is not None else await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            try:
                await self.abort()
            except CheckpointError as second:
                error.add_note(f"aborting {self.id} failed too: {second}")
        elif self._draft.open:
            if self._background:
                self._draft.freeze()
                await bridge(self._client._session.in_background(self._draft.commit()))
            else:
                await self.commit()


class AsyncPrepared:
    """A checkpoint between the two phases."""

    def __init__(self, core: prepared.Prepared) -> None:
        self._core = core

    @property
    def id(self) -> CheckpointId:
        return self._core.id

    @property
    def epoch(self) -> int | None:
        return self._core.manifest.epoch

    async def commit(self) -> None:
        """Make it the committed checkpoint. Calling again is no error."""
        await bridge(self._core.commit())

    async def abort(self) -> None:
        """Drop it."""
        await bridge(self._core.abort())

    def __repr__(self) -> str:
        return f"AsyncPrepared({self.id})"


class AsyncRestored(RestoredView):
    """A checkpoint as it was restored. Artifacts are read, and verified, when they are asked for."""

    @property
    def prepared(self) -> AsyncPrepared | None:
        """A checkpoint that was prepared and awaits its second phase, or None."""
        return None if self._snapshot.prepared is None else AsyncPrepared(self._snapshot.prepared)

    def operator(self, name: str) -> "AsyncRestoredOperator":
        return AsyncRestoredOperator(self._snapshot, name)

    async def keyed(self, name: str, partitions: int | None = None) -> KeyedState:
        """A keyed state, in the partitions it was saved in or in another number of them."""
        return await bridge(self._snapshot.keyed(name, partitions))

    async def table(
        self, name: str, columns: Sequence[str] | None = None, *, keys: "Sequence[Mapping[str, Any]] | None" = None
    ) -> "Table":
        """The rows of a table that Spark wrote, without Spark; with `keys`, only those with one of these keys."""
        from checkpointer.table import opening  # pyarrow, only for those who use tables

        return await bridge(opening.read(self._snapshot, name, columns, keys))


class AsyncRestoredOperator(OperatorView):
    async def partition(self, partition: int) -> list[bytes]:
        """The partition's snapshot, then its deltas, verified."""
        return await bridge(self._snapshot.partition(self.name, partition))
