"""Schemas: what is refused and in which words, what is recorded, and which schema goes on from which."""

import json
import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest

from pyspark_checkpointer.errors import IllegalArgumentError, MalformedError
from pyspark_checkpointer.table import kept_columns, parquet_decode, parquet_encode
from pyspark_checkpointer.table.expiry import Expire
from pyspark_checkpointer.table.file_columns import find_columns
from pyspark_checkpointer.table.schema import CHANGE, FIELD_ID, KEPT, PARTITION, Column, TableSchema
from pyspark_checkpointer.table.schema_evolution import (
    extended_schema,
    first_schema,
    migrated_schema,
    needs_rescale,
    next_schema,
)
from tests.proof.test_security_screen import HOSTILE, acting
from tests.table.tables import ORDERED, array, field, fields, mapping, schema_of, struct

COLLATED = {"__COLLATIONS": {"s": "spark.UTF8_LCASE"}}


def roles(schema: TableSchema) -> dict[str, str]:
    return {column.name: column.role for column in schema.columns}


def ids(schema: TableSchema) -> dict[str, int]:
    return {column.name: column.id for column in schema.columns}


def evolve(old: TableSchema, kinds: dict[str, Any], key: list[str], **combine: str) -> TableSchema:
    return next_schema("t", old, fields(kinds), key, combine)


# ---- a new table -----------------------------------------------------------------------------------------------------


def test_keys_come_first_in_the_order_given_and_the_rest_is_last_unless_combined() -> None:
    schema = schema_of({"a": "long", "k2": "date", "b": "long", "k1": "string"}, ["k1", "k2"], b="sum")
    assert roles(schema) == {"k1": "key", "k2": "key", "a": "last", "b": "sum"}
    assert schema.key == ["k1", "k2"]
    assert schema.names == ["k1", "k2", "a", "b"]
    assert sorted(ids(schema).values()) == [1, 2, 3, 4]
    assert schema.next_id == 5
    assert str(schema) == "(k1 string key, k2 date key, a long, b long sum)"


@pytest.mark.parametrize(
    ("combine", "replaces", "combines"),
    [({}, True, False), ({"a": "sum"}, False, False), ({"a": "min", "b": "max"}, False, True)],
)
def test_what_a_new_row_does_to_the_old_one(combine: dict[str, str], replaces: bool, combines: bool) -> None:
    schema = schema_of({"k": "long", "a": "long", "b": "long"}, ["k"], **combine)
    assert (schema.replaces, schema.combines) == (replaces, combines)


def test_a_table_of_keys_alone_is_replaced_and_combined_alike() -> None:
    """Rows of one key are equal."""
    schema = schema_of({"k": "long"}, ["k"])
    assert schema.replaces
    assert schema.combines


def test_stored_columns_carry_their_ids() -> None:
    schema = schema_of({"v": "string", "k": "long"}, ["k"])
    assert [f.metadata[FIELD_ID] for f in schema.arrow()] == [b"1", b"2"]
    assert schema.arrow_delta().names == ["k", "v", PARTITION, CHANGE]


