"""Implement `checkpointer verify`: find what is damaged or missing."""

from datetime import datetime

import click

from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.checkpoint.verification import Verification
from pyspark_checkpointer.cli import documents
from pyspark_checkpointer.cli.arguments import CHECKPOINT, OPERATOR
from pyspark_checkpointer.cli.screen import complain, print_json, print_line, print_table, progress
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import count, moment, size

_COLUMNS = (TextColumn("FINDING"), TextColumn("PROBLEM", prose=True), TextColumn("HURTS", prose=True))


@verb(
    "verify",
    "verify /data/orders",
    "verify s3://bucket/jobs/orders latest --operator totals",
    "verify s3://bucket/jobs/orders --share 0.05 --json",
    "verify /data/orders --signing trust:owner.pub --since 2026-01-31T18:00:00Z",
    lost=True,
    note="Exit status: 0 if nothing is wrong, 1 if something is damaged or missing, 3 if damage hides which checkpoint "
    "CHECKPOINT means.",
)
@click.argument("checkpoint", type=CHECKPOINT, required=False)
@click.option("--operator", type=OPERATOR, metavar="NAME", help="Verify only this operator.")
@click.option(
    "--since",
    type=click.DateTime(["%Y-%m-%dT%H:%M:%S.%fZ", "%Y-%m-%dT%H:%M:%SZ"]),
    metavar="TIME",
    help="Report a last commit that was signed before: an older one was put back. In UTC, as in 2026-01-31T18:00:00Z.",
)
@click.option("--share", type=float, default=1.0, help="Read each object with this chance, from 0 to 1.")
def command(
    store: Opened, checkpoint: CheckpointSelector | None, operator: str | None, since: datetime | None, share: float
) -> int:
    """Find what is damaged or missing.

    It compares every stored byte with the digests in `_latest` and the manifests, for all checkpoints or for one.
    With pyarrow it also finds keys of tables that are in another partition than their own. It only reads, and may run
    while the job runs. With a cleaner's key of an encrypted root, artifacts are checked as they are stored, without
    their content. Each finding says what was expected, what was found, and which checkpoints it hurts. With
    CHECKPOINT, damage that does not hurt that one is only a warning.
    """
    wanted = None if checkpoint is None else store.read(lambda session: find(session, checkpoint))
    with progress("verifying", "bytes") as on_progress:
        found = store.ck.verify(wanted, operator=operator, share=share, since=since, progress=on_progress)
    if not found.checkpoints and not found.findings:
        store.require()  # nothing was found to verify: say why
    if store.json:
        print_json(documents.verification(found))
    else:
        _print(found)
    return 0 if found else 1


def _print(found: Verification) -> None:
    seen = (
        f"{count(found.checkpoints, 'checkpoint')}, {count(found.objects, 'object')} with {size(found.bytes)} compared"
    )
    left = f", {count(found.skipped, 'object')} left out" if found.skipped else ""
    print_line(f"{seen}{left}: {count(len(found.findings), 'finding') if found.findings else 'all is well'}")
    if found.unread:
        print_line(f"{count(found.unread, 'object')} checked as stored: a cleaner's key does not open them")
    if found.signed is not None:
        print_line(f"the last commit was signed by {found.signed.signer} at {moment(found.signed.at)}")
    if found.findings:
        print_table(_COLUMNS, [("missing" if f.missing else "damaged", f.problem, f.hurt) for f in found.findings])
    for finding in found.elsewhere:
        complain("checkpointer verify", f"warning, elsewhere: {finding}")
