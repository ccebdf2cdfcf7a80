"""Prepare DataFrames for a table.

This sets the types of its columns, the normalized keys, and the partition of each row.
"""

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StringType, StructField, StructType

from pyspark_checkpointer.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.manifests.errors import BAD_INPUT
from pyspark_checkpointer.manifests.model import Json
from pyspark_checkpointer.spark.executors import send
from pyspark_checkpointer.spark.failure import explain_unanswered
from pyspark_checkpointer.spark.versions import is_at_least, refuse_types
from pyspark_checkpointer.table.schema import PARTITION, TableSchema, missing
from pyspark_checkpointer.table.schema import Column as TableColumn
from pyspark_checkpointer.table.types import is_float, is_wider, plain_type, show_type

Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The work of a task on its rows."""

_SPARK_ERRORS: tuple[type[Exception], ...] = (*BAD_INPUT, AssertionError, PySparkException, Py4JError)
"""Errors that Spark raises for types that it does not know.

Some of them are assertions.
"""


def fields_of(frame: DataFrame) -> list[Json]:
    return [field.jsonValue() for field in frame.schema.fields]


def struct_of(columns: Sequence[TableColumn]) -> StructType:
    """Return columns of a table as Spark's schema.

    All are nullable, as nullability varies between runs.
    """
    fields = [{"name": c.name, "type": c.type, "nullable": True, "metadata": c.metadata or {}} for c in columns]
    refuse_types(fields)
    try:
        return StructType([StructField.fromJson(field) for field in deepcopy(fields)])  # Spark changes its argument.
    except _SPARK_ERRORS as error:  # For instance a collation that this version of Spark does not have.
        raise MalformedError(f"a table's columns: Spark does not take them: {type(error).__name__}: {error}") from None


def quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _cell(column: TableColumn, field: StructField, given: Json) -> Column | str:
    """Return a column in the type of the table.

    Floats of a key are normalized: one NaN, and 0.0 for -0.0.
    """
    name = quote(column.name)
    normalize = column.role == "key" and is_float(column.type)
    if given == column.type and not normalize:
        return name  # This saves calls of the JVM.
    value = F.col(name)
    if normalize:
        value = F.when(F.isnan(value), F.lit(float("nan"))).otherwise(value + F.lit(0.0))
    return value.cast(field.dataType).alias(column.name)


def rows_of(frame: DataFrame, schema: TableSchema, partitions: int) -> DataFrame:
    """Return the rows in the columns and types of the schema, each with its partition."""
    given = {field["name"]: field["type"] for field in fields_of(frame)}
    cells = [
        _cell(column, field, given[column.name])
        for column, field in zip(schema.columns, struct_of(list(schema.columns)), strict=True)
        if column.name in given
    ]
    return _with_partition(frame, cells, schema, partitions)


def all_columns_of(frame: DataFrame, schema: TableSchema, partitions: int) -> DataFrame:
    """Return all columns of the rows, each row with its partition.

    The key columns have the types of the schema.
    """
    given = {field["name"]: field["type"] for field in fields_of(frame)}
    keys = schema.key_columns
    of_key = {c.name: _cell(c, f, given[c.name]) for c, f in zip(keys, struct_of(keys), strict=True)}
    cells = [of_key.get(name, quote(name)) for name in given]
    return _with_partition(frame, cells, schema, partitions)


def bring_together(rows: DataFrame, order: list[str], tasks: int | None = None) -> DataFrame:
    """Return rows so that one task has all rows of a partition, in this order.

    Spark decides how many tasks there are, unless `tasks` says so.
    """
    # Spark sorts, since its sort may spill to disk, and a task then needs only some keys in memory at a time.
    spread = rows.repartition(PARTITION) if tasks is None else rows.repartition(tasks, PARTITION)
    return spread.sortWithinPartitions(*map(quote, order))


def _with_partition(frame: DataFrame, cells: Sequence[Column | str], schema: TableSchema, partitions: int) -> DataFrame:
    """Return the cells of each row, and its partition as a column."""
    # The hash is of the columns as the table stores them, since 5 as an integer and as a long have different hashes.
    # It is a column because adaptive execution moves rows between tasks: no index of a task says where a row belongs.
    # As text it takes fewer calls of the JVM than column by column.
    names, key = [cell for cell in cells if isinstance(cell, str)], [*map(quote, schema.key)]
    # In a text a session may take other names for patterns (spark.sql.parser.quotedRegexColumnNames).
    if not all(re.fullmatch(r"`\w+`", name, re.ASCII) for name in (*names, *key)):
        return frame.select(*cells).select("*", F.pmod(F.hash(*key), F.lit(partitions)).alias(PARTITION))
    number = f"pmod(hash({', '.join(key)}), {partitions}) AS {PARTITION}"
    if len(names) == len(cells):
        return frame.selectExpr(*names, number)  # Nothing changes its type, so one step is enough.
    return frame.select(*cells).selectExpr("*", number)


def map_batches(frame: DataFrame, work: Work, result: StructType | str) -> DataFrame:
    """Call `mapInArrow` for columns of any name.

    It does not quote the names by which it looks columns up. So unless all names are plain, the columns have numbers as
    names during the call.
    """
    names = frame.columns
    if not all(re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) for name in names):
        frame = frame.toDF(*(f"_{number}" for number in range(len(names))))
    return run_tasks(frame, lambda batches: work(batch.rename_columns(names) for batch in batches), result)


def run_tasks(frame: DataFrame, work: Work, result: StructType | str) -> DataFrame:
    """Call `mapInArrow` with the work of a task."""

    load = send(frame.sparkSession, work)

    # A function of its own: Spark looks at the signature of the function, which a bound method hides.
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        exempt_imports_from_gc()
        with explain_unanswered():
            yield from load()(batches)

    return frame.mapInArrow(run, result)


def exempt_imports_from_gc() -> None:
    """Take the imports of this process out of garbage collection.

    PySpark collects all garbage after every task, and looking at some hundred thousand objects of imported packages
    takes longer than many a task. None of them becomes garbage.
    """
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def keys_of(table: str, frame: DataFrame, schema: TableSchema) -> DataFrame:
    """Return the key columns of a frame in the table's types, or in narrower ones.

    A job may have a wider type than its table, until an upsert widens the table. Keys that the type of the table cannot
    hold are left out, as no row has them. Raises `IllegalArgumentError` for a missing column or any other type.
    """
    check_has_key(table, frame, schema.key)
    given = {field["name"]: plain_type(field["type"]) for field in fields_of(frame)}
    keys, cells = schema.key_columns, []
    for column, field in zip(keys, struct_of(keys), strict=True):
        value, kind = F.col(quote(column.name)), given[column.name]
        if is_wider(column.type, kind):
            # A key that changes when it is cast to the narrower type and back is one that the table cannot hold.
            # PySpark 3.5 has it as a text alone, in which a session may take the name for a pattern.
            narrow = (
                value.try_cast(field.dataType)
                if is_at_least("4.0")
                else F.expr(f"try_cast({quote(column.name)} AS {field.dataType.simpleString()})")
            )
            frame = frame.where(narrow.cast(frame.schema[column.name].dataType).eqNullSafe(value))
            value = narrow.alias(column.name)
        elif column.type == "string" and is_collated(frame.schema[column.name].dataType):
            # Texts that the collation takes for equal are different keys of the table.
            value = F.collate(value, "UTF8_BINARY").alias(column.name)
        elif kind != column.type and not is_wider(kind, column.type):
            raise IllegalArgumentError(
                f"table {table!r}: column {column.name!r} of its key is {show_type(column.type)}, not "
                f"{show_type(kind)}: cast it to that type"
            )
        cells.append(value)
    return frame.select(*cells)


def is_collated(kind: DataType) -> bool:
    """Return whether a type is text that a collation compares, and not its bytes."""
    return isinstance(kind, StringType) and " collate " in kind.simpleString()


def check_has_key(table: str, frame: DataFrame, key: Sequence[str]) -> None:
    """Raise `IllegalArgumentError` for rows without a column of the key."""
    for name in key:
        if name not in frame.columns:
            raise IllegalArgumentError(f"table {table!r}: key: {missing(name, frame.columns)}")


def has_unique_keys(frame: DataFrame, key: list[str]) -> bool:
    """Return whether the query plan shows that no two rows have one key.

    It does where the rows come out of a `groupBy` of the key. This reads the analyzed plan, which exists already. To
    optimize a plan may cost as much as to run it, and adaptive execution may still change the physical plan while the
    query runs.
    """
    try:
        plan = frame._jdf.queryExecution().analyzed()
        ids = {str(a.name()): _id(a) for a in _items(plan.output())}
        keys = {ids[name] for name in key}
        while str(plan.nodeName()) in ("Project", "Filter", "Sort", "SubqueryAlias"):
            if str(plan.nodeName()) == "Project":
                # A projection renames columns, so the ids of the key are followed down to the aggregate.
                keys = {_source(item) for item in _items(plan.projectList()) if _id(item) in keys}
            plan = plan.children().head()
        if str(plan.nodeName()) != "Aggregate":
            return False
        grouped = {_id(item) for item in _items(plan.groupingExpressions())}
    except (*BAD_INPUT, Py4JError, PySparkException):
        # Another version of Spark may have other plans. Then the rows are shuffled, which is always right.
        return False
    # Rows that differ in some columns of the key differ in the key.
    return bool(grouped) and grouped <= keys


def _id(expression: Any) -> str:
    """Return the id by which Spark knows a column, whatever its name."""
    return str(expression.exprId().toString())


def _source(item: Any) -> str:
    """Return the id of the column that an item of a projection passes on.

    The item may give the column another name. An item that computes a value has its own id.
    """
    inner = item.child() if str(item.nodeName()) == "Alias" else item
    return _id(inner if str(inner.nodeName()) == "AttributeReference" else item)


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(index) for index in range(sequence.size())]


__all__ = [
    "Work",
    "all_columns_of",
    "bring_together",
    "check_has_key",
    "exempt_imports_from_gc",
    "fields_of",
    "has_unique_keys",
    "is_collated",
    "keys_of",
    "map_batches",
    "quote",
    "rows_of",
    "run_tasks",
    "struct_of",
]
