"""Taking a streaming query back: its state by a new commit, and Spark's progress with it.

    record → savepoint of what is left → compare-and-swap _latest → cut commits/ and offsets/, newest first

The state goes first. Until the last file is cut, Spark is ahead of the state: a job that is started then is refused,
and the same call finishes the work. What is cut is copied beside before it is deleted. An undo is a rewind to the
savepoint that puts those files back.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

from pyspark_checkpointer.admin.savepoints import delete_savepoint, rollback, savepoint
from pyspark_checkpointer.admin.streaming.log_edit import LogPlan, apply
from pyspark_checkpointer.admin.streaming.log_plan import Before, plan_log, progress_of
from pyspark_checkpointer.admin.streaming.offset_log import read_log
from pyspark_checkpointer.admin.streaming.rewind_record import (
    Record,
    next_number,
    read_before,
    read_record,
    read_records,
    write_record,
)
from pyspark_checkpointer.admin.streaming.spark_location import SparkCheckpointLocation, job_of
from pyspark_checkpointer.checkpoint.history import is_live
from pyspark_checkpointer.checkpoint.latest import Head, read_consistent
from pyspark_checkpointer.checkpoint.liveness import is_running
from pyspark_checkpointer.checkpoint.require_intact import refuse_damaged
from pyspark_checkpointer.checkpoint.resolve import CheckpointSelector, find, read_live
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.checkpoint.standing import Base
from pyspark_checkpointer.display import count, cut, facts
from pyspark_checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConflictError,
    CorruptionError,
    InvalidStateError,
    NotFoundError,
    RetiredError,
    StoreRefusedError,
)
from pyspark_checkpointer.manifests.model import CheckpointId, Job, Manifest, Ref
from pyspark_checkpointer.runtime.host import Progress
from pyspark_checkpointer.storage.base import Store

logger = logging.getLogger("pyspark_checkpointer")


@dataclass(frozen=True, slots=True)
class Rewind:
    """What a rewind changed, or would change. Paths are those in Spark's checkpoint."""

    left: CheckpointId
    """The checkpoint that was committed before."""
    left_batch: int
    to: CheckpointId
    """The checkpoint whose content is the state now."""
    batch: int
    """Its batch: Spark goes on with the next one."""
    query_id: str
    spark_checkpoint: str
    cut: tuple[str, ...]
    """Files that were taken out of Spark's progress, in that order."""
    written: tuple[str, ...]
    """Files that were put there: back, or anew from what the checkpoint recorded."""
    changes: bool
    """Whether anything was to be changed: False where both sides were there already."""
    savepoint: str | None = None
    """The name that keeps what was left; None where that is the same state, or nothing was done."""
    kept_in: str | None = None
    """The folder of Spark's checkpoint that has what was cut; None where nothing was to be done."""
    new: CheckpointId | None = None
    """The new commit; None where nothing was done."""
    refused: str | None = None
    """Of a dry run: why the same call would be refused now without it, such as that the query runs; None where not."""

    def __repr__(self) -> str:
        return f"Rewind({', '.join(f'{name} {value}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return facts("Rewind", self._facts())

    def _facts(self) -> dict[str, object]:
        """Return what there is to say, in few words."""
        if not self.changes:
            return {"query": self.query_id, "at batch": self.batch, "changes": "nothing"}
        said: dict[str, object] = {
            "query": self.query_id,
            "batch": f"{self.left_batch} → {self.batch}",
            "state": f"{self.left} → {self.to}",
            "in": cut(self.spark_checkpoint, 200),
            "cut": count(len(self.cut), "file"),
            "written": count(len(self.written), "file"),
            "committed as": self.new or "nothing yet",
        }
        if self.refused is not None:
            said["refused"] = cut(self.refused, 200)
        return said | ({"savepoint": repr(self.savepoint)} if self.savepoint else {})


@dataclass(frozen=True, slots=True)
class Options:
    """How a rewind is to be done, besides where to."""

    stopped: bool = False
    """Somebody says that the query does not run. What can be seen running is refused all the same."""
    dry_run: bool = False
    verify: bool = True
    """Whether a dry run reads the target too. Before a rewind that reads it in any case, its plan need not."""
    progress: Progress | None = None
    """Told bytes while the target is read."""


async def rewind(session: Session, to: CheckpointSelector, where: SparkCheckpointLocation, options: Options) -> Rewind:
    """Take state and Spark's progress back to a live checkpoint. See `Checkpointer.rewind`."""
    target = await find(session, to)
    async with _opened(session, where) as query:
        return await (await query.attempt(target)).run(options)


