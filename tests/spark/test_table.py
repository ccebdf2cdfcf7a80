"""`state.table` on real queries: rows are combined, visible to the batch that wrote them, and committed together."""

import itertools
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import duckdb
import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from pyspark_checkpointer import Checkpointer, compaction
from pyspark_checkpointer.compaction import SMALL_PARTITION
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.spark import Snapshot, State, read_state, stateful, table_changes
from pyspark_checkpointer.table.schema import PARTITION
from tests.spark.conftest import Job

Body = Callable[[DataFrame, int, State], None]


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.collect()), key=str)


def once(job: Job, body: Body, **options: Any) -> None:
    """One more batch, run by `body`."""
    job.feed(("x", 1))

    @stateful(job.root, **options)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        body(batch, batch_id, state)

    job.run(update)


def refused(job: Job, body: Body) -> str:
    """What a batch was refused with; the same batch is run without it afterwards, so that the next one can come."""
    caught: list[CheckpointError] = []

    def run(batch: DataFrame, batch_id: int, state: State) -> None:
        try:
            body(batch, batch_id, state)
        except CheckpointError as error:
            caught.append(error)
            raise

    with pytest.raises(StreamingQueryException):
        once(job, run)
    (error,) = caught
    assert isinstance(error, IllegalArgumentError)
    once(job, lambda batch, batch_id, state: None)
    return str(error)


def artifacts(root: str, operator: str) -> list[Any]:
    restored = Checkpointer(root).restore()
    assert restored is not None
    assert restored.manifest is not None
    chains = restored.manifest.operators[operator].chains
    return [artifact for chain in chains.values() for artifact in chain]


def test_a_running_sum_goes_on_from_batch_to_batch_and_from_run_to_run(job: Job, spark: SparkSession) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        totals = state.table("totals", ["key"], num_partitions=4, combine={"amount": "sum", "most": "max"})
        totals.upsert(batch.groupBy("key").agg(F.sum("amount").alias("amount"), F.max("amount").alias("most")))

    job.feed(("a", 1), ("b", 2), ("a", 4))
    job.feed(("a", 10))
    job.run(update)
    job.feed(("b", 20), ("c", 5))
    job.run(update)
    assert rows(read_state(spark, job.root, "totals")) == [("a", 15, 10), ("b", 22, 20), ("c", 5, 5)]


def test_a_batch_that_is_replayed_counts_once(job: Job, spark: SparkSession) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("totals", ["key"], combine={"amount": "sum"}).upsert(batch)

    job.feed(("a", 1), ("a", 2))
    job.run(update)
    job.forget_commit(0)
    job.feed(("a", 10))
    job.run(update)
    assert rows(read_state(spark, job.root, "totals")) == [("a", 13)]


def test_what_the_callback_wrote_is_visible_to_its_own_later_reads_which_stay_as_they_are(job: Job) -> None:
    seen = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["k"])
        spark = batch.sparkSession
        table.upsert(spark.createDataFrame([(1, "a"), (2, "b")], "k long, v string"))
        first = table.read()
        table.upsert(spark.createDataFrame([(2, "c"), (3, "d")], "k long, v string"))
        table.delete(spark.createDataFrame([(1,)], "k long"))
        seen.append((rows(first), rows(table.read()), rows(table.lookup(spark.createDataFrame([(3,)], "k long")))))

    once(job, body)
    assert seen == [([(1, "a"), (2, "b")], [(2, "c"), (3, "d")], [(3, "d")])]


def test_tables_and_maps_of_a_batch_are_committed_together_or_not_at_all(job: Job, spark: SparkSession) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("a", ["key"]).upsert(batch)
        state.table("b", ["key"]).upsert(batch)
        state.map("m")["batch"] = batch_id
        if fail:
            raise ValueError("the callback failed")

    fail = False
    once(job, body)
    before = Checkpointer(job.root).read_latest()
    fail = True
    with pytest.raises(StreamingQueryException):
        once(job, body)
    assert Checkpointer(job.root).read_latest() == before
    fail = False
    job.run(stateful(job.root)(body))
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.operators == ["a", "b", "m"]
    assert dict(restored.keyed("m")) == {"batch": 1}


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


