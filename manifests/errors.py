"""The errors that the format itself can raise: the root of the tree and its branch for bad bytes.

`pyspark_checkpointer.errors` draws the whole tree; these classes live here because the format imports nothing above it.
Every error is built from one message, so that all of them survive pickling between Spark's processes.
"""

from typing import ClassVar


class CheckpointError(Exception):
    """Anything this project raises on purpose. `retryable` says whether trying again can help."""

    retryable: ClassVar[bool] = False


class CorruptionError(CheckpointError):
    """An object of the store is not what was written. Names the object, what was expected, what was found."""


class DigestMismatchError(CorruptionError):
    """The bytes are not those whose SHA-256 was recorded."""


class MalformedError(CorruptionError):
    """The bytes have the right digest, or none to compare, but do not say what the format allows."""


class UnsupportedFormatError(CorruptionError):
    """Written by a newer version of the format. Upgrade this library to read it."""


class IllegalArgumentError(CheckpointError, ValueError):
    """The call cannot be right; nothing was written."""


class InvalidStateError(CheckpointError):
    """What the store or the job holds does not allow this."""


BAD_INPUT: tuple[type[Exception], ...] = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What bad bytes make a constructor raise. Anything else, such as a TimeoutError, comes from a signal handler that ran
meanwhile, and must not be taken for a fault of the bytes."""
