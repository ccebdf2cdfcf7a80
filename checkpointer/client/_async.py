"""Offer the asynchronous verbs, awaitable from any running event loop.

Cancelling a verb stops the waiting, not the work: a commit that was under way still succeeds or fails. If it succeeds,
`begin` asks for `restore()` first. Only `restore` is cancelled with its caller.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from pyspark_checkpointer.admin import savepoints
from pyspark_checkpointer.admin.savepoints import Savepoint
from pyspark_checkpointer.checkpoint import low_level, restore
from pyspark_checkpointer.checkpoint.migration import Transform
from pyspark_checkpointer.checkpoint.restore import OnCorruption
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.verification import Verification
from pyspark_checkpointer.checkpoint.verify import verify_store
from pyspark_checkpointer.client._async_checkpoint import AsyncCheckpoint, AsyncRestored
from pyspark_checkpointer.client.base import (
    as_bytes,
    as_id,
    as_migration,
    as_selector,
    check_flags,
    check_names,
    check_table,
    fixed,
)
from pyspark_checkpointer.client.seam import AsyncFace
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Artifact, CheckpointId, Job, Kind, Manifest
from pyspark_checkpointer.runtime import bridge
from pyspark_checkpointer.runtime.host import Progress, check_progress
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption, fix, open_files, options_near
from pyspark_checkpointer.storage.connection import require

if TYPE_CHECKING:
    from pyspark_checkpointer.admin.candidate import Candidate
    from pyspark_checkpointer.admin.encrypt import EncryptedRoot
    from pyspark_checkpointer.admin.followers import Followers
    from pyspark_checkpointer.admin.losses import RepairPlan
    from pyspark_checkpointer.admin.retention.garbage_collect import Cleaned
    from pyspark_checkpointer.admin.retention.plan import CleanupPlan
    from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
    from pyspark_checkpointer.admin.streaming.fork import Fork
    from pyspark_checkpointer.admin.streaming.rewind_result import Rewind
    from pyspark_checkpointer.manifests.keys_json import WrappedKey
    from pyspark_checkpointer.manifests.signatures_json import Signers
    from pyspark_checkpointer.storage.encryption.key_providers import KeyProvider
    from pyspark_checkpointer.storage.signatures.signing_keys import SigningKey
    from pyspark_checkpointer.table.export import Exported


class AsyncCheckpointer(AsyncFace):
    """Save and restore the state of one job, under one root.

    It connects to the store with the first call.

    A checkpointer pickles as its configuration, and such a copy starts as if it had just been made. A forked child is
    another writer, and goes on from what its parent had restored: of several processes that commit on top of it, one
    succeeds, and the others get `ConflictError` or `FencedError`.

    Every method that asks the store raises `RetryableError` if the store does not answer in time, and
    `StoreRefusedError` or `StoreNotFoundError` if the store refuses. A method that commits raises `OutcomeUnknownError`
    if nothing proves whether the swap took effect. After `begin(background=True)` the next call raises what the commit
    in the background raised, unless it is `save_snapshot`, `save_delta` or `load_artifact`, which need nothing of it.
    Methods do not repeat this.

    Args:
        root: Where the state lives: a folder, `s3://bucket/path`, `abfs://container/path`, `gs://bucket/path`,
            `dbfs:/Volumes/catalog/schema/volume/path`, `memory://name`, or any other fsspec URL with `fencing="none"`.
            A relative folder is resolved once, here: a later change of the working directory does not change what it
            means.
        storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
        fencing: "required" refuses a store that cannot swap an object atomically. "none" accepts it; then nothing
            protects two writers of one root from each other.
        max_chain: The largest number of objects that hold one partition (a snapshot and its deltas), at least 2.
            Deltas of a KeyedState are merged to stay within it. Deltas of your own bytes are packed into larger
            objects; there may be one object more if one checkpoint writes several deltas of a partition.
        concurrency: The largest number of requests at once. Small reads and writes count apart: there may be sixteen
            times as many.
        timeout: Seconds after which a request for a small object counts as unanswered.
        metrics: A function that gets a `CommitMetrics` after each commit and a `RestoreMetrics` after each restore, in
            a thread of the library. Not pickled.
        encryption: What opens the keys of an encrypted root: a text such as `"key-file:PATH"` or
            `"aws-kms:alias/NAME"`, or a provider of keys. A new root gets its keys by the first write. A root that is
            not encrypted is refused, and so is an encrypted one without this.
        signing: Whom to trust and what to sign with: a text such as `"trust:owner.pub,sign:driver.pem"`, or a
            `Signing`. Then nothing is read that no allowed signer signed. A signed root is refused without this.

    Raises:
        IllegalArgumentError: An argument is not what it must be. The message names it.

    Examples:
        The examples of the methods go on from here.

        >>> from pyspark_checkpointer import AsyncCheckpointer, KeyedState
        >>> ck = AsyncCheckpointer("state/visits")
        >>> visits = KeyedState({"ann": 1})
        >>> async with ck.begin(epoch=1) as cp:
        ...     await cp.save("visits", visits)
        >>> restored = await ck.restore()
        >>> state = await restored.keyed("visits")
        >>> restored.epoch, state["ann"]
        (1, 1)
    """

    # A program that saves and restores never imports what only looks after a store: those verbs import it themselves.

    # ---- what people use ----------------------------------------------------------------------------------------

    def begin(self, epoch: int | None = None, *, background: bool = False) -> AsyncCheckpoint:
        """Begin a checkpoint on top of the restored one.

        Call it as `async with ck.begin(…) as cp`, or as `cp = await ck.begin(…)`.

        At the end of the block the checkpoint is committed, and the errors of `commit` are raised. After an exception
        in the block nothing is visible: the checkpoint is aborted. But once `prepare()` has returned in the block, the
        checkpoint stays prepared until you commit or abort it, whether the block raises or not.

        If the end of the block is cancelled or interrupted while it commits, the commit may still take effect. If it
        did, the next call that writes asks for `restore()` first: it tells whether to begin this batch again.

        Args:
            epoch: Your number for the checkpoint, such as Spark's batch id. Without it the checkpoint is a change to
                the same batch: it keeps the epoch, and the query's job, of the checkpoint before.
            background: End the block as soon as everything is captured, and commit while the program goes on. The next
                call on this checkpointer, or `close()`, waits for the commit and raises its error. A process that ends
                before finishes the commit first, or logs what was lost.

        Returns:
            The checkpoint, to save to.

        Raises:
            CheckpointError: An earlier commit in the background failed. This is its error.
            InvalidStateError: A prepared checkpoint waits for its second phase.

        Examples:
            >>> visits["bob"] = 3
            >>> async with ck.begin(epoch=2) as cp:
            ...     await cp.save("visits", visits)
            ...     cp.positions["orders"] = {"offset": 41}
            >>> str(await ck.read_latest())[:10]
            '0000000002'
        """
        return self.begin_batch(epoch, None, background)

    def begin_batch(self, epoch: int | None, job: Job | None, background: bool = False) -> AsyncCheckpoint:
        """Begin a checkpoint of a batch of a streaming query.

        For other packages of this library.
        """
        return AsyncCheckpoint(self, epoch, job, background)

    async def restore(
        self,
        id: CheckpointId | str | None = None,
        *,
        epoch: int | None = None,
        savepoint: str | None = None,
        on_corruption: OnCorruption = "error",
        rename: Mapping[str, str] | None = None,
        drop: Iterable[str] | None = None,
        transform: Mapping[str, Transform] | None = None,
    ) -> AsyncRestored | None:
        """Restore the committed checkpoint, or a live one by id, epoch or savepoint.

        Reads the pointer and the manifest. State is read, and verified, when you ask the result for it.

        `rename`, `drop` and `transform` bring a checkpoint of an older version of the job to the new one. Everything is
        checked and run before this method returns, and nothing is written: the result is in memory, and the next
        checkpoint commits it. `begin()` with an empty block commits the result unchanged. If the checkpoint is not the
        committed one, the result can only be read. Another `restore()` or `rollback()` discards a migration that was
        not committed.

        Args:
            id: An id or the beginning of one ("0000000042-1a2b3c4d", "0000000042", "42-1a"); "latest"; "epoch=41", the
                newest checkpoint of that epoch; "savepoint=NAME", or the bare name; or "at=2024-01-02T06:00Z", the
                newest one made by then. A bare integer is refused, because it could be an epoch or part of an id.
            epoch: The newest checkpoint of this epoch.
            savepoint: The checkpoint that has this name.
            on_corruption: "error" raises if metadata is damaged. "previous" first verifies every byte of the latest
                checkpoint. If it is damaged, it restores the newest older one that is intact, and `skipped` of the
                result says why. That one can only be read, until `rollback(to=restored.id)`. Everything is read twice.
            rename: New names of operators by their old names.
            drop: Old names of operators to leave out.
            transform: Functions by new name: for a map `dict -> dict`; for bytes `(partition, chain) -> bytes` and for
                a table `pyarrow.Table -> pyarrow.Table`, called for each partition.

        Returns:
            The checkpoint, or None if the root is empty.

        Raises:
            CheckpointNotFoundError: No live checkpoint has this id or epoch.
            SavepointNotFoundError: No savepoint has this name.
            CorruptionError: Metadata is missing or damaged. The message names the object.
            IllegalArgumentError: An argument is wrong, or a migration function failed; the message names the operator.
            InvalidStateError: Another call of this client committed or restored while a migration ran.

        Examples:
            >>> restored = await ck.restore(epoch=1)
            >>> restored.operators
            ['visits']
            >>> restored = await ck.restore(
            ...     rename={"visits": "seen"},
            ...     transform={"seen": lambda old: {name: str(count) for name, count in old.items()}},
            ... )
            >>> state = await restored.keyed("seen")
            >>> state.to_dict()
            {'ann': '1'}
            >>> async with ck.begin():  # commits the migration
            ...     pass
        """
        wanted, migrate = CheckpointSelector.choose(id, epoch, savepoint), as_migration(rename, drop, transform)
        session = self.session
        reader = await self._restoring(session, partial(restore.restore, session, wanted, on_corruption, migrate))
        return None if reader is None else AsyncRestored(reader)

    async def savepoint(self, name: str, id: CheckpointId | str | None = None) -> Savepoint:
        """Keep a checkpoint under a name.

        Retention and cleanup never remove the checkpoint. This fences nobody.

        Args:
            name: A name that no savepoint of this root has.
            id: A live checkpoint, as in `restore`; by default the committed one.

        Returns:
            The savepoint: its name, the id of the checkpoint, and when it was made.

        Raises:
            CheckpointNotFoundError: No live checkpoint is meant by `id`.
            IllegalArgumentError: The name is in use, or cannot be a name.
            RetiredError: The checkpoint was retired while this ran.
            CorruptionError: Metadata is missing or damaged. The message names the object.

        Examples:
            >>> savepoint = await ck.savepoint("before-deploy")
            >>> savepoint.name
            'before-deploy'
        """
        return await self._run(savepoints.savepoint(self.session, name, as_selector(id)))

    async def savepoints(self) -> list[Savepoint]:
        """Return every savepoint, oldest first.

        Raises:
            CorruptionError: Metadata is missing or damaged. The message names the object.

        Examples:
            >>> savepoint = await ck.savepoint("before-deploy")
            >>> [savepoint.name for savepoint in await ck.savepoints()]
            ['before-deploy']
        """
        return await self._run(savepoints.savepoints(self.session))

    async def delete_savepoint(self, name: str) -> None:
        """Delete the name of a savepoint. Retention may then retire its checkpoint.

        Args:
            name: The name.

        Raises:
            SavepointNotFoundError: No savepoint has this name.
            CorruptionError: Metadata is missing or damaged. The message names the object.

        Examples:
            >>> savepoint = await ck.savepoint("before-deploy")
            >>> await ck.delete_savepoint("before-deploy")
            >>> await ck.savepoints()
            []
        """
        await self._run(savepoints.delete_savepoint(self.session, name))

    async def followers(self) -> "Followers":
        """Return the named followers of tables, with how far each has read.

        A stream of changes registers itself under the name in its option `follower`. Retention keeps the checkpoints
        that it has yet to read.

        Raises:
            CorruptionError: The positions of the followers are damaged.

        Examples:
            >>> await ck.followers()
            []
        """
        from pyspark_checkpointer.admin import followers

        return await self._run(followers.followers(self.session))

    async def remove_follower(self, name: str) -> None:
        """Remove a named follower, so that retention waits for it no longer.

        If its stream runs, the stream continues, and is refused once retention has outrun it. A stream that is started
        again registers again.

        Args:
            name: The name of the follower.

        Raises:
            NotFoundError: There is no follower of this name.

        Examples:
            >>> from pyspark_checkpointer import errors
            >>> try:
            ...     await ck.remove_follower("nobody")
            ... except errors.NotFoundError as error:
            ...     print("there are none" in str(error))
            True
        """
        from pyspark_checkpointer.admin import followers

        await self._run(followers.remove(self.session, name))

    async def plan(self, policy: "RetentionPolicy | None" = None) -> "CleanupPlan":
        """Plan a cleanup: list every object of the store.

        Each object is listed with its size, the objects that name it, and what a cleanup would do with it. This only
        reads.

        Args:
            policy: Which checkpoints to keep. Without it nothing is retired.

        Returns:
            The plan, for `apply`. Iterating gives one row for each object.

        Raises:
            IllegalArgumentError: `policy` is no `RetentionPolicy`.
            CorruptionError: Metadata is missing or damaged. The message names the object.

        Examples:
            >>> from pyspark_checkpointer import RetentionPolicy
            >>> plan = await ck.plan(RetentionPolicy(keep_last=10))
            >>> {row.action for row in plan}
            {'keep'}
        """
        from pyspark_checkpointer.admin.retention.garbage_collect import plan_retire_and_sweep

        return await self._run(plan_retire_and_sweep(self.session, policy))

    async def load_plan(self, path: str | os.PathLike[str]) -> "CleanupPlan":
        """Return a plan that was saved, also one of an encrypted root.

        Args:
            path: The path of the file.

        Raises:
            IllegalArgumentError: The file cannot be read.
            MalformedError: The file is damaged, is not a plan, or cannot be decrypted with the keys of this root.
            UnsupportedFormatError: Another version of the library wrote it. Make the plan again.

        Examples:
            >>> (await ck.plan()).save("cleanup.plan")
            >>> loaded = await ck.load_plan("cleanup.plan")
            >>> loaded.from_file
            True
        """
        from pyspark_checkpointer.admin.retention.garbage_collect import load_plan

        return await self._run(load_plan(self.session, path))

    async def apply(self, plan: "CleanupPlan", *, progress: Progress | None = None) -> "Cleaned":
        """Carry out a plan, and do nothing else.

        Args:
            plan: What `plan` or `load_plan` returned, or `CleanupPlan.load`.
            progress: A function of two integers: objects deleted so far, and all that are to be deleted. Called from
                another thread.

        Returns:
            The sums of what was deleted, and of what will be after the grace period.

        Raises:
            StalePlanError: Something in the plan is needed now. Nothing was done: make a new plan.
            InvalidStateError: `_latest` is an old copy that somebody put back. Nothing was done.
            IllegalArgumentError: This is no plan, or one of another root.
            CorruptionError: Metadata is missing or damaged. The message names the object.

        Examples:
            >>> plan = await ck.plan()
            >>> cleaned = await ck.apply(plan)
            >>> cleaned.retired, cleaned.deleted.objects
            ((), 0)
        """
        check_progress(progress)
        from pyspark_checkpointer.admin.retention.garbage_collect import apply_plan

        return await self._run(apply_plan(self.session, plan, progress))

    async def clean(self, policy: "RetentionPolicy | None" = None, *, progress: Progress | None = None) -> "Cleaned":
        """Retire checkpoints by a policy, and delete objects that nothing needs.

        This is `plan` and `apply` in one.

        It is safe beside a running job, readers and other cleanups, and fences nobody. The next cleanup finishes one
        that was killed.

        Args:
            policy: Which checkpoints to keep. Without it only garbage is deleted, such as what a failed attempt left.
            progress: As in `apply`.

        Returns:
            The sums of what was retired, deleted, and will be deleted after the grace period.

        Raises:
            IllegalArgumentError: `policy` is no `RetentionPolicy`.
            CorruptionError: Metadata is missing or damaged. The message names the object.

        Examples:
            >>> from pyspark_checkpointer import RetentionPolicy
            >>> async with ck.begin(epoch=2) as cp:
            ...     await cp.save("visits", visits)
            >>> cleaned = await ck.clean(RetentionPolicy(keep_last=1))
            >>> len(await ck.list_checkpoints())
            1
        """
        check_progress(progress)
        from pyspark_checkpointer.admin.retention.garbage_collect import retire_and_sweep

        return await self._run(retire_and_sweep(self.session, policy, progress))

    async def rollback(self, to: CheckpointId | str, *, progress: Progress | None = None) -> CheckpointId:
        """Commit the content of an older checkpoint on top of the history.

        Nothing is deleted. Every object of that checkpoint is read and compared first. For a streaming query use
        `rewind`, which takes Spark's progress back too. The positions of consumers below `progress/` stay as they are.

        Args:
            to: A live checkpoint, as in `restore`.
            progress: A function of two integers: bytes compared so far, and in all. Called from another thread.

        Returns:
            The id of the new checkpoint.

        Raises:
            CheckpointNotFoundError: No live checkpoint is meant by `to`.
            CorruptionError: An object of it is missing or damaged. Nothing was changed.
            InvalidStateError: Another call of this client committed or prepared meanwhile. Nothing was changed.

        Examples:
            >>> visits["ann"] = 1000  # a mistake
            >>> async with ck.begin(epoch=2) as cp:
            ...     await cp.save("visits", visits)
            >>> new_id = await ck.rollback(to="epoch=1")
            >>> restored = await ck.restore()
            >>> state = await restored.keyed("visits")
            >>> state["ann"]
            1
        """
        check_progress(progress)
        from pyspark_checkpointer.admin import rollback

        wanted = CheckpointSelector.parse(to)
        return await self._run_commit(lambda: rollback.rollback(self.session, wanted, progress=progress))

    async def export(
        self,
        what: CheckpointId | str | None,
        to_root: str | os.PathLike[str],
        to_storage_options: Mapping[str, Any] | None = None,
        *,
        fencing: Fencing = "required",
        encryption: EncryptionOption = None,
        signing: SigningOption = None,
        progress: Progress | None = None,
    ) -> CheckpointId:
        """Copy a checkpoint, with all that it needs, to an empty root.

        Every object is verified on the way.

        Args:
            what: A live checkpoint, as in `restore`; None for the committed one. This root and its writer are not
                changed.
            to_root: A folder or URL that holds no store yet. After a failure, the same call begins again.
            to_storage_options: The storage options of `to_root`.
            fencing: The fencing of `to_root`, whatever it is here.
            encryption: The encryption of `to_root`, whatever it is here.
            signing: What `to_root` is signed with, whatever it is here.
            progress: A function of two integers, called after each object, from another thread: bytes copied so far,
                and in all.

        Returns:
            The id of the checkpoint in the new root.

        Raises:
            InvalidStateError: `to_root` holds a store already.
            CorruptionError: An object is missing or damaged.

        Examples:
            >>> new_id = await ck.export(None, "exports/visits")
            >>> restored = await AsyncCheckpointer("exports/visits").restore()
            >>> restored.epoch
            1
        """
        check_progress(progress)
        from pyspark_checkpointer.admin import export

        target = self._connect(to_root, to_storage_options, fencing, encryption, signing)
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
        """Write the tables and maps of a checkpoint as plain Parquet files.

        DuckDB, Polars, pandas and Spark can read them.

        `TO_FOLDER/<operator>/part-00000.parquet` and so on hold each row once. A map has the columns `key` and `value`,
        both JSON text. One partition at a time is in memory.

        Args:
            what: A live checkpoint, as in `restore`; None for the committed one.
            to_folder: A folder or URL that is empty or does not exist. Nothing is overwritten.
            to_storage_options: The storage options of `to_folder`.
            operators: The operators to write; by default all, except those of the job's own bytes.
            fencing: The fencing of `to_folder`.
            progress: A function of two integers: partitions written so far, and in all.

        Returns:
            What was written: rows, files and bytes of each operator, and the operators that were left out.

        Raises:
            InvalidStateError: `to_folder` is not empty.
            OperatorNotFoundError: The checkpoint has no operator of a given name.

        Examples:
            >>> exported = await ck.export_parquet(None, "exports/parquet")
            >>> [(operator.name, operator.rows) for operator in exported.operators]
            [('visits', 1)]
        """
        check_progress(progress)
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
        """Take a stopped streaming query back to an older checkpoint.

        A new commit takes its state back, and Spark's progress is taken back with it.

        The next start of the query continues with the batch after the batch of `to`, from the offsets where that batch
        ended. Files that are taken out of Spark's checkpoint are kept in its folder `rewound/`. The state before the
        rewind is kept as a savepoint. After a failure the same call finishes the work.

        Args:
            spark_checkpoint: The `checkpointLocation` of the query; by default the one that its last checkpoint names,
                if that is a folder as the root, or in the same bucket or container, or if the root is signed.
            spark_storage_options: The storage options of `spark_checkpoint`; by default those of the root, if both are
                of the same service and account.
            to: A live checkpoint, as in `restore`.
            stopped: Say that the query does not run, for a driver that cannot be seen from here. A driver that is seen
                alive is refused anyway.
            dry_run: Change nothing. Tell what would change, and whether the rewind would be refused.
            progress: A function of two integers: bytes read and compared so far, and in all.

        Returns:
            What was changed in the state and in Spark's checkpoint.

        Raises:
            InvalidStateError: The query runs, or may run; it is another query; Spark holds state of its own for it; or
                its offsets are not known any more.
            CorruptionError: An object of the checkpoint is damaged. Nothing was changed.

        Examples:
            The query of the example of `State` has made one batch, which is corrected here.

            >>> shop = AsyncCheckpointer("state/shop")
            >>> before = await shop.restore()
            >>> async with shop.begin() as cp:
            ...     cp.properties["mistake"] = "yes"
            >>> rewind = await shop.rewind(to=before.id)
            >>> rewind.changes, rewind.batch, (await shop.restore()).properties.get("mistake")
            (True, 0, None)
        """
        check_flags(stopped=stopped, dry_run=dry_run)
        check_progress(progress)
        from pyspark_checkpointer.admin.streaming import rewind
        from pyspark_checkpointer.admin.streaming.rewind_result import RewindOptions

        wanted, where = CheckpointSelector.parse(to), self.spark_location(spark_checkpoint, spark_storage_options)
        options = RewindOptions(stopped, dry_run, progress=progress)
        if dry_run:
            return await self._run(rewind.rewind(self.session, wanted, where, options))
        return await self._run_commit(lambda: rewind.rewind(self.session, wanted, where, options))

    async def undo_rewind(
        self,
        spark_checkpoint: str | os.PathLike[str] | None = None,
        spark_storage_options: Mapping[str, Any] | None = None,
        *,
        stopped: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> "Rewind":
        """Undo the last rewind of a query.

        The query gets back the state from before the rewind, and Spark's files are put back.

        The state that was made since the rewind is kept as a savepoint. If the last rewind was an undo, this finishes
        it. If there is nothing to finish, this does nothing.

        Args:
            spark_checkpoint: As in `rewind`.
            spark_storage_options: As in `rewind`.
            stopped: As in `rewind`.
            dry_run: As in `rewind`.
            progress: As in `rewind`.

        Returns:
            What was changed in the state and in Spark's checkpoint.

        Raises:
            InvalidStateError: As in `rewind`.

        Examples:
            The query of the example of `State` has made one batch, which is corrected here.

            >>> shop = AsyncCheckpointer("state/shop")
            >>> before = await shop.restore()
            >>> async with shop.begin() as cp:
            ...     cp.properties["right"] = "yes"
            >>> rewind = await shop.rewind(to=before.id)
            >>> undone = await shop.undo_rewind()
            >>> undone.changes, (await shop.restore()).properties["right"]
            (True, 'yes')
        """
        check_flags(stopped=stopped, dry_run=dry_run)
        check_progress(progress)
        from pyspark_checkpointer.admin.streaming import rewind
        from pyspark_checkpointer.admin.streaming.rewind_result import RewindOptions

        where = self.spark_location(spark_checkpoint, spark_storage_options)
        options = RewindOptions(stopped, dry_run, progress=progress)
        if dry_run:
            return await self._run(rewind.undo(self.session, where, options))
        return await self._run_commit(lambda: rewind.undo(self.session, where, options))

    async def encrypt(self, encryption: "KeyProvider | str", *, progress: Progress | None = None) -> "EncryptedRoot":
        """Encrypt this root where it is.

        Each live object is copied, encrypted, and the original is deleted. A swap of `_latest` is the commit. After it
        a client without the key is refused, this one too: stop the job before, and start it with `encryption`. After a
        failure the same call finishes the work. Old versions that the bucket keeps stay readable, and so do backups.

        Args:
            encryption: What is to open the keys, as for a client.
            progress: A function of two integers, called after each object, from another thread: bytes copied so far,
                and in all that are known.

        Raises:
            IllegalArgumentError: This client has an encryption already, or the argument names no provider of keys.
            InvalidStateError: The root holds nothing of this library. A new one is encrypted by its first client.
            CorruptionError: An object is missing or damaged.
            ConflictError: A job commits all the time.

        Examples:
            >>> import secrets
            >>> from pathlib import Path
            >>> _ = Path("state.key").write_text(secrets.token_hex(32))
            >>> plain = AsyncCheckpointer("state/adopted")
            >>> async with plain.begin() as cp:
            ...     cp.properties["model"] = "v7"
            >>> (await plain.encrypt("key-file:state.key")).objects
            1
            >>> found = await AsyncCheckpointer("state/adopted", encryption="key-file:state.key").restore()
            >>> found.properties
            {'model': 'v7'}
        """
        check_progress(progress)
        new = fix(encryption)  # it refuses what is missing by name, before the import does
        from pyspark_checkpointer.admin.encrypt import encrypt_root

        return await self._run(encrypt_root(self.session, new, progress))

    async def signers(self) -> "Signers":
        """Return the list of those whose signatures count in this root.

        Raises:
            IllegalArgumentError: This client was opened without `signing`.
            InvalidStateError: The root is not signed.
            UntrustedError: Nobody signed the list whom this client trusts.

        Examples:
            >>> ck = AsyncCheckpointer("state/signed")
            >>> _ = await ck.change_signers("owner.pem", allow={"driver.pub": "commit"})
            >>> reader = AsyncCheckpointer("state/signed", signing="trust:owner.pub")
            >>> [(one.name, one.roles) for one in (await reader.signers()).signers.values()]
            [('driver', ('commit',))]
        """
        from pyspark_checkpointer.admin.signers import read_signers

        return await self._run(read_signers(self.session))

    async def change_signers(
        self,
        owner: "SigningKey | str | os.PathLike[str]",
        *,
        allow: Mapping[str | os.PathLike[str], str | Sequence[str]] | None = None,
        revoke: Sequence[str] = (),
    ) -> "Signers":
        """Let signers sign in this root, or revoke them, and return the new list.

        The first call makes the root a signed one. What is there already is signed by the owner: stop the job before,
        and start it with `signing`. After a failure the same call finishes the work.

        What a signer committed before it was revoked still counts, and nothing that it signs later.

        Args:
            owner: The private key of an owner, or the path of its file in PEM.
            allow: What signers may do from now on, by the paths of their public keys in PEM: "commit" (also savepoints
                and retention), "clean" (these two alone), "consume" (write positions), or several of them.
            revoke: Names or public keys of signers.

        Raises:
            IllegalArgumentError: An argument is not what it must be, or somebody is revoked who is no signer.
            UntrustedError: The root has another owner.
            InvalidStateError: A signer wrote something while it was being revoked.
            ConflictError: A job writes all the time.

        Examples:
            >>> ck = AsyncCheckpointer("state/signed")
            >>> (await ck.change_signers("owner.pem", allow={"driver.pub": "commit"})).version
            1
        """
        check_names(revoke=revoke)
        require("cryptography", "encryption", "signing")
        from pyspark_checkpointer.admin.signers import as_signers, change_signers
        from pyspark_checkpointer.storage.signatures.signing_keys import Signing, as_signing_key

        key, config = as_signing_key(owner), self._config
        known = config.signing if isinstance(config.signing, Signing) else Signing((key.public_key,))
        signing = replace(known, trust=(key.public_key, *known.trust), key=key)
        session = self._connect(config.root, config.storage_options, config.fencing, config.encryption, signing)
        return await self._run(change_signers(session, as_signers(allow or {}), tuple(revoke)))

    async def cleaners(self) -> "Sequence[WrappedKey]":
        """Return the keys that open this encrypted root, those of cleaners too.

        Raises:
            IllegalArgumentError: This client was opened without encryption.
            InvalidStateError: The root is not encrypted yet, or is getting another data key.

        Examples:
            >>> import secrets
            >>> from pathlib import Path
            >>> _ = Path("all.key").write_text(secrets.token_hex(32))
            >>> sealed = AsyncCheckpointer("state/cleaned", encryption="key-file:all.key")
            >>> async with sealed.begin() as cp:
            ...     cp.properties["model"] = "v7"
            >>> [(one.provider, one.opens) for one in await sealed.cleaners()]
            [('key-file', 'all')]
        """
        require("cryptography", "encryption", "encryption")
        from pyspark_checkpointer.storage.encryption.root_keys import cleaners

        return await self._run(cleaners(self.session.store))

    async def change_cleaners(
        self, *, allow: "Sequence[KeyProvider | str]" = (), remove: Sequence[str] = ()
    ) -> "Sequence[WrappedKey]":
        """Let keys open the structure of this encrypted root, or no more.

        Return all keys that open it. Who has such a key can clean and verify the root, and read none of its artifacts
        and packs: no key and no value of its state. Manifests and positions can be read. Only the object `_keys` is
        written; running jobs continue.

        A cleaner that was removed may have kept what its key opened. Where that matters, use `reencrypt` after it.

        Args:
            allow: What opens the structure from now on, as for a client.
            remove: Names of the keys of cleaners.

        Raises:
            IllegalArgumentError: One of `allow` opens all of the root, or no cleaner has one of these names.
            InvalidStateError: The root is not encrypted yet, or the key of this client is that of a cleaner.
            ConflictError: Somebody else replaced the keys at the same time.

        Examples:
            >>> import secrets
            >>> from pathlib import Path
            >>> for name in ("all", "cleaner"):
            ...     _ = Path(f"{name}.key").write_text(secrets.token_hex(32))
            >>> sealed = AsyncCheckpointer("state/cleaned", encryption="key-file:all.key")
            >>> async with sealed.begin() as cp:
            ...     cp.properties["model"] = "v7"
            >>> _ = await sealed.change_cleaners(allow=["key-file:cleaner.key"])
            >>> cleaner = AsyncCheckpointer("state/cleaned", encryption="key-file:cleaner.key")
            >>> bool(await cleaner.verify())
            True
        """
        check_names(allow=allow, remove=remove)
        from pyspark_checkpointer.storage.encryption.root_keys import change_cleaners

        fixed = [fix(one) for one in allow]  # it refuses what is missing by name
        return await self._run(change_cleaners(self.session.store, fixed, tuple(remove)))

    async def rekey(self, encryption: "KeyProvider | str") -> None:
        """Let another key open an encrypted root, in place of the present one.

        Only the object `_keys` is written. Running jobs continue; a client that starts needs the new key. The content
        stays encrypted as it is: whoever kept an old key and an old copy of `_keys` can still read the root. If
        somebody else learned a key, use `reencrypt`.

        Args:
            encryption: What is to open the keys from now on, as for the client. This client goes on as it is.

        Raises:
            IllegalArgumentError: It cannot wrap keys, or this client was not opened with encryption.
            ConflictError: Somebody else replaced the key at the same time.

        Examples:
            >>> import secrets
            >>> from pathlib import Path
            >>> for name in ("old", "new"):
            ...     _ = Path(f"{name}.key").write_text(secrets.token_hex(32))
            >>> sealed = AsyncCheckpointer("state/sealed", encryption="key-file:old.key")
            >>> async with sealed.begin() as cp:
            ...     cp.properties["model"] = "v7"
            >>> await sealed.rekey("key-file:new.key")
            >>> found = await AsyncCheckpointer("state/sealed", encryption="key-file:new.key").restore()
            >>> found.properties
            {'model': 'v7'}
        """
        new = fix(encryption)  # it refuses what is missing by name, before the import does
        from pyspark_checkpointer.storage.encryption.root_keys import rekey

        await self._run(rekey(self.session.store, new))

    async def reencrypt(self, encryption: "KeyProvider | str", *, progress: Progress | None = None) -> "EncryptedRoot":
        """Encrypt an encrypted root anew: another key opens its new data key.

        After it, an old key opens nothing that is in the root, whatever old copy of `_keys` somebody has. Each live
        object is copied, and the original is deleted. A swap of `_latest` is the commit. After it every client that was
        open is refused, this one too: stop the job and all consumers before. After a failure the same call finishes
        the work. Old versions that the bucket keeps stay readable with the old keys, and so do backups.

        Args:
            encryption: What is to open the new keys, as for a client.
            progress: A function of two integers, called after each object, from another thread: bytes copied so far,
                and in all that are known.

        Raises:
            IllegalArgumentError: It cannot wrap keys, or this client was not opened with encryption.
            InvalidStateError: The key of this client does not open the root, or an earlier call had another new key.
            CorruptionError: An object is missing or damaged.
            ConflictError: Somebody else replaced the keys at the same time, or a job commits all the time.

        Examples:
            >>> import secrets
            >>> from pathlib import Path
            >>> for name in ("old", "new"):
            ...     _ = Path(f"{name}.key").write_text(secrets.token_hex(32))
            >>> sealed = AsyncCheckpointer("state/leaked", encryption="key-file:old.key")
            >>> async with sealed.begin() as cp:
            ...     cp.properties["model"] = "v7"
            >>> (await sealed.reencrypt("key-file:new.key")).objects
            1
            >>> found = await AsyncCheckpointer("state/leaked", encryption="key-file:new.key").restore()
            >>> found.properties
            {'model': 'v7'}
        """
        check_progress(progress)
        new = fix(encryption)  # it refuses what is missing by name, before the import does
        from pyspark_checkpointer.admin.encrypt import reencrypt_root

        return await self._run(reencrypt_root(self.session, new, progress))

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
        encryption: EncryptionOption = None,
        signing: SigningOption = None,
        progress: Progress | None = None,
    ) -> "Fork":
        """Make a second streaming query with the same state and progress.

        It has a query id of its own, and so other tokens: give it a sink of its own, or delete what the first query
        wrote above the batch. The first query may run, and is not changed. Both read the same sources. After a failure
        the same call finishes the work.

        Args:
            what: A live checkpoint, as in `restore`.
            to_root: A folder or URL that holds no store yet.
            to_spark_checkpoint: An empty folder, or one that does not exist: the `checkpointLocation` of the new query.
            to_storage_options: The storage options of `to_root`, and of `to_spark_checkpoint` of the same service and
                account.
            spark_checkpoint: The `checkpointLocation` of the first query; by default the one that the checkpoint names,
                as in `rewind`.
            spark_storage_options: The storage options of `spark_checkpoint`; by default those of this root, as in
                `rewind`.
            fencing: The fencing of `to_root`, whatever it is here.
            encryption: The encryption of `to_root`, whatever it is here.
            signing: What `to_root` is signed with, whatever it is here.
            progress: A function of two integers, called after each object of the state, from another thread: bytes
                copied so far, and in all.

        Returns:
            The id of the checkpoint in the new root, and the id of the new query.

        Raises:
            InvalidStateError: `to_root` or `to_spark_checkpoint` is not empty, or the offsets of the batch are not
                known.
            ConflictError: Spark changed its files while they were copied. Call again.

        Examples:
            The query of the example of `State` has made one batch.

            >>> shop = AsyncCheckpointer("state/shop")
            >>> fork = await shop.fork("latest", "state/second", "state/second-spark")
            >>> fork.batch
            0
        """
        check_progress(progress)
        from pyspark_checkpointer.admin.streaming import fork

        wanted, where = CheckpointSelector.parse(what), self.spark_location(spark_checkpoint, spark_storage_options)
        target = self._connect(to_root, to_storage_options, fencing, encryption, signing)
        options = options_near(to_spark_checkpoint, target.store.url, to_storage_options)
        log = open_files(to_spark_checkpoint, options, fencing)
        return await self._run(fork.fork(self.session, wanted, target, where, log, progress))

    async def repair_candidates(
        self,
        spark_checkpoint: str | os.PathLike[str] | None = None,
        spark_storage_options: Mapping[str, Any] | None = None,
    ) -> "list[Candidate]":
        """List the repair candidates of a root without a readable `_latest`.

        Each candidate has its evidence. The best one comes first. This only reads.

        Args:
            spark_checkpoint: The `checkpointLocation` of the query that wrote the state, as further evidence.
            spark_storage_options: The storage options of `spark_checkpoint`.

        Returns:
            The candidates.

        Raises:
            IllegalArgumentError: `spark_checkpoint` is no `checkpointLocation`, or no batch is finished in it.
            UnsupportedFormatError: A newer version of the library wrote an object. Repair with that version.

        Examples:
            >>> from pathlib import Path
            >>> Path("state/visits/_latest").unlink()  # an accident
            >>> [candidate.epoch for candidate in await ck.repair_candidates()]
            [1]
        """
        from pyspark_checkpointer.admin import repair_candidates

        return await self._run(
            repair_candidates.candidates(self.session, fixed(spark_checkpoint), spark_storage_options)
        )

    async def repair_plan(self, to: CheckpointId | str, *, progress: Progress | None = None) -> "RepairPlan":
        """Return what `repair` would keep of a candidate, and what it would lose.

        This only reads.

        Args:
            to: The candidate, as in `repair`.
            progress: A function of two integers: bytes read and compared so far, and in all.

        Returns:
            Each damaged partition, how many records it held, and which older state of it is intact.

        Raises:
            CheckpointNotFoundError: No candidate is meant by `to`.
            IllegalArgumentError: `to` is no form of an id, or fits several candidates.
            InvalidStateError: There is nothing to repair.
            CorruptionError: The candidate names an object that is gone.

        Examples:
            >>> from pathlib import Path
            >>> Path("state/visits/_latest").unlink()  # an accident
            >>> plan = await ck.repair_plan("epoch=1")
            >>> plan.losses, plan.savepoints
            ((), ())
        """
        check_progress(progress)
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
        """Commit a copy of one of `repair_candidates()`.

        This is for a root without a live checkpoint to roll back to. Every object is read and compared. If one is
        damaged, nothing is written unless you accept the loss.

        Args:
            to: The candidate, as in `restore`, except a time: nothing proves which checkpoint was the committed one
                then. "latest" is the one that is left in `_latest`. What fits several candidates is refused.
            accept_loss: Commit what is intact. Damaged partitions are left out: see `repair_plan`.
            older_partitions: Take damaged partitions back to an older state that is intact, if there is one. The
                checkpoint is then a mix of batches: these partitions lack what the batches since then did.
            progress: A function of two integers: bytes compared so far, and in all.

        Returns:
            The id of the new checkpoint.

        Raises:
            CheckpointNotFoundError: No candidate is meant by `to`.
            CorruptionError: Something is damaged, and the loss was not accepted. Nothing was written.
            IllegalArgumentError: `to` is no form of an id, or fits several candidates; or `older_partitions` is given
                without `accept_loss`.
            InvalidStateError: There is nothing to repair.

        Examples:
            >>> from pathlib import Path
            >>> Path("state/visits/_latest").unlink()  # an accident
            >>> new_id = await ck.repair("epoch=1")
            >>> latest = await ck.read_latest()
            >>> latest == new_id
            True
        """
        check_flags(accept_loss=accept_loss, older_partitions=older_partitions)
        check_progress(progress)
        from pyspark_checkpointer.admin import repair

        wanted = CheckpointSelector.parse(to)
        return await self._run_commit(
            lambda: repair.repair(
                self.session, wanted, accept_loss=accept_loss, older_partitions=older_partitions, progress=progress
            )
        )

    async def close(self) -> None:
        """Wait for a commit in the background, raise its error, and release connections.

        Raises:
            CheckpointError: An earlier commit in the background failed. This is its error.

        Examples:
            >>> await ck.close()
            >>> latest = await ck.read_latest()  # connects again
            >>> latest.sequence
            1
        """
        # Not by `_run`, which would stop at a commit that failed and leave the connections open.
        await self._tell(self.session.close())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # ---- the nine verbs -----------------------------------------------------------------------------------------

    async def new_id(self) -> CheckpointId:
        """Return an id for the next attempt on top of the restored checkpoint.

        Each call returns another one.

        Raises:
            CorruptionError: Metadata is missing or damaged. The message names the object.

        Examples:
            >>> id = await ck.new_id()
            >>> id.sequence
            2
        """
        return await self._run(self.session.new_id())

    async def save_manifest(self, manifest: Manifest) -> None:
        """Write a manifest. It becomes a checkpoint by `update_latest`.

        Args:
            manifest: The manifest, with an id from `new_id`. It can be written once.

        Raises:
            IllegalArgumentError: This is no manifest.

        Examples:
            >>> from pyspark_checkpointer.manifests.model import Manifest
            >>> first = AsyncCheckpointer("state/first")
            >>> id = await first.new_id()
            >>> await first.save_manifest(Manifest(id, epoch=7))
            >>> manifest = await first.load_manifest(id)
            >>> manifest.epoch
            7
        """
        await self._run(low_level.save_manifest(self.session, manifest))

    async def load_manifest(self, id: CheckpointId | str) -> Manifest:
        """Return the manifest of a checkpoint, or one that was saved and not committed.

        Args:
            id: A live checkpoint, as in `restore`, or "prepared"; or the whole id of a manifest that was saved.

        Raises:
            CheckpointNotFoundError: There is no such manifest.
            IllegalArgumentError: `id` is no form of an id.
            CorruptionError: The manifest is damaged.

        Examples:
            >>> manifest = await ck.load_manifest(restored.id)
            >>> sorted(manifest.operators)
            ['visits']
        """
        return await self._run(low_level.load_manifest(self.session, CheckpointSelector.parse(id)))

    async def save_snapshot(
        self,
        id: CheckpointId | str,
        operator: str,
        partition: int,
        data: bytes,
    ) -> Artifact:
        """Write bytes as they are, as a snapshot of one partition.

        Any process may call it, for `attach`.

        Args:
            id: The id of the attempt: `cp.id`, or one from `new_id`.
            operator: The name of the operator.
            partition: The number of the partition, from 0.
            data: The bytes.

        Returns:
            The artifact, to be attached to the checkpoint or named in a manifest.

        Raises:
            IllegalArgumentError: `data` is not bytes, or another argument is not what it must be. The message names it.

        Examples:
            >>> id = await ck.new_id()
            >>> artifact = await ck.save_snapshot(id, "totals", 0, b"ann=1")
            >>> artifact.kind, artifact.raw_size
            ('snapshot', 5)
        """
        return await self._save(SNAPSHOT, as_id(id), operator, partition, data)

    async def save_delta(
        self,
        id: CheckpointId | str,
        operator: str,
        partition: int,
        data: bytes,
    ) -> Artifact:
        """Write bytes as they are, as a delta of one partition.

        Any process may call it, for `attach`.

        Args:
            id: The id of the attempt: `cp.id`, or one from `new_id`.
            operator: The name of the operator.
            partition: The number of the partition, from 0.
            data: The bytes.

        Returns:
            The artifact, to be attached to the checkpoint or named in a manifest.

        Raises:
            IllegalArgumentError: `data` is not bytes, or another argument is not what it must be. The message names it.

        Examples:
            >>> id = await ck.new_id()
            >>> artifact = await ck.save_delta(id, "totals", 0, b"ann+=2")
            >>> artifact.kind, artifact.raw_size
            ('delta', 6)
        """
        return await self._save(DELTA, as_id(id), operator, partition, data)

    async def _save(self, kind: Kind, id: CheckpointId, operator: str, partition: int, data: bytes) -> Artifact:
        # Not by `_run`: tasks call this, and it needs nothing that an earlier commit of this session could change.
        return await bridge(low_level.save_artifact(self.session, id, operator, partition, kind, as_bytes(data)))

    async def load_artifact(self, artifact: Artifact | str) -> bytes:
        """Return the stored bytes of an artifact, verified.

        Args:
            artifact: An artifact, or the path of the object that holds one.

        Raises:
            CorruptionError: The object is missing or damaged.
            IllegalArgumentError: This is not the path of an artifact.

        Examples:
            >>> id = await ck.new_id()
            >>> artifact = await ck.save_snapshot(id, "totals", 0, b"ann=1")
            >>> stored = await ck.load_artifact(artifact)
            >>> len(stored) == artifact.length
            True
        """
        return await bridge(low_level.load_artifact(self.session, artifact))

    async def update_latest(self, id: CheckpointId | str) -> CheckpointId:
        """Commit a saved manifest.

        The manifest of an older live checkpoint makes this a rollback.

        Every object that the manifest names, and that was written under this id, must be in the store. This call checks
        that.

        Args:
            id: The whole id of the manifest; or, for a rollback, a live checkpoint as in `restore`.

        Returns:
            The id that is committed now.

        Raises:
            CheckpointNotFoundError: No manifest has this id.
            InvalidStateError: The manifest names an object that was never written, or its parent is not what was
                restored.
            ConflictError: What the manifest names was cleaned up meanwhile. Restore, and begin again.
            FencedError: Another writer took over.
            IllegalArgumentError: `id` is no form of an id, or the manifest names an object that is neither of its
                parent nor of this id.
            CorruptionError: The manifest is damaged.

        Examples:
            >>> from pyspark_checkpointer.manifests.model import Manifest
            >>> first = AsyncCheckpointer("state/first")
            >>> id = await first.new_id()
            >>> await first.save_manifest(Manifest(id, epoch=7))
            >>> committed = await first.update_latest(id)
            >>> committed == id
            True
        """
        from pyspark_checkpointer.admin.update_latest import update_latest

        wanted = CheckpointSelector.parse(id)
        return await self._run_commit(lambda: update_latest(self.session, wanted))

    async def read_latest(self) -> CheckpointId | None:
        """Return the id of the committed checkpoint, as it is now; None on an empty root.

        Raises:
            CorruptionError: `_latest` is damaged.

        Examples:
            >>> latest = await ck.read_latest()
            >>> latest.sequence
            1
        """
        return await self._run(low_level.read_latest(self.session))

    async def verify(
        self,
        id: CheckpointId | str | None = None,
        *,
        operator: str | None = None,
        share: float = 1.0,
        since: datetime | None = None,
        progress: Progress | None = None,
    ) -> Verification:
        """Compare what is stored with what `_latest` and the manifests say.

        Damage is reported, not raised. This only reads. With pyarrow it also decodes the keys of tables, and reports
        keys that belong to another partition. Readers do not notice such keys.

        Args:
            id: One checkpoint, as in `restore`, or "prepared"; by default all live ones.
            operator: One operator; by default all.
            share: The share of the objects to read, chosen at random, from 0.0 to 1.0, which is all of them.
            since: A moment at which, or after which, the last commit of a signed root was signed: then an older
                `_latest` that was put back is a finding. A verification tells that moment, as `signed`.
            progress: A function of two integers: bytes compared so far, and in all.

        Returns:
            The findings, each with the checkpoints that it hurts, and how much was compared. True if nothing is wrong.

        Raises:
            UnsupportedFormatError: `_latest` has a newer format, or is encrypted or signed, and this client is not.
            CheckpointNotFoundError: No live checkpoint is meant by `id`.
            SavepointNotFoundError: No savepoint has this name.
            RetiredError: The checkpoint was retired meanwhile.
            OperatorNotFoundError: No checkpoint has this operator.
            IllegalArgumentError: `id` is no form of an id, `share` is out of its range, or `since` was given for a root
                that is not signed.

        Examples:
            >>> verification = await ck.verify()
            >>> bool(verification), verification.findings
            (True, ())
        """
        check_progress(progress)
        wanted = None if id is None else CheckpointSelector.parse(id)
        return await self._run(verify_store(self.session, wanted, operator, share, progress, check_table, since))

    async def list_checkpoints(self) -> list[CheckpointId]:
        """Return the ids of all live checkpoints, oldest first.

        Raises:
            CorruptionError: Metadata is missing or damaged. The message names the object.

        Examples:
            >>> [id.sequence for id in await ck.list_checkpoints()]
            [1]
        """
        return await self._run(savepoints.list_checkpoints(self.session))

    async def delete_checkpoint(self, id: CheckpointId | str) -> None:
        """Delete a checkpoint, and every object that nothing else names.

        These objects are deleted at once, without a grace period. If the manifest of the checkpoint itself is lost,
        damaged or not trusted, nothing leads to older checkpoints any more: all but savepoints, and what a policy keeps
        for longer, go with it, and a WARNING says which.

        Args:
            id: A live checkpoint, as in `restore`, except the committed one.

        Raises:
            InvalidStateError: It is the committed one, or a savepoint keeps it.
            CheckpointNotFoundError: No live checkpoint is meant by `id`.
            CorruptionError: Metadata is missing or damaged. The message names the object.

        Examples:
            >>> async with ck.begin(epoch=2) as cp:
            ...     await cp.save("visits", visits)
            >>> await ck.delete_checkpoint("epoch=1")
            >>> len(await ck.list_checkpoints())
            1
        """
        from pyspark_checkpointer.admin.retention.delete import delete_checkpoint

        await self._run(delete_checkpoint(self.session, CheckpointSelector.parse(id)))
