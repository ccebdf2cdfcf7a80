"""Implement `checkpointer diff`: the differences between two checkpoints.

With an operator, it shows the differences between its keys.
"""

from dataclasses import asdict

import click

from pyspark_checkpointer.admin.diff import Difference, OperatorDifference, ValueDifference, compare
from pyspark_checkpointer.checkpoint.listing import Listed, read_listed
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.checkpoint.selector import LATEST, CheckpointSelector
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.cli import keys, schemas
from pyspark_checkpointer.cli.arguments import CHECKPOINT, OPERATOR
from pyspark_checkpointer.cli.screen import print_json, print_line, print_table, to_text
from pyspark_checkpointer.cli.table import TextColumn
from pyspark_checkpointer.cli.verb import Opened, verb
from pyspark_checkpointer.display import count, ranges, size
from pyspark_checkpointer.errors import SavepointNotFoundError

_KEYS = (TextColumn("CHANGE"), TextColumn("KEY"))
_COLUMNS = (TextColumn("WHAT"), TextColumn("NAME"), TextColumn("CHANGE"), TextColumn("DETAIL", prose=True))


@verb(
    "diff",
    "diff /data/orders epoch=41 epoch=42",
    "diff /data/orders before-migration",
    "diff /data/orders before-migration latest totals --limit 1000 --json",
)
@click.argument("before", type=CHECKPOINT, metavar="CHECKPOINT")
@click.argument("after", type=CHECKPOINT, metavar="[CHECKPOINT]", default=LATEST)
@click.argument("operator", type=OPERATOR, required=False)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Name at most this many keys of OPERATOR; all are counted.",
)
def command(
    store: Opened, before: CheckpointSelector, after: CheckpointSelector, operator: str | None, limit: int
) -> None:
    """Show what differs between two checkpoints.

    It compares one CHECKPOINT with another, by default the committed one: operators and their partitions, positions,
    properties, the watermark, and the bytes of objects that only one of the two has. With OPERATOR, a map or a table,
    it prints the keys that were inserted, updated or deleted. The exit status is 0 even if there are differences.
    """
    try:
        old, new = store.read(lambda session: _read_both(session, before, after))
    except SavepointNotFoundError as error:
        if operator is not None or after.kind != "name":
            raise
        # Where only one checkpoint was meant, the name of an operator is taken for the other.
        raise SavepointNotFoundError(
            f"{error}; OPERATOR is the third argument, as in `checkpointer diff ROOT {before} latest OPERATOR`"
        ) from None
    if operator is not None:
        session = store.session
        before_reader, after_reader = (CheckpointReader(session, side.manifest, None) for side in (old, new))
        _show_keys(keys.compare(before_reader, after_reader, operator, limit), store.json)
        return
    difference = compare(old.manifest, new.manifest)
    if store.json:
        print_json(asdict(difference) | {"before": str(difference.before), "after": str(difference.after)})
        return
    print_line(f"{difference.before} → {difference.after}")
    if difference:
        print_table(_COLUMNS, _rows(difference))
    else:
        print_line("nothing is different")
    for name in difference.expiring:
        # The objects say nothing of it: rows expire, or live again after a rollback, by the clock alone.
        print_line(
            f"the clock differs, so rows of {name!r} may have expired or come back: name the operator to see them"
        )
    print_line(f"{size(difference.bytes_added)} of objects added, {size(difference.bytes_removed)} removed")


def _show_keys(found: schemas.KeyDifference, as_json: bool) -> None:
    """Print the keys that differ."""
    if as_json:
        print_json(found)
        return
    print_line(f"{found['before']} → {found['after']}, {found['operator']}")
    if found["keys"]:
        print_table(_KEYS, [(key["change"], to_text(key["key"])) for key in found["keys"]])
    if found["left_out"]:
        print_line(f"and {count(found['left_out'], 'more key')}: raise --limit")
    counts = [f"{found[change]:,} {change}" for change in ("inserted", "updated", "deleted")]
    # Of most operators nothing can expire.
    counts += [f"{found['expired']:,} expired"] if found["expired"] else []
    print_line(", ".join(counts))


async def _read_both(session: Session, before: CheckpointSelector, after: CheckpointSelector) -> tuple[Listed, Listed]:
    # One after the other: what the first learns of the history need not be read again.
    return await read_listed(session, before), await read_listed(session, after)


def _rows(difference: Difference) -> list[tuple[str, str, str, str]]:
    """Return the rows of the table: operators, positions, properties, the watermark."""
    rows: list[tuple[str, str, str, str]] = [
        ("operator", operator.name, operator.change, _partitions(operator)) for operator in difference.operators
    ]
    rows += [("position", value.name, value.change, _values(value)) for value in difference.positions]
    rows += [("property", value.name, value.change, _values(value)) for value in difference.properties]
    if watermark := difference.watermark:
        rows.append(("watermark", "", watermark.change, _values(watermark)))
    return rows


def _partitions(operator: OperatorDifference) -> str:
    """Return how the definition and the partitions of an operator changed, as text."""
    parts = [f"another {aspect}" for aspect in operator.redefined]
    for what in ("added", "removed", "changed"):
        # Ranges of numbers, as thousands of partitions may have changed.
        if numbers := getattr(operator, what):
            parts.append(f"{len(numbers)} {what} ({ranges(numbers)})")
    return "; ".join(parts)


def _values(value: ValueDifference) -> str:
    """Return the value that was added or removed, or the change from one to the other."""
    sides = [to_text(side) for side in (value.before, value.after)]
    return {"added": sides[1], "removed": sides[0], "changed": " → ".join(sides)}[value.change]
