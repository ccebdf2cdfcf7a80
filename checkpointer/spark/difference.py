"""Read the difference of two checkpoints of a table as a DataFrame."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from pyspark_checkpointer.checkpoint.ancestry import read_clocks
from pyspark_checkpointer.checkpoint.selector import CheckpointSelector
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark.dataframes import is_collated, quote, struct_of
from pyspark_checkpointer.spark.interpreter import use_driver_python
from pyspark_checkpointer.spark.read import Root, restore, version_of
from pyspark_checkpointer.spark.scan import scan
from pyspark_checkpointer.spark.versions import is_variant
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption
from pyspark_checkpointer.table.row_times import latest_times
from pyspark_checkpointer.table.types import common_type, is_wider, plain_type
from pyspark_checkpointer.table.version import TableVersion

DIFF_KINDS = ("inserted", "updated", "deleted", "expired")

_YEAR_1 = -62_135_596_800_000_000
"""The first time that Python has, in microseconds since 1970."""


def diff(
    spark: SparkSession,
    root: Root,
    a: CheckpointId | str,
    b: CheckpointId | str,
    operator: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    fencing: Fencing = "required",
    encryption: EncryptionOption = None,
    signing: SigningOption = None,
) -> DataFrame:
    """Return the changes of a table from one checkpoint to another.

    There is one row for each key that was inserted, updated or deleted, or whose row expired: the key columns, `change`
    ("inserted", "updated", "deleted" or "expired"), and the other columns as structs `before` and `after`. `before` of
    an inserted row is null, and so is `after` of one that is gone. If a key column has one of these names, the column
    of the result gets an underscore: `change_`. Partitions that both checkpoints share are not read, unless rows
    expire.

    A row of `a` that is not in `b` is expired or deleted. It is expired if its time in `a` had passed by the rule and
    clock of any live checkpoint after `a` up to `b`. Otherwise it is deleted.

    Args:
        spark: The session.
        root: The root: a folder or a URL.
        a: The older checkpoint, in any form that `Checkpointer.restore` takes.
        b: The newer checkpoint, in the same forms.
        operator: The name of the table.
        storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
        fencing: As in `Checkpointer`.
        encryption: As in `Checkpointer`.
        signing: As in `Checkpointer`.

    Raises:
        CheckpointNotFoundError: One of the checkpoints is not live.
        OperatorNotFoundError: One of them has no table of this name.
        IllegalArgumentError: The key of the table changed between them.

    Examples:
        >>> diff(spark, "state/shop", "epoch=0", "latest", "totals").count()
        0
    """
    use_driver_python(spark)
    client = Checkpointer(root, storage_options, fencing=fencing, encryption=encryption, signing=signing)
    for target in (a, b):
        CheckpointSelector.parse(target)  # It refuses None, which would mean the last checkpoint.
    sides = [restore(client, target) for target in (a, b)]
    versions = [version_of(side, operator) for side in sides]
    old, new = versions
    pairs = zip(old.schema.key_columns, new.schema.key_columns, strict=False)
    # A key may have been widened. Of other types Spark would cast one.
    if old.schema.key != new.schema.key or any(common_type(a.type, b.type) is None for a, b in pairs):
        raise IllegalArgumentError(f"table {operator!r}: its keys differ: {old.schema} and {new.schema}")
    # Equal chains hold equal rows only under one schema and one number of partitions. Else everything is compared.
    partitions: list[list[int] | None] = [None, None]
    if (old.partitions, old.schema, old.expired_until) == (new.partitions, new.schema, new.expired_until):
        changed = [p for p in sorted({*old.chains, *new.chains}) if old.chains.get(p, ()) != new.chains.get(p, ())]
        partitions = [[p for p in changed if p in version.chains] for version in versions]
    before, after = (
        scan(spark, client, side.id, version, partitions=wanted)
        for side, version, wanted in zip(sides, versions, partitions, strict=True)
    )
    assert sides[0].id is not None
    assert sides[1].manifest is not None
    clocks = run_sync(read_clocks(client.session, sides[0].id, sides[1].manifest))
    limits = latest_times(operator, old.schema, clocks)
    return _compare(before, after, old.schema.key, _expired_since(old, limits))


def _expired_since(old: TableVersion, limits: Mapping[str, int]) -> Column:
    """Return, as a column of the join, whether a row has expired since.

    The row is that of the older side. `limits` are the latest times of expired rows, by the column of the times.
    """
    found = F.lit(False)
    for column in old.schema.columns:
        if column.name not in limits:
            continue
        time = _key("before", column.name) if column.role == "key" else F.col("before")[column.name]
        at = datetime(1970, 1, 1) + timedelta(microseconds=max(limits[column.name], _YEAR_1))
        # As text, which Spark reads in the type of the column. The session says what the name `timestamp` means.
        text = f"{at.isoformat()}{'Z' if column.type == 'timestamp' else ''}"
        (field,) = struct_of([column]).fields
        # Null never expires.
        found = found | F.coalesce(time <= F.lit(text).cast(field.dataType), F.lit(False))
    return found


def _compare(old: DataFrame, new: DataFrame, key: list[str], expired: Column) -> DataFrame:
    """Return the rows of a full join of two tables that differ."""
    left, right = _side(old, key, "before"), _side(new, key, "after")
    # Nulls of a key are equal to nulls, as in the table.
    same_key = [_key("before", name).eqNullSafe(_key("after", name)) for name in key]
    joined = left.join(right, same_key, "full")
    inserted, deleted = F.col("`before?`").isNull(), F.col("`after?`").isNull()
    gone = F.when(expired, DIFF_KINDS[3]).otherwise(DIFF_KINDS[2])
    change = F.when(inserted, DIFF_KINDS[0]).when(deleted, gone).otherwise(DIFF_KINDS[1])
    keys = [F.when(inserted, _key("after", n)).otherwise(_key("before", n)).alias(n) for n in key]
    sides = [F.col(name).alias(free_name(name, key)) for name in ("before", "after") if name in joined.columns]
    found = joined.where(inserted | deleted | _differs(old, new, key))
    return found.select(*keys, change.alias(free_name("change", key)), *sides)


def _key(side: str, name: str) -> Column:
    """Return the key column of one side, under the name that `_side` gives it."""
    return F.col(quote(f"{side}.{name}"))


def free_name(name: str, key: list[str]) -> str:
    """Return the name with as many underscores as make it differ from all key columns.

    Spark ignores case.
    """
    taken = {column.lower() for column in key}
    while name in taken:
        name += "_"
    return name


def _side(frame: DataFrame, key: list[str], name: str) -> DataFrame:
    """Return one side of the join.

    It has renamed keys, a mark that the row exists, and the other columns as a struct.
    """
    # The key columns get the side as a prefix, so that no name of the user's can be one of the names made here.
    keys = [F.col(quote(column)).alias(f"{name}.{column}") for column in key]
    values = [F.col(quote(column)) for column in frame.columns if column not in key]
    whole = [F.struct(*values).alias(name)] if values else []
    return frame.select(*keys, F.lit(True).alias(f"{name}?"), *whole)


def _differs(old: DataFrame, new: DataFrame, key: list[str]) -> Column:
    """Return whether any column but the key differs.

    A column that one side lacks differs where it is not null.
    """
    types: dict[str, list[DataType]] = {}
    for frame in (old, new):
        for field in frame.schema.fields:
            if field.name not in key:
                types.setdefault(field.name, []).append(field.dataType)
    differs = F.lit(False)
    for column, kinds in types.items():
        sides = [
            F.col(name)[column] if column in frame.columns else F.lit(None).cast(kinds[0])
            for name, frame in (("before", old), ("after", new))
        ]
        if _are_alike(kinds):
            sides = [_comparable(side, kinds[0]) for side in sides]
            differs = differs | ~sides[0].eqNullSafe(sides[1])
        else:  # The column was dropped, and added again with another type.
            differs = differs | sides[0].isNotNull() | sides[1].isNotNull()
    return differs


def _are_alike(kinds: list[DataType]) -> bool:
    """Return whether values of two types can be compared.

    The types have to be equal, or one was widened.
    """
    first, last = plain_type(kinds[0].jsonValue()), plain_type(kinds[-1].jsonValue())
    return first == last or is_wider(first, last) or is_wider(last, first)


def _comparable(value: Column, kind: DataType) -> Column:
    """Return a value in a form that Spark compares exactly.

    Spark cannot compare maps and variants directly, and treats some different collated texts as equal.
    """
    if isinstance(kind, StringType):
        return F.collate(value, "UTF8_BINARY") if is_collated(kind) else value
    if is_variant(kind):
        # JSON alone would lose the types: a date and its text look the same there.
        return F.struct(F.to_json(value), F.schema_of_variant(value))
    if isinstance(kind, ArrayType):
        inner = kind.elementType
        return F.transform(value, lambda element: _comparable(element, inner)) if _needs_form(inner) else value
    if isinstance(kind, MapType):
        of_key, of_value = kind.keyType, kind.valueType
        entries = F.transform(
            F.map_entries(value),
            lambda entry: F.struct(_comparable(entry["key"], of_key).alias("k"), _comparable(entry["value"], of_value)),
        )
        # Maps have no order, so two that differ in it alone are equal.
        return F.array_sort(entries)
    if isinstance(kind, StructType) and _needs_form(kind):
        # By number, as names may differ in case alone, which sessions take for one name unless they are told not to.
        parts = value.cast(StructType([StructField(f"_{n}", f.dataType) for n, f in enumerate(kind.fields)]))
        fields = [_comparable(parts[f"_{n}"], f.dataType).alias(f"_{n}") for n, f in enumerate(kind.fields)]
        # Without this a null would become a struct of nulls, and equal one.
        return F.when(value.isNotNull(), F.struct(*fields))
    return value


def _needs_form(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _needs_form(kind.elementType)
    if isinstance(kind, StructType):
        return any(_needs_form(field.dataType) for field in kind.fields)
    return isinstance(kind, MapType) or is_variant(kind) or is_collated(kind)