@pytest.mark.parametrize(
    ("found", "key", "combine", "message"),
    [
        (fields({"k": mapping("long", "long")}), ["k"], {}, r"'k': map<long,long> cannot be a key"),
        (fields({"k": array("long")}), ["k"], {}, r"'k': array<long> cannot be a key"),
        (fields({"k": struct(a="long")}), ["k"], {}, r"'k': struct<a:long> cannot be a key"),
        (fields({"k": "variant"}), ["k"], {}, r"'k': variant cannot be a key"),
        ([field("s", "string", COLLATED)], ["s"], {}, r"'s': a collated string cannot be a key"),
        ([field("k", "long"), field("s", "string", COLLATED)], ["k"], {"s": "min"}, r"'s': min of string"),
        (fields({"k": "long", "v": "long"}), ["k"], {"v": "avg"}, r"'v': combine='avg': expected one of last, sum"),
        (fields({"k": "long", "v": "long"}), ["k"], {"v": None}, r"'v': combine=None: expected one of"),
        (fields({"k": "long", "v": "string"}), ["k"], {"v": "sum"}, r"'v': sum of string is not defined"),
        (fields({"k": "long", "v": "date"}), ["k"], {"v": "sum"}, r"'v': sum of date is not defined"),
        (fields({"k": "long", "v": "boolean"}), ["k"], {"v": "sum"}, r"'v': sum of boolean is not defined"),
        (fields({"k": "long", "v": array("long")}), ["k"], {"v": "max"}, r"'v': max of array<long> is not defined"),
        (fields({"k": "long", "v": "variant"}), ["k"], {"v": "min"}, r"'v': min of variant is not defined"),
        (fields({"k": "long", "v": "void"}), ["k"], {}, r"'v': type void cannot be stored"),
        (fields({"k": "long", "K": "long"}), ["k"], {}, r"'K' is there twice: rename one"),
        ([field("k", "long"), field("k", "long")], ["k"], {}, r"'k' is there twice"),
        (fields({"k": "long", PARTITION: "long"}), ["k"], {}, r"'__partition': the name is taken"),
        (fields({"k": "long", CHANGE: "long"}), ["k"], {}, r"'__change': the name is taken"),
        (fields({"k": "long"}), ["id"], {}, r"'id' is missing; there are k$"),
        (fields({"k": "long"}), ["k"], {"n": "sum"}, r"'n' is missing; there are k$"),
        (fields({"k": "long"}), ["k"], {"k": "sum"}, r"k: a key column cannot be combined"),
    ],
)
def test_what_is_refused_names_the_table_and_the_column(
    found: list[Any], key: list[str], combine: dict[str, Any], message: str
) -> None:
    with pytest.raises(IllegalArgumentError, match=message) as raised:
        first_schema("t", found, key, combine)
    assert str(raised.value).startswith("table 't': ")


@pytest.mark.parametrize("combine", ["last", "min", "max"])
@pytest.mark.parametrize("kind", ORDERED)
def test_ordered_types_are_keys_and_have_a_least_and_a_greatest(kind: str, combine: str) -> None:
    assert roles(schema_of({"k": kind, "v": kind}, ["k"], v=combine)) == {"k": "key", "v": combine}


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_a_schema_comes_back_from_json() -> None:
    found = [
        *fields(
            {"k": "string", "n": "decimal(38,18)", "m": mapping("string", array(struct(x="date"))), "v": "variant"}
        ),
        field("s", "string", COLLATED | {"comment": "not kept"}),
    ]
    schema = first_schema("t", found, ["k"], {"n": "sum"})
    recorded = json.loads(json.dumps(schema.to_json()))
    assert TableSchema.from_json("t", recorded) == schema
    assert "metadata" not in recorded["columns"][0]
    assert recorded["columns"][-1]["metadata"] == COLLATED


