"""What a table's columns are, how they are combined, and which later schemas go on from an earlier one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import pyarrow as pa

from checkpointer.errors import IllegalArgumentError, MalformedError
from checkpointer.table.types import (
    arrow_type,
    can_be_key,
    can_order,
    can_sum,
    is_wider,
    plain_type,
    show_type,
)
from manifests.model import Json

PARTITION = "__partition"
"""Column of a delta: the partition its row belongs to."""

CHANGE = "__change"
"""Column of a delta: what its row does, one of the three below."""

OWN = {PARTITION: pa.int32(), CHANGE: pa.int8()}
"""The columns that a delta has besides those of the table."""

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
        """Some columns in the order asked for, or all of them."""
        by_name = {column.name: column for column in self.columns}
        wanted = list(by_name) if columns is None else list(columns)
        unknown = [name for name in wanted if name not in by_name]
        if unknown or not wanted:
            raise IllegalArgumentError(
                f"table {table!r}: no column {', '.join(unknown)}; there are {', '.join(by_name)}"
            )
        if len(set(wanted)) < len(wanted):
            raise IllegalArgumentError(f"table {table!r}: columns {', '.join(wanted)}: one is there twice")
        return [by_name[name] for name in wanted]

    def arrow(self) -> pa.Schema:
        """The stored columns of a snapshot."""
        return pa.schema([column.field() for column in self.columns])

    def arrow_delta(self) -> pa.Schema:
        """The stored columns of a delta."""
        return pa.schema([*self.arrow(), *(pa.field(name, kind) for name, kind in OWN.items())])

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
        taken = {PARTITION, CHANGE} & names
        if len(ids) < len(columns) or max(ids, default=0) >= schema.next_id or not schema.key:
            raise MalformedError(f"operator {name!r}: the schema of its table contradicts itself")
        if len(names) < len(columns) or taken:
            raise MalformedError(f"operator {name!r}: a column of its table is there twice, or has a reserved name")
        return schema

    def __str__(self) -> str:
        shown = (f"{c.name} {show_type(c.type)}{'' if c.role == 'last' else ' ' + c.role}" for c in self.columns)
        return f"({', '.join(shown)})"


def first_schema(name: str, fields: Sequence[Json], key: Sequence[str], combine: Mapping[str, str]) -> TableSchema:
    """The schema of a new table whose rows have these fields (Spark's JSON of each)."""
    return _number(name, _columns(name, fields, key, combine), None)


def next_schema(
    name: str, old: TableSchema, fields: Sequence[Json], key: Sequence[str], combine: Mapping[str, str]
) -> TableSchema:
    """The schema with which rows of these fields go on from an old one, or `IllegalArgumentError` with both."""
    return _number(name, _columns(name, fields, key, combine), old)


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
    """Whether keys are hashed otherwise, so that rows may belong to other partitions."""
    return [(c.id, c.type) for c in old.columns if c.role == "key"] != [
        (c.id, c.type) for c in new.columns if c.role == "key"
    ]


def _columns(name: str, fields: Sequence[Json], key: Sequence[str], combine: Mapping[str, str]) -> list[Column]:
    """Columns without ids, keys first; everything that is wrong with them alone is found here."""
    found: dict[str, Json] = {}
    for field in fields:
        if field["name"].lower() in (PARTITION, CHANGE):
            raise IllegalArgumentError(f"table {name!r}: column {field['name']!r}: the name is taken: rename it")
        if field["name"].lower() in (other.lower() for other in found):
            raise IllegalArgumentError(f"table {name!r}: column {field['name']!r} is there twice: rename one")
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


def _check_evolution(name: str, old: TableSchema, new: TableSchema) -> None:
    def refuse(why: str) -> None:
        raise IllegalArgumentError(f"table {name!r}: {why}; the state has {old}, the job has {new}: drop() it first")

    if old.key != new.key:
        refuse(f"its key is {', '.join(old.key)}, not {', '.join(new.key)}")
    before = {column.id: column for column in old.columns}
    for column in new.columns:
        known = before.get(column.id)
        if known is None:
            continue
        if known.role != column.role:
            refuse(f"column {column.name!r} is combined as {known.role!r}, not as {column.role!r}")
        if (known.type, known.metadata) != (column.type, column.metadata) and not is_wider(known.type, column.type):
            refuse(f"column {column.name!r} is {show_type(known.type)}, which is no part of {show_type(column.type)}")
