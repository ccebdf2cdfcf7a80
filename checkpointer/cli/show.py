"""Implement `checkpointer show`: everything about one checkpoint."""

import click

from pyspark_checkpointer.admin import checkpoint_sizes
from pyspark_checkpointer.checkpoint.listing import Listed, read_listed
from pyspark_checkpointer.checkpoint.selector import LATEST, CheckpointSelector
from pyspark_checkpointer.cli import documents, schemas
from pyspark_checkpointer.cli.arguments import CHECKPOINT
from pyspark_checkpointer.cli.screen import print_facts, print_json, print_line, print_table, to_text
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import age, size, spread

_OPERATORS = (
    TextColumn("OPERATOR"),
    TextColumn("CODEC"),
    TextColumn("PARTITIONER", extra=True),
    TextColumn("PARTITIONS", right=True),
    TextColumn("CHAIN", right=True),
    TextColumn("SNAPSHOTS", right=True),
    TextColumn("DELTAS", right=True),
    TextColumn("RECORDS", right=True),
    TextColumn("OBJECTS", right=True, extra=True),
)
_PARTITIONS = (
    TextColumn("OPERATOR"),
    TextColumn("PARTITION", right=True),
    TextColumn("SIZE", right=True),
    TextColumn("CHAIN", right=True),
    TextColumn("RECORDS", right=True),
)


@verb("show", "show /data/orders", "show /data/orders epoch=41", "show /data/orders before-migration --json")
@click.argument("checkpoint", type=CHECKPOINT, default=LATEST)
def command(store: Opened, checkpoint: CheckpointSelector) -> None:
    """Show everything about one checkpoint.

    CHECKPOINT is by default the committed one. CHAIN is the number of artifacts of a partition, its snapshot and its
    deltas: minimum, median, maximum. SNAPSHOTS and DELTAS are stored bytes. RECORDS includes the records of deltas.
    """
    listed = store.read(lambda session: read_listed(session, checkpoint))
    document = _document(listed)
    if store.json:
        print_json(document)
        return
    print_facts(_facts(document, age(listed.manifest.created, store.now)))
    print_line()
    print_table(_OPERATORS, list(map(_row, document["contents"])))
    if biggest := document["biggest_partitions"]:
        print_line()
        print_line("Biggest partitions")
        print_table(
            _PARTITIONS,
            [(p["operator"], p["partition"], size(p["bytes"]), p["chain_length"], p["records"]) for p in biggest],
        )


def _document(listed: Listed) -> schemas.Checkpoint:
    manifest = listed.manifest
    return {
        **documents.checkpoint(listed),
        "job": documents.job(manifest.job),
        "positions": dict(manifest.positions),
        "properties": dict(manifest.properties),
        "watermark": manifest.watermark,
        "clock": None if manifest.clock is None else documents.time(manifest.clock.at),
        "contents": [documents.operator(name, operator) for name, operator in sorted(manifest.operators.items())],
        "biggest_partitions": list(map(documents.partition, checkpoint_sizes.biggest_partitions(manifest))),
    }


def _facts(document: schemas.Checkpoint, age_of: str | None) -> dict[str, object]:
    """Return the names and values that are printed above the tables, in their order."""
    job = document["job"]
    facts: dict[str, object] = {name: document.get(name) for name in ("id", "parent", "epoch", "state")}
    facts["created"] = document["created"] and f"{document['created']}, {age_of}"
    facts["savepoints"] = ", ".join(document["savepoints"])
    facts["size"] = size(document["bytes"])
    facts["own size"] = size(document["own_bytes"])
    facts["job"] = job and f"query {job['query_id']}, run {job['run_id']}, batch {job['batch_id']}"
    facts["driver"] = job and job["driver"]
    facts["Spark"] = job and job["spark"] and job["spark"]["location"]
    facts["watermark"] = None if document["watermark"] is None else to_text(document["watermark"])
    facts["clock"] = document["clock"]
    facts |= {f"position {name}": to_text(value) for name, value in document["positions"].items()}
    facts |= {f"property {name}": to_text(value) for name, value in document["properties"].items()}
    return facts


def _row(operator: schemas.Operator) -> tuple[object, ...]:
    return (
        operator["name"],
        operator["codec"],
        operator["partitioner"],
        operator["partitions"],
        spread(operator["chain_lengths"]),
        size(operator["snapshot_bytes"]),
        size(operator["delta_bytes"]),
        operator["records"],
        operator["objects"],
    )
