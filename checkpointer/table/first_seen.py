"""Find the rows whose key a table has not seen, as a function for `apply`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_checkpointer.table import merge, row_order
from pyspark_checkpointer.table.change import Change
from pyspark_checkpointer.table.expiry import is_expired


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """The function that takes in and emits the first row of each new key.

    A key is new if the state does not have it. `stored` are the columns that the table takes. `expired` is the column
    of a time, and the latest time that has expired. An expired row is taken only if all rows of its key have expired,
    since the table does not remember it.
    """

    key: list[str]
    stored: list[str]
    expired: tuple[str, int] | None = None

    def __call__(self, rows: pa.Table, state: pa.Table) -> Change:
        first = rows.take(pa.array(self._first(rows)))
        new = first.filter(pa.array(merge.row_positions(first, state, self.key) < 0))
        return Change(upserts=new.select(self.stored), output=new)

    def _first(self, rows: pa.Table) -> Any:
        """Return the index of the row to take of each key."""
        # Rows of a key stand together, in the order asked for.
        starts = row_order.key_starts(rows, self.key)
        if self.expired is None:
            return starts
        column, limit = self.expired
        living = np.flatnonzero(~is_expired(rows[column], limit).to_numpy())
        found = np.full(len(starts), -1, dtype=np.int64)
        # Of several assignments to one key, numpy keeps the last, which is the first row.
        found[np.searchsorted(starts, living[::-1], side="right") - 1] = living[::-1]
        return np.where(found < 0, starts, found)
