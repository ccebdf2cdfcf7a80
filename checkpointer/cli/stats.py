"""`checkpointer stats`."""

from dataclasses import asdict

from checkpointer.census import take_census
from checkpointer.cli.screen import Column, print_facts, print_json, print_line, print_table, progress
from checkpointer.cli.verb import Opened, verb
from manifests.words import size, spread

_HELD = (Column("OPERATOR"), Column("KIND"), Column("OBJECTS", right=True), Column("SIZE", right=True))
_CURRENT = (
    Column("OPERATOR"),
    Column("PARTITIONS", right=True),
    Column("CHAIN", right=True),
    Column("SNAPSHOTS", right=True),
    Column("DELTAS", right=True),
    Column("RECORDS", right=True),
)


@verb("stats", "stats /data/orders", "stats s3://bucket/jobs/orders --json")
def command(store: Opened) -> None:
    """Show what the whole store holds.

    Each object is counted once. What live checkpoints name, by operator and kind; the chains of the committed one
    (fewest, median, most objects of a partition); and how much a commit writes. What cleanup would remove is not
    counted.
    """
    with progress("counting", "items") as told:
        census = store.read(lambda session: take_census(session, told))
    if store.json:
        print_json(asdict(census) | {"objects": census.objects, "bytes": census.bytes})
        return
    growth = census.growth
    print_facts(
        {
            "checkpoints": census.checkpoints,
            "savepoints": census.savepoints,
            "objects": census.objects,
            "size": size(census.bytes),
            "metadata": f"{census.metadata_objects} objects, {size(census.metadata_bytes)}",
            "a commit writes": growth
            and f"{size(growth.minimum)} to {size(growth.maximum)}, median {size(growth.median)}",
        }
    )
    print_line()
    print_line("All live checkpoints")
    print_table(_HELD, [(h.operator, h.kind, h.objects, size(h.bytes)) for h in census.held])
    print_line()
    print_line("The committed checkpoint")
    rows = [
        (
            name,
            now.partitions,
            spread(None if now.chain is None else asdict(now.chain)),
            size(now.snapshot_bytes),
            size(now.delta_bytes),
            now.records,
        )
        for name, now in census.current.items()
    ]
    print_table(_CURRENT, rows)
