"""Rows on top of rows: many changes of a key become one, and changes are put on top of what was there.

Everything here is Arrow and numpy on the rows of some partitions, so that Spark's executors, its driver, and readers
without Spark merge alike. Nulls are equal to nulls and NaN to NaN, as in Spark's `groupBy`.
"""

from collections.abc import Callable
from decimal import localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.table import kept_columns, large_rows
from pyspark_checkpointer.table.schema import CHANGE, DELETE, KEPT, MERGE, PARTITION, RESET, Column, TableSchema
from pyspark_checkpointer.table.types import MAX_PRECISION, decimal_scale, is_float, is_wider, show_type


def in_order(rows: pa.Table, key: list[str], *, stable: bool = False) -> pa.Table:
    """Return the rows by partition, where they have one, and by key: the order that objects have them in.

    `stable`: rows of one key stay in the order in which they are.
    """
    (rows,) = large_rows.widen(rows)
    rows = rows.combine_chunks()
    first = rows[key[0]]
    if len(key) == 1 and first.null_count == 0 and pa.types.is_integer(first.type):
        # Several times faster than what sorts anything.
        order = np.argsort(first.to_numpy(), kind="stable" if stable else None)
    else:
        order = pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in key]).to_numpy()
    if PARTITION in rows.column_names:
        numbers = rows[PARTITION].to_numpy()[order]
        few = len(numbers) == 0 or numbers.max() < 1 << 16  # numpy sorts 16 bits in linear time
        order = order[np.argsort(numbers.astype(np.uint16) if few else numbers, kind="stable")]
    return large_rows.narrow(rows.take(pa.array(order)))


def first_beyond(rows: pa.Table, last: pa.Table, key: list[str]) -> int:
    """Return how many of some rows, in order of their key, have a key that is not above that of the row `last`."""
    keys, last = rows.select(key), last.select(key)
    low, high = 0, keys.num_rows
    while low < high:
        middle = (low + high) // 2
        both = pa.concat_tables([keys.slice(middle, 1), last]).combine_chunks()
        order = pc.sort_indices(
            both, sort_keys=[(name, "ascending") for name in key]
        )  # stable: of equal keys the first
        if order[0].as_py() == 0:
            low = middle + 1
        else:
            high = middle
    return low


def first_duplicate(rows: pa.Table, key: list[str]) -> str | None:
    """Of rows in order of their key: one that more than one row has, as an error should show it."""
    same = np.ones(max(rows.num_rows - 1, 0), dtype=bool)
    (keys,) = large_rows.widen(rows.select(key))
    for name in key:
        same &= _equals_next(keys[name].combine_chunks())
    found = np.flatnonzero(same)
    return show_key(rows, key, found[0]) if len(found) else None


def show_key(rows: pa.Table, key: list[str], row: int) -> str:
    """Return the key of a row, as an error should show it."""
    return ", ".join(f"{name}={_shown(rows[name].slice(row, 1))}" for name in key)


def _equals_next(values: pa.Array) -> Any:
    """For each value but the last whether the next one is the same."""
    here, after = values.slice(0, max(len(values) - 1, 0)), values.slice(1)
    same = pc.or_(pc.fill_null(pc.equal(here, after), False), pc.and_(here.is_null(), after.is_null()))
    if pa.types.is_floating(values.type):
        same = pc.or_(same, pc.fill_null(pc.and_(pc.is_nan(here), pc.is_nan(after)), False))
    return same.to_numpy(zero_copy_only=False)


def _shown(value: pa.ChunkedArray) -> str:
    """Return one value, of whatever Spark can hold: dates beyond the year 9999, and text that is no UTF-8."""
    if pa.types.is_date(value.type) or pa.types.is_timestamp(value.type):
        value = value.cast(pa.string())
    try:
        return f"{value[0].as_py()!r:.80}"
    except UnicodeDecodeError:
        return f"{value.cast(pa.binary())[0].as_py()!r:.80}"


def consolidate(rows: pa.Table, schema: TableSchema, table: str) -> pa.Table:
    """Return one change for each key that does what all its changes, the oldest first, do one after the other."""
    return large_rows.narrow(_consolidate(large_rows.widen(rows)[0], schema, table))


def _consolidate(rows: pa.Table, schema: TableSchema, table: str) -> pa.Table:
    groups, count = _groups(rows, schema.key)
    if count == rows.num_rows:
        return rows
    index = np.arange(rows.num_rows)
    newest = _newest(groups, index, count)
    merged = rows.take(pa.array(newest))
    keeps = kept_columns.KeptColumns(rows, schema)
    if schema.replaces and not keeps:
        return merged.drop_columns([KEPT]) if KEPT in merged.column_names else merged
    changes = rows[CHANGE].to_numpy()
    breaks = changes != MERGE
    barrier = _newest(groups[breaks], index[breaks], count)
    alive = (index >= barrier[groups]) & (changes != DELETE)
    deleted = np.ones(count, dtype=bool)
    deleted[groups[alive]] = False
    made = _combined(rows.filter(pa.array(alive)), groups[alive], count, schema, table)
    made[CHANGE] = pa.array(np.where(deleted, DELETE, np.where(barrier >= 0, RESET, MERGE)).astype(np.int8))
    if keeps:
        made |= _last_values(rows, groups, alive, keeps, barrier, schema)
    for name, values in made.items():
        position = merged.schema.get_field_index(name)
        field = merged.schema.field(position)
        merged = merged.set_column(position, field, values.cast(field.type))
    return merged if keeps or KEPT not in merged.column_names else merged.drop_columns([KEPT])


