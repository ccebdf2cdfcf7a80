"""Merging against a dict: whatever the changes, in one go or in parts, the rows are what each change says in turn."""

import itertools
import math
import random
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.table import kept_columns
from pyspark_checkpointer.table.combine import _add_integers
from pyspark_checkpointer.table.merge import apply, fold_changes, matching, row_positions
from pyspark_checkpointer.table.row_order import check_unique, first_duplicate, in_order
from pyspark_checkpointer.table.schema import CHANGE, DELETE, KEPT, MERGE, PARTITION, RESET, TableSchema
from pyspark_checkpointer.table.types import arrow_type
from tests.table.tables import (
    NAN,
    ORDERED,
    Change,
    Model,
    Row,
    changes_of,
    keys_of,
    plain,
    rows_in,
    schema_of,
    snapshot_rows,
)

LONG = st.none() | st.integers(-2, 2)
DOUBLE = st.none() | st.sampled_from([0.0, 1.0, -1.0, math.inf, NAN])
TEXT = st.none() | st.sampled_from(["", "a", "b"])
CENTS = st.none() | st.integers(-300, 300).map(lambda n: Decimal(n).scaleb(-2))
WHOLE = st.none() | st.integers(-9, 9).map(float)
VALUES = {"long": LONG, "double": DOUBLE, "string": TEXT, "decimal(7,2)": CENTS}

MIXED = schema_of(
    {"a": "long", "b": "double", "text": "string", "n": "long", "low": "double", "high": "double", "d": "decimal(7,2)"},
    ["a", "b"],
    n="sum",
    low="min",
    high="max",
    d="sum",
)
COMBINED = schema_of(
    {"k": "string", "n": "long", "low": "string", "high": "double"}, ["k"], n="sum", low="min", high="max"
)
REPLACED = schema_of({"k": "double", "text": "string", "n": "long"}, ["k"])
KEYS_ALONE = schema_of({"a": "long", "b": "string"}, ["a", "b"])
WIDE = schema_of({"k": "long", **{f"v{number}": "long" for number in range(9)}}, ["k"], v4="sum")
SCHEMAS = {"mixed": MIXED, "combined": COMBINED, "replaced": REPLACED, "keys alone": KEYS_ALONE, "wide": WIDE}


def rows_of(schema: TableSchema) -> st.SearchStrategy[Row]:
    return st.tuples(*(VALUES[column.type] for column in schema.columns))


@st.composite
def change_of(draw: st.DrawFn, schema: TableSchema) -> Change:
    """A change that may leave some columns as they are: of those it has no value."""
    change, row = draw(st.sampled_from([MERGE, MERGE, MERGE, RESET, DELETE])), draw(rows_of(schema))
    last = [column.name for column in schema.values if column.role == "last"]
    kept = draw(st.frozensets(st.sampled_from(last))) if last and change == MERGE else frozenset()
    return change, tuple(None if name in kept else v for name, v in zip(schema.names, row, strict=True)), kept


def changes(schema: TableSchema) -> st.SearchStrategy[list[Change]]:
    return st.lists(change_of(schema), max_size=14)


@st.composite
def histories(draw: st.DrawFn) -> tuple[TableSchema, list[Row], list[Change], int]:
    """A schema, rows to begin with, changes on top, and where they are cut in two."""
    schema = SCHEMAS[draw(st.sampled_from(sorted(SCHEMAS)))]
    below = draw(st.lists(rows_of(schema), max_size=6))
    above = draw(changes(schema))
    return schema, list(Model(schema, below).found.values()), above, draw(st.integers(0, len(above)))


@given(histories())
def test_changes_do_what_they_say_one_after_the_other(
    history: tuple[TableSchema, list[Row], list[Change], int],
) -> None:
    schema, below, above, _ = history
    found = apply(snapshot_rows(schema, below), changes_of(schema, above), schema, "t")
    assert rows_in(found) == Model(schema, below).do(above).rows()
    assert found.column_names == schema.names


@given(histories())
def test_one_change_for_each_key_does_what_all_did(history: tuple[TableSchema, list[Row], list[Change], int]) -> None:
    schema, below, above, _ = history
    folded = fold_changes(changes_of(schema, above), schema, "t")
    assert folded.num_rows == len({Model(schema).key(row) for _, row, *_ in above})
    assert folded.schema.equals(schema.arrow_delta(kept=KEPT in folded.column_names))
    found = apply(snapshot_rows(schema, below), folded, schema, "t")
    assert rows_in(found) == Model(schema, below).do(above).rows()