def test_deletion_then_upsert_starts_anew(job: Job, spark: SparkSession) -> None:
    def one(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["key"], combine={"amount": "sum"})
        table.upsert(batch)
        if batch_id:
            table.delete(batch.select("key"))
            table.upsert(batch)

    once(job, one)
    once(job, one)
    assert rows(read_state(spark, job.root, "t")) == [("x", 1)]


def test_replacing_with_nothing_empties_every_partition(job: Job, spark: SparkSession) -> None:
    once(job, lambda batch, _, state: state.table("t", ["id"]).upsert(batch.sparkSession.range(100)))
    once(job, lambda batch, _, state: state.table("t", ["id"]).replace(batch.sparkSession.range(0)))
    assert rows(read_state(spark, job.root, "t")) == []
    assert artifacts(job.root, "t") == []


@pytest.mark.parametrize(
    ("options", "sql", "said"),
    [
        ({}, "select key, map('a', 1) m, cast(null as void) v from b", "column 'v': type void cannot be stored"),
        ({"key": ["m"]}, "select map('a', 1) m from b", "column 'm': map<string,integer> cannot be a key"),
        ({"key": ["v"]}, "select parse_json('1') v from b", "column 'v': variant cannot be a key"),
        ({"key": ["c"]}, "select 'a' collate UTF8_LCASE c from b", "column 'c': a collated string cannot be a key"),
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
    for body in (add(2**62, 2**62), add(2**62, compact=True)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(table_changes, "DRIVER_BYTES", 1)
            with pytest.raises(StreamingQueryException, match="does not fit into its type"):
                once(job, body)
        once(job, lambda batch, batch_id, state: None)
    assert [type(error).__name__ for error in caught] == ["InvalidStateError"] * 2


def test_a_task_writes_nothing_where_spark_hashes_otherwise(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    right = table_changes.rows_of

    def shifted(*args: Any) -> DataFrame:
        return right(*args).withColumn(PARTITION, F.pmod(F.col(PARTITION) + 1, F.lit(8)))

    monkeypatch.setattr(table_changes, "rows_of", shifted)
    with pytest.raises(StreamingQueryException, match="does this version of Spark hash them otherwise"):
        once(job, lambda batch, _, state: state.table("t", ["key"], num_partitions=8).upsert(batch))
    assert not list(Path(job.root).rglob("*.parquet"))


def test_many_changes_are_brought_together_from_the_next_batch_on(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One pack of each task makes all chains longer; that happens once, not in every batch."""
    monkeypatch.setattr(table_changes, "DRIVER_BYTES", 4 << 10)
    lengths = []

    @stateful(job.root, max_chain=30)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        changed = batch.sparkSession.range(4000).repartition(4).withColumn("n", F.lit(1))
        state.table("t", ["id"], num_partitions=4, combine={"n": "sum"}).upsert(changed)

    for _ in range(4):
        job.feed(("x", 1))
    job.run(update)
    for checkpoint in Checkpointer(job.root).list_checkpoints():
        restored = Checkpointer(job.root).restore(checkpoint)
        assert restored is not None
        assert restored.manifest is not None
        lengths.append(max(len(chain) for chain in restored.manifest.operators["t"].chains.values()))
    assert [later - sooner for sooner, later in itertools.pairwise(lengths)] == [4, 1, 1]
    assert read_state(spark, job.root, "t").where("n = 4").count() == 4000


@pytest.mark.parametrize("keys", ["1.9D k", "'x' k", "timestamp'2024-01-01 12:00:00' k", "1D k"])
def test_keys_of_another_type_are_refused_and_not_cast(job: Job, keys: str) -> None:
    def fill(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("t", ["k"]).upsert(batch.sparkSession.range(3).toDF("k"))

    once(job, fill)
    for what in ("delete", "lookup"):

        def use(batch: DataFrame, batch_id: int, state: State, what: str = what) -> None:
            getattr(state.table("t", ["k"]), what)(batch.sparkSession.sql(f"select {keys}"))

        assert "column 'k' of its key is long, not" in refused(job, use)


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


def test_small_changes_of_many_partitions_are_one_object(job: Job, spark: SparkSession) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        changed = batch.sparkSession.range(10_000).repartition(4)
        state.table("t", ["id"], num_partitions=200).upsert(changed.withColumn("v", F.lit(batch_id)))

    once(job, body)
    once(job, body)
    newest = Checkpointer(job.root).read_latest()
    paths = {artifact.path for artifact in artifacts(job.root, "t")}
    assert len({path for path in paths if str(newest) in path}) == 1
    assert len(paths) == 2
    assert read_state(spark, job.root, "t").where("v = 1").count() == 10_000


def test_a_batch_that_changes_nothing_writes_no_artifact(job: Job) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("t", ["id"]).upsert(batch.sparkSession.range(10 if batch_id == 0 else 0))

    once(job, body)
    before = artifacts(job.root, "t")
    once(job, body)
    assert artifacts(job.root, "t") == before


def test_rows_that_come_out_of_a_group_by_of_the_key_are_not_shuffled_again(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    shuffled = []
    repartition = ClassicFrame.repartition

    def watched(self: ClassicFrame, *columns: Any) -> DataFrame:
        shuffled.append(columns)
        return repartition(self, *columns)

    monkeypatch.setattr(ClassicFrame, "repartition", watched)

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        grouped = batch.groupBy("key").agg(F.sum("amount").alias("amount")).where("amount > 0")
        state.table("t", ["key"]).upsert(grouped if batch_id else batch)

    once(job, body)
    assert len(shuffled) == 1  # the first rows of a table
    once(job, body)
    assert len(shuffled) == 1
    once(job, lambda batch, _, state: state.table("t", ["key"]).upsert(batch))
    assert len(shuffled) == 2


@pytest.mark.parametrize("driver_bytes", [1, 1200, 16 << 20])
def test_any_history_of_changes_is_what_a_dict_would_hold(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, driver_bytes: int
) -> None:
    """Written and compacted by tasks and by the driver, in changing numbers of partitions, with chains of at most 4."""
    monkeypatch.setattr(table_changes, "DRIVER_BYTES", driver_bytes)
    monkeypatch.setattr(compaction, "COMPACT_ROWS", 8)
    draw, model = random.Random(driver_bytes), {}
    keys = [None, "a", "b", "c", "ß", "d"]
    chains = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["k", "f"], num_partitions=draw.choice([3, 3, 5]), combine={"n": "sum", "top": "max"})
        for _ in range(draw.choice([1, 1, 2])):
            given = [
                (
                    draw.choice(keys),
                    draw.choice([None, 0.0, -0.0, 1.5]),
                    draw.choice([None, draw.randrange(9)]),
                    batch_id,
                )
                for _ in range(draw.choice([1, 5, 30]))
            ]
            frame = batch.sparkSession.createDataFrame(given, "k string, f double, n long, top int")
            what = draw.choice(["upsert"] * 6 + ["delete", "replace"]) if model else "upsert"
            if what == "delete":
                table.delete(frame)
            else:
                getattr(table, what)(frame)
            if what == "replace":
                model.clear()
            for k, f, n, top in given:
                key = (k, f)  # -0.0 and 0.0 are one key of a dict too
                if what == "delete":
                    model.pop(key, None)
                else:
                    old = model.get(key, (None, top))[0]
                    model[key] = (n if old is None else old + (n or 0), top)
        if what != "delete" or table._changes.version is not None:
            assert {(r.k, r.f): (r.n, r.top) for r in table.read().collect()} == model

    for _ in range(8):
        once(job, body, max_chain=4)
        found = {(r.k, r.f): (r.n, r.top) for r in read_state(spark, job.root, "t").collect()}
        assert found == model
        restored = Checkpointer(job.root).restore()
        assert restored is not None
        assert restored.manifest is not None
        chains += [len(chain) for chain in restored.manifest.operators["t"].chains.values()]
        assert restored.table("t").num_rows == len(model)
    assert 1 < max(chains) <= 5


def test_snapshots_due_at_once_are_spread_over_batches(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "COMPACT_ROWS", 1)
    snapshots = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("t", ["id"], num_partitions=20).upsert(
            batch.sparkSession.range(1000).withColumn("v", F.lit(batch_id))
        )

    for _ in range(3):
        once(job, body)
        newest = str(Checkpointer(job.root).read_latest())
        written = {a.path for a in artifacts(job.root, "t") if newest in a.path and a.length and a.kind == "snapshot"}
        snapshots.append(len(written))
    assert snapshots == [2, 2, 2]


def test_compaction_on_demand_leaves_one_snapshot_for_each_partition(job: Job, spark: SparkSession) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["id"], num_partitions=4, combine={"v": "sum"})
        table.upsert(batch.sparkSession.range(100).withColumn("v", F.lit(1)))
        if batch_id == 2:
            table.compact()

    for _ in range(3):
        once(job, body)
    assert sorted(artifact.kind for artifact in artifacts(job.root, "t")) == ["snapshot"] * 4
    assert read_state(spark, job.root, "t").where("v = 3").count() == 100


def test_a_new_number_of_partitions_takes_effect_with_the_next_commit_and_reads_right_before(
    job: Job, spark: SparkSession
) -> None:
    once(job, lambda b, _, state: state.table("t", ["id"], num_partitions=3).upsert(b.sparkSession.range(100)))
    seen = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["id"], num_partitions=7)
        seen.append(table.read().count())

    once(job, body)
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.manifest is not None
    assert restored.manifest.operators["t"].partitions == 7
    assert seen == [100]
    assert rows(read_state(spark, job.root, "t")) == rows(spark.range(100))
    found = restored.table("t", keys=[{"id": 5}, {"id": 1000}])
    assert found.to_pylist() == [{"id": 5}]


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
    assert "'amount' is combined as 'sum', not as 'max'" in refused(job, body({"amount": "max"}, "'z' v"))
    assert "column 'nothing' is missing" in refused(job, body({"nothing": "sum"}, "'z' v"))
    assert "differs from one of (key string key, amount long sum, v string) in its case alone" in refused(
        job, body({}, "1L Amount")
    )
    assert "column 'key' is missing" in refused(
        job, lambda batch, _, state: state.table("t", ["key"]).upsert(batch.select("amount"))
    )


@pytest.mark.parametrize("driver_bytes", [1, 16 << 20])
def test_a_deletion_from_nothing_adds_nothing(
    job: Job, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, driver_bytes: int
) -> None:
    """Of a table that is empty, of one that became empty, and of partitions that are."""
    monkeypatch.setattr(table_changes, "DRIVER_BYTES", driver_bytes)
    found = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        keys = batch.sparkSession.range(2 * SMALL_PARTITION)
        table = state.table("t", ["id"], num_partitions=1, schema="id long, v string")
        table.delete(keys)
        found.append(table.read().count())
        table.upsert(keys.selectExpr("id", "'x' v"))
        table.delete(keys)
        table.compact()
        assert table._changes.version is not None
        assert table._changes.version.chains == {}
        table.delete(keys)
        found.append(table.read().count())
        few = state.table("few", ["id"], num_partitions=64)
        few.upsert(keys.limit(1))
        few.delete(keys.where("id > 0"))
        found.append(few.read().count())

    once(job, body)
    assert found == [0, 0, 1]
    assert artifacts(job.root, "t") == []
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.manifest is not None
    assert len(restored.manifest.operators["few"].chains) == 1


def together(*work: Callable[[], None]) -> None:
    """Do all of it at once, each in a thread; raises what one of them raised."""
    with ThreadPoolExecutor(len(work)) as pool:
        for done in [pool.submit(one) for one in work]:
            done.result()


def test_threads_of_one_callback_lose_nothing(job: Job, spark: SparkSession) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        opened = state.table("one", ["id"], num_partitions=2), state.table("two", ["id"], num_partitions=2)

        def write(thread: int) -> Callable[[], None]:
            def work() -> None:
                for step in range(2):
                    first = 50 * (2 * thread + step)
                    frame = batch.sparkSession.range(first, first + 50).withColumn("v", F.lit(thread))
                    opened[thread % 2].upsert(frame)
                    state.write_partitions(
                        "raw", frame.coalesce(1), lambda p, b: Snapshot(b"x"), key=["id"], num_partitions=3
                    )
                    state.map("seen")[f"{thread}-{step}"] = True

            return work

        together(*map(write, range(4)))
        assert [table.read().count() for table in opened] == [200, 200]

    once(job, body)
    assert read_state(spark, job.root, "one").count() + read_state(spark, job.root, "two").count() == 400
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert len(restored.keyed("seen")) == 8
    assert [restored.operator("raw").partition(p) for p in range(3)] == [[b"x"]] * 3


def test_a_thread_that_outlives_its_callback_is_refused_and_the_batch_is_whole(job: Job, spark: SparkSession) -> None:
    """What it began is in the batch, what it wants after that is not; nothing is there by half."""
    ends: list[Any] = []
    threads = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table, began = state.table("t", ["id"], num_partitions=2), Event()

        def late() -> None:
            for step in itertools.count():
                frame = batch.sparkSession.range(100 * step, 100 * step + 100)
                began.set()
                try:
                    table.upsert(frame)
                except InvalidStateError as error:
                    ends.append((step, str(error)))
                    return

        threads.append(Thread(target=late))
        threads[0].start()
        assert began.wait(60)

    once(job, body)
    threads[0].join(60)
    ((steps, said),) = ends
    assert "batch 0 has ended" in said
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    written = restored.table("t").num_rows if "t" in restored.operators else 0
    assert written == 100 * steps


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


def test_a_table_can_be_read_before_anything_was_written_if_its_schema_is_said(job: Job) -> None:
    seen = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["key"], combine={"amount": "sum"}, schema="key string, amount long")
        seen.append((table.read().count(), table.lookup(batch.select("key")).count()))
        table.upsert(batch)

    once(job, body)
    once(job, body)
    assert seen == [(0, 0), (1, 1)]


def test_nothing_stays_persisted(job: Job, spark: SparkSession) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["id"], num_partitions=3 + batch_id)
        table.upsert(batch.sparkSession.range(1000))
        table.compact()

    once(job, body)
    once(job, body)
    assert dict(spark.sparkContext._jsc.getPersistentRDDs()) == {}  # type: ignore[attr-defined]


def test_a_snapshot_is_a_plain_parquet_file(job: Job, tmp_path: Path) -> None:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["id"], num_partitions=1)
        table.upsert(batch.sparkSession.range(100).withColumn("name", F.concat(F.lit("n"), "id")))
        table.compact()

    once(job, body)
    (artifact,) = artifacts(job.root, "t")
    found = duckdb.sql(f"select count(*), min(name), max(id) from read_parquet('{job.root}/{artifact.path}')")
    assert found.fetchall() == [(100, "n0", 99)]


def test_a_name_is_a_map_or_a_table(job: Job) -> None:
    def both(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("m")["a"] = 1
        state.table("m", ["key"])

    assert "a map of this job has that name" in refused(job, both)
    once(job, lambda batch, _, state: state.table("t", ["key"]).upsert(batch))
    assert "the state has a table of that name: state.table('t', key=…)" in refused(
        job, lambda batch, _, state: state.map("t")
    )


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
