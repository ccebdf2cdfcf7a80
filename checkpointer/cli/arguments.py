"""Define the arguments and options that several verbs take, and parse their texts."""

import json
import os
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.cli import completion
from pyspark_checkpointer.cli.failures import ROOT_VARIABLE, Mistyped
from pyspark_checkpointer.cli.storage_options import StorageOptions
from pyspark_checkpointer.errors import IllegalArgumentError

CHECKPOINT_HELP = """CHECKPOINT is latest, an id or the beginning of one (0000000042, or 42-1a), epoch=41,
savepoint=NAME or the bare name, or at=2024-01-02T06:00Z (the newest made by then; UTC unless a zone is given). Only
show, tree, diff, cat and verify also take prepared. A bare number is refused: it could be an epoch or a sequence."""

_UNITS = {"s": "seconds", "min": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_PART = re.compile(r"([0-9]+)(s|min|h|d|w)")


class CheckpointType(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """The type of an argument that names a checkpoint.

    It has the grammar of `checkpoint/selector.py`.
    """

    name = "checkpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> CheckpointSelector:
        """Parse the text; `CHECKPOINT_HELP` describes its grammar."""
        try:
            return CheckpointSelector.parse(value)
        except IllegalArgumentError as error:
            raise Mistyped(str(error)) from None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names of savepoints, and the ids, that complete the text."""
        return list(map(CompletionItem, completion.checkpoints(ctx, incomplete)))


class OperatorType(click.types.StringParamType):
    """The type of an argument that names an operator."""

    name = "text"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names of operators that complete the text."""
        return list(map(CompletionItem, completion.operators(ctx, incomplete)))


CHECKPOINT, OPERATOR = CheckpointType(), OperatorType()


def fencing_option(name: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option that allows writing to a store without atomic swaps.

    `what` is the word for that store in the help.
    """
    return click.option(
        name,
        type=click.Choice(["required", "none"]),
        default="required",
        show_default=True,
        help=f"Choose `none` to write to a {what} that cannot swap atomically.",
    )


KEY_FORMS = (
    "key-file:PATH, passphrase-file:PATH, aws-kms:alias/NAME, azure-key-vault:URL, google-kms:projects/…/NAME or "
    "vault:MOUNT/NAME."
)
"""The texts that name a provider of keys. Its registry is not imported here: it needs the extra `encryption`."""


def encryption_option(name: str, variable: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option that says what opens the keys of a root."""
    return _keys_option(name, variable, "PROVIDER:KEY", f"What opens the keys of {what}: {KEY_FORMS}")


def signing_option(name: str, variable: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return an option that says whom to trust for a root, and what to sign with."""
    told = f"The owners of {what}, by their public keys, and the private key to sign with."
    return _keys_option(name, variable, "trust:FILE[,sign:FILE]", told)


def _keys_option(name: str, variable: str, form: str, told: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(name, metavar=form, envvar=variable, show_envvar=True, help=told)


def common_options(run: Callable[..., Any], writes: bool) -> Callable[..., Any]:
    """Add the root and the options that every verb has."""
    if writes:
        run = fencing_option("--fencing", "store")(run)
    run = click.option("--debug", is_flag=True, help="Show the traceback of an error.")(run)
    run = click.option(
        "--storage-options",
        metavar="JSON|@FILE",
        envvar="CHECKPOINTER_STORAGE_OPTIONS",
        show_envvar=True,
        callback=parse_options,
        help="Pass this to s3fs, adlfs or another fsspec file system.",
    )(run)
    run = signing_option("--signing", "CHECKPOINTER_SIGNING", "ROOT, if it is signed")(run)
    run = encryption_option("--encryption", "CHECKPOINTER_ENCRYPTION", "ROOT, if it is encrypted")(run)
    run = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")(run)
    return click.argument("root", envvar=ROOT_VARIABLE, callback=read_root)(run)


def target_options(run: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a verb that copies to another root."""
    run = fencing_option("--target-fencing", "TARGET")(run)
    run = signing_option("--target-signing", "CHECKPOINTER_TARGET_SIGNING", "TARGET, which is then signed")(run)
    run = encryption_option(
        "--target-encryption", "CHECKPOINTER_TARGET_ENCRYPTION", "TARGET, which is encrypted with it"
    )(run)
    return click.option(
        "--target-storage-options",
        metavar="JSON|@FILE",
        callback=parse_options,
        envvar="CHECKPOINTER_TARGET_STORAGE_OPTIONS",
        show_envvar=True,
        help="Pass this to the file system that is written to, like --storage-options.",
    )(run)


def read_root(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return the root as it was typed; `-` stands for the one in the environment."""
    if value != "-":
        return value
    # click reads the variable only where no argument is given, so `-` has to look it up.
    known = os.environ.get(ROOT_VARIABLE)
    if not known:
        raise click.UsageError(f"`-` stands for the root in {ROOT_VARIABLE}, which is not set", context)
    return known


def parse_options(context: click.Context, parameter: click.Parameter, value: str | None) -> StorageOptions:
    """Return storage options from JSON, or from a file of JSON.

    Errors never repeat the text: it may hold secrets.
    """
    if not value:
        return None
    if value.startswith("@"):
        try:
            value = Path(value[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise click.BadParameter(f"{value[1:]}: {why}", context, parameter) from None
    try:
        options = json.loads(value)
    except ValueError as error:
        # The error of the JSON parser has a position, and nothing of the text.
        raise click.BadParameter(f"expected a JSON object, or @FILE: {error}", context, parameter) from None
    if not isinstance(options, dict):
        raise click.BadParameter("expected a JSON object, or @FILE", context, parameter)
    return options


def parse_duration(context: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | None:
    """Return a duration that is typed as 90s, 30min, 12h, 7d or 4w.

    Several of them are added: 1d12h.
    """
    if value is None:
        return None
    parts = _PART.findall(value)
    # `findall` skips what it does not know. The parts together have to be the whole text.
    if not parts or "".join(map("".join, parts)) != value:
        raise click.BadParameter(f"{value!r}: write 90s, 30min, 12h, 7d, 4w, or 1d12h", context, parameter)
    try:
        return sum((timedelta(**{_UNITS[unit]: int(number)}) for number, unit in parts), timedelta(0))
    except (OverflowError, ValueError):  # Python reads no number of more than 4,300 digits.
        raise click.BadParameter(f"{value!r:.60} is too long", context, parameter) from None
