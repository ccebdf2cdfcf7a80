"""Taking a streaming query back: its state by a new commit, and Spark's progress with it.

    savepoint of what is left → record → compare-and-swap _latest → cut commits/ and offsets/, newest first

The state goes first. Whatever comes to an end after that swap leaves Spark ahead of the state, or its newest batches in
an order in which they can be told from the right ones: a job that is started then is refused, and the same call
finishes the work. What is cut is copied beside, with a record of it, before it is deleted. An undo is a rewind to the
savepoint that puts those files back.
"""

import logging
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    ConflictError,
    IllegalArgumentError,
    InvalidStateError,
)
from checkpointer.history import is_live
from checkpointer.lineage import delete_savepoint, find_target, rollback, savepoint, savepoints
from checkpointer.overview import find
from checkpointer.pointer import reading
from checkpointer.query.log_plan import LogPlan, apply, plan_log
from checkpointer.query.records import Record, last_record, next_number, read_kept, read_record, write_record
from checkpointer.query.running import is_running
from checkpointer.query.spark_log import open_log, read_log
from checkpointer.session import Base, Session
from checkpointer.store import options_for
from checkpointer.store.base import Store
from manifests.model import CheckpointId, Job, Manifest, Ref

logger = logging.getLogger("checkpointer")

To = CheckpointId | str | int
"""What `overview.find` understands, an id, or an epoch."""


@dataclass(frozen=True, slots=True)
class Where:
    """Spark's checkpoint, as the caller gave it; by default where the query had it last."""

    location: str | os.PathLike[str] | None
    storage_options: Mapping[str, Any] | None = field(repr=False)
    root_options: Mapping[str, Any] | None = field(repr=False)
    """What opens the root; taken where Spark's checkpoint is on a store of the same kind."""

    def open(self, root: str, job: Job) -> Store:
        location = self.location or (job.spark.location if job.spark else None)
        if not location:
            raise IllegalArgumentError(
                f"{root}: its checkpoint does not say where that of Spark is: give spark_checkpoint"
            )
        return open_log(location, self.storage_options or options_for(location, root, self.root_options))


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
    savepoint: str | None = None
    """The name that keeps what was left; None where that is the same state."""
    kept_in: str | None = None
    """The folder of Spark's checkpoint that has what was cut; None where nothing was to be done."""
    new: CheckpointId | None = None
    """The new commit; None where nothing was done."""

    @property
    def changes(self) -> bool:
        """Whether anything is to be changed: False where both sides are in step there already."""
        return bool(self.left_batch != self.batch or self.cut or self.written or self.savepoint)


async def rewind(session: Session, to: To, where: Where, *, stopped: bool = False, dry_run: bool = False) -> Rewind:
    """Take state and Spark's progress back to a live checkpoint. See `Checkpointer.rewind`."""
    target = await resolve(session, to)
    async with _opened(session, where) as query:
        attempt = await query.attempt(target, await last_record(query.spark))
        return await attempt.run(stopped=stopped, dry_run=dry_run)


async def undo(session: Session, where: Where, *, stopped: bool = False, dry_run: bool = False) -> Rewind:
    """Put back what the last rewind took away. See `Checkpointer.undo_rewind`."""
    async with _opened(session, where) as query:
        attempt = await query.undoing()
        return await attempt.run(stopped=stopped, dry_run=dry_run)


async def resolve(session: Session, to: To) -> CheckpointId:
    """The checkpoint that is meant. Raises `NotFoundError` or `IllegalArgumentError`."""
    if isinstance(to, bool) or not isinstance(to, CheckpointId | str | int):
        raise IllegalArgumentError(f"expected an id, an epoch or the name of a savepoint, got {to!r:.60}")
    return await find(session, f"epoch={to}" if isinstance(to, int) else str(to))


@asynccontextmanager
async def _opened(session: Session, where: Where) -> AsyncIterator["_Query"]:
    """The query as it is: what is committed, and Spark's checkpoint."""
    base = await session.read_base()
    if base.manifest is None or base.parent is None:
        raise CheckpointNotFoundError(f"{session.store.url}: nothing is committed")
    left = job_of(session, base.manifest)
    spark = where.open(session.store.url, left)
    try:
        yield _Query(session, base, base.parent, left, spark)
    finally:
        await spark.close()


