"""Combine the values of one column, group by group: sum, minimum or maximum."""

from collections.abc import Callable
from decimal import localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.table.row_order import show_key
from pyspark_checkpointer.table.schema import Column
from pyspark_checkpointer.table.types import MAX_PRECISION, decimal_scale, is_float, is_wider, show_type

_EXACT_ROWS = 1 << 21
"""Largest number of 32-bit integers whose sum fits exactly in a double, whatever they are.

numpy sums groups in doubles only.
"""


class SumOverflowError(InvalidStateError):
    """A sum does not fit into the type of its column.

    With the row below, the sum of the same changes may fit. So whoever adds up changes alone can go on; for everybody
    else it is an `InvalidStateError`.
    """


def combine(
    rows: pa.Table, groups: Any, count: int, column: Column, key: list[str], table: str, *, is_total: bool
) -> pa.Array:
    """Return the combined value of each group of rows.

    A group that has only nulls gets null. `is_total` says of an error whether the rows are all that there is of a key,
    and not the changes of one call alone. Raises `SumOverflowError`.
    """
    # Sums and extremes leave nulls out (SPEC, Tables). A group of nulls alone gets no value below, and so stays null.
    present = rows[column.name].is_valid().to_numpy()
    values, groups = rows[column.name].filter(pa.array(present)).combine_chunks(), groups[present]
    if column.role != "sum":
        return _extreme(values, groups, count, last=column.role == "max")
    if is_float(column.type):
        add: Callable[[Any, Any, int], pa.Array] = _add
    else:
        add = _add_decimals if pa.types.is_decimal(values.type) else _add_integers
    # The key whose sum is too large is looked for only after the fast way has failed.
    try:
        return add(values, groups, count).cast(values.type)
    except (pa.ArrowInvalid, OverflowError):
        row = np.flatnonzero(present)[_first_too_large(values, groups, count)]
        raise _sum_error(table, column, show_key(rows, key, row), is_total=is_total) from None


def _first_too_large(values: pa.Array, groups: Any, count: int) -> int:
    """Return the index of the first value whose group has a sum beyond its type.

    The values are integers or decimals.
    """
    integer = pa.types.is_integer(values.type)
    scale = 0 if integer else values.type.scale
    largest = (1 << (values.type.bit_width - 1)) - 1 if integer else 10**values.type.precision - 1
    smallest = -largest - 1 if integer else -largest
    # 76 digits hold the sum of as many values of 38 digits as fit into memory.
    sums = _add(values.cast(pa.decimal256(76, scale)), groups, count).to_pylist()
    # `scaleb` rounds to the precision of the context, by default 28 digits, which is less than these sums have.
    with localcontext(prec=80):
        too_large = {
            group
            for group, total in enumerate(sums)
            if total is not None and not smallest <= total.scaleb(scale) <= largest
        }
    return next(row for row, group in enumerate(groups.tolist()) if group in too_large)


def _sum_error(table: str, column: Column, key: str, *, is_total: bool) -> SumOverflowError:
    """Return the error for a sum that is too large.

    It offers a wider type where the column has one.
    """
    widest = f"decimal({MAX_PRECISION},{decimal_scale(column.type)})"
    wider = f"upsert it as a wider type, such as {widest}; or " if is_wider(column.type, widest) else ""
    if is_total:
        what = "the sum of column"
        way = (
            f"drop the column for good with drop_columns([{column.name!r}]) and use one of another name or type, such "
            "as double; or rewind to a checkpoint in which the sum was smaller"
        )
    else:
        # The changes of several calls are added to the row below in one step.
        what = "the sum of the changes that one call makes to column"
        way = "if it fits together with the value in the table, spread these rows over several calls"
    return SumOverflowError(
        f"table {table!r}: {what} {column.name!r} of the key {key} does not fit into its type, "
        f"{show_type(column.type)}; the batch was not committed: {wider}{way}"
    )


def _extreme(values: pa.Array, groups: Any, count: int, *, last: bool) -> pa.Array:
    """Return the first or last value of each group in Spark's order.

    In this order NaN is above every number.
    """
    order = np.argsort(pc.rank(values, tiebreaker="dense").to_numpy(), kind="stable")
    # The reverse order makes the smallest value of each group the one that is assigned last.
    order = order if last else order[::-1]
    found = np.full(count, -1, dtype=np.int64)
    found[groups[order]] = order  # Of several assignments to one group, numpy keeps the last.
    return values.take(pa.array(found, mask=found < 0))


def _add(values: pa.Array, groups: Any, count: int) -> pa.Array:
    """Return the sum of each group, in the type that Arrow sums values in."""
    sums = pa.table({"group": groups, "value": values}).group_by("group", use_threads=False)
    summed = sums.aggregate([("value", "sum")])
    at = np.full(count, -1, dtype=np.int64)
    # Arrow returns the groups in an order of its own, and leaves out those without values.
    at[summed["group"].to_numpy()] = np.arange(summed.num_rows)
    return summed["value_sum"].combine_chunks().take(pa.array(at, mask=at < 0))


def _add_integers(values: pa.Array, groups: Any, count: int) -> pa.Array:
    """Return the sum of each group of integers, as 64 bits.

    Raises `ArrowInvalid` where a sum does not fit. Arrow's own sum would wrap around. The upper and the lower 32 bits
    are summed by themselves and put together.
    """
    wide = values.cast(pa.int64()).to_numpy()
    absent = np.bincount(groups, minlength=count) == 0
    high, low = (pa.array(_add_halves(half, groups, count), mask=absent) for half in (wide >> 32, wide & 0xFFFFFFFF))
    # What the lower halves carry over belongs to the upper ones. Only the checked steps below can exceed 64 bits.
    high = pc.add(high, pc.shift_right(low, 32))
    shifted = pc.multiply_checked(high, 1 << 32)
    return pc.add_checked(shifted, pc.bit_wise_and(low, 0xFFFFFFFF))


def _add_halves(values: Any, groups: Any, count: int) -> Any:
    """Return the sum of each group of integers of at most 32 bits."""
    total = np.zeros(count, dtype=np.int64)
    for start in range(0, len(values), _EXACT_ROWS):
        part = slice(start, start + _EXACT_ROWS)
        total += np.bincount(groups[part], values[part], count).astype(np.int64)
    return total


def _add_decimals(values: pa.Array, groups: Any, count: int) -> pa.Array:
    """Return the sum of each group of decimals, in 76 digits.

    The sum of some of the values may need more than 38 digits, even where the sum of all does not.
    """
    return _add(values.cast(pa.decimal256(76, values.type.scale)), groups, count)
