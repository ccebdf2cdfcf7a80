"""Implement `checkpointer repair`.

It is for a root that lost its `_latest`, or that has no intact checkpoint.
"""

import click

from pyspark_checkpointer.admin.candidate import Candidate
from pyspark_checkpointer.admin.losses import RepairPlan
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.cli import documents
from pyspark_checkpointer.cli.arguments import CHECKPOINT
from pyspark_checkpointer.cli.screen import print_json, print_line, print_table, progress
from pyspark_checkpointer.cli.storage_options import StorageOptions
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import count, moment, size
from pyspark_checkpointer.errors import NotFoundError
from pyspark_checkpointer.storage import options_near

_COLUMNS = (
    TextColumn("ID"),
    TextColumn("EPOCH", right=True),
    TextColumn("CREATED"),
    TextColumn("SIZE", right=True),
    TextColumn("EVIDENCE", prose=True),
    TextColumn("PROBLEMS", prose=True),
)


@verb(
    "repair",
    "repair /data/orders",
    "repair /data/orders --spark-checkpoint /data/orders-spark",
    "repair /data/orders --to 0000000041-1a2b3c4d",
    "repair /data/orders --to savepoint=before-migration --accept-loss",
    writes=True,
    lost=True,
    note="Stop every writer first. Without a terminal to ask on, --yes is needed with --to. The exit status is 1 "
    "if something would be missing and --accept-loss was not given.\n\n"
    "Here latest is the candidate that a damaged `_latest` still names. A CHECKPOINT that fits several candidates is "
    "refused. So is at=…, because it is not known which checkpoint was the committed one at that time.",
)
@click.option("--to", type=CHECKPOINT, metavar="CHECKPOINT", help="Commit a copy of this candidate.")
@click.option("--accept-loss", is_flag=True, help="Commit the intact partitions of a damaged candidate.")
@click.option(
    "--older-partitions",
    is_flag=True,
    help="Replace damaged partitions by an older state, if there is one. The result is a mix of batches.",
)
@click.option(
    "--spark-checkpoint", metavar="PATH", help="Look for more evidence in this checkpointLocation of the query."
)
@click.option("--yes", is_flag=True, help="Do it without asking.")
def command(
    store: Opened,
    to: CheckpointSelector | None,
    accept_loss: bool,
    older_partitions: bool,
    spark_checkpoint: str | None,
    yes: bool,
) -> int:
    """Repair a store whose `_latest` is lost or damaged.

    It also repairs a store in which no checkpoint is intact. Without --to it changes nothing and lists the candidates,
    the best first: each with the evidence that it was committed, and with its missing objects. With --to it commits a
    copy of that candidate, with a sequence above everything in the store. Savepoints that can be read are kept. In a
    signed root they get other names, unless a signed `_latest` still leads to them. If the history can be read and has
    an intact checkpoint, the repair is refused: use `rollback` instead.

    Every object of the chosen candidate is read and compared. If some are damaged, the verb prints what would be
    missing, partition by partition, and changes nothing. With --accept-loss it commits the intact partitions, and the
    damaged ones are empty. With --older-partitions too, the damaged ones get their newest older state that is intact.
    """
    if to is None and (accept_loss or older_partitions):
        raise click.UsageError("--accept-loss and --older-partitions need --to")
    if older_partitions and not accept_loss:
        raise click.UsageError("--older-partitions makes a mix of batches: it needs --accept-loss too")
    if to is not None:
        return _repair(store, to, accept_loss, older_partitions, yes)
    options = None if spark_checkpoint is None else options_near(spark_checkpoint, store.ck.root, store.options)
    found = _candidates(store, spark_checkpoint, options)
    if store.json:
        print_json(list(map(documents.candidate, found)))
    elif found:
        print_table(_COLUMNS, [_row(candidate) for candidate in found])
    else:
        print_line(f"{store.ck.root} holds no manifest: there is nothing to repair to")
    return 0


def _candidates(store: Opened, spark_checkpoint: str | None = None, options: StorageOptions = None) -> list[Candidate]:
    """Return all candidates. Raise if there is no store at all."""
    found = store.ck.repair_candidates(spark_checkpoint, options)
    # A root without a store is an error here as for every verb: the path may be mistyped.
    if not found:
        store.require()
    return found


def _plan(store: Opened, to: CheckpointSelector) -> RepairPlan:
    try:
        with progress("verifying", "bytes") as on_progress:
            return store.ck.repair_plan(str(to), progress=on_progress)
    except NotFoundError:
        _candidates(store)  # It says so if there is no store at all.
        raise


def _repair(store: Opened, to: CheckpointSelector, accept_loss: bool, older_partitions: bool, yes: bool) -> int:
    """Commit a copy of the chosen candidate, and return the exit status.

    A plan is true where nothing is missing.
    """
    # Before the question, so that who says yes knows what is lost.
    plan = _plan(store, to)
    chosen = plan.id
    if not plan and not accept_loss:
        if store.json:
            print_json(documents.repair_plan(plan))
        else:
            _print_plan(plan)
            print_line("Nothing was changed. --accept-loss commits what is whole.")
        return 1
    if not plan and not store.json:
        _print_plan(plan)
    for line in () if store.json else plan.renames:
        print_line(line)
    loss = "" if plan else ", with the losses above"
    store.confirm(f"Repair {store.ck.root} to {chosen}{loss}? Nothing older is kept but savepoints", yes)
    with progress("verifying", "bytes") as on_progress:
        new = store.ck.repair(chosen, accept_loss=accept_loss, older_partitions=older_partitions, progress=on_progress)
    if store.json:
        print_json(documents.repaired(new, store.ck.root, chosen, plan, older_partitions))
        return 0
    print_line(f"{new} is committed, with the content of {chosen}: start the job again")
    if not plan:
        print_line(f"With a loss: {'; '.join(plan.outcome(older_partitions=older_partitions))}")
    return 0


def _print_plan(plan: RepairPlan) -> None:
    """Print what would be missing, each partition on lines of its own."""
    print_line(f"{plan.id}, epoch {plan.epoch}: {count(plan.kept, 'partition')} whole. Missing would be:")
    for loss in plan.losses:
        print_line(f"  {loss}")
    for name in plan.savepoints:
        print_line(f"  savepoint {name!r}: is damaged")
    print_line()


def _row(candidate: Candidate) -> tuple[object, ...]:
    evidence = candidate.evidence
    return (
        candidate.id,
        candidate.epoch,
        moment(candidate.created),
        size(candidate.bytes),
        ", ".join(evidence) or "none: may never have been committed",
        "; ".join(candidate.problems),
    )
