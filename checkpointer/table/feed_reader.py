"""Read the changes of a table that one checkpoint made.

The rows before and after it are compared.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.manifests.model import Artifact
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.table import merge
from pyspark_checkpointer.table.due_rows import due_rows
from pyspark_checkpointer.table.expiry import is_expired
from pyspark_checkpointer.table.feed import (
    DELETE,
    EXPIRE,
    INSERT,
    ROW_CHANGE,
    UPDATE_AFTER,
    UPDATE_BEFORE,
    FeedStep,
    is_forward,
    limit_of,
)
from pyspark_checkpointer.table.large_rows import explain_arrow_errors, narrow, widen
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.row_equality import equal_rows
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.row_times import time_column, time_of
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.version import TableVersion


class FeedReader:
    """A reader of the changes of some groups of partitions of one step.

    With `keys`, it reads only the changes of these keys.
    """

    def __init__(
        self, store: Store, host: Host, step: FeedStep, shown: TableSchema, keys: pa.Table | None = None
    ) -> None:
        self._store, self._host, self._step, self._shown, self._keys = store, host, step, shown, keys
        self._schema = pa.schema([*shown.arrow(), pa.field(ROW_CHANGE, pa.string())])

    def _reader(
        self, version: TableVersion, keys: pa.Table | None = None, columns: Sequence[str] | None = None
    ) -> TableReader:
        return TableReader(self._store, self._host, version, columns, keys)

    async def changes(self, group: tuple[int, ...]) -> pa.Table:
        """Return the changes of a group, in order of the key.

        They have the columns shown and the kind of change. An update is two rows: the old row, then the new one.
        """
        before, after = self._step.before.only(group), self._step.after.only(group)
        if len(group) == 1:
            (number,) = group
            old, new = before.chains.get(number, ()), after.chains.get(number, ())
            grew = bool(old) and new[: len(old)] == old
            if grew and is_forward(before, after) and not self._step.shows_others:
                return await self._on_top(before, after, number, new[len(old) :])
        old_rows, new_rows = await asyncio.gather(self._all(before), self._all(after))
        return await self._host.run(lambda: self._compare(old_rows, new_rows))

    async def _all(self, version: TableVersion) -> pa.Table:
        reader = self._reader(version, self._keys)
        found = await asyncio.gather(*(reader.rows(number, self._keys) for number in version.chains))
        return pa.concat_tables([reader.empty(), *found])

    async def _on_top(
        self, before: TableVersion, after: TableVersion, number: int, added: tuple[Artifact, ...]
    ) -> pa.Table:
        """Return the changes of a partition whose chain only got deltas.

        Rows that expired meanwhile are changes too.
        """
        key, moves = self._shown.key, limit_of(before) != limit_of(after)
        old_rows, new_rows = self._reader(before).empty(), self._reader(after).empty()
        keys = old_rows.select(key)
        if added:
            # The keys of the new deltas may have changed. Their values are looked up below, with the rows.
            tops = self._reader(replace(after, chains={number: (after.chains[number][0], *added)}), self._keys, key)
            keys = await tops.changed_keys(number, added)
        if self._keys is not None:
            # Few keys are looked up at once. To find out first which of them are due would cost as much.
            keys = self._keys if moves else merge.matching(keys, self._keys, key)
        if keys.num_rows:
            old_rows, new_rows = await asyncio.gather(
                self._reader(before, keys).rows(number, keys), self._reader(after, keys).rows(number, keys)
            )
        column = time_column(before.schema, time_of(self._step.after))
        if self._keys is None and column is not None and after.expired_until is not None and moves:
            due = await due_rows(self._reader(before), number, column, after.expired_until)
            others = await self._host.run(lambda: self._others(due, keys))
            old_rows = pa.concat_tables([old_rows, others.select(old_rows.column_names)])
        return await self._host.run(lambda: self._compare(old_rows, new_rows))

    def _others(self, rows: pa.Table, keys: pa.Table) -> pa.Table:
        """Return the rows that have none of the keys."""
        with explain_arrow_errors(self._step.after.name):
            wide, sought = widen(rows, keys)
            return narrow(wide.filter(pa.array(merge.row_positions(wide, sought, self._shown.key) < 0)))

    def _compare(self, old: pa.Table, new: pa.Table) -> pa.Table:
        with explain_arrow_errors(self._step.after.name):
            return self._compared(old, new)

    def _compared(self, old: pa.Table, new: pa.Table) -> pa.Table:
        limit, column = self._step.after.expired_until, time_column(self._step.before.schema, time_of(self._step.after))
        old, new, before, after = widen(old, new, self._project(old), self._project(new))
        at = merge.row_positions(after, before, self._shown.key)
        known = np.flatnonzero(at >= 0)
        below, above = before.take(pa.array(at[known])), after.take(pa.array(known))
        differs = pa.array(
            ~equal_rows(below, above) | self._loses(old.take(pa.array(at[known])), new.take(pa.array(known)))
        )
        gone = np.ones(before.num_rows, dtype=bool)
        gone[at[known]] = False
        expired = np.zeros(before.num_rows, dtype=bool)
        if column is not None and limit is not None:
            expired = is_expired(old[column], limit).to_numpy().astype(bool)
        parts = [
            (UPDATE_BEFORE, below.filter(differs)),
            (UPDATE_AFTER, above.filter(differs)),
            (INSERT, after.filter(pa.array(at < 0))),
            (DELETE, before.filter(pa.array(gone & ~expired))),
            (EXPIRE, before.filter(pa.array(gone & expired))),
        ]
        found = pa.concat_tables(
            rows.append_column(ROW_CHANGE, pa.array([change] * rows.num_rows, pa.string())) for change, rows in parts
        )
        # Stable: of the two rows of one key the row before stays the first.
        return in_order(found, self._shown.key, stable=True)

    def _loses(self, old: pa.Table, new: pa.Table) -> Any:
        """Return which rows had a value that cannot be shown, and have it no more.

        A follower of the table may have such a value: it may be in the table with which the feed begins.
        """
        loses = np.zeros(old.num_rows, dtype=bool)
        for name, same in self._step.unshown:
            had = old[name].is_valid().to_numpy().astype(bool)
            if same is not None:
                had &= ~equal_rows(old.select([name]), new.select([same]).rename_columns([name]))
            loses |= had
        return loses

    def _project(self, rows: pa.Table) -> pa.Table:
        """Return the columns shown. One that the version does not have is null."""
        fields = [*self._shown.arrow()]
        columns = [
            rows[f.name].cast(f.type) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type)
            for f in fields
        ]
        return pa.table(columns, schema=pa.schema(fields))


__all__ = ["FeedReader"]
