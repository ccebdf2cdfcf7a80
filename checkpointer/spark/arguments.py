"""Check arguments of users before anything is done with them.

Each error names the argument.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructType
from pyspark.sql.utils import is_remote

from pyspark_checkpointer import display
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.model import Operator
from pyspark_checkpointer.spark.versions import is_interval, is_variant, parse_schema
from pyspark_checkpointer.table.expiry import Expire
from pyspark_checkpointer.table.schema import RESERVED_NAMES, Combine


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """The arguments with which a callback opens a table, before they are checked."""

    key: Sequence[str]
    num_partitions: int | None = None
    combine: Mapping[str, Combine] | None = None
    schema: StructType | str | None = None
    expire: Expire | None = None


_FOUND = {
    "map": "a map of that name: state.map({!r})",
    "table": "a table of that name: state.table({!r}, key=…)",
    "bytes": "partitions of bytes of that name: state.partition({!r}, …)",
}
"""Words for what has a name in a state, by its kind, and how it is opened."""


def refuse_other_kind(wanted: str, name: str, known: Operator | None) -> None:
    """Raise where a state has something else by the name of a map or table."""
    if known is not None and (kind := codecs.kind_of(known)) != wanted:
        raise IllegalArgumentError(
            f"{wanted} {name!r}: the state has {_FOUND[kind].format(name)}; for a {wanted} take another name, or leave "
            f"that out once: state.drop({name!r})"
        )


def check_frame(call: str, given: Any) -> DataFrame:
    """Return the argument if it is a non-streaming PySpark DataFrame.

    Raises `IllegalArgumentError` for anything else, with advice for its type.
    """
    kind = type(given)
    if isinstance(given, DataFrame):
        if given.isStreaming:
            raise IllegalArgumentError(
                f"{call} takes a batch DataFrame, not a streaming one: in a foreachBatch function use its "
                "batch, and read other sources with spark.read"
            )
        return given
    if kind.__module__.startswith("pandas.") or isinstance(given, list | tuple):
        advice = "make one of it with spark.createDataFrame(…)"
    elif kind.__module__.startswith("pyarrow."):
        advice = "make one of it with spark.createDataFrame(table)"
    else:
        advice = "pass the batch, or what was selected from it"
    raise IllegalArgumentError(f"{call} takes a Spark DataFrame, not {kind.__module__}.{kind.__qualname__}: {advice}")


def check_names(what: str, given: Any) -> list[str]:
    """Return column names as a list.

    A single name is refused: its letters would be taken as names.
    """
    if isinstance(given, str):
        raise IllegalArgumentError(f"{what}={given!r:.80}: expected a list of column names, as in [{given!r:.80}]")
    names = given if isinstance(given, Sequence) else ()
    if any(isinstance(name, Column) for name in names):
        raise IllegalArgumentError(f"{what}={given!r:.80}: expected column names, as in ['n'], not Column objects")
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in names):
        raise IllegalArgumentError(f"{what}={given!r:.80}: expected a list of column names")
    return list(given)


def check_columns(call: str, frame: DataFrame, order_by: Sequence[str]) -> None:
    """Raise `IllegalArgumentError` for columns that a task cannot tell apart.

    This also checks that the columns of `order_by` exist and have an order. Spark ignores the case of names.
    """
    names = [name.lower() for name in frame.columns]
    for name in frame.columns:
        if names.count(name.lower()) > 1:
            raise IllegalArgumentError(f"{call}: column {name!r} is there twice: rename one")
        if name.lower() in RESERVED_NAMES:
            raise IllegalArgumentError(f"{call}: column {name!r}: the name is taken: rename it")
    if missing := [name for name in order_by if name not in frame.columns]:
        raise IllegalArgumentError(
            f"{call}: order_by: there is no column {display.names(missing)}; there are {display.names(frame.columns)}"
        )
    for name in order_by:
        kind = frame.schema[name].dataType
        if not _has_order(kind):
            raise IllegalArgumentError(
                f"{call}: order_by: column {name!r} is {kind.simpleString()}, whose values have no order: "
                "make a column of one of its fields, and order by that"
            )


def _has_order(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _has_order(kind.elementType)
    if isinstance(kind, StructType):
        return all(_has_order(field.dataType) for field in kind.fields)
    return not (isinstance(kind, MapType) or is_variant(kind) or is_interval(kind))


def check_key_columns(table: str, given: Any) -> list[str]:
    """Return the key of a table as a list of at least one column, none of them twice."""
    key = check_names(f"table {table!r}: key", given)
    if not key or len(set(key)) < len(key):
        raise IllegalArgumentError(f"table {table!r}: key={key}: expected at least one column, none twice")
    return key


def check_combine(table: str, given: Any) -> dict[str, Any]:
    """Return how columns are combined, by their names.

    The schema checks whether each way exists.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise IllegalArgumentError(
            f"table {table!r}: combine={given!r:.80}: expected a dict from column names to rules, as in {{'n': 'sum'}}"
        )
    return dict(given)


def check_expire(table: str, expire: object) -> Expire | None:
    """Return the rule if it is one. Raises `IllegalArgumentError` otherwise."""
    if expire is None or isinstance(expire, Expire):
        return expire
    raise IllegalArgumentError(f"table {table!r}: expire={expire!r:.80}: expected Expire(column, after=timedelta(…))")


def check_num_partitions(what: str, given: Any) -> int:
    """Return a number of partitions, an integer of at least 1."""
    # The error of a partition's number is replaced by one that speaks of how many there are.
    try:
        if object_paths.check_partition(given) > 0:
            return int(given)
    except IllegalArgumentError:
        pass
    raise IllegalArgumentError(f"{what}: num_partitions={given!r:.40}: expected an integer from 1 to 2147483647")


def check_schema(what: str, given: Any) -> StructType:
    """Return a schema as a `StructType`.

    A schema in text needs a session, as only Spark can parse it. `what` names the argument in errors.
    """
    # Spark asks the JVM or its server to parse the text, and only a session has one.
    if isinstance(given, str) and SparkContext._active_spark_context is None and not is_remote():
        raise IllegalArgumentError(
            f"{what}={given!r:.80}: only Spark parses a schema written as text, and there is no "
            "session: pass a StructType, as in StructType().add('user', 'string'), or make a session first"
        )
    try:
        found = parse_schema(given) if isinstance(given, str) else given
    except PySparkException as error:
        # Spark's message goes on with a drawing of the place in the text. The first line says what is wrong.
        said = str(error).strip().partition("\n")[0]
        raise IllegalArgumentError(
            f"{what}={given!r:.80}: Spark cannot parse it: {said:.300}: expected columns with their "
            "types, as in 'user string, n long'"
        ) from None
    if not isinstance(found, StructType):
        raise IllegalArgumentError(f"{what}={given!r:.80}: expected a StructType or columns as text")
    return found
