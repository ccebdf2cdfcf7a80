"""Convert between Arrow and the frames of a user's function.

A frame is a table of Arrow, or one of pandas or polars.
"""

import json
from itertools import groupby
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.errors import IllegalArgumentError

Frames = Literal["arrow", "pandas", "polars"]
"""The frames that a function takes and returns: `pyarrow.Table`, `pandas.DataFrame` or `polars.DataFrame`."""

_INDEX = b"pyspark_checkpointer.index"
"""Metadata of an Arrow table that was a frame of pandas: the names of its index."""


def check_frames(call: str, frames: Any, others: tuple[str, ...] = ()) -> None:
    """Raise `IllegalArgumentError` unless a kind of frame is known and installed.

    The message also names the `others` that the caller takes.
    """
    if frames not in get_args(Frames):
        kinds = ", ".join((*others, *get_args(Frames)))
        raise IllegalArgumentError(f"{call}: frames={frames!r:.40}: expected one of {kinds}")
    try:
        from_arrow(pa.table({}), frames)
    except ImportError as error:
        raise IllegalArgumentError(
            f"{call}: frames={frames!r}: {error.name} is not installed: pip install {error.name}"
        ) from None


def from_arrow(rows: pa.Table, frames: Frames) -> Any:
    """Return Arrow rows as a frame."""
    if frames == "pandas":
        import pandas

        # Pandas' own types turn integers with nulls into floats, which lose digits above 2^53.
        return rows.to_pandas(types_mapper=pandas.ArrowDtype)
    if frames == "polars":
        import polars

        return polars.from_arrow(rows)
    return rows


def to_arrow(given: Any, wanted: pa.Schema) -> pa.Table | None:
    """Return a frame of any kind as Arrow rows; None for anything that is no frame.

    `wanted` has the types that columns will get. They only decide what NaN is within a value of pandas.
    """
    if isinstance(given, pa.Table):
        return given
    if isinstance(given, pa.RecordBatch):
        return pa.Table.from_batches([given])
    module = type(given).__module__.partition(".")[0]
    # Looked for by name: a package that is not installed cannot be imported, and needs no import then.
    if module == "pandas" and type(given).__name__ == "DataFrame":
        return _from_pandas(given, wanted)
    if module == "polars" and type(given).__name__ == "DataFrame":
        return given.to_arrow()
    return None


def _from_pandas(frame: Any, wanted: pa.Schema) -> pa.Table:
    """Return the columns of a pandas frame, without its index.

    NaN in a column of numpy's floats stays NaN, and so does one within a value where floats are wanted. Arrow would
    take it for null, which is another key.
    """
    columns, names = [], []
    # A copy, as Arrow would share the memory: a function may fill one frame anew for each key.
    for name, values in frame.copy().items():  # A name may be there twice.
        if not isinstance(name, str):
            raise TypeError(f"column {name!r:.40}: its name is no text")
        is_plain_float = getattr(values.dtype, "kind", "") == "f" and type(values.dtype).__module__.startswith("numpy")
        kind = wanted.field(name).type if name in wanted.names else None
        try:
            columns.append(pa.array(values.to_numpy()) if is_plain_float else _from_series(values, kind))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"column {name!r}: {error}") from None
        names.append(name)
    index = [name for name in frame.index.names if isinstance(name, str)]
    return pa.table(columns, names=names, metadata={_INDEX: json.dumps(index)})


def _from_series(values: Any, wanted: pa.DataType | None) -> pa.Array:
    """Return a column of pandas that is not one of numpy's floats."""
    found = pa.array(values, from_pandas=True)
    if values.dtype != object or not pa.types.is_nested(found.type):
        return found
    whole = [value if there else None for value, there in zip(values, values.notna(), strict=True)]
    try:
        made = pa.array(whole, from_pandas=False)
    # Within them is NA or NaT, or NaN in place of a text.
    except (pa.ArrowException, TypeError, ValueError):
        made = None
    # NaN makes floats of integers, and of a part that has no other value.
    if made is None or made.type != found.type:
        made = pa.array([_without_na(value, found.type, wanted) for value in whole], from_pandas=False)
    return made


def _without_na(value: Any, found: pa.DataType, wanted: pa.DataType | None) -> Any:
    """Return a value with null for each null of pandas but NaN among floats.

    `found` is its type where NaN is null.
    """
    if pa.types.is_list(found) and isinstance(value, (list, tuple, np.ndarray)):
        inside = wanted.value_type if wanted is not None and pa.types.is_list(wanted) else None
        return [_without_na(inner, found.value_type, inside) for inner in value]
    if pa.types.is_struct(found) and isinstance(value, dict):
        types = (
            {field.name: field.type for field in wanted} if wanted is not None and pa.types.is_struct(wanted) else {}
        )
        return {field.name: _without_na(value.get(field.name), field.type, types.get(field.name)) for field in found}
    # Of no type is a part in which Arrow found nulls alone, as it takes NaN for one.
    is_number = pa.types.is_floating(found) or pa.types.is_integer(found) or pa.types.is_null(found)
    is_float = pa.types.is_floating(found if wanted is None else wanted)
    if is_number and is_float and isinstance(value, (float, np.floating)):
        return value
    import pandas

    return None if pandas.isna(value) else value


def is_index(frame: pa.Table, name: str) -> bool:
    """Return whether a frame came from pandas with an index of this name.

    `groupby` makes an index of the key.
    """
    return name in json.loads((frame.schema.metadata or {}).get(_INDEX, b"[]"))


def joined(frames: list[pa.Table]) -> list[pa.Table]:
    """Return neighbours of one schema as one frame.

    A frame for each key would cost far more than its rows.
    """
    return [
        pa.concat_tables(list(same)).combine_chunks() for _, same in groupby(frames, key=lambda frame: frame.schema)
    ]


__all__ = ["Frames", "check_frames", "from_arrow", "is_index", "joined", "to_arrow"]
