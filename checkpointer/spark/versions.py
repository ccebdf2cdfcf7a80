"""Hide what differs between the supported versions of PySpark.

The first version with each thing is here and nowhere else. Errors say which version has what this one lacks.
"""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark_types
from pyspark.sql.types import DataType, StructType

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Json

OLDEST = "3.5"
"""The oldest PySpark on which this package works."""


def is_at_least(version: str) -> bool:
    """Return whether this PySpark is of a version such as 4.0, or newer."""
    return _numbers(pyspark.__version__) >= _numbers(version)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


DATA_SOURCES = "4.0"
"""The first PySpark in which a data source can be written in Python."""

ALL_TYPES = "4.0"
"""The first PySpark with variants, and with text that has a collation."""

SPARK_CONNECT = "4.0"
"""The first PySpark whose sessions of Spark Connect are used here."""

_SOURCE_IDS = "4.2"
"""The first PySpark in which the sources of a query have ids of their own, and may have names."""

_ARROW = "4.0"
"""The first PySpark that takes and returns Arrow tables."""

_DDL = "4.0"
"""The first PySpark with `StructType.fromDDL`."""

_SCALA_2_13 = "4.0"
"""The first PySpark with Scala 2.13."""

HAS_DATA_SOURCES = is_at_least(DATA_SOURCES)
HAS_ALL_TYPES = is_at_least(ALL_TYPES)


def needs(what: str, version: str) -> str:
    """Say that something needs a newer PySpark than this one."""
    return f"{what} needs PySpark {version} or newer, and this is {pyspark.__version__}"


def refuse_before(version: str, what: str, instead: str) -> None:
    """Raise `IllegalArgumentError` for what needs a newer PySpark.

    The message says what to do instead.
    """
    if not is_at_least(version):
        raise IllegalArgumentError(f"{needs(what, version)}: {instead}")


def _has_distutils() -> bool:
    """Return whether there is a module `distutils`: `setuptools` may bring one."""
    if sys.version_info < (3, 12):
        return True
    try:
        import distutils  # noqa: F401
    except ImportError:
        return False
    return True


def refuse_python() -> None:
    """Raise `InvalidStateError` where this PySpark runs no tasks on this Python.

    PySpark 3.5 imports `distutils` for them, which Python 3.12 and newer do not have.
    """
    if not is_at_least("4.0") and not _has_distutils():
        version = f"{sys.version_info[0]}.{sys.version_info[1]}"
        raise InvalidStateError(
            f"{needs(f'a task on Python {version}, which has no module distutils,', '4.0')}: use that, or Python 3.11"
        )


def refuse_types(columns: Sequence[Json]) -> None:
    """Raise `IllegalArgumentError` for column types that this PySpark does not have.

    A column is given as its name, type and metadata.
    """
    if HAS_ALL_TYPES:
        return
    for column in columns:
        for what, sign in (("a variant", "'variant'"), ("text with a collation", "'__COLLATIONS'")):
            if sign in repr((column["type"], column["metadata"])):
                refuse_before(
                    ALL_TYPES,
                    f"column {column['name']!r} is {what}, which",
                    "choose other columns, or read the table without Spark: Checkpointer(root).restore().table(…)",
                )


def is_variant(kind: DataType) -> bool:
    """Return whether a type is a variant. PySpark 3.5 has no class for it."""
    return kind.typeName() == "variant"


def variants_of(schema: StructType) -> list[str]:
    """Return the names of the columns that are variants."""
    return [field.name for field in schema.fields if is_variant(field.dataType)]


def is_interval(kind: DataType) -> bool:
    """Return whether a type is an interval of months, days and microseconds.

    PySpark 3.5 has no class for it.
    """
    return kind.typeName() == "interval"


def parse_schema(text: str) -> DataType:
    """Return a schema that is given as text. Raises `PySparkException`."""
    if is_at_least(_DDL):
        return StructType.fromDDL(text)
    parse: Any = spark_types._parse_datatype_string
    kind: DataType = parse(text)
    return kind


def rows_of_frame(frame: DataFrame) -> pa.Table:
    """Return all rows of a frame."""
    if is_at_least(_ARROW):
        return frame.toArrow()
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema)
    batches = frame._collect_as_arrow()  # type: ignore[operator]
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def takes_arrow(spark: SparkSession) -> bool:
    """Return whether a classic session makes a DataFrame of Arrow rows as they are.

    PySpark 3.5 makes it by way of pandas, which changes values. Newer ones fail where a setting says that batches have
    no limit.
    """
    return is_at_least(_ARROW) and int(str(spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch"))) > 0


def option_of_long(session: Any) -> Callable[[int], Any]:
    """Return a function that makes Scala's `Option` of a long integer.

    Python cannot make one: it hands over a small integer as another type than a long. The classes are looked up here,
    once, and by their whole names: for each part of a name, the JVM would look in all jars.
    """
    jvm = session._jvm
    if is_at_least(_SCALA_2_13):
        of = getattr(jvm, "java.util.OptionalLong").of
        to_scala = getattr(jvm, "scala.jdk.javaapi.OptionConverters").toScala
        return lambda number: to_scala(of(number))
    # Scala 2.12 has no converter. The first element of an array of longs is such an option, too.
    wrap, kind, gateway = getattr(jvm, "scala.Predef").wrapLongArray, jvm.long, session.sparkContext._gateway

    def first(number: int) -> Any:
        longs = gateway.new_array(kind, 1)
        longs[0] = number
        return wrap(longs).headOption()

    return first


def sources_of(query: Any) -> Iterator[tuple[str, Any]]:
    """Yield the id and the JVM's object of each source of a running query.

    Before sources had ids of their own, the id is the number of the source.
    """
    if is_at_least(_SOURCE_IDS):
        entries = query.sourceIdMap().iterator()
        while entries.hasNext():
            entry = entries.next()
            yield str(entry.productElement(0)), entry.productElement(1)
        return
    sources = query.sources()
    yield from ((str(number), sources.apply(number)) for number in range(sources.size()))


__all__ = [
    "ALL_TYPES",
    "DATA_SOURCES",
    "HAS_ALL_TYPES",
    "HAS_DATA_SOURCES",
    "OLDEST",
    "SPARK_CONNECT",
    "is_at_least",
    "is_interval",
    "is_variant",
    "needs",
    "option_of_long",
    "parse_schema",
    "refuse_before",
    "refuse_python",
    "refuse_types",
    "rows_of_frame",
    "sources_of",
    "takes_arrow",
    "variants_of",
]
