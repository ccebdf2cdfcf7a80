"""Define the class `Change`, which a function that changes a table returns."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Change:
    """The changes that a function makes to its keys.

    It is the function of `table.apply` or `table.apply_groups`.

    Attributes:
        upserts: Rows to insert or combine, as in `table.upsert`: a frame, and for `apply_groups` a dict of the columns
            of the one row. None for no rows.
        deletes: Keys of rows to delete: a frame with the key columns, and for `apply_groups` True. None for no rows.
        output: Rows to emit, with the columns of `output=`: a frame, and for `apply_groups` also a list of dicts.

    Examples:
        >>> import pyarrow
        >>> change = Change(upserts=pyarrow.table({"user": ["ann"], "visits": [3]}))
        >>> change.upserts.num_rows, change.deletes
        (1, None)
    """

    upserts: Any = None
    deletes: Any = None
    output: Any = None


__all__ = ["Change"]
