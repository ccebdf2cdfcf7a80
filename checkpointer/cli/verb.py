"""Make a command of a function.

The command opens the root, runs the function, and turns an error into one sentence. `app.py` says how to add a verb.
"""

import os
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any, TypeVar

import click

from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.cli.arguments import CHECKPOINT, CHECKPOINT_HELP, common_options
from pyspark_checkpointer.cli.failures import PIPE_CLOSED, Failed, Interrupted, explain, print_traceback
from pyspark_checkpointer.cli.root import require_store
from pyspark_checkpointer.cli.screen import one_line, visible
from pyspark_checkpointer.cli.storage_options import StorageOptions, options_for
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.runtime import run_sync

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Opened:
    """The store that a verb was called for, and how to print results."""

    ck: Checkpointer
    json: bool
    options: StorageOptions = field(default=None, repr=False)
    """The storage options of the root. They hold secrets, so `repr` leaves them out."""

    @property
    def session(self) -> Session:
        """The session on the store, as the functions of the core take it."""
        return self.ck.session

    def read(self, work: Callable[[Session], Coroutine[Any, Any, T]]) -> T:
        """Run a function of the core on the store, and return its result."""
        return run_sync(work(self.session))

    @property
    def now(self) -> datetime:
        """The time by the clock of the session."""
        return self.session.host.now()

    def require(self) -> None:
        """Raise if there is no store at the root, or one that lost its `_latest`.

        See `require_store`.
        """
        self.read(lambda session: require_store(session.store, self.options))

    def check_can_ask(self, yes: bool) -> None:
        """Raise if the verb needs a yes and cannot get one.

        That is so if --yes is not given, and no terminal is there to ask on.
        """
        if not yes and not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise click.UsageError("There is no terminal to ask on: add --yes to do it", click.get_current_context())

    def confirm(self, question: str, yes: bool) -> None:
        """Return if the user agrees, by --yes or when asked; else end the run."""
        if yes:
            return
        self.check_can_ask(yes)
        try:
            agreed = click.confirm(visible(one_line(question)), err=True)  # it may have a text of the store
        except click.Abort as abort:
            if isinstance(abort.__context__, KeyboardInterrupt):
                raise  # Ctrl-C ends the run with its own status; the end of the input counts as a no
            agreed = False
        if not agreed:
            raise Failed("nothing was changed", "Declined")


def verb(
    name: str,
    *examples: str,
    writes: bool = False,
    lost: bool = False,
    plain: bool = False,
    without_root: Callable[..., int | None] | None = None,
    note: str = "",
    cls: type[click.Command] = click.Command,
) -> Callable[[Callable[..., int | None]], click.Command]:
    """Make a verb of a function that takes the opened store and its own parameters.

    The function may return an exit status. Its docstring becomes the help; `note` is printed below the options.

    Args:
        name: The name of the verb.
        examples: Command lines, without the word `checkpointer`.
        writes: The verb changes the store. One that only reads opens stores without fencing too.
        lost: The verb also opens roots without `_latest`. Other verbs refuse these before they run.
        plain: The verb opens the root as it is stored, and gets what --encryption says as an argument.
        without_root: Called in place of the function where no root is given, with `as_json` and the function's
            parameters. The root in the environment is then used only where `-` is typed.
        note: More help.
        cls: The class of the command.
    """

    def decorate(function: Callable[..., int | None]) -> click.Command:
        @wraps(function)
        def run(
            root: str | None,
            as_json: bool,
            storage_options: StorageOptions,
            encryption: str | None,
            signing: str | None,
            debug: bool,
            fencing: Any = "none",
            **arguments: Any,
        ) -> int | None:
            try:
                if root is None:
                    assert without_root is not None
                    return without_root(as_json, **arguments)
                options = options_for(root, storage_options)
                if plain:
                    encryption, arguments["encryption"] = None, encryption
                with Checkpointer(root, options, fencing=fencing, encryption=encryption, signing=signing) as ck:
                    # The verb and what it calls ask for one checkpoint several times.
                    ck.session.links = {}
                    store = Opened(ck, as_json, options)
                    # A mistyped root must not look like an empty store.
                    if not lost:
                        store.require()
                    status = function(store, **arguments)
                sys.stdout.flush()  # a pipe that is closed is noticed here, and not while the interpreter exits
                return status
            # These say already how the run ends.
            except (click.ClickException, click.Abort):
                raise
            except KeyboardInterrupt:
                if writes:
                    raise Interrupted from None
                raise
            except BrokenPipeError:
                _drop_output()
                return PIPE_CLOSED
            except Exception as error:
                # Errors of file systems may repeat the options that they were given.
                secrets = [storage_options, arguments.get("target_storage_options")]
                if debug:
                    print_traceback(secrets)
                if isinstance(error, OSError) and not _can_print():
                    _drop_output()
                    why = f"the output cannot be written: {error.strerror}; what the command did stays done"
                    raise Failed(why, type(error).__name__) from error
                raise explain(error, root or "", secrets) from error

        command = click.command(name, cls=cls, epilog=_epilog(function, examples, note))(common_options(run, writes))
        command.params.sort(key=lambda parameter: parameter.name != "root")  # ROOT is the first argument of every verb
        if without_root is not None:
            command.params[0].required, command.params[0].envvar = False, None
        return command

    return decorate


def _can_print() -> bool:
    """Return whether stdout takes what was printed, at the second try."""
    try:
        sys.stdout.flush()
    except OSError:
        return False
    return True


def _drop_output() -> None:
    """Discard what is still printed.

    The interpreter flushes stdout once more when it exits: the rest of the output must go somewhere.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _epilog(function: Callable[..., Any], examples: tuple[str, ...], note: str) -> str:
    """Return the text of the help below the options.

    It is the grammar of CHECKPOINT where the verb takes one, then the note, then the examples.
    """
    parameters = getattr(function, "__click_params__", ())
    parts = [CHECKPOINT_HELP] if any(parameter.type is CHECKPOINT for parameter in parameters) else []
    parts += [note] if note else []
    return "\n\n".join([*parts, "\b\nExamples:\n" + "\n".join(f"  checkpointer {example}" for example in examples)])