KEY = {"id": 1, "name": "k", "type": "long", "role": "key"}
VALUE = {"id": 2, "name": "v", "type": "long", "role": "last"}
MALFORMED = {
    "nothing": None,
    "text": "columns",
    "a list": [],
    "no columns": {"next_id": 1},
    "no next id": {"columns": [KEY]},
    "columns is null": {"columns": None, "next_id": 3},
    "columns is a number": {"columns": 1, "next_id": 3},
    "a column is text": {"columns": ["k"], "next_id": 3},
    "no key": {"columns": [VALUE], "next_id": 3},
    "no column": {"columns": [], "next_id": 3},
    "id is text": {"columns": [KEY | {"id": "x"}], "next_id": 3},
    "id is there twice": {"columns": [KEY, VALUE | {"id": 1}], "next_id": 3},
    "id of the future": {"columns": [KEY, VALUE], "next_id": 2},
    "unknown role": {"columns": [KEY, VALUE | {"role": "avg"}], "next_id": 3},
    "role is null": {"columns": [KEY, VALUE | {"role": None}], "next_id": 3},
    "no type": {"columns": [{name: KEY[name] for name in ("id", "name", "role")}], "next_id": 3},
    "unknown type": {"columns": [KEY, VALUE | {"type": "text"}], "next_id": 3},
    "type is a list": {"columns": [KEY, VALUE | {"type": ["long"]}], "next_id": 3},
    "array of nothing": {"columns": [KEY, VALUE | {"type": {"type": "array"}}], "next_id": 3},
    "struct without a list": {"columns": [KEY, VALUE | {"type": {"type": "struct", "fields": None}}], "next_id": 3},
    "struct of nameless": {
        "columns": [KEY, VALUE | {"type": {"type": "struct", "fields": [{"type": "long"}]}}],
        "next_id": 3,
    },
    "too many digits": {"columns": [KEY, VALUE | {"type": "decimal(39,0)"}], "next_id": 3},
    "no digits": {"columns": [KEY, VALUE | {"type": "decimal(0,0)"}], "next_id": 3},
    "digits without end": {"columns": [KEY, VALUE | {"type": "decimal(99999999999999999999,0)"}], "next_id": 3},
    "next id without end": {"columns": [KEY], "next_id": math.inf},
    "one name twice": {"columns": [KEY, VALUE | {"name": "k"}], "next_id": 3},
    "reserved name": {"columns": [KEY, VALUE | {"name": CHANGE}], "next_id": 3},
    "key that cannot be one": {"columns": [KEY | {"type": mapping("long", "long")}], "next_id": 3},
    "sum of text": {"columns": [KEY, VALUE | {"type": "string", "role": "sum"}], "next_id": 3},
    "id 0": {"columns": [KEY | {"id": 0}, VALUE], "next_id": 3},
    "id is true": {"columns": [KEY | {"id": True}, VALUE], "next_id": 3},
    "an id that Parquet cannot store": {"columns": [KEY, VALUE | {"id": 2**31}], "next_id": 2**31},
    "a next id above all": {"columns": [KEY, VALUE], "next_id": 2**31 + 1},
    "a name that is a number": {"columns": [KEY, VALUE | {"name": 5}], "next_id": 3},
    "a name that is null": {"columns": [KEY, VALUE | {"name": None}], "next_id": 3},
    "names that differ in case": {"columns": [KEY, VALUE | {"name": "K"}], "next_id": 3},
    "a reserved name in capitals": {"columns": [KEY, VALUE | {"name": "__Kept"}], "next_id": 3},
    "metadata is null": {"columns": [KEY, VALUE | {"metadata": None}], "next_id": 3},
    "metadata is a list": {"columns": [KEY, VALUE | {"metadata": []}], "next_id": 3},
    "metadata is a text": {"columns": [KEY, VALUE | {"metadata": "x"}], "next_id": 3},
    "a collated key": {"columns": [KEY | {"type": "string", "metadata": {"__COLLATIONS": None}}], "next_id": 3},
    "the least of a collation": {"columns": [KEY, VALUE | {"role": "min", "metadata": COLLATED}], "next_id": 3},
    **{
        kind: {"columns": [KEY, VALUE | {"type": kind}], "next_id": 3}
        for kind in (
            *(
                "decimal(010,2)",
                "decimal(10,02)",
                "decimal(10, 2)",
                "decimal(5,6)",
                "decimal(10,-2)",
                "decimal(\u0661,0)",
            ),
            *("interval second to hour", "interval hour to day", "interval year to month", "interval"),
            *("char(3)", "varchar(5)", "Long"),
        )
    },
    "fields of one name": {
        "columns": [
            KEY,
            VALUE
            | {"type": {"type": "struct", "fields": [{"name": "a", "type": "long"}, {"name": "a", "type": "date"}]}},
        ],
        "next_id": 3,
    },
}


