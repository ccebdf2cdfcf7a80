"""Show checkpoints in a notebook.

There are tables of the checkpoints of a root, the operators of a checkpoint, and the partitions of an operator.
"""

import asyncio

from pyspark_checkpointer.admin import checkpoint_sizes
from pyspark_checkpointer.admin.checkpoint_sizes import checkpoint_bytes
from pyspark_checkpointer.checkpoint.listing import read_listing
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.display import age, count, moment, note, size, table
from pyspark_checkpointer.manifests.model import Manifest, Operator
from pyspark_checkpointer.runtime import run_sync

SECONDS = 10
"""Seconds that a notebook waits for a store that may not answer at all."""

_MAX_ROWS = 20
"""Checkpoints or partitions that a table has."""

_TITLES = ("id", "epoch", "created", "age", "state", "size", "operators", "savepoints")


def checkpoints_html(session: Session, name: str) -> str:
    """Return the newest checkpoints of a root under `name`.

    It never raises: an error is shown in their place.
    """
    try:
        checkpoints = run_sync(asyncio.wait_for(read_listing(session), SECONDS)).checkpoints
    except TimeoutError:
        return note(f"{name}: the store did not answer within {SECONDS} seconds")
    # A notebook shows this without having been asked to, so it must not fail in the place of the cell.
    except Exception as error:
        return note(f"{name}: {type(error).__name__}: {error}")
    if not checkpoints:
        return note(f"{name}: nothing is committed yet")
    now = session.host.now()
    rows = [
        (
            listed.ref.id,
            listed.manifest.epoch,
            moment(listed.manifest.created),
            age(listed.manifest.created, now),
            listed.state,
            size(sizes[0] if (sizes := checkpoint_bytes(listed.manifest)) else None),
            len(listed.manifest.operators),
            ", ".join(listed.savepoints),
        )
        for listed in reversed(checkpoints[-_MAX_ROWS:])
    ]
    more = f": the newest {_MAX_ROWS} of {len(checkpoints)} checkpoints" if len(checkpoints) > _MAX_ROWS else ""
    return table(f"{name}{more}", _TITLES, rows)


def manifest_html(manifest: Manifest) -> str:
    """Return the operators of a checkpoint.

    `?` stands for sizes whose chains were not loaded.
    """
    rows = []
    for name, operator in sorted(manifest.operators.items()):
        held: tuple[object, ...] = (None, None, "?", "?")
        if checkpoint_sizes.is_loaded(operator):
            of = checkpoint_sizes.operator_size(operator)
            held = (of.chain and of.chain.maximum, of.records, size(of.snapshot_bytes), size(of.delta_bytes))
        rows.append((name, operator.codec, checkpoint_sizes.partitions(operator), *held))
    epoch = "" if manifest.epoch is None else f", epoch {manifest.epoch}"
    made = "" if manifest.created is None else f", {moment(manifest.created)}"
    titles = ("operator", "codec", "partitions", "longest chain", "records", "snapshots", "deltas")
    return table(f"Checkpoint {manifest.id}{epoch}{made}", titles, rows)


def operator_html(name: str, operator: Operator) -> str:
    """Return the first partitions of an operator, with the objects of each."""
    sizes = checkpoint_sizes.partition_bytes(operator)
    rows = [
        (number, size(sizes[number]), len(chain), sum(artifact.records for artifact in chain))
        for number, chain in sorted(operator.chains.items())[:_MAX_ROWS]
    ]
    more = f", the first {_MAX_ROWS}" if len(sizes) > _MAX_ROWS else ""
    caption = f"{name}, {operator.codec}, {count(len(sizes), 'partition')}{more}"
    return table(caption, ("partition", "size", "chain", "records"), rows)
