"""Find out what each checkpoint did to one key of a table."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer import display
from pyspark_checkpointer.checkpoint.key_history import ChangeType, KeyChange, change_of
from pyspark_checkpointer.checkpoint.restore import explaining
from pyspark_checkpointer.checkpoint.session import Session
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import Manifest
from pyspark_checkpointer.table.expiry import is_expired
from pyspark_checkpointer.table.feed import (
    ROW_CHANGE,
    FeedStep,
    feed_steps,
    is_forward,
    starting_step,
)
from pyspark_checkpointer.table.feed_reader import FeedReader
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.opening import key_table
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.shown_columns import newest_schema
from pyspark_checkpointer.table.version import TableVersion

Show = Callable[[pa.Table], Any]
"""A function that makes the row to return of a table of one row."""


def key_columns(name: str, key: Any, shown: TableSchema) -> dict[str, Any]:
    """Return a key as the values of all key columns.

    If a table has one key column, its value alone is a key too.
    """
    if isinstance(key, dict):
        return key
    if len(shown.key) == 1:
        return {shown.key[0]: key}
    raise IllegalArgumentError(f"table {name!r}: key {key!r:.60}: expected a dict with {display.names(shown.key)}")


def readings(key: Any, typed: str, shown: TableSchema) -> list[Any]:
    """Return what a typed number, boolean or null may mean: itself, or text.

    The type of the key column decides. Only null is both: a column of text may have it as a key.
    """
    kind = shown.arrow_key().field(0).type
    if len(shown.key) > 1 or not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return [key]
    return [key, typed] if key is None else [typed]


async def table_changes(
    session: Session,
    key: dict[str, Any],
    name: str,
    shown: TableSchema,
    parent: Manifest | None,
    manifests: Sequence[Manifest],
    show: Show,
) -> tuple[Any, list[KeyChange]]:
    """Return the row of a key in `parent`, and its changes in later checkpoints."""
    keys = key_table(TableVersion(name, shown, 1, {}), [key])
    steps = feed_steps(name, parent, manifests, shown)  # first: it refuses another key
    row: pa.Table | None = None
    if parent is not None and (start := starting_step(name, parent, shown)) is not None:
        found = await _changes(session, start, [_place(name, parent, keys)], shown, keys)
        row = found.drop_columns([ROW_CHANGE]) if found.num_rows else None
    first, changes = None if row is None else show(row), []
    known, before = {manifest.id: manifest for manifest in manifests}, parent
    for step in steps:
        manifest = known[step.checkpoint]
        before = known.get(step.parent, parent) if step.parent is not None else None
        places = [_place(name, side, keys) for side in (before, manifest)]
        # Most checkpoints do not touch the partition of one key, and the manifests tell.
        if _stays(step, places, row):
            continue
        found = await _changes(session, step, places, shown, keys)
        if found.num_rows:
            # An update is two rows, before and after. Every other change is one.
            kind: ChangeType = "update" if found.num_rows > 1 else found[ROW_CHANGE][0].as_py()
            rows = found.drop_columns([ROW_CHANGE])
            row = None if kind in ("delete", "expire") else rows.slice(rows.num_rows - 1)
            old = None if kind == "insert" else show(rows.slice(0, 1))
            changes.append(change_of(manifest, kind, old, None if row is None else show(row)))
    return first, changes


def _place(name: str, manifest: Manifest | None, keys: pa.Table) -> int | None:
    """Return the partition of a key in a checkpoint; None if it cannot have the key.

    It cannot where it has no such table, or where a key column is too narrow.
    """
    operator = None if manifest is None else manifest.operators.get(name)
    if manifest is None or operator is None:
        return None
    version = TableVersion.of(name, operator, manifest.clock)
    try:
        then = keys.cast(version.schema.arrow_key())  # as the key was then
    except pa.ArrowException:
        return None
    return partitions_of(then, version.schema, version.partitions)[0]


def _stays(step: FeedStep, places: list[int | None], row: pa.Table | None) -> bool:
    """Return whether a checkpoint cannot have changed a key.

    The manifests and the row before tell.
    """
    numbers = {number for number in places if number is not None}
    if not any(numbers & set(group) for group in step.groups):
        return True
    before, after = step.before, step.after
    same = all(before.chains.get(number) == after.chains.get(number) for number in numbers)
    if len(numbers) > 1 or not same or not is_forward(before, after) or step.shows_others:
        return False
    if row is None:
        return True
    rule = after.schema.expire
    # Nothing but the clock has moved, so all depends on the time of this row, if it is among the columns shown.
    if rule is None or after.expired_until is None or rule.column not in row.column_names:
        return False
    return not pc.any(is_expired(row[rule.column], after.expired_until)).as_py()


async def _changes(
    session: Session, step: FeedStep, places: list[int | None], shown: TableSchema, keys: pa.Table
) -> pa.Table:
    """Return the changes of the key in its partition on both sides."""
    group = tuple(sorted({number for number in places if number is not None}))
    sides = [side.only([n for n in places if n is not None]) for side in (step.before, step.after)]
    reader = FeedReader(session.store, session.host, replace(step, before=sides[0], after=sides[1]), shown, keys)
    return await explaining(session, partial(reader.changes, group), step.checkpoint, step.parent)


__all__ = ["key_columns", "newest_schema", "readings", "table_changes"]
