"""`checkpointer progress`."""

import click

from pyspark_checkpointer.cli import schemas
from pyspark_checkpointer.cli.failures import FAILED
from pyspark_checkpointer.cli.root import require_store
from pyspark_checkpointer.cli.screen import complain, print_error, print_json, print_table, to_text
from pyspark_checkpointer.cli.table import Column
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.consumers.inspect import ConsumedPartition, ConsumersOverview, survey
from pyspark_checkpointer.display import age, moment

_COLUMNS = (
    Column("INTERFACE"),
    Column("GROUP"),
    Column("PARTITION"),
    Column("OWNER"),
    Column("RENEWED", right=True, extra=True),
    Column("RECORDED", right=True, extra=True),
    Column("POSITION", prose=True),
)


@verb("progress", "progress /data/orders", "progress s3://bucket/jobs/orders --owner host-7 --json", lost=True)
@click.option("--owner", help="Only the partitions of this owner; an empty text for those that nobody has.")
def command(store: Opened, owner: str | None) -> int:
    """Show how far consumers of streams are, and who reads what.

    That is what Event Hubs, Event Processor Host and Kinesis consumers record under this root. OWNER is empty where
    nobody has the partition; RENEWED is when its owner claimed or renewed it, RECORDED the age of the position.
    """
    found = store.read(lambda session: survey(session.store))
    if found == ConsumersOverview((), ()):
        store.read(lambda session: require_store(session.store, store.options))  # where even that is not, say so
    partitions = [p for p in found.partitions if owner is None or _owner(p) == owner]
    if store.json:
        print_json([_document(partition) for partition in partitions])
    else:
        print_table(_COLUMNS, [_line(partition, store) for partition in partitions])
    for damage in found.damage:
        if store.json:
            print_error(_damage(damage))
        else:
            complain("checkpointer progress", damage)
    return 1 if found.damage else 0


def _owner(partition: ConsumedPartition) -> str:
    return "" if partition.row is None else partition.row.owner


def _line(partition: ConsumedPartition, store: Opened) -> tuple[str | None, ...]:
    row, position = partition.row, partition.position
    interface, *group = partition.group
    owner = "" if row is None else "finished" if row.finished and not row.owner else row.owner
    if row is not None and row.asked_by:
        owner += f" (asked for by {row.asked_by})"
    return (
        interface,
        " / ".join(group),
        partition.name,
        owner,
        "" if row is None else age(row.modified, store.now),
        "" if position is None else age(position.modified, store.now),
        "" if position is None or position.value is None else to_text(dict(position.value)),
    )


def _document(partition: ConsumedPartition) -> schemas.Consumer:
    row, position = partition.row, partition.position
    interface, *group = partition.group
    return {
        "interface": interface,  # type: ignore[typeddict-item]  # one of the three
        "group": list(group),
        "partition": partition.name,
        "owner": _owner(partition) or None,
        "asked_by": None if row is None else row.asked_by or None,
        "finished": row is not None and row.finished,
        "owner_changes": None if row is None else row.epoch,
        "renewed": None if row is None else moment(row.modified),
        "recorded": None if position is None else moment(position.modified),
        "position": None if position is None or position.value is None else dict(position.value),
    }


def _damage(message: str) -> schemas.Error:
    return {"error": {"type": "CorruptionError", "message": message, "retryable": False, "status": FAILED}}
