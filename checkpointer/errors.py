"""One tree of errors, grouped by what a caller does about them.

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
    │   └─ UnsupportedFormatError        a newer version, by name
    ├─ ConflictError                     somebody else moved first: restore again
    │   ├─ ShutdownError                 this writer or owner is finished: stop it
    │   │   ├─ FencedError
    │   │   └─ LeaseLostError
    │   ├─ StalePlanError                a cleanup plan would take what is needed now
    │   └─ RetiredError                  the checkpoint was retired meanwhile
    ├─ InvalidStateError                 what the store or the job holds does not allow this
    │   ├─ StoreRefusedError             a right, room or an ability is missing: nothing was changed
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
    _shared.__module__ = __name__  # the name that users import and catch it by; a traceback shows this one


class RetryableError(CheckpointError):
    """Wait and try again."""

    retryable: ClassVar[bool] = True


class ThrottlingError(RetryableError):
    """The store asked for fewer requests."""


class DependencyError(RetryableError):
    """The store could not be reached, or did not answer in time."""


class SwapNotSentError(DependencyError):
    """A swap was given up before anything of it was sent: it can never take effect."""


class NotFoundError(CheckpointError, LookupError):
    """There is no such thing."""


class CheckpointNotFoundError(NotFoundError):
    """No live checkpoint has this id or epoch."""


class SavepointNotFoundError(NotFoundError):
    """No savepoint has this name."""


class OperatorNotFoundError(NotFoundError):
    """The checkpoint has no operator of this name."""


class StoreNotFoundError(NotFoundError):
    """The bucket, container or folder of the root is not there."""


class ConflictError(CheckpointError):
    """Somebody else moved first. Restore again and go on from there."""


class ShutdownError(ConflictError):
    """This writer or owner is finished. Stop it."""


class FencedError(ShutdownError):
    """Another writer has taken over the root. Final for the object that raised it."""


class LeaseLostError(ShutdownError):
    """The lease now belongs to another owner."""


class StalePlanError(ConflictError):
    """What a plan would retire or delete came to be needed since it was made. Make a new plan."""


class RetiredError(ConflictError):
    """The checkpoint was retired while it was being used."""


class StoreRefusedError(InvalidStateError):
    """The store will not do what it was asked, such as for want of a right or of room. This request changed nothing."""


class BatchResetError(InvalidStateError):
    """Spark's progress and the state belong to different queries, or Spark's progress went backwards."""


class BatchGapError(InvalidStateError):
    """Batches are missing between the state and Spark's progress."""


class OutcomeUnknownError(CheckpointError):
    """The swap was sent and nothing proves either way. `restore()` tells which it was."""


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
]
