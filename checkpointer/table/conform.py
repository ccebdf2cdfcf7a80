"""Convert what a user's function returned into the types of a table.

No value is changed. A value that would be rounded, cut or guessed is refused: text is never read as a number, nor a
number as a time.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer import display
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.table import decimal_digits
from pyspark_checkpointer.table.frames import is_index
from pyspark_checkpointer.table.schema import missing


def conform(what: str, given: pa.Table, wanted: pa.Schema) -> pa.Table:
    """Return the columns of `wanted` in its types and order.

    Raises `IllegalArgumentError` for a missing column, a column that is there twice, and a value that the type of its
    column does not have. The message begins with `what`.
    """
    for name in wanted.names:
        count = given.column_names.count(name)
        if count > 1:
            raise IllegalArgumentError(
                f"{what}: column {name!r} is there twice; there are {display.names(given.column_names)}"
            )
        if not count:
            index = ": it is the index of the frame: call reset_index()" if is_index(given, name) else ""
            raise IllegalArgumentError(f"{what}: {missing(name, given.column_names)}{index}")
    return pa.table([_column(what, given[field.name], field) for field in wanted], schema=wanted)


def _column(what: str, values: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if not _keeps_values(values.type, field.type):
        raise IllegalArgumentError(
            f"{what}: column {field.name!r}: expected {field.type}, found {values.type}: cast it there, so that it is "
            "clear which values are meant"
        )
    # Arrow looks at the digits that the type of the integers has, unless they are decimals already.
    is_counted = pa.types.is_decimal(field.type) and pa.types.is_integer(values.type)
    wide = values.cast(pa.decimal256(76, field.type.scale)) if is_counted else values
    try:
        found = wide.cast(field.type)
        check_values(found)
    except TypeError as error:
        raise IllegalArgumentError(f"{what}: column {field.name!r}: {error}") from None
    except pa.ArrowException as error:
        said = f"{_first_too_large(values, field.type)} does not fit" if is_counted else error
        raise IllegalArgumentError(
            f"{what}: column {field.name!r}: expected {field.type}, found {values.type}: {said}"
        ) from None
    return found


def check_values(values: pa.ChunkedArray) -> None:
    """Refuse values that Arrow takes, and that readers would not find again.

    Raises `ArrowInvalid` for a decimal of too many digits, and `TypeError` for a map with two equal keys.
    """
    decimal_digits.check(values)
    for chunk in values.chunks:
        _check_map_keys(chunk)


def _first_too_large(values: pa.ChunkedArray, kind: pa.DataType) -> int:
    """Return the first integer that has too many digits for a type of decimals.

    It has more digits than the type has before the point.
    """
    end = 10 ** (kind.precision - kind.scale)
    return int(next(value for value in values.to_pylist() if value is not None and not -end < value < end))


def _keeps_values(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether Arrow's safe cast keeps each value, or fails.

    The cast is from the type `given` to the type `wanted`.
    """
    # A type that has nulls alone has no value to lose.
    if given == wanted or pa.types.is_null(given):
        return True
    # A dictionary, and offsets of other widths, are other ways to store the same values.
    if pa.types.is_dictionary(given):
        return _keeps_values(given.value_type, wanted)
    if _is_list(wanted):
        return _is_list(given) and _keeps_values(given.value_type, wanted.value_type)
    if pa.types.is_map(wanted):
        inner = ((given.key_type, wanted.key_type), (given.item_type, wanted.item_type)) if _is_map(given) else None
        return inner is not None and all(_keeps_values(one, other) for one, other in inner)
    if pa.types.is_struct(wanted):
        return bool(
            pa.types.is_struct(given)
            and [field.name for field in given] == [field.name for field in wanted]
            and all(_keeps_values(one.type, other.type) for one, other in zip(given, wanted, strict=True))
        )
    if pa.types.is_timestamp(wanted):
        return bool(pa.types.is_timestamp(given) and (given.tz is None) == (wanted.tz is None))
    # Arrow also fails where an integer has no equal float, but rounds a float to a narrower one.
    if pa.types.is_floating(wanted):
        return bool(pa.types.is_integer(given) or (pa.types.is_floating(given) and given.bit_width <= wanted.bit_width))
    return any(is_kind(wanted) and is_source(given) for is_kind, is_source in _FAMILIES)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_map(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...] = (
    (_is_text, _is_text),
    (_is_bytes, _is_bytes),
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_decimal, _is_exact),
    (pa.types.is_date, pa.types.is_date),
    (pa.types.is_duration, pa.types.is_duration),
)
"""Kinds of types, each with the kinds whose values a safe cast brings there unchanged."""


