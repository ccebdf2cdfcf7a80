"""Check, without Spark, what first_seen takes and what it refuses before any task."""

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType, YearMonthIntervalType

from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.spark.application import Application
from pyspark_checkpointer.table.first_seen import FirstSeen
from tests.spark.expiring import DAY, RULE, START, UTC_TIME, Place, given
from tests.table.tables import schema_of


def table_of(**columns: pa.Array) -> pa.Table:
    return pa.table({"k": pa.array([7], pa.int64())} | columns)


def seen(place: Place, rows: pa.Table, **options: Any) -> list[dict[str, Any]]:
    """The new rows of a batch."""
    state = place.begin(1)
    new: Any = state.table("t", ["k"], num_partitions=2, **options).first_seen(place.frame(rows))
    place.commit(state)
    found: list[dict[str, Any]] = new.rows.to_pylist()
    return found


TIME = pa.array([START], UTC_TIME)


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize(("columns", "said"), [({}, "there are k"), ({"Seen": TIME}, "'Seen' differs from it in case")])
def test_a_key_that_would_never_expire_is_refused(
    place: Place, is_new: bool, columns: dict[str, pa.Array], said: str
) -> None:
    if not is_new:
        place.batch(0, table_of(seen=TIME))
    with pytest.raises(IllegalArgumentError) as caught:
        seen(place, table_of(**columns), expire=RULE)
    assert "first_seen(): rows expire 10 days, 0:00:00 after seen, and a new key without" in str(caught.value)
    assert f"column 'seen' is missing; there are k{', Seen: ' if columns else ''}" in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize("is_new", [True, False])
def test_a_key_that_differs_in_case_alone_is_named(place: Place, is_new: bool) -> None:
    if not is_new:
        place.batch(0, table_of(), expire=None)
    rows = pa.table({"K": [1], "n": [2]})
    said = "column 'k' is missing; there are K, n: 'K' differs from it in case alone: rename it"
    with pytest.raises(IllegalArgumentError, match=said):
        seen(place, rows)
    state = place.begin(2)
    table = state.table("t", ["k"], num_partitions=2, schema=StructType().add("k", "long"))
    with pytest.raises(IllegalArgumentError, match=said):
        table.apply(place.frame(rows), lambda given, below: None)
    with pytest.raises(IllegalArgumentError, match=said):
        table.upsert(place.frame(rows))


def test_a_column_that_differs_in_case_alone_is_refused_as_by_an_upsert(place: Place) -> None:
    place.batch(0, table_of(n=pa.array([1])), expire=None)
    for verb in ("upsert", "first_seen"):
        table = place.begin(1).table("t", ["k"], num_partitions=2)
        with pytest.raises(IllegalArgumentError, match=r"column 'N' differs from one of .* in its case alone: keep"):
            getattr(table, verb)(place.frame(table_of(N=pa.array([1]))))
    assert seen(place, table_of(n=pa.array([1]), other=pa.array([1]))) == []


def test_a_wider_value_widens_the_table_as_an_upsert_does(place: Place) -> None:
    place.batch(0, pa.table({"k": [1], "n": pa.array([1], pa.int32())}), expire=None)
    assert seen(place, table_of(n=pa.array([2**40]))) == [{"k": 7, "n": 2**40}]
    assert place.rows() == [{"k": 1, "n": 1}, {"k": 7, "n": 2**40}]
    # A narrower one fits as it is.
    assert seen(place, pa.table({"k": [8], "n": pa.array([2], pa.int16())})) == [{"k": 8, "n": 2}]
    assert place.rows()[-1] == {"k": 8, "n": 2}


def test_a_table_that_its_rows_made_wider_stays_so_whatever_the_job_declares(place: Place) -> None:
    declared = StructType().add("k", "long").add("n", "integer")
    for key in (1, 2):
        assert seen(place, pa.table({"k": [key], "n": [2**40]}), schema=declared) == [{"k": key, "n": 2**40}]
    state = place.begin(1)
    rows = pa.table({"k": [1], "n": [2**41]})
    state.table("t", ["k"], num_partitions=2, schema=declared).apply(place.frame(rows), lambda given, below: given)
    place.commit(state)
    assert place.rows() == [{"k": 1, "n": 2**41}, {"k": 2, "n": 2**40}]


@pytest.mark.parametrize("kind", ["integer", "long"])
def test_a_declared_column_keeps_how_it_is_combined_also_if_it_is_narrower(place: Place, kind: str) -> None:
    """Where a job forgets `combine`, what its function returns would be added to what is there."""
    place.batch(0, table_of(n=pa.array([1])), expire=None, combine={"n": "sum"})
    declared = StructType().add("k", "long").add("n", kind)

    def apply(**options: Any) -> None:
        state = place.begin(1)
        table = state.table("t", ["k"], num_partitions=2, schema=declared, **options)
        table.apply(place.frame(table_of(n=pa.array([2]))), lambda given, below: given)
        place.commit(state)

    for combine in ({}, {"n": "max"}):
        with pytest.raises(IllegalArgumentError, match=r"column 'n' is combined as 'sum', not as '(last|max)'"):
            apply(combine=combine)
    apply(combine={"n": "sum"})
    assert place.rows() == [{"k": 7, "n": 3}]