def test_the_last_ids_are_read_and_no_column_is_added_then() -> None:
    """Parquet has 32 bits for an id: a column without one would never be found again."""
    recorded = {"columns": [KEY, VALUE | {"id": 2**31 - 1}], "next_id": 2**31}
    schema = TableSchema.from_json("t", recorded)
    assert schema.to_json() == recorded
    assert evolve(schema, {"k": "long", "v": "long"}, ["k"]) == schema
    with pytest.raises(IllegalArgumentError, match="table 't': column 'w' cannot be added: all 2147483647 ids"):
        evolve(schema, {"k": "long", "v": "long", "w": "long"}, ["k"])
    with pytest.raises(IllegalArgumentError, match="table 't': column 'v' cannot be added: all 2147483647 ids"):
        migrated_schema("t", schema, fields({"k": "long", "v": "string"}), {})


def test_what_a_reader_may_ignore_is_ignored() -> None:
    plain = {"columns": [KEY, VALUE | {"type": struct(a="long")}], "next_id": 3}
    told = {
        "type": "struct",
        "fields": [{"name": "a", "type": "long", "nullable": False, "metadata": {"comment": "x"}}],
    }
    more = {"columns": [KEY, VALUE | {"type": told, "metadata": {"other": 1}}], "next_id": 3}
    found = [TableSchema.from_json("t", one) for one in (plain, more)]
    assert {column.id: column for column in found[0].columns} == {column.id: column for column in found[1].columns}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_record_names_the_operator(what: str) -> None:
    with pytest.raises(MalformedError, match="operator 'users'"):
        TableSchema.from_json("users", MALFORMED[what])


# ---- evolution -------------------------------------------------------------------------------------------------------


def test_the_same_columns_in_another_order_are_the_same_schema_but_for_the_order() -> None:
    old = schema_of({"k": "long", "a": "long", "b": "string"}, ["k"], a="sum")
    new = evolve(old, {"b": "string", "a": "long", "k": "long"}, ["k"], a="sum")
    assert ids(new) == ids(old)
    assert new.next_id == old.next_id
    assert not needs_rescale(old, new)


def test_a_new_column_gets_a_new_id() -> None:
    old = schema_of({"k": "long", "a": "long"}, ["k"])
    new = evolve(old, {"k": "long", "b": "long", "a": "long"}, ["k"])
    assert ids(new) == {"k": 1, "a": 2, "b": 3}
    assert new.next_id == 4
    assert not needs_rescale(old, new)


def test_a_column_that_was_dropped_and_added_again_is_another() -> None:
    first = schema_of({"k": "long", "a": "long"}, ["k"])
    second = evolve(first, {"k": "long"}, ["k"])
    third = evolve(second, {"k": "long", "a": "string"}, ["k"])
    assert second.next_id == first.next_id
    assert ids(third)["a"] == 3 != ids(first)["a"]
    fourth = evolve(evolve(third, {"k": "long"}, ["k"]), {"k": "long", "a": "long"}, ["k"], a="sum")
    assert ids(fourth)["a"] == 4


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("byte", "short"),
        ("integer", "long"),
        ("float", "double"),
        ("long", "decimal(19,0)"),
        ("decimal(5,2)", "decimal(7,3)"),
        ("short", "decimal(5,0)"),
    ],
)
def test_a_wider_type_goes_on(before: str, after: str) -> None:
    old = schema_of({"k": "long", "a": before, "b": before}, ["k"], b="sum")
    new = evolve(old, {"k": "long", "a": after, "b": after}, ["k"], b="sum")
    assert ids(new) == ids(old)
    assert not needs_rescale(old, new)
    with pytest.raises(IllegalArgumentError, match="which is no part of"):
        evolve(new, {"k": "long", "a": before, "b": before}, ["k"], b="sum")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("long", "double"),
        ("long", "string"),
        ("string", "binary"),
        ("date", "timestamp"),
        ("decimal(5,2)", "decimal(6,1)"),
        (array("integer"), array("long")),
        (struct(a="long"), struct(a="long", b="long")),
        (mapping("string", "integer"), mapping("string", "long")),
    ],
)
def test_another_type_is_refused(before: Any, after: Any) -> None:
    old = schema_of({"k": "long", "a": before}, ["k"])
    with pytest.raises(IllegalArgumentError, match=r"column 'a' is .*, which is no part of "):
        evolve(old, {"k": "long", "a": after}, ["k"])


