"""Implement `checkpointer plan` and `checkpointer clean`.

They show what a retention policy would delete, and delete it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pyspark_checkpointer.admin.retention.garbage_collect import Cleaned
from pyspark_checkpointer.admin.retention.plan import CleanupPlan
from pyspark_checkpointer.admin.retention.policy import RetentionPolicy
from pyspark_checkpointer.admin.retention.waiting import PlannedFollower
from pyspark_checkpointer.cli import documents, schemas
from pyspark_checkpointer.cli.arguments import parse_duration
from pyspark_checkpointer.cli.failures import Failed
from pyspark_checkpointer.cli.screen import print_json, print_line, print_table, progress, to_output
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import count, size
from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError

_TOTALS = (
    TextColumn("ACTION"),
    TextColumn("OBJECTS", right=True),
    TextColumn("SIZE", right=True),
    TextColumn("REASON", prose=True),
)
_CHECKPOINTS = (TextColumn("ID"), TextColumn("ACTION"), TextColumn("REASON", prose=True))
_ROWS = (
    TextColumn("ACTION"),
    TextColumn("SIZE", right=True),
    TextColumn("PATH"),
    TextColumn("REASON", prose=True),
    TextColumn("NAMED BY"),
)


def rules(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a retention policy to a command."""
    spans = {
        "--keep-younger": "Keep those that are younger than this.",
        "--hourly": "Keep the newest of each hour for this time.",
        "--daily": "Keep the newest of each day for this time.",
        "--weekly": "Keep the newest of each week for this time.",
    }
    options = [
        click.option("--keep-last", type=int, metavar="N", help="Keep the newest N."),
        *(click.option(name, metavar="DURATION", callback=parse_duration, help=text) for name, text in spans.items()),
        click.option("--every-epoch", type=int, metavar="N", help="Keep those whose epoch is a multiple of N."),
        click.option(
            "--max-follower-lag",
            type=int,
            metavar="N",
            help="Do not wait for a named follower that is more than N checkpoints behind.",
        ),
        click.option(
            "--grace",
            metavar="DURATION",
            default="1h",
            show_default=True,
            callback=parse_duration,
            help="Keep the objects of a retired checkpoint for this time, for its readers.",
        ),
    ]
    for option in reversed(options):  # the option that is added last is the first one in the help
        command = option(command)
    return command


_NOTE = """A checkpoint stays if at least one rule keeps it. The committed checkpoint, a prepared one and savepoints
always stay. Without rules all checkpoints stay, and only objects that no checkpoint needs are deleted. A DURATION is
90s, 30min, 12h, 7d, 4w, or 1d12h."""


@verb(
    "plan",
    "plan /data/orders --keep-last 100 --daily 30d",
    "plan /data/orders --keep-last 100 -o cleanup.plan",
    "plan s3://bucket/jobs/orders --rows --json | jq '.[] | select(.action == \"delete\")'",
    note=_NOTE,
)
@rules
@click.option("--rows", is_flag=True, help="Show every object, not only totals.")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Save the plan; that of an encrypted root is encrypted.",
)
def plan(store: Opened, rows: bool, output: Path | None, **policy: Any) -> None:
    """Show what `clean` would do, and delete nothing.

    A plan has every object of the store, with its size, the checkpoint that names it, and the action: `keep`,
    `delete`, or `later`, which means after the grace period for readers. Read a saved plan, then run it with
    `clean --plan`.
    """
    made = store.ck.plan(RetentionPolicy(**policy))
    if output is not None:
        made.save(output)
    if rows:
        _print_rows(made, store.json)
    elif store.json:
        print_json(_document(made))
    else:
        _print(made)


