"""Convert between Spark's types, as its JSON schemas name them, and Arrow types.

Schemas are recorded in Spark's own words. So a table reads the same on any machine, with or without Spark.
"""

import re
from collections.abc import Collection
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer import display
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import Json

_ATOMIC = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_INTEGERS = ("byte", "short", "integer", "long")
_FLOATS = ("float", "double")
# Not \d, which takes digits of every script. There is one text for each type, so a leading zero is refused.
_DECIMAL = re.compile(r"decimal\(([1-9][0-9]?),(0|[1-9][0-9]?)\)")
# Spark takes a struct for a variant only if its field `metadata` has this mark.
_VARIANT = pa.struct([pa.field("value", pa.binary()), pa.field("metadata", pa.binary(), metadata={"variant": "true"})])
_UNITS = ("day", "hour", "minute", "second")
_DURATIONS = frozenset(
    f"interval {unit}" + ("" if unit == last else f" to {last}")
    for index, unit in enumerate(_UNITS)
    for last in _UNITS[index:]
)

MAX_PRECISION = 38

# Arrow writes deeper files than it reads: its Parquet reader refuses more than 100 levels, and its streams end at 64.
MAX_PARQUET_NESTING = 98
"""The most levels of nesting with which Parquet files can be read back.

An array or a map is two levels, a struct one.
"""

MAX_BATCH_NESTING = 62
"""The most levels of nesting that Spark and its tasks can exchange.

A map is two levels, an array or a struct one.
"""


def arrow_type(spark: Json) -> pa.DataType:
    """Return the Arrow type of a Spark type.

    Raises `IllegalArgumentError` if the type cannot be stored.
    """
    return _VARIANT if spark == "variant" else _inner_type(spark)


def _inner_type(spark: Json) -> pa.DataType:
    """Return the Arrow type of any type but a variant.

    Spark can read a variant only as a whole column.
    """
    if isinstance(spark, str):
        if spark in _ATOMIC:
            return _ATOMIC[spark]
        # Arrow also has decimals with more digits behind the point than there are, which Spark has not.
        if (match := _DECIMAL.fullmatch(spark)) and int(match[2]) <= int(match[1]) <= MAX_PRECISION:
            return pa.decimal128(int(match[1]), int(match[2]))
        if spark in _DURATIONS:
            return pa.duration("us")
    elif isinstance(spark, dict) and spark.get("type") == "array":
        return pa.list_(pa.field("element", _inner_type(spark["elementType"])))
    elif isinstance(spark, dict) and spark.get("type") == "map":
        return pa.map_(_inner_type(spark["keyType"]), _inner_type(spark["valueType"]))
    # Two fields of one name could not be told apart, in Parquet or as rows of Python.
    elif isinstance(spark, dict) and spark.get("type") == "struct" and _have_names_of_their_own(spark["fields"]):
        return pa.struct([pa.field(field["name"], _inner_type(field["type"])) for field in spark["fields"]])
    raise IllegalArgumentError(f"type {show_type(spark)} cannot be stored: cast it to another type first")


def _have_names_of_their_own(fields: list[Json]) -> bool:
    return 0 < len(fields) == len({field["name"] for field in fields})


def can_read_as(stored: pa.DataType, spark: Json) -> bool:
    """Return whether a column of a file may be read as a column of the Spark type.

    The column of the file may have the same type, or a narrower type that was widened since. Only a column itself is
    widened, not the parts inside it.
    """
    if hold_the_same(stored, arrow_type(spark)):
        return True
    try:
        return is_wider(spark_type(stored), spark)
    except IllegalArgumentError:
        return False


