"""What a table refuses: by name, before anything is committed, and with a way to go on."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer, compaction
from pyspark_checkpointer.errors import CheckpointError, InvalidStateError
from pyspark_checkpointer.spark import Change, State, read_state, scan, stateful, table_changes
from pyspark_checkpointer.spark.versions import is_at_least
from pyspark_checkpointer.table.schema import PARTITION
from tests.spark.conftest import Job
from tests.spark.needs import COLLATIONS, VARIANTS, needs_spark
from tests.spark.tables import Body, all_refused, artifacts, once, refused, rows


def test_a_table_call_that_failed_spoils_the_batch_even_if_the_callback_goes_on(job: Job) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["key"])
        try:
            table.upsert(batch.union(batch))
        except CheckpointError:
            pass
        else:
            raise AssertionError("duplicates were taken")

    with pytest.raises(StreamingQueryException, match="a state call failed"):
        once(job, body)
    assert Checkpointer(job.root).read_latest() is None


@pytest.mark.parametrize(
    ("options", "sql", "said"),
    [
        ({}, "select key, map('a', 1) m, cast(null as void) v from b", "column 'v': type void cannot be stored"),
        ({"key": ["m"]}, "select map('a', 1) m from b", "column 'm': map<string,integer> cannot be a key"),
        pytest.param(
            {"key": ["v"]},
            "select parse_json('1') v from b",
            "column 'v': variant cannot be a key",
            marks=needs_spark("4.0", VARIANTS),
        ),
        pytest.param(
            {"key": ["c"]},
            "select 'a' collate UTF8_LCASE c from b",
            "column 'c': a collated string cannot be a key",
            marks=needs_spark("4.0", COLLATIONS),
        ),
        ({"key": ["nope"]}, "select key from b", "column 'nope' is missing"),
        ({"key": []}, "select key from b", "expected at least one column"),
        ({"num_partitions": 0}, "select key from b", "num_partitions=0: expected an integer from 1"),
        ({"combine": {"v": "avg"}}, "select key, 1 v from b", "combine='avg'"),
        ({"combine": {"v": "sum"}}, "select key, 'a' v from b", "sum of string is not defined"),
        ({"combine": {"key": "sum"}}, "select key from b", "a key column cannot be combined"),
        ({}, "select key, 1 v from b union all select key, 2 v from b", "several rows have the key key='x'"),
        ({}, "select key, 1 `__change` from b", "the name is taken"),
    ],
)
def test_what_a_table_cannot_hold_is_refused_by_name(job: Job, options: Any, sql: str, said: str) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        batch.createOrReplaceTempView("b")
        state.table("t", **{"key": ["key"], **options}).upsert(batch.sparkSession.sql(sql))

    assert said in refused(job, body)
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.operators == []


def test_a_sum_that_overflows_raises_and_a_wider_column_is_the_way_out(job: Job, spark: SparkSession) -> None:
    def add(kind: str) -> Body:
        def body(batch: DataFrame, batch_id: int, state: State) -> None:
            table = state.table("t", ["key"], combine={"v": "sum"})
            table.upsert(batch.select("key", F.lit(2**62).cast(kind).alias("v")))
            table.read().collect()

        return body

    once(job, add("long"))
    with pytest.raises(StreamingQueryException, match="does not fit into its type"):
        once(job, add("long"))
    job.run(stateful(job.root)(add("decimal(38,0)")))
    assert rows(read_state(spark, job.root, "t")) == [("x", 2**63)]


def test_an_overflow_in_a_task_is_an_error_of_the_tree(job: Job) -> None:
    """In one batch already, and in a task that compacts: neither is tried again, and both say what to do."""
    caught: list[Exception] = []

    def add(*values: int, compact: bool = False) -> Body:
        def body(batch: DataFrame, batch_id: int, state: State) -> None:
            table = state.table("t", ["k"], combine={"v": "sum"})
            try:
                table.upsert(
                    batch.sparkSession.createDataFrame([(1, value) for value in values], "k long, v long").coalesce(1)
                )
                if compact:
                    table.compact()
            except CheckpointError as error:
                caught.append(error)
                raise

        return body

    once(job, add(2**62))
    # The first is told to the callback, and the other at the end of its batch.
    for body in (add(2**62, 2**62), add(2**62, compact=True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compaction, "DRIVER_BYTES", 1)
            with pytest.raises(StreamingQueryException, match=r"InvalidStateError: .* does not fit into its type"):
                once(job, body)
        once(job, lambda batch, batch_id, state: None)
    assert [type(error).__name__ for error in caught] == ["InvalidStateError"]


def test_a_task_writes_nothing_where_spark_hashes_otherwise(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    right = table_changes.rows_of

    def shifted(*args: Any) -> DataFrame:
        return right(*args).withColumn(PARTITION, F.pmod(F.col(PARTITION) + 1, F.lit(8)))

    monkeypatch.setattr(table_changes, "rows_of", shifted)
    with pytest.raises(StreamingQueryException, match="this version of Spark may hash keys in another way"):
        once(job, lambda batch, _, state: state.table("t", ["key"], num_partitions=8).upsert(batch))
    assert not list(Path(job.root).rglob("*.parquet"))


def look_up(batch: DataFrame, batch_id: int, state: State) -> None:
    state.table("t", ["key"]).lookup(batch.select("key")).collect()


def emit_alone(batch: DataFrame, batch_id: int, state: State) -> None:
    output = state.table("t", ["key"]).apply(batch, lambda given, old: Change(output=given), batch.schema)
    output.collect()


@pytest.mark.parametrize(
    ("module", "name", "read"), [(scan, "rows_of", look_up), (table_changes, "all_columns_of", emit_alone)]
)
def test_a_task_finds_nothing_missing_where_spark_hashes_otherwise(
    job: Job, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, read: Body
) -> None:
    once(job, lambda batch, _, state: state.table("t", ["key"], num_partitions=8).upsert(batch))
    right = getattr(module, name)

    def shifted(*args: Any) -> DataFrame:
        return right(*args).withColumn(PARTITION, F.pmod(F.col(PARTITION) + 1, F.lit(8)))

    monkeypatch.setattr(module, name, shifted)
    with pytest.raises(StreamingQueryException, match="a function of its own that is named hash"):
        once(job, read)


def test_keys_of_another_type_are_refused_and_not_cast(job: Job) -> None:
    def fill(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("t", ["k"]).upsert(batch.sparkSession.range(3).toDF("k"))

    def use(what: str, keys: str) -> Body:
        return lambda batch, _, state: getattr(state.table("t", ["k"]), what)(batch.sparkSession.sql(f"select {keys}"))

    others = ["1.9D k", "'x' k", "timestamp'2024-01-01 12:00:00' k", "1D k"]
    if is_at_least("4.0"):
        others.append("'1' collate UTF8_LCASE k")
    once(job, fill)
    for said in all_refused(job, [use(what, keys) for what in ("delete", "lookup") for keys in others]):
        assert "column 'k' of its key is long, not" in said


def test_a_combined_column_that_the_schema_does_not_have_is_refused(job: Job) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("t", ["key"], combine={"amuont": "sum"}, schema="key string, amount long")

    assert "column 'amuont' is missing; there are key, amount" in refused(job, body)


def test_a_dropped_table_takes_nothing_more(job: Job) -> None:
    def body(used: bool) -> Body:
        def update(batch: DataFrame, batch_id: int, state: State) -> None:
            table = state.table("t", ["key"])
            table.upsert(batch)
            state.drop("t")
            if used:
                with suppress(InvalidStateError):
                    table.upsert(batch)
            again = state.table("t", ["key"])
            again.upsert(batch.withColumn("more", F.lit(1)))

        return update

    with pytest.raises(StreamingQueryException, match="table 't': was dropped in this batch: open it again"):
        once(job, body(True))
    once(job, body(False))
    assert len(artifacts(job.root, "t")) > 0


def test_a_name_is_a_map_or_a_table(job: Job) -> None:
    def both(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("m")["a"] = 1
        state.table("m", ["key"])

    assert "a map of this job has that name" in refused(job, both)
    once(job, lambda batch, _, state: state.table("t", ["key"]).upsert(batch))
    assert "the state has a table of that name: state.table('t', key=…)" in refused(
        job, lambda batch, _, state: state.map("t")
    )


def test_a_sum_beyond_all_types_commits_nothing_and_both_ways_out_are_ways(job: Job, spark: SparkSession) -> None:
    def add(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["key"], combine={"v": "sum"})
        table.upsert(batch.select("key", F.lit("9" * 38).cast("decimal(38,0)").alias("v")))
        table.read().collect()

    once(job, add)
    committed = Checkpointer(job.root).read_latest()
    with pytest.raises(StreamingQueryException, match=r"column 'v' of the key key='x' does not fit .*drop_columns"):
        once(job, add)
    assert Checkpointer(job.root).read_latest() == committed

    def leave(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["key"])
        table.drop_columns(["v"])
        table.upsert(batch.select("key", F.lit(1e38).alias("v")))

    once(job, leave)
    assert rows(read_state(spark, job.root, "t")) == [("x", 1e38)]
