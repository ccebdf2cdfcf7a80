"""Implement `checkpointer rollback` and `checkpointer delete`.

They change the history of a store.
"""

import click

from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.cli import documents
from pyspark_checkpointer.cli.arguments import CHECKPOINT
from pyspark_checkpointer.cli.screen import print_json, print_line, progress
from pyspark_checkpointer.cli.verb import Opened, verb


@verb(
    "rollback",
    "rollback /data/orders epoch=41",
    "rollback /data/orders before-migration --yes",
    writes=True,
    note="Without a terminal to ask on, --yes is needed.",
)
@click.argument("checkpoint", type=CHECKPOINT)
@click.option("--yes", is_flag=True, help="Do it without asking.")
def rollback(store: Opened, checkpoint: CheckpointSelector, yes: bool) -> None:
    """Go back to an older checkpoint.

    Every object of CHECKPOINT is read and compared first; if one is damaged, nothing is changed. Then its content is
    committed anew, on top of the history, which is kept. This takes the store over: a running job is fenced, and stops
    with FencedError at its next commit. Start it again afterwards. A prepared checkpoint is dropped.
    """
    target = store.read(lambda session: find(session, checkpoint))
    store.confirm(
        f"Roll {store.ck.root} back to {target}? A running job is fenced and stops; what is prepared is dropped",
        yes,
    )
    with progress("verifying", "bytes") as on_progress:
        new = store.ck.rollback(target, progress=on_progress)
    if store.json:
        print_json(documents.commit(new, store.ck.root, target))
    else:
        print_line(f"{new} is committed, with the content of {target}: start the job again")


@verb(
    "delete",
    "delete /data/orders epoch=17",
    "delete /data/orders 0000000017-1a2b3c4d --yes --json",
    writes=True,
    note="Without a terminal to ask on, --yes is needed.",
)
@click.argument("checkpoint", type=CHECKPOINT)
@click.option("--yes", is_flag=True, help="Do it without asking.")
def delete(store: Opened, checkpoint: CheckpointSelector, yes: bool) -> None:
    """Delete a checkpoint for ever.

    CHECKPOINT is deleted, with every object that no other checkpoint needs. The committed checkpoint cannot be deleted,
    nor the prepared one, nor one that a savepoint keeps. A running job is not disturbed.
    """
    target = store.read(lambda session: find(session, checkpoint))
    store.confirm(f"Delete {target} of {store.ck.root} for ever?", yes)
    store.ck.delete_checkpoint(target)
    if store.json:
        print_json({"deleted": str(target)})
    else:
        print_line(f"{target} is deleted")