def hold_the_same(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether two Arrow types have the same values.

    They may differ in how Arrow holds the values.
    """
    return bool(_shape(one) == _shape(other))


def _shape(kind: pa.DataType) -> Any:
    """Return an Arrow type without what does not change its values.

    These are 64-bit offsets, the names of items of lists and maps, and whether parts may be null.
    """
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return ("list", _shape(kind.value_type))
    if pa.types.is_map(kind):
        return ("map", _shape(kind.key_type), _shape(kind.item_type))
    if pa.types.is_struct(kind):
        return ("struct", *((field.name, _shape(field.type)) for field in kind))
    return kind


def spark_type(kind: pa.DataType) -> Json:
    """Return the Spark type that is stored as an Arrow type.

    Raises `IllegalArgumentError` if there is none.
    """
    for name, atomic in _ATOMIC.items():
        if kind.equals(atomic):
            return name
    if pa.types.is_decimal128(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if kind.equals(pa.duration("us")):
        return "interval day to second"
    if pa.types.is_list(kind):
        return {"type": "array", "elementType": spark_type(kind.value_type), "containsNull": True}
    if pa.types.is_map(kind):
        key, value = spark_type(kind.key_type), spark_type(kind.item_type)
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = [
            {"name": field.name, "type": spark_type(field.type), "nullable": True, "metadata": {}} for field in kind
        ]
        return {"type": "struct", "fields": fields}
    raise IllegalArgumentError(f"type {kind} cannot be stored: cast it to another type first")


def whole_variants(rows: pa.Table, variants: Collection[str]) -> pa.Table:
    """Return the rows with variants whose parts are never null.

    Spark requires this of data sources, and of rows that become a DataFrame. `variants` are the names of the columns
    that are variants to Spark: a struct of the user may have the same type in Arrow.
    """
    for index, field in enumerate(rows.schema):
        if field.name in variants:
            values = rows.column(index).combine_chunks()
            parts = [pc.fill_null(pc.struct_field(values, [part]), b"") for part in range(2)]
            strict = [_VARIANT.field(part).with_nullable(False) for part in range(2)]
            made = pa.StructArray.from_arrays(parts, fields=strict, mask=values.is_null())
            rows = rows.set_column(index, field.with_type(made.type), made)
    return rows


def is_too_deep(spark: Json) -> bool:
    """Return whether a type is nested too deep to be read back.

    Values of such a type could be written. The type may have any depth, so this function does not recurse.
    """
    level = [(spark, 0, 0)]
    while level:
        inner = []
        for kind, parquet, batch in level:
            if parquet > MAX_PARQUET_NESTING or batch > MAX_BATCH_NESTING:
                return True
            if not isinstance(kind, dict):
                continue
            if kind.get("type") == "array":
                inner.append((kind["elementType"], parquet + 2, batch + 1))
            elif kind.get("type") == "map":
                inner += [(kind[part], parquet + 2, batch + 2) for part in ("keyType", "valueType")]
            elif kind.get("type") == "struct":
                inner += [(field["type"], parquet + 1, batch + 1) for field in kind["fields"]]
        level = inner
    return False


def show_type(spark: Json) -> str:
    """Return a type as a person would write it."""
    if not isinstance(spark, dict):
        return display.cut(spark)
    kind = spark.get("type")
    if kind == "array":
        return f"array<{show_type(spark['elementType'])}>"
    if kind == "map":
        return f"map<{show_type(spark['keyType'])},{show_type(spark['valueType'])}>"
    if kind == "struct":
        return f"struct<{','.join(display.cut(f['name']) + ':' + show_type(f['type']) for f in spark['fields'])}>"
    return display.cut(kind)


def plain_type(spark: Json) -> Json:
    """Return a type without nullability and comments.

    These may differ between two runs of one job.
    """
    if not isinstance(spark, dict):
        return spark
    kind = spark.get("type")
    if kind == "array":
        return {"type": "array", "elementType": plain_type(spark["elementType"]), "containsNull": True}
    if kind == "map":
        key, value = plain_type(spark["keyType"]), plain_type(spark["valueType"])
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
    if kind == "struct":
        fields = [
            {"name": f["name"], "type": plain_type(f["type"]), "nullable": True, "metadata": _collations(f)}
            for f in spark["fields"]
        ]
        return {"type": "struct", "fields": fields}
    return spark


def _collations(field: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in field.get("metadata", {}).items() if name == "__COLLATIONS"}


def is_wider(old: Json, new: Json) -> bool:
    """Return whether the new type is wider than the old one.

    Then every value of the old type is a value of the new one, and the types differ.
    """
    if old == new or not (isinstance(old, str) and isinstance(new, str)):
        return False
    for family in (_INTEGERS, _FLOATS):
        if old in family and new in family:
            return family.index(old) < family.index(new)
    before, after = _digits(old), _DECIMAL.fullmatch(new)
    if before is None or after is None:
        return False
    precision, scale = int(after[1]), int(after[2])
    # Both the digits before and those after the point have to fit, or values would be cut.
    return precision - scale >= before[0] and scale >= before[1]


def common_type(one: Json, other: Json) -> Json:
    """Return the narrowest type that has all values of two types, or None.

    The type is one of the two. For exact numbers it may also be a decimal with the digits of both.
    """
    if one == other or is_wider(other, one):
        return one
    if is_wider(one, other):
        return other
    digits = [_digits(kind) for kind in (one, other) if isinstance(kind, str)]
    found = [pair for pair in digits if pair is not None]
    if len(found) < 2:
        return None
    whole, scale = (max(parts) for parts in zip(*found, strict=True))
    return f"decimal({whole + scale},{scale})" if whole + scale <= MAX_PRECISION else None


def _digits(spark: str) -> tuple[int, int] | None:
    """Return the digits before and after the point of an exact numeric type.

    Returns None for any other type.
    """
    if match := _DECIMAL.fullmatch(spark):
        return int(match[1]) - int(match[2]), int(match[2])
    # The digits of the largest value of each: 127, 32767, 2147483647, 9223372036854775807.
    integers = dict(zip(_INTEGERS, (3, 5, 10, 19), strict=True))
    return (integers[spark], 0) if spark in integers else None


def decimal_scale(spark: str) -> int:
    """Return the digits after the point of an exact numeric type, 0 for an integer."""
    digits = _digits(spark)
    return 0 if digits is None else digits[1]


def can_be_key(spark: Json) -> bool:
    """Return whether a column of the type can be a key.

    It can if equal values hash alike in Spark and compare alike in Arrow.
    """
    return isinstance(spark, str) and spark != "variant"


def can_sum(spark: Json) -> bool:
    return isinstance(spark, str) and (spark in _INTEGERS + _FLOATS or spark.startswith("decimal("))


def is_float(spark: Json) -> bool:
    return spark in _FLOATS


def can_order(spark: Json) -> bool:
    return can_be_key(spark)
