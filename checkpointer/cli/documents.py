"""Make the values that `--json` prints, as `schemas` describes them, from what the core returns."""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark_checkpointer.admin import checkpoint_sizes
from pyspark_checkpointer.admin.checkpoint_sizes import OperatorSize, PartitionSize, Spread
from pyspark_checkpointer.admin.losses import Loss, Older, RepairPlan
from pyspark_checkpointer.admin.repair_candidates import Candidate
from pyspark_checkpointer.admin.retention.plan import PlanRow, Total
from pyspark_checkpointer.admin.savepoints import Savepoint
from pyspark_checkpointer.checkpoint.listing import Listed
from pyspark_checkpointer.checkpoint.verify import Finding, Verification
from pyspark_checkpointer.cli import schemas
from pyspark_checkpointer.display import moment
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Cost, Job, Operator

if TYPE_CHECKING:
    from pyspark_checkpointer.table.export import Exported  # it takes pyarrow, which not all have


def id_or_none(checkpoint: CheckpointId | None) -> str | None:
    """Return the text of an id."""
    return None if checkpoint is None else str(checkpoint)


def ids(checkpoints: Iterable[CheckpointId]) -> list[str]:
    """Return the texts of ids."""
    return list(map(str, checkpoints))


def checkpoint(listed: Listed) -> schemas.Checkpoint:
    """What a list says of a checkpoint."""
    manifest, sizes = listed.manifest, checkpoint_sizes.checkpoint_bytes(listed.manifest)
    return {
        "id": str(manifest.id),
        "sequence": manifest.id.sequence,
        "parent": id_or_none(manifest.parent.id if manifest.parent else None),
        "epoch": manifest.epoch,
        "created": moment(manifest.created),
        "state": listed.state,
        "savepoints": list(listed.savepoints),
        "operators": sorted(manifest.operators),
        "partitions": sum(map(checkpoint_sizes.partitions, manifest.operators.values())),
        "bytes": sizes[0] if sizes else None,
        "own_bytes": sizes[1] if sizes else None,
    }


def operator(name: str, found: Operator) -> schemas.Operator:
    """Return one operator of a checkpoint, and what it holds."""
    return operator_of(
        name, found.codec, found.partitioner, found.partitions, checkpoint_sizes.operator_size(found), found.schema
    )


def operator_of(
    name: str, codec: str, partitioner: str, declared: int, size: OperatorSize, schema: object
) -> schemas.Operator:
    """Return the same, of its parts."""
    return {
        "name": name,
        "codec": codec,
        "partitioner": partitioner,
        "declared_partitions": declared,
        "partitions": size.partitions,
        "chain_lengths": spread(size.chain),
        "snapshot_bytes": size.snapshot_bytes,
        "delta_bytes": size.delta_bytes,
        "records": size.records,
        "objects": size.objects,
        "object_bytes": size.object_bytes,
        "schema": schema,
    }


def exported(made: "Exported") -> schemas.Exported:
    """Tell what was written as Parquet."""
    return {
        "id": str(made.id),
        "epoch": made.epoch,
        "target": made.target,
        "operators": [
            {"name": one.name, "kind": one.kind, "folder": one.folder, "rows": one.rows, "files": one.files}
            for one in made.operators
        ],
        "left_out": list(made.left_out),
    }


def spread(found: Spread | None) -> schemas.Spread | None:
    """Return the smallest, the middle and the largest."""
    if found is None:
        return None
    return {"minimum": found.minimum, "median": found.median, "maximum": found.maximum}


def partition(found: PartitionSize) -> schemas.Partition:
    """Return one of the biggest partitions."""
    return {
        "operator": found.operator,
        "partition": found.partition,
        "bytes": found.bytes,
        "chain_length": found.chain,
        "records": found.records,
    }


def artifact(found: Artifact) -> schemas.Artifact:
    """Return one artifact of a chain."""
    return {
        "kind": found.kind,
        "path": found.path,
        "offset": found.offset,
        "bytes": found.length,
        "object_bytes": found.size,
        "raw_bytes": found.raw_size,
        "records": found.records,
        "digest": found.digest,
        "written_by": str(object_paths.owner(found.path)),
    }


