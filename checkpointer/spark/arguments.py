"""Check what users hand over, by name, before anything is done with it."""

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests import object_paths

_CONNECT = "pyspark.sql.connect."


def check_session(function: str, spark: object) -> None:
    """Refuse a session of Spark Connect: it has no driver in this process that could commit."""
    if type(spark).__module__.startswith(_CONNECT):
        raise IllegalArgumentError(
            f"{function}(): Spark Connect is not supported by pyspark_checkpointer.spark: use a session of classic "
            "PySpark, made without a remote; Checkpointer(root).restore().table(…) reads a table without Spark"
        )


def check_frame(call: str, given: Any) -> DataFrame:
    """Take a DataFrame of classic PySpark whose rows are at hand; refuse anything else by its type."""
    kind = type(given)
    if isinstance(given, DataFrame) and not kind.__module__.startswith(_CONNECT):
        if given.isStreaming:
            raise IllegalArgumentError(
                f"{call} takes rows that are at hand, not a streaming DataFrame: within a foreachBatch function use "
                "the batch that it is given, and read other sources with spark.read"
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
    """Take a sequence of column names; refuse a single name as text, which would be taken letter by letter."""
    if isinstance(given, str):
        raise IllegalArgumentError(f"{what}={given!r:.80}: expected a list of column names, as in [{given!r:.80}]")
    names = given if isinstance(given, Sequence) else ()
    if any(isinstance(name, Column) for name in names):
        raise IllegalArgumentError(f"{what}={given!r:.80}: expected column names, as in ['n'], not Column objects")
    if not isinstance(given, Sequence) or not all(isinstance(name, str) for name in names):
        raise IllegalArgumentError(f"{what}={given!r:.80}: expected a list of column names")
    return list(given)


def check_key(table: str, given: Any) -> list[str]:
    """Take the key of a table: at least one column, none twice."""
    key = check_names(f"table {table!r}: key", given)
    if not key or len(set(key)) < len(key):
        raise IllegalArgumentError(f"table {table!r}: key={key}: expected at least one column, none twice")
    return key


def check_combine(table: str, given: Any) -> dict[str, Any]:
    """Take how columns are combined, by their names; which ways there are, the schema says."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise IllegalArgumentError(
            f"table {table!r}: combine={given!r:.80}: expected a dict from column names to what is made of two values, "
            "as in {'n': 'sum'}"
        )
    return dict(given)


def check_num_partitions(what: str, given: Any) -> int:
    """Take a number of partitions."""
    try:
        if object_paths.check_partition(given) > 0:
            return int(given)
    except IllegalArgumentError:
        pass
    raise IllegalArgumentError(f"{what}: num_partitions={given!r:.40}: expected an integer from 1 to 2147483647")


def check_schema(table: str, given: Any) -> StructType:
    """Take a schema; text can be parsed by Spark's own grammar alone, where there is a session."""
    if isinstance(given, str) and SparkContext._active_spark_context is None:
        raise IllegalArgumentError(
            f"table {table!r}: schema={given!r:.80}: only Spark parses a schema written as text, and there is no "
            "session: pass a StructType, as in StructType().add('user', 'string'), or make a session first"
        )
    try:
        found = StructType.fromDDL(given) if isinstance(given, str) else given
    except PySparkException as error:
        said = str(error).strip().partition("\n")[0]
        raise IllegalArgumentError(
            f"table {table!r}: schema={given!r:.80}: Spark cannot parse it: {said:.300}: expected columns with their "
            "types, as in 'user string, n long'"
        ) from None
    if not isinstance(found, StructType):
        raise IllegalArgumentError(f"table {table!r}: schema={given!r:.80}: expected a StructType or columns as text")
    return found
