"""A function is called with all rows and the state of its keys; what it returns is checked before it counts."""

import math
from array import array as make_array
from collections import UserList, deque
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.table.apply import Applied, UserFunction
from pyspark_checkpointer.table.change import Change
from pyspark_checkpointer.table.conform import conform, exact_array
from pyspark_checkpointer.table.first_seen import FirstSeen
from pyspark_checkpointer.table.frames import to_arrow
from pyspark_checkpointer.table.schema import CHANGE, DELETE, KEPT, MERGE, PARTITION, TableSchema
from pyspark_checkpointer.table.user_calls import FrameCall, GroupCall, Keys, UserFunctionError
from tests.table.tables import array, long_decimals, mapping, plain, schema_of, struct

SCHEMA = schema_of({"k": "long", "part": "string", "n": "long", "note": "string"}, ["k", "part"])
OUTPUT = pa.schema([("k", pa.int64()), ("sum", pa.int64())])
TABLE = "t{0}"
"""Braces: a name may have them, and messages are made of it."""
PLACES = {1: 5, 2: 5, 3: 9}
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
TOKYO = pa.timestamp("us", "Asia/Tokyo")


def given(*rows: tuple[int, str, int]) -> pa.Table:
    """Rows with a key of two columns, a value, and the partition of each key."""
    columns = list(zip(*rows, strict=True))
    table = pa.table({"k": pa.array(columns[0], pa.int64()), "part": columns[1], "value": columns[2]})
    return table.append_column(PARTITION, pa.array([PLACES[k] for k in columns[0]], pa.int32()))


def state(*rows: tuple[int, str, int | None, str | None]) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return pa.table(dict(zip(SCHEMA.names, columns, strict=True)), schema=SCHEMA.arrow())


def applied(
    function: Callable[..., Any],
    rows: pa.Table,
    below: pa.Table | None = None,
    *,
    groups: bool = False,
    frames: Any = None,
    output: pa.Schema | None = OUTPUT,
    schema: TableSchema = SCHEMA,
) -> Applied:
    what = f"table '{TABLE}': apply(): {function.__name__}"
    kind: Any = GroupCall if groups else FrameCall
    call = kind(what, function, frames or ("rows" if groups else "arrow"), schema.arrow(), output or pa.schema([]))
    keys = Keys.of(rows, schema.key)
    below = schema.arrow().empty_table() if below is None else below
    return UserFunction(what, schema, call, output).apply(keys, rows.drop_columns([PARTITION]), below)


def changes(found: Applied) -> list[tuple[Any, ...]]:
    """Each change: partition, kind, key, and the values that it gives; what it keeps, if anything."""
    rows = found.changes.to_pylist()
    kinds = {MERGE: "upsert", DELETE: "delete"}
    return [
        (row[PARTITION], kinds[row[CHANGE]], row["k"], row["part"], row["n"], row["note"], row.get(KEPT))
        for row in rows
    ]


ROWS = given((1, "a", 10), (1, "b", 5), (1, "b", 6), (3, "a", 7))


def test_the_function_sees_all_rows_of_its_keys_and_their_state_in_the_order_of_the_rows() -> None:
    seen = []

    def look(rows: pa.Table, below: pa.Table) -> Change:
        seen.append((rows.column_names, rows["value"].to_pylist(), below.to_pylist()))
        return Change()

    found = applied(look, ROWS, state((3, "a", 1, "x"), (1, "b", 2, None)))
    below = [{"k": 1, "part": "b", "n": 2, "note": None}, {"k": 3, "part": "a", "n": 1, "note": "x"}]
    assert seen == [(["k", "part", "value"], [10, 5, 6, 7], below)]
    assert (changes(found), found.output) == ([], OUTPUT.empty_table())


def test_upserts_and_deletions_come_with_their_partitions_and_columns_that_are_not_given_keep_their_values() -> None:
    def decide(rows: pa.Table, below: pa.Table) -> Change:
        some = pa.table({"n": [15, 1], "part": ["b", "a"], "k": [1, 3]})
        return Change(some, pa.table({"k": [1], "part": ["a"], "ignored": [0]}), pa.table({"sum": [9], "k": [1]}))

    found = applied(decide, ROWS)
    note = next(c.id for c in SCHEMA.columns if c.name == "note")
    assert changes(found) == [
        (5, "upsert", 1, "b", 15, None, str(note)),
        (9, "upsert", 3, "a", 1, None, str(note)),
        (5, "delete", 1, "a", None, None, None),
    ]
    assert found.output is not None
    assert found.output.to_pylist() == [{"k": 1, "sum": 9}]


def total_in_pandas(rows: pd.DataFrame, below: pd.DataFrame) -> Change:
    sums = rows.groupby(["k", "part"], as_index=False)["value"].sum().rename(columns={"value": "n"})
    return Change(sums, output=sums[["k"]].assign(sum=sums["n"]))