def job(found: Job | None) -> schemas.Job | None:
    """Return what Spark called the batch."""
    if found is None:
        return None
    spark = found.spark
    return {
        "query_id": found.query_id,
        "run_id": found.run_id,
        "batch_id": found.batch_id,
        "driver": found.driver,
        "spark": None
        if spark is None
        else {
            "location": spark.location,
            "offsets": spark.offsets,
            "before": list(spark.before),
            "lists": dict(spark.lists),
        },
    }


def cost(found: Cost | None) -> schemas.Cost | None:
    """What a checkpoint cost."""
    if found is None:
        return None
    return {
        "requests": found.requests,
        "objects": found.objects,
        "bytes": found.bytes,
        "elapsed_seconds": found.elapsed_us / 1_000_000,
        "blocked_seconds": found.blocked_us / 1_000_000,
    }


def savepoint(found: Savepoint) -> schemas.Savepoint:
    """A name, and what it keeps."""
    return {"name": found.name, "id": str(found.id), "created": time(found.created)}


def time(at: datetime) -> str:
    """Return a time that is known."""
    text = moment(at)
    assert text is not None
    return text


def finding(found: Finding) -> schemas.Finding:
    """Return one finding of a verification."""
    return {
        "path": found.path,
        "problem": found.problem,
        "missing": found.missing,
        "checkpoints": ids(found.checkpoints),
        "and_older": found.and_older,
    }


def verification(found: Verification) -> schemas.Verification:
    """Return all findings, and what they rest on."""
    return {
        "checkpoints": found.checkpoints,
        "objects": found.objects,
        "bytes": found.bytes,
        "skipped": found.skipped,
        "findings": list(map(finding, found.findings)),
        "elsewhere": list(map(finding, found.elsewhere)),
    }


def amount(total: Total) -> schemas.Amount:
    """So many objects, and bytes."""
    return {"objects": total.objects, "bytes": total.bytes}


def plan_row(row: PlanRow) -> schemas.PlanRow:
    """Return one object of a plan."""
    return {
        "path": row.path,
        "bytes": row.size,
        "action": row.action,
        "reason": row.reason,
        "named_by": row.named_by,
        "namers": row.namers,
        "leftover": row.leftover,
    }


def candidate(found: Candidate) -> schemas.Candidate:
    """Return what a store could be repaired to."""
    return asdict(found) | {  # type: ignore[return-value]  # the fields that are not named here are as they are
        "id": str(found.id),
        "created": moment(found.created),
        "job": job(found.job),
        "problems": list(found.problems),
        "savepoints": list(found.savepoints),
        "proven": found.proven,
    }


def commit(new: CheckpointId, root: str, content_of: CheckpointId) -> schemas.Commit:
    """A commit with the content of another checkpoint."""
    return {"id": str(new), "root": root, "content_of": str(content_of)}


def repair_plan(plan: RepairPlan) -> schemas.RepairPlan:
    """What a repair would keep and miss."""
    return {
        "content_of": str(plan.id),
        "epoch": plan.epoch,
        "whole": plan.kept,
        "losses": [_loss(loss) for loss in plan.losses],
        "lost_savepoints": list(plan.savepoints),
    }


def _loss(found: Loss) -> schemas.Loss:
    return {
        "operator": found.operator,
        "partition": found.partition,
        "problem": found.problem,
        "records": found.records,
        "older": None if found.older is None else _older(found.older),
    }


def _older(found: Older) -> schemas.OlderState:
    return {"id": id_or_none(found.id), "epoch": found.epoch, "records": found.records}


def repaired(
    new: CheckpointId, root: str, content_of: CheckpointId, plan: RepairPlan, older_partitions: bool
) -> schemas.Repair:
    """A commit that a repair made. A plan is true where nothing is missing."""
    return {
        "id": str(new),
        "root": root,
        "content_of": str(content_of),
        "lost": None if plan else repair_plan(plan),
        "older_partitions": older_partitions,
    }
