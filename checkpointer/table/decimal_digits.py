"""Refuse decimals of more digits than their type has.

Parquet and Arrow hold decimals in whole bytes, which have room for more digits. Arrow does not notice such a value, and
cuts it when it writes it.
"""

from typing import Any

import pyarrow as pa


def check(values: Any) -> None:
    """Raise `pyarrow.ArrowInvalid` for a decimal of too many digits.

    The decimal may be at any depth of an Arrow array.
    """
    kind = values.type
    if pa.types.is_decimal(kind):
        values.validate(full=True)
    elif pa.types.is_nested(kind):
        for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
            for part in _parts(chunk):
                check(part)


def _parts(values: Any) -> list[Any]:
    """Return the arrays inside a nested array."""
    if pa.types.is_struct(values.type):
        return values.flatten()  # type: ignore[no-any-return]
    return [values.keys, values.items] if pa.types.is_map(values.type) else [values.flatten()]


__all__ = ["check"]
