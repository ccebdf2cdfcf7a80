"""Make the values that `--json` prints from what the core returns.

`schemas` describes these values.
"""

from collections.abc import Iterable
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING

from pyspark_checkpointer.admin import checkpoint_sizes
from pyspark_checkpointer.admin.candidate import Candidate
from pyspark_checkpointer.admin.checkpoint_sizes import OperatorSize, PartitionSize, Spread
from pyspark_checkpointer.admin.losses import Loss, OlderState, RepairPlan
from pyspark_checkpointer.admin.retention.classifier import PlanRow
from pyspark_checkpointer.admin.retention.spool import Total
from pyspark_checkpointer.admin.retention.waiting import PlannedFollower
from pyspark_checkpointer.admin.savepoints import Savepoint
from pyspark_checkpointer.checkpoint.listing import Listed
from pyspark_checkpointer.checkpoint.verification import Finding, Verification
from pyspark_checkpointer.cli import schemas
from pyspark_checkpointer.display import moment
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import Artifact, CheckpointId, Cost, Job, Operator

if TYPE_CHECKING:
    from pyspark_checkpointer.table.export import Exported  # needs pyarrow, of the extra `spark`


def id_or_none(checkpoint: CheckpointId | None) -> str | None:
    """Return the text of an id, or None."""
    return None if checkpoint is None else str(checkpoint)


def ids(checkpoints: Iterable[CheckpointId]) -> list[str]:
    """Return the texts of ids."""
    return list(map(str, checkpoints))


def checkpoint(listed: Listed) -> schemas.Checkpoint:
    """Describe a checkpoint, without its content."""
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


def planned_follower(found: PlannedFollower) -> schemas.PlannedFollower:
    """Describe a follower in a cleanup."""
    return {"name": found.name, "behind": found.behind, "keeps": found.keeps, "outrun": found.outrun}


def operator(name: str, found: Operator) -> schemas.Operator:
    """Describe an operator of a checkpoint."""
    return operator_of(
        name, found.codec, found.partitioner, found.partitions, checkpoint_sizes.operator_size(found), found.schema
    )


def operator_of(
    name: str, codec: str, partitioner: str, declared: int, size: OperatorSize, schema: object
) -> schemas.Operator:
    """Describe an operator whose sizes are known."""
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
    """Describe the files that were written as Parquet."""
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
    """Describe the distribution of some numbers, or None."""
    if found is None:
        return None
    return {"minimum": found.minimum, "median": found.median, "maximum": found.maximum}


def partition(found: PartitionSize) -> schemas.Partition:
    """Describe a partition by its sizes."""
    return {
        "operator": found.operator,
        "partition": found.partition,
        "bytes": found.bytes,
        "chain_length": found.chain,
        "records": found.records,
    }


def artifact(found: Artifact) -> schemas.Artifact:
    """Describe an artifact of a chain."""
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
    """Describe the Spark batch that wrote a checkpoint, if there was one."""
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
            "gone": dict(spark.gone),
        },
    }


def cost(found: Cost | None) -> schemas.Cost | None:
    """Describe what a checkpoint cost, if its manifest says so."""
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
    """Describe a savepoint."""
    return {"name": found.name, "id": str(found.id), "created": time(found.created)}


def time(at: datetime) -> str:
    """Return the text of a time."""
    text = moment(at)
    assert text is not None
    return text


def finding(found: Finding) -> schemas.Finding:
    """Describe a finding of a verification."""
    return {
        "path": found.path,
        "problem": found.problem,
        "missing": found.missing,
        "checkpoints": ids(found.checkpoints),
        "and_older": found.and_older,
        "hurts": found.hurt,
    }


def verification(found: Verification) -> schemas.Verification:
    """Describe a verification: all findings, and how much was compared."""
    return {
        "checkpoints": found.checkpoints,
        "objects": found.objects,
        "bytes": found.bytes,
        "skipped": found.skipped,
        "findings": list(map(finding, found.findings)),
        "elsewhere": list(map(finding, found.elsewhere)),
        "signed": None if found.signed is None else {"at": time(found.signed.at), "signer": found.signed.signer},
        "unread": found.unread,
    }


def amount(total: Total) -> schemas.Amount:
    """Describe a number of objects and their bytes."""
    return {"objects": total.objects, "bytes": total.bytes}


def plan_row(row: PlanRow) -> schemas.PlanRow:
    """Describe an object of a cleanup plan."""
    return {
        "path": row.path,
        "bytes": row.size,
        "action": row.action,
        "reason": row.reason,
        "referenced_by": row.referenced_by,
        "reference_count": row.reference_count,
        "leftover": row.leftover,
    }


def candidate(found: Candidate) -> schemas.Candidate:
    """Describe a manifest that a store could be repaired to."""
    return asdict(found) | {  # type: ignore[return-value]  # the fields that are not named here are as they are
        "id": str(found.id),
        "created": moment(found.created),
        "job": job(found.job),
        "problems": list(found.problems),
        "savepoints": list(found.savepoints),
        "proven": found.proven,
    }


def commit(new: CheckpointId, root: str, content_of: CheckpointId) -> schemas.Commit:
    """Describe a commit with the content of another checkpoint."""
    return {"id": str(new), "root": root, "content_of": str(content_of)}


def repair_plan(plan: RepairPlan) -> schemas.RepairPlan:
    """Describe what a repair would keep, and what it would lose."""
    return {
        "content_of": str(plan.id),
        "epoch": plan.epoch,
        "whole": plan.kept,
        "losses": [_loss(loss) for loss in plan.losses],
        "lost_savepoints": list(plan.savepoints),
    }


def _loss(found: Loss) -> schemas.Loss:
    """Describe a damaged partition."""
    return {
        "operator": found.operator,
        "partition": found.partition,
        "problem": found.problem,
        "records": found.records,
        "older": None if found.older is None else _older(found.older),
    }


def _older(found: OlderState) -> schemas.OlderState:
    """Describe an older state of a damaged partition."""
    return {"id": id_or_none(found.id), "epoch": found.epoch, "records": found.records}


def repaired(
    new: CheckpointId, root: str, content_of: CheckpointId, plan: RepairPlan, older_partitions: bool
) -> schemas.Repair:
    """Describe a commit that a repair made, and what it lost."""
    return {
        "id": str(new),
        "root": root,
        "content_of": str(content_of),
        "lost": None if plan else repair_plan(plan),  # a plan is true where nothing is lost
        "older_partitions": older_partitions,
    }
