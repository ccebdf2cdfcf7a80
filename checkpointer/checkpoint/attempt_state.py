"""Define the states of an attempt, and what each allows.

What is known of a prepared attempt is shared by all its handles, and by all state that was restored meanwhile.
"""

from dataclasses import dataclass, field
from enum import Enum
from weakref import WeakSet, WeakValueDictionary

from pyspark_checkpointer.errors import CheckpointError, InvalidStateError, OutcomeUnknownError
from pyspark_checkpointer.manifests.model import CheckpointId


class AttemptState(Enum):
    """The states of an attempt.

    `CheckpointAttempt.state` alone says what the attempt takes.

        OPEN ── block ends ──> FROZEN                               it waits for its commit in the background
          └───────────┬──────────┘
            commit or prepare ─> WRITING ─> SWAPPING ─ committed ─> COMMITTED
                      │             │          ├─ refused ─> FAILED
                      │             │          ├─ no clear answer ─> UNKNOWN
                      │             │          └─ of a prepare: PREPARING ─> PREPARED ─> COMMITTED or ABORTED
                      │             │                            ├─ failed ─> UNPROVEN ─ abort ─> ABORTED
                      │             │                            └─ another writer committed it ─> COMMITTED
                      │             └─ a write failed ─> FAILED
                      └─ abort, until all is written ─> ABORTED

    The value completes the sentence "this attempt …", and names the next step.
    """

    OPEN = "is open"
    FROZEN = "is being committed in the background: begin another"
    """Positions, watermark and properties were taken. The attempt takes no more, and can still be aborted."""
    WRITING = "is being committed or prepared: wait until that has ended, and begin another"
    """The manifest, and what is left, are being written. The attempt can still be aborted."""
    SWAPPING = "is being committed, and its swap is under way: wait until that has ended, and begin another"
    """All is durable. Only the swap decides what becomes of it."""
    PREPARING = "is being prepared: wait until that has ended, and commit() or abort() what prepare() returns"
    PREPARED = "is prepared: commit() or abort() what prepare() returned"
    UNPROVEN = "may be prepared, because prepare() failed: abort() it, and begin another"
    """The swap of the prepare may have landed, or may still land. Only another swap ends this."""
    COMMITTED = "was committed: begin another"
    UNKNOWN = "may be committed, because its commit got no clear answer: restore() tells; then begin another"
    FAILED = "failed, and was not committed: begin another"
    ABORTED = "was aborted: begin another"


UNDECIDED = (AttemptState.OPEN, AttemptState.FROZEN)
"""The states in which an attempt can be committed or prepared."""

INVISIBLE = (*UNDECIDED, AttemptState.WRITING)
"""The states in which no swap was begun, so that an abort has nothing to take back in the store."""

NEARLY_PREPARED = (AttemptState.PREPARING, AttemptState.PREPARED, AttemptState.UNPROVEN)
"""The states in which an abort has to swap, since `_latest` may name the attempt, or soon name it."""


def proves_failure(error: BaseException) -> bool:
    """Return whether an error of a swap proves that no try of it took effect.

    An interruption or a cancellation proves nothing: it may come while the request is under way.
    """
    return isinstance(error, CheckpointError) and not isinstance(error, OutcomeUnknownError)


@dataclass(slots=True, weakref_slot=True, eq=False)
class Promotion:
    """Tell whether a prepared checkpoint is known to be committed.

    Then what was restored while it was prepared is the state before it.
    """

    what: str
    """The root and the id of the checkpoint, for errors."""
    is_known: bool = False
    sessions: "WeakSet[object]" = field(default_factory=WeakSet)
    """The sessions that committed it."""

    def note_committed(self, session: object = None) -> None:
        """Note that it is committed, by a session of this process if one is given."""
        self.is_known = True
        if session is not None:
            self.sessions.add(session)

    def refuse_save(self) -> None:
        """Raise if older state would overwrite what was prepared."""
        if self.is_known:
            raise self._error()

    def refuse_read(self, session: object) -> None:
        """Raise for a session that committed it, and so has gone on from there.

        Whoever only reads may go on to look at the state before it.
        """
        if session in self.sessions:
            raise self._error()

    def _error(self) -> InvalidStateError:
        return InvalidStateError(
            f"{self.what} was committed since this was restored, which knows the state before it: call restore() again"
        )


promotions: "WeakValueDictionary[tuple[str, CheckpointId], Promotion]" = WeakValueDictionary()
"""By root and checkpoint. All sessions of this process share them: another one may commit what one has restored."""


def promotion(root: str, checkpoint: CheckpointId, *, is_new: bool = False) -> Promotion:
    """Return what is known of a prepared checkpoint.

    `is_new`: nobody has restored it yet.
    """
    known = None if is_new else promotions.get((root, checkpoint))
    if known is None:
        known = promotions[root, checkpoint] = Promotion(f"{root}: {checkpoint}")
    return known
