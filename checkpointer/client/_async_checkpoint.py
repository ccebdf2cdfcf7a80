"""The objects of the asynchronous checkpointer: a checkpoint being made, a prepared one, a restored one."""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from pyspark_checkpointer.checkpoint import commit, prepared, restore, save
from pyspark_checkpointer.checkpoint.metering import Meter
from pyspark_checkpointer.client.base import as_bytes
from pyspark_checkpointer.client.restored import OperatorView, RestoredView
from pyspark_checkpointer.client.seam import AsyncFace, AsyncStart, async_blocking
from pyspark_checkpointer.errors import CheckpointError, InvalidStateError
from pyspark_checkpointer.keyed.state import KeyedState
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Artifact, CheckpointId, Job, Json
from pyspark_checkpointer.runtime import bridge
from pyspark_checkpointer.runtime.not_picklable import NotPicklable

if TYPE_CHECKING:
    from pyspark_checkpointer.table.opening import Table


class AsyncCheckpoint(AsyncStart, NotPicklable):
    """A checkpoint being made. What is not mentioned stays as it was in the parent."""

    _instead = (
        "send its id and the AsyncCheckpointer, which is its configuration only; save_snapshot(id, …) or "
        "save_delta(id, …) there, and attach() here what they return"
    )

    def __init__(self, client: AsyncFace, epoch: int | None, job: Job | None, background: bool) -> None:
        self._client = client
        self._epoch = epoch
        self._job = job
        self._background = background
        self._begun: save.CheckpointWriter | None = None

    async def _begin(self) -> Self:
        session = self._client.session
        meter = session.reports.meter()
        with meter.blocking():
            # Through the client and not by `bridge`: an earlier commit in the background comes first, and its failure
            # is raised here.
            self._begun = await self._client._run(commit.begin(session, self._epoch, self._job, meter))
        return self

    @property
    def writer(self) -> save.CheckpointWriter:
        """The layer below, for other packages of this library."""
        if self._begun is None:
            raise InvalidStateError("this checkpoint was not begun: use `async with`, or await begin(…)")
        return self._begun

    @property
    def _meter(self) -> Meter:
        return self.writer.meter

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._begun.id if self._begun else 'not begun'}, epoch {self.epoch})"

    @property
    def id(self) -> CheckpointId:
        """The id of this attempt, which every object it writes carries."""
        return self.writer.id

    @property
    def epoch(self) -> int | None:
        """The epoch given to `begin`, Spark's batch id; once begun without one, that of the checkpoint before."""
        return self._epoch if self._begun is None else self._begun.epoch

    @property
    def parent(self) -> "AsyncRestored | None":
        """The checkpoint that this one goes on top of; None for the first."""
        snapshot = restore.parent_reader(self._client.session, self.writer.base)
        return None if snapshot is None else AsyncRestored(snapshot)

    @property
    def positions(self) -> dict[str, Json]:
        """Source positions, those of the parent to begin with. JSON values."""
        return self.writer.positions

    @property
    def properties(self) -> dict[str, Json]:
        """User properties, those of the parent to begin with. JSON values."""
        return self.writer.properties

    @property
    def watermark(self) -> Json:
        """The job's watermark, that of the parent to begin with. A JSON value."""
        return self.writer.watermark

    @watermark.setter
    def watermark(self, value: Json) -> None:
        self.writer.watermark = value

    @async_blocking
    async def snapshot(self, operator: str, partition: int, data: bytes) -> None:
        """Save the whole state of a partition, as bytes of the caller's own format."""
        await bridge(self.writer.add(operator, partition, SNAPSHOT, as_bytes(data)))

    @async_blocking
    async def delta(self, operator: str, partition: int, data: bytes) -> None:
        """Save a change on top of the partition's chain, as bytes of the caller's own format."""
        await bridge(self.writer.add(operator, partition, DELTA, as_bytes(data)))

    @async_blocking
    async def save(self, operator: str, state: KeyedState) -> None:
        """Save what changed in a keyed state. All of it is captured now, and written in the background."""
        await bridge(self.writer.save(operator, self.writer.capture(operator, state)))

    @async_blocking
    async def attach(self, artifact: Artifact) -> None:
        """Take an artifact that `save_snapshot` or `save_delta` wrote under this checkpoint's id, on any machine."""
        await bridge(self.writer.attach(artifact))

    def keep(self, operator: str, partition: int | None = None) -> None:
        """Confirm that an operator, or one partition, stays as it is. Raise if there is none."""
        self.writer.keep(operator, partition)

    def drop(self, operator: str, partition: int | None = None) -> None:
        """Leave an operator, or one partition, out of this checkpoint and those after it."""
        self.writer.drop(operator, partition)

    @async_blocking
    async def prepare(self) -> "AsyncPrepared":
        """Run the first of two phases: everything is durable and protected, and not yet committed."""
        return AsyncPrepared(await bridge(commit.prepare(self.writer)))

    @async_blocking
    async def commit(self) -> CheckpointId:
        """Commit now. For callers without an `async with` block."""
        await bridge(commit.commit(self.writer))
        return self.id

    async def abort(self) -> None:
        """Give up, leaving nothing visible. Once a commit is at its swap this does nothing."""
        await bridge(commit.abort(self.writer))

    async def __aenter__(self) -> Self:
        return self if self._begun is not None else await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._give_up(error)
        # Not where the block has committed, prepared or aborted it itself.
        elif self.writer.state is save.AttemptState.OPEN:
            try:
                if self._background:
                    with self.writer.meter.blocking():
                        # Now, because the caller goes on and may change positions while the commit waits for its turn.
                        self.writer.freeze()
                        work = commit.commit(self.writer)
                        await self._client._tell(self._client.session.in_background(work, f"the commit of {self.id}"))
                else:
                    await self.commit()
            except BaseException as failed:
                if self.writer.state is save.AttemptState.OPEN:  # it did not even begin
                    await self._give_up(failed)
                raise

    async def _give_up(self, error: BaseException) -> None:
        try:
            await self.abort()
        # The caller has to learn why the block failed. That the abort failed too only adds to it.
        except CheckpointError as second:
            error.add_note(f"aborting {self.id} failed too: {second}")


