"""Define the schema of a table: its columns, and how their values are combined."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import pyarrow as pa

from pyspark_checkpointer import display
from pyspark_checkpointer.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.table.expiry import TYPES, Expire, decode_rule, encode_rule
from pyspark_checkpointer.table.types import (
    arrow_type,
    can_be_key,
    can_order,
    can_sum,
    plain_type,
    show_type,
)

PARTITION = "__partition"
"""Column of a delta: the partition that the row belongs to."""

CHANGE = "__change"
"""Column of a delta: the kind of change, one of the three below."""

KEPT = "__kept"
"""Column of a delta: the ids of the columns that the row keeps.

A delta has it only where some row keeps a column.
"""

DELTA_COLUMNS = {PARTITION: pa.int32(), CHANGE: pa.int8()}
"""The columns that every delta has besides those of the table."""

OWN_COLUMNS = DELTA_COLUMNS | {KEPT: pa.string()}
"""All columns that a delta may have besides those of the table."""

RESERVED_NAMES = (PARTITION, CHANGE, KEPT)

MERGE, RESET, DELETE = 0, 1, 2
CHANGES = (MERGE, RESET, DELETE)
"""Kinds of change: combine with the row below, replace it, delete it."""

Combine = Literal["last", "sum", "min", "max"]
"""The rule by which the old and the new value of a column become one.