@given(histories())
def test_changes_may_be_folded_in_parts(history: tuple[TableSchema, list[Row], list[Change], int]) -> None:
    schema, below, above, cut = history
    base = snapshot_rows(schema, below)
    old, new = changes_of(schema, above[:cut]), changes_of(schema, above[cut:])
    wanted = Model(schema, below).do(above).rows()
    newer, older = fold_changes(new, schema, "t"), fold_changes(old, schema, "t")
    for parts in ([old, newer], [older, new], [older, newer]):
        assert rows_in(apply(base, kept_columns.concat(parts), schema, "t")) == wanted
    assert rows_in(apply(apply(base, old, schema, "t"), new, schema, "t")) == wanted


@pytest.mark.parametrize("schema", SCHEMAS.values(), ids=list(SCHEMAS))
def test_nothing_on_top_of_nothing(schema: TableSchema) -> None:
    base, none = snapshot_rows(schema, []), changes_of(schema, [])
    assert apply(base, none, schema, "t").num_rows == 0
    assert fold_changes(none, schema, "t").num_rows == 0


def test_what_comes_after_a_deletion_starts_anew() -> None:
    schema = schema_of({"k": "long", "n": "long"}, ["k"], n="sum")
    deltas = changes_of(schema, [(MERGE, (1, 5)), (DELETE, (1, None)), (MERGE, (1, 2)), (MERGE, (1, 3))])
    folded = fold_changes(deltas, schema, "t")
    assert folded[CHANGE].to_pylist() == [RESET]
    assert rows_in(apply(snapshot_rows(schema, [(1, 100)]), folded, schema, "t")) == [(1, 5)]


def test_a_deletion_stays_while_something_may_be_below() -> None:
    schema = schema_of({"k": "long", "n": "long"}, ["k"], n="sum")
    folded = fold_changes(changes_of(schema, [(MERGE, (1, 5)), (DELETE, (1, None))]), schema, "t")
    assert folded[CHANGE].to_pylist() == [DELETE]
    assert apply(snapshot_rows(schema, [(1, 100)]), folded, schema, "t").num_rows == 0


@pytest.mark.parametrize("keys", [1, 2])
def test_what_a_change_keeps_is_what_is_below(keys: int) -> None:
    """Also where rows replace rows, and what is below a change is otherwise not looked at."""
    names = ["k", "l"][:keys]
    schema = schema_of({"k": "long", "l": "long", "a": "string", "b": "string"}, names)
    key = (1,) * keys + (None,) * (2 - keys)
    above: list[Change] = [(MERGE, (*key, None, "new"), frozenset(["a"] if keys == 2 else ["l", "a"]))]
    base = snapshot_rows(schema, [(*key, "old", "old")])
    assert rows_in(apply(base, changes_of(schema, above), schema, "t")) == [(*key, "old", "new")]
    for first in (DELETE, RESET):
        folded = fold_changes(changes_of(schema, [(first, (*key, None, None)), *above]), schema, "t")
        assert (folded[CHANGE].to_pylist(), folded[KEPT].null_count) == ([RESET], 1)
        kept_columns.check(folded, schema)
        assert rows_in(apply(base, folded, schema, "t")) == [(*key, None, "new")]


def test_two_changes_that_keep_each_other_s_columns_give_both() -> None:
    schema = schema_of({"k": "long", "a": "string", "b": "string", "c": "string"}, ["k"])
    above: list[Change] = [
        (MERGE, (1, "a", None, None), frozenset(["b", "c"])),
        (MERGE, (1, None, "b", None), frozenset(["a", "c"])),
    ]
    folded = fold_changes(changes_of(schema, above), schema, "t")
    assert folded.select(["a", "b", "c", KEPT]).to_pylist() == [{"a": "a", "b": "b", "c": None, KEPT: "4"}]
    assert apply(snapshot_rows(schema, []), folded, schema, "t").to_pylist() == [
        {"k": 1, "a": "a", "b": "b", "c": None}
    ]


# ---- the values of one column ----------------------------------------------------------------------------------------


