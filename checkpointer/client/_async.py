"""The asynchronous checkpointer: the same verbs, awaitable from any running event loop.

Cancelling a verb stops the waiting, not the work: a commit that was under way still ends, one way or the other.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from pyspark_checkpointer.admin import savepoints
from pyspark_checkpointer.admin.savepoints import Savepoint
from pyspark_checkpointer.checkpoint import low_level, restore
from pyspark_checkpointer.checkpoint.migration import Transform
from pyspark_checkpointer.checkpoint.resolve import CheckpointSelector
from pyspark_checkpointer.checkpoint.restore import OnCorruption
from pyspark_checkpointer.checkpoint.verify import Verification, verify_store
from pyspark_checkpointer.client._async_checkpoint import AsyncCheckpoint, AsyncRestored
from pyspark_checkpointer.client.base import as_bytes, as_id, as_migration, as_selector, fixed
from pyspark_checkpointer.client.seam import AsyncFace
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Artifact, CheckpointId, Job, Kind, Manifest
from pyspark_checkpointer.runtime import bridge
from pyspark_checkpointer.runtime.host import Progress
from pyspark_checkpointer.storage import Fencing, open_files, options_near
from pyspark_checkpointer.storage.connection import require

if TYPE_CHECKING:
    from pyspark_checkpointer.admin.losses import RepairPlan
    from pyspark_checkpointer.admin.repair_candidates import Candidate
    from pyspark_checkpointer.admin.retention.garbage_collect import Cleaned
    from pyspark_checkpointer.admin.retention.plan import CleanupPlan
    from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
    from pyspark_checkpointer.admin.streaming.fork import Fork
    from pyspark_checkpointer.admin.streaming.rewind_result import Rewind
    from pyspark_checkpointer.table.export import Exported


class AsyncCheckpointer(AsyncFace):
    """State snapshots of one job under one root. See `Client.__init__` for the arguments."""

    # A program that saves and restores never imports what only looks after a store: those verbs import it themselves.

    # ---- what people use ----------------------------------------------------------------------------------------

    def begin(self, epoch: int | None = None, *, background: bool = False) -> AsyncCheckpoint:
        """Begin a checkpoint on top of what was restored: `async with ck.begin(…) as cp`, or `cp = await ck.begin(…)`.

        `epoch` is the caller's number for it, such as Spark's batch id; without one it is a change to the same batch,
        and keeps the epoch, and the query's job, of the checkpoint before.

        Leaving the block commits it, or leaves nothing visible after an exception. With `background` the block ends
        as soon as everything is captured; what becomes of the commit is raised by the next call, or by `close()`.
        A process that ends before finishes it first, or logs what was lost.
        """
        return self._begin(epoch, None, background)

    def _begin(self, epoch: int | None, job: Job | None, background: bool = False) -> AsyncCheckpoint:
        return AsyncCheckpoint(self, epoch, job, background)._started()

    async def restore(
        self,
        id: CheckpointId | str | None = None,  # noqa: A002  # the field's name, and the contract's
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        on_corruption: OnCorruption = "error",
        rename: Mapping[str, str] | None = None,
        drop: Iterable[str] | None = None,
        transform: Mapping[str, Transform] | None = None,
    ) -> AsyncRestored | None:
        """Restore the committed checkpoint, or a live one by id, epoch or savepoint. Return None on an empty root.

        `id` takes more than ids. Wherever a checkpoint is meant, these are: an id or the beginning of one, as in
        "0000000042-1a2b3c4d", "0000000042" or "42-1a"; "latest"; "epoch=41", the newest one of that epoch;
        "savepoint=NAME", or the bare name; and "at=2024-01-02T06:00Z", the newest one that was made by then. A bare
        integer is refused, since it could be an epoch, or the sequence in an id.

        With `on_corruption="previous"` every byte of the latest is verified first; where it is damaged, the newest
        older checkpoint that is whole is restored instead, and `skipped` says why. That one can only be read, until
        `rollback(to=restored.id)` makes it the committed one. Everything is read twice: to verify, and to use.

        `rename`, `drop` and `transform` bring an older checkpoint to a new version of its job. Old names are renamed to
        new ones or dropped; `transform` has functions by new name: of a map `dict -> dict`; of opaque bytes
        `(partition, chain) -> bytes` and of a table `pyarrow.Table -> pyarrow.Table`, for each partition. All is
        checked and run before this returns, and nothing is written: what is restored shows the result, held in memory,
        and the next checkpoint commits it; with `begin()` alone, as it was but for that. Of a checkpoint that is not
        the committed one it is only a view. Another `restore()` or a `rollback()` gives up what was not committed.
        """
        wanted, migrate = CheckpointSelector.choose(id, epoch, savepoint), as_migration(rename, drop, transform)
        found = restore.restore(self.session, wanted, on_corruption, migrate)
        snapshot = await self._restoring(found)
        return None if snapshot is None else AsyncRestored(snapshot)

    async def savepoint(self, name: str, id: CheckpointId | str | None = None) -> Savepoint:  # noqa: A002
        """Keep the committed checkpoint, or another live one as in `restore`, under a name that can be used once."""
        return await self._run(savepoints.savepoint(self.session, name, as_selector(id)))

    async def savepoints(self) -> list[Savepoint]:
        """Return every savepoint, oldest first."""
        return await self._run(savepoints.savepoints(self.session))

    async def delete_savepoint(self, name: str) -> None:
        """Take a savepoint's name away."""
        await self._run(savepoints.delete_savepoint(self.session, name))

    async def plan(self, policy: "RetentionPolicy | None" = None) -> "CleanupPlan":
        """Return what cleanup would do: every object of the store, with its size, who names it, and what becomes of it.

        Without a policy nothing is retired. Only reads.
        """
        from pyspark_checkpointer.admin.retention.garbage_collect import plan_retire_and_sweep

        return await self._run(plan_retire_and_sweep(self.session, policy))

    async def apply(self, plan: "CleanupPlan", *, progress: Progress | None = None) -> "Cleaned":
        """Do what a plan says; or raise `StalePlanError`, having done nothing, where that came to be needed since."""
        from pyspark_checkpointer.admin.retention.garbage_collect import apply_plan

        return await self._run(apply_plan(self.session, plan, progress))

    async def clean(self, policy: "RetentionPolicy | None" = None, *, progress: Progress | None = None) -> "Cleaned":
        """Retire what the policy does not keep, and delete what nothing needs: `plan` and `apply` in one.

        Safe beside a running job, readers, and other cleanups; fences nobody. Without a policy it only deletes garbage.
        """
        from pyspark_checkpointer.admin.retention.garbage_collect import retire_and_sweep

        return await self._run(retire_and_sweep(self.session, policy, progress))

    async def rollback(self, to: CheckpointId | str, *, progress: Progress | None = None) -> CheckpointId:
        """Commit an older checkpoint's content on top of the history. Returns the new id. `to` is as in `restore`.

        Every object of that checkpoint is read and compared first, one request for each. Where one is damaged,
        `CorruptionError` names it and nothing is changed. `progress` is told bytes.
        """
        from pyspark_checkpointer.admin import rollback

        return await self._run(rollback.rollback(self.session, CheckpointSelector.parse(to), progress=progress))

    async def export(
        self,
        what: CheckpointId | str | None,
        to_root: str | os.PathLike[str],
        to_storage_options: Mapping[str, Any] | None = None,
        *,
        fencing: Fencing = "required",
        progress: Progress | None = None,
    ) -> CheckpointId:
        """Copy a checkpoint, with all that it needs, to an empty root. Returns its id there.

        Args:
            what: A live checkpoint, as in `restore`; None for the committed one. This root, and its writer, go on as
                they are.
            to_root: A folder or URL that holds no store yet. After a failure the same call begins anew.
            to_storage_options: Those of `to_root`.
            fencing: Of `to_root`, whatever it is here.
            progress: Called after each object, from another thread, with the bytes copied so far and in all.
        """
        from pyspark_checkpointer.admin import export

        target = self._connect(to_root, to_storage_options, fencing)
        wanted = as_selector(what)
        return await self._run(export.export(self.session, wanted, target, progress))

    async def export_parquet(
        self,
        what: CheckpointId | str | None,
        to_folder: str | os.PathLike[str],
        to_storage_options: Mapping[str, Any] | None = None,
        *,
        operators: Collection[str] | None = None,
        fencing: Fencing = "required",
        progress: Progress | None = None,
    ) -> "Exported":
        """Write the tables and maps of a checkpoint as plain Parquet files, for DuckDB, Polars, pandas and Spark.

        `TO_FOLDER/<operator>/part-00000.parquet` and so on have each row once, merged. Of a map the columns are `key`
        and `value`, both JSON text. One partition at a time is in memory.

        Args:
            what: A live checkpoint, as in `restore`; None for the committed one.
            to_folder: A folder or URL that is empty or not there. Nothing is overwritten.
            to_storage_options: Those of `to_folder`.
            operators: Only these; by default all, but for those of the job's own bytes.
            fencing: Of `to_folder`.
            progress: Told partitions: those written, and how many there are.
        """
        require("pyarrow", "spark", self.root)
        from pyspark_checkpointer.table.export import export_parquet  # pyarrow, only for those who use tables

        target = open_files(to_folder, to_storage_options, fencing)
        wanted = as_selector(what)
        return await self._run(export_parquet(self.session, wanted, target, operators, progress))

    async def rewind(
        self,
        spark_checkpoint: str | os.PathLike[str] | None = None,
        spark_storage_options: Mapping[str, Any] | None = None,
        *,
        to: CheckpointId | str,
        stopped: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> "Rewind":
        """Take a stopped streaming query back: its state, by a new commit, and Spark's progress with it.

        Its next start goes on with the batch after the one of `to`, from the offsets that it ended at. What is taken
        out of Spark's checkpoint is kept in its folder `rewound/`, the state that is left as a savepoint. After a
        failure the same call finishes the work.

        Args:
            spark_checkpoint: The query's `checkpointLocation`; by default the one that its last checkpoint names.
            spark_storage_options: Those of `spark_checkpoint`; by default those of the root, on a store of the same
                kind.
            to: A live checkpoint, as in `restore`.
            stopped: Says that the query does not run, where that cannot be seen from here. A driver that can be seen
                alive is refused all the same.
            dry_run: Change nothing, and tell what would change, and whether the rewind itself would be refused.
            progress: Told bytes while the checkpoint that is gone back to is read and compared.

        Raises:
            InvalidStateError: The query runs, or may; it is another one; Spark holds state of its own for it; or nobody
                knows its offsets any more.
            CorruptionError: An object of the checkpoint is damaged. Nothing was changed.
        """
        from pyspark_checkpointer.admin.streaming import rewind
        from pyspark_checkpointer.admin.streaming.rewind_result import RewindOptions

        wanted, where = CheckpointSelector.parse(to), self._where(spark_checkpoint, spark_storage_options)
        return await self._run(
            rewind.rewind(self.session, wanted, where, RewindOptions(stopped, dry_run, progress=progress))
        )

    async def undo_rewind(
        self,
        spark_checkpoint: str | os.PathLike[str] | None = None,
        spark_storage_options: Mapping[str, Any] | None = None,
        *,
        stopped: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> "Rewind":
        """Undo the last rewind of a query: a rewind to what it left, with the files of Spark's as they were.

        What was done since is left in turn, and kept as a savepoint. Where the last rewind was an undo, that is
        finished; if there is nothing to finish, nothing is done. See `rewind`.
        """
        from pyspark_checkpointer.admin.streaming import rewind
        from pyspark_checkpointer.admin.streaming.rewind_result import RewindOptions

        where = self._where(spark_checkpoint, spark_storage_options)
        return await self._run(rewind.undo(self.session, where, RewindOptions(stopped, dry_run, progress=progress)))

    async def fork(
        self,
        what: CheckpointId | str,
        to_root: str | os.PathLike[str],
        to_spark_checkpoint: str | os.PathLike[str],
        to_storage_options: Mapping[str, Any] | None = None,
        *,
        spark_checkpoint: str | os.PathLike[str] | None = None,
        spark_storage_options: Mapping[str, Any] | None = None,
        fencing: Fencing = "required",
        progress: Progress | None = None,
    ) -> "Fork":
        """Make a second streaming query with the same state and progress, and a query id of its own.

        The first one may run, and goes on as it is. Both read the same sources. After a failure the same call finishes
        the work.

        Args:
            what: A live checkpoint, as in `restore`.
            to_root: A folder or URL that holds no store yet.
            to_spark_checkpoint: An empty folder, or one that is not there: the `checkpointLocation` of the new query.
            to_storage_options: Those of `to_root`, and of `to_spark_checkpoint` on a store of the same kind.
            spark_checkpoint: The `checkpointLocation` of the first query; by default the one that the checkpoint names.
            spark_storage_options: Those of `spark_checkpoint`; by default those of this root, on a store of the same
                kind.
            fencing: Of `to_root`, whatever it is here.
            progress: Called after each object of the state, from another thread, with the bytes copied and in all.
        """
        from pyspark_checkpointer.admin.streaming import fork

        wanted, where = CheckpointSelector.parse(what), self._where(spark_checkpoint, spark_storage_options)
        target = self._connect(to_root, to_storage_options, fencing)
        options = options_near(to_spark_checkpoint, target.store.url, to_storage_options)
        log = open_files(to_spark_checkpoint, options, fencing)
        return await self._run(fork.fork(self.session, wanted, target, where, log, progress))

    async def repair_candidates(
        self,
        spark_checkpoint: str | os.PathLike[str] | None = None,
        spark_storage_options: Mapping[str, Any] | None = None,
    ) -> "list[Candidate]":
        """Return what a root without a readable `_latest` could be repaired to, with the evidence, best first.

        Args:
            spark_checkpoint: The `checkpointLocation` of the query that wrote the state, as further evidence.
            spark_storage_options: Those of `spark_checkpoint`.
        """
        from pyspark_checkpointer.admin import repair_candidates

        return await self._run(
            repair_candidates.candidates(self.session, fixed(spark_checkpoint), spark_storage_options)
        )

    async def repair_plan(self, to: CheckpointId | str, *, progress: Progress | None = None) -> "RepairPlan":
        """Say what `repair` would keep of one of `repair_candidates()`, and what would be missing. Only reads.

        It names each partition that is damaged, how many records it held, and what older state of it there is.
        `to` is as in `repair`. `progress` is told bytes.
        """
        from pyspark_checkpointer.admin import repair

        return await self._run(repair.plan_repair(self.session, CheckpointSelector.parse(to), progress))

    async def repair(
        self,
        to: CheckpointId | str,
        *,
        accept_loss: bool = False,
        older_partitions: bool = False,
        progress: Progress | None = None,
    ) -> CheckpointId:
        """Commit a copy of one of `repair_candidates()`, where nothing live is left to roll back to. Returns its id.

        Every object is read and compared. Where one is damaged nothing is written, unless the loss is accepted.

        Args:
            to: The candidate, as in `restore`, but for a time: nothing proves which one was the committed one then.
                "latest" is the one that is left in `_latest`. What fits several candidates is refused.
            accept_loss: Commit what is whole of it. Partitions that are damaged are left out: see `repair_plan`.
            older_partitions: Take damaged partitions back to an older state that is whole, where there is one. The
                checkpoint is then a mix of batches: these partitions lack what the batches since then did.
            progress: Told bytes while objects are compared.
        """
        from pyspark_checkpointer.admin import repair

        return await self._run(
            repair.repair(
                self.session,
                CheckpointSelector.parse(to),
                accept_loss=accept_loss,
                older_partitions=older_partitions,
                progress=progress,
            )
        )

    async def close(self) -> None:
        """Wait for a commit in the background, raise what became of it, and release connections."""
        # Not by `_run`, which would stop at a commit that failed and leave the connections open.
        await self._tell(self.session.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- the nine verbs -----------------------------------------------------------------------------------------

    async def new_id(self) -> CheckpointId:
        """Return an id for the next attempt on top of what was restored. Each call draws a new one."""
        return await self._run(self.session.new_id())

    async def save_manifest(self, manifest: Manifest) -> None:
        """Write a manifest once. It becomes a checkpoint by `update_latest`."""
        await self._run(low_level.save_manifest(self.session, manifest))

    async def load_manifest(self, id: CheckpointId | str) -> Manifest:  # noqa: A002
        """Return a manifest by id, whether it was committed or not."""
        return await self._run(restore.load_manifest(self.session, as_id(id)))

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
        # Not by `_run`: tasks call this, and it needs nothing that an earlier commit of this session could change.
        return await bridge(low_level.save_artifact(self.session, id, operator, partition, kind, as_bytes(data)))

    async def load_artifact(self, artifact: Artifact | str) -> bytes:
        """Return the stored bytes of an artifact, or of the object at a path, verified."""
        return await bridge(restore.load_artifact(self.session, artifact))

    async def update_latest(self, id: CheckpointId | str) -> CheckpointId:  # noqa: A002
        """Commit a saved manifest; an older live id is a rollback. Returns the id that is committed now.

        Asks for each object that was written under this id: all that a manifest names must be there before.
        """
        from pyspark_checkpointer.admin.update_latest import update_latest

        return await self._run(update_latest(self.session, as_id(id)))

    async def read_latest(self) -> CheckpointId | None:
        """Return the committed checkpoint's id, as it is now."""
        return await self._run(restore.read_latest(self.session))

    async def verify(
        self,
        id: CheckpointId | str | None = None,  # noqa: A002
        *,
        operator: str | None = None,
        share: float = 1.0,
        progress: Progress | None = None,
    ) -> Verification:
        """Compare what is stored with what `_latest` and the manifests say; damage is reported, not raised.

        All live checkpoints, or one as in `restore`, which may be the prepared one too; all operators, or one; every
        object, or a random `share` of them. Only reads. `progress` is told bytes: those compared, and those to compare.
        """
        wanted = None if id is None else CheckpointSelector.parse(id)
        return await self._run(verify_store(self.session, wanted, operator, share, progress))

    async def list_checkpoints(self) -> list[CheckpointId]:
        """Return every live checkpoint, oldest first."""
        return await self._run(savepoints.list_checkpoints(self.session))

    async def delete_checkpoint(self, id: CheckpointId | str) -> None:  # noqa: A002
        """Delete a checkpoint, as in `restore`, and every object that nothing else names."""
        from pyspark_checkpointer.admin.retention.delete import delete_checkpoint

        await self._run(delete_checkpoint(self.session, CheckpointSelector.parse(id)))
