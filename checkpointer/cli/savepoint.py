"""Implement `checkpointer savepoint`: list, create, delete."""

import click

from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.cli import documents
from pyspark_checkpointer.cli.arguments import CHECKPOINT
from pyspark_checkpointer.cli.screen import print_json, print_line, print_table
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import age, moment

_COLUMNS = (TextColumn("NAME"), TextColumn("ID"), TextColumn("CREATED"), TextColumn("AGE", right=True))


@verb(
    "savepoint",
    "savepoint /data/orders",
    "savepoint /data/orders before-migration",
    "savepoint /data/orders last-good epoch=41",
    "savepoint /data/orders --delete before-migration --yes",
    writes=True,
)
@click.argument("name", required=False)
@click.argument("checkpoint", type=CHECKPOINT, required=False)
@click.option("--delete", "deleted", metavar="NAME", help="Delete this savepoint.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
def command(
    store: Opened, name: str | None, checkpoint: CheckpointSelector | None, deleted: str | None, yes: bool
) -> None:
    """List savepoints, make one, or delete one.

    With NAME it keeps CHECKPOINT under that name, by default the committed one. Retention never deletes a savepoint.
    Each name can be used once. A running job is not disturbed.
    """
    if deleted is not None:
        if name is not None:
            raise click.UsageError("--delete takes the name, and nothing else is given")
        _delete(store, deleted, yes)
    elif name is not None:
        _create(store, name, checkpoint)
    else:
        _list(store)


def _list(store: Opened) -> None:
    savepoints = store.ck.savepoints()
    if store.json:
        print_json(list(map(documents.savepoint, savepoints)))
        return
    print_table(_COLUMNS, [(s.name, s.id, moment(s.created), age(s.created, store.now)) for s in savepoints])


def _create(store: Opened, name: str, checkpoint: CheckpointSelector | None) -> None:
    # Without a checkpoint the store takes what is committed at that moment, and nothing is looked up before.
    wanted = None if checkpoint is None else store.read(lambda session: find(session, checkpoint))
    made = store.ck.savepoint(name, wanted)
    if store.json:
        print_json(documents.savepoint(made))
    else:
        print_line(f"{made.id} is kept as savepoint {made.name}")


def _delete(store: Opened, name: str, yes: bool) -> None:
    store.confirm(f"Delete savepoint {name} of {store.ck.root}? Retention may then retire its checkpoint", yes)
    store.ck.delete_savepoint(name)
    if store.json:
        print_json({"deleted": name})
    else:
        print_line(f"savepoint {name} is deleted")