CI, LCASE = ({"__COLLATIONS": {"v": collation}} for collation in ("icu.UNICODE_CI", "spark.UTF8_LCASE"))
INSIDE = {"__COLLATIONS": {"v.element": "icu.UNICODE_CI"}}
ALIKE = {
    "a new collation": (
        field("v", "string"),
        field("v", "string", CI),
        "has the collation UNICODE_CI, the table's has UTF8_BINARY; collate(v, 'UTF8_BINARY'), or give it another name",
    ),
    "a collation that is gone": (
        field("v", "string", CI),
        field("v", "string"),
        "has the collation UTF8_BINARY, the table's has UNICODE_CI; collate(v, 'UNICODE_CI'), or give it another name",
    ),
    "another collation": (
        field("v", "string", CI),
        field("v", "string", LCASE),
        "has the collation UTF8_LCASE, the table's has UNICODE_CI; collate(v, 'UNICODE_CI'), or give it another name",
    ),
    "a collation of parts": (
        field("v", array("string")),
        field("v", array("string"), INSIDE),
        "has texts of another collation than in the table; "
        "cast it to the type that read() of the table shows, or give it another name",
    ),
    "a collation of a field": (
        field("v", {"type": "struct", "fields": [field("s", "string")]}),
        field("v", {"type": "struct", "fields": [field("s", "string", COLLATED)]}),
        "has texts of another collation than in the table; "
        "cast it to the type that read() of the table shows, or give it another name",
    ),
    "an interval": (
        field("v", "interval day"),
        field("v", "interval day to second"),
        "is interval day, not interval day to second; cast it to interval day, or give it another name",
    ),
    "an interval within another type": (
        field("v", array("interval day")),
        field("v", array("interval hour")),
        "is array<interval day>, not array<interval hour>; cast it to array<interval day>, or give it another name",
    ),
}
"""A column of a table, one that Arrow stores alike, and what is said."""


@pytest.mark.parametrize("case", ALIKE)
def test_a_type_that_is_stored_alike_is_refused_by_its_difference(case: str) -> None:
    """A transform returns Arrow's types, so it cannot change one into the other."""
    before, after, said = ALIKE[case]
    old = first_schema("t", [field("k", "long"), before], ["k"], {})
    for evolved in (next_schema, extended_schema):
        with pytest.raises(IllegalArgumentError) as raised:
            evolved("t", old, [field("k", "long"), after], ["k"], {})
        why, step = said.split("; ")
        assert str(raised.value).startswith(f"table 't': column 'v' {why}; the state has ")
        assert f": {step}; restore(rename=" in str(raised.value)


def test_the_unit_of_a_key_is_cast() -> None:
    old = schema_of({"k": "interval day to second"}, ["k"])
    said = r"'k' is interval day to second, not interval day; .*: cast it to interval day to second; restore\(rename="
    with pytest.raises(IllegalArgumentError, match=said):
        evolve(old, {"k": "interval day"}, ["k"])


def test_nullability_does_not_matter() -> None:
    old = schema_of({"k": "long", "a": array("long")}, ["k"])
    strict = {"type": "array", "elementType": "long", "containsNull": False}
    found = [{"name": name, "type": kind, "nullable": False, "metadata": {}} for name, kind in [("k", "long")]]
    found += [{"name": "a", "type": strict, "nullable": False, "metadata": {"comment": "c"}}]
    assert next_schema("t", old, found, ["k"], {}) == old


