"""Merge changes into one change for each key, and apply changes to rows.

All of this is Arrow and numpy on the rows of some partitions, so that Spark's executors, its driver and readers without
Spark merge alike. Nulls are equal to nulls and NaN to NaN, as in Spark's `groupBy`.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer.table import kept_columns, large_rows
from pyspark_checkpointer.table.combine import combine
from pyspark_checkpointer.table.schema import CHANGE, DELETE, KEPT, MERGE, PARTITION, RESET, TableSchema


def fold_changes(rows: pa.Table, schema: TableSchema, table: str) -> pa.Table:
    """Return one change for each key, with the effect of all its changes.

    The changes come oldest first.
    """
    return large_rows.narrow(_fold_changes(large_rows.widen(rows)[0], schema, table, is_total=False))


def _fold_changes(rows: pa.Table, schema: TableSchema, table: str, *, is_total: bool) -> pa.Table:
    """Fold rows that one array can hold.

    With `is_total`, nothing is below them.
    """
    groups, count = _groups(rows, schema.key)
    # Each key has one change, so nothing has to be merged.
    if count == rows.num_rows:
        return rows
    index = np.arange(rows.num_rows)
    newest = _newest(groups, index, count)
    merged = rows.take(pa.array(newest))
    keeps = kept_columns.KeptColumns(rows, schema)
    if schema.replaces and not keeps:  # The newest change of a key has all its values.
        return merged.drop_columns([KEPT]) if KEPT in merged.column_names else merged
    changes = rows[CHANGE].to_numpy()
    # The last reset or deletion of a key hides all its older changes.
    is_barrier = changes != MERGE
    barrier = _newest(groups[is_barrier], index[is_barrier], count)
    # A key without a barrier has -1 there, so all of its changes count.
    alive = (index >= barrier[groups]) & (changes != DELETE)
    # A key is deleted where no change came after its last deletion. The deletion stays, since a row may be below.
    deleted = np.ones(count, dtype=bool)
    deleted[groups[alive]] = False
    made = _combined(rows.filter(pa.array(alive)), groups[alive], count, schema, table, is_total=is_total)
    # After a reset or deletion the folded change must reset too: a merge would bring back values of the row below
    # (SPEC, Tables).
    made[CHANGE] = pa.array(np.where(deleted, DELETE, np.where(barrier >= 0, RESET, MERGE)).astype(np.int8))
    if keeps:
        made |= _last_values(rows, groups, alive, keeps, barrier, schema)
    for name, values in made.items():
        position = merged.schema.get_field_index(name)
        field = merged.schema.field(position)
        merged = merged.set_column(position, field, values.cast(field.type))
    return merged if keeps or KEPT not in merged.column_names else merged.drop_columns([KEPT])


def _newest(groups: Any, index: Any, count: int) -> Any:
    """Return the index of the last row of each group, or -1 where it has none."""
    found = np.full(count, -1, dtype=np.int64)
    found[groups] = index  # Of several assignments to one group, numpy keeps the last.
    return found


def _combined(
    alive: pa.Table, groups: Any, count: int, schema: TableSchema, table: str, *, is_total: bool
) -> dict[str, Any]:
    """Return the columns that are combined, by name.

    Each has one value for each group of the living rows.
    """
    return {
        column.name: combine(alive, groups, count, column, schema.key, table, is_total=is_total)
        for column in schema.values
        if column.role != "last"
    }


def _last_values(
    rows: pa.Table, groups: Any, alive: Any, keeps: kept_columns.KeptColumns, barrier: Any, schema: TableSchema
) -> dict[str, Any]:
    """Return the columns that some row keeps, and the merged column `__kept`.

    The columns are given by name. A column has the last value that a row of the group gave. Where no row gave one, the
    group keeps the value below it. Below a reset or a deletion nothing counts, so such a group has null.
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
    """Return the rows of `base` after the changes of `deltas`.

    The changes come oldest first. A sum has to fit into its type only at the end. The changes are added to the row
    below in one step, since the sum of some of them may be larger than the result.
    """
    base, deltas = large_rows.widen(base, deltas)
    untouched, changes = base, deltas
    if base.num_rows and deltas.num_rows:
        touched = _candidates(base, deltas, schema.key)
        # Rows that no change touches need no grouping: they only pass through.
        untouched = base.filter(pc.invert(touched))
        # With one key column the touched rows are exactly those that are changed. Where changes replace whole rows,
        # nothing of the touched rows is needed.
        if not (schema.replaces and len(schema.key) == 1) or kept_columns.KeptColumns(deltas, schema):
            below = base.filter(touched)
            # Rows of the base become the oldest changes of their keys, so that one fold merges all. The
            # partition is left out again below.
            for name, kind, value in ((PARTITION, pa.int32(), 0), (CHANGE, pa.int8(), MERGE)):
                below = below.append_column(pa.field(name, kind), pa.repeat(pa.scalar(value, kind), below.num_rows))
            given = [name for name in deltas.column_names if name != KEPT]
            changes = kept_columns.concat([below.select(given), deltas])
    changes = _fold_changes(changes, schema, table, is_total=True)
    kept = pc.not_equal(changes[CHANGE], DELETE)
    # A filter copies all rows, even where it drops none.
    living = (changes if pc.all(kept).as_py() else changes.filter(kept)).select(base.column_names)
    # The rows are not in order of their keys any more. Whoever needs the order sorts them.
    return large_rows.narrow(pa.concat_tables([untouched, living]))


