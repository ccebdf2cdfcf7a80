"""Checkpoints as JSON, alike in every verb."""

from dataclasses import asdict

from checkpointer.overview import Listed
from manifests import measures
from manifests.model import Json, Operator
from manifests.words import moment


def listed_document(listed: Listed) -> dict[str, Json]:
    """What a list says of a checkpoint."""
    manifest, sizes = listed.manifest, measures.checkpoint_bytes(listed.manifest)
    return {
        "id": str(manifest.id),
        "sequence": manifest.id.sequence,
        "parent": str(manifest.parent.id) if manifest.parent else None,
        "epoch": manifest.epoch,
        "created": moment(manifest.created),
        "state": listed.state,
        "savepoints": list(listed.savepoints),
        "operators": sorted(manifest.operators),
        "partitions": sum(map(measures.partitions, manifest.operators.values())),
        "bytes": sizes[0] if sizes else None,
        "own_bytes": sizes[1] if sizes else None,
    }


def operator_document(operator: Operator) -> dict[str, Json]:
    """What one operator of a checkpoint is, and holds."""
    return {
        "codec": operator.codec,
        "partitioner": operator.partitioner,
        "declared_partitions": operator.partitions,
        **asdict(measures.operator_size(operator)),
        "schema": operator.schema,
    }
