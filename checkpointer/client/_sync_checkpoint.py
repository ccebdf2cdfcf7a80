"""What the synchronous checkpointer hands out: a checkpoint being made, a prepared one, a restored one."""

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from checkpointer.checkpoint import prepared, restore, save
from checkpointer.client.base import Client, as_bytes
from checkpointer.client.restored import OperatorView, RestoredView
from checkpointer.errors import CheckpointError
from checkpointer.keyed.state import KeyedState
from checkpointer.runtime import run_sync
from checkpointer.runtime.not_picklable import NotPicklable
from manifests.model import DELTA, SNAPSHOT, Artifact, CheckpointId, Json

if TYPE_CHECKING:
    from checkpointer.table.opening import Table


class Checkpoint(NotPicklable):
    """A checkpoint being made. What is not mentioned stays as it was in the parent."""

    _instead = (
        "send its id and the Checkpointer, which is its configuration only; save_snapshot(id, …) or save_delta(id, …) "
        "there, and attach() here what they return"
    )

    def __init__(self, client: Client, draft: save.Draft, background: bool) -> None:
        self._client = client
        self._draft = draft
        self._background = background

    def __repr__(self) -> str:
        return f"Checkpoint({self.id}, epoch {self.epoch})"

    @property
    def id(self) -> CheckpointId:
        """The id of this attempt, which every object it writes carries."""
        return self._draft.id

    @property
    def epoch(self) -> int | None:
        """The epoch given to `begin`, the batch id where Spark calls; else that of the checkpoint before."""
        return self._draft.epoch

    @property
    def parent(self) -> "Restored | None":
        """The checkpoint that this one goes on top of; None for the first."""
        snapshot = restore.shown(self._client._session, self._draft.base)
        return None if snapshot is None else Restored(snapshot)

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

    def snapshot(self, operator: str, partition: int, data: bytes) -> None:
        """The whole state of a partition, as bytes of the caller's own format."""
        with self._draft.meter.blocking():
            run_sync(self._draft.add(operator, partition, SNAPSHOT, as_bytes(data)))

    def delta(self, operator: str, partition: int, data: bytes) -> None:
        """A change on top of the partition's chain, as bytes of the caller's own format."""
        with self._draft.meter.blocking():
            run_sync(self._draft.add(operator, partition, DELTA, as_bytes(data)))

    def save(self, operator: str, state: KeyedState) -> None:
        """What changed in a keyed state. It is captured before this returns, and written meanwhile."""
        with self._draft.meter.blocking():
            run_sync(self._draft.save(operator, self._draft.capture(operator, state)))

    def attach(self, artifact: Artifact) -> None:
        """An artifact that `save_snapshot` or `save_delta` wrote under this checkpoint's id, on any machine."""
        with self._draft.meter.blocking():
            run_sync(self._draft.attach(artifact))

    def keep(self, operator: str, partition: int | None = None) -> None:
        """Say aloud that an operator, or one partition, stays as it was; refused where there is none."""
        self._draft.keep(operator, partition)

    def drop(self, operator: str, partition: int | None = None) -> None:
        """Leave an operator, or one partition, out from now on."""
        self._draft.drop(operator, partition)

    def prepare(self) -> "Prepared":
        """The first of two phases: durable and protected, not yet committed."""
        with self._draft.meter.blocking():
            return Prepared(run_sync(self._draft.prepare()))

    def commit(self) -> CheckpointId:
        """Commit now, for callers without a `with` block."""
        with self._draft.meter.blocking():
            run_sync(self._draft.commit())
        return self.id

    def abort(self) -> None:
        """Give up, leaving nothing visible. Once a commit is at its swap this does nothing."""
        run_sync(self._draft.abort())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._give_up(error)
        elif self._draft.open:
            try:
                if self._background:
                    with self._draft.meter.blocking():
                        self._draft.freeze()
                        run_sync(self._client._session.in_background(self._draft.commit(), f"the commit of {self.id}"))
                else:
                    self.commit()
            except BaseException as failed:
                if self._draft.open:  # it did not even begin
                    self._give_up(failed)
                raise

    def _give_up(self, error: BaseException) -> None:
        try:
            self.abort()
        except CheckpointError as second:
            error.add_note(f"aborting {self.id} failed too: {second}")


class Prepared(NotPicklable):
    """A checkpoint between the two phases."""

    _instead = "send the Checkpointer, which is its configuration only: restore().prepared is the same there"

    def __init__(self, core: prepared.Prepared) -> None:
        self._core = core

    @property
    def id(self) -> CheckpointId:
        return self._core.id

    @property
    def epoch(self) -> int | None:
        return self._core.manifest.epoch

    def commit(self) -> None:
        """Make it the committed checkpoint. Calling again is no error."""
        with self._core.meter.blocking():
            run_sync(self._core.commit())

    def abort(self) -> None:
        """Drop it."""
        run_sync(self._core.abort())

    def __repr__(self) -> str:
        return f"Prepared({self.id})"


class Restored(RestoredView):
    """A checkpoint as it was restored. Artifacts are read, and verified, when they are asked for."""

    @property
    def prepared(self) -> Prepared | None:
        """A checkpoint that was prepared and awaits its second phase, or None."""
        return None if self._snapshot.prepared is None else Prepared(self._snapshot.prepared)

    def operator(self, name: str) -> "RestoredOperator":
        return RestoredOperator(self._snapshot, name)

    def keyed(self, name: str, partitions: int | None = None) -> KeyedState:
        """A keyed state, in the partitions it was saved in or in another number of them."""
        return run_sync(self._snapshot.keyed(name, partitions))

    def table(
        self, name: str, columns: Sequence[str] | None = None, *, keys: "Sequence[Mapping[str, Any]] | None" = None
    ) -> "Table":
        """The rows of a table that Spark wrote, without Spark; with `keys`, only those with one of these keys."""
        from checkpointer.table import opening  # pyarrow, only for those who use tables

        return run_sync(opening.read(self._snapshot, name, columns, keys))


class RestoredOperator(OperatorView):
    def partition(self, partition: int) -> list[bytes]:
        """The partition's snapshot, then its deltas, verified."""
        return run_sync(self._snapshot.partition(self.name, partition))

    def read(self, partitions: Iterable[int] | None = None) -> dict[int, list[bytes]]:
        """Several partitions, or all, by number; all at once, and an object that they share only once."""
        return run_sync(self._snapshot.read(self.name, partitions))
