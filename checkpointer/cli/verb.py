"""What all verbs share: the root and how to open it, --json, and errors as one sentence.

`app.py` says how to add a verb.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from pyspark_checkpointer.checkpoint.resolve import CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.cli import completion
from pyspark_checkpointer.cli.root import require_store
from pyspark_checkpointer.cli.screen import visible
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.errors import CheckpointError, CorruptionError, IllegalArgumentError, StoreNotFoundError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.registry import Reach
from pyspark_checkpointer.storage.scrubbing import scrub
from pyspark_checkpointer.storage.url import parse

T = TypeVar("T")

Options = Mapping[str, Any] | None

CHECKPOINT_HELP = """CHECKPOINT is latest, an id or the beginning of one (0000000042, or 42-1a), epoch=41,
savepoint=NAME or the bare name, at=2024-01-02T06:00Z (the newest made by then; UTC unless it says otherwise), or, where
it is only looked at, prepared. A bare number is refused: it could be an epoch, or the sequence in an id."""


ROOT_VARIABLE = "CHECKPOINTER_ROOT"

FAILED, MISTYPED, DAMAGED, UNAVAILABLE = 1, 2, 3, 75
"""Exit statuses: it cannot be done, or there are findings; typed wrong; the store is damaged; later it may work
(`EX_TEMPFAIL` of sysexits)."""

PIPE_CLOSED = 128 + 13
"""The status of a program that SIGPIPE ended, as shells show it."""


class CheckpointType(click.ParamType):  # type: ignore[type-arg]  # generic only from click 8.2 on
    """A checkpoint, in the grammar of `checkpoint.resolve`."""

    name = "checkpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> CheckpointSelector:
        """Read the grammar."""
        try:
            return CheckpointSelector.parse(value)
        except IllegalArgumentError as error:
            raise Mistyped(str(error)) from None

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete names of savepoints and ids."""
        return list(map(CompletionItem, completion.checkpoints(ctx, incomplete)))


class OperatorType(click.types.StringParamType):
    """The name of an operator."""

    name = "text"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Complete names of operators."""
        return list(map(CompletionItem, completion.operators(ctx, incomplete)))


CHECKPOINT, OPERATOR = CheckpointType(), OperatorType()


class Failed(click.ClickException):
    """Ends the run with one sentence and a status. `kind`, the name of an error, is for `--json`."""

    exit_code = FAILED
    retryable = False

    def __init__(self, message: str, kind: str = "CheckpointError") -> None:
        super().__init__(message)
        self.kind = kind


class Mistyped(Failed):
    """Ends the run where trying again as it was typed cannot help."""

    exit_code = MISTYPED

    def __init__(self, message: str) -> None:
        super().__init__(message, "IllegalArgumentError")


class Damaged(Failed):
    """Ends the run where what is stored is not what it should be."""

    exit_code = DAMAGED


class Unavailable(Failed):
    """Ends the run where waiting can help."""

    exit_code = UNAVAILABLE
    retryable = True


@dataclass(frozen=True, slots=True)
class Opened:
    """The store that a verb was called for."""

    ck: Checkpointer
    json: bool
    options: Options = field(default=None, repr=False)
    """Storage options, which hold secrets."""

    def read(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """Return what a function of the core makes of the store."""
        return run_sync(work(self.ck.session))

    @property
    def now(self) -> datetime:
        return self.ck.session.host.now()

    def check_can_ask(self, yes: bool) -> None:
        """Refuse what needs a yes where nobody said so, and nobody can be asked."""
        if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise click.UsageError("There is no terminal to ask on: add --yes to do it", click.get_current_context())

    def confirm(self, question: str, yes: bool) -> None:
        """Go on only if somebody said yes, on the command line or when asked."""
        if yes:
            return
        self.check_can_ask(yes)
        try:
            agreed = click.confirm(question, err=True)
        except click.Abort as abort:
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise
            agreed = False
        if not agreed:
            raise Failed("nothing was changed", "Declined")


def verb(
    name: str, *examples: str, writes: bool = False, lost: bool = False, note: str = ""
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Make a verb of a function that gets the opened store and its own parameters, and may return an exit status.

    The docstring becomes the help, and `note` what stands below the options. A verb that only reads also opens stores
    that cannot fence; one for the `lost` opens roots without `_latest`.
    """

    def decorate(function: Callable[..., int | None]) -> click.Command:
        @wraps(function)
        def run(
            root: str,
            as_json: bool,
            storage_options: Options,
            debug: bool,
            fencing: Any = "none",
            **arguments: Any,
        ) -> int | None:
            try:
                options = options_for(root, storage_options)
                with Checkpointer(root, options, fencing=fencing) as ck:
                    store = Opened(ck, as_json, options)
                    if not lost:
                        store.read(lambda session: require_store(session.store, options))
                    status = function(store, **arguments)
                sys.stdout.flush()
                return status
            except (click.ClickException, click.Abort):
                raise
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere, silently
                return PIPE_CLOSED
            except Exception as error:
                secrets = [storage_options, arguments.get("target_storage_options")]
                if debug:
                    _print_traceback(secrets)
                raise _explain(error, root, secrets) from error

        command = click.command(name, epilog=_epilog(function, examples, note))(_common(run, writes))
        command.params.sort(key=lambda parameter: parameter.name != "root")
        return command

    return decorate


