"""Decode texts that repeat as numbers in a dictionary first.

This takes half the time. Parquet stores such texts as these numbers. Arrow then looks up all of them at once, not one
by one.
"""

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

MIN_ROWS, MIN_GROUPS = 8192, 4
"""The fewest rows of a row group, and the fewest row groups, of which texts are decoded like this.

Each row group has a dictionary of its own. The first one is decoded twice, to see how many distinct texts it has.
"""

MAX_SHARE = 16
"""Texts are decoded like this if there are at least this number of them for each distinct one.

With more distinct texts it takes longer.
"""

Reopen = Callable[[Sequence[str]], pq.ParquetFile]
"""Open a file again, so that some columns are decoded as numbers in a dictionary."""


def repeated(file: pq.ParquetFile, reopen: Reopen, groups: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return the stored columns whose texts repeat, judged by the first row group."""
    if len(groups) < MIN_GROUPS or any(file.metadata.row_group(group).num_rows < MIN_ROWS for group in groups[:-1]):
        return []
    stored, schema = file.schema_arrow, file.metadata.schema
    # A field b of a struct a has the path a.b, which may be the name of a column too.
    paths = [schema.column(index).path for index in range(len(schema))]
    texts = [name for name in names if pa.types.is_string(stored.field(name).type) and paths.count(name) == 1]
    if not texts:
        return []
    first = reopen(texts).read_row_groups(groups[:1], columns=texts, use_threads=False)
    return [name for name in texts if _distinct(first[name]) * MAX_SHARE <= first.num_rows]


def _distinct(values: pa.ChunkedArray) -> int:
    return sum(len(chunk.dictionary) for chunk in values.chunks)


def spelled_out(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """Return rows with texts in place of the numbers.

    Raises `ArrowIndexError` for a number that stands for no text.
    """
    for name in names:
        position, kind = rows.schema.get_field_index(name), rows[name].type.value_type
        rows = rows.set_column(position, rows.schema.field(position).with_type(kind), rows[name].cast(kind))
    return rows


__all__ = ["Reopen", "repeated", "spelled_out"]
