"""Define the errors of the format itself.

They are the root of the tree of errors and its branch for bad bytes.

`pyspark_checkpointer.errors` draws the whole tree; these classes live here because the format imports nothing above it.
Every error is built from one message, so that all of them survive pickling between Spark's processes.
"""

from typing import ClassVar


class CheckpointError(Exception):
    """The base of all errors that this project raises.

    `retryable` says whether trying again can help.
    """

    retryable: ClassVar[bool] = False


class CorruptionError(CheckpointError):
    """An object of the store is not what was written.

    The message names the object, what was expected and what was found.
    """


class DigestMismatchError(CorruptionError):
    """The bytes are not those whose SHA-256 was recorded."""


class MalformedError(CorruptionError):
    """The bytes do not say what the format allows.

    They have the right digest, or there is no digest to compare.
    """


class UnsupportedFormatError(CorruptionError):
    """Written by a newer version of the format, or encrypted, or signed.

    Of the last two nothing says what opens it. Upgrade this library, or give `encryption=` or `signing=`. The message
    says which.
    """


class IllegalArgumentError(CheckpointError, ValueError):
    """The arguments of the call cannot be right; nothing was written."""


class InvalidStateError(CheckpointError):
    """The state of the store or of the job does not allow this call."""


BAD_INPUT: tuple[type[Exception], ...] = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that a constructor raises for bad bytes.

Any other error, such as a TimeoutError, comes from a signal handler that ran meanwhile. It must not be taken for a
fault of the bytes.
"""