@verb(
    "clean",
    "clean /data/orders --keep-last 100 --hourly 2d --daily 30d --yes",
    "clean /data/orders --plan cleanup.plan",
    writes=True,
    note=f"{_NOTE} Without a terminal to ask on, --yes is needed.",
)
@rules
@click.option("--plan", "file", type=click.Path(path_type=Path), help="Run this saved plan.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
def clean(store: Opened, file: Path | None, yes: bool, **policy: Any) -> None:
    """Retire checkpoints, and delete what nothing needs.

    A job, readers and other cleanups may run at the same time; none of them is stopped. If a cleanup was interrupted,
    the next one finishes it. A saved plan is refused if it would delete something that is needed now.
    """
    # Before the plan is made, which may take long and be in vain.
    store.check_can_ask(yes)
    if file is not None:
        # --grace has a default, so its value does not tell whether it was given.
        source = click.get_current_context().get_parameter_source("grace")
        given = [name for name, value in policy.items() if value is not None and name != "grace"]
        if given or source is not ParameterSource.DEFAULT:
            raise click.UsageError("--plan cannot be combined with rules: the plan already says what to keep")
        made = _load(store, file)
        # The paths of a plan are below its root. In another store they would be other objects.
        if made.root != store.ck.root:
            raise IllegalArgumentError(f"{file}: was made for {made.root}, not for {store.ck.root}")
    # Nobody is asked, so no plan is shown first: what is garbage is decided right before it is deleted.
    elif yes:
        with progress("deleting", "items") as on_progress:
            done = store.ck.clean(RetentionPolicy(**policy), progress=on_progress)
        _print_done(store, done)
        return
    else:
        made = store.ck.plan(RetentionPolicy(**policy))
    going = made.total("delete")
    if not yes and not store.json:
        _print(made)
    store.confirm(
        f"Retire {count(len(made.retired), 'checkpoint')} and delete {count(going.objects, 'object')} with "
        f"{size(going.bytes)}?",
        yes,
    )
    with progress("deleting", "items") as on_progress:
        done = store.ck.apply(made, progress=on_progress)
    _print_done(store, done)


def _load(store: Opened, file: Path) -> CleanupPlan:
    """Return a saved plan."""
    try:
        return store.ck.load_plan(file)
    except CorruptionError as error:
        # The file is damaged, not the store: the exit status must not say that the store is.
        raise Failed(str(error), type(error).__name__) from None


def _print(plan: CleanupPlan) -> None:
    """Print the checkpoints that a plan retires, and the sums of its objects."""
    if gone := [c for c in plan.checkpoints if not c.keep]:
        print_table(_CHECKPOINTS, [(c.id, "retire", c.reason) for c in gone])
        print_line()
    rows = [(action, t.objects, size(t.bytes), reason) for (action, reason), t in sorted(plan.totals.items())]
    print_table(_TOTALS, rows)
    _print_followers(plan.followers)
    if plan.note:
        print_line(plan.note)


def _print_followers(followers: Sequence[PlannedFollower]) -> None:
    """Print what stays for followers, and which of them are outrun."""
    for follower in followers:
        if follower.matters:
            print_line(str(follower))


def _print_rows(plan: CleanupPlan, as_json: bool) -> None:
    """Print every object of a plan."""
    if not as_json:
        print_table(_ROWS, [(r.action, size(r.size), r.path, r.reason, r.referenced_by) for r in plan])
        return
    print("[", end="")
    for number, row in enumerate(plan):  # one by one: there may be millions
        print("," * (number > 0) + "\n  " + to_output(documents.plan_row(row)), end="")
    print("\n]")


def _document(plan: CleanupPlan) -> schemas.CleanupPlan:
    return {
        "root": plan.root,
        "grace_seconds": plan.grace.total_seconds(),
        "note": plan.note,
        "checkpoints": [
            {"id": str(c.id), "action": "keep" if c.keep else "retire", "reason": c.reason} for c in plan.checkpoints
        ],
        "followers": list(map(documents.planned_follower, plan.followers)),
        "totals": [
            {"action": action, "reason": reason, "objects": total.objects, "bytes": total.bytes}
            for (action, reason), total in sorted(plan.totals.items())
        ],
    }


def _print_done(store: Opened, done: Cleaned) -> None:
    """Print what a cleanup did."""
    if store.json:
        print_json(_done(done))
        return
    print_line(
        f"{count(len(done.retired), 'checkpoint')} retired, {count(done.deleted.objects, 'object')} with "
        f"{size(done.deleted.bytes)} deleted"
    )
    if done.later.objects:
        print_line(f"{count(done.later.objects, 'object')} with {size(done.later.bytes)} go after the grace period")
    _print_followers(done.followers)
    if done.note:
        print_line(done.note)


def _done(done: Cleaned) -> schemas.Cleaned:
    return {
        "retired": documents.ids(done.retired),
        "deleted": documents.amount(done.deleted),
        "later": documents.amount(done.later),
        "note": done.note,
        "followers": list(map(documents.planned_follower, done.followers)),
    }
