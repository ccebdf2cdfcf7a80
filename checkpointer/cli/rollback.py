"""Implement `checkpointer rollback` and `checkpointer delete`.

They change the history of a store.
"""

import click

from pyspark_checkpointer.admin.retention.delete import delete_checkpoint, describe_ended, find_ended
from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.cli import documents
from pyspark_checkpointer.cli.arguments import CHECKPOINT
from pyspark_checkpointer.cli.schemas import DeletedCheckpoint
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

    If the manifest of CHECKPOINT itself is lost, damaged or not trusted, nothing leads to older checkpoints any more:
    all but savepoints, and what a policy keeps for longer, are deleted with it. The question and the result say which.
    """
    target = store.read(lambda session: find(session, checkpoint))
    wanted = CheckpointSelector.parse(target)
    question = f"Delete {target} of {store.ck.root} for ever?"
    # Only for the question: the deletion itself finds out again what goes with it.
    if not yes and (ending := store.read(lambda session: find_ended(session, wanted))):
        question += f" Its manifest cannot be read, so it takes {describe_ended(ending)} with it"
    store.confirm(question, yes)
    ended = store.read(lambda session: delete_checkpoint(session, wanted))
    if store.json:
        document: DeletedCheckpoint = {"deleted": str(target), "older": list(map(str, ended))}
        print_json(document)
    else:
        print_line(f"{target} is deleted" + (f", and with it {describe_ended(ended)}" if ended else ""))
