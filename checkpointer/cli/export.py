"""`checkpointer export`."""

from typing import Any

import click

from checkpointer.cli.screen import print_json, print_line, progress
from checkpointer.cli.verb import CHECKPOINT, Opened, Options, into_target, options_for, verb
from checkpointer.overview import find


@verb(
    "export",
    "export /data/orders before-migration s3://bucket/exports/orders",
    "export s3://bucket/jobs/orders latest /data/orders-copy",
)
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("target")
@into_target
def command(store: Opened, checkpoint: str, target: str, target_storage_options: Options, target_fencing: Any) -> None:
    """Copy a checkpoint with all it needs to an empty root.

    Every object is verified on the way. In TARGET the copy is the first checkpoint of a history of its own; restoring
    there gives the same state. Nothing is written to ROOT, and a running job goes on undisturbed.
    """
    wanted = store.read(lambda session: find(session, checkpoint))
    options = options_for(target, target_storage_options, "target_storage_options")
    with progress("copying", "bytes") as told:
        copied = store.ck.export(wanted, target, options, fencing=target_fencing, progress=told)
    if store.json:
        print_json({"id": str(copied), "root": target, "content_of": str(wanted)})
    else:
        print_line(f"{copied} of {target} is committed, with the content of {wanted}")
