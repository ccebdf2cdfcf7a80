"""`checkpointer repair`."""

from dataclasses import asdict

import click

from checkpointer.candidates import Candidate
from checkpointer.cli.screen import Column, print_json, print_line, print_table
from checkpointer.cli.verb import Opened, verb
from checkpointer.client import as_id
from checkpointer.store import options_near
from manifests.model import Json
from manifests.words import moment, size

_COLUMNS = (
    Column("ID", whole=True),
    Column("EPOCH", right=True),
    Column("CREATED", whole=True),
    Column("SIZE", right=True),
    Column("EVIDENCE"),
    Column("PROBLEMS"),
)


@verb(
    "repair",
    "repair /data/orders",
    "repair /data/orders --spark-checkpoint /data/orders-spark",
    "repair /data/orders --to 0000000041-1a2b3c4d",
    writes=True,
    lost=True,
    note="Stop every writer first. Without a terminal to ask on, --yes is needed with --to.",
)
@click.option("--to", metavar="ID", help="Commit a copy of this candidate.")
@click.option("--spark-checkpoint", metavar="PATH", help="The query's checkpointLocation.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
def command(store: Opened, to: str | None, spark_checkpoint: str | None, yes: bool) -> None:
    """Repair a store whose `_latest` is lost or damaged.

    Nothing proves which commit was the last. Without --to this lists the candidates, the best first, each with the
    evidence that it was committed and with what is missing of it, and changes nothing. With --to a copy of that one is
    committed, above everything in the store; savepoints are kept as far as they can be read. Where the history can be
    read it is refused: `rollback` goes back to an older checkpoint.
    """
    if to is not None:
        chosen = as_id(to)
        store.confirm(f"Repair {store.ck.root} to {chosen}? Nothing older is kept but savepoints", yes)
        new = store.ck.repair(chosen)
        if store.json:
            print_json({"id": str(new), "content_of": str(chosen)})
        else:
            print_line(f"{new} is committed, with the content of {chosen}: start the job again")
        return
    options = None if spark_checkpoint is None else options_near(spark_checkpoint, store.ck.root, store.options)
    found = store.ck.repair_candidates(spark_checkpoint, options)
    if store.json:
        print_json(list(map(_document, found)))
    elif found:
        print_table(_COLUMNS, [_row(candidate) for candidate in found])
    else:
        print_line(f"{store.ck.root} holds no manifest: there is nothing to repair to")


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


def _document(candidate: Candidate) -> dict[str, Json]:
    job = candidate.job
    return asdict(candidate) | {
        "id": str(candidate.id),
        "created": moment(candidate.created),
        "job": asdict(job) if job else None,
        "proven": candidate.proven,
    }
