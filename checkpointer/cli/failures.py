"""End a run that failed: the exit statuses, and one sentence for each error."""

import os
import sys
import traceback
from collections.abc import Sequence

import click

from pyspark_checkpointer.cli.screen import visible
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    IllegalArgumentError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.storage.scrubbing import scrub

ROOT_VARIABLE = "CHECKPOINTER_ROOT"

FAILED, MISTYPED, DAMAGED, UNAVAILABLE = 1, 2, 3, 75
"""Exit statuses.

1: it cannot be done, or there are findings; 2: the command is wrong; 3: the store is damaged; 75: it may work later
(`EX_TEMPFAIL` of sysexits).
"""

INTERRUPTED = 128 + 2
"""The status of a program that SIGINT (Ctrl-C) ended, as shells show it."""

PIPE_CLOSED = 128 + 13
"""The status of a program that SIGPIPE ended, as shells show it."""


class Failed(click.ClickException):
    """An error that ends the run with one sentence and a status.

    `kind` is its name in `--json`.
    """

    exit_code = FAILED
    retryable = False

    def __init__(self, message: str, kind: str = "CheckpointError") -> None:
        super().__init__(message)
        self.kind = kind


class Mistyped(Failed):
    """An error in the command: the same command would fail again."""

    exit_code = MISTYPED

    def __init__(self, message: str) -> None:
        super().__init__(message, "IllegalArgumentError")


class Damaged(Failed):
    """An error that shows that the store is damaged."""

    exit_code = DAMAGED


class Unavailable(Failed):
    """An error that may be gone after a while."""

    exit_code = UNAVAILABLE
    retryable = True


class Interrupted(Failed):
    """A Ctrl-C during a verb that writes: nobody waited to see what it did."""

    exit_code = INTERRUPTED

    def __init__(self) -> None:
        message = "interrupted: what it writes may be changed already: look before you give the command again"
        super().__init__(message, "Interrupted")


def explain(error: Exception, root: str, secrets: Sequence[object]) -> Failed:
    """Return the error that ends the run, without any of the secrets.

    Errors of this library never show secrets; those of other packages may, so their texts are scrubbed.
    """
    kind = type(error).__name__
    # From the special to the general: the first two are CheckpointErrors too.
    if isinstance(error, IllegalArgumentError):
        return Mistyped(str(error))
    if isinstance(error, UnsupportedFormatError):  # a newer format, or a key that was not given: nothing is damaged
        return Failed(str(error), kind)
    if isinstance(error, CorruptionError):
        return Damaged(f"{error}; `checkpointer verify` says what that hurts", kind)
    if isinstance(error, CheckpointError):
        # Only for a root that was typed: it may have been meant as the argument after the root.
        hint = root_hint() if isinstance(error, StoreNotFoundError) and root != os.environ.get(ROOT_VARIABLE) else ""
        return (Unavailable if error.retryable else Failed)(f"{error}{hint}", kind)
    shown = scrub(str(error), {"any": secrets})
    if isinstance(error, ImportError):
        advice = "" if "pip install" in shown else ": pip install it"  # errors of this library name the extra
        return Failed(f"needs a package that is not installed: {shown}{advice}", kind)
    return Failed(f"unexpected {kind}: {shown}: please report it, with what --debug shows", kind)


def root_hint() -> str:
    """Return what to type if the first argument was not meant as the root.

    It is empty where the environment has no root.
    """
    context = click.get_current_context(silent=True)
    if context is None or not os.environ.get(ROOT_VARIABLE):
        return ""
    return f"; the first argument is ROOT: `{context.command_path} - …` takes the one in {ROOT_VARIABLE}"


def print_traceback(secrets: Sequence[object]) -> None:
    """Print the traceback of the current error to stderr.

    It shows no secrets and no control characters.
    """
    # Line by line, since control characters are made visible and line ends are among them.
    for line in traceback.format_exc().splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        print(indent + visible(scrub(line, {"any": secrets})), file=sys.stderr)