"last" takes the new value.
"""

Role = Literal["key", "last", "sum", "min", "max"]

FIELD_ID = b"PARQUET:field_id"

MAX_ID = 2**31 - 1
"""The largest id of a column: Parquet stores it in 32 bits."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Its `id` is never given to another column. `type` is Spark's, as in its JSON schemas.
    """

    id: int
    name: str
    type: Json
    role: Role
    metadata: Json = None

    def field(self) -> pa.Field:
        return pa.field(self.name, arrow_type(self.type), metadata={FIELD_ID: str(self.id).encode()})

    def renamed(self, name: str) -> "Column":
        """Return the column with another name, also in the names of its collations."""
        names = (self.metadata or {}).get("__COLLATIONS")
        if not isinstance(names, dict):
            return replace(self, name=name)
        # A collation stands under the name of the column, or of a part of it such as `name.element`.
        collations = {name + path.removeprefix(self.name): collation for path, collation in names.items()}
        return replace(self, name=name, metadata={"__COLLATIONS": collations})


@dataclass(frozen=True, slots=True)
class TableSchema:
    """The columns of a table: first the keys, in the order in which they are hashed.

    `next_id` is the next free id. `expire` is the rule by which rows expire, if they do.
    """

    columns: tuple[Column, ...]
    next_id: int
    expire: Expire | None = None

    @property
    def key(self) -> list[str]:
        return [column.name for column in self.key_columns]

    @property
    def key_columns(self) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.role == "key")

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]

    @property
    def values(self) -> list[Column]:
        return [column for column in self.columns if column.role != "key"]

    @property
    def replaces(self) -> bool:
        """Return whether a new row replaces all values of the old row of its key."""
        return all(column.role == "last" for column in self.values)

    @property
    def combines(self) -> bool:
        """Return whether rows of one key can be combined in any order.

        Without values they are equal, and one of them is enough.
        """
        return all(column.role != "last" for column in self.values)

    def choose(self, table: str, columns: Sequence[str] | None) -> list[Column]:
        """Return the named columns in the order asked for; all of them for None."""
        by_name = {column.name: column for column in self.columns}
        wanted = list(by_name) if columns is None else list(columns)
        unknown = [name for name in wanted if name not in by_name]
        if unknown or not wanted:
            why = f"no column {display.names(unknown)}" if unknown else "columns=[]: expected at least one column"
            raise IllegalArgumentError(f"table {table!r}: {why}; there are {display.names(by_name)}")
        if len(set(wanted)) < len(wanted):
            raise IllegalArgumentError(f"table {table!r}: columns {display.names(wanted)}: one is there twice")
        return [by_name[name] for name in wanted]

    def arrow(self) -> pa.Schema:
        """Return the stored columns of a snapshot."""
        return pa.schema([column.field() for column in self.columns])

    def arrow_key(self) -> pa.Schema:
        """Return the stored columns of the key.

        Their types decide its hash. To Spark, 5 as an integer and 5 as a long are different keys.
        """
        return pa.schema([column.field() for column in self.key_columns])

    def arrow_delta(self, *, kept: bool = False) -> pa.Schema:
        """Return the stored columns of a delta.

        With `kept`, some of its rows keep columns.
        """
        own = OWN_COLUMNS if kept else DELTA_COLUMNS
        return pa.schema([*self.arrow(), *(pa.field(name, kind) for name, kind in own.items())])

    def without(self, table: str, columns: Sequence[str]) -> "TableSchema":
        """Return the schema without some columns.

        No later column is given their ids. Unknown names are ignored.
        """
        if isinstance(columns, str):
            raise IllegalArgumentError(f"table {table!r}: drop_columns({columns!r:.80}): expected a list of names")
        check_dropped(table, self.key, columns)
        kept = tuple(column for column in self.columns if column.name not in columns)
        self._check_expiry(table, kept, self.expire)
        return replace(self, columns=kept)

    def extends(self, other: "TableSchema") -> bool:
        """Return whether this schema has all columns of another one.

        Their types may be wider by now.
        """
        known = {(column.id, column.name, column.role) for column in self.columns}
        return all((column.id, column.name, column.role) in known for column in other.columns)

    def expiring(self, table: str, expire: Expire | None) -> "TableSchema":
        """Return the schema with another rule by which rows expire, or none.

        Raises `IllegalArgumentError` where no column fits the rule.
        """
        self._check_expiry(table, self.columns, expire)
        return replace(self, expire=expire)

    @staticmethod
    def _check_expiry(table: str, columns: Sequence[Column], expire: Expire | None) -> None:
        if expire is None:
            return
        column = next((column for column in columns if column.name == expire.column), None)
        if column is None:
            raise IllegalArgumentError(
                f"table {table!r}: rows expire {expire}, and there would be no such column; there are "
                f"{display.names(column.name for column in columns)}: name another one, or leave expire= out"
            )
        if column.type not in TYPES:
            raise IllegalArgumentError(
                f"table {table!r}: rows cannot expire {expire}: the column is {show_type(column.type)}, not "
                f"{' or '.join(TYPES)}"
            )

    def to_json(self) -> Json:
        columns = [
            {"id": c.id, "name": c.name, "type": c.type, "role": c.role}
            | ({} if c.metadata is None else {"metadata": c.metadata})
            for c in self.columns
        ]
        rule = {} if self.expire is None else {"expire": encode_rule(self.expire)}
        return {"columns": columns, "next_id": self.next_id, **rule}

    @classmethod
    def from_json(cls, name: str, value: Json) -> "TableSchema":
        try:
            columns = tuple(
                replace(new_column(name, {**c, **_check_texts(c)}, c["role"]), id=_integer(c["id"], MAX_ID))
                for c in value["columns"]
            )
            schema = cls(columns, _integer(value["next_id"], MAX_ID + 1))
            if "expire" in value:
                schema = schema.expiring(name, decode_rule(value["expire"]))
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
            raise MalformedError(f"operator {name!r}: expected the schema of a table: {error}") from None
        # Spark ignores the case of names, so two that differ in it alone would be one column there.
        ids, names = {column.id for column in columns}, {column.name.lower() for column in columns}
        taken = names.intersection(RESERVED_NAMES)
        keys_first = all(column.role == "key" for column in columns[: len(schema.key)])
        if len(ids) < len(columns) or max(ids, default=0) >= schema.next_id or not schema.key or not keys_first:
            raise MalformedError(f"operator {name!r}: the schema of its table contradicts itself")
        if len(names) < len(columns) or taken:
            raise MalformedError(f"operator {name!r}: a column of its table is there twice, or has a reserved name")
        return schema

    def __str__(self) -> str:
        shown = (
            f"{display.cut(c.name)} {show_type(c.type)}{'' if c.role == 'last' else ' ' + c.role}" for c in self.columns
        )
        return f"({', '.join(shown)}{'' if self.expire is None else f'; expires {self.expire}'})"


def check_dropped(table: str, key: Sequence[str], columns: Collection[str]) -> None:
    """Raise `IllegalArgumentError` where a column to drop is part of the key."""
    if keys := [name for name in key if name in columns]:
        raise IllegalArgumentError(
            f"table {table!r}: column {display.names(keys)} is part of the key, and cannot be dropped: a table with "
            "another key needs another name"
        )


def missing(column: str, there: Collection[str]) -> str:
    """Return the text of an error for a column that is not among the known ones."""
    alike = next((name for name in there if name.lower() == column.lower()), None)
    hint = "" if alike is None else f": {alike!r} differs from it in case alone: rename it"
    return f"column {column!r} is missing; there are {display.names(there) or 'none'}{hint}"


def _integer(value: Json, most: int) -> int:
    # True is an int too, and JSON has both.
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise TypeError(f"expected an integer from 1 to {most}, found {value!r:.40}")
    return value


def _check_texts(column: Json) -> dict[str, Json]:
    """Return name and metadata of a column in a manifest.

    Raises `TypeError` for those of another type.
    """
    name, metadata = column["name"], column.get("metadata", {})
    if not isinstance(name, str) or not isinstance(metadata, dict):
        raise TypeError(f"expected a text and an object, found {name!r:.40} and {metadata!r:.40}")
    return {"name": name, "metadata": metadata}


def new_column(table: str, field: Json, role: Any) -> Column:
    where = f"table {table!r}: column {field['name']!r}"
    kind = plain_type(field["type"])
    # Called for its error alone, which here gets the name of the column.
    try:
        arrow_type(kind)
    except IllegalArgumentError as error:
        raise IllegalArgumentError(f"{where}: {error}") from None
    metadata = {"__COLLATIONS": field["metadata"]["__COLLATIONS"]} if "__COLLATIONS" in field["metadata"] else None
    # Spark gives equal collated texts different hashes, so rows of one key would lie in several partitions. Maps and
    # variants have no hash at all.
    if role == "key" and not (can_be_key(kind) and metadata is None):
        shown = "a collated string" if metadata else show_type(kind)
        raise IllegalArgumentError(f"{where}: {shown} cannot be a key: use a text, number, date or time made of it")
    if role not in get_args(Role):
        raise IllegalArgumentError(f"{where}: combine={role!r:.40}: expected one of {', '.join(get_args(Combine))}")
    # Arrow compares collated texts by their bytes, so their least and greatest would be other ones than in Spark.
    if (role == "sum" and not can_sum(kind)) or (
        role in ("min", "max") and (not can_order(kind) or metadata is not None)
    ):
        raise IllegalArgumentError(f"{where}: {role} of {show_type(kind)} is not defined")
    # The id follows when the columns are numbered, or read from a manifest.
    return Column(0, field["name"], kind, role, metadata)