async def undo(session: Session, where: SparkCheckpointLocation, options: Options) -> Rewind:
    """Put back what the last rewind took away. See `Checkpointer.undo_rewind`."""
    async with _opened(session, where) as query:
        attempt = await query.undoing()
        return query.as_it_is() if attempt is None else await attempt.run(options)


@asynccontextmanager
async def _opened(session: Session, where: SparkCheckpointLocation) -> AsyncIterator["_Query"]:
    """The query as it is: what is committed, and Spark's checkpoint."""
    base = await session.read_base()
    if base.manifest is None or base.parent is None:
        raise CheckpointNotFoundError(f"{session.store.url}: nothing is committed")
    last = job_of(session, base.manifest)
    spark = where.open(session.store.url, last)
    try:
        yield _Query(session, base, base.parent, last, spark, await read_records(spark))
    finally:
        await spark.close()


@dataclass(frozen=True, slots=True)
class _Query:
    session: Session
    base: Base
    committed: Ref
    last: Job
    """The batch that is committed."""
    spark: Store
    records: list[Record]
    """The rewinds that were begun so far, newest first."""

    def as_it_is(self) -> Rewind:
        """Return what there is to say where nothing is to be done."""
        batch, ref = self.last.batch_id, self.committed.id
        return Rewind(ref, batch, ref, batch, self.last.query_id, self.spark.url, cut=(), written=(), changes=False)

    async def attempt(self, to: CheckpointId) -> "_Attempt":
        """A rewind to a checkpoint: a new one, or the last one where that led there and may not have ended."""
        ref, manifest = await self._find(to)
        job = job_of(self.session, manifest)
        begun = next((record for record in self.records if record.goes(self.committed.id, to)), None)
        if job.spark is None and begun is None and any([await self._happened(record) for record in self.records]):
            raise InvalidStateError(
                f"{self.session.store.url}: {to} did not record the offsets of its batch, and those of Spark may be of "
                "another one since it was rewound: only undo goes back there"
            )
        return _Attempt(self, ref, manifest, job, begun, None, None)

    async def undoing(self) -> "_Attempt | None":
        """What undoes the last rewind, or finishes that; None where the last one was an undo, and is done."""
        for record in self.records:
            if not await self._happened(record):
                continue  # it changed nothing
            if record.undoes is None:
                to = record.to if record.savepoint is None else await self._left_by(record, record.savepoint)
                ref, manifest = await self._find(to)
                job, before = job_of(self.session, manifest), await read_before(self.spark, record)
                return _Attempt(self, ref, manifest, job, None, record, before)
            undone = await read_record(self.spark, record.undoes)
            if record.new != self.committed.id or undone is None:
                return None
            ref, manifest = await self._find(record.new)
            job, before = job_of(self.session, manifest), await read_before(self.spark, undone)
            unfinished = _Attempt(self, ref, manifest, job, record, undone, before)
            return unfinished if await unfinished.plan() else None
        raise InvalidStateError(f"{self.spark.url}: no rewind was done here: there is nothing to undo")

    async def _find(self, to: CheckpointId) -> tuple[Ref, Manifest]:
        wanted = CheckpointSelector.parse(to)
        return await read_consistent(self.session.store, lambda head: read_live(self.session, head, wanted))

    async def _left_by(self, record: Record, savepoint: str) -> CheckpointId:
        try:
            return await find(self.session, CheckpointSelector("savepoint", savepoint))
        except NotFoundError:  # somebody deleted the name
            return record.left

    async def _happened(self, record: Record) -> bool:
        """Return whether its commit is in the history; of what was retired since, nobody can tell."""
        store = self.session.store

        async def look(head: Head) -> bool | None:
            if await is_live(store, head, record.new):
                return True
            return None if head.pointer is not None and head.pointer.boundary > record.new.sequence else False

        happened = await read_consistent(store, look)
        if happened is None:
            raise InvalidStateError(
                f"{self.spark.url}/{record.folder}: the history does not reach back to the commit of this rewind, "
                f"{record.new}: rewind to {record.savepoint or record.to} instead"
            )
        return happened


