"""Implement `checkpointer tree`: the parts of one checkpoint.

They are its operators, partitions and artifacts.
"""

import click

from pyspark_checkpointer.admin import checkpoint_sizes
from pyspark_checkpointer.checkpoint.listing import Listed, read_listed
from pyspark_checkpointer.checkpoint.restore import find_operator
from pyspark_checkpointer.checkpoint.selector import LATEST, CheckpointSelector
from pyspark_checkpointer.cli import documents, schemas
from pyspark_checkpointer.cli.arguments import CHECKPOINT, OPERATOR
from pyspark_checkpointer.cli.screen import Node, print_json, print_tree
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import count, size
from pyspark_checkpointer.manifests.model import Operator

_MAX_PARTITIONS = 20
"""Partitions of an operator that are shown without --all."""


@verb("tree", "tree /data/orders", "tree /data/orders epoch=42 --operator totals --all")
@click.argument("checkpoint", type=CHECKPOINT, default=LATEST)
@click.option("--operator", type=OPERATOR, metavar="NAME", help="Show only this operator.")
@click.option(
    "--all", "everything", is_flag=True, help=f"Show all partitions, not the first {_MAX_PARTITIONS} of each operator."
)
def command(store: Opened, checkpoint: CheckpointSelector, operator: str | None, everything: bool) -> None:
    """Show what a checkpoint is made of.

    It shows the operators of CHECKPOINT, by default of the committed one; their partitions; and every
    artifact with its kind, its size, its records, the beginning of its digest, and the checkpoint that wrote it. If
    several artifacts share an object, it shows the offset of each.
    """
    listed = store.read(lambda session: read_listed(session, checkpoint))
    document = _document(listed, operator, None if everything else _MAX_PARTITIONS)
    if store.json:
        print_json(document)
    else:
        print_tree(_tree(document))


def _document(listed: Listed, only: str | None, most: int | None) -> schemas.Checkpoint:
    manifest = listed.manifest
    if only is not None:
        find_operator(manifest.operators, only)  # raises if the checkpoint does not have it
    return {
        **documents.checkpoint(listed),
        "contents": [
            _operator(name, operator, most)
            for name, operator in sorted(manifest.operators.items())
            if only in (None, name)
        ],
    }


def _operator(name: str, operator: Operator, most: int | None) -> schemas.Operator:
    sizes = checkpoint_sizes.partition_bytes(operator)
    shown = sorted(operator.chains)[:most]
    partitions: list[schemas.Partition] = [
        {
            "operator": name,
            "partition": number,
            "bytes": sizes[number],
            "chain_length": len(operator.chains[number]),
            "records": sum(artifact.records for artifact in operator.chains[number]),
            "artifacts": list(map(documents.artifact, operator.chains[number])),
        }
        for number in shown
    ]
    return {
        **documents.operator(name, operator),
        "contents": partitions,
        "left_out": len(operator.chains) - len(shown),
    }


def _tree(document: schemas.Checkpoint) -> Node:
    epoch = "" if document["epoch"] is None else f" · epoch {document['epoch']}"
    label = f"{document['id']}{epoch} · {document['state']} · {document['created']}"
    return Node(label, tuple(map(_operator_node, document["contents"])))


def _operator_node(operator: schemas.Operator) -> Node:
    partitions = operator["contents"]
    children = [
        Node(f"partition {p['partition']} · {size(p['bytes'])}", tuple(map(_artifact_node, p["artifacts"])))
        for p in partitions
    ]
    if operator["left_out"]:
        children.append(Node(f"and {count(operator['left_out'], 'more partition')}: add --all"))
    held = count(operator["partitions"], "partition")
    stored = size(operator["snapshot_bytes"] + operator["delta_bytes"])
    return Node(f"{operator['name']} · {operator['codec']} · {held} · {stored}", tuple(children))


def _artifact_node(artifact: schemas.Artifact) -> Node:
    parts = [
        artifact["kind"],
        size(artifact["bytes"]),
        count(artifact["records"], "record"),
        f"sha256 {artifact['digest'][:12]}",
        f"by {artifact['written_by']}",
    ]
    if artifact["bytes"] != artifact["object_bytes"]:
        parts.append(f"byte {artifact['offset']} of a pack of {size(artifact['object_bytes'])}")
    return Node(" · ".join(map(str, parts)))
