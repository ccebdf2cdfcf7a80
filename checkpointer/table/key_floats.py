"""Bring floats of a key into the one form that each key has.

0.0 and -0.0 are one key, and so are all NaN. Arrow groups and looks up floats by their bits, so that each of these must
have the same bits everywhere.
"""

import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer.table.schema import TableSchema


def canonical(values: Any) -> Any:
    """Return key values with 0.0 for -0.0 and one NaN for all.

    Values that are no floats are returned as they are.
    """
    if not pa.types.is_floating(values.type):
        return values
    return pc.if_else(pc.is_nan(values), pa.scalar(math.nan, values.type), pc.add(values, pa.scalar(0, values.type)))


def canonical_rows(rows: pa.Table, schema: TableSchema) -> pa.Table:
    """Return rows with the floats of their key in one form."""
    for name in schema.key:
        if pa.types.is_floating(rows[name].type):
            position = rows.schema.get_field_index(name)
            rows = rows.set_column(position, rows.schema.field(position), canonical(rows[name]))
    return rows


__all__ = ["canonical", "canonical_rows"]
