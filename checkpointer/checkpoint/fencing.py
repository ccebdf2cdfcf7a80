"""Decide who owns the pointer, and explain it to a zombie.

A zombie is a writer that lost the pointer. Every commit of a writer goes through `Owner.swap`. It asks `Owner.follows`
on each version of the pointer that it meets. A writer that took over left another instance there. Then the answer is
no, and `Owner.explain` names that writer. The standing of a session says what it restored, and whether it may save on
top of it.
"""

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyspark_checkpointer import runtime
from pyspark_checkpointer.checkpoint import history
from pyspark_checkpointer.checkpoint.latest import Head, cas_loop
from pyspark_checkpointer.checkpoint.liveness import show_driver
from pyspark_checkpointer.checkpoint.metadata import GO_ON, read_manifest_alone
from pyspark_checkpointer.checkpoint.migrated import Migrated
from pyspark_checkpointer.errors import (
    CheckpointError,
    ConflictError,
    FencedError,
    IllegalArgumentError,
    InvalidStateError,
)
from pyspark_checkpointer.manifests.model import CheckpointId, Job, Manifest, Pointer, Ref, Writer
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.storage.compare_and_swap import UndecidedError

EditPointer = Callable[[Head, Pointer], Awaitable[Pointer | None]]
"""Function that plans a swap.

It gets a version, and a pointer that is the version's successor in this writer's name. It returns what to write.
"""


@dataclass(frozen=True, slots=True)
class Base:
    """A version of `_latest`, and the checkpoint that was committed in it.

    The next attempt goes on top of it. If a migration is pending, the next commit starts from `migrated` instead.
    """

    head: Head
    manifest: Manifest | None
    migrated: Migrated | None = None

    @property
    def parent(self) -> Ref | None:
        """The committed checkpoint; None before the first."""
        return self.head.committed


@dataclass(frozen=True, slots=True)
class ViewOnly:
    """A checkpoint was restored that is not the newest one.

    Saving is refused: it is not the committed checkpoint, or a damaged checkpoint is prepared on top of it.
    """

    checkpoint: CheckpointId
    replaces_damaged: bool
    """True if a newer one is damaged: the committed one, or the one that is prepared."""

    @property
    def why(self) -> str:
        """Return what happened and what to do."""
        if self.replaces_damaged:
            return (
                f"{self.checkpoint} was restored because a newer one is damaged: go on from it with rollback(to=…), "
                "also before a migration; or bring back what is damaged from a copy, and call restore()"
            )
        return (
            f"{self.checkpoint} was restored, and it is not the committed checkpoint: make it so with rollback(to=…), "
            "also before a migration; or call restore() to go on from the committed one"
        )


@dataclass(frozen=True, slots=True)
class MustRestore:
    """The restored checkpoint may be out of date.

    `why` says what happened and what to do.
    """

    why: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """Another writer took over. This is final: a restore does not change it."""

    error: FencedError


Standing = Base | ViewOnly | MustRestore | Fenced | None
"""The standing of a session; None if nothing was restored yet.

Then the first attempt reads the pointer itself.
"""


def inherited(standing: Standing) -> Standing:
    """Return the standing with which a forked child begins.

    The program goes on with a copy of what its parent has restored, such as a map. On top of a checkpoint that another
    process has committed since, that copy would replace the checkpoint without a word.
    """
    # The transformed objects lie above a store of the parent, whose connections do not survive the fork.
    if isinstance(standing, Base) and standing.migrated is not None:
        return MustRestore("this process was forked before a migration was committed: call restore() again")
    # Nobody replaced the child, which is a writer of its own. But its copy is older than what is committed.
    if isinstance(standing, Fenced):
        return MustRestore("this process was forked from one that another writer replaced: call restore() first")
    return standing


