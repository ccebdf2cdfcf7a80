"""Decide which columns the change feed of a table shows.

Find these columns in each checkpoint.

columns of the newest checkpoint, in types that hold the values of all ──> by name, the columns of each checkpoint

Ids say whether unchanged objects still have the same values. Names say what a follower has in its copy.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from pyspark_checkpointer.manifests.codecs import kind_of
from pyspark_checkpointer.manifests.model import CheckpointId, Manifest
from pyspark_checkpointer.table.row_times import Time, time_in
from pyspark_checkpointer.table.schema import Column, TableSchema
from pyspark_checkpointer.table.types import common_type
from pyspark_checkpointer.table.version import TableVersion


def version_in(name: str, manifest: Manifest | None) -> TableVersion | None:
    """Return the table of a checkpoint; None where it has no operator of this name."""
    operator = None if manifest is None else manifest.operators.get(name)
    return None if operator is None or manifest is None else TableVersion.of(name, operator, manifest.clock)


def newest_schema(name: str, parent: Manifest | None, manifests: Sequence[Manifest]) -> TableSchema | None:
    """Return the columns of the newest of some checkpoints that has the table.

    Their types hold the values of all of these checkpoints. A column of an older checkpoint counts if it has the same
    name: after a rollback it may be the wider one. A column is ignored if its type has no type in common with the newer
    ones. Returns None where no checkpoint has the table.
    """
    ancestry = [parent, *manifests] if parent is not None else list(manifests)
    having = [manifest for manifest in reversed(ancestry) if name in manifest.operators]
    if not having:
        return None
    newest = version_in(name, having[0])
    assert newest is not None
    types = {column.name: column.type for column in newest.schema.columns}
    for version in _tables(name, having[1:]):
        for column in version.schema.columns:
            if column.name in types:
                types[column.name] = common_type(types[column.name], column.type) or types[column.name]
    return replace(newest.schema, columns=tuple(replace(c, type=types[c.name]) for c in newest.schema.columns))


def _tables(name: str, manifests: Sequence[Manifest]) -> Iterator[TableVersion]:
    for manifest in manifests:
        # What has the name now may have been a map once.
        if kind_of(manifest.operators[name]) == "table":
            yield TableVersion.of(name, manifest.operators[name], manifest.clock)


def has_columns(shown: TableSchema, newer: TableSchema) -> bool:
    """Return whether a schema has the columns of another one, by name.

    The types must hold the values of the other schema.
    """
    ours = {column.name: column for column in shown.columns}
    if ours.keys() != set(newer.names) or shown.key != newer.key:
        return False
    return all(
        ours[column.name].metadata == column.metadata and is_shown(column, ours[column.name])
        for column in newer.columns
    )


def is_shown(column: Column, shown: Column) -> bool:
    """Return whether the values of a column are shown in the column of its name."""
    return bool(common_type(column.type, shown.type) == shown.type)


def has_key(schema: TableSchema, shown: TableSchema) -> bool:
    """Return whether keys of a schema are keys of the schema to show."""
    keys, wanted = ([c for c in side.columns if c.role == "key"] for side in (schema, shown))
    pairs = zip(keys, wanted, strict=False)
    return schema.key == shown.key and all(is_shown(*pair) for pair in pairs)


@dataclass(frozen=True, slots=True)
class KeyColumnsChange:
    """The place among checkpoints where a table got the key columns that are shown.

    `last` is the newest checkpoint that has another one, the key of `schema`. That is None where `last` has a map or
    bytes of this name. `first` is the next one that has the table; None where there is none.
    """

    last: CheckpointId
    first: CheckpointId | None
    schema: TableSchema | None

    def describe(self, name: str, shown: TableSchema) -> str:
        """Return how an error begins: what changed, and after which checkpoint."""
        if self.schema is None:
            return f"table {name!r}: {self.last}, and perhaps older ones, have no table but a map or bytes of this name"
        return f"table {name!r}: its key changed after {self.last}, from {self.schema} to {shown}"


def key_columns_change(
    name: str, parent: Manifest | None, manifests: Sequence[Manifest], shown: TableSchema
) -> KeyColumnsChange | None:
    """Return where the table got the key that is shown.

    Returns None if all checkpoints that have the table have this key.
    """
    first: CheckpointId | None = None
    for manifest in (*reversed(manifests), parent):
        if manifest is None or name not in manifest.operators:
            continue
        if kind_of(manifest.operators[name]) != "table":
            return KeyColumnsChange(manifest.id, first, None)
        version = TableVersion.of(name, manifest.operators[name], manifest.clock)
        if not has_key(version.schema, shown):
            return KeyColumnsChange(manifest.id, first, version.schema)
        first = manifest.id
    return None


def shows_others(before: TableVersion, after: TableVersion, names: Iterable[str]) -> bool:
    """Return whether changed columns change the values of unchanged objects.

    A changed column was dropped, added again or swapped. Only the values that are shown count. A new column changes
    none of them: unchanged objects have no values for it.
    """
    old, new = ({column.name: column.id for column in side.schema.columns} for side in (before, after))
    return any(
        old.get(name) != new.get(name) and (name in old or new[name] < before.schema.next_id)
        for name in names
        if name in old or name in new
    )


def version_shown(version: TableVersion, shown: TableSchema, times: Sequence[Time | None]) -> TableVersion:
    """Return a version with the columns to show, in the types to show.

    It also has those columns of times that are needed, and those of the names shown whose types cannot be shown. They
    are read for comparing, under hidden names.
    """
    wanted = {column.name: column for column in shown.columns}
    columns, names = list[Column](), dict[str, str]()
    for column in version.schema.columns:
        now = wanted.get(column.name)
        if now is not None and is_shown(column, now):
            columns.append(replace(column, type=now.type))
        elif now is not None or time_in(column) in times:
            names[column.name] = hidden_name(column, shown)
            columns.append(replace(column, name=names[column.name]))
    rule = version.schema.expire
    rule = None if rule is None else replace(rule, column=names.get(rule.column, rule.column))
    return replace(version, schema=TableSchema(tuple(columns), version.schema.next_id, rule))


def rows_shown(rows: pa.Table, schema: TableSchema, shown: TableSchema) -> pa.Table:
    """Return rows with their values in the types to show.

    Values that cannot be shown stay as they are.
    """
    wanted = {column.name: column for column in shown.columns}
    for column in schema.columns:
        now = wanted.get(column.name)
        if now is not None and now.type != column.type and is_shown(column, now):
            position = rows.schema.get_field_index(column.name)
            rows = rows.set_column(position, column.name, rows[column.name].cast(now.field().type))
    return rows


def unshown(
    before: TableVersion | None, after: TableVersion | None, shown: TableSchema
) -> tuple[tuple[str, str | None], ...]:
    """Return the columns of `before` whose name is shown and whose values are not.

    These values cannot be shown: the column may have had the type long, and be text today. Each comes with the column
    of `after` of the same name and type, if there is one. Both have their hidden names.
    """
    wanted = {column.name: column for column in shown.columns}
    later = {} if after is None else {column.name: column for column in after.schema.columns}
    found = []
    for column in () if before is None else before.schema.columns:
        if column.name in wanted and not is_shown(column, wanted[column.name]):
            now = later.get(column.name)
            same = None if now is None or now.type != column.type else hidden_name(now, shown)
            found.append((hidden_name(column, shown), same))
    return tuple(found)


def hidden_name(column: Column, shown: TableSchema) -> str:
    """Return the name under which a column is read that is not shown."""
    # The id tells apart two columns of one version. The name tells apart two columns of one id.
    name = f"__hidden_{column.id}_{column.name}"
    while name in shown.names:
        name += "_"
    return name


__all__ = [
    "KeyColumnsChange",
    "has_columns",
    "has_key",
    "key_columns_change",
    "newest_schema",
    "rows_shown",
    "shows_others",
    "unshown",
    "version_in",
    "version_shown",
]