def total_in_polars(rows: pl.DataFrame, below: pl.DataFrame) -> Change:
    sums = rows.group_by("k", "part", maintain_order=True).agg(n=pl.col("value").sum())
    return Change(sums, output=sums.select("k", sum="n"))


@pytest.mark.parametrize(("frames", "function"), [("pandas", total_in_pandas), ("polars", total_in_polars)])
def test_pandas_and_polars_see_and_return_the_same(frames: str, function: Callable[..., Any]) -> None:
    found = applied(function, ROWS, frames=frames)
    assert [row[2:5] for row in changes(found)] == [(1, "a", 10), (1, "b", 11), (3, "a", 7)]
    assert found.output is not None
    assert found.output["sum"].to_pylist() == [10, 11, 7]


@pytest.mark.parametrize("frames", ["arrow", "pandas", "polars"])
def test_a_large_integer_beside_a_null_stays_exact(frames: str) -> None:
    below = state((1, "a", 2**62 + 1, None), (1, "b", None, None))
    found = applied(lambda rows, below: below, given((1, "a", 0), (1, "b", 0)), below, frames=frames)
    assert [row[4] for row in changes(found)] == [2**62 + 1, None]


def test_a_function_of_one_key_is_called_with_its_rows_and_its_row() -> None:
    seen = []

    def one(key: tuple[Any, ...], rows: list[dict[str, Any]], row: dict[str, Any] | None) -> Any:
        seen.append((key, [r["value"] for r in rows], row and row["n"]))
        match key:
            case (1, "a"):
                return {"n": 1, "note": "x"}
            case (1, "b"):
                return Change(upserts={"k": 1, "n": 2}, output=[{"sum": 4, "k": 1}, {"k": 2, "sum": None}])
            case _:
                return Change(deletes=True)

    found = applied(one, ROWS, state((1, "b", 3, None)), groups=True)
    assert seen == [((1, "a"), [10], None), ((1, "b"), [5, 6], 3), ((3, "a"), [7], None)]
    assert [row[:6] for row in changes(found)] == [
        (5, "upsert", 1, "a", 1, "x"),
        (5, "upsert", 1, "b", 2, None),
        (9, "delete", 3, "a", None, None),
    ]
    assert [row[6] for row in changes(found)] == [None, "4", None]
    assert found.output is not None
    assert found.output.to_pylist() == [{"k": 1, "sum": 4}, {"k": 2, "sum": None}]


@pytest.mark.parametrize("frames", ["arrow", "pandas", "polars"])
def test_a_function_of_one_key_may_take_and_emit_frames(frames: str) -> None:
    def one(key: tuple[Any, ...], rows: Any, row: Any) -> Change:
        total = int(sum(rows["value"].to_pylist() if frames == "arrow" else rows["value"].to_list()))
        return Change({"n": total}, output=pa.table({"k": [key[0]], "sum": [total]}))

    found = applied(one, ROWS, groups=True, frames=frames)
    assert [row[4] for row in changes(found)] == [10, 11, 7]
    assert found.output is not None
    assert found.output["sum"].to_pylist() == [10, 11, 7]


def test_a_function_of_one_key_may_insert_the_key_alone() -> None:
    found = applied(lambda key, rows, row: {}, ROWS, groups=True)
    assert [row[1:6] for row in changes(found)] == [
        ("upsert", 1, "a", None, None),
        ("upsert", 1, "b", None, None),
        ("upsert", 3, "a", None, None),
    ]


def test_a_function_of_one_key_that_returns_none_changes_nothing() -> None:
    assert changes(applied(lambda key, rows, row: None, ROWS, groups=True)) == []


def of(**columns: Any) -> pa.Table:
    return pa.table({"k": [1], "part": ["a"]} | columns)


