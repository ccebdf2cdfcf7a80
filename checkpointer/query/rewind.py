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
from checkpointer.query.records import Record, last_record, read_kept, write_record
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
    wanted = await resolve(session, to)
    async with _opened(session, where, wanted) as attempt:
        return await attempt.run(stopped=stopped, dry_run=dry_run)


async def resolve(session: Session, to: To) -> CheckpointId:
    """The checkpoint that is meant. Raises `NotFoundError` or `IllegalArgumentError`."""
    if isinstance(to, bool) or not isinstance(to, CheckpointId | str | int):
        raise IllegalArgumentError(f"expected an id, an epoch or the name of a savepoint, got {to!r:.60}")
    return await find(session, f"epoch={to}" if isinstance(to, int) else str(to))


async def undo(session: Session, where: Where, *, stopped: bool = False, dry_run: bool = False) -> Rewind:
    """Put back what the last rewind took away. See `Checkpointer.undo_rewind`."""
    async with _opened(session, where, None) as attempt:
        return await attempt.run(stopped=stopped, dry_run=dry_run)


@asynccontextmanager
async def _opened(session: Session, where: Where, to: CheckpointId | None) -> AsyncIterator["_Attempt"]:
    """What is committed, Spark's checkpoint, and what to go to: `to`, or back to what the last rewind left."""
    base = await session.read_base()
    if base.manifest is None:
        raise CheckpointNotFoundError(f"{session.store.url}: nothing is committed")
    left = job_of(session, base.manifest)
    spark = where.open(session.store.url, left)
    try:
        record, back = await last_record(spark), {}
        if to is None:
            record = await _happened(session, spark, record)
            to, back = await _before(session, record), await read_kept(spark, record)
        ref, manifest = await reading(session.store, lambda head: find_target(session, head, to))
        yield _Attempt(session, base, left, spark, record, ref, job_of(session, manifest), back)
    finally:
        await spark.close()


async def _happened(session: Session, spark: Store, record: Record | None) -> Record:
    if record is None:
        raise InvalidStateError(f"{spark.url}: no rewind was begun here: there is nothing to undo")
    if not await reading(session.store, lambda head: is_live(session.store, head, record.new)):
        raise InvalidStateError(
            f"{spark.url}/{record.folder}: this rewind did not come to its commit {record.new}, or that was retired "
            f"since: rewind to {record.savepoint or record.to} instead"
        )
    return record


async def _before(session: Session, record: Record) -> CheckpointId:
    """What a rewind left, which its savepoint keeps; what it went to where both are the same."""
    return record.to if record.savepoint is None else await find(session, f"savepoint={record.savepoint}")


def job_of(session: Session, manifest: Manifest) -> Job:
    if manifest.job is None:
        raise InvalidStateError(
            f"{session.store.url}: {manifest.id} was not written by a streaming query: `rollback` goes back without one"
        )
    return manifest.job


@dataclass(frozen=True, slots=True)
class _Attempt:
    session: Session
    base: Base
    left: Job
    spark: Store
    record: Record | None
    """The last rewind: the one to undo, or perhaps one to finish."""
    target: Ref
    job: Job
    back: Mapping[str, bytes]

    async def run(self, *, stopped: bool, dry_run: bool) -> Rewind:
        log = await read_log(self.spark)
        log.check_belongs(self.job)
        log.check_stateless("rewound")
        plan = await plan_log(self.spark, log, self.job, self.back)
        committed = self.base.parent
        assert committed is not None
        begun = self.record if self._was_begun(committed) else None
        moves = begun is None and committed != self.target
        result = Rewind(
            left=committed.id,
            left_batch=self.left.batch_id,
            to=self.target.id,
            batch=self.job.batch_id,
            query_id=self.job.query_id,
            spark_checkpoint=self.spark.url,
            cut=plan.cut,
            written=tuple(plan.write),
            savepoint=f"before-rewind-{committed.id.sequence}" if moves else None,
        )
        if dry_run or not (plan or moves):
            return result
        self._refuse_running(stopped)
        record = begun or await self._commit(committed, result.savepoint)
        await self._cut(record, plan)
        logger.info("%s: rewound to %s, batch %d, as %s", self.session.store.url, result.to, result.batch, record.new)
        return replace(result, new=record.new, kept_in=record.folder)

    def _was_begun(self, committed: Ref) -> bool:
        """Whether the last rewind went where this one goes, and got at least as far as its commit."""
        record = self.record
        return record is not None and record.new == committed.id and self.target.id in (record.new, record.to)

    def _refuse_running(self, stopped: bool) -> None:
        running, why = is_running(self.left)
        query = f"{self.session.store.url}: query {self.left.query_id}"
        if running == "yes":
            raise InvalidStateError(f"{query} runs ({why}): stop it first")
        if running == "unknown" and not stopped:
            raise InvalidStateError(
                f"{query} may still run: {why}; stop it, then say so: stopped=True, or --stopped on the command line"
            )

    async def _commit(self, committed: Ref, name: str | None) -> Record:
        """The state's part: one swap. Before it nothing has changed."""
        session = self.session
        number = 1 + (0 if (last := await last_record(self.spark)) is None else last.number)
        new = session.draw_id(committed.id.sequence)
        record = Record(number, session.store.url, committed.id, self.target.id, new, name)
        kept = {s.name: s.id for s in await savepoints(session)}
        if name is not None and name not in kept:
            await savepoint(session, name, committed.id)
        elif name is not None and kept[name] != committed.id:
            raise InvalidStateError(f"{session.store.url}: savepoint {name!r} keeps {kept[name]}: delete it first")
        await write_record(self.spark, record)
        session.stand_on(self.base)
        try:
            await rollback(session, self.target.id, new)
        except ConflictError as error:
            await self._withdraw(record)
            raise ConflictError(f"{error}; the query may run: stop it first, then call again") from None
        return record

    async def _withdraw(self, record: Record) -> None:
        """Take away the notes of a rewind that did not happen."""
        with suppress(CheckpointError):
            await self.spark.delete([record.path])
        if record.savepoint is not None:
            with suppress(CheckpointError):
                await delete_savepoint(self.session, record.savepoint)

    async def _cut(self, record: Record, planned: LogPlan) -> None:
        """Spark's part. A batch that was planned since is cut too."""
        plan = planned
        for _ in range(2):
            await apply(self.spark, plan, record.folder)
            plan = await plan_log(self.spark, await read_log(self.spark), self.job, self.back)
            if not plan:
                return
        raise ConflictError(
            f"{self.spark.url}: Spark writes its progress while it is rewound: stop the query, then call again"
        )
