"""`@stateful` on real queries: state is durable before a batch counts as done, and a batch counts once."""

import contextlib
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.util import InheritableThread

from pyspark_checkpointer import Checkpointer, KeyedState, RetentionPolicy
from pyspark_checkpointer.checkpoint.metrics import CommitMetrics, Metrics, RestoreMetrics
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job as SparkJob
from pyspark_checkpointer.manifests.model import Manifest
from pyspark_checkpointer.spark import Snapshot, State, root_uses, stateful
from pyspark_checkpointer.spark.table_changes import TableChanges
from tests.spark.conftest import Job


def summing(root: str, seen: list[int] | None = None, factor: int = 1, **options: Any) -> Any:
    """A sink that keeps a running sum for each key; a wrong one, with another `factor`."""

    @stateful(root, **options)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        if seen is not None:
            seen.append(batch_id)
        totals = state.map("totals")
        for row in batch.groupBy("key").agg(F.sum("amount").alias("amount")).collect():
            totals[row.key] = totals.get(row.key, 0) + factor * row.amount

    return update


def totals(root: str) -> dict[str, int]:
    restored = Checkpointer(root).restore()
    assert restored is not None
    return dict(restored.keyed("totals"))


def failure(job: Job, sink: Any, frame: DataFrame | None = None) -> str:
    with pytest.raises(StreamingQueryException) as caught:
        job.run(sink, frame)
    return str(caught.value)


def test_state_goes_on_from_batch_to_batch_and_from_run_to_run(job: Job) -> None:
    job.feed(("a", 1), ("b", 2))
    job.feed(("a", 10))
    job.run(summing(job.root))
    job.feed(("b", 20))
    job.run(summing(job.root))
    assert totals(job.root) == {"a": 11, "b": 22}


def test_the_manifest_names_query_run_and_batch(job: Job) -> None:
    job.feed(("a", 1))
    query = job.start(summing(job.root))
    query.awaitTermination()
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.epoch == 0
    assert restored.job is not None
    assert (restored.job.query_id, restored.job.run_id, restored.job.batch_id) == (query.id, query.runId, 0)


def test_each_batch_hands_its_cost_to_a_callback_on_the_driver(job: Job) -> None:
    seen: list[Metrics] = []

    @stateful(job.root, metrics=seen.append)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("totals")["last"] = batch_id
        state.table("sums", key=["key"], num_partitions=2).upsert(batch)

    job.feed(("a", 1), ("b", 2))
    job.feed(("a", 10))
    job.run(update)
    last = root_uses._runs[update.checkpointer.root].run.client
    last.close()
    restore, *commits = seen
    assert isinstance(restore, RestoreMetrics)
    assert (restore.id, [commit.epoch for commit in commits]) == (None, [0, 1])
    for commit in commits:
        assert isinstance(commit, CommitMetrics)
        assert commit.operators.keys() == {"totals", "sums"}
        assert commit.id is not None
        stored = [path for path in (Path(job.root) / "artifacts").rglob("*") if str(commit.id) in path.name]
        assert commit.objects == len(stored)
        assert commit.bytes_written == sum(path.stat().st_size for path in stored)
        assert 0 < commit.blocked_seconds < commit.total_seconds
    assert commits[1].operators["sums"].partitions == 1
    cost = Checkpointer(job.root).load_manifest(commits[1].id).cost
    assert cost is not None
    assert (cost.objects, cost.bytes) == (commits[1].objects, commits[1].bytes_written)
    assert cost.requests == commits[1].requests.total == commits[1].objects + 2, "the driver wrote both"
    assert pickle.loads(pickle.dumps(last)).session.reports._callback is None