@dataclass(frozen=True, slots=True)
class _Query:
    session: Session
    base: Base
    committed: Ref
    left: Job
    """The batch that is committed."""
    spark: Store

    async def attempt(self, to: CheckpointId, begun: Record | None = None, undoes: Record | None = None) -> "_Attempt":
        """A rewind to a checkpoint, which may be one that was begun; of one that is undone the files come back."""
        ref, manifest = await reading(self.session.store, lambda head: find_target(self.session, head, to))
        if begun is not None and not (begun.new == self.committed.id and ref.id in (begun.new, begun.to)):
            begun = None
        back = {} if undoes is None else await read_kept(self.spark, undoes)
        return _Attempt(self, ref, job_of(self.session, manifest), begun, undoes, back)

    async def undoing(self) -> "_Attempt":
        """What puts back what the last rewind left; where that was an undo which did not come to its end, that one."""
        done = await self._last_done()
        if done.undoes is not None and done.new == self.committed.id:
            unfinished = await self.attempt(done.new, done, await read_record(self.spark, done.undoes))
            if await unfinished.plan():
                return unfinished
        to = done.to if done.savepoint is None else await find(self.session, f"savepoint={done.savepoint}")
        return await self.attempt(to, undoes=done)

    async def _last_done(self) -> Record:
        """The last rewind that came to its commit; later ones that did not have changed nothing."""
        record = await last_record(self.spark)
        while record is not None and not await self._happened(record):
            record = await read_record(self.spark, record.number - 1)
        if record is None:
            raise InvalidStateError(f"{self.spark.url}: no rewind was done here: there is nothing to undo")
        return record

    async def _happened(self, record: Record) -> bool:
        """Whether its commit is in the history; of what was retired since, nobody can tell."""
        store, pointer = self.session.store, self.base.head.pointer
        if await reading(store, lambda head: is_live(store, head, record.new)):
            return True
        if pointer is not None and pointer.boundary > record.new.sequence:
            raise InvalidStateError(
                f"{self.spark.url}/{record.folder}: the history does not reach back to the commit of this rewind, "
                f"{record.new}: rewind to {record.savepoint or record.to} instead"
            )
        return False


def job_of(session: Session, manifest: Manifest) -> Job:
    if manifest.job is None:
        raise InvalidStateError(
            f"{session.store.url}: {manifest.id} was not written by a streaming query: `rollback` goes back without one"
        )
    return manifest.job


@dataclass(frozen=True, slots=True)
class _Attempt:
    query: _Query
    target: Ref
    job: Job
    begun: Record | None
    """What an earlier call noted that got at least as far as its commit."""
    undoes: Record | None
    back: Mapping[str, bytes]

    async def plan(self) -> LogPlan:
        log = await read_log(self.query.spark)
        log.check_belongs(self.job)
        log.check_stateless("rewound")
        return await plan_log(self.query.spark, log, self.job, self.back)

    async def run(self, *, stopped: bool, dry_run: bool) -> Rewind:
        plan, committed, url = await self.plan(), self.query.committed, self.query.session.store.url
        moves = self.begun is None and committed != self.target
        result = Rewind(
            left=committed.id,
            left_batch=self.query.left.batch_id,
            to=self.target.id,
            batch=self.job.batch_id,
            query_id=self.job.query_id,
            spark_checkpoint=self.query.spark.url,
            cut=plan.cut,
            written=tuple(plan.write),
            savepoint=f"before-rewind-{committed.id.sequence}" if moves else None,
        )
        if dry_run or not result.changes:
            return result
        self._refuse_running(stopped)
        record = self.begun or await self._commit(result.savepoint)
        await self._cut(record, plan)
        logger.info("%s: rewound to %s, batch %d, as %s", url, result.to, result.batch, record.new)
        return replace(result, new=record.new, kept_in=record.folder)

    def _refuse_running(self, stopped: bool) -> None:
        left = self.query.left
        running, why = is_running(left)
        query = f"{self.query.session.store.url}: query {left.query_id}"
        if running == "yes":
            raise InvalidStateError(f"{query} runs ({why}): stop it first")
        if running == "unknown" and not stopped:
            raise InvalidStateError(
                f"{query} may still run: {why}; stop it, then say so: stopped=True, or --stopped on the command line"
            )

    async def _commit(self, name: str | None) -> Record:
        """The state's part: one swap. Before it nothing has changed."""
        session, spark, committed = self.query.session, self.query.spark, self.query.committed.id
        record = Record(
            number=await next_number(spark),
            root=session.store.url,
            left=committed,
            to=self.target.id,
            new=session.draw_id(committed.sequence),
            savepoint=name,
            undoes=self.undoes.number if self.undoes else None,
        )
        if name is not None:
            await self._keep_left(name)
        await write_record(spark, record)
        session.stand_on(self.query.base)
        try:
            await rollback(session, self.target.id, record.new)
        except ConflictError as error:
            await self._withdraw(record)
            raise ConflictError(f"{error}; the query may run: stop it first, then call again") from None
        return record

    async def _keep_left(self, name: str) -> None:
        session, committed = self.query.session, self.query.committed.id
        kept = {savepoint.name: savepoint.id for savepoint in await savepoints(session)}
        if name not in kept:
            await savepoint(session, name, committed)
        elif kept[name] != committed:
            raise InvalidStateError(f"{session.store.url}: savepoint {name!r} keeps {kept[name]}: delete it first")

    async def _withdraw(self, record: Record) -> None:
        """Take away the notes of a rewind that did not happen."""
        with suppress(CheckpointError):
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
