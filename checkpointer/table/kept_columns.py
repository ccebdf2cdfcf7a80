"""Encode which columns a change keeps.

In a file this is a text in column `__kept`, in memory it is masks. There are few distinct texts: one for each set of
columns that some batch wrote. So all work is done once for each text, and then for all rows at once.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer.table.schema import CHANGE, KEPT, MERGE, TableSchema


def text_of(ids: Iterable[int]) -> str | None:
    """Return the text that stores the ids of kept columns.

    Returns None where no column is kept.
    """
    return ",".join(map(str, sorted(ids))) or None


def ids_of(text: str | None) -> frozenset[int]:
    """Return the ids in a stored text.

    Raises `ValueError` unless it is written as `text_of` writes it.
    """
    if text is None:
        return frozenset()
    # Text that cannot be right gives no ids, for which `text_of` returns None, so the check below refuses it. The
    # limit keeps damaged text from costing much time.
    parts = text.split(",") if text.isascii() and len(text) < 1 << 20 else []
    ids = [int(part) for part in parts] if all(map(str.isdigit, parts)) else []
    # `int` also takes leading zeros. Writing the ids again finds them.
    if text_of(ids) != text or len(set(ids)) < len(ids) or min(ids) < 1:
        raise ValueError(f"{KEPT}: expected ids of columns, found {text!r:.40}")
    return frozenset(ids)


def check(rows: pa.Table, schema: TableSchema) -> None:
    """Raise `ValueError` unless column `__kept` follows the rules of the format.

    The columns that it names must follow them too.
    """
    # This parses each distinct text, also those that only name ids of dropped columns.
    keeps = KeptColumns(rows, schema)
    if pc.any(pc.and_(rows[KEPT].is_valid(), pc.not_equal(rows[CHANGE], MERGE))).as_py():
        raise ValueError(f"{KEPT}: a row that resets or deletes its key cannot keep a column")
    for column in schema.values:
        # Where nothing is below, the value would stay, although the row says that it gives none.
        if column.id in keeps.ids and (keeps.mask(column.id) & rows[column.name].is_valid().to_numpy()).any():
            raise ValueError(
                f"{KEPT}: a row has a value in column {column.name!r:.80}, and says that it keeps the old one"
            )


def concat(parts: Sequence[pa.Table]) -> pa.Table:
    """Concatenate changes.

    Parts without column `__kept` get it, with nulls, where another part has it.
    """
    saying = [part.schema.field(KEPT) for part in parts if KEPT in part.column_names]
    if saying:
        parts = [part if KEPT in part.column_names else _keeping_nothing(part, saying[0]) for part in parts]
    return pa.concat_tables(parts)


def _keeping_nothing(changes: pa.Table, field: pa.Field) -> pa.Table:
    return changes.append_column(field, pa.nulls(changes.num_rows, field.type))


def without_need(changes: pa.Table) -> pa.Table:
    """Return the changes without column `__kept` where no row keeps anything.

    Such changes merge faster.
    """
    if KEPT in changes.column_names and changes[KEPT].null_count == changes.num_rows:
        return changes.drop_columns([KEPT])
    return changes


class KeptColumns:
    """The columns of role `last` that each of some changes keeps.

    In other roles a null is neutral anyway.
    """

    def __init__(self, changes: pa.Table, schema: TableSchema) -> None:
        self._sets: list[frozenset[int]] = []
        # SPEC (Tables): ids of other roles, and of columns that the schema does not have any more, say nothing.
        wanted = {column.id for column in schema.values if column.role == "last"}
        if KEPT in changes.column_names:
            encoded = changes[KEPT].combine_chunks().dictionary_encode()
            self._sets = [ids_of(text) & wanted for text in encoded.dictionary.to_pylist()]
            # Rows without a text keep nothing. Their code is the one after the last set, for which `mask` has False.
            self._codes = encoded.indices.fill_null(len(self._sets)).to_numpy(zero_copy_only=False)
        self.ids = frozenset[int]().union(*self._sets)
        """The ids of all columns that some row keeps."""

    def __bool__(self) -> bool:
        return bool(self.ids)

    def mask(self, column: int) -> Any:
        """Return for each row whether it keeps this column."""
        return np.array([column in ids for ids in self._sets] + [False])[self._codes]


def texts(masks: dict[int, Any], count: int) -> pa.Array:
    """Return for each of `count` rows the text of the columns that it keeps.

    There is one mask for each column.
    """
    ids = sorted(masks)
    if not ids or not count:
        return pa.nulls(count, pa.string())
    # numpy finds distinct rows faster in packed bytes than in one byte for each column.
    bits = np.packbits(np.stack([masks[column] for column in ids], axis=1), axis=1)
    distinct, codes = np.unique(bits, axis=0, return_inverse=True)
    found = np.unpackbits(distinct, axis=1, count=len(ids)).astype(bool)
    named = [text_of(np.array(ids)[row].tolist()) for row in found]
    # NumPy 2.0 returns the codes with two dimensions, other versions with one.
    return pa.array(named, pa.string()).take(pa.array(codes.reshape(-1)))
