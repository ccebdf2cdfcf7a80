"""Rows that a function emitted, few and many, as a DataFrame."""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer.spark import emitted
from pyspark_checkpointer.spark.emitted import PLANNED_BYTES, frame_of_emitted
from pyspark_checkpointer.spark.versions import is_at_least, parse_schema

SETTING = "spark.sql.execution.arrow.localRelationThreshold"
LIMIT = "spark.sql.execution.arrow.maxRecordsPerBatch"

COLUMNS = (
    "k long, at timestamp, local timestamp_ntz, day date, n decimal(38, 2), data binary, text string, "
    "lists array<struct<x: int>>, pairs map<string, double>, span interval day to second"
)
ARROW = pa.schema(
    {
        "k": pa.int64(),
        "at": pa.timestamp("us", "UTC"),
        "local": pa.timestamp("us"),
        "day": pa.date32(),
        "n": pa.decimal128(38, 2),
        "data": pa.binary(),
        "text": pa.string(),
        "lists": pa.list_(pa.struct({"x": pa.int32()})),
        "pairs": pa.map_(pa.string(), pa.float64()),
        "span": pa.duration("us"),
    }
)


def row(k: int) -> dict[str, Any]:
    if k % 7 == 0:
        return {"k": k} | dict.fromkeys(ARROW.names[1:])
    at = datetime(1890 + k % 200, 3, 31, 2, 30, 0, k)
    return {
        "k": k,
        "at": at.replace(tzinfo=UTC),
        "local": at,
        "day": date(1500 + k % 600, 2, 28),
        "n": Decimal(k) * 10**30 + Decimal("0.25"),
        "data": bytes([k % 256, 0]),
        "text": chr(0x1F600 + k % 50) * (k % 3),
        "lists": [{"x": k}, {"x": None}, None],
        "pairs": {"a": k / 3, "b": None},
        "span": timedelta(days=-k, microseconds=1),
    }


def frame_of(spark: SparkSession, count: int) -> tuple[DataFrame, list[dict[str, Any]]]:
    given = [row(k) for k in range(count)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, ARROW) as stream:
        stream.write_table(pa.Table.from_pylist(given, schema=ARROW))
    schema: Any = parse_schema(COLUMNS)
    root: Any = None  # nothing is stored
    return frame_of_emitted(spark, root, schema, ARROW, [sink.getvalue().to_pybytes()]), given


def plan(frame: DataFrame) -> str:
    text: str = frame._jdf.queryExecution().analyzed().toString()  # type: ignore[operator]
    return text


@pytest.fixture
def unset(spark: SparkSession) -> Iterator[None]:
    assert spark.conf.get(SETTING, None) is None
    yield
    spark.conf.unset(SETTING)


pytestmark = pytest.mark.skipif(not is_at_least("4.0"), reason="PySpark 3.5 takes no Arrow tables")


@pytest.mark.parametrize("count", [0, 1, 400, 5000])
def test_many_rows_stay_out_of_the_plan_and_are_the_same(spark: SparkSession, unset: None, count: int) -> None:
    frame, given = frame_of(spark, count)
    assert ("LocalRelation" in plan(frame)) == (count < 1000)
    assert frame.rdd.getNumPartitions() >= min(count, spark.sparkContext.defaultParallelism)
    assert spark.conf.get(SETTING, None) is None
    found = frame.selectExpr("*", "unix_micros(at) AS micros").toArrow()
    micros = [None if one["at"] is None else (one["at"] - datetime(1970, 1, 1, tzinfo=UTC)) for one in given]
    assert [None if m is None else timedelta(microseconds=m) for m in found["micros"].to_pylist()] == micros
    rest = [name for name in ARROW.names if name != "at"]
    told = pa.Table.from_pylist(given, schema=ARROW).select(rest)
    assert found.select(rest).cast(told.schema).to_pylist() == told.to_pylist()
    assert frame.count() == frame.select("k").distinct().count() == count  # as often as wanted


def test_what_the_user_has_set_counts(spark: SparkSession, unset: None) -> None:
    spark.conf.set(SETTING, "48MB")
    assert "LocalRelation" in plan(frame_of(spark, 5000)[0])
    spark.conf.set(SETTING, "0")
    assert "LocalRelation" not in plan(frame_of(spark, 1)[0])
    assert spark.conf.get(SETTING) == "0"


@pytest.mark.parametrize("limit", ["0", "-1"])
@pytest.mark.parametrize("count", [0, 5, 5000])
def test_a_user_may_set_no_limit_for_batches(spark: SparkSession, limit: str, count: int) -> None:
    spark.conf.set(LIMIT, limit)
    try:
        frame, given = frame_of(spark, count)
        assert sorted(frame.select("k").toArrow()["k"].to_pylist()) == [one["k"] for one in given]
        assert spark.conf.get(LIMIT) == limit
    finally:
        spark.conf.unset(LIMIT)


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_other_threads_keep_their_batches(
    spark: SparkSession, unset: None, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    seen, kind = [], type(spark)
    create = kind.createDataFrame

    def look(*given: Any) -> DataFrame:
        seen.append(spark.conf.get(LIMIT, None))
        frame: DataFrame = create(*given)
        return frame

    monkeypatch.setattr(kind, "createDataFrame", look)
    frame_of(spark, count)
    assert seen == [None]


def test_few_rows_are_broadcast_by_however_many_tasks_they_could_be_read(
    spark: SparkSession, unset: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(emitted, "parallelism", lambda spark: 400)
    frame, _ = frame_of(spark, 900)
    assert "LocalRelation" in plan(frame)
    adaptive = "spark.sql.adaptive.enabled"
    before = spark.conf.get(adaptive)
    spark.conf.set(adaptive, "false")
    try:
        joined = spark.range(10**9).join(frame, F.col("id") == F.col("k"))
        executed: str = joined._jdf.queryExecution().executedPlan().toString()  # type: ignore[operator]
    finally:
        spark.conf.set(adaptive, str(before))
    assert "BroadcastHashJoin" in executed


def test_the_setting_goes_also_after_an_error(
    spark: SparkSession, unset: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> DataFrame:
        assert spark.conf.get(SETTING) == str(PLANNED_BYTES)
        raise ZeroDivisionError

    monkeypatch.setattr(type(spark), "createDataFrame", fail)
    with pytest.raises(ZeroDivisionError):
        frame_of(spark, 5000)
    assert spark.conf.get(SETTING, None) is None
