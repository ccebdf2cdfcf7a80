"""One user of one root: what it restored, how it moves the pointer on top of that, and how a zombie is fenced.

A session belongs to one process and lives on the library's event loop. It does one writing thing at a time.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyspark_checkpointer import runtime
from pyspark_checkpointer.checkpoint import history, metadata
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop, read_consistent, read_head, successor
from pyspark_checkpointer.checkpoint.liveness import show_driver
from pyspark_checkpointer.checkpoint.metering import Reports
from pyspark_checkpointer.checkpoint.metrics import MetricsCallback
from pyspark_checkpointer.checkpoint.migrated import Migrated
from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    FencedError,
    InvalidStateError,
    OutcomeUnknownError,
    RetiredError,
)
from pyspark_checkpointer.manifests.model import CheckpointId, Job, Manifest, Pointer, Ref, Writer
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.storage.conditional_write_check import probe

logger = logging.getLogger("pyspark_checkpointer")

PlanSwap = Callable[[Head, Pointer], Awaitable[Pointer | None]]
"""What to write on a version, given a pointer that is its successor in this writer's name."""


@dataclass(frozen=True, slots=True)
class Base:
    """What a session stands on: a version of `_latest` and the checkpoint that was committed in it.

    `migrated` is what the next commit starts from instead, where a migration is pending.
    """

    head: Head
    manifest: Manifest | None
    migrated: Migrated | None = None

    @property
    def parent(self) -> Ref | None:
        return self.head.committed