def combined(kind: str, role: str, values: list[Any]) -> Any:
    """Values of one key, combined."""
    schema = schema_of({"k": "long", "v": kind}, ["k"], v=role)
    found = fold_changes(changes_of(schema, [(MERGE, (1, value)) for value in values]), schema, "t")
    return plain(found["v"].to_pylist()[0])


@pytest.mark.parametrize("role", ["min", "max"])
@pytest.mark.parametrize("kind", ORDERED)
def test_the_least_and_the_greatest_of_every_type(kind: str, role: str) -> None:
    ordered = ORDERED[kind]
    shuffled = random.Random(0)
    for some in itertools.chain(itertools.combinations(ordered, 2), [ordered]):
        values = [None, *some, None, *some]
        shuffled.shuffle(values)
        assert combined(kind, role, values) == plain(some[0] if role == "min" else some[-1])


@pytest.mark.parametrize("kind", ["long", "byte", "double", "decimal(5,2)"])
@pytest.mark.parametrize("role", ["sum", "min", "max"])
def test_nulls_are_left_out_and_nothing_but_nulls_is_null(kind: str, role: str) -> None:
    assert combined(kind, role, [None, None]) is None
    assert combined(kind, role, [None, arrow_value(kind, 3), None]) == arrow_value(kind, 3)


def arrow_value(kind: str, number: int) -> Any:
    """A number as a value of the type."""
    return pa.scalar(Decimal(number), pa.decimal128(9, 2)).cast(arrow_type(kind)).as_py()


TOP, BOTTOM = Decimal(10**38 - 1), Decimal(-(10**38) + 1)
FITS = [
    ("byte", [127, 1, -1]),
    ("byte", [-128, 0]),
    ("byte", [127, 127, -127]),
    ("short", [2**15 - 1, -(2**15), 1]),
    ("integer", [2**31 - 1, 2**31 - 1, -(2**31) + 1]),
    ("long", [2**63 - 1, 0]),
    ("long", [-(2**63), 0]),
    ("long", [2**63 - 1, 2**63 - 1, -(2**63), 1]),
    ("long", [-(2**63), -(2**63), 2**63 - 1, 1]),
    ("long", [2**53, 1]),
    ("long", [-1, -1]),
    ("long", [2**32 - 1] * 3 + [-(2**32)] * 3),
    ("decimal(38,0)", [TOP, Decimal(0)]),
    ("decimal(38,0)", [TOP, TOP, BOTTOM]),
    ("decimal(38,0)", [Decimal(-(10**38) + 2), Decimal(-1)]),
    ("decimal(5,2)", [Decimal("999.98"), Decimal("0.01")]),
]
DOES_NOT_FIT = [
    ("byte", [127, 1]),
    ("byte", [-128, -1]),
    ("short", [2**15 - 1, 1]),
    ("integer", [-(2**31), -1]),
    ("long", [2**63 - 1, 1]),
    ("long", [-(2**63), -1]),
    ("long", [-(2**63), -(2**63)]),
    ("long", [2**63 - 1] * 3),
    ("decimal(38,0)", [TOP, Decimal(1)]),
    ("decimal(38,0)", [BOTTOM, Decimal(-1)]),
    ("decimal(5,2)", [Decimal("999.99"), Decimal("0.01")]),
]


@pytest.mark.parametrize(("kind", "values"), FITS)
def test_sums_at_the_limits_are_exact(kind: str, values: list[Any]) -> None:
    with localcontext(prec=60):
        total = sum(values)
    for order in itertools.permutations(values):
        assert combined(kind, "sum", list(order)) == total


@pytest.mark.parametrize("partitions", [1, 8, 300, 200_000])
@pytest.mark.parametrize("kinds", [{"a": "long"}, {"a": "string"}, {"a": "long", "b": "integer"}], ids=str)
def test_rows_in_order_are_by_partition_and_then_by_key(kinds: dict[str, str], partitions: int) -> None:
    draw = random.Random(partitions)
    rows = []
    for _ in range(5000):
        key = [draw.randrange(10**9) if kind != "string" else f"{draw.random():.9f}" for kind in kinds.values()]
        rows.append((draw.randrange(partitions), *key))
    given = pa.table({PARTITION: pa.array([row[0] for row in rows], pa.int32())})
    for at, name in enumerate(kinds, start=1):
        given = given.append_column(name, pa.array([row[at] for row in rows]))
    found = in_order(given, list(kinds))
    assert list(zip(*(found[name].to_pylist() for name in found.column_names), strict=True)) == sorted(rows)