BAD = {
    "another key": (lambda r, s: pa.table({"k": [2], "part": ["a"], "n": [1]}), "k=2, part='a' is none of these keys"),
    "a key twice": (
        lambda r, s: pa.table({"k": [1, 1], "part": ["a", "a"], "n": [1, 2]}),
        "k=1, part='a' more than once",
    ),
    "upserted and deleted": (lambda r, s: Change(of(n=[1]), of()), "k=1, part='a' more than once"),
    "an unknown column": (lambda r, s: of(m=[1]), "the table has no column m; there are k, part, n, note"),
    "no key": (lambda r, s: pa.table({"n": [1]}), "column 'k' is missing; there are n"),
    "a column twice": (lambda r, s: pa.table([[1], ["a"], [1], [2]], ["k", "part", "n", "n"]), "'n' is there twice"),
    "text for a number": (lambda r, s: of(n=["1"]), "column 'n': expected int64, found string"),
    "a float for a number": (lambda r, s: of(n=[1.0]), "column 'n': expected int64, found double"),
    "none": (lambda r, s: None, "returned None for k=1, part='a' and 2 more keys"),
    "a number": (lambda r, s: 5, "returned int as upserts"),
    "a list as deletions": (lambda r, s: Change(deletes=[1]), "returned list as deletes"),
    "an unknown output column": (lambda r, s: Change(output=of()), "column part is not in output=, which has k, sum"),
    "half of the output": (lambda r, s: Change(output=pa.table({"k": [1]})), "column 'sum' is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_done_is_refused_by_name(name: str) -> None:
    function, said = BAD[name]
    with pytest.raises(IllegalArgumentError) as caught:
        applied(function, ROWS)
    assert said in str(caught.value)
    assert str(caught.value).startswith("table 't{0}': apply(): <lambda>")


BAD_OF_ONE = {
    "another key": (lambda k, r, s: {"k": 2, "n": 1}, "returned a row of k=2, part='a'"),
    "an unknown column": (lambda k, r, s: {"m": 1}, "the table has no column m"),
    "text for a number": (lambda k, r, s: {"n": "1"}, "column 'n'"),
    "a fraction for a number": (lambda k, r, s: {"n": 1.5}, "column 'n'"),
    "bytes for text": (lambda k, r, s: {"note": b"x"}, "column 'note'"),
    "a list": (lambda k, r, s: [{"n": 1}], "returned list: expected a dict"),
    "a key to delete": (lambda k, r, s: Change(deletes=k), "deletes=(1, 'a'): expected True or None"),
    "a frame as deletions": (lambda k, r, s: Change(deletes=pd.DataFrame({"k": [1]})), "expected True or None"),
    "names that are no text": (lambda k, r, s: {1: 2}, "names that are no text"),
    "output with names that are no text": (
        lambda k, r, s: Change(output=[{"k": 1, "sum": 1} | ({1: 2} if k[0] == 3 else {})]),
        "<lambda> for k=3, part='a': output has names that are no text",
    ),
    "an empty text as output": (lambda k, r, s: Change(output=""), "output is str: expected a list of dicts"),
    "a dict as output": (lambda k, r, s: Change(output={"k": 1}), "output is dict: expected a list of dicts"),
    "upserted and deleted": (lambda k, r, s: Change({"n": 1}, deletes=True), "k=1, part='a' more than once"),
    "text in one dict": (
        lambda k, r, s: {"n": "1" if k == (1, "b") else 1},
        "<lambda> for k=1, part='b': column 'n'",
    ),
    "a column missing in one output": (
        lambda k, r, s: Change(output=[{"k": 1} if k == (3, "a") else {"k": 1, "sum": 1}]),
        "<lambda> for k=3, part='a': output: column 'sum' is missing",
    ),
    "output that Arrow cannot hold": (
        lambda k, r, s: Change(output=pd.DataFrame({"k": [object()]})),
        "<lambda> for k=1, part='a': output that Arrow cannot hold",
    ),
    "an unknown output column": (
        lambda k, r, s: Change(output=[{"k": 1, "sum": 1, "x": 2}]),
        "column x is not in output",
    ),
}


@pytest.mark.parametrize("name", BAD_OF_ONE)
def test_what_cannot_be_done_of_one_key_is_refused_by_name(name: str) -> None:
    function, said = BAD_OF_ONE[name]
    with pytest.raises(IllegalArgumentError) as caught:
        applied(function, ROWS, groups=True)
    assert said in str(caught.value)


@pytest.mark.parametrize("groups", [False, True])
def test_output_without_a_schema_is_refused(groups: bool) -> None:
    emitted: Any = [{"k": 1}] if groups else of()
    with pytest.raises(IllegalArgumentError, match=r"rows are emitted, but output= does not say"):
        applied(lambda *_: Change(output=emitted), ROWS, groups=groups, output=None)


@pytest.mark.parametrize("groups", [False, True])
@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("planted"), pa.ArrowInvalid("planted"), IllegalArgumentError("planted"), SystemExit("planted")],
)
@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_an_exception_of_the_function_names_the_key(culprit: int, error: BaseException, groups: bool) -> None:
    value, key = ((10, "k=1, part='a'"), (6, "k=1, part='b'"), (7, "k=3, part='a'"))[culprit]

    def fail(*arguments: Any) -> Any:
        rows = arguments[1] if groups else arguments[0].to_pylist()
        if any(row["value"] == value for row in rows):
            raise error
        if len(rows) < 2 and not groups:
            raise TypeError("another error, which fewer rows cause")
        return None if groups else Change()

    with pytest.raises(UserFunctionError) as caught:
        applied(fail, ROWS, groups=groups)
    kind = type(error).__name__
    assert str(caught.value) == f"table 't{{0}}': apply(): fail raised {kind} when it was called for {key}: planted"
    assert type(caught.value.__cause__) is type(error)


