"""`checkpointer show`."""

from dataclasses import asdict

import click

from checkpointer.cli.documents import listed_document, operator_document
from checkpointer.cli.screen import Column, print_facts, print_json, print_line, print_table, to_text
from checkpointer.cli.verb import CHECKPOINT, Opened, verb
from checkpointer.overview import LATEST, Listed, read_listed
from manifests import measures
from manifests.model import Json
from manifests.words import age, size, spread

_OPERATORS = (
    Column("OPERATOR"),
    Column("CODEC"),
    Column("PARTITIONER", extra=True),
    Column("PARTITIONS", right=True),
    Column("CHAIN", right=True),
    Column("SNAPSHOTS", right=True),
    Column("DELTAS", right=True),
    Column("RECORDS", right=True),
    Column("OBJECTS", right=True, extra=True),
)
_PARTITIONS = (
    Column("OPERATOR"),
    Column("PARTITION", right=True),
    Column("SIZE", right=True),
    Column("CHAIN", right=True),
    Column("RECORDS", right=True),
)


@verb("show", "show /data/orders", "show /data/orders epoch=41", "show /data/orders before-migration --json")
@click.argument("checkpoint", type=CHECKPOINT, default=LATEST)
def command(store: Opened, checkpoint: str) -> None:
    """Show everything about one checkpoint.

    CHECKPOINT is the committed one unless another is given. CHAIN is how many objects a partition's state is made of,
    one snapshot and then deltas: the fewest, the median, the most. SNAPSHOTS and DELTAS are stored bytes. RECORDS
    counts those of deltas too.
    """
    listed = store.read(lambda session: read_listed(session, checkpoint))
    document = _document(listed)
    if store.json:
        print_json(document)
        return
    print_facts(_facts(document, age(listed.manifest.created, store.now)))
    print_line()
    print_table(_OPERATORS, [_row(name, operator) for name, operator in document["operators"].items()])
    if biggest := document["biggest_partitions"]:
        print_line()
        print_line("Biggest partitions")
        print_table(
            _PARTITIONS, [(p["operator"], p["partition"], size(p["bytes"]), p["chain"], p["records"]) for p in biggest]
        )


def _document(listed: Listed) -> dict[str, Json]:
    manifest = listed.manifest
    return listed_document(listed) | {
        "job": asdict(manifest.job) if manifest.job else None,
        "positions": dict(manifest.positions),
        "properties": dict(manifest.properties),
        "watermark": manifest.watermark,
        "operators": {name: operator_document(operator) for name, operator in sorted(manifest.operators.items())},
        "biggest_partitions": [asdict(partition) for partition in measures.biggest_partitions(manifest)],
    }


def _facts(document: dict[str, Json], age_of: str | None) -> dict[str, object]:
    """What stands above the tables, in their order."""
    job = document["job"]
    facts: dict[str, object] = {name: document[name] for name in ("id", "parent", "epoch", "state")}
    facts["created"] = document["created"] and f"{document['created']}, {age_of}"
    facts["savepoints"] = ", ".join(document["savepoints"])
    facts["size"] = size(document["bytes"])
    facts["own size"] = size(document["own_bytes"])
    facts["job"] = job and f"query {job['query_id']}, run {job['run_id']}, batch {job['batch_id']}"
    facts["driver"] = job and job["driver"]
    facts["Spark"] = job and job["spark"] and job["spark"]["location"]
    facts["watermark"] = None if document["watermark"] is None else to_text(document["watermark"])
    facts |= {f"position {name}": to_text(value) for name, value in document["positions"].items()}
    facts |= {f"property {name}": to_text(value) for name, value in document["properties"].items()}
    return facts


def _row(name: str, operator: dict[str, Json]) -> tuple[object, ...]:
    return (
        name,
        operator["codec"],
        operator["partitioner"],
        operator["partitions"],
        spread(operator["chain"]),
        size(operator["snapshot_bytes"]),
        size(operator["delta_bytes"]),
        operator["records"],
        operator["objects"],
    )
