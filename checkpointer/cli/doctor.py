"""Implement `checkpointer doctor`: examine the store that a root is on."""

import click

from pyspark_checkpointer.admin.doctor import ROUNDS, Check, Diagnosis, Latency, examine
from pyspark_checkpointer.cli import schemas
from pyspark_checkpointer.cli.screen import print_facts, print_json, print_line, print_table, progress
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.errors import StoreNotFoundError
from pyspark_checkpointer.storage import open_store
from pyspark_checkpointer.storage.contest import WRITERS, Contest

_CHECKS = (
    TextColumn("CHECK"),
    TextColumn("OUTCOME"),
    TextColumn("FOUND", prose=True),
    TextColumn("ADVICE", prose=True),
)
_LATENCIES = (
    TextColumn("VERB"),
    TextColumn("REQUESTS", right=True),
    TextColumn("MEDIAN", right=True),
    TextColumn("SLOWEST", right=True),
)


@verb(
    "doctor",
    "doctor /data/orders",
    "doctor s3://bucket/jobs/orders --new",
    "doctor gs://bucket/jobs/orders --rounds 10 --json",
    writes=True,
    lost=True,
    note="Exit status: 0 if nothing is bad, 1 if something is.",
)
@click.option("--new", is_flag=True, help="Examine a place that has no store yet.")
@click.option(
    "--rounds",
    type=click.IntRange(min=1),
    default=ROUNDS,
    show_default=True,
    help=f"Set the number of rounds in which {WRITERS} writers compete to swap one object.",
)
def command(store: Opened, new: bool, rounds: int) -> int:
    """Examine the store that a root is on.

    It tries what commits rest on: conditions of writes, also with several writers at the same time, whether their reads
    show the last write, and whether listings do. It shows rights that are missing, the clock of the store, settings of
    the bucket that do harm, and how long each kind of request takes.

    It may run while the job runs. It writes small objects under names of its own, `_doctor-…`, and deletes them.
    """
    if not new:
        _require(store)
    root, fencing = store.ck.root, "required" if store.session.store.fencing else "none"
    # Clients of their own, as jobs on different machines have them.
    # Without encryption: what is examined needs no key, and the first write would make those of a new root.
    examined, *writers = (open_store(root, store.options, fencing=fencing) for _ in range(WRITERS + 1))  # type: ignore[arg-type]
    try:
        with progress("examining", "items") as on_progress:
            found = store.read(
                lambda session: examine(examined, writers, session.host, rounds=rounds, progress=on_progress)
            )
    finally:
        for writer in (examined, *writers):
            store.read(lambda _, writer=writer: writer.close())  # type: ignore[misc]
    if store.json:
        print_json(_document(found))
    else:
        _print(found)
    return 0 if found else 1


def _require(store: Opened) -> None:
    try:
        store.require()
    except StoreNotFoundError as error:
        raise StoreNotFoundError(f"{error}; --new examines a place that has no store yet") from None


def _print(found: Diagnosis) -> None:
    print_facts({"root": found.root, "fenced by": found.fenced_by or "nothing: one writer at a time, by your care"})
    print_line()
    print_table(_CHECKS, [(check.name, check.outcome, check.found, check.advice) for check in found.checks])
    if found.latencies:
        print_line()
        print_table(_LATENCIES, [_times(latency) for latency in found.latencies])


def _times(latency: Latency) -> tuple[object, ...]:
    times = (f"{seconds * 1000:.1f} ms" for seconds in (latency.median, latency.slowest))
    return (latency.verb, latency.requests, *times)


def _document(found: Diagnosis) -> schemas.Diagnosis:
    return {
        "root": found.root,
        "fenced_by": found.fenced_by,
        "checks": [_check(check) for check in found.checks],
        "latencies": [
            {
                "verb": latency.verb,
                "requests": latency.requests,
                "median_seconds": latency.median,
                "slowest_seconds": latency.slowest,
            }
            for latency in found.latencies
        ],
        "contest": None if found.contest is None else _contest(found.contest),
    }


def _check(check: Check) -> schemas.Check:
    return {"name": check.name, "outcome": check.outcome, "found": check.found, "advice": check.advice}


def _contest(contest: Contest) -> schemas.Contest:
    return {
        "writers": WRITERS,
        "rounds": contest.rounds,
        "won_twice": contest.won_twice,
        "won_by_nobody": contest.won_by_nobody,
        "late_reads": contest.late,
        "undecided": contest.undecided,
    }
