"""Assemble the command from its verbs.

Every error is printed as one sentence or as JSON.

How to add a verb:

1. Write a file with one function under `@verb` (`verb.py`). Let it call a function of `checkpointer/admin/`, or a
   method of the client. Make its JSON in `documents.py`, and print with `screen.py`.
2. Import it below, and name it in `VERBS` in the order of the help.
3. Describe in a module of `schemas` what it prints as JSON. Name it in `PRINTED` and `__all__` of
   `schemas/__init__.py`, then run `python -m tests.cli.schema > docs/json.md`.
4. Add a call of each of its forms to `tests/cli/every.py`. If it needs arguments besides a root, add them to `REST` in
   `tests/cli/test_alike.py`, and to `OPERATOR` if one of them names an operator. Name a verb that reads in `COMMANDS`
   of `tests/proof/verbs.py`, and one that writes in `CHANGING` there and in `tests/cli/test_width.py`. Tests of all
   verbs then run it.
5. Say in `docs/operations.md` when to use it.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from pyspark_checkpointer.cli import (
    cat,
    cleaners,
    cleanup,
    consumers,
    cost,
    diff,
    doctor,
    encrypt,
    export,
    followers,
    history,
    lists,
    rekey,
    repair,
    report,
    rewind,
    rollback,
    savepoint,
    schemas,
    show,
    signers,
    stats,
    tree,
    verify,
)
from pyspark_checkpointer.cli.failures import INTERRUPTED, MISTYPED, ROOT_VARIABLE, Failed
from pyspark_checkpointer.cli.screen import complain, one_line, print_error
from pyspark_checkpointer.storage.registry import cloud_roots, credential_finders, enumerate_words

VERBS = (
    lists.command,
    show.command,
    tree.command,
    diff.command,
    history.command,
    cat.command,
    stats.command,
    cost.command,
    consumers.command,
    verify.command,
    report.command,
    doctor.command,
    savepoint.command,
    followers.command,
    rewind.rewind,
    rewind.fork,
    rollback.rollback,
    rollback.delete,
    cleanup.plan,
    cleanup.clean,
    export.command,
    encrypt.command,
    rekey.command,
    cleaners.command,
    signers.command,
    repair.command,
)


class Verbs(click.Group):
    """A group that lists its verbs in the order of `VERBS`.

    It prints one sentence for an error.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        extra.pop("standalone_mode", None)  # click would print errors itself
        # The words as they were typed: where an option is wrong, click has parsed no --json yet.
        typed = sys.argv[1:] if args is None else list(args)
        try:
            status = super().main(typed, prog_name or "checkpointer", standalone_mode=False, **extra)
        except click.ClickException as error:
            status = error.exit_code
            if "--json" in typed:
                print_error(_document(error))
            else:
                complain(*_sentence(error))
        except click.Abort:
            status = INTERRUPTED
        sys.exit(status or 0)


def _sentence(error: click.ClickException) -> tuple[str, str]:
    """Return the name of the command that failed, and the message."""
    if not isinstance(error, click.UsageError):
        return "checkpointer", error.format_message()
    path = error.ctx.command_path if error.ctx else "checkpointer"
    message = error.format_message().rstrip(".")
    # `list` has no option of its own that could be meant for another verb alone.
    if (
        isinstance(error, click.NoSuchOption)
        and path == "checkpointer"
        and error.option_name in _options(lists.command)
    ):
        message = f"No such option '{error.option_name}' before the verb: it goes behind it"
    # With a root in the environment people leave ROOT out. click then takes their first word for it, and misses an
    # argument that they gave.
    if isinstance(error, click.MissingParameter) and os.environ.get(ROOT_VARIABLE):
        message += f"; the first argument is ROOT, `-` for the one in {ROOT_VARIABLE}"
    return path, f"{message}; see `{path} --help`".replace("?;", "?")  # click's "Did you mean …?" ends with a mark


def _options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def _document(error: click.ClickException) -> schemas.Error:
    """Return the JSON of an error for --json."""
    _, message = _sentence(error)
    kind, retryable = (error.kind, error.retryable) if isinstance(error, Failed) else ("UsageError", False)
    return {
        "error": {
            "type": kind,
            "message": one_line(message),
            "retryable": retryable,
            "status": error.exit_code,
        }
    }


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    invoke_without_command=True,
    epilog=f"""\b
Examples:
  checkpointer list /data/orders
  checkpointer show s3://bucket/jobs/orders epoch=42
  checkpointer verify abfs://container/jobs/orders --json

ROOT is a folder, {", ".join(cloud_roots())}, or any other URL that fsspec knows. If CHECKPOINTER_ROOT is set, you may
leave ROOT out when there are no other arguments; before other arguments write `-` for it. Credentials come from the
environment, as {enumerate_words(credential_finders(), "and")} find them, or from CHECKPOINTER_STORAGE_OPTIONS.

Exit status: 0 if it succeeded; 1 if it found a problem, found nothing of that name, or was refused; 2 for a mistake in
the command; 3 if the store is damaged; 75 if the store does not answer: wait and try again.""",
)
@click.version_option(package_name="spark-state-checkpointer", prog_name="checkpointer")
@click.pass_context
def checkpointer(context: click.Context) -> None:
    """Look at a Spark job's checkpoints, verify them, keep them, and go back to them.

    Every verb takes the ROOT of a store, and --json for scripts. Only `rollback`, `rewind`, `repair`, `encrypt`,
    `rekey --rewrite`, the first `signers --owner` and the `--revoke` of its key stop a running job, and `rewind`
    refuses one that it sees running.
    """
    # To stderr and with a status: a script that left the verb out must not take the help for a result.
    if context.invoked_subcommand is None:
        click.echo(context.get_help(), err=True)
        context.exit(MISTYPED)


for verb in VERBS:
    checkpointer.add_command(verb)