def test_the_spark_jobs_of_a_table_hold_up_the_batch(job: Job) -> None:
    seen: list[Metrics] = []

    def slowly(batch: DataFrame) -> DataFrame:
        def wait(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for part in parts:
                time.sleep(0.5)
                yield part

        return batch.mapInArrow(wait, batch.schema)

    def echo(partition: int, batches: Iterator[pa.RecordBatch]) -> Snapshot:
        return Snapshot(b"%d" % sum(batch.num_rows for batch in batches))

    @stateful(job.root, metrics=seen.append)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        if batch_id == 0:
            state.table("sums", key=["key"], num_partitions=2).upsert(slowly(batch))
        elif batch_id == 1:
            state.write_partitions("own", slowly(batch), echo)
        else:
            time.sleep(0.5)

    for _ in range(3):
        job.feed(("a", 1))
    job.run(update)
    root_uses._runs[update.checkpointer.root].run.client.close()
    upsert, written, own_work = (record for record in seen if isinstance(record, CommitMetrics))
    for record in (upsert, written):
        assert 0.5 <= record.blocked_seconds <= record.total_seconds
    assert own_work.total_seconds - own_work.blocked_seconds >= 0.5


def test_a_batch_that_spark_forgot_is_not_counted_twice(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []
    job.feed(("a", 1))
    job.feed(("a", 10))
    job.run(summing(job.root, seen))
    before = Checkpointer(job.root).read_latest()
    job.forget_commit(1)
    with caplog.at_level(logging.INFO, "pyspark_checkpointer"):
        job.run(summing(job.root, seen))
    assert seen == [0, 1]
    assert "batch 1 is already committed" in caplog.text
    assert totals(job.root) == {"a": 11}
    assert Checkpointer(job.root).read_latest() == before
    assert (job.location / "commits" / "1").exists()


def test_a_skipped_batch_is_drained_where_spark_holds_state_upstream(job: Job) -> None:
    def counts() -> DataFrame:
        return job.source().groupBy("key").count()

    seen: list[int] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        seen.append(batch_id)
        for row in batch.collect():
            state.map("totals")[row.key] = row["count"]

    job.feed(("a", 1), ("a", 1))
    job.run(update, counts(), "update")
    job.forget_commit(0)
    job.feed(("a", 1))
    job.run(update, counts(), "update")
    assert seen == [0, 1]
    assert totals(job.root) == {"a": 3}


@pytest.mark.parametrize("schema", [None, "key string"])
def test_a_delete_from_an_empty_table_consumes_its_frame(job: Job, schema: str | None) -> None:
    """Spark's state upstream would miss the batch, and the query would fail after the commit."""

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("t", ["key"], schema=schema).delete(batch)

    for _ in range(2):
        job.feed(("a", 1))
        job.run(update, job.source().groupBy("key").count(), "update")
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert restored.epoch == 1


@pytest.mark.parametrize("schema", [None, "key string"])
def test_a_delete_from_an_empty_table_checks_its_frame(job: Job, schema: str | None) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.table("t", ["key"], schema=schema).delete(batch.select("amount"))

    job.feed(("a", 1))
    assert "table 't': key: " in failure(job, update)


def test_a_batch_that_changes_nothing_still_commits(job: Job) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        batch.count()

    job.feed(("a", 1))
    job.feed(("a", 2))
    job.run(update)
    restored = Checkpointer(job.root).restore()
    assert restored is not None
    assert (restored.epoch, restored.operators) == (1, [])
    assert len(Checkpointer(job.root).list_checkpoints()) == 2


def test_state_is_durable_before_the_callback_returns_to_spark(job: Job) -> None:
    """Seen from the next batch: when it starts, the one before is in the store."""
    found: list[int | None] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        restored = Checkpointer(job.root).restore()
        found.append(None if restored is None else restored.epoch)
        state.map("totals")["n"] = batch_id

    for n in range(3):
        job.feed(("a", n))
    job.run(update)
    assert found == [None, 0, 1]


def test_another_query_id_is_refused_and_names_both_sides(job: Job) -> None:
    job.feed(("a", 1))
    first = job.start(summing(job.root))
    first.awaitTermination()
    job.reset()
    message = failure(job, summing(job.root))
    assert "BatchResetError" in message
    assert first.id in message
    assert 'on_reset="continue"' in message
    assert totals(job.root) == {"a": 1}


def test_on_reset_continue_starts_a_new_line_on_the_old_state(job: Job) -> None:
    job.feed(("a", 1))
    job.run(summing(job.root))
    job.reset()
    job.run(summing(job.root, on_reset="continue"))  # the same file again, knowingly
    assert totals(job.root) == {"a": 2}
    job.feed(("a", 5))
    job.run(summing(job.root))
    assert totals(job.root) == {"a": 7}


def in_parts(*sinks: Any) -> Any:
    """Return a function that gives the rows of a batch to several calls."""

    def call(batch: DataFrame, batch_id: int) -> None:
        for number, sink in enumerate(sinks):
            sink(batch.where(f"abs(hash(key)) % {len(sinks)} = {number}"), batch_id)

    return call


@pytest.mark.parametrize("sinks", ["one", "two"])
def test_a_second_call_in_a_batch_is_refused_and_not_taken_for_a_repetition(job: Job, sinks: str) -> None:
    job.feed(*((f"k{number}", 1) for number in range(10)))
    one = summing(job.root)
    parts = in_parts(one, one if sinks == "one" else summing(job.root))
    for _ in range(2):  # after the restart Spark repeats the batch, and both calls come again
        assert "batch 0 came in a second call" in failure(job, parts)
    job.feed(("a", 1))
    job.run(summing(job.root))  # the first call was committed, as the message says
    assert 0 < sum(totals(job.root).values()) < 11


def test_calls_for_one_batch_at_the_same_time_commit_nothing(job: Job) -> None:
    job.feed(("a", 1))
    refused, failures = threading.Event(), list[Exception]()

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("totals")["rows"] = batch.count()
        assert refused.wait(60)

    def call(batch: DataFrame, batch_id: int) -> None:
        def noted() -> None:
            try:
                update(batch, batch_id)
            except Exception as error:
                failures.append(error)

        first = InheritableThread(target=noted)
        first.start()
        while update.checkpointer.root not in root_uses._runs:
            time.sleep(0.01)
        noted()
        refused.set()
        first.join()
        raise failures[0]

    assert "batch 0 came in a second call" in failure(job, call)
    assert len(failures) == 2
    assert Checkpointer(job.root).restore() is None


def test_a_run_that_was_left_behind_allows_no_second_call_of_the_present_one() -> None:
    earlier, present = (SparkJob("query", run, 5) for run in ("run 1", "run 2"))
    assert root_uses.is_first_call("root", earlier)
    assert root_uses.is_first_call("root", present)
    root_uses.allow_again("root", earlier)
    assert not root_uses.is_first_call("root", present)
    root_uses.allow_again("root", present)
    assert root_uses.is_first_call("root", present)


def test_a_batch_that_failed_may_be_tried_again_by_its_caller(job: Job) -> None:
    job.feed(("a", 1))
    tries: list[int] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("totals")["tries"] = len(tries)
        tries.append(batch_id)
        if len(tries) == 1:
            raise ValueError("once")

    def again(batch: DataFrame, batch_id: int) -> None:
        with contextlib.suppress(ValueError):
            update(batch, batch_id)
            return
        update(batch, batch_id)

    job.run(again)
    assert totals(job.root) == {"tries": 1}


def test_on_reset_continue_says_what_it_passes_over(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    job.feed(("a", 1))
    first = job.start(summing(job.root, on_reset="continue"))
    first.awaitTermination()
    job.reset()
    with caplog.at_level(logging.WARNING, logger="pyspark_checkpointer"):
        job.run(summing(job.root, on_reset="continue"))
    (record,) = [record for record in caplog.records if record.name == "pyspark_checkpointer"]
    assert record.levelname == "WARNING"
    assert f"its state is at batch 0 of query {first.id}" in record.getMessage()  # not that Spark began anew
    assert "input that it reads again counts twice" in record.getMessage()


def test_a_batch_id_that_goes_backwards_is_refused(job: Job) -> None:
    for n in range(3):
        job.feed(("a", n))
    job.run(summing(job.root))
    for batch_id in (1, 2):
        job.forget_commit(batch_id)
    for name in ("2", ".2.crc"):
        (job.location / "offsets" / name).unlink(missing_ok=True)
    message = failure(job, summing(job.root))
    assert "BatchResetError" in message
    assert "batch 2" in message
    assert "batch 1" in message


def test_a_gap_is_refused(job: Job) -> None:
    job.feed(("a", 1))
    job.run(summing(job.root))
    job.feed(("a", 10))
    job.run(summing(job.root + "-elsewhere", on_reset="continue"))
    job.feed(("a", 100))
    message = failure(job, summing(job.root))
    assert "BatchGapError" in message
    assert totals(job.root) == {"a": 1}


def test_a_first_batch_above_zero_on_an_empty_root_is_refused(job: Job) -> None:
    job.feed(("a", 1))
    job.run(summing(job.root))
    job.feed(("a", 2))
    message = failure(job, summing(job.root + "-typo"))
    assert "BatchGapError" in message
    assert "is empty" in message
    assert Checkpointer(job.root + "-typo").restore() is None


def test_a_query_without_checkpoint_location_is_refused(job: Job) -> None:
    job.feed(("a", 1))
    query = job.source().writeStream.foreachBatch(summing(job.root)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="checkpointLocation"):
        query.awaitTermination()
    assert Checkpointer(job.root).restore() is None


def test_a_default_checkpoint_location_of_the_session_is_enough(job: Job) -> None:
    job.feed(("a", 1))
    job.spark.conf.set("spark.sql.streaming.checkpointLocation", str(job.folder / "default"))
    try:
        source = job.source().writeStream.queryName("named").foreachBatch(summing(job.root))
        source.trigger(availableNow=True).start().awaitTermination()
    finally:
        job.spark.conf.unset("spark.sql.streaming.checkpointLocation")
    assert totals(job.root) == {"a": 1}


def test_after_an_exception_the_next_call_starts_from_what_is_committed(job: Job) -> None:
    fail = [True]

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("totals")["calls"] = state.map("totals").get("calls", 0) + 1
        if batch_id == 1 and fail:
            fail.clear()
            raise RuntimeError("planted")

    job.feed(("a", 1))
    job.feed(("a", 1))
    assert "planted" in failure(job, update)
    job.run(update)
    assert totals(job.root) == {"calls": 2}


def test_an_exception_swallowed_around_a_state_call_poisons_the_commit(job: Job) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("totals")["n"] = batch_id
        with contextlib.suppress(IllegalArgumentError):
            state.table("totals", ["key"])

    job.feed(("a", 1))
    message = failure(job, update)
    assert "was not committed" in message
    assert "table 'totals': a map of this job has that name" in message
    assert Checkpointer(job.root).restore() is None


def test_an_interrupt_swallowed_around_a_state_call_poisons_the_commit(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: TableChanges, rows: DataFrame) -> None:
        raise KeyboardInterrupt

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            state.table("t", ["key"]).upsert(batch)

    monkeypatch.setattr(TableChanges, "upsert", interrupted)
    job.feed(("a", 1))
    assert "was not committed: KeyboardInterrupt" in failure(job, update)
    assert Checkpointer(job.root).restore() is None


def test_an_empty_map_can_be_left_out(job: Job) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("totals")["calls"] = 1
        state.map("empty")
        state.drop("empty")

    job.feed(("a", 1))
    job.run(update)
    assert totals(job.root) == {"calls": 1}


def test_a_value_that_cannot_be_stored_fails_the_batch_by_key_and_type(job: Job) -> None:
    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("totals")["the key"] = object()

    job.feed(("a", 1))
    message = failure(job, update)
    assert "the key" in message
    assert "object" in message
    assert Checkpointer(job.root).restore() is None


def test_queries_with_roots_of_their_own_do_not_disturb_each_other(new_job: Callable[[str], Job]) -> None:
    jobs = [new_job(name) for name in ("one", "two")]
    for n, each in enumerate(jobs):
        for amount in range(3):
            each.feed((f"k{n}", amount + 1))
    queries = [each.start(summing(each.root)) for each in jobs]
    for query in queries:
        query.awaitTermination()
    assert [totals(each.root) for each in jobs] == [{"k0": 6}, {"k1": 6}]


def test_two_queries_on_one_root_are_an_error(new_job: Callable[[str], Job]) -> None:
    one, two = new_job("one"), new_job("two")
    inside, leave = threading.Event(), threading.Event()

    @stateful(one.root)
    def slow(batch: DataFrame, batch_id: int, state: State) -> None:
        inside.set()
        leave.wait(60)

    one.feed(("a", 1))
    two.feed(("a", 1))
    running = one.start(slow)
    try:
        assert inside.wait(60)
        message = failure(two, summing(one.root))
    finally:
        leave.set()
        running.awaitTermination()
    assert "its own root" in message
    assert Checkpointer(one.root).list_checkpoints() == [Checkpointer(one.root).read_latest()]


def test_stop_in_mid_batch_neither_loses_nor_doubles(job: Job) -> None:
    inside, leave = threading.Event(), threading.Event()
    calls: list[int] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        calls.append(batch_id)
        rows = batch.collect()
        if len(calls) == 1:
            inside.set()
            leave.wait(60)
        for row in rows:
            state.map("totals")[row.key] = state.map("totals").get(row.key, 0) + row.amount

    job.feed(("a", 1))
    query = job.start(update)
    assert inside.wait(60)
    stopper = threading.Thread(target=query.stop)
    stopper.start()
    leave.set()
    stopper.join(60)
    job.feed(("a", 10))
    job.run(update)
    assert totals(job.root) == {"a": 11}
    assert calls == [0, 1]


def test_a_zombie_driver_is_fenced(job: Job) -> None:
    """The old run is still in its callback while a new one has taken over the root."""

    @stateful(job.root)
    def zombie(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("totals")["who"] = "zombie"
        if batch_id == 1:
            other = Checkpointer(job.root)
            other.restore()
            with other.begin(epoch=1) as checkpoint:
                checkpoint.save("totals", KeyedState({"who": "successor"}))

    job.feed(("a", 1))
    job.feed(("a", 1))
    message = failure(job, zombie)
    assert "FencedError" in message
    assert totals(job.root) == {"who": "successor"}


def test_the_state_of_an_ended_batch_cannot_be_used(job: Job) -> None:
    kept: list[State] = []

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        for old in kept:
            old.map("totals")
        kept.append(state)

    job.feed(("a", 1))
    job.feed(("a", 1))
    assert "has ended" in failure(job, update)


def test_the_decorated_function_outside_a_query_is_refused(job: Job) -> None:
    frame = job.spark.range(3)
    with pytest.raises(IllegalArgumentError, match="foreachBatch"):
        summing(job.root)(frame, 0)


def test_threads_that_are_not_pinned_are_named(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark then tells the query to another thread of the JVM than the one that the function asks."""
    monkeypatch.setenv("PYSPARK_PIN_THREAD", "False")
    said = "PYSPARK_PIN_THREAD=False hides which streaming query calls: remove the variable, and start the program anew"
    with pytest.raises(InvalidStateError, match=said):
        summing(job.root)(job.spark.range(3), 0)


def test_a_checkpoint_location_that_is_given_has_to_be_that_of_the_query(job: Job) -> None:
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("totals")["batches"] = batch_id

    job.feed(("a", 1))
    other = str(job.location.with_name("other"))
    error = failure(job, stateful(job.root, checkpoint_location=other)(update))
    assert f"has the checkpointLocation {job.location}: give the same to both" in error
    assert not Path(job.root).exists()
    job.run(stateful(job.root, checkpoint_location=job.location)(update))
    assert totals(job.root) == {"batches": 0}


def test_the_token_makes_an_external_sink_idempotent(job: Job) -> None:
    written: dict[str, int] = {}
    fail = [True]

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        written[str(state.token)] = written.get(str(state.token), 0) or batch.count()
        if fail:
            fail.clear()
            raise RuntimeError("died after the external write")

    job.feed(("a", 1), ("b", 1))
    failure(job, update)
    job.run(update)
    assert list(written.values()) == [2]
    assert next(iter(written)).endswith(":0")


def test_a_map_that_was_dropped_begins_empty(job: Job) -> None:
    job.feed(("a", 1))
    job.run(summing(job.root))

    @stateful(job.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        if batch_id == 1:
            state.map("totals")["a"] = 2
        if batch_id == 2:
            state.drop("totals")
        if batch_id == 3:
            state.map("totals")["b"] = 3
        if batch_id == 4:
            state.drop("totals")
            state.map("totals")["c"] = 4

    for _ in range(3):
        job.feed(("x", 1))
    job.run(update)
    assert totals(job.root) == {"b": 3}
    job.feed(("x", 1))
    job.run(update)
    assert totals(job.root) == {"c": 4}


def test_retention_runs_beside_the_job_every_so_many_commits(job: Job) -> None:
    sink = summing(job.root, retention=RetentionPolicy(keep_last=2, grace=timedelta(0)), clean_every=3)
    for number in range(7):
        job.feed(("a", number))
    job.run(sink)
    sink._cleaner.wait()
    assert totals(job.root) == {"a": 21}
    client = Checkpointer(job.root)
    assert [checkpoint.sequence for checkpoint in client.list_checkpoints()][-1] == 7
    assert 2 <= len(client.list_checkpoints()) <= 5
    assert client.verify()


def test_a_cleanup_that_fails_is_logged_and_harms_nothing(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    def keep(manifest: Manifest) -> bool:
        raise RuntimeError("a mistake of the user")

    sink = summing(job.root, retention=RetentionPolicy(keep_if=keep), clean_every=1)
    job.feed(("a", 1))
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        job.run(sink)
        sink._cleaner.wait()
    assert totals(job.root) == {"a": 1}
    assert "the cleanup failed" in caplog.text
    assert "a mistake of the user" in caplog.text


def test_a_cleanup_that_gets_no_thread_harms_nothing(
    job: Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "checkpointer-clean":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    sink = summing(job.root, retention=RetentionPolicy(keep_last=2), clean_every=1)
    job.feed(("a", 1))
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        job.run(sink)
        sink._cleaner.wait()
    assert totals(job.root) == {"a": 1}
    assert "no cleanup was begun" in caplog.text


@pytest.mark.parametrize("options", [{"retention": 5}, {"clean_every": 0}, {"clean_every": True}])
def test_retention_that_cannot_be_right_is_refused(job: Job, options: dict[str, Any]) -> None:
    with pytest.raises(IllegalArgumentError):
        stateful(job.root, **options)
