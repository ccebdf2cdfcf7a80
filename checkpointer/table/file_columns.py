"""Match the columns of a Parquet file to a table's, and check what its rows say.

A digest proves who wrote a file, and not that it is right. This module checks the properties on which merging relies.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer import display
from pyspark_checkpointer.table import decimal_digits, kept_columns, row_order
from pyspark_checkpointer.table.key_floats import canonical
from pyspark_checkpointer.table.schema import (
    CHANGE,
    CHANGES,
    DELTA_COLUMNS,
    FIELD_ID,
    KEPT,
    PARTITION,
    Column,
    TableSchema,
)
from pyspark_checkpointer.table.types import can_read_as, hold_the_same, show_type


def names_by_id(stored: pa.Schema, schema: TableSchema) -> dict[str, str]:
    """Return the current name of each stored column, by its stored name.

    Columns that `schema` no longer has are left out. Raises `ValueError` where two columns have one name or one id, so
    that one could be taken for the other.
    """
    ids = {field.name: _id_of(field) for field in stored}
    for what, values in (("name", stored.names), ("id", [number for number in ids.values() if number is not None])):
        if len(set(values)) < len(values):
            raise ValueError(f"two columns have the {what} {Counter(values).most_common(1)[0][0]!r:.80}")
    current = {column.id: column.name for column in schema.columns}
    return {name: current[number] for name, number in ids.items() if number in current}


def find_columns(stored: pa.Schema, schema: TableSchema, own: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the stored names of the columns, by their current names.

    The second result has the columns of a delta that are there. `own` are those that have to be there. Raises
    `ValueError` for a file that lacks one of them, or a column of the key. Nulls in place of a key column would be
    another key.
    """
    found = {current: name for name, current in names_by_id(stored, schema).items()}
    # A column with an id is known by it, whatever its name.
    without_id = {field.name for field in stored if _id_of(field) is None}
    missing = [name for name in schema.key if name not in found] + [name for name in own if name not in without_id]
    if missing:
        raise ValueError(f"no column {display.names(missing)}")
    return found, [*own, KEPT] if own and KEPT in without_id else list(own)


def _id_of(field: pa.Field) -> int | None:
    """Return the field id of a stored column, or None."""
    number = int((field.metadata or {}).get(FIELD_ID, -1))
    return number if number >= 0 else None


def align(found: pa.Table, stored: str | None, column: Column) -> Any:
    """Return a column in its type of today, or nulls where the file does not have it.

    Raises `TypeError` for every other type than that one and those that were widened to it.
    """
    kind = column.field().type
    if stored is None:
        return pa.nulls(found.num_rows, kind)
    if not can_read_as(found[stored].type, column.type):
        raise TypeError(f"column {column.name!r:.80}: expected {show_type(column.type)}, found {found[stored].type}")
    decimal_digits.check(found[stored])
    values = found[stored].cast(kind)
    # Other writers may store -0.0, or a NaN of other bits.
    return canonical(values) if column.role == "key" else values


def check_storage(stored: Any) -> None:
    """Raise `TypeError` for a decimal that Parquet does not store as Arrow does.

    Arrow chooses by itself how it stores a decimal.
    """
    for index in range(len(stored)):
        column = stored.column(index)
        if column.logical_type.type == "DECIMAL" and column.physical_type != "FIXED_LEN_BYTE_ARRAY":
            raise TypeError(
                f"column {column.path!r:.80}: expected a decimal of fixed length, found {column.physical_type}"
            )


def align_own(found: pa.Table, field: pa.Field) -> Any:
    """Return a column of a delta that is not one of the table.

    Raises `TypeError` for another type, or for nulls where there are none.
    """
    values = found[field.name]
    if not hold_the_same(values.type, field.type):
        raise TypeError(f"{field.name}: expected {field.type}, found {values.type}")
    if field.name in DELTA_COLUMNS and values.null_count:
        raise ValueError(f"{field.name}: expected no nulls, found {values.null_count}")
    return values.cast(field.type)


def check_rows(rows: pa.Table, schema: TableSchema) -> None:
    """Raise `ValueError` for rows that no snapshot or delta has."""
    if CHANGE in rows.column_names and rows.num_rows:
        found = pc.min_max(rows[CHANGE])
        if wrong := [bound for bound in (found["min"].as_py(), found["max"].as_py()) if bound not in CHANGES]:
            raise ValueError(f"{CHANGE}: expected one of {', '.join(map(str, CHANGES))}, found {wrong[0]}")
    if KEPT in rows.column_names:
        kept_columns.check(rows, schema)
    order = [PARTITION, *schema.key] if PARTITION in rows.column_names else schema.key
    # A key that is there twice would be two rows. Out of order, changes would miss their rows.
    if not row_order.is_strictly_ascending(rows, order):
        raise ValueError(f"expected rows in order of {display.names(order)}, each key once")