def test_an_exception_that_says_how_many_rows_there_are_names_the_key() -> None:
    def fail(rows: pa.Table, below: pa.Table) -> Change:
        if 6 in rows["value"].to_pylist():
            raise ValueError(f"no model of {rows.num_rows} rows")
        return Change()

    with pytest.raises(UserFunctionError, match=r"called for k=1, part='b': no model of 4 rows"):
        applied(fail, ROWS)


def test_an_exception_that_no_half_of_the_keys_raises_names_them_all() -> None:
    def fail(rows: pa.Table, below: pa.Table) -> Change:
        if rows.num_rows == 4:
            raise ZeroDivisionError("planted")
        return Change()

    with pytest.raises(UserFunctionError, match="called for k=1, part='a' and 2 more keys: planted"):
        applied(fail, ROWS)


def test_nan_of_pandas_is_no_null() -> None:
    schema = schema_of({"k": "double", "x": "double"}, ["k"])
    rows = pa.table({"k": [None, math.nan]}).append_column(PARTITION, pa.array([1, 2], pa.int32()))
    found = applied(lambda r, s: pd.DataFrame({"k": [math.nan], "x": [math.nan]}), rows, schema=schema).changes
    assert found[PARTITION].to_pylist() == [2]
    assert math.isnan(found["x"][0].as_py())


FLOATS = pa.list_(pa.float64())
INTEGERS = pa.list_(pa.int64())
VECTORS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {
    "arrays": (FLOATS, [np.array([1.0, math.nan]), None, math.nan], [[1.0, "NaN"], None, None]),
    "lists": (
        FLOATS,
        [[1.0, math.nan, None], pd.NA, [1, math.nan]],
        [[1.0, "NaN", None], None, [1.0, "NaN"]],
    ),
    "integers as floats": (FLOATS, [[1, math.nan]], [[1.0, "NaN"]]),
    "nulls of pandas inside": (
        FLOATS,
        [[1.0, math.nan, pd.NA], [np.float64("nan"), pd.NaT]],
        [[1.0, "NaN", None], ["NaN", None]],
    ),
    "dicts": (
        pa.struct([("x", pa.float64()), ("t", pa.string())]),
        [{"x": math.nan, "t": "a"}, {"t": math.nan}],
        [{"x": "NaN", "t": "a"}, {"x": None, "t": None}],
    ),
    "lists of lists": (pa.list_(FLOATS), [[[math.nan, pd.NA], None]], [[["NaN", None], None]]),
    "text": (pa.list_(pa.string()), [["a", math.nan]], [["a", None]]),
    "no lists": (pa.float64(), [1.5, math.nan], [1.5, None]),
    "integers": (INTEGERS, [[1, math.nan], [(1 << 53) + 1]], [[1, None], [(1 << 53) + 1]]),
    "integers, and none there": (INTEGERS, [[math.nan], [np.float64("nan"), pd.NA]], [[None], [None, None]]),
    "integers and floats in dicts": (
        pa.struct([("n", pa.int64()), ("x", pa.float64()), ("ns", INTEGERS)]),
        [{"n": 1, "x": 1, "ns": [math.nan]}, {"n": math.nan, "x": math.nan, "ns": [2, math.nan]}],
        [{"n": 1, "x": 1.0, "ns": [None]}, {"n": None, "x": "NaN", "ns": [2, None]}],
    ),
    "booleans": (pa.list_(pa.bool_()), [[True, math.nan], [math.nan]], [[True, None], [None]]),
    "booleans, and none there": (pa.list_(pa.bool_()), [[math.nan]], [[None]]),
}
"""Objects in a column of pandas, the type of its column in the table, and the values that they are there."""


def vectors(name: str) -> tuple[pa.Schema, pd.DataFrame, list[Any]]:
    kind, given, wanted = VECTORS[name]
    return pa.schema([("v", kind)]), pd.DataFrame({"v": pd.Series(given, dtype=object)}), wanted


@pytest.mark.parametrize("name", VECTORS)
def test_nan_within_a_value_of_pandas_is_null_only_where_no_float_is_wanted(name: str) -> None:
    schema, frame, wanted = vectors(name)
    found = to_arrow(frame, schema)
    assert found is not None
    assert [plain(value) for value in conform("it", found, schema)["v"].to_pylist()] == [
        plain(value) for value in wanted
    ]


@pytest.mark.parametrize("groups", [False, True])
def test_nan_within_a_value_is_judged_by_the_columns_of_the_table_and_of_the_output(groups: bool) -> None:
    schema = schema_of({"k": "long", "v": array("long")}, ["k"])
    rows = pa.table({"k": [1]}).append_column(PARTITION, pa.array([1], pa.int32()))
    frame = pd.DataFrame({"k": [1], "v": [[1, math.nan]]})
    output = pa.schema([("k", pa.int64()), ("v", FLOATS)])

    def function(*given: Any) -> Change:
        return Change(upserts={"v": [1, None]} if groups else frame, output=frame)

    found = applied(function, rows, groups=groups, output=output, schema=schema)
    assert found.changes["v"].to_pylist() == [[1, None]]
    assert found.output is not None
    assert plain(found.output["v"][0].as_py()) == plain([1.0, "NaN"])


