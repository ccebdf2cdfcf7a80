"""Implement `checkpointer followers`: list, remove."""

import click

from pyspark_checkpointer.cli import documents, schemas
from pyspark_checkpointer.cli.screen import print_json, print_line, print_table
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import age, moment

_COLUMNS = (
    TextColumn("NAME"),
    TextColumn("TABLE"),
    TextColumn("HAS READ"),
    TextColumn("BEHIND", right=True),
    TextColumn("MODIFIED"),
    TextColumn("AGE", right=True),
)


@verb(
    "followers",
    "followers /data/orders",
    "followers /data/orders --remove warehouse --yes",
    writes=True,
)
@click.option("--remove", "removed", metavar="NAME", help="Remove this follower.")
@click.option("--yes", is_flag=True, help="Remove without asking.")
def command(store: Opened, removed: str | None, yes: bool) -> None:
    """List the named followers of tables, or remove one.

    A stream of changes registers itself under the name in its option `follower`. Retention keeps the checkpoints that
    it has yet to read: BEHIND counts them, and is `lost` where one of them is not live any more. Once a follower is
    removed, retention waits for it no longer.
    """
    if removed is not None:
        store.confirm(f"Remove follower {removed} of {store.ck.root}? Retention waits for it no longer", yes)
        store.ck.remove_follower(removed)
        document: schemas.RemovedFollower = {"removed": removed}
        if store.json:
            print_json(document)
        else:
            print_line(f"follower {removed} is removed")
        return
    found = store.ck.followers()
    if store.json:
        print_json(
            [
                {
                    "name": one.name,
                    "table": one.operator,
                    "checkpoint": documents.id_or_none(one.checkpoint),
                    "behind": one.behind,
                    "modified": moment(one.modified),
                }
                for one in found
            ]
        )
        return
    rows = [
        (
            one.name,
            one.operator,
            one.checkpoint,
            "lost" if one.behind is None else one.behind,
            moment(one.modified),
            age(one.modified, store.now),
        )
        for one in found
    ]
    print_table(_COLUMNS, rows)