@pytest.mark.parametrize("verb", ["apply", "apply_groups"])
@pytest.mark.parametrize("how", ["sum", "max"])
def test_a_function_returns_a_combined_column_only_where_the_job_says_how(place: Place, verb: str, how: Any) -> None:
    """A job that takes the column for one of its own would add the whole total in each batch."""
    place.batch(0, table_of(n=pa.array([1]), name=pa.array(["a"])), expire=None, combine={"n": how})

    def change(function: Any, **options: Any) -> None:
        state = place.begin(1)
        table = state.table("t", ["k"], num_partitions=2, **options)
        getattr(table, verb)(place.frame(table_of()), function)
        place.commit(state)

    if verb == "apply":
        add, leave_out = (lambda rows, below: below), (lambda rows, below: below.select(["k", "name"]))
    else:
        add, leave_out = (lambda key, rows, row: {**row}), (lambda key, rows, row: {"name": row["name"]})
    said = (
        rf"table 't': {verb}\(\): .* for k=7: upserts: column 'n' is combined as '{how}', not as 'last': name it in "
        r"combine= of state\.table\(…\), or leave it out$"
    )
    for options in ({}, {"schema": StructType().add("k", "long")}):
        with pytest.raises(IllegalArgumentError, match=said):
            change(add, **options)
    assert place.rows() == [{"k": 7, "n": 1, "name": "a"}]
    change(leave_out)
    assert place.rows() == [{"k": 7, "n": 1, "name": "a"}]
    change(add, combine={"n": how})
    assert place.rows() == [{"k": 7, "n": 2 if how == "sum" else 1, "name": "a"}]


def test_first_seen_takes_in_a_combined_column_that_the_job_does_not_name(place: Place) -> None:
    place.batch(0, table_of(n=pa.array([1])), expire=None, combine={"n": "sum"})
    assert seen(place, pa.table({"k": [7, 8], "n": [5, 5]})) == [{"k": 8, "n": 5}]
    assert place.rows() == [{"k": 7, "n": 1}, {"k": 8, "n": 5}]


def test_a_new_table_may_combine_a_column_that_a_later_upsert_brings(place: Place) -> None:
    assert seen(place, table_of(n=pa.array([1])), combine={"n": "sum"}) == [{"k": 7, "n": 1}]
    assert place.rows() == [{"k": 7}]
    for _ in range(2):
        place.batch(1, table_of(n=pa.array([2])), expire=None, combine={"n": "sum"})
    assert place.rows() == [{"k": 7, "n": 4}]


@pytest.mark.parametrize("n", [pa.array(["1"]), pa.array([1.5]), pa.array([[1]])])
def test_a_value_of_another_type_is_refused_before_any_task_and_without_a_function(place: Place, n: pa.Array) -> None:
    place.batch(0, table_of(n=pa.array([1])), expire=None)
    with pytest.raises(IllegalArgumentError, match=r"column 'n' is long, which is no part of") as caught:
        seen(place, table_of(n=n))
    assert not any(word in str(caught.value) for word in ("FirstSeen", "function", "upserts"))


def test_what_cannot_be_returned_is_refused_as_a_column_of_the_rows() -> None:
    schema = schema_of({"k": "long"}, ["k"])
    rows = StructType().add("k", "long").add("months", YearMonthIntervalType())
    call = Application.of("t", FirstSeen(["k"], ["k"]), rows, [], "arrow", groups=False, verb="first_seen")
    with pytest.raises(
        IllegalArgumentError, match=r"^table 't': first_seen\(\): rows: column 'months': type interval"
    ) as e:
        call.function(schema)
    assert str(e.value).endswith("cast it to another type first, or select the columns that can be returned")


def test_a_late_row_does_not_hide_one_of_its_key_in_time(place: Place) -> None:
    """The table remembers the row in time, so that the key does not come back as new."""
    found = []
    for day, rows in ((20, [(7, 1), (7, 20), (8, 2), (8, 3), (9, 15), (9, 1)]), (21, [(7, 21), (8, 21), (9, 21)])):
        state = place.begin(day)
        table = state.table("t", ["k"], num_partitions=2, expire=RULE)
        new = table.first_seen(place.frame(given(*rows)), order_by=["seen"])
        found.append(sorted((row["k"], (row["seen"] - START) // DAY) for row in new.rows.to_pylist()))
        place.commit(state)
    assert found == [[(7, 20), (8, 2), (9, 15)], [(8, 21)]]