def test_what_arrow_cannot_hold_is_refused_by_name() -> None:
    with pytest.raises(IllegalArgumentError, match=r"<lambda> returned upserts that Arrow cannot hold"):
        applied(lambda r, s: pd.DataFrame({"k": [1], "part": ["a"], "note": [object()]}), ROWS)


BAD_FRAMES = {
    "a column twice": (
        pd.DataFrame([[1, 2, 3]], columns=["k", "sum", "k"]),
        "column 'k' is there twice; there are k, s",
    ),
    "more than 64 bits": (pd.DataFrame({"k": [1], "sum": [2**64]}), "Arrow cannot hold: column 'sum': Python int too"),
    "more bits in polars": (pl.DataFrame({"k": [1], "sum": [2**70]}), "output that Arrow cannot hold: "),
    "a name that is no text": (pd.DataFrame({"k": [1], 5: [1]}), "output that Arrow cannot hold: column 5: its name"),
    "the key as index": (
        pd.DataFrame({"k": [1], "sum": [1]}).groupby("k").agg("sum"),
        "column 'k' is missing; there are sum: it is the index of the frame: call reset_index()",
    ),
}


@pytest.mark.parametrize("name", BAD_FRAMES)
@pytest.mark.parametrize("groups", [False, True])
def test_a_frame_that_is_wrong_is_refused_by_name(name: str, groups: bool) -> None:
    frame, said = BAD_FRAMES[name]
    with pytest.raises(IllegalArgumentError) as caught:
        applied(lambda *_: Change(output=frame), ROWS, groups=groups)
    assert said in str(caught.value)
    assert str(caught.value).startswith("table 't{0}': apply(): <lambda>")
    assert not groups or "for k=1, part='a'" in str(caught.value)


def test_the_first_integer_that_no_decimal_is_is_named() -> None:
    values = pa.table({"c": [1, None, -(10**8), 10**9]})
    with pytest.raises(
        IllegalArgumentError, match=r"'c': expected decimal128\(10, 2\), found int64: -100000000 does not"
    ):
        conform("here", values, pa.schema([("c", pa.decimal128(10, 2))]))


def test_a_dict_that_is_used_again_is_taken_as_it_was() -> None:
    same: dict[str, Any] = {}

    def one(key: tuple[Any, ...], rows: Any, row: Any) -> Change:
        same["n"] = rows[0]["value"]
        return Change(same)

    assert [row[4] for row in changes(applied(one, ROWS, groups=True))] == [10, 5, 7]


LISTED = schema_of({"k": "long", "n": "long", "l": array("long")}, ["k"])
OF_ONE = pa.table({"k": [1], PARTITION: pa.array([5], pa.int32())})


@pytest.mark.parametrize("null", [pd.NA, pd.NaT])
def test_a_null_of_pandas_is_taken_as_null(null: Any) -> None:
    def one(key: tuple[Any, ...], rows: Any, row: Any) -> Change:
        return Change({"n": null, "l": [1, null]}, output=[{"k": null, "sum": null}])

    found = applied(one, OF_ONE, groups=True, schema=LISTED)
    assert found.changes.select(["n", "l"]).to_pylist() == [{"n": None, "l": [1, None]}]
    assert found.output is not None
    assert found.output.to_pylist() == [{"k": None, "sum": None}]


@pytest.mark.parametrize("given", [np.array([1, 2]), pd.Series([1, 2]), pl.Series([1, 2]), (1, 2)])
def test_an_array_or_a_series_is_taken_as_a_list(given: Any) -> None:
    assert applied(lambda *_: {"l": given}, OF_ONE, groups=True, schema=LISTED).changes["l"].to_pylist() == [[1, 2]]
    nested = schema_of({"k": "long", "l": array(array("long"))}, ["k"])
    inside = np.array([[1, 2]]) if isinstance(given, np.ndarray) else [given]
    found = applied(lambda *_: {"l": inside}, OF_ONE, groups=True, schema=nested).changes
    assert found["l"].to_pylist() == [[[1, 2]]]


def test_a_list_of_a_frame_may_be_handed_back() -> None:
    rows = pa.table({"k": [1], "l": [[1, 2]], PARTITION: pa.array([5], pa.int32())})
    for frames in ("pandas", "polars"):
        one = lambda key, rows, row: {"l": rows["l"].to_list()[0]}  # noqa: E731
        assert applied(one, rows, groups=True, frames=frames, schema=LISTED).changes["l"].to_pylist() == [[1, 2]]


