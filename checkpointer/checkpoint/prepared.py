"""Commit or abort a prepared checkpoint: the second phase.

The job that prepared it does this, also after a restart.
"""

from collections.abc import Callable
from dataclasses import replace
from enum import Enum

from pyspark_checkpointer.checkpoint.attempt_state import Promotion
from pyspark_checkpointer.checkpoint.fencing import Base
from pyspark_checkpointer.checkpoint.latest import Head
from pyspark_checkpointer.checkpoint.metering import Meter
from pyspark_checkpointer.checkpoint.metrics import written
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import ConflictError, InvalidStateError
from pyspark_checkpointer.manifests.model import Manifest, Pointer, Ref
from pyspark_checkpointer.runtime import forks


class Outcome(Enum):
    """Describe the outcome of a swap for a prepared checkpoint.

    The value completes the sentence "the checkpoint …", and names the next step.
    """

    COMMITTED = "was committed already: use rollback()"
    ABORTED = "was aborted already: begin another"


class Prepared:
    """A checkpoint recorded in `_latest` and not yet committed.

    Commit it or abort it, also after a restart.

        outcome None ─┬─ commit, or found committed ─> COMMITTED
                      └─ abort ─> ABORTED

    A commit or an abort that fails leaves the outcome as None: it may be tried again.
    """

    def __init__(
        self,
        session: Session,
        base: Base,
        ref: Ref,
        manifest: Manifest,
        promotion: Promotion,
        record_outcome: Callable[[Manifest | None], None] = lambda manifest: None,
        meter: Meter | None = None,
    ) -> None:
        self.id = ref.id
        self.base = base
        self.manifest = manifest
        self.meter = meter or session.reports.meter()
        self._is_told = False
        """True once a record has reported the cost of the writes. The next try must not report it again."""
        self.outcome: Outcome | None = None
        self.session = session
        self._ref = ref
        self._record_outcome = record_outcome
        self.promotion = promotion

    async def commit(self) -> None:
        """Make it the committed checkpoint.

        A second call finds it committed, and succeeds.
        """
        # Asking the pointer again would move the session back to this checkpoint, although others may be committed on
        # top of it by now.
        if self.outcome is Outcome.COMMITTED:
            return
        self._check_undecided()
        meter, host = self.meter, self.session.host
        if not meter.operators and not self._is_told:  # somebody else wrote it
            meter.operators = await host.run(lambda: written(self.manifest, self.base.manifest))
        try:
            with self.session.reports.committing(meter, self.id, self.manifest.epoch):
                await self._commit()
        except BaseException:
            # The record of this try has all that the checkpoint cost so far. That of the next one has what comes after.
            self.meter, self._is_told = self.session.reports.meter(), True
            raise

    async def _commit(self) -> None:
        async def edit_pointer(head: Head, pointer: Pointer) -> Pointer:
            # A rollback clears `prepared`. A promotion that is tried again must not land on top of it.
            if head.prepared != self._ref:
                raise ConflictError(
                    f"{self.session.store.url}: {self.id} is no longer prepared: it was aborted or replaced; "
                    "it was not committed, restore again"
                )
            return replace(pointer, committed=self._ref, prepared=None)

        async with self.session.lock:
            if self.outcome is Outcome.COMMITTED:  # by a second call that held the lock
                return
            self._check_undecided()
            await self.session.commit_pointer(self.base, self._ref, self.manifest, edit_pointer)
            self._decided(Outcome.COMMITTED, self.manifest)

    async def abort(self) -> None:
        """Drop it.

        This always swaps, so that a `prepare` still under way can never take effect afterwards.
        """
        if self.outcome is Outcome.ABORTED:
            return
        self._check_undecided()
        await self._abort()

    async def _abort(self) -> None:
        cleared: set[str] = set()

        async def edit_pointer(head: Head, pointer: Pointer) -> Pointer:
            # An old handle must not drop what was prepared after it.
            if head.prepared not in (None, self._ref):
                raise ConflictError(f"{self.session.store.url}: another checkpoint is prepared: restore again")
            # Also where nothing is prepared: only a new version proves that a `prepare` still under way can never land.
            # The nonce tells this swap from a version that others wrote.
            cleared.add(pointer.nonce)
            return replace(pointer, prepared=None)

        async with self.session.lock:
            if self.outcome is Outcome.ABORTED:  # by a second call that held the lock
                return
            self._check_undecided()
            head = await self.session.swap_pointer(self.base, self._ref, edit_pointer)
            if head.pointer is None or head.pointer.nonce not in cleared:  # more may be committed on top of it by now
                raise InvalidStateError(f"{self.session.store.url}: {self.id} {Outcome.COMMITTED.value}")
            self.session.move_to(self.base, head)
            self._decided(Outcome.ABORTED, None)

    def found_committed(self) -> None:
        """Record that another writer committed it, and so took over."""
        self.session.note_committed(self.id)
        self.session.invalidate(f"another writer committed {self.id}, which was prepared: call restore() first")
        self._decided(Outcome.COMMITTED, self.manifest)

    def _check_undecided(self) -> None:
        if self.session.process is not forks.current:
            raise InvalidStateError(
                f"{self.session.store.url}: {self.id} was prepared before this process was forked: restore().prepared "
                "is the same here"
            )
        if self.outcome is not None:
            raise InvalidStateError(f"{self.session.store.url}: {self.id} {self.outcome.value}")

    def _decided(self, outcome: Outcome, manifest: Manifest | None) -> None:
        self.outcome = outcome
        self._record_outcome(manifest)