@pytest.mark.parametrize("values", [[-(2**62), 2**62, 2**62], [2**62, -(2**63), 2**62, 2**62]])
def test_a_sum_that_fits_with_what_is_below_is_exact(values: list[int]) -> None:
    schema = schema_of({"k": "long", "v": "long"}, ["k"], v="sum")
    base = snapshot_rows(schema, [(1, values[0])])
    deltas = changes_of(schema, [(MERGE, (1, value)) for value in values[1:]])
    assert rows_in(apply(base, deltas, schema, "t")) == [(1, sum(values))]


WAYS = {
    "the sum of column": ["drop_columns(['v'])", "rewind"],
    "the sum of the changes that one call makes to column": ["spread these rows over several calls"],
}
"""What is said where nothing is below the rows, and of changes alone, which may fit together with the row below."""


@pytest.mark.parametrize("what", WAYS)
@pytest.mark.parametrize(("kind", "values"), DOES_NOT_FIT)
def test_a_sum_that_does_not_fit_is_refused_by_name(kind: str, values: list[Any], what: str) -> None:
    schema = schema_of({"k": "long", "v": kind}, ["k"], v="sum")
    with pytest.raises(InvalidStateError, match=rf"table 't': {what} 'v' of the key k=1 does not fit into its type"):
        add(what, schema, [(1, value) for value in values])


def add(what: str, schema: TableSchema, rows: list[Row]) -> None:
    changes = changes_of(schema, [(MERGE, row) for row in rows])
    if what == "the sum of column":
        apply(snapshot_rows(schema, rows[:1]), changes.slice(1), schema, "t")
    else:
        fold_changes(changes, schema, "t")


@pytest.mark.parametrize("what", WAYS)
@pytest.mark.parametrize("kind", ["byte", "long", "decimal(5,2)", "decimal(38,0)", "decimal(38,38)"])
def test_a_sum_that_does_not_fit_names_its_key_and_the_ways_out(kind: str, what: str) -> None:
    schema = schema_of({"k": "long", "part": "string", "v": kind}, ["k", "part"], v="sum")
    digits = arrow_type(kind)
    largest = 2 ** (digits.bit_width - 1) - 1 if pa.types.is_integer(digits) else largest_decimal(digits)
    with localcontext(prec=50):
        rows = [(3, "a", None), (1, "a", largest), (2, "b", largest), (1, "a", -largest), (2, "b", largest)]
    with pytest.raises(InvalidStateError) as refused:
        add(what, schema, rows)
    said = str(refused.value)
    assert f"table 't': {what} 'v' of the key k=2, part='b' does not fit into its type, {kind}" in said
    assert [way for ways in WAYS.values() for way in ways if way in said] == WAYS[what]
    assert ("upsert it as a wider type, such as decimal(38" in said) == (not kind.startswith("decimal(38"))


def largest_decimal(kind: pa.DataType) -> Decimal:
    return Decimal((0, (9,) * kind.precision, -kind.scale))


@given(st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=8))
def test_sums_of_long_are_exact_or_refused(pairs: list[tuple[int, int | None]]) -> None:
    schema = schema_of({"k": "long", "v": "long"}, ["k"], v="sum")
    deltas = changes_of(schema, [(MERGE, pair) for pair in pairs])
    wanted = Model(schema).do([(MERGE, pair) for pair in pairs]).rows()
    if all(total is None or -(2**63) <= total < 2**63 for _, total in wanted):
        assert rows_in(fold_changes(deltas, schema, "t").select(["k", "v"])) == wanted
    else:
        with pytest.raises(InvalidStateError):
            fold_changes(deltas, schema, "t")


@pytest.mark.parametrize("value", [2**32 - 1, -(2**31) * 2**32 + 1])
def test_sums_of_many_integers_lose_no_bit(value: int) -> None:
    """A double would round the sum of the lower halves of so many, or the upper halves."""
    count = (1 << 22) - 1 if value > 0 else 1
    values = pa.array(np.full(count, value))
    assert _add_integers(values, np.zeros(count, np.int64), 2).to_pylist() == [count * value, None]


