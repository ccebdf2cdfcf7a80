"""Spark's types as Arrow's: every one that can be stored, and which of them contains another."""

from decimal import Context, Decimal
from typing import Any

import pyarrow as pa
import pytest

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.table.types import (
    arrow_type,
    can_be_key,
    can_order,
    can_sum,
    common_type,
    is_wider,
    plain_type,
    show_type,
    whole_variants,
)
from tests.table.tables import ORDERED, array, field, fields, mapping, plain, struct

LIMITS = {
    "byte": (-(2**7), 2**7 - 1),
    "short": (-(2**15), 2**15 - 1),
    "integer": (-(2**31), 2**31 - 1),
    "long": (-(2**63), 2**63 - 1),
    "float": (-1.5, 0.1),
    "double": (-1.5, 1e300),
}
DECIMALS = [f"decimal({p},{s})" for p in (1, 3, 5, 10, 12, 19, 21, 38) for s in (0, 2, 18) if s <= p]
NUMBERS = [*LIMITS, *DECIMALS]
NOT_STORED = [
    "void",
    "calendar_interval",
    "interval year to month",
    "decimal(10)",
    "decimal(010,2)",
    "decimal(5,6)",
    "decimal(10,-2)",
    "char(3)",
    "varchar(5)",
    {"type": "struct", "fields": fields({"a": "long"}) * 2},
    "time(6)",
    {"type": "udt", "class": "x.Y"},
    struct(),
    array("void"),
    mapping("string", "void"),
    struct(a=array("void")),
    array("variant"),
    struct(a="variant"),
]


def limits(kind: str) -> list[Any]:
    """The lowest and the highest value of a number's type."""
    if kind in LIMITS:
        return list(LIMITS[kind])
    precision, scale = map(int, kind[len("decimal(") : -1].split(","))
    most = Decimal(10**precision - 1).scaleb(-scale, Context(prec=60))
    return [most.copy_negate(), most]


@pytest.mark.parametrize("kind", ORDERED)
def test_values_of_every_atomic_type_come_back_from_arrow(kind: str) -> None:
    values = [*ORDERED[kind], None]
    assert plain(pa.array(values, arrow_type(kind)).to_pylist()) == plain(values)


UNITS = ["day", "hour", "minute", "second"]
INTERVALS = [f"interval {a}{'' if a == b else ' to ' + b}" for a in UNITS for b in UNITS]


@pytest.mark.parametrize("kind", INTERVALS)
def test_intervals_go_from_a_larger_unit_to_a_smaller_one(kind: str) -> None:
    units = kind.split(" ")[1::2]
    if units == sorted(units, key=UNITS.index):
        assert arrow_type(kind) == pa.duration("us")
    else:
        with pytest.raises(IllegalArgumentError, match="cannot be stored"):
            arrow_type(kind)


@pytest.mark.parametrize("kind", NOT_STORED, ids=show_type)
def test_what_cannot_be_stored_is_named(kind: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="cannot be stored: cast it"):
        arrow_type(kind)


def test_nested_types_are_shown_as_a_person_writes_them() -> None:
    kind = mapping("string", array(struct(a="decimal(5,2)", b="long")))
    assert show_type(kind) == "map<string,array<struct<a:decimal(5,2),b:long>>>"
    assert arrow_type(kind) == pa.map_(
        pa.string(),
        pa.list_(pa.field("element", pa.struct([("a", pa.decimal128(5, 2)), ("b", pa.int64())]))),
    )