def test_a_value_that_is_within_itself_is_refused_by_name() -> None:
    within: list[Any] = []
    within.append(within)
    with pytest.raises(IllegalArgumentError, match=r"<lambda> for k=1: column 'l'"):
        applied(lambda *_: {"l": within}, OF_ONE, groups=True, schema=LISTED)


@pytest.mark.parametrize("given", [True, np.bool_(True), False, np.bool_(False)])
def test_booleans_of_numpy_say_whether_to_delete(given: Any) -> None:
    found = changes(applied(lambda *_: Change(deletes=given), ROWS, groups=True))
    assert [row[1] for row in found] == ["delete"] * 3 * bool(given)


def test_a_list_that_is_used_again_is_taken_as_it_was() -> None:
    rows = pa.table({"k": [1, 2], PARTITION: pa.array([5, 5], pa.int32())})
    schema = schema_of({"k": "long", "l": array("long"), "b": "binary", "s": struct(x=array("long"))}, ["k"])
    same, text = list[int](), bytearray()

    def one(key: tuple[Any, ...], rows: Any, row: Any) -> Change:
        same.append(key[0])
        text.append(key[0])
        return Change({"l": same, "b": text, "s": {"x": same}}, output=[{"l": same}])

    found = applied(one, rows, groups=True, schema=schema, output=pa.schema([("l", pa.list_(pa.int64()))]))
    assert found.changes["l"].to_pylist() == [[1], [1, 2]]
    assert found.changes["s"].to_pylist() == [{"x": [1]}, {"x": [1, 2]}]
    assert found.changes["b"].to_pylist() == [b"\1", b"\1\2"]
    assert found.output is not None
    assert found.output["l"].to_pylist() == [[1], [1, 2]]


@pytest.mark.parametrize("kind", [deque, UserList, partial(make_array, "q")], ids=["deque", "UserList", "array"])
def test_a_sequence_that_is_used_again_is_taken_as_it_was(kind: Callable[[list[int]], Any]) -> None:
    rows = pa.table({"k": [1, 2], PARTITION: pa.array([5, 5], pa.int32())})
    same = kind([])

    def one(key: tuple[Any, ...], rows: Any, row: Any) -> Change:
        same.append(key[0])
        return Change({"l": same})

    assert applied(one, rows, groups=True, schema=LISTED).changes["l"].to_pylist() == [[1], [1, 2]]


def test_a_view_of_memory_that_is_filled_anew_is_taken_as_it_was() -> None:
    rows = pa.table({"k": [1, 2], PARTITION: pa.array([5, 5], pa.int32())})
    same = make_array("q", [0])

    def one(key: tuple[Any, ...], rows: Any, row: Any) -> Change:
        same[0] = key[0]
        return Change({"l": memoryview(same)})

    assert applied(one, rows, groups=True, schema=LISTED).changes["l"].to_pylist() == [[1], [2]]


@pytest.mark.parametrize("kind", ["pandas", "arrow"])
def test_a_frame_that_is_filled_anew_for_each_key_is_taken_as_it_was(kind: str) -> None:
    rows = pa.table({"k": [1, 2, 3], PARTITION: pa.array([5, 5, 5], pa.int32())})
    total = np.zeros(1, np.int64)
    frame = pd.DataFrame({"total": [0]})

    def one(key: tuple[Any, ...], rows: Any, row: Any) -> Change:
        total[0] = frame.loc[0, "total"] = key[0]
        return Change(output=frame if kind == "pandas" else pa.table({"total": total}))

    found = applied(one, rows, groups=True, schema=LISTED, output=pa.schema([("total", pa.int64())])).output
    assert found is not None
    assert found["total"].to_pylist() == [1, 2, 3]


def test_keys_that_are_null_nan_or_a_negative_zero_are_found() -> None:
    schema = schema_of({"k": "double", "n": "long"}, ["k"])
    rows = pa.table({"k": [None, math.nan, 0.0]}).append_column(PARTITION, pa.array([1, 2, 3], pa.int32()))
    returned = pa.table({"k": [-0.0, math.nan, None], "n": [1, 2, 3]})
    found = applied(lambda r, s: returned, rows, schema=schema).changes
    assert found[PARTITION].to_pylist() == [3, 2, 1]
    assert math.copysign(1, found["k"][0].as_py()) == 1
    one = lambda key, rows, row: {"k": None if key[0] is None else -key[0], "n": 1}  # noqa: E731
    found = applied(one, rows, schema=schema, groups=True).changes
    assert found[PARTITION].to_pylist() == [1, 2, 3]
    assert math.copysign(1, found["k"][2].as_py()) == 1


