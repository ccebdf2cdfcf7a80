"""Make the values that `checkpointer report --json` prints."""

from pyspark_checkpointer.cli import documents, schemas
from pyspark_checkpointer.cli.report_page.model import CheckpointRow, Committed, OperatorRow, PointerSummary, Report
from pyspark_checkpointer.display import moment


def report(found: Report) -> schemas.Report:
    """Describe a report."""
    return {
        "verdict": found.verdict,
        "root": found.root,
        "made": documents.time(found.made),
        "pointer": None if found.pointer is None else _pointer(found.pointer),
        "committed": None if found.committed is None else _committed(found.committed),
        "checkpoints": list(map(_checkpoint, found.checkpoints)),
        "operators": list(map(_operator, found.operators)),
        "unread_operators": list(found.unread_operators),
        "biggest_partitions": list(map(documents.partition, found.biggest)),
        "savepoints": [
            {"name": s.name, "id": str(s.id), "created": documents.time(s.created)} for s in found.savepoints
        ],
        "cleanup": {
            "totals": [
                {"action": row.action, "reason": row.reason, "objects": row.objects, "bytes": row.bytes}
                for row in found.cleanup.rows
            ],
            "retired": documents.ids(found.cleanup.retired),
            "note": found.cleanup.note,
        },
        "verification": documents.verification(found.verification),
        "share": found.share,
        "chains_left_out": found.chains_left_out,
        "candidates": list(map(documents.candidate, found.candidates)),
    }


def _pointer(found: PointerSummary) -> schemas.Pointer:
    return {
        "writer": {"number": found.writer.epoch, "instance": found.writer.instance},
        "committed": documents.id_or_none(found.committed),
        "prepared": documents.id_or_none(found.prepared),
        "boundary": found.boundary,
        "retired": [{"boundary": old.boundary, "at": documents.time(old.at)} for old in found.retired],
    }


def _committed(found: Committed) -> schemas.Committed:
    return {
        "job": documents.job(found.job),
        "watermark": found.watermark,
        "positions": dict(found.positions),
        "properties": dict(found.properties),
    }


def _checkpoint(row: CheckpointRow) -> schemas.Checkpoint:
    return {
        "id": str(row.id),
        "sequence": row.id.sequence,
        "epoch": row.epoch,
        "created": moment(row.created),
        "state": row.state,
        "savepoints": list(row.savepoints),
        "bytes": row.bytes,
        "own_bytes": row.own_bytes,
        "snapshot_bytes": row.snapshot_bytes,
        "delta_bytes": row.delta_bytes,
        "cost": documents.cost(row.cost),
        "damaged": row.damaged,
    }


def _operator(row: OperatorRow) -> schemas.Operator:
    known = documents.operator_of(row.name, row.codec, row.partitioner, row.declared_partitions, row.size, row.schema)
    return known | {
        "chain_counts": [{"chain_length": length, "partitions": count} for length, count in row.lengths],
        "partition_bytes": documents.spread(row.partition_bytes),
    }