class Session:
    """What was restored, whether this user has taken over, and what runs in the background."""

    def __init__(self, store: Store, host: Host, *, max_chain: int, metrics: MetricsCallback | None = None) -> None:
        self.store = store
        self.host = host
        self.reports = Reports(store.url, host, metrics)
        self.max_chain = max_chain
        self.lock = asyncio.Lock()
        self._base: Base | None = None
        self._invalid: str | None = None
        self._viewed: CheckpointId | None = None
        self._instance = host.token(32)
        self._process = os.getpid()
        self._forks = runtime.forks()
        self._fenced: FencedError | None = None
        self._probed = False
        self._background: asyncio.Task[object] | None = None

    @property
    def is_of_this_process(self) -> bool:
        """Whether no fork came between: a child process has a copy of the session, whose event loop it has not."""
        return self._process == os.getpid()

    # ---- what the session stands on ----------------------------------------------------------------------------

    async def base(self) -> Base:
        """Return what was restored; the committed checkpoint as it is now if nothing was."""
        self.check_may_write()
        if self._viewed is not None:
            raise InvalidStateError(
                f"{self.store.url}: {self._viewed} was restored, which is not the committed checkpoint: rollback(to=…) "
                "makes it so, also before a migration of it; restore() goes on from the committed one"
            )
        if self._base is None:
            self._base = await self.read_base()
        return self._base

    async def rollback_base(self) -> Base:
        """What to roll back from: like `base`, but for a manifest that is not needed, since it may be damaged."""
        self.check_may_write()
        return self._base or Base(await read_head(self.store), None)

    def check_may_write(self) -> None:
        """Raise if this session was fenced, or has to restore first."""
        if self._fenced is not None:
            raise self._fenced
        if self._invalid is not None:
            raise InvalidStateError(f"{self.store.url}: {self._invalid}")

    async def read_base(self) -> Base:
        """Return the committed checkpoint as it is now: `_latest`, its manifest and its segments."""
        return await read_consistent(self.store, self.base_in)

    async def base_in(self, head: Head) -> Base:
        """Return the committed checkpoint of one version of `_latest`."""
        ref = head.committed
        return Base(head, None if ref is None else await metadata.read_manifest(self.store, self.host, ref))

    def rebase(self, base: Base) -> None:
        self._base, self._invalid, self._viewed = base, None, None

    def view_only(self, checkpoint: CheckpointId) -> None:
        """Look at a checkpoint that is not the committed one: nothing can be saved on top of it."""
        self._base, self._invalid, self._viewed = None, None, checkpoint

    def rebase_on_commit(self, head: Head, ref: Ref, manifest: Manifest) -> None:
        """Go on from a checkpoint that was committed, unless somebody else has taken over since."""
        if head.committed == ref and self._owns(head):
            self.rebase(Base(head, manifest))
        else:
            self.invalidate(f"{ref.id} was committed, and another writer took over since: call restore() first")

    def invalidate(self, why: str) -> None:
        """From now on every write is refused until restore() was called."""
        self._base, self._invalid = None, why

    def draw_id(self, above: int) -> CheckpointId:
        """A new id for an attempt on a version whose committed sequence is `above`."""
        return CheckpointId(above + 1, self.host.token(8))

    async def new_id(self) -> CheckpointId:
        return self.draw_id((await self.base()).head.sequence)

    # ---- one thing at a time, some of it in the background -----------------------------------------------------

    async def settle(self) -> None:
        """Wait for the commit that runs in the background, and raise what became of it.

        A failure is raised again by the next call, until `told` says that it reached a caller: whoever waits here may
        have been given up meanwhile.
        """
        task = self._background
        if task is None:
            return
        try:
            await asyncio.shield(task)  # who stops waiting does not stop the commit
        finally:
            if task.done() and (task.cancelled() or task.exception() is None):
                self._forget(task)

    def told(self, error: BaseException) -> None:
        """Forget a commit that failed in the background, now that its error has reached a caller."""
        task = self._background
        if task is not None and task.done() and not task.cancelled() and task.exception() is error:
            self._forget(task)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        if self._background is task:
            self._background = None
            runtime.was_told(task)

    async def in_background(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Go on with `work` without the caller, after what already runs there; not at all if that failed.

        A process that ends finishes it first.
        """
        try:
            while self._background is not None:  # another caller may be first to begin its own
                await self.settle()
        except BaseException:
            work.close()
            raise
        self._background = asyncio.ensure_future(work)
        if not runtime.finish_at_exit(self._background, f"{self.store.url}: {name}"):
            await self.settle()  # nobody comes after this who could wait

    async def close(self) -> None:
        try:
            await self.settle()
        finally:
            await self.store.close()
            await self.reports.delivered()

    # ---- moving the pointer ------------------------------------------------------------------------------------

    async def swap_pointer(self, base: Base, attempt: Ref, plan: PlanSwap) -> Head:
        """Swap in this session's name, taking over with its first swap, always on top of what was restored.

        Succeeds once a version shows `attempt` committed, or the planned pointer was written. Whatever else moved the
        pointer meanwhile was retention or a savepoint, or it is the end of this writer.
        """
        await self.prove_conditions(base.head)

        async def step(head: Head) -> Pointer | None:
            if head.committed == attempt:
                return None
            if not self._follows(base, head):
                if await history.became_live(self.store, head, attempt):
                    return None
                raise await self._fencing_error(base, head, attempt)
            return await plan(head, successor(head, self._writer_on(head), self.host.token(32)))

        try:
            head = await cas_loop(self.store, base.head, step)
        except FencedError as error:
            self._fenced = error
            raise
        except RetiredError:
            raise
        except ConflictError as error:
            self.invalidate(f"call restore() first: {error}")
            raise
        except BaseException as error:
            if isinstance(error, OutcomeUnknownError) or not isinstance(error, CheckpointError):
                self.invalidate("the outcome of the last swap is unknown: call restore() first, which tells")
            raise
        if self._owns(head) and not self._owns(base.head):
            logger.info("%s: this writer took over (as writer %d)", self.store.url, self._writer_on(head).epoch)
        if not self._owns(head) and self._owns(base.head):
            who = await self._describe(base, head, attempt)
            self._fenced = FencedError(
                f"{self.store.url}: {attempt.id} was committed, but another writer took over since, {who}: "
                "stop this job"
            )
        return head

    def _owns(self, head: Head) -> bool:
        """Return whether this session was the last to take over."""
        return head.writer is not None and head.writer.instance == self._instance

    def _writer_on(self, head: Head) -> Writer:
        if head.writer is not None and self._owns(head):
            return head.writer
        return Writer((head.writer.epoch if head.writer else 0) + 1, self._instance)

    def _follows(self, base: Base, head: Head) -> bool:
        """Return whether nothing but retention and savepoints came between what was restored and `head`."""
        return head.committed == base.head.committed and (head.writer == base.head.writer or self._owns(head))

    async def _fencing_error(self, base: Base, head: Head, attempt: Ref) -> CheckpointError:
        now = head.committed.id if head.committed else None
        if self._owns(head) and (self._base is None or self._base.parent != head.committed):
            return ConflictError(
                f"{self.store.url}: {now} was committed after all, by an attempt whose outcome was unknown: "
                f"{attempt.id} was not committed; {metadata.GO_ON}"
            )
        if self._owns(head):
            return InvalidStateError(
                f"{self.store.url}: {attempt.id} was begun before {now} was committed here: begin another attempt"
            )
        if not self._owns(base.head):
            return ConflictError(
                f"{self.store.url}: {base.parent.id if base.parent else None} was restored, but another writer took "
                f"over since, {await self._describe(base, head, attempt)}, and {now} is committed: {attempt.id} was "
                f"not; {metadata.GO_ON}"
            )
        return FencedError(
            f"{self.store.url}: another writer has taken over, {await self._describe(base, head, attempt)}, and {now} "
            f"is committed: {attempt.id} was not committed; stop this job"
        )

    async def _describe(self, base: Base, head: Head, attempt: Ref) -> str:
        """Say who writes now and since when, as far as the first checkpoint of it that can be read tells."""
        who = f"writer {head.writer.epoch if head.writer else 0}"
        for ref in (head.committed, head.prepared):
            if ref is None or ref in (base.head.committed, base.head.prepared, attempt):
                continue
            with suppress(CheckpointError):  # the news is that somebody else writes; this is no more than a help
                manifest = await metadata.read_manifest_alone(self.store, ref)
                who += _show(manifest, None if self._is_by_hand(manifest.job, base) else manifest.job)
                break
        if runtime.forks() > self._forks:
            who += " (this process was forked meanwhile: a child process that commits to the same root takes over)"
        return who

    def _is_by_hand(self, job: Job | None, base: Base) -> bool:
        """Return whether a checkpoint of another writer is of a batch that it did not run itself.

        What is committed by hand on top of a query's checkpoint, or brings one back, names the batch whose state it
        has: one of this writer's own run, or one that was committed when this writer restored.
        """
        last = base.manifest.job if base.manifest is not None else None
        if job is None or last is None or (job.query_id, job.run_id) != (last.query_id, last.run_id):
            return False
        return self._owns(base.head) or job.batch_id <= last.batch_id

    async def prove_conditions(self, head: Head) -> None:
        """Refuse a store that ignores conditions, when a root is about to be created on it."""
        if head.pointer is None and self.store.fencing and not self._probed:
            await probe(self.store)
            self._probed = True


def _show(manifest: Manifest, job: Job | None) -> str:
    """Return the query, run and process that wrote a checkpoint, and when, as far as it says so."""
    told = ["no streaming query"]
    if job is not None:
        told = [f"query {job.query_id:.80}", f"run {job.run_id:.80}"]
        told += [] if job.driver is None else [show_driver(job.driver)]
    if manifest.created is not None:
        told.append(f"since {manifest.created.isoformat(timespec='seconds')} at the latest")
    return f" ({', '.join(told)})" if told else ""