KINDS = {
    "narrower integer": (pa.array([7], pa.int8()), pa.int64(), 7),
    "wider integer that fits": (pa.array([7], pa.int64()), pa.int8(), 7),
    "wider integer that does not": (pa.array([300], pa.int64()), pa.int8(), None),
    "integer as float": (pa.array([2**53], pa.int64()), pa.float64(), float(2**53)),
    "integer that no float is": (pa.array([2**53 + 1], pa.int64()), pa.float64(), None),
    "narrower float": (pa.array([1.5], pa.float32()), pa.float64(), 1.5),
    "wider float": (pa.array([1.5], pa.float64()), pa.float32(), None),
    "null": (pa.array([None]), pa.string(), "null"),
    "large text": (pa.array(["a"], pa.large_string()), pa.string(), "a"),
    "text view": (pa.array(["a"], pa.string_view()), pa.string(), "a"),
    "dictionary": (pa.array(["a"]).dictionary_encode(), pa.string(), "a"),
    "text as bytes": (pa.array(["a"]), pa.binary(), None),
    "bytes as text": (pa.array([b"a"]), pa.string(), None),
    "seconds": (pa.array([datetime(2026, 1, 1)], pa.timestamp("s")), pa.timestamp("us"), datetime(2026, 1, 1)),
    "lost nanoseconds": (pa.array([1], pa.timestamp("ns")), pa.timestamp("us"), None),
    "time without a zone": (pa.array([1], pa.timestamp("us")), pa.timestamp("us", "UTC"), None),
    "time of another zone": (
        pa.array([datetime(2026, 1, 1, tzinfo=UTC)], pa.timestamp("us", "Asia/Tokyo")),
        pa.timestamp("us", "UTC"),
        datetime(2026, 1, 1, tzinfo=UTC),
    ),
    "date as time": (pa.array([date(2026, 1, 1)]), pa.timestamp("us"), None),
    "time as date": (pa.array([datetime(2026, 1, 1)]), pa.date32(), None),
    "integer as decimal": (pa.array([7], pa.int64()), pa.decimal128(38, 2), Decimal("7.00")),
    "integer as a short decimal": (pa.array([-(10**8) + 1]), pa.decimal128(10, 2), Decimal("-99999999.00")),
    "unsigned integer as decimal": (pa.array([2**63], pa.uint64()), pa.decimal128(19, 0), Decimal(2**63)),
    "integer as decimal that does not fit": (pa.array([10**8]), pa.decimal128(10, 2), None),
    "longer decimal": (pa.array([Decimal("1.234")]), pa.decimal128(10, 2), None),
    "too many digits": (long_decimals(pa.decimal128(5, 2), 100_000), pa.decimal128(5, 2), None),
    "too many digits inside": (
        pa.ListArray.from_arrays([0, 1], long_decimals(pa.decimal128(5, 2), 100_000)),
        pa.list_(pa.decimal128(5, 2)),
        None,
    ),
    "boolean as integer": (pa.array([True]), pa.int64(), None),
    "list": (pa.array([[1]], pa.large_list(pa.int8())), pa.list_(pa.int64()), [1]),
    "list of text": (pa.array([["1"]]), pa.list_(pa.int64()), None),
    "struct": (pa.array([{"a": 1}]), pa.struct([("a", pa.int64())]), {"a": 1}),
    "struct of others": (pa.array([{"b": 1}]), pa.struct([("a", pa.int64())]), None),
    "map": (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())), pa.map_(pa.string(), pa.int64()), [("a", 1)]),
    "map of others": (
        pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
        pa.map_(pa.string(), pa.int8()),
        None,
    ),
    "time of another zone in a list": (
        pa.array([[NOON]], pa.large_list(TOKYO)),
        pa.list_(pa.timestamp("us", "UTC")),
        [NOON],
    ),
    "time of another zone in structs of a list": (
        pa.array([[{"at": NOON}]], pa.large_list(pa.struct([("at", TOKYO)]))),
        pa.list_(pa.struct([("at", pa.timestamp("us", "UTC"))])),
        [{"at": NOON}],
    ),
    "time of another zone in a map": (
        pa.array([[("a", NOON)]], pa.map_(pa.large_string(), TOKYO)),
        pa.map_(pa.string(), pa.timestamp("us", "UTC")),
        [("a", NOON)],
    ),
    "time without a zone in a list": (
        pa.array([[1]], pa.list_(pa.timestamp("us"))),
        pa.list_(pa.timestamp("us", "UTC")),
        None,
    ),
    "large bytes in a list": (
        pa.array([[b"a", None]], pa.large_list(pa.large_binary())),
        pa.list_(pa.binary()),
        [b"a", None],
    ),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_column_takes_the_type_of_the_table_only_where_no_value_changes(name: str) -> None:
    values, wanted, expected = KINDS[name]
    if expected is None:
        with pytest.raises(IllegalArgumentError, match=r"here: column 'c': expected"):
            conform("here", pa.table({"c": values}), pa.schema([("c", wanted)]))
        return
    found = conform("here", pa.table({"c": values}), pa.schema([("c", wanted)]))["c"]
    assert (found.type, found.to_pylist()) == (wanted, [None if expected == "null" else expected])