@pytest.mark.parametrize("key", [["a"], ["k", "a"], ["a", "k"]])
def test_another_key_is_refused(key: list[str]) -> None:
    old = schema_of({"k": "long", "a": "long"}, ["k"])
    with pytest.raises(IllegalArgumentError, match=f"its key is k, not {', '.join(key)}"):
        evolve(old, {"k": "long", "a": "long"}, key)


def test_another_order_of_the_key_is_refused() -> None:
    old = schema_of({"k": "long", "a": "long"}, ["k", "a"])
    with pytest.raises(IllegalArgumentError, match="its key is k, a, not a, k"):
        evolve(old, {"k": "long", "a": "long"}, ["a", "k"])


@pytest.mark.parametrize(("before", "after"), [("sum", "last"), ("last", "sum"), ("min", "max")])
def test_another_way_to_combine_is_refused_with_both_schemas(before: str, after: str) -> None:
    old = schema_of({"k": "long", "a": "long"}, ["k"], a=before)
    new = schema_of({"k": "long", "a": "long"}, ["k"], a=after)
    with pytest.raises(IllegalArgumentError, match=f"'a' is combined as '{before}', not as '{after}'") as raised:
        evolve(old, {"k": "long", "a": "long"}, ["k"], a=after)
    message = str(raised.value)
    assert f"the state has {old}, the job has {new}: restore(transform=" in message
    assert message.index("restore(rename=") < message.index("drop() deletes")


@pytest.mark.parametrize(("before", "after"), [("integer", "long"), ("float", "double")])
def test_a_wider_key_is_hashed_otherwise(before: str, after: str) -> None:
    old = schema_of({"k": before, "a": "long"}, ["k"])
    new = evolve(old, {"k": after, "a": "long"}, ["k"])
    assert ids(new) == ids(old)
    assert needs_rescale(old, new)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("integer", "long", r"'k' is long, which is no part of integer; .*: cast it to long; restore\("),
        ("string", "long", r"'k' is long, which is no part of string; .*: restore\("),
        ("long", "integer", r"'n' is long, which is no part of integer; .*: cast it to long; restore\(transform="),
        ("long", "string", r"'n' is long, which is no part of string; .*: restore\(transform="),
    ],
)
def test_a_column_of_another_type_is_refused_with_a_step_that_helps(key: str, value: str, said: str) -> None:
    old = schema_of({"k": "long", "n": "long"}, ["k"])
    with pytest.raises(IllegalArgumentError, match=said) as raised:
        extended_schema("t", old, fields({"k": key, "n": value}), ["k"], {})
    # No transform may change the type of a key.
    assert ("transform=" in str(raised.value)) == (key == "long")


# ---- columns that an upsert does not have ----------------------------------------------------------------------------


def test_an_upsert_extends_the_schema_and_changes_nothing_else() -> None:
    old = schema_of({"k": "long", "n": "long", "title": "string"}, ["k"], n="sum")
    same = extended_schema("t", old, fields({"title": "string", "k": "long"}), ["k"], {})
    assert same == old
    more = extended_schema("t", old, fields({"x": "date", "n": "long", "k": "long"}), ["k"], {"n": "sum"})
    assert [(c.id, c.name) for c in more.columns] == [(1, "k"), (2, "n"), (3, "title"), (4, "x")]
    assert extended_schema("t", old, fields({"k": "long"}), ["k"], {"n": "sum", "title": "last"}) == old