class Swapped(NamedTuple):
    """The version that a swap led to, and whose it is."""

    head: Head
    is_new: bool
    """True if a request of this call wrote the version; False if an earlier call did, or somebody moved on from it."""
    is_own: bool
    """True if this writer was the last to take over."""
    overtaken: FencedError | None
    """The error of later calls if another writer took over right after the swap."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One writer of a root, as the pointer knows it."""

    instance: str
    """Random, so that two writers that take over on the same version are told apart."""
    forks: int
    """The number of forks of the process when this writer began."""

    def owns(self, head: Head) -> bool:
        """Return whether this writer was the last to take over."""
        return head.writer is not None and head.writer.instance == self.instance

    def writer_on(self, head: Head) -> Writer:
        """Return this writer as its next swap on `head` names it.

        The epoch is the next one if that swap takes over.
        """
        # Only a takeover raises the epoch. Two swaps of one writer must not look like two writers.
        if head.writer is not None and self.owns(head):
            return head.writer
        return Writer((head.writer.epoch if head.writer else 0) + 1, self.instance)

    def follows(self, base: Base, head: Head) -> bool:
        """Return whether this writer may swap on `head`.

        It may if only retention and savepoints moved the pointer since `base` was restored.
        """
        # What was restored must still be committed, for a takeover too. On top of another checkpoint the state computed
        # here would replace that one without a word.
        return head.committed == base.head.committed and (head.writer == base.head.writer or self.owns(head))

    async def swap(
        self,
        store: Store,
        host: Host,
        base: Base,
        attempt: Ref,
        edit_pointer: EditPointer,
        stands_on: Callable[[], Base | None],
    ) -> Swapped:
        """Swap the pointer in this writer's name, on top of `base`.

        It succeeds once a version shows `attempt` as committed, or the planned pointer was written. `stands_on` tells
        the present base of the session.
        """

        nonces: set[str] = set()

        async def plan_swap(head: Head) -> Pointer | None:
            # An earlier try landed and its answer was lost, or another writer committed what was prepared here.
            if head.committed == attempt:
                return None
            # Somebody else committed or took over. A swap of ours may have landed unseen before that, so nothing is
            # called a failure until the history was read.
            if not self.follows(base, head):
                try:
                    if await history.became_live(store, head, attempt):
                        return None
                # A store that answers oddly has told nothing of a swap that was sent.
                except (IllegalArgumentError, InvalidStateError) as error:
                    if not nonces:
                        raise
                    raise UndecidedError from error
                raise await self.explain(store, base, head, attempt, stands_on())
            # A new nonce for each try. A pointer with bytes that were there before could bring a version back, and with
            # it a delayed swap that waits for that version.
            nonce = host.token(32)
            nonces.add(nonce)
            return await edit_pointer(head, _successor(head, self.writer_on(head), nonce))

        head = await cas_loop(store, base.head, plan_swap)
        owned, owns = self.owns(base.head), self.owns(head)
        if owns and not owned:
            epoch = self.writer_on(head).epoch
            log_safely(logging.INFO, "%s: this writer took over (as writer %d)", store.url, epoch)
        overtaken = await self.overtaken(store, base, head, attempt) if owned and not owns else None
        is_new = head.pointer is not None and head.pointer.nonce in nonces
        return Swapped(head, is_new, owns, overtaken)

    async def explain(
        self, store: Store, base: Base, head: Head, attempt: Ref, stands_on: Base | None
    ) -> CheckpointError:
        """Return the error of an attempt on `base` that may not swap on `head`.

        `stands_on` is the present base of the session: another attempt of the same session may have been committed.
        """
        # A writer that never swapped has taken nothing over yet: it may restore and go on. One that owned the pointer
        # was replaced, perhaps by its own restarted job: it must stop for good.
        url, now = store.url, head.committed.id if head.committed else None
        # Owned, but with another checkpoint: an earlier swap of this writer landed after its outcome was called
        # unknown.
        if self.owns(head) and (stands_on is None or stands_on.parent != head.committed):
            return ConflictError(
                f"{url}: {now} was committed after all, by an attempt whose outcome was unknown: "
                f"{attempt.id} was not committed; {GO_ON}"
            )
        if self.owns(head):
            return InvalidStateError(
                f"{url}: {attempt.id} was begun before {now} was committed here: begin another attempt"
            )
        if not self.owns(base.head):
            return ConflictError(
                f"{url}: {base.parent.id if base.parent else None} was restored, but another writer took "
                f"over since, {await self._describe(store, base, head, attempt)}, and {now} is committed: "
                f"{attempt.id} was not; {GO_ON}"
            )
        return FencedError(
            f"{url}: another writer has taken over, {await self._describe(store, base, head, attempt)}, and {now} "
            f"is committed: {attempt.id} was not committed; stop this job"
        )

    async def overtaken(self, store: Store, base: Base, head: Head, attempt: Ref) -> FencedError:
        """Return the error of a writer that was replaced after its commit.

        The attempt counts. Later calls of the session raise the error.
        """
        who = await self._describe(store, base, head, attempt)
        return FencedError(
            f"{store.url}: {attempt.id} was committed, but another writer took over since, {who}: stop this job"
        )

    async def _describe(self, store: Store, base: Base, head: Head, attempt: Ref) -> str:
        """Describe the writer that took over, and when it began.

        This is read from its first checkpoint that can be read.
        """
        who = f"writer {head.writer.epoch if head.writer else 0}"
        for ref in (head.committed, head.prepared):
            # What was there at the restore, and this attempt itself, were not written by whoever took over.
            if ref is None or ref in (base.head.committed, base.head.prepared, attempt):
                continue
            with suppress(CheckpointError):  # the news is that somebody else writes; this is no more than a help
                manifest = await read_manifest_alone(store, ref)
                who += _show(manifest, None if self._is_by_hand(manifest.job, base) else manifest.job)
                break
        # A child that commits draws its own instance and fences its parent. Nothing else would tell the user why.
        if runtime.fork_count() > self.forks:
            who += " (this process was forked meanwhile: a child process that commits to the same root takes over)"
        return who

    def _is_by_hand(self, job: Job | None, base: Base) -> bool:
        """Return whether a commit by hand recorded `job`, not the batch's own run.

        A user may commit a change by hand on top of a query's checkpoint, or bring a checkpoint back. Such a commit
        names the batch whose state it has. That batch belongs to this writer's own run, or it was already committed
        when this writer restored.
        """
        last = base.manifest.job if base.manifest is not None else None
        if job is None or last is None or (job.query_id, job.run_id) != (last.query_id, last.run_id):
            return False
        return self.owns(base.head) or job.batch_id <= last.batch_id


def _successor(head: Head, writer: Writer, nonce: str) -> Pointer:
    """Return the pointer of `head` under `writer`, for the caller to change.

    The boundary never moves back.
    """
    if head.pointer is None:
        return Pointer(writer=writer, committed=None, prepared=None, boundary=1, catalog=None, retired=(), nonce=nonce)
    # A copy of all the rest: boundary, catalog, retired list and the fields of later versions are carried over as the
    # newest version has them.
    return replace(head.pointer, writer=writer, nonce=nonce)


def _show(manifest: Manifest, job: Job | None) -> str:
    """Return the query, run, process and time of a checkpoint, as text.

    Values that the checkpoint does not have are left out.
    """
    told = ["no streaming query"]
    if job is not None:
        told = [f"query {job.query_id:.80}", f"run {job.run_id:.80}"]
        told += [] if job.driver is None else [show_driver(job.driver)]
    if manifest.created is not None:
        told.append(f"since {manifest.created.isoformat(timespec='seconds')} at the latest")
    return f" ({', '.join(told)})" if told else ""