def _newest(groups: Any, index: Any, count: int) -> Any:
    """Return the last row of each group, or -1 where it has none."""
    found = np.full(count, -1, dtype=np.int64)
    found[groups] = index  # of equal groups the last assignment stays
    return found


def _combined(alive: pa.Table, groups: Any, count: int, schema: TableSchema, table: str) -> dict[str, Any]:
    """Return the combined columns of each group, of the rows that count."""
    return {
        column.name: _combine(alive, groups, count, column, schema.key, table)
        for column in schema.values
        if column.role != "last"
    }


def _last_values(
    rows: pa.Table, groups: Any, alive: Any, keeps: kept_columns.KeptColumns, barrier: Any, schema: TableSchema
) -> dict[str, Any]:
    """Return the columns that some row keeps: the last value that a row of the group gave, and what is kept still.

    What a group keeps with a reset or a deletion in it is null: nothing that is below counts.
    """
    count, index = len(barrier), np.arange(rows.num_rows)
    made: dict[str, Any] = {}
    still: dict[int, Any] = {}
    for column in schema.values:
        if column.id in keeps.ids:
            gives = alive & ~keeps.mask(column.id)
            found = _newest(groups[gives], index[gives], count)
            made[column.name] = rows[column.name].take(pa.array(found, mask=found < 0))
            still[column.id] = (found < 0) & (barrier < 0)
    made[KEPT] = kept_columns.texts(still, count)
    return made


def apply(base: pa.Table, deltas: pa.Table, schema: TableSchema, table: str) -> pa.Table:
    """Return the rows of `base` once the changes of `deltas`, the oldest first, are put on top of them.

    A sum counts once all of it is there: what only some of the changes add up to may be beyond its type.
    """
    base, deltas = large_rows.widen(base, deltas)
    untouched, changes = base, deltas
    if base.num_rows and deltas.num_rows:
        touched = _candidates(base, deltas, schema.key)
        untouched = base.filter(pc.invert(touched))
        # With one key column, what is below a change that replaces all of its row does not count.
        if not (schema.replaces and len(schema.key) == 1) or kept_columns.KeptColumns(deltas, schema):
            below = base.filter(touched)
            for name, kind, value in ((PARTITION, pa.int32(), 0), (CHANGE, pa.int8(), MERGE)):
                below = below.append_column(pa.field(name, kind), pa.repeat(pa.scalar(value, kind), below.num_rows))
            given = [name for name in deltas.column_names if name != KEPT]
            changes = kept_columns.concat([below.select(given), deltas])
    changes = _consolidate(changes, schema, table)
    living = changes.filter(pc.not_equal(changes[CHANGE], DELETE)).select(base.column_names)
    return large_rows.narrow(pa.concat_tables([untouched, living]))


def matching(rows: pa.Table, keys: pa.Table, key: list[str]) -> pa.Table:
    """Return the rows whose key is one of `keys`, exactly."""
    mask = _candidates(rows, keys, key)
    found = rows.filter(mask)
    if len(key) == 1 or found.num_rows == 0:
        return found
    both = pa.concat_tables([found.select(key), keys.select(key).cast(found.select(key).schema)])
    groups, count = _groups(both, key)
    wanted = np.zeros(count, dtype=bool)
    wanted[groups[found.num_rows :]] = True
    return found.filter(pa.array(wanted[groups[: found.num_rows]]))


def _candidates(rows: pa.Table, keys: pa.Table, key: list[str]) -> Any:
    """For each row whether each of its key columns has a value that is somewhere in the same column of `keys`.

    With one key column these are exactly the rows whose key is one of `keys`; with more, others may be among them.
    """
    if len(key) == 1 and (found := _positions(rows[key[0]], keys[key[0]])) is not None:
        here = np.zeros(rows.num_rows, dtype=bool)
        here[found] = True
        return pa.array(here)
    mask = None
    for name in key:
        wanted = pc.unique(keys[name].combine_chunks())
        here = pc.is_in(rows[name], value_set=wanted)
        mask = here if mask is None else pc.and_(mask, here)
    return mask


def _positions(values: pa.ChunkedArray, wanted: pa.ChunkedArray) -> Any:
    """Return where some whole numbers are among others, if those are in order and each there once, as in a snapshot."""
    if not pa.types.is_integer(values.type) or values.null_count or wanted.null_count:
        return None
    here, sought = values.to_numpy(), np.unique(wanted.to_numpy())
    if not (here[1:] > here[:-1]).all():
        return None
    at = np.searchsorted(here, sought)
    inside = at < len(here)
    at, sought = at[inside], sought[inside]
    return at[here[at] == sought]


