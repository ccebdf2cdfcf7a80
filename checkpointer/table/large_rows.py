"""Handle more rows than one Arrow array can hold.

Texts, bytes and lists have 32-bit offsets, so that an array of them ends at 2 GiB. Where many rows are merged, they get
64-bit offsets meanwhile (`widen`). The result comes back in chunks that 32-bit offsets can hold (`narrow`). Rows of few
bytes stay as they are.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from pyspark_checkpointer.errors import InvalidStateError

T = TypeVar("T")

NARROW_BYTES = 1 << 30
"""Bytes of rows for which 32-bit offsets are certain to be enough."""


def widen(*tables: pa.Table) -> tuple[pa.Table, ...]:
    """Return the tables with 64-bit offsets if they are large together.

    Otherwise they are returned as they are.
    """
    # The sum counts, as the tables are concatenated later, and an array has the bytes of all of them.
    if sum(rows.nbytes for rows in tables) < NARROW_BYTES:
        return tables
    return tuple(cast(rows, lambda field: _wide(field.type)) for rows in tables)


def narrow(rows: pa.Table) -> pa.Table:
    """Return the rows with 32-bit offsets again, in chunks that these can hold."""
    if all(_narrow(kind) == kind for kind in rows.schema.types):
        return rows
    # A cast to 32-bit offsets fails for an array that is too large, so the rows are cut before.
    parts = [
        cast(part, lambda field: _narrow(field.type)) for part in slices(rows, max(rows.num_rows, 1), NARROW_BYTES)
    ]
    return pa.concat_tables(parts) if parts else cast(rows, lambda field: _narrow(field.type))


def combine_chunks(rows: pa.Table) -> pa.Table:
    """Return the rows with one chunk in each column.

    Rows that are too large for that are returned as they are.
    """
    return rows.combine_chunks() if rows.nbytes < NARROW_BYTES else rows


def copied(rows: pa.Table) -> pa.Table:
    """Return the rows in memory of their own, not as a view of larger arrays."""
    return rows.take(pa.array(range(rows.num_rows), pa.int64())) if rows.num_rows else rows.schema.empty_table()


def slices(rows: pa.Table, most_rows: int, most_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows in order, in parts of limited rows and bytes.

    A part has at most `most_rows` rows and `most_bytes` bytes. A single row may have more bytes.
    """
    for start in range(0, rows.num_rows, most_rows):
        yield from _halves(rows.slice(start, most_rows), most_bytes)


def _halves(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    if rows.num_rows < 2 or rows.nbytes <= most_bytes:
        yield rows
        return
    # Rows differ in size. Halving finds parts that fit without measuring each row.
    half = rows.num_rows // 2
    yield from _halves(rows.slice(0, half), most_bytes)
    yield from _halves(rows.slice(half), most_bytes)


def runs(items: Iterable[T], size: Callable[[T], int], most_bytes: int, most: int | None = None) -> Iterator[list[T]]:
    """Yield consecutive items, in runs of limited bytes and number.

    A single item may have more bytes.
    """
    run: list[T] = []
    held = 0
    for item in items:
        more = size(item)
        if run and (len(run) == most or held + more > most_bytes):
            yield run
            run, held = [], 0
        run.append(item)
        held += more
    if run:
        yield run


def cast(rows: pa.Table, change: Callable[[pa.Field], pa.DataType]) -> pa.Table:
    """Return rows whose columns have the types that a function gives for their fields."""
    columns, fields = [], []
    for field, values in zip(rows.schema, rows.columns, strict=True):
        kind = change(field)
        # Arrow refuses to cast nulls of a struct whose fields have none, even to the type that it has.
        columns.append(values if kind == field.type else values.cast(kind))
        fields.append(field.with_type(kind))
    return pa.table(columns, schema=pa.schema(fields, metadata=rows.schema.metadata))


def _wide(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string(kind):
        return pa.large_string()
    if pa.types.is_binary(kind):
        return pa.large_binary()
    if pa.types.is_list(kind):
        return pa.large_list(_field(kind.value_field, _wide))
    return _inside(kind, _wide)


def _narrow(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(_field(kind.value_field, _narrow))
    return _inside(kind, _narrow)


def _inside(kind: pa.DataType, change: Any) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_field(field, change) for field in kind])
    if pa.types.is_map(kind):  # Arrow has no map with 64-bit offsets: only what is inside it changes.
        return pa.map_(_field(kind.key_field, change), _field(kind.item_field, change))
    return kind


def _field(field: pa.Field, change: Any) -> pa.Field:
    return field.with_type(change(field.type))


@contextmanager
def explain_arrow_errors(table: str, partition: int | None = None) -> Iterator[None]:
    """Raise a refusal of Arrow as `InvalidStateError`.

    The error names the table and the partition, if there is one.
    """
    try:
        yield
    except pa.ArrowException as error:
        where = f"table {table!r}" + ("" if partition is None else f", partition {partition}")
        raise InvalidStateError(
            f"{where}: Arrow cannot hold or convert its rows: {error}; if they are too large, open the "
            "table with more partitions (num_partitions=), so that each has fewer bytes"
        ) from None


__all__ = [
    "NARROW_BYTES",
    "cast",
    "combine_chunks",
    "copied",
    "explain_arrow_errors",
    "narrow",
    "runs",
    "slices",
    "widen",
]
