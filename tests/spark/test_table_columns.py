"""Columns of a table over batches: added, widened, dropped, nested deep, and keys of wider types."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import State, read_state
from pyspark_checkpointer.spark.versions import HAS_DATA_SOURCES
from tests.spark.conftest import Job
from tests.spark.tables import Body, all_refused, artifacts, once, refused, rows


def put(*columns: str) -> Body:
    """Upsert one row of these columns, with the batch's number as its key."""

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["id"], num_partitions=2)
        table.upsert(batch.sparkSession.range(batch_id, batch_id + 1).selectExpr("id", *columns))

    return body


def test_columns_come_and_widen_and_stay_where_an_upsert_does_not_have_them(job: Job, spark: SparkSession) -> None:
    once(job, put("1 a", "'x' b"))
    once(job, put("2L a"))
    once(job, put("3L a", "'y' b", "array(1) c"))
    found = rows(read_state(spark, job.root, "t"))
    assert found == [(0, 1, "x", None), (1, 2, None, None), (2, 3, "y", [1])]
    said = refused(job, put("'no' a", "'y' b"))
    assert "column 'a' is long, which is no part of string" in said
    assert "(id long key, a long, b string, c array<integer>)" in said


def test_two_partial_upserts_of_one_batch_give_both(job: Job, spark: SparkSession) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["k"], num_partitions=2, combine={"total": "sum"})
        make = batch.sparkSession.createDataFrame
        if batch_id == 0:
            table.upsert(make([("a", 1, "one", 5), ("b", 2, "two", 5)], "k string, n long, title string, total long"))
        table.upsert(make([("a", 10), ("c", 30)], "k string, n long"))
        table.upsert(make([("a", "ten"), ("d", None)], "k string, title string"))
        table.upsert(make([("e",), ("b",)], "k string"))
        seen.append(rows(table.read()))
        seen.append(rows(table.lookup(make([("a",)], "k string"), ["title", "k"])))
        if batch_id == 1:
            table.compact()

    seen: list[Any] = []
    both = [("a", 10, "ten", 5), ("b", 2, "two", 5), ("c", 30, None, None), ("d", None, None, None)]
    both.append(("e", None, None, None))
    once(job, body)
    assert rows(read_state(spark, job.root, "t")) == both
    once(job, body)
    assert rows(read_state(spark, job.root, "t")) == both
    assert seen == [both, [("ten", "a")]] * 2
    assert [a.kind for a in artifacts(job.root, "t")] == ["snapshot"] * 2


def test_a_dropped_column_is_gone_for_good(job: Job, spark: SparkSession) -> None:
    def drop(*columns: str) -> Body:
        return lambda batch, _, state: state.table("t", ["id"], num_partitions=2).drop_columns(list(columns))

    once(job, put("1 a", "'x' b"))
    once(job, put("2 a", "'y' b"))
    before = artifacts(job.root, "t")
    assert "column id is part of the key" in refused(job, drop("a", "id"))
    once(job, drop("B"))  # the case of a name counts
    assert read_state(spark, job.root, "t").columns == ["id", "a", "b"]
    once(job, drop("b"))
    once(job, drop("b"))  # as a callback says it in every batch
    assert artifacts(job.root, "t") == before  # nothing was written anew
    assert read_state(spark, job.root, "t").columns == ["id", "a"]
    once(job, put("3 a", "'z' b"))
    found = rows(read_state(spark, job.root, "t").select("id", "b"))
    assert sorted(b or "" for _, b in found) == ["", "", "z"]


def test_replacing_rows_takes_exactly_their_columns(job: Job, spark: SparkSession) -> None:
    once(job, put("1 a", "'x' b"))
    once(job, lambda batch, _, state: state.table("t", ["id"]).replace(batch.sparkSession.range(1)))
    assert read_state(spark, job.root, "t").columns == ["id"]
    once(job, put("'y' b"))
    assert rows(read_state(spark, job.root, "t")) == [(0, None), (2, "y")]


def test_rows_without_a_combined_column_leave_it_and_contradict_nothing(job: Job, spark: SparkSession) -> None:
    def body(how: Any, columns: str) -> Body:
        return lambda batch, _, state: state.table("t", ["key"], combine=how).upsert(batch.selectExpr("key", columns))

    once(job, body({"amount": "sum"}, "amount"))
    once(job, body({"amount": "sum"}, "'x' v"))
    once(job, body({}, "'y' v"))
    assert rows(read_state(spark, job.root, "t")) == [("x", 1, "y")]
    refusals: dict[str, Body] = {
        "'amount' is combined as 'sum', not as 'max'": body({"amount": "max"}, "'z' v"),
        "column 'nothing' is missing": body({"nothing": "sum"}, "'z' v"),
        "differs from one of (key string key, amount long sum, v string) in its case alone": body({}, "1L Amount"),
        "column 'key' is missing": lambda batch, _, state: state.table("t", ["key"]).upsert(batch.select("amount")),
    }
    for said, told in zip(refusals, all_refused(job, refusals.values()), strict=True):
        assert said in told


