"""`read_changes` on real Spark: what each checkpoint changed, as rows in their order."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.errors import (
    CheckpointNotFoundError,
    IllegalArgumentError,
    OperatorNotFoundError,
    RetiredError,
)
from pyspark_checkpointer.spark import Expire, State, diff, read_changes, read_state, stateful
from tests.spark.conftest import Job
from tests.spark.needs import DATA_SOURCES, skip_before
from tests.spark.tables import Body, once

DAY = datetime(2024, 1, 1, tzinfo=UTC)


def upsert(values: str) -> Body:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        rows = batch.sparkSession.sql(f"SELECT * FROM VALUES {values} AS t(k, v)")
        state.table("t", ["k"], num_partitions=2).upsert(rows)

    return body


def delete(key: int) -> Body:
    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("t", ["k"])
        table.delete(batch.sparkSession.sql(f"SELECT {key} AS k"))
        table.compact()

    return body


def nothing(batch: DataFrame, batch_id: int, state: State) -> None:
    state.table("t", ["k"])


def changes(job: Job, operator: str = "t", **options: Any) -> list[tuple[Any, ...]]:
    """The changes, without the ids, in their order; those of one checkpoint in order of the key."""
    found = [tuple(row)[1:] for row in read_changes(job.spark, job.root, operator, **options).collect()]
    assert [row[0] for row in found] == sorted(row[0] for row in found)
    return sorted(found, key=lambda row: (row[0], row[3]))  # stable: of an update, the row before stays first


FEED = [
    (1, 0, "insert", 1, "a"),
    (1, 0, "insert", 2, "b"),
    (2, 1, "update_before", 1, "a"),
    (2, 1, "update_after", 1, "A"),
    (2, 1, "insert", 3, "c"),
    (4, 3, "delete", 2, "b"),
]


def test_each_checkpoint_has_its_changes(job: Job) -> None:
    for body in (upsert("(1, 'a'), (2, 'b')"), upsert("(1, 'A'), (2, 'b'), (3, 'c')"), nothing, delete(2)):
        once(job, body)
    assert changes(job) == FEED
    ids = [str(checkpoint) for checkpoint in Checkpointer(job.root).list_checkpoints()]
    assert changes(job, after="epoch=0") == FEED[2:]
    assert changes(job, after=ids[0], to=ids[1]) == FEED[2:5]
    assert changes(job, to=ids[0]) == FEED[:2]
    assert changes(job, after=ids[-1]) == []
    frame = read_changes(job.spark, job.root, "t", after="epoch=0")
    assert frame.columns == ["checkpoint", "sequence", "epoch", "change", "k", "v"]
    assert {row.checkpoint for row in frame.collect()} == {ids[1], ids[3]}
    once(job, upsert("(9, 'z')"))  # The frame stays at its checkpoints.
    assert frame.count() == 4


def test_what_expires_and_a_column_that_is_new(job: Job) -> None:
    def at(days: int, row: str) -> Body:
        def body(batch: DataFrame, batch_id: int, state: State) -> None:
            state.advance_clock(DAY + timedelta(days=days))
            rows = batch.sparkSession.sql(row)
            state.table("t", ["k"], expire=Expire("at", after=timedelta(days=2))).upsert(rows)

        return body

    once(job, at(0, "SELECT 1 AS k, TIMESTAMP'2024-01-01T00:00:00Z' AS at"))
    once(job, at(1, "SELECT 2 AS k, TIMESTAMP'2024-01-02T00:00:00Z' AS at, 7 AS change"))
    once(job, at(2, "SELECT 3 AS k, TIMESTAMP'2024-01-03T00:00:00Z' AS at, 8 AS change"))
    found = [(row[1], row[3], row.k, row.change) for row in read_changes(job.spark, job.root, "t").collect()]
    assert sorted(found) == [
        (1, "insert", 1, None),
        (2, "insert", 2, 7),
        (3, "expire", 1, None),
        (3, "insert", 3, 8),
    ]
    assert "change_" in read_changes(job.spark, job.root, "t").columns


def test_a_table_that_was_dropped_and_made_again(job: Job) -> None:
    def again(batch: DataFrame, batch_id: int, state: State) -> None:
        state.drop("t")
        state.table("t", ["k"]).upsert(batch.sparkSession.sql("SELECT 1 AS k, 5L AS w"))

    def drop(batch: DataFrame, batch_id: int, state: State) -> None:
        state.drop("t")

    for body in (upsert("(1, 'a'), (2, 'b')"), again, drop):
        once(job, body)
    assert changes(job) == [
        (1, 0, "insert", 1, None),
        (1, 0, "insert", 2, None),
        (2, 1, "update_before", 1, None),
        (2, 1, "update_after", 1, 5),
        (2, 1, "delete", 2, None),
        (3, 2, "delete", 1, 5),
    ]


@pytest.mark.parametrize(
    "other", ["array('a') AS tags", "TIMESTAMP'2024-01-01T00:00:00Z' AS seen", "DATE'2024-01-01' AS at"]
)
def test_a_table_made_again_has_another_column_by_the_id_of_its_time(job: Job, other: str) -> None:
    def rows(first: bool) -> Body:
        def body(batch: DataFrame, batch_id: int, state: State) -> None:
            state.advance_clock(DAY + timedelta(days=9))
            state.drop("t") if not first else None
            table = state.table("t", ["k"], expire=None if first else Expire("at", after=timedelta(days=2)))
            table.upsert(
                batch.sparkSession.sql(other if first else "SELECT 2 AS k, TIMESTAMP'2024-01-10T00:00:00Z' AS at")
            )

        return body

    other = f"SELECT 1 AS k, {other}"
    once(job, rows(True))
    once(job, rows(False))
    assert [row[1:] for row in changes(job)] == [
        (0, "insert", 1, None),
        (1, "delete", 1, None),
        (1, "insert", 2, DAY.replace(tzinfo=None, day=10)),
    ]


def test_errors_say_what_can_be_done(job: Job, spark: SparkSession) -> None:
    for number in range(4):
        once(job, upsert(f"(1, '{number}')"))
    client = Checkpointer(job.root)
    ids = client.list_checkpoints()
    with pytest.raises(OperatorNotFoundError, match=r"operator 'other': .* has t"):
        read_changes(spark, job.root, "other")
    with pytest.raises(IllegalArgumentError, match="was not made on top of"):
        read_changes(spark, job.root, "t", after=ids[2], to=ids[1])
    client.apply(client.plan(RetentionPolicy(keep_last=2)))
    with pytest.raises(RetiredError, match=f"oldest checkpoint .* {ids[2]}") as caught:
        read_changes(spark, job.root, "t")
    assert f"after='{ids[2]}'" in str(caught.value)
    with pytest.raises(CheckpointNotFoundError):
        read_changes(spark, job.root, "t", after=ids[0])
    assert [row[2:] for row in changes(job, after=ids[2])] == [("update_before", 1, "2"), ("update_after", 1, "3")]
    assert read_state(spark, job.root, "t", id=ids[2]).count() == 1


# ---- the data source -------------------------------------------------------------------------------------------------


def source(spark: SparkSession, root: str, stream: bool = False, **options: Any) -> DataFrame:
    skip_before("4.0", DATA_SOURCES)
    reader: Any = spark.readStream if stream else spark.read
    found: DataFrame = reader.format("checkpointer").options(view="changes", **options).load(root)
    return found


def test_the_view_is_the_same_feed(job: Job, spark: SparkSession) -> None:
    for body in (upsert("(1, 'a'), (2, 'b')"), upsert("(1, 'A'), (2, 'b'), (3, 'c')"), nothing, delete(2)):
        once(job, body)
    for options in ({}, {"after": "epoch=0"}, {"to": "epoch=1"}, {"after": "epoch=1", "to": "epoch=2"}):
        expected = read_changes(spark, job.root, "t", **options).collect()
        frame = source(spark, job.root, operator="t", **options)
        assert [tuple(row) for row in frame.collect()] == [tuple(row) for row in expected]
        assert frame.where("change = 'delete'").count() == sum(row.change == "delete" for row in expected)
    frame = source(spark, job.root, operator="t")
    once(job, upsert("(9, 'z')"))
    assert frame.count() == len(FEED)  # It is pinned when it is made.
    for options, message in (
        ({}, "option operator: say which table"),
        ({"operator": "t", "id": "latest"}, "option id: the changes lie between two checkpoints"),
        ({"operator": "other"}, "operator 'other'"),
    ):
        with pytest.raises(AnalysisException, match=message):
            source(spark, job.root, **options).collect()
    with pytest.raises(AnalysisException, match="is for the changes of a table"):
        spark.read.format("checkpointer").options(operator="t", after="latest").load(job.root).collect()


def test_another_job_follows_a_table(job: Job, spark: SparkSession, tmp_path: Path) -> None:
    """Its state is the table, after each of its runs: also over a batch that it repeats, and one without changes."""
    followed = str(tmp_path / "followed")

    @stateful(followed)
    def follow(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table("copy", ["k"], num_partitions=2)
        for sequence in sorted(row.sequence for row in batch.select("sequence").distinct().collect()):
            some = batch.where(F.col("sequence") == sequence)
            table.delete(some.where("change IN ('delete', 'expire')").select("k"))
            table.upsert(some.where("change IN ('insert', 'update_after')").select("k", "v"))
        seen.append(batch_id)

    def run() -> None:
        feed = source(spark, job.root, stream=True, operator="t", follower="copy")
        writer = feed.writeStream.foreachBatch(follow)
        query = writer.option("checkpointLocation", str(tmp_path / "follower")).trigger(availableNow=True).start()
        query.awaitTermination()

    def tables() -> list[list[Any]]:
        return [sorted(map(tuple, read_state(spark, r, n).collect())) for r, n in ((job.root, "t"), (followed, "copy"))]

    seen: list[int] = []
    once(job, upsert("(1, 'a'), (2, 'b')"))
    run()
    for body in (upsert("(1, 'A'), (2, 'b'), (3, 'c')"), nothing, delete(2)):
        once(job, body)
    run()
    ours, copy = tables()
    assert ours == copy == [(1, "A"), (3, "c")]
    # Retention keeps what Spark has not told to be read: of the last batch it tells with the next one.
    client = Checkpointer(job.root)
    client.clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    (named,) = client.followers()
    assert named.behind == 3
    assert len(client.list_checkpoints()) == 4
    # As if its driver had died before Spark noted the last batch: Spark repeats it, and the state has it already.
    (tmp_path / "follower" / "commits" / f"{seen[-1]}").unlink()
    (tmp_path / "follower" / "commits" / f".{seen[-1]}.crc").unlink(missing_ok=True)
    before = list(seen)
    once(job, upsert("(4, 'd')"))
    for _ in range(2):  # A run with availableNow may end after the batch that Spark had planned before.
        run()
    ours, copy = tables()
    assert ours == copy == [(1, "A"), (3, "c"), (4, "d")]
    assert len(seen) == len(set(seen)), (before, seen)
    with pytest.raises((AnalysisException, StreamingQueryException), match="they have no end"):
        writer = source(spark, job.root, stream=True, operator="t", to="latest").writeStream.format("noop")
        writer.start(checkpointLocation=str(tmp_path / "other")).processAllAvailable()


def test_a_stream_stops_where_the_columns_change_and_goes_on_with_the_new_ones(
    job: Job, spark: SparkSession, tmp_path: Path
) -> None:
    def wider(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("t", ["k"]).upsert(batch.sparkSession.sql("SELECT 5 AS k, 'e' AS v, 1.5D AS x"))

    def keep(batch: DataFrame, batch_id: int) -> None:
        found.extend(row.asDict() for row in batch.orderBy("sequence", "k").collect())

    def start() -> Any:
        writer = source(spark, job.root, stream=True, operator="t").writeStream.foreachBatch(keep)
        return writer.option("checkpointLocation", str(tmp_path / "follower")).trigger(
            processingTime="100 milliseconds"
        )

    found: list[dict[str, Any]] = []
    once(job, upsert("(1, 'a')"))
    query = start().start()
    query.processAllAvailable()
    once(job, wider)
    with pytest.raises(StreamingQueryException, match="start the query again"):
        query.processAllAvailable()
    query = start().start()
    query.processAllAvailable()
    query.stop()
    assert [(row["k"], row.get("x")) for row in found] == [(1, None), (5, 1.5)]


def test_a_follower_whose_batch_fails_again_and_again_loses_nothing(
    job: Job, spark: SparkSession, tmp_path: Path
) -> None:
    for values in ("(1, 'a')", "(2, 'b')", "(3, 'c')"):
        once(job, upsert(values))

    def run(function: Any) -> None:
        feed = source(spark, job.root, stream=True, operator="t", follower="copy")
        writer = feed.writeStream.foreachBatch(function).option("checkpointLocation", str(tmp_path / "follower"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def fail(batch: DataFrame, batch_id: int) -> None:
        raise ValueError("the sink is down")

    def keep(batch: DataFrame, batch_id: int) -> None:
        found.extend(row.k for row in batch.orderBy("k").collect())

    found: list[int] = []
    for _ in range(2):
        with pytest.raises(StreamingQueryException, match="the sink is down"):
            run(fail)
    Checkpointer(job.root).clean(RetentionPolicy(keep_last=1, grace=timedelta(0)))
    run(keep)
    assert found == [1, 2, 3]


@pytest.mark.parametrize("row", ["SELECT '1' AS k, 'a' AS v", "SELECT 1 AS j, 'a' AS v"])
def test_a_difference_over_another_key_is_refused(job: Job, spark: SparkSession, row: str) -> None:
    def remake(batch: DataFrame, batch_id: int, state: State) -> None:
        rows = batch.sparkSession.sql(row)
        state.drop("t")
        state.table("t", [rows.columns[0]], num_partitions=2).upsert(rows)

    once(job, upsert("(1, 'a')"))
    once(job, remake)
    with pytest.raises(IllegalArgumentError, match="its keys differ"):
        diff(spark, job.root, "epoch=0", "epoch=1", "t")