@dataclass(frozen=True, slots=True)
class _Attempt:
    query: _Query
    target: Ref
    manifest: Manifest
    job: Job
    begun: Record | None
    """What an earlier call noted that got at least as far as its commit."""
    undoes: Record | None
    before: Before | None
    """What an undo goes back to."""

    async def plan(self) -> LogPlan:
        log = await read_log(self.query.spark)
        log.check_belongs(self.job)
        log.check_stateless("rewound")
        return await plan_log(self.query.spark, log, self.job, self.before)

    async def run(self, options: Options) -> Rewind:
        plan, committed, url = await self.plan(), self.query.committed, self.query.session.store.url
        moves = self.begun is None and committed != self.target
        result = replace(
            self.query.as_it_is(),
            to=self.target.id,
            batch=self.job.batch_id,
            cut=plan.cut,
            written=tuple(plan.write),
            changes=bool(plan) or moves,
        )
        if not result.changes:
            return result
        refused = self._why_running(options.stopped)
        if options.dry_run:
            return replace(result, refused=refused or (await self._damage(options) if options.verify else None))
        if refused is not None:
            raise InvalidStateError(refused)
        if self.begun is None:
            await refuse_damaged(self.query.session, self.target, self.manifest, options.progress)
        record = self.begun or await self._commit(moves, plan)
        await self._cut(record, plan)
        logger.info("%s: rewound to %s, batch %d, as %s", url, result.to, result.batch, record.new)
        return replace(result, new=record.new, kept_in=record.folder, savepoint=record.savepoint)

    async def _damage(self, options: Options) -> str | None:
        """Return why the checkpoint cannot be the state again. Once that is committed, nothing asks.

        A store that does not answer is another matter: then nobody knows, and its error is raised.
        """
        try:
            if self.begun is None:
                await refuse_damaged(self.query.session, self.target, self.manifest, options.progress)
        except (CorruptionError, RetiredError, StoreRefusedError) as error:
            return str(error)
        return None

    def _why_running(self, stopped: bool) -> str | None:
        """Why the query cannot be rewound now, as it runs or may run. What can be seen is not for the caller to say."""
        last = self.query.last
        running, why = is_running(last)
        query = f"{self.query.session.store.url}: query {last.query_id}"
        if running == "yes":
            return f"{query} runs: {why}; stop it first"
        if running == "unknown" and not stopped:
            return f"{query} may still run: {why}; stop it, then say so: stopped=True, or --stopped on the command line"
        return None

    async def _commit(self, moves: bool, plan: LogPlan) -> Record:
        """The state's part: one swap. Before it nothing has changed."""
        session, spark, committed = self.query.session, self.query.spark, self.query.committed.id
        job = await self._job()
        new = session.draw_id(committed.sequence)
        record = Record(
            number=await next_number(spark),
            left=committed,
            to=self.target.id,
            new=new,
            savepoint=f"before-rewind-{committed.sequence}-{new.suffix}" if moves else None,
            undoes=self.undoes.number if self.undoes else None,
            names=plan.names,
        )
        await write_record(spark, record)
        if record.savepoint is not None:
            await savepoint(session, record.savepoint, CheckpointSelector.parse(committed))
        session.rebase(self.query.base)
        try:
            await rollback(session, CheckpointSelector.parse(self.target.id), new, job, verified=self.target)
        except ConflictError as error:
            await self._withdraw(record)
            raise ConflictError(f"{error}; the query may run: stop it first, then call again") from None
        return record

    async def _job(self) -> Job:
        """Return the batch that the state is at then, and where the query's driver and Spark's checkpoint were last."""
        spark = self.job.spark
        if spark is None:
            spark = await progress_of(self.query.spark, self.job, self.before.cut if self.before else {})
        here = None if spark is None else replace(spark, location=self.query.spark.url)
        return replace(self.job, driver=self.query.last.driver, spark=here)

    async def _withdraw(self, record: Record) -> None:
        """Take away the notes of a rewind that did not happen."""
        with suppress(CheckpointError):
            if await read_record(self.query.spark, record.number) == record:
                await self.query.spark.delete([record.path])
        if record.savepoint is not None:
            with suppress(CheckpointError):
                await delete_savepoint(self.query.session, record.savepoint)

    async def _cut(self, record: Record, planned: LogPlan) -> None:
        """Spark's part. A batch that was planned since is cut too."""
        plan = planned
        for _ in range(2):
            await apply(self.query.spark, plan, record.folder)
            plan = await self.plan()
            if not plan:
                return
        raise ConflictError(
            f"{self.query.spark.url}: Spark writes its progress while it is rewound: stop the query, then call again"
        )