class AsyncPrepared(NotPicklable):
    """A checkpoint between the two phases."""

    _instead = "send the AsyncCheckpointer, which is its configuration only: restore().prepared is the same there"

    def __init__(self, core: prepared.Prepared) -> None:
        self._core = core

    @property
    def _meter(self) -> Meter:
        return self._core.meter

    @property
    def id(self) -> CheckpointId:
        return self._core.id

    @property
    def epoch(self) -> int | None:
        return self._core.manifest.epoch

    @async_blocking
    async def commit(self) -> None:
        """Make it the committed checkpoint. Calling again is no error."""
        await bridge(self._core.commit())

    async def abort(self) -> None:
        """Drop the prepared checkpoint."""
        await bridge(self._core.abort())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id})"


class AsyncRestored(RestoredView):
    """A checkpoint as it was restored. Artifacts are read, and verified, when they are asked for."""

    @property
    def prepared(self) -> AsyncPrepared | None:
        """A checkpoint that was prepared and awaits its second phase, or None."""
        return None if self.reader.prepared is None else AsyncPrepared(self.reader.prepared)

    def operator(self, name: str) -> "AsyncRestoredOperator":
        return AsyncRestoredOperator(self.reader, name)

    async def keyed(self, name: str, partitions: int | None = None) -> KeyedState:
        """Return a keyed state, in the number of partitions it was saved in or in another one."""
        return await bridge(self.reader.keyed(name, partitions))

    async def table(
        self, name: str, columns: Sequence[str] | None = None, *, keys: "Sequence[Mapping[str, Any]] | None" = None
    ) -> "Table":
        """Read the rows of a table that Spark wrote, without Spark; with `keys`, only the rows of these keys."""
        from pyspark_checkpointer.table import opening  # pyarrow, only for those who use tables

        return await bridge(opening.read(self.reader, name, columns, keys))


class AsyncRestoredOperator(OperatorView):
    async def partition(self, partition: int) -> list[bytes]:
        """Return the partition's snapshot, then its deltas, verified."""
        return await bridge(self.reader.partition(self.name, partition))

    async def read(self, partitions: Iterable[int] | None = None) -> dict[int, list[bytes]]:
        """Return several partitions, or all, by number; all at once, and an object that they share only once."""
        return await bridge(self.reader.read(self.name, partitions))
