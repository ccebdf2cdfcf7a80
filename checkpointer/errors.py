"""Define the errors of the library in one tree.

They are grouped by what a caller does about them.

    CheckpointError                      .retryable says whether trying again can help
    ├─ RetryableError                    wait and try again
    │   ├─ ThrottlingError               the store asked for less
    │   └─ DependencyError               the store could not be reached, or did not answer
    │       └─ SwapNotSentError          a swap was given up before it was sent: nothing was changed
    ├─ NotFoundError (LookupError)       there is no such thing
    │   ├─ CheckpointNotFoundError
    │   ├─ SavepointNotFoundError
    │   ├─ OperatorNotFoundError
    │   └─ StoreNotFoundError            the bucket, container or folder itself
    ├─ CorruptionError                   names the object, what was expected, what was found
    │   ├─ DigestMismatchError
    │   ├─ MalformedError
    │   ├─ UnsupportedFormatError        a newer version, by name
    │   └─ UntrustedError                nobody signed it whose signature counts
    ├─ ConflictError                     somebody else moved first: restore again
    │   ├─ ShutdownError                 this writer or owner is finished: stop it
    │   │   ├─ FencedError
    │   │   └─ LeaseLostError
    │   ├─ StalePlanError                a cleanup plan would take what is needed now
    │   └─ RetiredError                  the checkpoint was retired meanwhile
    ├─ InvalidStateError                 the state of the store or the job does not allow this
    │   ├─ StoreRefusedError             the store refuses, for want of a permission, space or a feature
    │   ├─ BatchResetError               Spark's progress and the state do not belong together
    │   └─ BatchGapError                 batches are missing between the state and Spark's progress
    ├─ OutcomeUnknownError               the swap was sent and nothing proves either way; restore() will tell
    └─ IllegalArgumentError (ValueError) refused before anything was written

Every error is built from one message and survives pickling, since Spark sends errors between processes.
"""

from typing import ClassVar

from pyspark_checkpointer.manifests.errors import (
    CheckpointError,
    CorruptionError,
    DigestMismatchError,
    IllegalArgumentError,
    InvalidStateError,
    MalformedError,
    UnsupportedFormatError,
)

for _shared in (
    CheckpointError,
    CorruptionError,
    DigestMismatchError,
    IllegalArgumentError,
    InvalidStateError,
    MalformedError,
    UnsupportedFormatError,
):
    _shared.__module__ = __name__  # a traceback shows the name by which users import and catch the error


class UntrustedError(CorruptionError):
    """An object of a signed root has no signature that counts.

    Or an older version of it was put back.
    """

    version: str | None = None
    """The version of what is there, on which a repair can swap."""


class RetryableError(CheckpointError):
    """Trying again after a while can help."""

    retryable: ClassVar[bool] = True
    pause: float | None = None
    """Seconds that the store asked to wait; None where it did not ask."""


class ThrottlingError(RetryableError):
    """The store asked for fewer requests."""


class DependencyError(RetryableError):
    """The store could not be reached, or did not answer in time."""


class SwapNotSentError(DependencyError):
    """A compare-and-swap was given up before its request was sent.

    It can never take effect.
    """


class NotFoundError(CheckpointError, LookupError):
    """The requested object does not exist."""


class CheckpointNotFoundError(NotFoundError):
    """No live checkpoint has this id or epoch."""


class SavepointNotFoundError(NotFoundError):
    """No savepoint has this name."""


class OperatorNotFoundError(NotFoundError):
    """The checkpoint has no operator of this name."""


class StoreNotFoundError(NotFoundError):
    """The bucket, container or folder of the root does not exist."""


class ConflictError(CheckpointError):
    """Another writer was faster. Restore again and continue from there."""


class ShutdownError(ConflictError):
    """This writer or owner was replaced for good. Stop it."""


class FencedError(ShutdownError):
    """Another writer has taken over the root.

    The object that raises this can never commit again.
    """


class LeaseLostError(ShutdownError):
    """The lease now belongs to another owner."""


class StalePlanError(ConflictError):
    """Something that a plan would retire or delete is needed by now.

    This came about after the plan was made. Make a new plan.
    """


class RetiredError(ConflictError):
    """The checkpoint was retired while it was being used."""


class StoreRefusedError(InvalidStateError):
    """The store refuses a request.

    It may lack a permission or space, for example. The request changed nothing.
    """


class BatchResetError(InvalidStateError):
    """Spark's progress does not go with the state.

    They belong to different queries, or Spark's progress went backwards.
    """


class BatchGapError(InvalidStateError):
    """Batches are missing between the state and Spark's progress."""


class OutcomeUnknownError(CheckpointError):
    """A compare-and-swap was sent, and its outcome is unknown.

    Nothing proves whether it took effect. `restore()` tells.
    """


__all__ = [
    "BatchGapError",
    "BatchResetError",
    "CheckpointError",
    "CheckpointNotFoundError",
    "ConflictError",
    "CorruptionError",
    "DependencyError",
    "DigestMismatchError",
    "FencedError",
    "IllegalArgumentError",
    "InvalidStateError",
    "LeaseLostError",
    "MalformedError",
    "NotFoundError",
    "OperatorNotFoundError",
    "OutcomeUnknownError",
    "RetiredError",
    "RetryableError",
    "SavepointNotFoundError",
    "ShutdownError",
    "StalePlanError",
    "StoreNotFoundError",
    "StoreRefusedError",
    "SwapNotSentError",
    "ThrottlingError",
    "UnsupportedFormatError",
    "UntrustedError",
]
