"""Find the rows whose key a table has not seen, as a function for `apply`."""

from dataclasses import dataclass

import pyarrow as pa

from pyspark_checkpointer.table import merge, row_order
from pyspark_checkpointer.table.change import Change


@dataclass(frozen=True, slots=True)
class FirstSeen:
    """The function that takes in the first row of each key that the state does not have, and emits it.

    `stored` are the columns that the table takes.
    """

    key: list[str]
    stored: list[str]

    def __call__(self, rows: pa.Table, state: pa.Table) -> Change:
        # Rows of a key stand together, in the order asked for.
        first = rows.take(pa.array(row_order.key_starts(rows, self.key)))
        new = first.filter(pa.array(merge.positions(first, state, self.key) < 0))
        return Change(upserts=new.select(self.stored), output=new)
