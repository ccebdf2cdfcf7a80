"""What a table's columns are, how they are combined, and which later schemas go on from an earlier one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import pyarrow as pa

from pyspark_checkpointer.checkpoint.migrated import how_to_keep
from pyspark_checkpointer.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.table.types import (
    arrow_type,
    can_be_key,
    can_order,
    can_sum,
    is_too_deep,
    is_wider,
    plain_type,
    show_type,
)

PARTITION = "__partition"
"""Column of a delta: the partition its row belongs to."""

CHANGE = "__change"
"""Column of a delta: what its row does, one of the three below."""

KEPT = "__kept"
"""Column of a delta: the columns that its row leaves as they are, by id. Only where some row leaves one."""

OWN = {PARTITION: pa.int32(), CHANGE: pa.int8()}
"""The columns that every delta has besides those of the table."""

RESERVED = (PARTITION, CHANGE, KEPT)

MERGE, RESET, DELETE = 0, 1, 2
"""Combine with what is below; replace what is below; remove it."""

Combine = Literal["last", "sum", "min", "max"]
Role = Literal["key", "last", "sum", "min", "max"]

FIELD_ID = b"PARQUET:field_id"


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its id, which is never given to another. `type` is Spark's, in the words of its JSON schemas."""

    id: int
    name: str
    type: Json
    role: Role
    metadata: Json = None

    def field(self) -> pa.Field:
        return pa.field(self.name, arrow_type(self.type), metadata={FIELD_ID: str(self.id).encode()})


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of a table, keys first and in the order that hashes them; `next_id` is free for the next column."""

    columns: tuple[Column, ...]
    next_id: int

    @property
    def key(self) -> list[str]:
        return [column.name for column in self.columns if column.role == "key"]

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def values(self) -> list[Column]:
        return [column for column in self.columns if column.role != "key"]

    @property
    def replaces(self) -> bool:
        """Whether a new row simply takes the place of the old one of its key."""
        return all(column.role == "last" for column in self.values)

    @property
    def combines(self) -> bool:
        """Whether rows of one key can be combined in any order."""
        return bool(self.values) and all(column.role != "last" for column in self.values)

    def choose(self, table: str, columns: Sequence[str] | None) -> list[Column]:
        """Return some columns in the order asked for, or all of them."""
        by_name = {column.name: column for column in self.columns}
        wanted = list(by_name) if columns is None else list(columns)
        unknown = [name for name in wanted if name not in by_name]
        if unknown or not wanted:
            why = f"no column {', '.join(unknown)}" if unknown else "columns=[]: expected at least one column"
            raise IllegalArgumentError(f"table {table!r}: {why}; there are {', '.join(by_name)}")
        if len(set(wanted)) < len(wanted):
            raise IllegalArgumentError(f"table {table!r}: columns {', '.join(wanted)}: one is there twice")
        return [by_name[name] for name in wanted]

    def arrow(self) -> pa.Schema:
        """Return the stored columns of a snapshot."""
        return pa.schema([column.field() for column in self.columns])

    def arrow_delta(self, *, kept: bool = False) -> pa.Schema:
        """Return the stored columns of a delta. `kept`: some of its rows leave columns as they are."""
        own = OWN | ({KEPT: pa.string()} if kept else {})
        return pa.schema([*self.arrow(), *(pa.field(name, kind) for name, kind in own.items())])

    def without(self, table: str, columns: Sequence[str]) -> "TableSchema":
        """Leave some columns out for good: no later column is given one of their ids. Names of no column do nothing."""
        if isinstance(columns, str):
            raise IllegalArgumentError(f"table {table!r}: drop_columns({columns!r:.80}): expected a list of names")
        dropped = [column for column in self.columns if column.name in set(columns)]
        keys = [column.name for column in dropped if column.role == "key"]
        if keys:
            raise IllegalArgumentError(
                f"table {table!r}: column {', '.join(keys)} is part of the key, and cannot be dropped: a table with "
                "another key needs another name"
            )
        return TableSchema(tuple(column for column in self.columns if column not in dropped), self.next_id)

    def to_json(self) -> Json:
        columns = [
            {"id": c.id, "name": c.name, "type": c.type, "role": c.role}
            | ({} if c.metadata is None else {"metadata": c.metadata})
            for c in self.columns
        ]
        return {"columns": columns, "next_id": self.next_id}

    @classmethod
    def from_json(cls, name: str, value: Json) -> "TableSchema":
        try:
            columns = tuple(
                replace(_column(name, {"metadata": {}, **c, "name": str(c["name"])}, c["role"]), id=_whole(c["id"]))
                for c in value["columns"]
            )
            schema = cls(columns, _whole(value["next_id"]))
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise MalformedError(f"operator {name!r}: expected the schema of a table: {error}") from None
        ids, names = {column.id for column in columns}, {column.name.lower() for column in columns}
        taken = names.intersection(RESERVED)
        if len(ids) < len(columns) or max(ids, default=0) >= schema.next_id or not schema.key:
            raise MalformedError(f"operator {name!r}: the schema of its table contradicts itself")
        if len(names) < len(columns) or taken:
            raise MalformedError(f"operator {name!r}: a column of its table is there twice, or has a reserved name")
        return schema

    def __str__(self) -> str:
        shown = (f"{c.name} {show_type(c.type)}{'' if c.role == 'last' else ' ' + c.role}" for c in self.columns)
        return f"({', '.join(shown)})"


def first_schema(name: str, fields: Sequence[Json], key: Sequence[str], combine: Mapping[str, str]) -> TableSchema:
    """Return the schema of a new table whose rows have these fields (Spark's JSON of each)."""
    return _number(name, _columns(name, fields, key, combine), None)


def next_schema(
    name: str, old: TableSchema, fields: Sequence[Json], key: Sequence[str], combine: Mapping[str, str]
) -> TableSchema:
    """Return the schema of a table that is replaced by rows of these fields, and has no other columns from then on.

    A type, role or key that does not go on from the old schema is refused with `IllegalArgumentError`.
    """
    return _number(name, _columns(name, fields, key, combine), old)


def extended_schema(
    name: str, old: TableSchema, fields: Sequence[Json], key: Sequence[str], combine: Mapping[str, str]
) -> TableSchema:
    """Return the schema of a table once rows of these fields are put into it: columns that they lack stay.

    The old columns come first and in their order, however the fields of one batch or the next are ordered. What does
    not go on from the old schema is refused with `IllegalArgumentError`.
    """
    given = {field["name"] for field in fields}
    absent = {column.name: column for column in old.columns if column.name not in given and column.role != "key"}
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
    return TableSchema((*columns, *(column for column in found.columns if column.id not in known)), found.next_id)


def migrated_schema(
    name: str, old: TableSchema, fields: Sequence[tuple[str, Json]], combine: Mapping[str, str]
) -> TableSchema:
    """The schema of a table whose rows are all written anew, with these columns and their types. The key stays."""
    kinds = dict(fields)
    for column in old.columns:
        if column.role == "key" and column.name in kinds and kinds[column.name] != column.type:
            raise IllegalArgumentError(
                f"column {column.name!r} of the key has to stay {show_type(column.type)}, and not become "
                f"{show_type(kinds[column.name])}"
            )
    same = {column.name: column for column in old.columns if kinds.get(column.name) == column.type}
    described = [
        {"name": field, "type": kind, "metadata": (same[field].metadata if field in same else None) or {}}
        for field, kind in fields
    ]
    numbered, next_id = [], old.next_id
    for column in _columns(name, described, old.key, combine):
        known = same.get(column.name)
        numbered.append(replace(column, id=next_id if known is None else known.id))
        next_id += known is None
    return TableSchema(tuple(numbered), next_id)


def needs_rescale(old: TableSchema, new: TableSchema) -> bool:
    """Return whether keys are hashed otherwise, so that rows may belong to other partitions."""
    return [(c.id, c.type) for c in old.columns if c.role == "key"] != [
        (c.id, c.type) for c in new.columns if c.role == "key"
    ]


def _columns(name: str, fields: Sequence[Json], key: Sequence[str], combine: Mapping[str, str]) -> list[Column]:
    """Columns without ids, keys first; everything that is wrong with them alone is found here."""
    found: dict[str, Json] = {}
    for field in fields:
        if field["name"].lower() in RESERVED:
            raise IllegalArgumentError(f"table {name!r}: column {field['name']!r}: the name is taken: rename it")
        if field["name"].lower() in (other.lower() for other in found):
            raise IllegalArgumentError(f"table {name!r}: column {field['name']!r} is there twice: rename one")
        if is_too_deep(field["type"]):  # asked of new rows alone: a table that has such a column can still drop it
            raise IllegalArgumentError(
                f"table {name!r}: column {field['name']!r} is nested too deep: its values could be written, and not be "
                "read back from Parquet or by Spark's tasks; at most 49 arrays, 31 maps or 62 structs stand one inside "
                "the other: flatten it, or keep it as text, made by to_json(…)"
            )
        found[field["name"]] = field
    for column in (*key, *combine):
        if column not in found:
            raise IllegalArgumentError(f"table {name!r}: column {column!r} is missing; there are {', '.join(found)}")
    both = set(key) & set(combine)
    if both:
        raise IllegalArgumentError(f"table {name!r}: {', '.join(sorted(both))}: a key column cannot be combined")
    roles: dict[str, Any] = dict.fromkeys(key, "key")
    roles |= {column: combine.get(column, "last") for column in found if column not in roles}
    return [_column(name, found[column], role) for column, role in roles.items()]


def _whole(value: Json) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise TypeError(f"expected a positive integer, found {value!r:.40}")
    return value


def _column(table: str, field: Json, role: Any) -> Column:
    where = f"table {table!r}: column {field['name']!r}"
    kind = plain_type(field["type"])
    try:
        arrow_type(kind)
    except IllegalArgumentError as error:
        raise IllegalArgumentError(f"{where}: {error}") from None
    metadata = {"__COLLATIONS": field["metadata"]["__COLLATIONS"]} if "__COLLATIONS" in field["metadata"] else None
    if role == "key" and not (can_be_key(kind) and metadata is None):
        shown = "a collated string" if metadata else show_type(kind)
        raise IllegalArgumentError(f"{where}: {shown} cannot be a key: use a text, number, date or time made of it")
    if role not in get_args(Role):
        raise IllegalArgumentError(f"{where}: combine={role!r:.40}: expected one of {', '.join(get_args(Combine))}")
    if (role == "sum" and not can_sum(kind)) or (
        role in ("min", "max") and (not can_order(kind) or metadata is not None)
    ):
        raise IllegalArgumentError(f"{where}: {role} of {show_type(kind)} is not defined")
    return Column(0, field["name"], kind, role, metadata)


def _number(name: str, columns: list[Column], old: TableSchema | None) -> TableSchema:
    """Give each column its old id, or a new one."""
    before = {column.name: column for column in old.columns} if old else {}
    next_id = old.next_id if old else 1
    numbered = []
    for column in columns:
        known = before.get(column.name)
        if known is None:
            if old is not None and column.name.lower() in {name.lower() for name in before}:
                raise IllegalArgumentError(
                    f"table {name!r}: column {column.name!r} differs from one of {old} in its case alone: keep its name"
                )
            numbered.append(replace(column, id=next_id))
            next_id += 1
        else:
            numbered.append(replace(column, id=known.id))
    new = TableSchema(tuple(numbered), next_id)
    if old is not None:
        _check_evolution(name, old, new)
    return new


def _refusal(
    name: str, old: TableSchema, why: str, new: TableSchema | None = None, way: str = ""
) -> IllegalArgumentError:
    """Say why a schema does not go on from an old one, and how to go on without losing what is there."""
    job = "" if new is None else f", the job has {new}"
    return IllegalArgumentError(f"table {name!r}: {why}; the state has {old}{job}: {way}{how_to_keep(name)}")


def _check_evolution(name: str, old: TableSchema, new: TableSchema) -> None:
    if old.key != new.key:
        raise _refusal(name, old, f"its key is {', '.join(old.key)}, not {', '.join(new.key)}", new)
    before = {column.id: column for column in old.columns}
    for column in new.columns:
        known = before.get(column.id)
        if known is None:
            continue
        takes_over = f"restore(transform={{{name!r}: …}}) takes its rows over; "
        if known.role != column.role:
            why = f"column {column.name!r} is combined as {known.role!r}, not as {column.role!r}"
            raise _refusal(name, old, why, new, takes_over)
        if (known.type, known.metadata) != (column.type, column.metadata) and not is_wider(known.type, column.type):
            why = f"column {column.name!r} is {show_type(known.type)}, which is no part of {show_type(column.type)}"
            raise _refusal(name, old, why, new, takes_over)
