"""Compare the keys of one operator in two checkpoints."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from pyspark_checkpointer.admin.diff import compare_keys, expires, partitions_to_compare
from pyspark_checkpointer.checkpoint.ancestry import read_clocks
from pyspark_checkpointer.checkpoint.map_entries import expired_keys
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.cli import schemas
from pyspark_checkpointer.cli.records import records, require_arrow
from pyspark_checkpointer.cli.screen import to_text
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.codecs import kind_of
from pyspark_checkpointer.manifests.map_expiry import MapRule, decode_schema
from pyspark_checkpointer.manifests.model import Clock, Json, Manifest, Operator
from pyspark_checkpointer.manifests.tagged_json import to_json
from pyspark_checkpointer.runtime import run_sync

if TYPE_CHECKING:
    from pyspark_checkpointer.table.schema import TableSchema

Contents = dict[str, bytes]
"""A digest of the value or row of each key. Keys are JSON texts."""


def compare(before: CheckpointReader, after: CheckpointReader, name: str, limit: int) -> schemas.KeyDifference:
    """Count the keys that were inserted, updated or deleted, or expired.

    The first `limit` of them are named. One partition at a time is in memory, if both checkpoints spread the keys over
    partitions alike. A key that is gone is expired if its record was past its time by the rule and clock of any
    checkpoint after `before` up to `after`, as far as they are live.
    """
    old, new = _operator(before, name), _operator(after, name)
    if old is None and new is None:
        after.operator(name)  # raises, with the names of all operators
    # Asked before anything is read, because reading takes long.
    if any(side is not None and kind_of(side) == "table" for side in (old, new)):
        require_arrow(after.session.store.url)
    clocks = list[Manifest]()
    if before.manifest is not None and after.manifest is not None:
        clocks = run_sync(read_clocks(after.session, before.manifest.id, after.manifest))
    rule = _rule(before, name, clocks) if old is not None and kind_of(old) == "table" else None
    counts = {"inserted": 0, "updated": 0, "deleted": 0, "expired": 0}
    keys: list[schemas.ChangedKey] = []
    # A chain that both sides share is compared where entries expire: at another time it holds others.
    shown, differs, moves = None, expires(old) or expires(new), False
    if old is not None and new is not None and kind_of(old) == kind_of(new) == "table":
        shown, exchanged, moves = _tables(before, after, name)
        differs = differs or exchanged
    for numbers in partitions_to_compare(old, new, differs=differs, moves=moves):
        expired: set[str] = set()
        was = _contents(before, old, name, numbers, shown, rule, expired)
        # `_contents` has found the expired rows of a table. Each entry of a map has a time of its own.
        if old is not None and kind_of(old) == "map":
            expired = _expired_entries(before, old, name, numbers, clocks)
        for text, change in compare_keys(was, _contents(after, new, name, numbers, shown), expired):
            counts[change] += 1
            if len(keys) < limit:
                keys.append({"key": json.loads(text), "change": change})
    return {
        "before": _id(before),
        "after": _id(after),
        "operator": name,
        "inserted": counts["inserted"],
        "updated": counts["updated"],
        "deleted": counts["deleted"],
        "expired": counts["expired"],
        "keys": keys,
        "left_out": sum(counts.values()) - len(keys),
    }


def _operator(reader: CheckpointReader, name: str) -> Operator | None:
    """Return an operator whose keys can be read.

    None if the checkpoint does not have it.
    """
    found = reader.manifest.operators.get(name) if reader.manifest else None
    if found is not None and kind_of(found) == "bytes":
        raise IllegalArgumentError(
            f"operator {name!r}: holds bytes of the job's own format, whose keys nobody else can read: leave OPERATOR "
            "out to compare its partitions"
        )
    return found


def _tables(before: CheckpointReader, after: CheckpointReader, name: str) -> "tuple[TableSchema, bool, bool]":
    """Return how two versions of a table are compared.

    This is a schema that has the values of both; whether unchanged objects have other values; and whether keys are in
    other partitions.
    """
    from pyspark_checkpointer.table.feed import layout  # pyarrow, only for tables
    from pyspark_checkpointer.table.opening import table_version
    from pyspark_checkpointer.table.shown_columns import newest_schema, shows_others

    assert after.manifest is not None
    shown = newest_schema(name, before.manifest, [after.manifest])
    assert shown is not None
    old, new = (table_version(side, name) for side in (before, after))
    names = {*old.schema.names, *new.schema.names}
    return shown, shows_others(old, new, names), layout(old) != layout(new)


Rule = Callable[[schemas.Record], bool]
"""A function that says whether a row is expired."""


def _rule(before: CheckpointReader, name: str, clocks: Sequence[Manifest]) -> Rule | None:
    """Return how rows of the older checkpoint expired later; None if they do not."""
    from pyspark_checkpointer.table.expiry import is_past  # pyarrow, only for tables
    from pyspark_checkpointer.table.opening import table_version
    from pyspark_checkpointer.table.row_times import latest_times

    limits = latest_times(name, table_version(before, name).schema, clocks)
    if not limits:
        return None
    return lambda record: any(is_past(_time(record["row"].get(column)), limit) for column, limit in limits.items())


def _time(shown: Json) -> datetime | None:
    """Return a date or time as `records` shows it; None where it shows none."""
    text = (shown.get("$datetime") or shown.get("$date")) if isinstance(shown, dict) else None
    try:
        found = None if text is None else datetime.fromisoformat(text)
    except ValueError:  # A time that Python does not have.
        return None
    return found if found is None or found.tzinfo else found.replace(tzinfo=UTC)


def _contents(
    reader: CheckpointReader,
    operator: Operator | None,
    name: str,
    partitions: list[int],
    shown: "TableSchema | None",
    rule: Rule | None = None,
    expired: set[str] | None = None,
) -> Contents:
    """Read the contents of some partitions.

    The keys of rows that are expired by a rule go into `expired`.
    """
    if operator is None:
        return {}
    key_of = _table_key(reader, name) if kind_of(operator) == "table" else lambda record: record["key"]
    # A partition may have state in one of the two checkpoints only.
    held = [number for number in partitions if number in operator.chains]
    found = {}
    for record in records(reader, name, held, shown):
        text = to_text(key_of(record))
        found[text] = _digest(record)
        if rule is not None and expired is not None and rule(record):
            expired.add(text)
    return found


def _expired_entries(
    before: CheckpointReader, old: Operator, name: str, partitions: list[int], clocks: Sequence[Manifest]
) -> set[str]:
    """Return the keys of a map, as JSON, whose entries expired later.

    The rule and the clock of a later checkpoint decide that.
    """
    rules: dict[MapRule, Clock | None] = {}
    for manifest in clocks:
        operator = manifest.operators.get(name)
        rule = None
        if operator is not None and kind_of(operator) == "map":
            rule = decode_schema(f"operator {name!r}", operator.schema)
        if rule is not None:  # Of a rule the last clock counts.
            rules[rule] = manifest.clock
    held = [number for number in partitions if number in old.chains]
    found = [run_sync(expired_keys(before, name, n, *pair)) for n in held for pair in rules.items()]
    return {to_text(to_json(key)) for keys in found for key in keys}


def _table_key(reader: CheckpointReader, name: str) -> Callable[[schemas.Record], Json]:
    """Return a function that takes the key columns from a row."""
    from pyspark_checkpointer.table.opening import table_version  # pyarrow, only for tables

    columns = table_version(reader, name).schema.key
    return lambda record: {column: record["row"][column] for column in columns}


def _digest(record: schemas.Record) -> bytes:
    """Return a digest of a value or row.

    A missing column counts as null, since a schema may have grown.
    """
    row = record.get("row")
    told: Any = record["value"] if row is None else {name: value for name, value in row.items() if value is not None}
    # A digest and not the value: all keys of the compared partitions are in memory, and values may be large. Text
    # from a store may have lone surrogates, which UTF-8 refuses.
    return blake2b(to_text(told).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _id(reader: CheckpointReader) -> str:
    assert reader.manifest is not None
    return str(reader.manifest.id)