def table_of(what: str, rows: Sequence[Mapping[str, Any]], wanted: pa.Schema) -> pa.Table:
    """Return rows of Python values as an Arrow table.

    Values are never rounded. Raises `IllegalArgumentError` for a missing column or a value of another type.
    """
    columns = []
    for field in wanted:
        try:
            columns.append(exact_array([row[field.name] for row in rows], field.type))
        except KeyError:
            which = f" in one of {len(rows)} rows" if len(rows) > 1 else ""
            raise IllegalArgumentError(f"{what}: column {field.name!r} is missing{which}") from None
        except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
            raise IllegalArgumentError(f"{what}: column {field.name!r}: {error}") from None
    return pa.table(columns, schema=wanted)


def exact_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return the values as an Arrow array.

    Raises `TypeError` where Arrow would round or cut one to fit its type, and for a map with two equal keys.
    """
    found = pa.array(values, kind)
    backs = found.to_pylist()
    for given, back in zip(values, backs, strict=True):
        # Arrow rounds some values without an error.
        if given != back and not _is_same(given, back):
            raise TypeError(f"{given!r:.40} is no {kind}")
    _check_map_keys(found)
    return found


def _has_maps(kind: pa.DataType) -> bool:
    inside = [kind.field(number).type for number in range(kind.num_fields)]
    return _is_map(kind) or any(map(_has_maps, inside))


def _check_map_keys(values: pa.Array) -> None:
    """Raise `TypeError` for a map with two equal keys.

    Arrow takes such a map, and readers would find different values in it.
    """
    kind = values.type
    if not _has_maps(kind):
        return
    if pa.types.is_struct(kind):
        for inside in values.flatten():
            _check_map_keys(inside)
    elif not _is_map(kind):
        _check_map_keys(values.flatten())
    else:
        keys = pa.ListArray.from_arrays(values.offsets, values.keys)
        flat = keys.flatten()
        # As text where Arrow does not group by the type, such as a struct.
        named = pa.array(map(repr, flat.to_pylist()), pa.string()) if pa.types.is_nested(flat.type) else flat
        entries = pa.table([pc.list_parent_indices(keys), named], ["map", "key"])
        counts = entries.group_by(["map", "key"]).aggregate([([], "count_all")])
        twice = counts.filter(pc.greater(counts["count_all"], 1))
        if twice.num_rows:
            raise TypeError(f"a map has the key {twice['key'][0].as_py()!r:.40} twice")
        _check_map_keys(pa.ListArray.from_arrays(values.offsets, values.items).flatten())


def _is_same(given: Any, back: Any) -> bool:
    """Return whether a value came back from Arrow as it was given.

    It may have come back in other containers.
    """
    if isinstance(back, dict) and isinstance(given, Mapping):
        # A name that the type does not have would be lost.
        return given.keys() <= back.keys() and all(_is_same(given.get(name), value) for name, value in back.items())
    if isinstance(back, list) and isinstance(given, Mapping):  # Arrow gives a map as pairs.
        return len(given) == len(back) and all(_is_same(given.get(key), value) for key, value in back)
    if isinstance(back, list | tuple) and isinstance(given, Sequence) and not isinstance(given, str | bytes):
        return len(given) == len(back) and all(map(_is_same, given, back))
    # Where its offset depends on `fold`, a time differs from all times of other zones, also from the same moment.
    if isinstance(given, datetime) and isinstance(back, datetime) and given.tzinfo and back.tzinfo:
        return given.astimezone(UTC) == back.astimezone(UTC)
    # NaN differs from itself, and was not rounded.
    return bool(given == back or (given != given and back != back))


__all__ = ["check_values", "conform", "exact_array", "table_of"]