def _groups(rows: pa.Table, key: list[str]) -> tuple[Any, int]:
    """For each row the number of its key, from 0, and how many keys there are."""
    names = [str(number) for number in range(len(key))]  # whatever the columns are called
    numbered = rows.select(key).rename_columns(names).append_column("row", pa.array(np.arange(rows.num_rows)))
    lists = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])["row_list"].combine_chunks()
    groups = np.empty(rows.num_rows, dtype=np.int64)
    groups[lists.flatten().to_numpy()] = pc.list_parent_indices(lists).to_numpy()
    return groups, len(lists)


# ---- combining the values of one column ------------------------------------------------------------------------------


def _combine(rows: pa.Table, groups: Any, count: int, column: Column, key: list[str], table: str) -> pa.Array:
    """Return the combined value of each group of rows; null where a group has no value but nulls."""
    present = rows[column.name].is_valid().to_numpy()
    values, groups = rows[column.name].filter(pa.array(present)).combine_chunks(), groups[present]
    if column.role != "sum":
        return _extreme(values, groups, count, last=column.role == "max")
    if is_float(column.type):
        add: Callable[[Any, Any, int], pa.Array] = _add
    else:
        add = _add_decimals if pa.types.is_decimal(values.type) else _add_integers
    try:
        return add(values, groups, count).cast(values.type)
    except (pa.ArrowInvalid, OverflowError):
        row = np.flatnonzero(present)[_first_too_large(values, groups, count)]
        raise _outgrown(table, column, show_key(rows, key, row)) from None


def _first_too_large(values: pa.Array, groups: Any, count: int) -> int:
    """Return the first value of a group whose sum does not fit into the type of the values, which are exact numbers."""
    integer = pa.types.is_integer(values.type)
    scale = 0 if integer else values.type.scale
    largest = (1 << (values.type.bit_width - 1)) - 1 if integer else 10**values.type.precision - 1
    smallest = -largest - 1 if integer else -largest
    sums = _add(values.cast(pa.decimal256(76, scale)), groups, count).to_pylist()
    with localcontext(prec=80):
        too_large = {
            group
            for group, total in enumerate(sums)
            if total is not None and not smallest <= total.scaleb(scale) <= largest
        }
    return next(row for row, group in enumerate(groups.tolist()) if group in too_large)


def _outgrown(table: str, column: Column, key: str) -> InvalidStateError:
    """Say which sum is too large, and what can be done: there is no wider type for every column."""
    widest = f"decimal({MAX_PRECISION},{decimal_scale(column.type)})"
    wider = f"upsert it as a wider type, such as {widest}; or " if is_wider(column.type, widest) else ""
    return InvalidStateError(
        f"table {table!r}: the sum of column {column.name!r} of the key {key} does not fit into its type, "
        f"{show_type(column.type)}, and a batch that fails with this commits nothing: {wider}drop it for good with "
        f"drop_columns([{column.name!r}]), and go on with a column of another name or type, such as double; or rewind "
        "to a checkpoint from before it grew so large"
    )


def _extreme(values: pa.Array, groups: Any, count: int, *, last: bool) -> pa.Array:
    """Return the value of each group that comes first or last in Spark's order, in which NaN is above every number."""
    order = np.argsort(pc.rank(values, tiebreaker="dense").to_numpy(), kind="stable")
    order = order if last else order[::-1]
    found = np.full(count, -1, dtype=np.int64)
    found[groups[order]] = order
    return values.take(pa.array(found, mask=found < 0))


def _add(values: pa.Array, groups: Any, count: int) -> pa.Array:
    """Sums in the type that Arrow sums values in."""
    sums = pa.table({"group": groups, "value": values}).group_by("group", use_threads=False)
    summed = sums.aggregate([("value", "sum")])
    at = np.full(count, -1, dtype=np.int64)
    at[summed["group"].to_numpy()] = np.arange(summed.num_rows)
    return summed["value_sum"].combine_chunks().take(pa.array(at, mask=at < 0))


def _add_integers(values: pa.Array, groups: Any, count: int) -> pa.Array:
    """Sums of 64-bit integers. Arrow's would wrap around: the halves are summed by themselves, and put together."""
    wide = values.cast(pa.int64())
    high = _add(pc.shift_right(wide, 32), groups, count)
    low = _add(pc.bit_wise_and(wide, 0xFFFFFFFF), groups, count)
    high = pc.add(high, pc.shift_right(low, 32))
    shifted = pc.multiply_checked(high, 1 << 32)
    return pc.add_checked(shifted, pc.bit_wise_and(low, 0xFFFFFFFF))


def _add_decimals(values: pa.Array, groups: Any, count: int) -> pa.Array:
    """Sums of up to 38 digits, with room for what they are in between."""
    return _add(values.cast(pa.decimal256(76, values.type.scale)), groups, count)


def check_unique(rows: pa.Table, schema: TableSchema, table: str) -> None:
    """Refuse rows, in order of their key, of which several have one key, where only one of them could stay."""
    twice = first_duplicate(rows, schema.key)
    if twice is not None:
        raise IllegalArgumentError(
            f"table {table!r}: several rows have the key {twice}, and nothing says which of them is the last: "
            "aggregate them first"
        )
