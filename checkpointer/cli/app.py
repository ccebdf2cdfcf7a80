"""The command itself: its verbs, and what becomes of everything that goes wrong."""

import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from checkpointer.cli import (
    cat,
    cleanup,
    diff,
    export,
    lists,
    progress,
    repair,
    report,
    rewind,
    rollback,
    savepoint,
    show,
    stats,
    tree,
    verify,
)
from checkpointer.cli.screen import complain

VERBS = (
    lists.command,
    show.command,
    tree.command,
    diff.command,
    cat.command,
    stats.command,
    progress.command,
    verify.command,
    report.command,
    savepoint.command,
    rewind.rewind,
    rewind.fork,
    rollback.rollback,
    rollback.delete,
    cleanup.plan,
    cleanup.clean,
    export.command,
    repair.command,
)

INTERRUPTED = 130


class Verbs(click.Group):
    """Shows its verbs in their order, and ends every run with one sentence at most."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        extra.pop("standalone_mode", None)
        try:
            status = super().main(args, prog_name or "checkpointer", standalone_mode=False, **extra)
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx else "checkpointer"
            complain(path, f"{error.format_message().rstrip('.')}; see `{path} --help`".replace("?;", "?"))
            sys.exit(error.exit_code)
        except click.ClickException as error:
            complain("checkpointer", error.format_message())
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(INTERRUPTED)
        sys.exit(status or 0)


@click.group(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    no_args_is_help=False,
    epilog="""\b
Examples:
  checkpointer list /data/orders
  checkpointer show s3://bucket/jobs/orders 42
  checkpointer verify abfs://container/jobs/orders --json

ROOT is a folder, s3://bucket/path, abfs://container/path, or any other URL that fsspec knows. Credentials come from
the environment, as s3fs and adlfs find them, or from CHECKPOINTER_STORAGE_OPTIONS.

Exit status: 0; 1 for findings, for what is not there, and for what failed; 2 for what was typed wrong.""",
)
@click.version_option(package_name="spark-state-checkpointer", prog_name="checkpointer")
def checkpointer() -> None:
    """Look at the checkpoints of a Spark job, verify them, keep them, and go back to them.

    Every verb takes the ROOT of a store, and --json for scripts. Only `rollback`, `rewind` and `repair` stop a running
    job, and `rewind` refuses one that it sees running.
    """


for verb in VERBS:
    checkpointer.add_command(verb)
