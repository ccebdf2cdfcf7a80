"""`state.table` on real queries: rows are combined, visible to the batch that wrote them, and committed together."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.spark import Snapshot, State, read_state, stateful
from tests.spark.conftest import Job
from tests.spark.tables import artifacts, once, rows


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
    """The batch fails if it is refused before the commit; else what it began is in the batch, and nothing by half."""
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

    with suppress(StreamingQueryException):
        once(job, body)
    threads[0].join(60)
    ((steps, said),) = ends
    assert "batch 0 has ended" in said
    restored = Checkpointer(job.root).restore()
    if restored is not None:
        written = restored.table("t").num_rows if "t" in restored.operators else 0
        assert written == 100 * steps


def test_a_table_can_be_read_before_anything_was_written_if_its_schema_is_said(job: Job) -> None:
    seen = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["key"], combine={"amount": "sum"}, schema="key string, amount long")
        seen.append((table.read().count(), table.lookup(batch.select("key")).count()))
        table.upsert(batch)

    once(job, body)
    once(job, body)
    assert seen == [(0, 0), (1, 1)]
