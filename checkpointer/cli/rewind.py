"""Implement `checkpointer rewind` and `checkpointer fork`.

They handle state and Spark's progress together.
"""

from dataclasses import asdict
from typing import Any

import click

from pyspark_checkpointer.admin.streaming import rewind as query
from pyspark_checkpointer.admin.streaming.rewind_result import Rewind, RewindOptions
from pyspark_checkpointer.checkpoint.resolve import find
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.cli import documents
from pyspark_checkpointer.cli.arguments import CHECKPOINT, target_options
from pyspark_checkpointer.cli.screen import print_facts, print_json, print_line, progress
from pyspark_checkpointer.cli.storage_options import StorageOptions, options_for
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests.model import Json

SPARK_CHECKPOINT = click.option(
    "--spark-checkpoint", metavar="PATH", help="Use this checkpointLocation of the query, if it was moved."
)


@verb(
    "rewind",
    "rewind /data/orders at=2024-01-02T06:00Z --dry-run",
    "rewind /data/orders before-deploy --yes",
    "rewind s3://bucket/jobs/orders epoch=41 --spark-checkpoint s3a://bucket/jobs/orders-spark --stopped",
    "rewind /data/orders --undo",
    writes=True,
    note="Stop the query first. Without a terminal to ask on, --yes is needed.",
)
@click.argument("checkpoint", type=CHECKPOINT, required=False)
@click.option("--undo", is_flag=True, help="Restore the state and the files before the last rewind.")
@SPARK_CHECKPOINT
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@click.option(
    "--stopped",
    is_flag=True,
    help="Promise that the query is stopped, if the command cannot see it. If it sees the query running, it refuses.",
)
@click.option("--yes", is_flag=True, help="Do it without asking.")
def rewind(
    store: Opened,
    checkpoint: CheckpointSelector | None,
    undo: bool,
    spark_checkpoint: str | None,
    dry_run: bool,
    stopped: bool,
    yes: bool,
) -> int:
    """Take a whole streaming query back to CHECKPOINT.

    Every object of CHECKPOINT is read and compared first; if one is damaged, nothing is changed. Then its state is
    committed anew, on top of the history. Files of later batches are moved to the folder `rewound` of Spark's
    checkpoint, so that the next start reads the later input again. The state before the rewind is kept as a savepoint.
    --undo restores both. If a rewind was interrupted, the same command finishes it. With --dry-run the exit status is 1
    if the rewind would be refused.
    """
    if undo == (checkpoint is not None):
        raise click.UsageError("give a CHECKPOINT, or --undo")
    where = store.ck.spark_location(spark_checkpoint, None)

    def run(to: CheckpointSelector | None, options: RewindOptions) -> Rewind:
        if to is None:
            return store.read(lambda session: query.undo(session, where, options))
        return store.read(lambda session: query.rewind(session, to, where, options))

    with progress("verifying", "bytes") as on_progress:
        # Planned first, so that the question names both batches. Only a dry run reads every object here, as the
        # rewind itself does it again.
        planned = run(checkpoint, RewindOptions(stopped, dry_run=True, verify=dry_run, progress=on_progress))
    if dry_run or not planned.changes:
        _show(store, planned)
        return 0 if planned.refused is None else 1
    if planned.refused is not None:
        raise InvalidStateError(planned.refused)  # the rewind itself would raise it, but only after the question
    store.confirm(
        f"Rewind query {planned.query_id} of {store.ck.root}, with Spark's progress in {planned.spark_checkpoint}, "
        f"from batch {planned.left_batch} to {planned.batch}?",
        yes,
    )
    with progress("verifying", "bytes") as on_progress:
        done = run(
            # What was agreed to, by its id: `latest` may be another checkpoint by now.
            None if checkpoint is None else CheckpointSelector.parse(planned.to),
            RewindOptions(stopped, progress=on_progress),
        )
    _show(store, done)
    return 0


def _show(store: Opened, done: Rewind) -> None:
    """Print what a rewind changed, or would change."""
    if store.json:
        print_json(_document(done))
        return
    if not done.changes:
        print_line(f"{store.ck.root} and {done.spark_checkpoint} are both at batch {done.batch}: nothing to do")
        return
    print_facts(
        {
            "query": done.query_id,
            "state": f"batch {done.left_batch} → {done.batch}, {done.left} → {done.to}",
            "Spark": done.spark_checkpoint,
            "cut": ", ".join(done.cut),
            "written": ", ".join(done.written),
            "kept in": done.kept_in,
            "savepoint": done.savepoint,
        }
    )
    print_line()
    if done.refused is not None:
        print_line(f"Nothing was changed, and the rewind itself would be refused now: {done.refused}")
    elif done.new is None:
        print_line("Nothing was changed.")
    else:
        print_line(f"{done.new} is committed: start the query, it goes on with batch {done.batch + 1}.")
        # After an undo the query is further than before it, and no batch runs again.
        if done.left_batch < done.batch:
            return
        print_line(
            f"Batches above {done.batch} run again. If the job wrote them to other systems, delete those rows: find "
            "them by their token."
        )


def _document(done: Rewind) -> dict[str, Json]:
    """Return a rewind as `schemas.Rewind` describes it."""
    ids = {key: documents.id_or_none(getattr(done, key)) for key in ("left", "to", "new")}
    return asdict(done) | ids | {"cut": list(done.cut), "written": list(done.written)}


@verb(
    "fork",
    "fork /data/orders before-deploy /data/canary /data/canary-spark",
    "fork /data/orders latest s3://bucket/jobs/orders s3://bucket/jobs/orders-spark",
)
@click.argument("checkpoint", type=CHECKPOINT)
@click.argument("target")
@click.argument("target_spark_checkpoint")
@SPARK_CHECKPOINT
@target_options
def fork(
    store: Opened,
    checkpoint: CheckpointSelector,
    target: str,
    target_spark_checkpoint: str,
    spark_checkpoint: str | None,
    target_storage_options: StorageOptions,
    target_encryption: str | None,
    target_signing: str | None,
    target_fencing: Any,
) -> None:
    """Make a second streaming query of CHECKPOINT.

    It has the same state and progress, and a query id of its own. TARGET becomes its root, TARGET_SPARK_CHECKPOINT its
    checkpointLocation; both must be empty. Every object is verified on the way. The first query is not disturbed. Both
    read the same sources. Tokens of the two queries differ, so each needs a sink of its own. If a fork was interrupted,
    the same command finishes it.
    """
    wanted = store.read(lambda session: find(session, checkpoint))
    options = options_for(target, target_storage_options, "target_storage_options")
    with progress("copying", "bytes") as on_progress:
        made = store.ck.fork(
            wanted,
            target,
            target_spark_checkpoint,
            options,
            spark_checkpoint=spark_checkpoint,
            fencing=target_fencing,
            encryption=target_encryption,
            signing=target_signing,
            progress=on_progress,
        )
    if store.json:
        print_json(asdict(made) | {"id": str(made.id), "content_of": str(wanted)})
    else:
        print_line(f"{made.id} of {made.root} is committed, with the content of {wanted}")
        print_line(f"query {made.query_id} goes on with batch {made.batch + 1}: start it with checkpointLocation")
        print_line(f"{made.spark_checkpoint}")
        print_line(
            "Its tokens have another query id. If the job writes to other systems, give this query a sink of its own, "
            f"or stop the first query and delete what that wrote above batch {made.batch}: find it by its token."
        )