def matching(rows: pa.Table, keys: pa.Table, key: list[str]) -> pa.Table:
    """Return exactly the rows whose key is one of `keys`."""
    # A filter would look at all rows of all columns, and few of them may be wanted. But to take rows Arrow makes one
    # array of all chunks of a column first, which fails for 2 GiB of texts.
    is_small = len(key) == 1 and rows.nbytes < large_rows.NARROW_BYTES
    if is_small and (at := _positions(rows[key[0]], keys[key[0]])) is not None:
        return rows.take(pa.array(at))
    found = rows.filter(_candidates(rows, keys, key))
    # With one key column the mask is exact. With several, values of two wanted keys may meet in a row that nobody
    # asked for.
    if len(key) == 1 or found.num_rows == 0:
        return found
    both = pa.concat_tables([found.select(key), keys.select(key).cast(found.select(key).schema)])
    groups, count = _groups(both, key)
    wanted = np.zeros(count, dtype=bool)
    wanted[groups[found.num_rows :]] = True
    return found.filter(pa.array(wanted[groups[: found.num_rows]]))


def reset(changes: pa.Table, expired: Any) -> pa.Table:
    """Return changes that begin a row anew where the row below may be expired.

    `expired` is a mask of these changes. These changes must not be combined with an expired row.
    """
    anew = expired & (changes[CHANGE].to_numpy() == MERGE)
    if not anew.any():
        return changes
    made = pc.if_else(pa.array(anew), pa.scalar(RESET, pa.int8()), changes[CHANGE])
    changes = changes.set_column(changes.schema.get_field_index(CHANGE), changes.schema.field(CHANGE), made)
    if KEPT in changes.column_names:  # A row that begins anew has nothing to keep (SPEC, Tables).
        kept = pc.if_else(pa.array(anew), pa.scalar(None, pa.string()), changes[KEPT])
        changes = changes.set_column(changes.schema.get_field_index(KEPT), changes.schema.field(KEPT), kept)
    return changes


def row_positions(wanted: pa.Table, keys: pa.Table, key: list[str]) -> Any:
    """Return for each row of `wanted` the index of its key in `keys`.

    The index is -1 where the key is not there. No two rows of `keys` have one key.
    """
    known = keys.select(key)
    groups, count = _groups(pa.concat_tables([known, wanted.select(key).cast(known.schema)]), key)
    # Arrow numbers keys in any order, so the numbers of known keys are brought back to their indexes.
    index = np.full(count, -1, dtype=np.int64)
    index[groups[: known.num_rows]] = np.arange(known.num_rows)
    return index[groups[known.num_rows :]]


def _candidates(rows: pa.Table, keys: pa.Table, key: list[str]) -> Any:
    """Return a mask of the rows whose key may be one of `keys`.

    Each of their key columns has a value that occurs in that column of `keys`. With one key column the mask is exact.
    With several it may have other rows too.
    """
    if len(key) == 1 and (found := _positions(rows[key[0]], keys[key[0]])) is not None:
        here = np.zeros(rows.num_rows, dtype=bool)
        here[found] = True
        return pa.array(here)
    mask = None
    for name in key:
        wanted = pc.unique(keys[name].combine_chunks())
        # A join of Arrow would drop null keys. `is_in` finds nulls and NaN.
        here = pc.is_in(rows[name], value_set=wanted)
        mask = here if mask is None else pc.and_(mask, here)
    return mask


def _positions(values: pa.ChunkedArray, wanted: pa.ChunkedArray) -> Any:
    """Return the indexes of the integers `wanted` in `values`, in their order.

    Returns None unless the values are integers that increase strictly, without nulls. In a snapshot they do. This is
    much faster than a hash of all values.
    """
    if not pa.types.is_integer(values.type) or values.null_count or wanted.null_count:
        return None
    here, sought = values.to_numpy(), wanted.to_numpy()
    if not (here[1:] > here[:-1]).all():
        return None
    if not (sought[1:] >= sought[:-1]).all():  # To sort them takes ten times as long as to look.
        sought = np.sort(sought)
    # A value beyond the last one has the position after the end, which is no row.
    at = np.searchsorted(here, sought)
    inside = at < len(here)
    at, sought = at[inside], sought[inside]
    at = at[here[at] == sought]
    return at[np.append(True, at[1:] != at[:-1])] if len(at) else at  # a key may be wanted twice


def _groups(rows: pa.Table, key: list[str]) -> tuple[Any, int]:
    """Return the number of each row's key, counted from 0, and the number of keys."""
    first = rows[key[0]]
    if len(key) == 1 and pa.types.is_integer(first.type) and not first.null_count:
        return _groups_of_integers(first.to_numpy())
    # Names of our own: a key column may be called like the column that is added.
    names = [str(number) for number in range(len(key))]
    numbered = rows.select(key).rename_columns(names).append_column("row", pa.array(np.arange(rows.num_rows)))
    lists = numbered.group_by(names, use_threads=False).aggregate([("row", "list")])["row_list"].combine_chunks()
    groups = np.empty(rows.num_rows, dtype=np.int64)
    groups[lists.flatten().to_numpy()] = pc.list_parent_indices(lists).to_numpy()
    return groups, len(lists)


def _groups_of_integers(values: Any) -> tuple[Any, int]:
    """Return the same as `_groups` for one column of integers.

    It takes less than half of the time.
    """
    if not len(values):
        return np.empty(0, dtype=np.int64), 0
    order = np.argsort(values, kind="stable")  # The deltas of a chain are sorted, and this sort makes use of it.
    ascending = values[order]
    groups = np.empty(len(values), dtype=np.int64)
    groups[order] = np.cumsum(np.append(False, ascending[1:] != ascending[:-1]))
    return groups, int(groups[order[-1]]) + 1