def test_nullability_and_comments_are_no_part_of_a_type_but_collations_are() -> None:
    collated = {"__COLLATIONS": {"a": "spark.UTF8_LCASE"}}
    said = {
        "type": "struct",
        "fields": [
            field("a", "string", collated | {"comment": "as given"}),
            {"name": "b", "type": {"type": "array", "elementType": "long", "containsNull": False}, "nullable": False},
            {"name": "c", "type": mapping("long", "long") | {"valueContainsNull": False}, "metadata": {"comment": "x"}},
        ],
    }
    assert plain_type(said) == {
        "type": "struct",
        "fields": [
            field("a", "string", collated),
            field("b", array("long")),
            field("c", mapping("long", "long")),
        ],
    }


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("byte", "short"),
        ("byte", "long"),
        ("short", "integer"),
        ("integer", "long"),
        ("float", "double"),
        ("byte", "decimal(3,0)"),
        ("integer", "decimal(12,2)"),
        ("long", "decimal(19,0)"),
        ("decimal(5,2)", "decimal(6,2)"),
        ("decimal(5,2)", "decimal(6,3)"),
        ("decimal(5,2)", "decimal(38,18)"),
    ],
)
def test_wider_types(old: str, new: str) -> None:
    assert is_wider(old, new)
    assert not is_wider(new, old)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("long", "long"),
        ("long", "integer"),
        ("long", "double"),
        ("integer", "float"),
        ("double", "float"),
        ("byte", "decimal(2,0)"),
        ("integer", "decimal(11,2)"),
        ("long", "decimal(18,0)"),
        ("decimal(5,2)", "decimal(5,3)"),
        ("decimal(5,2)", "decimal(6,1)"),
        ("decimal(5,0)", "long"),
        ("date", "timestamp"),
        ("timestamp_ntz", "timestamp"),
        ("long", "string"),
        ("boolean", "byte"),
        ("float", "decimal(38,18)"),
        (array("integer"), array("long")),
        (struct(a="integer"), struct(a="long")),
        ("variant", "string"),
    ],
    ids=show_type,
)
def test_types_that_are_not_wider(old: Any, new: Any) -> None:
    assert not is_wider(old, new)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("string", "string", "string"),
        ("integer", "long", "long"),
        ("float", "double", "double"),
        ("long", "decimal(12,2)", "decimal(21,2)"),
        ("decimal(12,2)", "decimal(5,4)", "decimal(14,4)"),
        ("decimal(38,0)", "decimal(2,1)", None),
        ("long", "double", None),
        ("long", "string", None),
        ("string", array("string"), None),
    ],
    ids=show_type,
)
def test_a_common_type_has_the_values_of_both(one: Any, other: Any, common: Any) -> None:
    assert common_type(one, other) == common_type(other, one) == common
    assert common is None or all(kind == common or is_wider(kind, common) for kind in (one, other))


@pytest.mark.parametrize("old", NUMBERS)
def test_arrow_widens_the_limits_of_each_type_exactly(old: str) -> None:
    values = pa.array(limits(old), arrow_type(old))
    for new in NUMBERS:
        if is_wider(old, new):
            assert values.cast(arrow_type(new)).to_pylist() == values.to_pylist()


@pytest.mark.parametrize("old", DECIMALS)
def test_a_decimal_that_is_not_wider_loses_values(old: str) -> None:
    values = pa.array(limits(old), arrow_type(old))
    for new in DECIMALS:
        if new != old and not is_wider(old, new):
            with pytest.raises(pa.ArrowInvalid):
                values.cast(arrow_type(new))


@pytest.mark.parametrize("kind", ORDERED)
def test_atomic_types_are_keys_and_ordered(kind: str) -> None:
    assert can_be_key(kind)
    assert can_order(kind)


@pytest.mark.parametrize("kind", ["variant", array("long"), mapping("long", "long"), struct(a="long")], ids=show_type)
def test_other_types_are_neither_keys_nor_ordered_nor_summed(kind: Any) -> None:
    assert not can_be_key(kind)
    assert not can_order(kind)
    assert not can_sum(kind)


@pytest.mark.parametrize("kind", ORDERED)
def test_numbers_alone_are_summed(kind: str) -> None:
    assert can_sum(kind) == (kind in LIMITS or kind.startswith("decimal"))


def test_variants_alone_lose_the_nulls_of_their_parts() -> None:
    """A struct of the user may have the same type in Arrow."""
    values = pa.array([{"value": b"x", "metadata": None}, None], arrow_type("variant"))
    found = whole_variants(pa.table({"of_user": values, "v": values}), ["v", "not_read"])
    assert found["of_user"].to_pylist() == values.to_pylist()
    assert found["v"].to_pylist() == [{"value": b"x", "metadata": b""}, None]
    assert [part.nullable for part in found.schema.field("v").type] == [False, False]
