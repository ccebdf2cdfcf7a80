"""Define the states of an attempt at a checkpoint, and what each allows."""

from enum import Enum

from pyspark_checkpointer.errors import CheckpointError, OutcomeUnknownError


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
