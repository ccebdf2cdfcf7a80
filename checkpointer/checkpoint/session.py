"""Serve one user of one root: what it restored, how it moves the pointer.

`fencing.py` decides which writer has lost the root, and what error it gets. A session belongs to one process and lives
on the library's event loop. It does one writing thing at a time.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

from pyspark_checkpointer import runtime
from pyspark_checkpointer.checkpoint import metadata
from pyspark_checkpointer.checkpoint.attempt_state import promotions, proves_failure
from pyspark_checkpointer.checkpoint.fencing import (
    Base,
    EditPointer,
    Fenced,
    MustRestore,
    Owner,
    Standing,
    Swapped,
    ViewOnly,
)
from pyspark_checkpointer.checkpoint.latest import Head, read_consistent, read_head
from pyspark_checkpointer.checkpoint.metering import Reports
from pyspark_checkpointer.checkpoint.metrics import MetricsCallback
from pyspark_checkpointer.errors import ConflictError, FencedError, InvalidStateError, RetiredError
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest, Pointer, Ref
from pyspark_checkpointer.runtime import forks
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.storage.conditional_write_check import probe


class Session:
    """One user of a root.

    It knows what was restored, swaps the pointer under its own name, and commits in the background.
    """

    def __init__(self, store: Store, host: Host, *, max_chain: int, metrics: MetricsCallback | None = None) -> None:
        self.store = store
        self.root = store.url
        self.host = host
        self.reports = Reports(store.url, host, metrics)
        self.max_chain = max_chain
        self.process = forks.current
        """The process that made this session. A forked child has a copy, but not its event loop."""
        self.lock = asyncio.Lock()
        # Drawn once and at random. Two takeovers of one version, one of them delayed, would otherwise both believe that
        # they own the next epoch.
        self.owner = Owner(instance=host.token(32), forks=runtime.fork_count())
        self._standing: Standing = None
        self.last_restored: Standing = None
        """The base that the last `restore` gave this session."""
        self.swaps = 0  # the swaps of `_latest` that commits and the like of this session have begun
        self.links: dict[Ref, Manifest] | None = None  # None where a later walk has to see new damage
        self._probed = False
        self._background: asyncio.Task[object] | None = None
        self._reads_state = False
        """True once it is known that this client can read artifacts."""

    # ---- what the session stands on ----------------------------------------------------------------------------

    async def base(self) -> Base:
        """Return the restored checkpoint, as the base of the next attempt.

        If nothing was restored, the base is the committed checkpoint of now.
        """
        self.check_may_write()
        await self._refuse_cleaner()
        if isinstance(self._standing, ViewOnly):
            raise InvalidStateError(f"{self.store.url}: {self._standing.why}")
        if self.restored is None:
            base = await self.read_base()
            if self._standing is not None:  # another call has restored or failed meanwhile, and that counts
                return await self.base()
            self.stand_on(base)
            return base
        return self.restored

    @property
    def restored(self) -> Base | None:
        """The checkpoint that the next attempt builds on.

        None if nothing was restored, or if nothing may be saved.
        """
        return self._standing if isinstance(self._standing, Base) else None

    @property
    def standing(self) -> Standing:
        """Return the base of the next attempt, or why there is none."""
        return self._standing  # another object, also an equal one, says that a call has changed it

    def stand_on_restored(self, standing: Base | ViewOnly) -> None:
        """Go on from what `restore` returns."""
        self.stand_on(standing)
        self.last_restored = standing

    def doubt_commit(self) -> None:
        """Refuse every write after a commit whose caller was gone."""
        # Its deltas, tried again, would count twice. An older reason to restore stays. And the caller may have restored
        # while a rewind went on after its commit.
        if self.restored is not None and self._standing is not self.last_restored:
            self.invalidate("a commit that nobody waited for took effect: call restore() first")

    def doubt_restore(self) -> None:
        """Refuse every write on what a restore has set when its caller was gone."""
        if self._standing is self.last_restored:
            self.invalidate("restore() was interrupted: call restore() again")

    async def rollback_base(self) -> Base:
        """Return the base of a rollback. No manifest is read: it may be damaged."""
        self.check_may_write()
        return self.restored or Base(await read_head(self.store), None)

    def check_may_write(self) -> None:
        """Raise if this session was fenced, or has to restore first."""
        if isinstance(self._standing, Fenced):
            raise self._standing.error
        if isinstance(self._standing, MustRestore):
            raise InvalidStateError(f"{self.store.url}: {self._standing.why}")

    async def _refuse_cleaner(self) -> None:
        """Raise if this client can read no state, as that of a cleaner.

        A batch of positions alone would be committed, and fence the job whose state this is.
        """
        if not self._reads_state and await self.store.artifact_check() is not None:
            raise InvalidStateError(
                f"{self.store.url}: the given key is that of a cleaner, which begins no commit: give a key as "
                "encryption that opens all of the root"
            )
        self._reads_state = True

    async def read_base(self) -> Base:
        """Return the committed checkpoint as it is now.

        This reads `_latest`, its manifest and its segments.
        """
        return await read_consistent(self.store, self.base_in)

    async def base_in(self, head: Head) -> Base:
        """Return the committed checkpoint of one version of `_latest`."""
        ref = head.committed
        return Base(head, None if ref is None else await metadata.read_manifest(self.store, self.host, ref))

    def move_to(self, base: Base, head: Head) -> None:
        """Save on `head`, which commits what `base` does. Views and migrations stay."""
        if not isinstance(self._standing, ViewOnly):
            self.stand_on(replace(self.restored or base, head=head))

    def invalidate(self, why: str) -> None:
        """Refuse every write until `restore()` is called. `why` says what happened."""
        self.stand_on(MustRestore(why))

    def refuse_late(self, since: int, told: str) -> None:
        """Raise if another call committed or prepared since there were `since` swaps."""
        # The caller may have given this call up, and been told since that the other one succeeded.
        if self.swaps != since:
            raise InvalidStateError(f"{self.store.url}: another call of this client committed or prepared while {told}")

    def stand_on(self, standing: Standing) -> None:
        """Save on top of a base from now on, or refuse to."""
        if isinstance(standing, Base) and standing.manifest is not None:
            self.note_committed(standing.manifest.id)
        if not isinstance(self._standing, Fenced):  # a zombie stays one, whatever it restores
            self._standing = standing

    def note_committed(self, checkpoint: CheckpointId, *, here: bool = False) -> None:
        """Note that a checkpoint, once prepared or not, is committed."""
        if (known := promotions.get((self.root, checkpoint))) is not None:
            known.note_committed(self if here else None)

    def refuse_prepared(self, prepared: Ref | None) -> None:
        """Raise if a checkpoint is prepared.

        It has to be committed or aborted before anything else is written.
        """
        if prepared is not None:
            raise InvalidStateError(
                f"{self.store.url}: {prepared.id} is prepared: commit or abort it first (restore().prepared)"
            )

    def draw_id(self, above: int) -> CheckpointId:
        """Return a new id for an attempt on a version whose committed sequence is `above`."""
        # New for each attempt, also on the same version: two attempts that shared an object would lose it to the sweep
        # of one of them.
        return CheckpointId(above + 1, self.host.token(8))

    async def new_id(self) -> CheckpointId:
        return self.draw_id((await self.base()).head.sequence)

    # ---- one thing at a time, some of it in the background -----------------------------------------------------

    async def await_background(self) -> None:
        """Wait for the commit in the background, and raise its error.

        The next calls raise a failure again, until `forget_failure` says that it reached a caller. A caller that waits
        here may have been cancelled meanwhile.
        """
        task = self._background
        if task is None:
            return
        try:
            await asyncio.shield(task)  # who stops waiting does not stop the commit
        finally:
            # A failure is kept until `forget_failure`: the waiting caller may be gone. A cancelled commit has none.
            if task.done() and (task.cancelled() or task.exception() is None):
                self._forget(task)

    def forget_failure(self, error: BaseException) -> None:
        """Forget a commit that failed in the background, as a caller was told now."""
        task = self._background
        if task is not None and task.done() and not task.cancelled() and task.exception() is error:
            self._forget(task)

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        if self._background is task:
            self._background = None
            runtime.forget_outcome(task)

    async def in_background(self, work: Coroutine[Any, Any, object], name: str) -> None:
        """Run `work` in the background, after earlier work there.

        It does not run if the earlier work failed. A process that ends finishes it first.
        """
        try:
            while self._background is not None:  # another caller may be first to begin its own
                await self.await_background()
        except BaseException:
            # Python would warn of a coroutine that was never awaited.
            work.close()
            raise
        self._background = asyncio.ensure_future(work)
        if not runtime.finish_at_exit(self._background, f"{self.store.url}: {name}"):
            await self.await_background()  # nobody comes after this who could wait

    async def close(self) -> None:
        try:
            await self.await_background()
        finally:
            # Also after a failed commit, whose error goes to the caller all the same.
            await self.store.close()
            await self.reports.delivered()

    # ---- moving the pointer ------------------------------------------------------------------------------------

    async def commit_pointer(
        self, base: Base, ref: Ref, manifest: Manifest, edit_pointer: EditPointer | None = None
    ) -> None:
        """Make a checkpoint the committed one, and go on from it.

        Without `edit_pointer`, a checkpoint that is prepared is refused. If another writer has taken over since, the
        session has to restore first.
        """

        async def commit(head: Head, pointer: Pointer) -> Pointer:
            # The prepared checkpoint has to be committed or aborted first: this one would take its place in the
            # sequence.
            self.refuse_prepared(head.prepared)
            return replace(pointer, committed=ref)

        swapped = await self._swap(base, ref, edit_pointer or commit)
        self.note_committed(ref.id, here=True)
        # A second handle of a prepared checkpoint finds it committed. This session may have gone on from there, or view
        # an older one.
        stays = not swapped.is_new and (
            isinstance(self._standing, ViewOnly) or (self.restored and self.restored.parent == swapped.head.committed)
        )
        if not swapped.is_own or (swapped.head.committed != ref and not stays):
            self.invalidate(f"{ref.id} was committed, and another writer took over since: call restore() first")
        elif not stays:
            self.stand_on(Base(swapped.head, manifest))

    async def swap_pointer(self, base: Base, attempt: Ref, edit_pointer: EditPointer) -> Head:
        """Swap the pointer in this session's name, and return its new version.

        The session takes over with its first swap. Each swap is on top of what was restored.

        It succeeds once a version shows `attempt` as committed, or the planned pointer was written. If anything but
        retention or a savepoint moved the pointer meanwhile, this writer can never commit again.
        """
        return (await self._swap(base, attempt, edit_pointer)).head

    async def _swap(self, base: Base, attempt: Ref, edit_pointer: EditPointer) -> Swapped:
        # Before the first swap on a new root. A store that ignores conditions would accept the swaps of two writers.
        await self.prove_conditions(base.head)
        self.swaps += 1
        try:
            swapped = await self.owner.swap(self.store, self.host, base, attempt, edit_pointer, lambda: self.restored)
        # The order counts: fenced and retired are conflicts too.
        except FencedError as error:
            self.stand_on(Fenced(error))
            raise
        except RetiredError:  # a conflict about the target: what this session stands on is still right
            raise
        except ConflictError as error:
            self.invalidate(f"call restore() first: {error}")
            raise
        except BaseException as error:
            # If nothing was swapped, what was restored is still right.
            if not proves_failure(error):
                self.invalidate("the outcome of the last swap is unknown: call restore() first, to find out")
            raise
        if swapped.overtaken is not None:  # this commit counts; the next call is refused
            self.stand_on(Fenced(swapped.overtaken))
        return swapped

    async def prove_conditions(self, head: Head) -> None:
        """Refuse a store that ignores conditions.

        This is checked when a root is about to be created on it.
        """
        # Only where a root begins: it costs requests, and a root that has a pointer was tried when it began. Once for
        # each session: a commit asks before it writes its manifest and again before its swap.
        if head.pointer is None and self.store.fencing and not self._probed:
            await probe(self.store)
            self._probed = True