@pytest.mark.parametrize(
    ("kinds", "combine", "said"),
    [
        (
            {"k": "long", "title": "string"},
            {"n": "max"},
            "is combined as 'sum', not as 'max'.*restore.*another name",
        ),
        ({"title": "string"}, {}, "column 'k' is missing"),
        ({"k": "long"}, {"nothing": "sum"}, "column 'nothing' is missing"),
        ({"k": "long", "Title": "string"}, {}, "differs from one of .* in its case alone"),
        ({"k": "long", "__KEPT": "string"}, {}, "the name is taken"),
    ],
)
def test_an_upsert_that_does_not_go_on_from_the_schema_is_refused(
    kinds: dict[str, Any], combine: dict[str, str], said: str
) -> None:
    old = schema_of({"k": "long", "n": "long", "title": "string"}, ["k"], n="sum")
    with pytest.raises(IllegalArgumentError, match=said):
        extended_schema("t", old, fields(kinds), ["k"], combine)


def test_the_id_of_a_dropped_column_is_never_given_again() -> None:
    old = schema_of({"k": "long", "n": "long", "title": "string"}, ["k"])
    less = old.without("t", ["title"])
    assert (less.names, less.next_id) == (["k", "n"], 4)
    again = extended_schema("t", less, fields({"k": "long", "title": "string"}), ["k"], {})
    assert [c.id for c in again.columns] == [1, 2, 4]
    assert less.without("t", ["title", "x"]) == less  # a callback drops them in every batch
    for columns, said in ((["k"], "part of the key"), (["x", "k"], "part of the key"), ("n", "a list")):
        with pytest.raises(IllegalArgumentError, match=said):
            old.without("t", columns)


@pytest.mark.parametrize("text", ["", "1,", "2,1", "1,1", "0", "-1", "+1", "01", " 1", "1_0", "\u0663", "1" * 5000])
def test_what_a_change_keeps_is_written_in_one_way(text: str) -> None:
    assert kept_columns.ids_of(kept_columns.text_of([12, 3])) == {3, 12}
    assert kept_columns.text_of([]) is None
    with pytest.raises(ValueError, match=r"."):
        kept_columns.ids_of(text)


@pytest.mark.parametrize(
    ("values", "kind", "change"), [(["x"], "string", 0), ([1], "int64", 0), (["2"], "string", 1), (["2"], "string", 2)]
)
def test_a_pack_that_keeps_otherwise_is_malformed(values: list[Any], kind: str, change: int) -> None:
    schema = schema_of({"k": "long", "n": "long"}, ["k"])
    rows = pa.table({"k": [1], "n": pa.nulls(1, pa.int64())}, schema=schema.arrow())
    own = {PARTITION: pa.array([0], pa.int32()), CHANGE: pa.array([change], pa.int8()), KEPT: pa.array(values, kind)}
    for name, column in own.items():
        rows = rows.append_column(name, column)
    with pytest.raises(MalformedError, match="the/pack"):
        parquet_decode.decode_pack("the/pack", parquet_encode.encode(rows).data, schema, schema.names, [0])


# ---- types that are nested deep --------------------------------------------------------------------------------------

DEEPEST = {"a": 49, "s": 62, "m": 31, "as": 62, "am": 41, "sm": 41, "asm": 47, "ssa": 62}
"""How many types can stand one inside the other: arrays, structs and maps, in turns."""


def nested(turns: str, depth: int) -> Any:
    kind: Any = "long"
    for turn in reversed((turns * depth)[:depth]):
        kind = {"a": array(kind), "s": struct(a=kind), "m": mapping("string", kind)}[turn]
    return kind


@pytest.mark.parametrize(("turns", "depth"), DEEPEST.items())
def test_the_deepest_types_come_back_from_parquet_and_from_a_stream(turns: str, depth: int) -> None:
    schema = schema_of({"k": "long", "v": nested(turns, depth)}, ["k"])
    rows = pa.table([pa.array([1]), pa.nulls(1, schema.arrow().field("v").type)], schema=schema.arrow())
    assert parquet_decode.decode("x", parquet_encode.encode(rows).data, schema, schema.names).equals(rows)
    sent = pa.BufferOutputStream()
    batch = pa.table([rows.to_struct_array()], ["rows"])  # Spark hands tasks the columns of a row as one struct
    with pa.ipc.new_stream(sent, batch.schema) as stream:
        stream.write_table(batch)
    assert pa.ipc.open_stream(sent.getvalue()).read_all().equals(batch)