def test_sums_of_fractions_follow_their_type() -> None:
    assert combined("double", "sum", [1.5, None, 2.25]) == 3.75
    assert combined("double", "sum", [1.0, NAN]) == "NaN"
    assert combined("double", "sum", [math.inf, -math.inf]) == "NaN"
    assert combined("double", "sum", [1e308, 1e308]) == math.inf
    assert combined("float", "sum", [3e38, 3e38]) == math.inf


# ---- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ORDERED)
def test_equal_keys_of_every_type_are_one(kind: str) -> None:
    schema = schema_of({"k": kind, "n": "long"}, ["k"], n="sum")
    values = [*ORDERED[kind], None]
    below = snapshot_rows(schema, [(value, 1) for value in values])
    found = apply(below, changes_of(schema, [(MERGE, (value, 1)) for value in values * 2]), schema, "t")
    assert rows_in(found) == sorted(((plain(value), 3) for value in values), key=repr)
    for value in values:
        assert rows_in(matching(below, keys_of(schema, [(value,)]), ["k"])) == [(plain(value), 1)]


@given(st.data())
def test_rows_of_given_keys_are_found_exactly(data: st.DataObject) -> None:
    schema = schema_of({"a": "long", "b": "double", "c": "string", "v": "long"}, ["a", "b", "c"])
    some = st.lists(st.tuples(LONG, DOUBLE, TEXT), max_size=12)
    rows, keys = data.draw(some), data.draw(some)
    wanted = set(map(plain, keys))
    found = matching(snapshot_rows(schema, [(*key, 1) for key in rows]), keys_of(schema, keys), schema.key)
    assert rows_in(found) == sorted(((*plain(key), 1) for key in rows if plain(key) in wanted), key=repr)


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        ([(1, "x"), (2, "x"), (1, "y")], None),
        ([(1, "x"), (2, "x"), (1, "x")], "a=1, b='x'"),
        ([(None, "x"), (2, "x"), (None, "x")], "a=None, b='x'"),
        ([(1, "x" * 500)] * 2, "a=1, b='" + "x" * 79),
        ([], None),
    ],
)
def test_a_key_that_is_there_twice_is_named(keys: list[Row], shown: str | None) -> None:
    schema = schema_of({"a": "long", "b": "string"}, ["a", "b"])
    rows = in_order(snapshot_rows(schema, keys), schema.key)
    assert first_duplicate(rows, schema.key) == shown
    if shown is None:
        check_unique(rows, schema, "t")
    else:
        with pytest.raises(IllegalArgumentError) as raised:
            check_unique(rows, schema, "t")
        assert f"table 't': several rows have the key {shown}, and" in str(raised.value)


def test_nan_is_one_key() -> None:
    schema = schema_of({"k": "double"}, ["k"])
    rows = in_order(snapshot_rows(schema, [(NAN,), (1.0,), (NAN,), (None,)]), ["k"])
    assert first_duplicate(rows, ["k"]) == "k=nan"


def test_a_late_date_that_is_there_twice_is_refused_too() -> None:
    """Spark has dates beyond the year 9999; Python has none, so the message cannot show them as Python's."""
    schema = schema_of({"k": "date"}, ["k"])
    late = pa.array([5_000_000, 5_000_000], pa.int32()).cast(pa.date32())
    with pytest.raises(IllegalArgumentError, match="several rows have the key"):
        check_unique(pa.table([late], schema=schema.arrow()), schema, "t")


def test_positions_of_keys_are_right_in_whatever_order_arrow_numbers_them() -> None:
    # With these keys Arrow numbers the ninth before the eighth.
    numbers = [5, 6, 7, 10, 12, 18, 22, 23, 27, 32]
    keys = pa.table({"k": numbers, "part": list("babaaaabba")})
    wanted = pa.table({"part": ["b", "a", "b"], "k": pa.array([23, 23, 27], pa.int32())})
    assert row_positions(wanted, keys, ["k", "part"]).tolist() == [7, -1, 8]
    for draw in map(random.Random, range(50)):
        drawn = [(draw.randrange(60), draw.choice("ab")) for _ in range(draw.randrange(1, 200))]
        known = list(dict.fromkeys(drawn[: len(drawn) // 2]))
        tables = [
            pa.table(
                {"k": pa.array([k for k, _ in some], pa.int64()), "part": pa.array([p for _, p in some], pa.string())}
            )
            for some in (drawn, known)
        ]
        expected = [known.index(key) if key in known else -1 for key in drawn]
        assert row_positions(*tables, ["k", "part"]).tolist() == expected
