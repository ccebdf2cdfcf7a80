"""Make the schema of a new table, and check the schemas that follow it.

The rules decide which later schemas may follow an earlier one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark_checkpointer import display
from pyspark_checkpointer.checkpoint.migrated import how_to_keep
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.table.schema import MAX_ID, RESERVED_NAMES, Column, TableSchema, missing, new_column
from pyspark_checkpointer.table.types import arrow_type, is_too_deep, is_wider, show_type


def first_schema(name: str, fields: Sequence[Json], key: Sequence[str], combine: Mapping[str, str]) -> TableSchema:
    """Return the schema of a new table whose rows have these fields.

    Each field is in Spark's JSON.
    """
    return _number(name, _columns(name, fields, key, combine), None)


def next_schema(
    name: str, old: TableSchema, fields: Sequence[Json], key: Sequence[str], combine: Mapping[str, str]
) -> TableSchema:
    """Return the schema of a table that is replaced by rows of these fields.

    It has no other columns. Raises `IllegalArgumentError` for a type, role or key that cannot follow the old schema.
    """
    return _number(name, _columns(name, fields, key, combine), old)


def extended_schema(
    name: str, old: TableSchema, fields: Sequence[Json], key: Sequence[str], combine: Mapping[str, str]
) -> TableSchema:
    """Return the schema of a table after an upsert of rows with these fields.

    Columns that the rows lack stay. The old columns come first and keep their order, whatever the order of the fields.
    Raises `IllegalArgumentError` for a type, role or key that cannot follow the old schema.
    """
    given = {field["name"] for field in fields}
    absent = {column.name: column for column in old.columns if column.name not in given and column.role != "key"}
    # A callback names the same `combine` in every batch, also for columns that a batch does not have. That is no
    # error unless it contradicts the table.
    for column in set(combine) & set(absent):
        if absent[column].role != combine[column]:
            raise _refusal(
                name, old, f"column {column!r} is combined as {absent[column].role!r}, not as {combine[column]!r}"
            )
    here = {column: how for column, how in combine.items() if column not in absent}
    found = next_schema(name, old, fields, key, here)
    by_id = {column.id: column for column in found.columns}
    known = {column.id for column in old.columns}
    columns = [by_id.get(column.id, column) for column in old.columns]
    return replace(found, columns=(*columns, *(column for column in found.columns if column.id not in known)))


def migrated_schema(name: str, old: TableSchema, fields: Sequence[Json], combine: Mapping[str, str]) -> TableSchema:
    """Return the schema of a table whose rows are all written anew.

    It has the columns of these fields. The key stays.
    """
    kinds = {field["name"]: field["type"] for field in fields}
    for column in old.columns:
        if column.role == "key" and column.name in kinds and kinds[column.name] != column.type:
            raise IllegalArgumentError(
                f"column {column.name!r} of the key has to stay {show_type(column.type)}, and not become "
                f"{show_type(kinds[column.name])}"
            )
    same = {column.name: column for column in old.columns if kinds.get(column.name) == column.type}
    numbered, next_id = [], old.next_id
    for column in _columns(name, fields, old.key, combine):
        known = same.get(column.name)
        numbered.append(replace(column, id=_new_id(name, column, next_id) if known is None else known.id))
        next_id += known is None
    found = TableSchema(tuple(numbered), next_id)
    try:
        return found.expiring(name, old.expire)
    except IllegalArgumentError:
        # The column by which rows expired is gone. Expired rows were not handed to the transform, so none comes back.
        return found


def needs_rescale(old: TableSchema, new: TableSchema) -> bool:
    """Return whether keys are hashed in another way.

    If they are, rows may belong to other partitions.
    """
    return [(c.id, c.type) for c in old.columns if c.role == "key"] != [
        (c.id, c.type) for c in new.columns if c.role == "key"
    ]


def _columns(name: str, fields: Sequence[Json], key: Sequence[str], combine: Mapping[str, str]) -> list[Column]:
    """Return the columns without ids, keys first.

    Raises `IllegalArgumentError` for all that is wrong with them without regard to an old schema.
    """
    found: dict[str, Json] = {}
    for field in fields:
        if field["name"].lower() in RESERVED_NAMES:
            raise IllegalArgumentError(f"table {name!r}: column {field['name']!r}: the name is taken: rename it")
        if field["name"].lower() in (other.lower() for other in found):
            raise IllegalArgumentError(f"table {name!r}: column {field['name']!r} is there twice: rename one")
        # Only new rows are checked: a table that has such a column can still drop it.
        if is_too_deep(field["type"]):
            raise IllegalArgumentError(
                f"table {name!r}: column {field['name']!r} is nested too deep: its values could be written, but not "
                "read back from Parquet or by Spark's tasks; at most 49 arrays, 31 maps or 62 structs may be "
                "one inside the other: flatten it, or keep it as text, made by to_json(…)"
            )
        found[field["name"]] = field
    for column in (*key, *combine):
        if column not in found:
            raise IllegalArgumentError(f"table {name!r}: {missing(column, found)}")
    both = set(key) & set(combine)
    if both:
        raise IllegalArgumentError(f"table {name!r}: {display.names(sorted(both))}: a key column cannot be combined")
    roles: dict[str, Any] = dict.fromkeys(key, "key")
    roles |= {column: combine.get(column, "last") for column in found if column not in roles}
    return [new_column(name, found[column], role) for column, role in roles.items()]


def _number(name: str, columns: list[Column], old: TableSchema | None) -> TableSchema:
    """Give each column its old id, or a new one, and check it against the old schema."""
    before = {column.name: column for column in old.columns} if old else {}
    next_id = old.next_id if old else 1
    numbered = []
    for column in columns:
        known = before.get(column.name)
        if known is None:
            # Spark ignores case, so a reader could not tell the two columns apart.
            if old is not None and column.name.lower() in {name.lower() for name in before}:
                raise IllegalArgumentError(
                    f"table {name!r}: column {column.name!r} differs from one of {old} in its case alone: keep its name"
                )
            # An id is never used again: older files may still hold a dropped column under it.
            numbered.append(replace(column, id=_new_id(name, column, next_id)))
            next_id += 1
        else:
            numbered.append(replace(column, id=known.id))
    new = TableSchema(tuple(numbered), next_id)
    if old is not None:
        _check_evolution(name, old, new)
    return new


def _new_id(name: str, column: Column, next_id: int) -> int:
    """Return the next id, for this column.

    Raises `IllegalArgumentError` if Parquet cannot store the id. Parquet would store the column without an id, and
    readers would never find its values again.
    """
    if next_id > MAX_ID:
        raise IllegalArgumentError(
            f"table {name!r}: column {column.name!r} cannot be added: all {MAX_ID} ids of columns are used: write a "
            "table of another name"
        )
    return next_id


def _refusal(
    name: str, old: TableSchema, why: str, new: TableSchema | None = None, ways: Sequence[str] = ()
) -> IllegalArgumentError:
    """Return the error for a schema that cannot follow the old one.

    It says how to go on without losing rows. `ways` are those that fit this case alone.
    """
    job = "" if new is None else f", the job has {new}"
    steps = "; ".join([*ways, how_to_keep(name)])
    return IllegalArgumentError(f"table {name!r}: {why}; the state has {old}{job}: {steps}")


def _check_evolution(name: str, old: TableSchema, new: TableSchema) -> None:
    if old.key != new.key:
        raise _refusal(name, old, f"its key is {display.names(old.key)}, not {display.names(new.key)}", new)
    before = {column.id: column for column in old.columns}
    for column in new.columns:
        known = before.get(column.id)
        if known is None:
            continue
        takes_over = f"restore(transform={{{name!r}: …}}) takes its rows over"
        if known.role != column.role:
            why = f"column {column.name!r} is combined as {known.role!r}, not as {column.role!r}"
            raise _refusal(name, old, why, new, [takes_over])
        if (known.type, known.metadata) == (column.type, column.metadata) or is_wider(known.type, column.type):
            continue
        # A transform returns Arrow's types, so it cannot change a type into one that Arrow stores alike.
        if arrow_type(known.type) == arrow_type(column.type):
            why, way = _difference(known, column)
            raise _refusal(name, old, f"column {column.name!r} {why}", new, [way])
        why = f"column {column.name!r} is {show_type(known.type)}, which is no part of {show_type(column.type)}"
        cast = [f"cast it to {show_type(known.type)}"] if is_wider(column.type, known.type) else []
        # A transform is refused that gives a key another type.
        raise _refusal(name, old, why, new, cast if known.role == "key" else [*cast, takes_over])


def _difference(known: Column, column: Column) -> tuple[str, str]:
    """Return how two columns differ that Arrow stores alike, and what to do.

    They differ in the units of an interval, or in the collation of a text.
    """
    before, now = show_type(known.type), show_type(column.type)
    if before != now:
        why, way = f"is {before}, not {now}", f"cast it to {before}"
    elif column.type == "string":
        why = f"has the collation {_collation(column)}, the table's has {_collation(known)}"
        way = f"collate({display.cut(column.name)}, {_collation(known)!r})"
    else:
        why = "has texts of another collation than in the table"
        way = "cast it to the type that read() of the table shows"
    return why, way if known.role == "key" else f"{way}, or give it another name"


def _collation(column: Column) -> str:
    """Return the name of the collation of a text, without its provider."""
    names = (column.metadata or {}).get("__COLLATIONS")
    found = names.get(column.name) if isinstance(names, dict) else None
    return found.rpartition(".")[2] if isinstance(found, str) else "UTF8_BINARY"
