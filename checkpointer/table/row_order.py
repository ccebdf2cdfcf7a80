"""Sort rows by partition and key, and find keys that more than one row has.

Nulls are equal to nulls and NaN to NaN, as in Spark's `groupBy`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer import display
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.table import large_rows
from pyspark_checkpointer.table.schema import PARTITION, TableSchema


def in_order(rows: pa.Table, key: list[str], *, stable: bool = False) -> pa.Table:
    """Return the rows sorted by partition, if they have that column, and by key.

    With `stable`, rows of one key keep their order. If the caller does not hold the rows, they are in memory at most
    twice.
    """
    # Before the chunks are combined: one array with 32-bit offsets cannot hold more than 2 GiB.
    (rows,) = large_rows.widen(rows)
    order = _order(rows, key, stable=stable)
    # Rows that are in order already are most of what is folded, and to take them would copy them.
    if np.array_equal(order, np.arange(len(order))):
        return large_rows.narrow(rows.combine_chunks())
    schema, columns, indices = rows.schema, rows.columns[::-1], pa.array(order)
    del rows
    # Column by column, so that no more than one of them is in memory a third time.
    taken = [columns.pop().combine_chunks().take(indices) for _ in schema]
    return large_rows.narrow(pa.Table.from_arrays(taken, schema=schema))


def _order(rows: pa.Table, key: list[str], *, stable: bool) -> Any:
    """Return the indices of the rows in their order."""
    first = rows[key[0]]
    if len(key) == 1 and first.null_count == 0 and pa.types.is_integer(first.type):
        # For one column of integers numpy is several times faster than Arrow's general sort.
        order = np.argsort(first.to_numpy(), kind="stable" if stable else None)
    else:
        order = sorted_indices(rows.select(key).combine_chunks().columns).to_numpy()
    if PARTITION in rows.column_names:
        numbers = rows[PARTITION].to_numpy()[order]
        fits_16_bits = len(numbers) == 0 or numbers.max() < 1 << 16  # numpy sorts 16 bits in linear time.
        # The second sort is stable, so that rows of a partition keep the order of their keys.
        order = order[np.argsort(numbers.astype(np.uint16) if fits_16_bits else numbers, kind="stable")]
    return order


def sorted_indices(columns: Sequence[pa.ChunkedArray]) -> pa.Array:
    """Return the indices of rows, sorted by the first column, then by the next.

    The sort is stable. Nulls come last, and NaN after all other numbers.
    """
    # Not the names that the columns have: Arrow takes one that begins with a dot for a path to another column.
    names = [str(number) for number in range(len(columns))]
    return pc.sort_indices(pa.table(columns, names), sort_keys=[(name, "ascending") for name in names])


def count_up_to(rows: pa.Table, last: pa.Table, key: list[str]) -> int:
    """Return how many of the rows have a key up to that of the row `last`.

    The rows are in order of their key.
    """
    keys, last = rows.select(key), last.select(key)
    low, high = 0, keys.num_rows
    # Arrow's own sort compares each pair of keys, so that nulls and NaN have the place that `in_order` gives them.
    while low < high:
        middle = (low + high) // 2
        both = pa.concat_tables([keys.slice(middle, 1), last]).combine_chunks()
        # The sort is stable, so that of equal keys the one of `keys` comes first.
        order = sorted_indices(both.columns)
        if order[0].as_py() == 0:
            low = middle + 1
        else:
            high = middle
    return low


def last_up_to(starts: pa.Table, keys: pa.Table, key: list[str]) -> Any:
    """Return for each row of `keys` the index of the last row at or below its key.

    It is an index in `starts`. It is -1 if the keys of all rows of `starts` are above. The rows of `starts` are in
    order of their key.
    """
    below, sought = starts.select(key), keys.select(key)
    first = below[key[0]]
    if len(key) == 1 and pa.types.is_integer(first.type) and not (first.null_count or sought[key[0]].null_count):
        return np.searchsorted(first.to_numpy(), sought[key[0]].to_numpy(), "right") - 1
    both = pa.concat_tables([below, sought.cast(below.schema)]).combine_chunks()
    # The sort is stable, so that of equal keys the one of `starts` comes first.
    order = sorted_indices(both.columns).to_numpy()
    found = np.empty(both.num_rows, dtype=np.int64)
    found[order] = np.cumsum(order < starts.num_rows) - 1
    return found[starts.num_rows :]


def is_strictly_ascending(rows: pa.Table, columns: list[str]) -> bool:
    """Return whether rows are in order, and no two of them are equal.

    The order is that of `in_order`. The rows are compared in `columns`.
    """
    undecided = np.ones(max(rows.num_rows - 1, 0), dtype=bool)
    for name in columns:
        undecided = undecided & ~_is_below_next(rows[name])
        # The first column decides about all pairs of neighbours in most tables, and then no other is compared.
        if not undecided.any():
            return True
        if (undecided & ~_equals_next(rows[name])).any():
            return False
    # What no column has decided is equal in all of them.
    return False


def first_duplicate(rows: pa.Table, key: list[str]) -> str | None:
    """Return a key that several rows have, as an error should show it.

    The rows are in order of their key.
    """
    found = np.flatnonzero(_repeats_next(rows, key))
    return show_key(rows, key, found[0]) if len(found) else None


def key_starts(rows: pa.Table, key: list[str]) -> Any:
    """Return the index of the first row of each key.

    Rows of one key stand together.
    """
    if rows.num_rows == 0:
        return np.empty(0, dtype=np.int64)
    return np.concatenate([[0], np.flatnonzero(~_repeats_next(rows, key)) + 1])


def _repeats_next(rows: pa.Table, key: list[str]) -> Any:
    """Return for each row but the last whether the next one has the same key."""
    same = np.ones(max(rows.num_rows - 1, 0), dtype=bool)
    (keys,) = large_rows.widen(rows.select(key))
    for name in key:
        same &= _equals_next(keys[name].combine_chunks())
    return same


def show_key(rows: pa.Table, key: list[str], row: int) -> str:
    """Return the key of a row, as an error should show it."""
    return ", ".join(f"{display.cut(name)}={_shown(rows[name].slice(row, 1))}" for name in key)


def _is_below_next(values: pa.ChunkedArray) -> Any:
    """Return for each value but the last whether it is less than the next one.

    The order is Arrow's.
    """
    here, after = _neighbours(values)
    if values.null_count == 0 and pa.types.is_integer(values.type):
        return here.to_numpy() < after.to_numpy()  # some times faster than Arrow
    below = pc.fill_null(pc.less(here, after), False)
    # Nulls come last, and NaN after all other numbers.
    if pa.types.is_floating(values.type):
        below = pc.or_(below, pc.fill_null(pc.and_not(pc.is_nan(after), pc.is_nan(here)), False))
    if values.null_count:
        below = pc.or_(below, pc.and_(here.is_valid(), after.is_null()))
    return below.to_numpy(zero_copy_only=False)


def _neighbours(values: Any) -> tuple[Any, Any]:
    """Return all values but the last, and all but the first."""
    return values.slice(0, max(len(values) - 1, 0)), values.slice(1)


def _equals_next(values: pa.Array | pa.ChunkedArray) -> Any:
    """Return for each value but the last whether the next one equals it."""
    here, after = _neighbours(values)
    if values.null_count == 0 and pa.types.is_integer(values.type):
        return here.to_numpy() == after.to_numpy()
    # Comparing with a null gives null, and NaN differs from itself. As keys both are equal to themselves.
    same = pc.or_(pc.fill_null(pc.equal(here, after), False), pc.and_(here.is_null(), after.is_null()))
    if pa.types.is_floating(values.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(here), pc.is_nan(after)), False))
    return same.to_numpy(zero_copy_only=False)


def _shown(value: pa.ChunkedArray) -> str:
    """Return one value as text.

    Spark also has dates beyond the year 9999 and strings that are not UTF-8.
    """
    if pa.types.is_date(value.type) or pa.types.is_timestamp(value.type):
        value = value.cast(pa.string())
    try:
        return f"{value[0].as_py()!r:.80}"
    except UnicodeDecodeError:
        return f"{value.cast(pa.binary())[0].as_py()!r:.80}"


def check_unique(rows: pa.Table, schema: TableSchema, table: str) -> None:
    """Raise `IllegalArgumentError` where several rows have one key.

    The rows are in order of their key.
    """
    twice = first_duplicate(rows, schema.key)
    if twice is not None:
        raise IllegalArgumentError(
            f"table {table!r}: several rows have the key {twice}, and nothing says which of them is the last: "
            "aggregate them first"
        )


def split_partitions(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield each partition with its rows.

    The rows come in order of their partitions.
    """
    if rows.num_rows == 0:
        return
    numbers, starts = np.unique(rows[PARTITION].to_numpy(), return_index=True)
    for number, start, end in zip(numbers.tolist(), starts, [*starts[1:], rows.num_rows], strict=True):
        yield number, rows.slice(start, end - start)
