"""Check the arguments of `table.apply` and `table.apply_groups` before any task."""

import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.types import StructField, StructType

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.spark.arguments import check_names, check_schema
from pyspark_checkpointer.table.apply import UserFunction
from pyspark_checkpointer.table.first_seen import FirstSeen
from pyspark_checkpointer.table.frames import check_frames
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.types import arrow_type, plain_type, show_type
from pyspark_checkpointer.table.user_calls import FrameCall, GroupCall


@dataclass(frozen=True, slots=True)
class Application:
    """A user's function, and how it is applied to a table.

    `groups`: it is called once for each key. `frames` is what it is given its rows as.
    """

    where: str
    verb: str
    user: Callable[..., Any]
    groups: bool
    frames: Any
    output: StructType | None
    order_by: list[str]

    @classmethod
    def of(
        cls,
        table: str,
        function: Any,
        output: Any,
        order_by: Any,
        frames: Any,
        *,
        groups: bool,
        verb: str = "",
    ) -> "Application":
        """Return the application if all arguments are valid.

        Raises `IllegalArgumentError` otherwise.
        """
        verb = verb or ("apply_groups" if groups else "apply")
        where = f"table {table!r}: {verb}()"
        if not callable(function):
            raise IllegalArgumentError(f"{where}: function={function!r:.80}: expected a function")
        if not (groups and frames == "rows"):
            check_frames(where, frames, ("rows",) if groups else ())
        _check_picklable(where, function)
        schema = None if output is None else _nullable(check_schema(f"{where}: output", output))
        return cls(where, verb, function, groups, frames, schema, check_names(f"{where}: order_by", order_by))

    def function(self, schema: TableSchema, combine: Collection[str] = ()) -> UserFunction:
        """Return the function as tasks apply it to a table of this schema.

        `combine` are the columns of which the job says how they are combined.
        """
        is_ours = isinstance(self.user, FirstSeen)
        what = self.where if is_ours else f"{self.where}: {_name(self.user)}"
        emits = f"{self.where}: {'rows' if is_ours else 'output'}"
        # Rows of `first_seen` are returned whole, also columns that the table does not have.
        hint = ", or select the columns that can be returned" if is_ours else ""
        output = None if self.output is None else _emitted_columns(emits, self.output, hint)
        kind: Any = GroupCall if self.groups else FrameCall
        call = kind(what, self.user, self.frames, schema.arrow(), output or pa.schema([]))
        unnamed = [] if is_ours else [c for c in schema.values if c.role != "last" and c.name not in combine]
        return UserFunction(what, schema, call, output, is_ours, unnamed)


def _nullable(output: StructType) -> StructType:
    """Return the columns as nullable ones, at all depths.

    Spark would not check whether the function emits nulls.
    """
    fields = [{"nullable": True, "metadata": {}} | f.jsonValue() for f in output.fields]
    plain = plain_type({"type": "struct", "fields": fields})
    return StructType([StructField.fromJson(field) for field in plain["fields"]])


def check_given(where: str, rows: DataFrame) -> None:
    """Raise `IllegalArgumentError` for rows that no Python task can have.

    Arrow in Python has no values of a year-month interval, and Spark would fail in the task, without the column's name.
    """
    for field in rows.schema.fields:
        if _has_months(kind := plain_type(field.jsonValue()["type"])):
            raise IllegalArgumentError(
                f"{where}: rows: column {field.name!r} is {show_type(kind)}, of which Python tasks have no values: "
                "cast year-month intervals to string, or leave the column out"
            )


def _has_months(kind: Json) -> bool:
    if not isinstance(kind, dict):
        return str(kind).startswith(("interval year", "interval month"))
    inner = [kind.get(part) for part in ("elementType", "keyType", "valueType")]
    return any(map(_has_months, [*inner, *(field["type"] for field in kind.get("fields", ()))]))


def _emitted_columns(where: str, output: StructType, hint: str) -> pa.Schema:
    """Return the columns of emitted rows as Arrow stores them."""
    fields = []
    for field in output.fields:
        try:
            fields.append(pa.field(field.name, arrow_type(plain_type(field.jsonValue()["type"]))))
        except IllegalArgumentError as error:
            raise IllegalArgumentError(f"{where}: column {field.name!r}: {error}{hint}") from None
    names = [field.name.lower() for field in fields]
    if twice := [field.name for field in fields if names.count(field.name.lower()) > 1]:
        raise IllegalArgumentError(f"{where}: column {twice[0]!r} is there twice: rename one")
    return pa.schema(fields)


def _name(function: Any) -> str:
    if isinstance(function, partial):
        return f"partial of {_name(function.func)}"
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def _check_picklable(where: str, function: Callable[..., Any]) -> None:
    """Raise `IllegalArgumentError` for a function that cannot be sent to tasks.

    The error names the variable that it uses and that cannot be sent, where one is found.
    """
    if (error := _pickling_error(function)) is not None:
        culprit = next((name for name, value in _variables(function) if _pickling_error(value)), None)
        uses = "" if culprit is None else f" because of {culprit!r}, which it uses"
        raise IllegalArgumentError(
            f"{where}: {_name(function)} cannot be sent to tasks{uses}: {type(error).__name__}: {error}: make such an "
            "object within the function, or use plain values"
        )


def _variables(function: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Yield the values that a function refers to, with the names in its source."""
    if isinstance(function, partial):
        yield from function.keywords.items()
        yield from ((f"argument {number} of partial()", value) for number, value in enumerate(function.args, 1))
        yield from _variables(function.func)
    elif inspect.ismethod(function):
        yield from _variables(function.__func__)
        yield from ((f"self.{name}", value) for name, value in getattr(function.__self__, "__dict__", {}).items())
    elif inspect.isfunction(function):
        parameters = inspect.signature(function).parameters.values()
        yield from ((p.name, p.default) for p in parameters if p.default is not p.empty)
        try:
            used = inspect.getclosurevars(function)
        except ValueError:  # A variable around it has no value yet.
            return
        yield from {**used.nonlocals, **used.globals}.items()
    else:  # An object with __call__.
        yield from ((f"self.{name}", value) for name, value in getattr(function, "__dict__", {}).items())


def _pickling_error(value: Any) -> Exception | None:
    try:
        cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    except Exception as error:  # Anything that an object's own pickling raises.
        return error
    return None


__all__ = ["Application", "check_given"]