VALUES = {
    "map": ({"a": 1}, pa.map_(pa.string(), pa.int64()), True),
    "pairs": ([("a", 1)], pa.map_(pa.string(), pa.int64()), True),
    "pairs of equal keys": ([("a", 1), ("a", 2)], pa.map_(pa.string(), pa.int64()), False),
    "equal keys inside": (
        [{"m": [("a", [("b", 1), ("b", 1)])]}],
        pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.map_(pa.string(), pa.int64())))])),
        False,
    ),
    "null inside": ([None, {"m": None}], pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64()))])), True),
    "struct": ({"a": 1, "b": [1.5, math.nan]}, pa.struct([("a", pa.int8()), ("b", pa.list_(pa.float64()))]), True),
    "rounded inside": ({"a": [0.1]}, pa.struct([("a", pa.list_(pa.float32()))]), False),
    "rounded": (0.1, pa.float32(), False),
    "an unknown field": ({"a": 1, "tpyo": 2}, pa.struct([("a", pa.int64()), ("b", pa.int64())]), False),
    "cut": (datetime(2026, 1, 1, 12), pa.date32(), False),
    "the hour that comes twice": (
        datetime(2024, 10, 27, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")),
        pa.timestamp("us", "UTC"),
        True,
    ),
    "digits": (Decimal("1.234"), pa.decimal128(10, 2), False),
    "bytes": (b"a", pa.string(), False),
    "null": (None, pa.int64(), True),
}


@pytest.mark.parametrize("name", VALUES)
def test_a_python_value_is_taken_exactly_or_refused(name: str) -> None:
    value, kind, is_taken = VALUES[name]
    if is_taken:
        assert exact_array([value], kind).type == kind
    else:
        with pytest.raises((TypeError, pa.ArrowException)):
            exact_array([value], kind)


def test_columns_of_maps_are_given_and_taken_as_they_are_stored() -> None:
    schema = schema_of({"k": "long", "m": mapping("string", "long")}, ["k"])
    rows = pa.table({"k": [1]}).append_column(PARTITION, pa.array([5], pa.int32()))
    found = applied(lambda key, rows, row: {"m": {"a": 1}}, rows, groups=True, schema=schema).changes
    assert found["m"].to_pylist() == [[("a", 1)]]


def test_what_first_seen_cannot_store_is_said_of_the_rows() -> None:
    kind = pa.decimal128(5, 2)
    rows = pa.table({"k": [1], "d": long_decimals(kind, 100_000), PARTITION: pa.array([5], pa.int32())})
    schema = schema_of({"k": "long", "d": "decimal(5,2)"}, ["k"])
    call = FrameCall("table 't': first_seen()", FirstSeen(["k"], ["k", "d"]), "arrow", schema.arrow(), pa.schema([]))
    function = UserFunction(call.what, schema, call, None, passes_rows=True)
    with pytest.raises(IllegalArgumentError, match=r"^table 't': first_seen\(\): rows of k=1: column 'd': expected"):
        function.apply(Keys.of(rows, ["k"]), rows.drop_columns([PARTITION]), schema.arrow().empty_table())


INNER = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    "values",
    [
        pa.array([[("b", 1)], None, [("a", 1), ("a", 2)]], INNER),
        pa.array([[], [("a", 1), ("b", 1), ("a", 2)]], INNER).slice(1),
        pa.array([[{"m": [("x", [("a", 1), ("a", 1)])]}]], pa.list_(pa.struct([("m", pa.map_(pa.string(), INNER))]))),
        pa.array([[({"a": 1}, 1), ({"a": 1}, 2)]], pa.map_(pa.struct([("a", pa.int8())]), pa.int64())),
    ],
    ids=["plain", "a slice", "deep inside", "keys of structs"],
)
def test_a_frame_with_a_map_that_has_a_key_twice_is_refused(values: pa.Array) -> None:
    wanted = pa.schema([("m", values.type)])
    with pytest.raises(IllegalArgumentError, match=r"it: column 'm': a map has the key .* twice"):
        conform("it", pa.table([values], ["m"]), wanted)
    once = values.filter(pa.array([False] * len(values)))
    assert conform("it", pa.table([once], ["m"]), wanted).num_rows == 0


def test_equal_keys_in_different_maps_are_two() -> None:
    values = pa.array([[("a", 1)], [("a", 2), ("b", 1)], None, []], INNER)
    assert conform("it", pa.table([values], ["m"]), pa.schema([("m", INNER)]))["m"].to_pylist() == values.to_pylist()