@pytest.mark.parametrize(("turns", "depth"), DEEPEST.items())
def test_a_type_that_is_nested_deeper_is_refused_in_every_schema(turns: str, depth: int) -> None:
    known = schema_of({"k": "long"}, ["k"])
    too_deep = {"k": "long", "v": nested(turns, depth + 1)}
    calls: list[Callable[[], TableSchema]] = [
        lambda: schema_of(too_deep, ["k"]),
        lambda: next_schema("t", known, fields(too_deep), ["k"], {}),
        lambda: extended_schema("t", known, fields(too_deep), ["k"], {}),
        lambda: migrated_schema("t", known, fields(too_deep), {}),
        lambda: schema_of({"k": "long", "v": mapping(nested("s", 80), "long")}, ["k"]),
        lambda: schema_of({"k": "long", "v": nested("s", 5000)}, ["k"]),
    ]
    for call in calls:
        with pytest.raises(IllegalArgumentError, match=r"table 't': column 'v' is nested too deep: .*: flatten it, or"):
            call()


def test_a_table_that_has_a_type_that_is_nested_too_deep_can_drop_the_column() -> None:
    known = TableSchema((*schema_of({"k": "long"}, ["k"]).columns, Column(2, "v", nested("a", 60), "last")), 3)
    again = TableSchema.from_json("t", known.to_json())
    assert again.without("t", ["v"]).names == ["k"]
    assert extended_schema("t", again, fields({"k": "long"}), ["k"], {}).names == ["k", "v"]


def test_a_key_behind_another_column_is_refused() -> None:
    """Its place says in which order keys are hashed, and another reader could take it for a value."""
    stored = schema_of({"k": "long", "v": "long"}, ["k"]).to_json()
    stored["columns"].reverse()
    with pytest.raises(MalformedError, match="contradicts itself"):
        TableSchema.from_json("t", stored)


# ---- names of others -------------------------------------------------------------------------------------------------


def test_no_error_about_columns_lets_a_terminal_act() -> None:
    """A traceback and the log of a driver show an error as it is, and whoever writes state names the columns."""
    kinds = {"k": "long", HOSTILE: "timestamp", "s": struct(**{HOSTILE: "long"})}
    schema = schema_of(kinds, ["k"]).expiring("t", Expire(HOSTILE, timedelta(days=1)))
    by_name = schema_of({HOSTILE: "long", "v": "long"}, [HOSTILE])
    for refused in (
        lambda: schema.choose("t", ["zz"]),
        lambda: schema.choose("t", [HOSTILE, HOSTILE]),
        lambda: schema.without("t", [HOSTILE]),
        lambda: schema.expiring("t", Expire("gone", timedelta(days=1))),
        lambda: schema.expiring("t", Expire("s", timedelta(days=1))),
        lambda: by_name.without("t", [HOSTILE]),
        lambda: evolve(schema, {**kinds, "s": "long"}, ["k"]),
        lambda: evolve(schema, kinds, [HOSTILE]),
        lambda: evolve(schema, kinds, ["zz"]),
        lambda: evolve(schema, {"k": HOSTILE}, ["k"]),
        lambda: schema_of(kinds, ["k", HOSTILE], **{HOSTILE: "min"}),
    ):
        with pytest.raises(IllegalArgumentError) as raised:
            refused()
        assert acting(str(raised.value)) == set()
    assert acting(str(schema)) == set()


def test_no_error_about_a_file_lets_a_terminal_act() -> None:
    with pytest.raises(ValueError, match="no column") as raised:
        find_columns(pa.schema([]), schema_of({HOSTILE: "long"}, [HOSTILE]), ())
    assert acting(str(raised.value)) == set()
