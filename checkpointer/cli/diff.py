"""`checkpointer diff`."""

import asyncio
from dataclasses import asdict

import click

from checkpointer.cli.screen import Column, print_json, print_line, print_table, to_text
from checkpointer.cli.verb import CHECKPOINT, Opened, verb
from checkpointer.difference import Difference, OperatorDifference, ValueDifference, compare
from checkpointer.overview import LATEST, Listed, read_listed
from checkpointer.session import Session
from manifests.words import ranges, size

_COLUMNS = (Column("WHAT"), Column("NAME"), Column("CHANGE"), Column("DETAIL"))


@verb("diff", "diff /data/orders 41 42", "diff /data/orders before-migration")
@click.argument("before", type=CHECKPOINT, metavar="CHECKPOINT")
@click.argument("after", type=CHECKPOINT, metavar="[CHECKPOINT]", default=LATEST)
def command(store: Opened, before: str, after: str) -> None:
    """Show what differs between two checkpoints.

    From one CHECKPOINT to another, the committed one unless a second is given: operators and their partitions,
    positions, properties, the watermark, and the bytes of objects that only one of the two has. A difference is no
    finding: the exit status is 0.
    """
    old, new = store.read(lambda session: _read_both(session, before, after))
    difference = compare(old.manifest, new.manifest)
    if store.json:
        print_json(asdict(difference) | {"before": str(difference.before), "after": str(difference.after)})
        return
    print_line(f"{difference.before} → {difference.after}")
    if difference:
        print_table(_COLUMNS, _rows(difference))
    else:
        print_line("nothing is different")
    print_line(f"{size(difference.bytes_added)} of objects added, {size(difference.bytes_removed)} removed")


async def _read_both(session: Session, before: str, after: str) -> tuple[Listed, Listed]:
    return await asyncio.gather(read_listed(session, before), read_listed(session, after))


def _rows(difference: Difference) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = [
        ("operator", o.name, o.change, _partitions(o)) for o in difference.operators
    ]
    rows += [("position", v.name, v.change, _values(v)) for v in difference.positions]
    rows += [("property", v.name, v.change, _values(v)) for v in difference.properties]
    if mark := difference.watermark:
        rows.append(("watermark", "", mark.change, _values(mark)))
    return rows


def _partitions(operator: OperatorDifference) -> str:
    parts = [f"another {aspect}" for aspect in operator.redefined]
    for what in ("added", "removed", "changed"):
        if numbers := getattr(operator, what):
            parts.append(f"{len(numbers)} {what} ({ranges(numbers)})")
    return "; ".join(parts)


def _values(value: ValueDifference) -> str:
    sides = [to_text(side) for side in (value.before, value.after)]
    return {"added": sides[1], "removed": sides[0], "changed": " → ".join(sides)}[value.change]
