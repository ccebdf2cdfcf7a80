"""Implement `checkpointer stats`: show what a whole store holds."""

from dataclasses import asdict

from pyspark_checkpointer.admin.stats import StoreStats, read_stats
from pyspark_checkpointer.cli import documents, schemas
from pyspark_checkpointer.cli.screen import print_facts, print_json, print_line, print_table, progress
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import size, spread

_HELD = (TextColumn("OPERATOR"), TextColumn("KIND"), TextColumn("OBJECTS", right=True), TextColumn("SIZE", right=True))
_CURRENT = (
    TextColumn("OPERATOR"),
    TextColumn("PARTITIONS", right=True),
    TextColumn("CHAIN", right=True),
    TextColumn("SNAPSHOTS", right=True),
    TextColumn("DELTAS", right=True),
    TextColumn("RECORDS", right=True),
)


@verb("stats", "stats /data/orders", "stats s3://bucket/jobs/orders --json")
def command(store: Opened) -> None:
    """Show what the whole store holds.

    It counts the objects that live checkpoints name, by operator and kind, each object once. It shows the length of the
    chains of the committed checkpoint (minimum, median, maximum), and how much a commit writes. Objects that a cleanup
    would remove are not counted.
    """
    with progress("counting", "items") as on_progress:
        stats = store.read(lambda session: read_stats(session, on_progress))
    if store.json:
        print_json(_document(stats))
        return
    growth = stats.growth
    print_facts(
        {
            "checkpoints": stats.checkpoints,
            "savepoints": stats.savepoints,
            "objects": stats.objects,
            "size": size(stats.bytes),
            "metadata": f"{stats.metadata_objects} objects, {size(stats.metadata_bytes)}",
            "a commit writes": growth
            and f"{size(growth.minimum)} to {size(growth.maximum)}, median {size(growth.median)}",
        }
    )
    print_line()
    print_line("All live checkpoints")
    print_table(_HELD, [(h.operator, h.kind, h.objects, size(h.bytes)) for h in stats.held])
    print_line()
    print_line("The committed checkpoint")
    print_table(_CURRENT, [_row(documents.operator(name, now)) for name, now in stats.current.items()])


def _row(now: schemas.Operator) -> tuple[object, ...]:
    return (
        now["name"],
        now["partitions"],
        spread(now["chain_lengths"]),
        size(now["snapshot_bytes"]),
        size(now["delta_bytes"]),
        now["records"],
    )


def _document(stats: StoreStats) -> schemas.Stats:
    return {
        "checkpoints": stats.checkpoints,
        "savepoints": stats.savepoints,
        "objects": stats.objects,
        "bytes": stats.bytes,
        "metadata": {"objects": stats.metadata_objects, "bytes": stats.metadata_bytes},
        "held": [asdict(held) for held in stats.held],  # type: ignore[misc]  # the same names
        "operators": [documents.operator(name, now) for name, now in stats.current.items()],
        "commit_bytes": documents.spread(stats.growth),
    }
