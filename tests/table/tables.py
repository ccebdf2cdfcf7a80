"""Schemas and rows in few words, and what merging means in plain Python."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.table.kept_columns import text_of, without_need
from pyspark_checkpointer.table.schema import CHANGE, DELETE, PARTITION, RESET, TableSchema
from pyspark_checkpointer.table.schema_evolution import first_schema

Row = tuple[Any, ...]
Change = tuple[int, Row] | tuple[int, Row, frozenset[str]]
"""What a row does, its values in the order of the schema's columns, and the columns that it leaves as they are."""

NAN = math.nan

ORDERED: dict[str, list[Any]] = {
    "boolean": [False, True],
    "byte": [-128, -1, 0, 127],
    "short": [-(2**15), 0, 2**15 - 1],
    "integer": [-(2**31), 0, 7, 2**31 - 1],
    "long": [-(2**63), -(2**53) - 1, 0, 2**53, 2**53 + 1, 2**63 - 1],
    "float": [-math.inf, -1.5, 0.0, 0.5, math.inf, NAN],
    "double": [-math.inf, -1e300, 0.0, 5e-324, 1e300, math.inf, NAN],
    "string": ["", "B", "a", "aa", "é", "\U0001f600"],
    "binary": [b"", b"\0", b"a", b"a\0", b"\x80", b"\xff"],
    "date": [date.min, date(1969, 12, 31), date(2024, 2, 29), date.max],
    "timestamp": [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime(2024, 1, 1, tzinfo=UTC),
        datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
    ],
    "timestamp_ntz": [datetime.min, datetime(1969, 12, 31), datetime(2024, 1, 1), datetime.max],
    "decimal(5,2)": [Decimal("-999.99"), Decimal("-0.01"), Decimal("0.00"), Decimal("10.00"), Decimal("999.99")],
    "decimal(38,0)": [Decimal(-(10**38) + 1), Decimal(0), Decimal(9), Decimal(10), Decimal(10**38 - 1)],
    "interval day to second": [timedelta(days=-5), timedelta(microseconds=-1), timedelta(0), timedelta(days=900)],
}
"""Values of each type that can be a key, in Spark's order."""


def field(name: str, kind: Json, metadata: Json = None) -> Json:
    """A field as Spark's JSON has it."""
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata or {}}


def array(of: Json) -> Json:
    return {"type": "array", "elementType": of, "containsNull": True}


def mapping(key: Json, value: Json) -> Json:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}


def struct(**kinds: Json) -> Json:
    return {"type": "struct", "fields": fields(kinds)}


def fields(kinds: Mapping[str, Json]) -> list[Json]:
    return [field(name, kind) for name, kind in kinds.items()]


def schema_of(kinds: Mapping[str, Json], key: Sequence[str], **combine: str) -> TableSchema:
    return first_schema("t", fields(kinds), key, combine)


def snapshot_rows(schema: TableSchema, rows: Iterable[Row]) -> pa.Table:
    return _table(schema.arrow(), list(rows))


def changes_of(schema: TableSchema, changes: Iterable[Change], partition: int = 0) -> pa.Table:
    """Changes in the columns of a delta, all of one partition."""
    ids = {column.name: column.id for column in schema.columns}
    rows = [
        (*row, partition, change, text_of(ids[name] for name in (kept[0] if kept else ())))
        for change, row, *kept in changes
    ]
    return without_need(_table(schema.arrow_delta(kept=True), rows))


def _table(schema: pa.Schema, rows: list[Row]) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    arrays = [pa.array(list(values), kind) for values, kind in zip(columns, schema.types, strict=True)]
    return pa.table(arrays, schema=schema)


def keys_of(schema: TableSchema, rows: Iterable[Row]) -> pa.Table:
    """The key columns of rows."""
    columns = [column.field() for column in schema.columns if column.role == "key"]
    return _table(pa.schema(columns), [row[: len(columns)] for row in rows])


def text(*values: bytes | None) -> pa.Array:
    """Text as Spark may have it, which need not be UTF-8."""
    held = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(held), held.buffers())


def far(kind: pa.DataType, *values: int | None) -> pa.Array:
    """Dates or times, by what Arrow stores: also those that Python does not have."""
    return pa.array(values, pa.int32() if pa.types.is_date(kind) else pa.int64()).cast(kind)


def long_decimals(kind: pa.DataType, *unscaled: int) -> pa.Array:
    """Decimals that may have more digits than their type, as Arrow does not notice."""
    return pa.Array.from_buffers(
        kind, len(unscaled), [None, pa.py_buffer(b"".join(n.to_bytes(16, "little", signed=True) for n in unscaled))]
    )


def plain(value: Any) -> Any:
    """A value that is equal to its like: NaN is no longer unequal to itself, and lists can be sorted into sets."""
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    if isinstance(value, (list, tuple)):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return tuple((name, plain(item)) for name, item in value.items())
    return value


def rows_in(table: pa.Table) -> list[Row]:
    """Rows as plain tuples, in an order of their own."""
    rows = [tuple(plain(value) for value in row.values()) for row in table.to_pylist()]
    return sorted(rows, key=repr)


# ---- the meaning of changes ------------------------------------------------------------------------------------------


def _above(a: Any, b: Any) -> bool:
    """Whether a comes after b in Spark's order, in which NaN is above every number."""
    if isinstance(a, float) and math.isnan(a):
        return not math.isnan(b)
    return not (isinstance(b, float) and math.isnan(b)) and bool(a > b)


def _combined(role: str, old: Any, new: Any) -> Any:
    if role == "last":
        return new
    if old is None or new is None:
        return new if old is None else old
    if role == "sum":
        return old + new
    return new if _above(new, old) == (role == "max") else old


class Model:
    """A table as a dict: each change is put on top of the one before it."""

    def __init__(self, schema: TableSchema, rows: Iterable[Row] = ()) -> None:
        self._schema = schema
        self._keys = len(schema.key)
        self.found = {self.key(row): row for row in rows}

    def key(self, row: Row) -> Row:
        return tuple(map(plain, row[: self._keys]))

    def do(self, changes: Iterable[Change]) -> "Model":
        roles = [column.role for column in self._schema.values]
        names = [column.name for column in self._schema.values]
        for change, row, *kept in changes:
            key = self.key(row)
            old = None if change == RESET else self.found.get(key)
            if change == DELETE:
                self.found.pop(key, None)
            elif old is None:
                self.found[key] = row
            else:
                values = map(_combined, roles, old[self._keys :], row[self._keys :])
                still = kept[0] if kept else ()
                before = zip(names, old[self._keys :], values, strict=True)
                self.found[key] = (*row[: self._keys], *(a if name in still else b for name, a, b in before))
        return self

    def rows(self) -> list[Row]:
        return sorted((plain(row) for row in self.found.values()), key=repr)


__all__ = [
    "CHANGE",
    "NAN",
    "ORDERED",
    "PARTITION",
    "Change",
    "Model",
    "Row",
    "array",
    "changes_of",
    "far",
    "field",
    "fields",
    "keys_of",
    "long_decimals",
    "mapping",
    "plain",
    "rows_in",
    "schema_of",
    "snapshot_rows",
    "struct",
    "text",
]
