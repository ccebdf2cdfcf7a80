"""Carry out one rewind of a streaming query.

It checks, commits the state, then cuts Spark's progress. The order of the steps, and what a crash after each leaves, is
in `rewind.py`.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

from pyspark_checkpointer.admin.rollback import rollback
from pyspark_checkpointer.admin.savepoints import delete_savepoint, savepoint
from pyspark_checkpointer.admin.streaming.log_edit import LogPlan, apply_log_plan
from pyspark_checkpointer.admin.streaming.log_plan import LogBeforeRewind, plan_log, spark_progress_at
from pyspark_checkpointer.admin.streaming.offset_log import read_log
from pyspark_checkpointer.admin.streaming.rewind_record import RewindRecord, next_number, read_record, write_record
from pyspark_checkpointer.admin.streaming.rewind_result import Rewind, RewindOptions
from pyspark_checkpointer.checkpoint.fencing import Base
from pyspark_checkpointer.checkpoint.history import is_live
from pyspark_checkpointer.checkpoint.latest import read_head
from pyspark_checkpointer.checkpoint.liveness import is_running
from pyspark_checkpointer.checkpoint.require_intact import refuse_damaged
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    CorruptionError,
    InvalidStateError,
    RetiredError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests.model import CheckpointId, Job, Manifest, Ref
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import Store


@dataclass(frozen=True, slots=True)
class RewoundQuery:
    """A streaming query that is to be rewound.

    It has the committed state of the query, and Spark's checkpoint.
    """

    session: Session
    since: int
    """The `swaps` of the session when the verb was called."""
    base: Base
    committed: Ref
    last: Job
    """The batch that is committed."""
    spark: Store
    records: list[RewindRecord]
    """The rewinds that were begun so far, newest first."""
    refusing: ExitStack
    """Ends after all else: until then the session refuses writes once the state is committed."""

    def unchanged(self) -> Rewind:
        """Return the result of a rewind that has nothing to do."""
        batch, ref = self.last.batch_id, self.committed.id
        return Rewind(ref, batch, ref, batch, self.last.query_id, self.spark.url, cut=(), written=(), changes=False)


@dataclass(frozen=True, slots=True)
class RewindAttempt:
    """One rewind of a query: a new one, or an interrupted one that is finished.

    `record` is set only where an earlier call committed its state; then only Spark's part is left to do. `undoes` and
    `before` are set together, where the rewind is an undo.
    """

    query: RewoundQuery
    target: Ref
    manifest: Manifest
    job: Job
    record: RewindRecord | None
    """The record of an earlier call that reached at least its commit."""
    undoes: RewindRecord | None
    before: LogBeforeRewind | None
    """Spark's progress that an undo goes back to."""

    async def plan(self) -> LogPlan:
        """Return the necessary changes of Spark's progress.

        Raises an error if this is another query, or if Spark holds state.
        """
        log = await read_log(self.query.spark)
        log.check_belongs(self.job)
        log.check_stateless("rewound")
        return await plan_log(self.query.spark, log, self.job, self.before)

    async def run(self, options: RewindOptions) -> Rewind:
        """Do the rewind, or with `dry_run` only say what it would do."""
        plan, committed, url = await self.plan(), self.query.committed, self.query.session.store.url
        moves_state = self.record is None and committed != self.target
        result = replace(
            self.query.unchanged(),
            to=self.target.id,
            batch=self.job.batch_id,
            cut=plan.cut,
            written=tuple(plan.write),
            changes=bool(plan) or moves_state,
        )
        if not result.changes:
            return result
        # Asked after the plan: where there is nothing to change, it does not matter whether the query runs.
        refused = self._why_not_stopped(options.stopped)
        if options.dry_run:
            return replace(result, refused=refused or (await self._why_damaged(options) if options.verify else None))
        if refused is not None:
            raise InvalidStateError(refused)
        # With a record, the state is committed already, and only Spark's part is left to do.
        if self.record is None:
            await refuse_damaged(self.query.session, self.target, self.manifest, options.progress)
        record = self.record or await self._commit(moves_state, plan)
        # The state is committed. A batch that is begun now would go on top of it, and Spark's progress is not cut. Who
        # begins one may also have given up this rewind, and not know that the state is another one.
        why = "a rewind did not end: call it again, and then restore()"
        self.query.refusing.enter_context(_refusing(self.query.session, why))
        await self._cut(record, plan)
        log_safely(logging.INFO, "%s: rewound to %s, batch %d, as %s", url, result.to, result.batch, record.new)
        return replace(result, new=record.new, kept_in=record.folder, savepoint=record.savepoint)

    async def _why_damaged(self, options: RewindOptions) -> str | None:
        """Return why the checkpoint cannot become the state again, or None.

        Once it is committed, it is not read again. An error of a store that does not answer is raised: then nobody
        knows whether the checkpoint is intact.
        """
        try:
            if self.record is None:
                await refuse_damaged(self.query.session, self.target, self.manifest, options.progress)
        except (CorruptionError, RetiredError, StoreRefusedError) as error:
            return str(error)
        return None

    def _why_not_stopped(self, stopped: bool) -> str | None:
        """Return why the query cannot be rewound now; None if it can.

        It cannot if the query runs or may run. `stopped` is True if the caller says that it does not run. This counts
        only where nothing can be seen from here.
        """
        last = self.query.last
        running, why = is_running(last)
        # A copied root names the checkpointLocation of the first one, so the folder that would be cut is said.
        query = f"{self.query.session.store.url}: query {last.query_id} with its progress in {self.query.spark.url}"
        if running == "yes":
            return f"{query} runs: {why}; stop it first"
        if running == "unknown" and not stopped:
            return f"{query} may still run: {why}; stop it, then pass stopped=True, or --stopped on the command line"
        return None

    async def _commit(self, moves_state: bool, plan: LogPlan) -> RewindRecord:
        """Record the rewind, keep the present state, and commit the target with a swap."""
        session, spark, committed = self.query.session, self.query.spark, self.query.committed.id
        job = await self._new_job()
        # The id is drawn here, since the record has to name the commit before it is made.
        new = session.draw_id(committed.sequence)
        record = RewindRecord(
            number=await next_number(spark),
            left=committed,
            to=self.target.id,
            new=new,
            savepoint=f"before-rewind-{committed.sequence}-{new.suffix}" if moves_state else None,
            undoes=self.undoes.number if self.undoes else None,
            names=plan.names,
        )
        # The record comes before any change, so that the next call can find out how far this one got.
        await write_record(spark, record)
        if record.savepoint is not None:
            # Before the swap: after it, a cleanup could retire what is left, and there would be no way back.
            await savepoint(session, record.savepoint, CheckpointSelector.parse(committed))
        try:
            await self._roll_back(new, job)
        except (InvalidStateError, RetiredError):
            # A store may say that it refused a swap that took effect.
            if not await self._may_be_committed(new):
                await self._withdraw(record)
            raise
        except ConflictError as error:
            await self._withdraw(record)
            raise ConflictError(f"{error}; the query may run: stop it first, then call again") from None
        return record

    async def _roll_back(self, new: CheckpointId, job: Job) -> None:
        """Commit the target on what was committed when the plan was made.

        A job that has committed since makes the swap fail.
        """
        session = self.query.session
        # The swap would refuse a later commit. What was prepared since would be dropped, though, and the session must
        # not go back to the base.
        session.refuse_late(self.query.since, "the rewind compared objects: call it again")
        session.stand_on(self.query.base)
        try:
            # With the base, since another task of this client may restore or commit before the rollback has the lock.
            await rollback(
                session,
                CheckpointSelector.parse(self.target.id),
                new,
                job,
                base=self.query.base,
                verified=self.target,
            )
        except BaseException:
            # What the caller restored may be older than the base, so that a later commit must not go on from the base.
            if session.standing is self.query.base:
                session.invalidate("rewind() failed: call restore() first")
            raise

    async def _may_be_committed(self, new: CheckpointId) -> bool:
        """Return whether a commit took effect, or nobody can say."""
        store = self.query.session.store
        try:
            return await is_live(store, await read_head(store), new) is not None
        except CheckpointError:
            return True

    async def _new_job(self) -> Job:
        """Return the job of the new commit.

        It has the target's batch, the last driver, and the present place of Spark's files.
        """
        spark = self.job.spark
        if spark is None:
            spark = await spark_progress_at(self.query.spark, self.job, self.before.cut if self.before else {})
        here = None if spark is None else replace(spark, location=self.query.spark.url)
        # The last driver stays: the next call has to see whether that process still runs.
        return replace(self.job, driver=self.query.last.driver, spark=here)

    async def _withdraw(self, record: RewindRecord) -> None:
        """Delete the record and the savepoint of a rewind that did not happen."""
        with suppress(CheckpointError):
            # Another rewind may have taken the number: its record stays.
            if await read_record(self.query.spark, record.number) == record:
                await self.query.spark.delete([record.path])
        if record.savepoint is not None:
            with suppress(CheckpointError):
                await delete_savepoint(self.query.session, record.savepoint)

    async def _cut(self, record: RewindRecord, planned: LogPlan) -> None:
        """Change Spark's progress as planned.

        Change it once more where Spark planned a batch meanwhile.
        """
        plan = planned
        # Twice: Spark may have planned a batch while the first plan was carried out. If it writes once more, it runs.
        for _ in range(2):
            await apply_log_plan(self.query.spark, plan, record.folder)
            plan = await self.plan()
            if not plan:
                return
        raise ConflictError(
            f"{self.query.spark.url}: Spark writes its progress while it is rewound: stop the query, then call again"
        )


@contextmanager
def _refusing(session: Session, why: str) -> Iterator[None]:
    """Refuse every write while the block runs.

    After an error they are refused until somebody restores.
    """
    before = session.standing
    session.invalidate(why)
    refused = session.standing
    try:
        yield
    except BaseException:
        # Also where somebody has restored meanwhile.
        session.invalidate(why)
        raise
    if session.standing is refused:
        session.stand_on(before)
