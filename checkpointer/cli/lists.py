"""Implement `checkpointer list`: the checkpoints of a store."""

import click

from pyspark_checkpointer.checkpoint.listing import read_listing
from pyspark_checkpointer.cli import documents
from pyspark_checkpointer.cli.screen import print_json, print_table
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import age, size

_COLUMNS = (
    TextColumn("ID"),
    TextColumn("EPOCH", right=True),
    TextColumn("CREATED"),
    TextColumn("AGE", right=True, extra=True),
    TextColumn("OPERATORS", right=True, extra=True),
    TextColumn("PARTITIONS", right=True, extra=True),
    TextColumn("SIZE", right=True),
    TextColumn("OWN", right=True, extra=True),
    TextColumn("STATE"),
    TextColumn("SAVEPOINTS"),
)


@verb(
    "list",
    "list /data/orders",
    "list s3://bucket/jobs/orders --json | jq -r '.[] | select(.state == \"committed\") | .id'",
)
@click.option("--sizes", is_flag=True, help="Read the chains of many partitions, or of many operators, too.")
def command(store: Opened, sizes: bool) -> None:
    """List the checkpoints, the newest last.

    SIZE is the size of all objects of a checkpoint, OWN the size of those that it wrote itself. If a
    checkpoint has chains of many partitions, or of many operators, they are `?`, unless you give --sizes. STATE is
    `committed` for the checkpoint from which a restart continues, `prepared` for one that waits for its commit,
    `history` for the older ones, and `kept` for those that only a savepoint or a retention rule keeps.
    """
    listing = store.read(lambda session: read_listing(session, chains=sizes))
    found = list(map(documents.checkpoint, listing.checkpoints))
    if store.json:
        print_json(found)
        return
    rows = [
        (
            document["id"],
            document["epoch"],
            document["created"],
            age(listed.manifest.created, store.now),
            len(document["operators"]),
            document["partitions"],
            size(document["bytes"]),
            size(document["own_bytes"]),
            document["state"],
            ", ".join(document["savepoints"]),
        )
        for listed, document in zip(listing.checkpoints, found, strict=True)
    ]
    print_table(_COLUMNS, rows)
