"""Implement `checkpointer export`.

It copies a checkpoint to another root, or writes it as Parquet.
"""

from typing import Any

import click

from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.cli import documents
from pyspark_checkpointer.cli.arguments import CHECKPOINT, target_options
from pyspark_checkpointer.cli.screen import print_json, print_line, progress
from pyspark_checkpointer.cli.storage_options import StorageOptions, options_for
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import count
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.storage.url import absolute


@verb(
    "export",
    "export /data/orders before-migration s3://bucket/exports/orders",
    "export s3://bucket/jobs/orders latest /data/orders-copy",
    "export /data/orders latest /data/orders-tables --format parquet",
    note="With --format parquet, TARGET/<operator>/*.parquet has each row of a table once; of a map the columns are "
    "`key` and `value`, both JSON text.",
)
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("target")
@click.option(
    "--format",
    "form",
    type=click.Choice(["store", "parquet"]),
    default="store",
    show_default=True,
    help="Write a store, or tables and maps as plain files, for DuckDB, Polars, pandas, Spark.",
)
@click.option(
    "--operator", "operators", metavar="NAME", multiple=True, help="Write only this one, as Parquet. May be repeated."
)
@target_options
def command(
    store: Opened,
    checkpoint: CheckpointSelector,
    target: str,
    form: str,
    operators: tuple[str, ...],
    target_storage_options: StorageOptions,
    target_encryption: str | None,
    target_signing: str | None,
    target_fencing: Any,
) -> None:
    """Copy a checkpoint with all it needs to an empty root.

    With --format parquet it writes tables and maps as plain files. Every object is verified on the way. In TARGET the
    copy is the first checkpoint of a history of its own; restoring there gives the same state. Nothing is written to
    ROOT, and a running job is not disturbed. Nothing in TARGET is overwritten.
    """
    if operators and form != "parquet":
        raise click.UsageError("--operator goes with --format parquet: a copy has all of them")
    wanted = store.read(lambda session: find(session, checkpoint))
    options = options_for(target, target_storage_options, "target_storage_options")
    if form == "parquet":
        for option, given in (("--target-encryption", target_encryption), ("--target-signing", target_signing)):
            if given is not None:
                raise click.UsageError(f"{option} goes with a copy: other programs read what is Parquet")
        _parquet(store, wanted, target, options, operators, target_fencing)
        return
    with progress("copying", "bytes") as on_progress:
        copied = store.ck.export(
            wanted,
            target,
            options,
            fencing=target_fencing,
            encryption=target_encryption,
            signing=target_signing,
            progress=on_progress,
        )
    if store.json:
        print_json(documents.commit(copied, absolute(target), wanted))
    else:
        print_line(f"{copied} of {target} is committed, with the content of {wanted}")


def _parquet(
    store: Opened, wanted: CheckpointId, target: str, options: StorageOptions, operators: tuple[str, ...], fencing: Any
) -> None:
    with progress("writing", "items") as on_progress:
        made = store.ck.export_parquet(
            wanted, target, options, operators=operators or None, fencing=fencing, progress=on_progress
        )
    if store.json:
        print_json(documents.exported(made))
        return
    for one in made.operators:
        print_line(
            f"{made.target}/{one.folder}: {one.kind} {one.name!r}, {count(one.rows, 'row')}, {count(one.files, 'file')}"
        )
    if made.left_out:
        print_line(f"left out, as they hold bytes of the job's own: {', '.join(made.left_out)}")
