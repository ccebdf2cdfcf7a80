"""Compare the values of two columns row by row, whatever their type.

Nulls are equal to nulls and NaN to NaN, as in keys. Maps are equal if they have the same entries in the same order.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


def equal_rows(left: pa.Table, right: pa.Table) -> Any:
    """Return for each row whether all of its values are equal in two tables.

    The tables have the same columns and the same length.
    """
    same = np.ones(left.num_rows, dtype=bool)
    for name in left.column_names:
        same &= _equal(_whole(left[name]), _whole(right[name]))
    return same


def _whole(values: pa.ChunkedArray) -> pa.Array:
    combined = values.combine_chunks()
    # Some releases of pyarrow return a chunked array where there was no chunk, or several large ones.
    if not isinstance(combined, pa.ChunkedArray):
        return combined
    return pa.concat_arrays(combined.chunks) if combined.num_chunks else pa.array([], combined.type)


def _equal(left: pa.Array, right: pa.Array) -> Any:
    """Return a mask of the places where both arrays have the same value."""
    kind = left.type
    valid = _mask(left.is_valid())
    same = valid == _mask(right.is_valid())
    # Only where both sides have a value can the values differ. The others would have to be left out of nested ones.
    at = np.flatnonzero(same & valid)
    left, right = left.take(pa.array(at)), right.take(pa.array(at))
    if pa.types.is_struct(kind):
        pairs = zip(left.flatten(), right.flatten(), strict=True)
        inner = np.logical_and.reduce([_equal(*pair) for pair in pairs], initial=True)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        inner = _equal_lists(_entries(left), _entries(right))
    else:
        inner = _mask(pc.equal(left, right))
        if pa.types.is_floating(kind):
            inner |= _mask(pc.is_nan(left)) & _mask(pc.is_nan(right))
    same[at] = inner
    return same


def _entries(values: pa.Array) -> pa.Array:
    """Return maps as lists of structs; lists are returned as they are."""
    if not pa.types.is_map(values.type):
        return values
    kind = pa.struct([pa.field("key", values.type.key_type), pa.field("value", values.type.item_type)])
    return pa.ListArray.from_arrays(
        values.offsets, pa.StructArray.from_arrays([values.keys, values.items], fields=[*kind])
    )


def _equal_lists(left: pa.Array, right: pa.Array) -> Any:
    """Return a mask of the lists that are equal. None of them is null."""
    lengths = pc.list_value_length(left).to_numpy(zero_copy_only=False)
    same = lengths == pc.list_value_length(right).to_numpy(zero_copy_only=False)
    # Lists of one length have their elements at the same places, once those of other lengths are left out.
    at = np.flatnonzero(same)
    left, right = left.take(pa.array(at)), right.take(pa.array(at))
    differs = ~_equal(left.flatten(), right.flatten())
    parents = pc.list_parent_indices(left).to_numpy(zero_copy_only=False)
    same[at[np.unique(parents[differs])]] = False
    return same


def _mask(values: pa.Array) -> Any:
    return values.to_numpy(zero_copy_only=False).astype(bool)


__all__ = ["equal_rows"]