def _fencing(name: str, what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        name,
        type=click.Choice(["required", "none"]),
        default="required",
        show_default=True,
        help=f"`none` writes to a {what} that cannot swap atomically.",
    )


def _common(run: Callable[..., Any], writes: bool) -> Callable[..., Any]:
    if writes:
        run = _fencing("--fencing", "store")(run)
    run = click.option("--debug", is_flag=True, help="Show the traceback of an error.")(run)
    run = click.option(
        "--storage-options",
        metavar="JSON|@FILE",
        envvar="CHECKPOINTER_STORAGE_OPTIONS",
        show_envvar=True,
        callback=parse_options,
        help="What s3fs, adlfs or another fsspec file system takes.",
    )(run)
    run = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")(run)
    return click.argument("root", envvar=ROOT_VARIABLE, callback=_root)(run)


def _root(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Return the root as it was typed; `-` is the one of the environment."""
    if value != "-":
        return value
    known = os.environ.get(ROOT_VARIABLE)
    if not known:
        raise click.UsageError(f"`-` stands for the root in {ROOT_VARIABLE}, which is not set", context)
    return known


def _epilog(function: Callable[..., Any], examples: tuple[str, ...], note: str) -> str:
    parameters = getattr(function, "__click_params__", ())
    parts = [CHECKPOINT_HELP] if any(parameter.type is CHECKPOINT for parameter in parameters) else []
    parts += [note] if note else []
    return "\n\n".join([*parts, "\b\nExamples:\n" + "\n".join(f"  checkpointer {example}" for example in examples)])


def parse_options(context: click.Context, parameter: click.Parameter, value: str | None) -> Options:
    """Storage options from JSON or a file of it. What is wrong is said without repeating any of it."""
    if not value:
        return None
    if value.startswith("@"):
        try:
            value = Path(value[1:]).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "is no text"
            raise click.BadParameter(f"{value[1:]}: {why}", context, parameter) from None
    try:
        options = json.loads(value)
    except ValueError as error:
        raise click.BadParameter(f"expected a JSON object, or @FILE: {error}", context, parameter) from None
    if not isinstance(options, dict):
        raise click.BadParameter("expected a JSON object, or @FILE", context, parameter)
    return options


def into_target(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return the options of a verb that copies to another root."""
    run = _fencing("--target-fencing", "TARGET")(run)
    return click.option(
        "--target-storage-options",
        metavar="JSON|@FILE",
        callback=parse_options,
        envvar="CHECKPOINTER_TARGET_STORAGE_OPTIONS",
        show_envvar=True,
        help="Like --storage-options, for what is written to.",
    )(run)


def options_for(root: str, options: Options, name: str = "storage_options") -> Options:
    """Return a folder takes no options; those of the environment are not meant for it."""
    source = click.get_current_context().get_parameter_source(name)
    return None if source is ParameterSource.ENVIRONMENT and parse(root).kind.reach is Reach.MACHINE else options


def _explain(error: Exception, root: str, secrets: Sequence[Options]) -> Failed:
    kind = type(error).__name__
    if isinstance(error, IllegalArgumentError):
        return Mistyped(str(error))
    if isinstance(error, CorruptionError):
        return Damaged(f"{error}; `checkpointer verify` says what that hurts", kind)
    if isinstance(error, CheckpointError):
        hint = root_hint() if isinstance(error, StoreNotFoundError) and root != os.environ.get(ROOT_VARIABLE) else ""
        return (Unavailable if error.retryable else Failed)(f"{error}{hint}", kind)
    shown = scrub(str(error), {"any": secrets})
    if isinstance(error, ImportError):
        return Failed(f"needs a package that is not installed: {shown}: pip install it", kind)
    return Failed(f"unexpected {kind}: {shown}: please report it, with what --debug shows", kind)


def root_hint() -> str:
    """What to type where the first argument was not meant as the root; empty where the environment names none."""
    context = click.get_current_context(silent=True)
    if context is None or not os.environ.get(ROOT_VARIABLE):
        return ""
    return f"; the first argument is ROOT: `{context.command_path} - …` takes the one in {ROOT_VARIABLE}"


def _print_traceback(secrets: Sequence[Options]) -> None:
    for line in traceback.format_exc().splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        print(indent + visible(scrub(line, {"any": secrets})), file=sys.stderr)
