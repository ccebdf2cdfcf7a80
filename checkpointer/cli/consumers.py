"""Implement `checkpointer consumers`: the partitions that stream consumers read.

Each has its owner and its position.
"""

import click

from pyspark_checkpointer.checkpoint.latest import read_damaged
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.cli import schemas
from pyspark_checkpointer.cli.failures import FAILED
from pyspark_checkpointer.cli.screen import complain, print_error, print_json, print_table, to_text
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.consumers.inspect import ConsumedPartition, ConsumersOverview, read_consumers
from pyspark_checkpointer.display import age, moment
from pyspark_checkpointer.errors import CorruptionError, InvalidStateError, UnsupportedFormatError

_COLUMNS = (
    TextColumn("INTERFACE"),
    TextColumn("GROUP"),
    TextColumn("PARTITION"),
    TextColumn("OWNER"),
    TextColumn("RENEWED", right=True, extra=True),
    TextColumn("RECORDED", right=True, extra=True),
    TextColumn("POSITION", prose=True),
)


@verb("consumers", "consumers /data/orders", "consumers s3://bucket/jobs/orders --owner host-7 --json", lost=True)
@click.option("--owner", help="Show only the partitions of this owner; an empty text means those without an owner.")
def command(store: Opened, owner: str | None) -> int:
    """Show the owners and positions of stream consumers.

    Event Hubs, Event Processor Host and Kinesis consumers record them below this root. OWNER is empty if nobody owns
    the partition. RENEWED is the time since its owner claimed or renewed it. RECORDED is the age of the position.
    """
    store.read(_require_keys)
    found = store.read(lambda session: read_consumers(session.store))
    if found == ConsumersOverview((), ()):
        # A root without consumers may be a store of checkpoints. If it is neither, say so: the path may be mistyped.
        store.require()  # nothing is recorded: say whether there is a store at all
    partitions = [p for p in found.partitions if owner is None or _owner(p) == owner]
    if store.json:
        print_json([_document(partition) for partition in partitions])
    else:
        print_table(_COLUMNS, [_line(partition, store) for partition in partitions])
    # After the table, which has all that can be read: one damaged object must not hide the others.
    for damage in found.damage:
        if store.json:
            print_error(_damage(damage))
        else:
            complain("checkpointer consumers", damage)
    return 1 if found.damage else 0


async def _require_keys(session: Session) -> None:
    """Raise `UnsupportedFormatError` if nothing says what opens the root.

    The root is encrypted or signed. Hidden names look like those of other files, so its listing would be empty.
    """
    try:
        await read_damaged(session.store)
    except UnsupportedFormatError:
        raise
    except (CorruptionError, InvalidStateError):
        pass  # `_latest` may be damaged, or kept from everybody: positions do not need it


def _owner(partition: ConsumedPartition) -> str:
    """Return the owner's name; empty if there is none."""
    return "" if partition.row is None else partition.row.owner


def _line(partition: ConsumedPartition, store: Opened) -> tuple[str | None, ...]:
    """Return the cells of a partition's line in the table."""
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
    """Return a partition as JSON."""
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
    """Return the message about a damaged object as a JSON error."""
    return {"error": {"type": "CorruptionError", "message": message, "retryable": False, "status": FAILED}}
