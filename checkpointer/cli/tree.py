"""`checkpointer tree`."""

import click

from checkpointer.cli.screen import Node, print_json, print_tree
from checkpointer.cli.verb import CHECKPOINT, Opened, verb
from checkpointer.overview import LATEST, Listed, read_listed
from manifests import layout, measures
from manifests.model import Artifact, Json, Operator
from manifests.words import count, moment, size

_PARTITIONS = 20


@verb("tree", "tree /data/orders", "tree /data/orders 42 --operator totals --all")
@click.argument("checkpoint", type=CHECKPOINT, default=LATEST)
@click.option("--operator", metavar="NAME", help="Only this operator.")
@click.option(
    "--all", "everything", is_flag=True, help=f"All partitions, not the first {_PARTITIONS} of each operator."
)
def command(store: Opened, checkpoint: str, operator: str | None, everything: bool) -> None:
    """Show what a checkpoint is made of.

    The operators of CHECKPOINT, the committed one unless another is given; their partitions; and every artifact with
    its kind, its size, its records, the beginning of its digest, and the checkpoint that wrote it; and where it stands
    in its object, if that holds others too.
    """
    listed = store.read(lambda session: read_listed(session, checkpoint))
    document = _document(listed, operator, None if everything else _PARTITIONS)
    if store.json:
        print_json(document)
    else:
        print_tree(_tree(document))


def _document(listed: Listed, only: str | None, most: int | None) -> dict[str, Json]:
    manifest = listed.manifest
    if only is not None and only not in manifest.operators:
        names = ", ".join(sorted(manifest.operators)) or "none"
        raise click.BadParameter(f"the checkpoint has no operator {only!r}, but {names}", param_hint="--operator")
    return {
        "id": str(manifest.id),
        "epoch": manifest.epoch,
        "created": moment(manifest.created),
        "state": listed.state,
        "operators": [
            _operator(name, operator, most)
            for name, operator in sorted(manifest.operators.items())
            if only in (None, name)
        ],
    }


def _operator(name: str, operator: Operator, most: int | None) -> Json:
    sizes = measures.partition_bytes(operator)
    shown = sorted(operator.chains)[:most]
    return {
        "name": name,
        "codec": operator.codec,
        "partitioner": operator.partitioner,
        "bytes": sum(sizes.values()),
        "partitions": [
            {"partition": p, "bytes": sizes[p], "artifacts": [_artifact(a) for a in operator.chains[p]]} for p in shown
        ],
        "left_out": len(operator.chains) - len(shown),
    }


def _artifact(artifact: Artifact) -> Json:
    return {
        "kind": artifact.kind,
        "length": artifact.length,
        "records": artifact.records,
        "digest": artifact.digest,
        "written_by": str(layout.owner(artifact.path)),
        "path": artifact.path,
        "offset": artifact.offset,
        "object_size": artifact.size,
        "raw_size": artifact.raw_size,
    }


def _tree(document: dict[str, Json]) -> Node:
    epoch = "" if document["epoch"] is None else f" · epoch {document['epoch']}"
    label = f"{document['id']}{epoch} · {document['state']} · {document['created']}"
    return Node(label, tuple(map(_operator_node, document["operators"])))


def _operator_node(operator: dict[str, Json]) -> Node:
    partitions = operator["partitions"]
    children = [
        Node(f"partition {p['partition']} · {size(p['bytes'])}", tuple(map(_artifact_node, p["artifacts"])))
        for p in partitions
    ]
    if operator["left_out"]:
        children.append(Node(f"and {count(operator['left_out'], 'more partition')}: add --all"))
    held = count(len(partitions) + operator["left_out"], "partition")
    return Node(f"{operator['name']} · {operator['codec']} · {held} · {size(operator['bytes'])}", tuple(children))


def _artifact_node(artifact: dict[str, Json]) -> Node:
    parts = [
        artifact["kind"],
        size(artifact["length"]),
        count(artifact["records"], "record"),
        f"sha256 {artifact['digest'][:12]}",
        f"by {artifact['written_by']}",
    ]
    if artifact["length"] != artifact["object_size"]:
        parts.append(f"byte {artifact['offset']} of a pack of {size(artifact['object_size'])}")
    return Node(" · ".join(map(str, parts)))
