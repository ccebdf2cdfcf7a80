"""Apply a user's function to rows and their state, and check what it returns.

The state is that of the keys of the rows.

rows + state of their keys → the function → upserts, deletions, output → changes of a table, one for each key
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pyspark_checkpointer import display
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.table import conform, kept_columns, large_rows, row_order
from pyspark_checkpointer.table.key_floats import canonical_rows
from pyspark_checkpointer.table.schema import CHANGE, DELETE, KEPT, MERGE, PARTITION, Column, TableSchema
from pyspark_checkpointer.table.user_calls import Keys, Returned


class _KeyedChanges(NamedTuple):
    """Changes that the function returned, and the index of each one's key."""

    changes: pa.Table
    positions: Any


class Applied(NamedTuple):
    """The changes of some keys, in the form of a delta, and the emitted rows.

    The function emitted these rows.
    """

    changes: pa.Table
    output: pa.Table | None


@dataclass(frozen=True, slots=True)
class UserFunction:
    """A user's function, as the tasks apply it to a table.

    `what` names it in errors. `call` calls it. `output` are the columns that it may emit; None if it emits none.
    `passes_rows`: it is the library's own, and all that it returns are rows that it was given. `unnamed` are columns
    that the table combines although the job does not say so. The function may not return them: it would take what it
    returns for the new value, and the table would add it to the old one.
    """

    what: str
    schema: TableSchema
    call: Callable[[Keys, pa.Table, pa.Table], Returned]
    output: pa.Schema | None
    passes_rows: bool = False
    unnamed: Sequence[Column] = ()

    def apply(self, keys: Keys, rows: pa.Table, state: pa.Table) -> Applied:
        """Call the function with all rows of some keys, and the state rows of these keys.

        Rows of one key stand together, in the order in which the function sees them.

        Raises `IllegalArgumentError` where the function returned something that cannot be done, and
        `UserFunctionError` where the function itself raised an error.
        """
        # The state comes in the order of the rows, so that a function can walk through both.
        order = pa.array(np.argsort(keys.positions(state), kind="stable"))
        state = large_rows.narrow(large_rows.widen(state)[0].take(order))
        returned = self.call(keys, rows, state)
        changed = [self._upserts(keys, part) for part in returned.upserts]
        changed += [self._deletes(keys, part) for part in returned.deletes]
        self._check_once(keys, changed)
        made = kept_columns.concat([self.schema.arrow_delta().empty_table(), *(part.changes for part in changed)])
        return Applied(made, self._emitted(keys, returned.output))

    def _where(self, keys: Keys, part: str) -> str:
        return f"{self.what}: rows of {keys}" if self.passes_rows else f"{self.what} for {keys}: {part}"

    def _upserts(self, keys: Keys, given: pa.Table) -> _KeyedChanges:
        where = self._where(keys, "upserts")
        if unknown := [name for name in given.column_names if name not in self.schema.names]:
            raise IllegalArgumentError(
                f"{where}: the table has no column {display.names(unknown)}; there are "
                f"{display.names(self.schema.names)}: name new columns in schema= of state.table(…)"
            )
        if unnamed := next((c for c in self.unnamed if c.name in given.column_names), None):
            raise IllegalArgumentError(
                f"{where}: column {unnamed.name!r} is combined as {unnamed.role!r}, not as 'last': name it in combine= "
                "of state.table(…), or leave it out"
            )
        columns = [c for c in self.schema.columns if c.role == "key" or c.name in given.column_names]
        rows = conform.conform(where, given, pa.schema([c.field() for c in columns]))
        absent = [c.id for c in self.schema.values if c.role == "last" and c not in columns]
        return self._changes_of_keys(where, keys, rows, MERGE, kept_columns.text_of(absent))

    def _deletes(self, keys: Keys, given: pa.Table) -> _KeyedChanges:
        where = self._where(keys, "deletes")
        rows = conform.conform(where, given, self.schema.arrow_key())
        return self._changes_of_keys(where, keys, rows, DELETE, None)

    def _changes_of_keys(self, where: str, keys: Keys, rows: pa.Table, change: int, kept: str | None) -> _KeyedChanges:
        """Return the rows as changes of one kind, with the partitions of their keys.

        Raises `IllegalArgumentError` for a key that the function was not called for: another task may change it too.
        """
        rows = canonical_rows(rows, self.schema)
        found = keys.positions(rows)
        if (unknown := np.flatnonzero(found < 0)).size:
            raise IllegalArgumentError(
                f"{where}: {row_order.show_key(rows, keys.names, int(unknown[0]))} is none of these keys: change only "
                "the keys of the rows that it was given"
            )
        rows = rows.append_column(PARTITION, keys.rows[PARTITION].take(pa.array(found)))
        return _KeyedChanges(self._as_changes(rows, change, kept), found)

    def _as_changes(self, rows: pa.Table, change: int, kept: str | None) -> pa.Table:
        stored = self.schema.arrow_delta(kept=kept is not None)
        made = {name: rows[name] for name in rows.column_names}
        made[CHANGE] = pa.repeat(pa.scalar(change, pa.int8()), rows.num_rows)
        made[KEPT] = pa.repeat(pa.scalar(kept, pa.string()), rows.num_rows)
        arrays = [made[f.name] if f.name in made else pa.nulls(rows.num_rows, f.type) for f in stored]
        return pa.table(arrays, schema=stored)

    def _check_once(self, keys: Keys, changed: list[_KeyedChanges]) -> None:
        times = np.bincount(np.concatenate([np.empty(0, np.int64), *(part.positions for part in changed)]))
        if (twice := np.flatnonzero(times > 1)).size:
            raise IllegalArgumentError(
                f"{self.what}: returned {row_order.show_key(keys.rows, keys.names, int(twice[0]))} more than once, and "
                "nothing says which change is the last: return one row to upsert for a key, or its deletion"
            )

    def _emitted(self, keys: Keys, given: list[pa.Table]) -> pa.Table | None:
        where = self._where(keys, "output")
        if self.output is None:
            if given:
                raise IllegalArgumentError(f"{where}: rows are emitted, but output= does not say with which columns")
            return None
        for part in given:
            if unknown := [name for name in part.column_names if name not in self.output.names]:
                raise IllegalArgumentError(
                    f"{where}: column {display.names(unknown)} is not in output=, which has "
                    f"{display.names(self.output.names)}"
                )
        parts = [conform.conform(where, part, self.output) for part in given]
        return pa.concat_tables([self.output.empty_table(), *parts])


__all__ = ["Applied", "UserFunction"]