def test_a_wider_key_moves_every_row_to_its_new_partition(job: Job, spark: SparkSession) -> None:
    def put(kind: str) -> Body:
        def body(batch: DataFrame, batch_id: int, state: State) -> None:
            table = state.table("t", ["k"], num_partitions=5, combine={"n": "sum"})
            table.upsert(batch.sparkSession.range(50).selectExpr(f"cast(id as {kind}) k", "1 n"))

        return body

    once(job, put("int"))
    once(job, put("long"))
    assert rows(read_state(spark, job.root, "t").groupBy("n").count()) == [(2, 50)]
    found = read_state(spark, job.root, "t", keys=spark.range(7, 9).toDF("k"))
    assert rows(found) == [(7, 2), (8, 2)]


DEEPEST = (
    "array<" * 49 + "long" + ">" * 49,
    "map<string," * 31 + "long" + ">" * 31,
    "struct<a:" * 62 + "long" + ">" * 62,
)


def test_the_deepest_columns_are_written_and_read_by_everything(job: Job, spark: SparkSession) -> None:
    columns = ", ".join(f"v{number} {kind}" for number, kind in enumerate(DEEPEST))
    deep: list[Any] = [7, 7, 7]
    for depth in range(62):
        deep = [[deep[0]] if depth < 49 else deep[0], {"x": deep[1]} if depth < 31 else deep[1], (deep[2],)]

    def put(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["k"], num_partitions=2)
        table.upsert(spark.createDataFrame([(batch_id, *deep), (9, *deep)], f"k long, {columns}"))
        assert table.lookup(spark.createDataFrame([(9,)], "k long")).count() == 1
        table.compact()

    for _ in range(2):
        once(job, put)
    assert [row[0] for row in rows(read_state(spark, job.root, "t"))] == [0, 1, 9]
    if HAS_DATA_SOURCES:
        assert spark.read.format("checkpointer").option("operator", "t").load(job.root).collect()[0][1:] == (*deep,)
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.table("t").num_rows == 3


@pytest.mark.parametrize("kind", ["array<" * 50 + "long" + ">" * 50, "struct<a:" * 99 + "long" + ">" * 99])
def test_a_column_that_could_not_be_read_back_is_refused_before_anything_is_written(job: Job, kind: str) -> None:
    def put(change: Callable[[State, DataFrame], object]) -> Body:
        return lambda batch, batch_id, state: change(state, batch.select("key", F.lit(None).cast(kind).alias("v")))  # type: ignore[func-returns-value]

    said = "table 't': column 'v' is nested too deep"
    assert said in refused(job, put(lambda state, frame: state.table("t", ["key"]).upsert(frame)))
    assert said in refused(job, put(lambda state, frame: state.table("t", ["key"], schema=frame.schema)))
    once(job, lambda batch, _, state: state.table("t", ["key"]).upsert(batch))
    before = list(Path(job.root).rglob("*.parquet"))
    assert said in refused(job, put(lambda state, frame: state.table("t", ["key"]).replace(frame)))
    assert list(Path(job.root).rglob("*.parquet")) == before


WIDER = {
    "integer": ("long", [1, None, -(2**31)], [2**31, 2**32 + 1, -(2**31) - 1]),
    "decimal(5,2)": ("decimal(9,4)", ["1.50", None, "999.99"], ["1.5001", "1000.0000"]),
    "short": ("decimal(7,1)", [1, None, -(2**15)], ["1.5", "32768.0"]),
    "float": ("double", [1.5, None, float("nan"), 0.0], [1.1, 1e300]),
}
"""For types of keys: a wider one, values of both, and values of the wider one alone."""


@pytest.mark.parametrize("kind", WIDER)
def test_a_wider_key_finds_and_deletes_what_the_table_has(job: Job, spark: SparkSession, kind: str) -> None:
    """Until an upsert of the wider type comes. What the table cannot hold is not there, and is none of its keys."""
    wide, shared, beyond = WIDER[kind]

    def frame(values: list[Any], kind: str) -> DataFrame:
        text = spark.createDataFrame(
            [(None if value is None else str(value), "p") for value in values], "k string, p string"
        )
        return text.select(F.col("k").cast(kind).alias("k"), "p")

    once(job, lambda batch, _, state: state.table("t", ["k", "p"], num_partitions=4).upsert(frame(shared, kind)))
    everything = frame([*shared, *beyond], wide)
    asked = read_state(spark, job.root, "t", keys=everything)
    assert len(rows(asked)) == len(shared)
    assert dict(asked.dtypes)["k"] == dict(frame(shared, kind).dtypes)["k"]
    assert rows(read_state(spark, job.root, "t", keys=frame(beyond, wide))) == []
    once(job, lambda batch, _, state: state.table("t", ["k", "p"]).delete(frame([*shared[1:], *beyond], wide)))
    assert read_state(spark, job.root, "t").count() == 1
    once(job, lambda batch, _, state: state.table("t", ["k", "p"]).upsert(everything))
    assert read_state(spark, job.root, "t").count() == len(shared) + len(beyond)


def test_a_name_is_no_pattern_where_a_session_takes_quoted_names_for_some(job: Job, spark: SparkSession) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["key"], combine={"sum(amount)": "sum"})
        table.upsert(batch.groupBy("key").sum("amount"))

    spark.conf.set("spark.sql.parser.quotedRegexColumnNames", "true")
    try:
        for _ in range(2):
            once(job, body)
    finally:
        spark.conf.unset("spark.sql.parser.quotedRegexColumnNames")
    assert rows(read_state(spark, job.root, "t")) == [("x", 2)]
