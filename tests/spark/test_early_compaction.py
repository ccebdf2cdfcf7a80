"""Chains that are compacted between two batches: by which of them, and what becomes of it where something changes."""

import asyncio
import itertools
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer, compaction, runtime
from pyspark_checkpointer.checkpoint.metrics import CommitMetrics
from pyspark_checkpointer.manifests.model import Chain
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import State, early_compaction, read_state, stateful
from pyspark_checkpointer.spark.batch_attempt import BatchAttempt
from pyspark_checkpointer.spark.early_compaction import EarlyCompaction
from pyspark_checkpointer.spark.query_run import QueryRun
from pyspark_checkpointer.spark.table_changes import TableChanges
from pyspark_checkpointer.spark.table_hints import TableHints
from pyspark_checkpointer.spark.table_jobs import TableJobs
from pyspark_checkpointer.storage.request_path import Traffic
from pyspark_checkpointer.table.compact import Compacted
from pyspark_checkpointer.table.schema import DELETE, MERGE
from pyspark_checkpointer.table.writer import TableWriter
from tests.programs import run_python
from tests.proof.plain_spark import PlainFrame, new_state, plain_spark
from tests.spark.conftest import Job
from tests.spark.tables import once
from tests.table.tables import Change, Model
from tests.table.test_version import SIMPLE, Place, standing_alone

BATCHES = 16


@pytest.fixture
def compacted(monkeypatch: pytest.MonkeyPatch) -> list[dict[int, int]]:
    """Note what batches compact themselves."""
    found: list[dict[int, int]] = []
    compact = TableJobs.compact

    def noted(self: TableJobs, version: Any, keep: dict[int, int]) -> Any:
        found.append(dict(keep))
        return compact(self, version, keep)

    monkeypatch.setattr(TableJobs, "compact", noted)
    return found


def add(batch: DataFrame, batch_id: int, state: State) -> None:
    table = state.table("t", ["id"], num_partitions=4, combine={"n": "sum"})
    table.upsert(batch.sparkSession.range(1000).withColumn("n", F.lit(1)))


def run(job: Job, body: Callable[[DataFrame, int, State], None] = add, batches: int = BATCHES, **options: Any) -> None:
    """Run several batches in one run of the query."""
    for _ in range(batches):
        job.feed(("x", 1))
    job.run(stateful(job.root, max_chain=4, **options)(body))


def lengths(job: Job) -> Iterator[list[int]]:
    """Yield the lengths of all chains in each checkpoint."""
    for checkpoint in Checkpointer(job.root).list_checkpoints():
        restored = Checkpointer(job.root).restore(checkpoint)
        assert restored is not None
        assert restored.manifest is not None
        yield [len(chain) for chain in restored.manifest.operators["t"].chains.values()]


def is_early_write() -> bool:
    """Return whether the running task writes what was compacted before the batch."""
    task = asyncio.current_task()
    return task is not None and task.get_coro().__qualname__ == EarlyCompaction._write.__qualname__


def check(job: Job, spark: SparkSession, batches: int = BATCHES) -> None:
    """Compare what is stored with the sums of all batches."""
    stored = read_state(spark, job.root, "t")
    assert (stored.count(), stored.where(f"n = {batches}").count()) == (1000, 1000)
    assert max(map(max, lengths(job))) <= 4


def test_batches_do_not_wait_for_the_compaction_of_what_is_committed(
    job: Job, spark: SparkSession, compacted: list[dict[int, int]]
) -> None:
    run(job)
    assert not any(compacted)
    check(job, spark)
    assert any(later < sooner for some in zip(*lengths(job), strict=True) for sooner, later in itertools.pairwise(some))


def test_the_end_of_a_batch_writes_nothing_of_what_was_compacted_for_it(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written while Spark worked on the rows: a commit has no round trip for it."""
    ends: list[tuple[bool, bool]] = []
    finish = TableChanges.finish

    def waits(self: TableChanges) -> None:
        early = self._hints.early
        if early is not None and early._writing is not None:
            early._writing.result(60)
        before = self._attempt.meter.traffic.requests.total()
        finish(self)
        has_written = self._attempt.meter.traffic.requests.total() > before
        ends.append((early is not None and early._encoding is not None, has_written))

    monkeypatch.setattr(TableChanges, "finish", waits)
    run(job)
    assert {has_written for is_compacted, has_written in ends if is_compacted} == {False}


def test_a_chain_stays_long_where_its_objects_cannot_be_written(
    job: Job, spark: SparkSession, compacted: list[dict[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Compacted.write

    async def fails(self: Compacted, writer: TableWriter) -> dict[int, Chain]:
        if is_early_write():
            raise OSError("out of order")
        return await write(self, writer)

    monkeypatch.setattr(Compacted, "write", fails)
    run(job)
    assert any(compacted)
    check(job, spark)


def test_its_requests_count_for_the_batch_that_uses_it(job: Job) -> None:
    commits: list[CommitMetrics] = []
    run(job, metrics=lambda record: commits.append(record) if isinstance(record, CommitMetrics) else None)
    assert sum(commit.requests.get for commit in commits) >= BATCHES / 2
    assert sum(commit.bytes_read for commit in commits) > 0


def test_a_chain_is_compacted_in_its_batch_where_that_failed_before(
    job: Job, spark: SparkSession, compacted: list[dict[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*arguments: object) -> Any:
        raise OSError("out of order")
        yield

    monkeypatch.setattr(early_compaction, "encode_compacted", fails)
    run(job)
    assert any(compacted)
    check(job, spark)


def test_a_run_of_one_batch_compacts_in_it(job: Job, spark: SparkSession, compacted: list[dict[int, int]]) -> None:
    for _ in range(8):
        once(job, add, max_chain=4)
    assert any(compacted)
    check(job, spark, 8)


@pytest.mark.parametrize("driver_bytes", [1, 16 << 20])
def test_snapshots_that_are_due_are_written_beside_the_batch_unless_they_are_large(
    job: Job, spark: SparkSession, compacted: list[dict[int, int]], monkeypatch: pytest.MonkeyPatch, driver_bytes: int
) -> None:
    monkeypatch.setattr(compaction, "DRIVER_BYTES", driver_bytes)
    monkeypatch.setattr(compaction, "COMPACT_ROWS", 1)
    run(job)
    # The first batch writes snapshots. The first with a delta has nothing that was compacted before.
    assert any(compacted[2:]) == (driver_bytes == 1)
    check(job, spark)
    # In each batch a partition has its turn. A snapshot that was made before the batch gets its delta on top.
    assert {min(some) for some in [*lengths(job)][3:]} == {1 if driver_bytes == 1 else 2}


def test_what_waits_for_tables_that_take_turns_stays_within_the_bytes_of_the_driver(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "DRIVER_BYTES", most := 20_000)
    monkeypatch.setattr(compaction, "COMPACT_ROWS", 1)
    waiting: list[dict[str, int]] = []
    commit = BatchAttempt.commit

    def noted(self: BatchAttempt) -> None:
        commit(self)
        hints = self.run.table_hints
        waiting.append({name: each.early.cost for name, each in hints.items() if each.early is not None})

    monkeypatch.setattr(BatchAttempt, "commit", noted)

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        table = state.table(f"t{batch_id % 4}", ["id"], num_partitions=1, combine={"n": "sum"})
        table.upsert(batch.sparkSession.range(1000).withColumn("n", F.lit(1)))

    run(job, body)
    assert max(sum(costs.values()) for costs in waiting) <= most
    assert max(sum(costs.values()) for costs in waiting) > most / 2
    assert all(f"t{number % 4}" in costs for number, costs in enumerate(waiting)), "what waits longest has to go"


def test_what_waits_longest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "DRIVER_BYTES", 10)
    nothing: Any = None
    query_run = QueryRun(nothing, None, nothing)
    for name in ("a", "b", "c", "a", "d"):
        early: Any = SimpleNamespace(cost=4, cancel=lambda: None)
        query_run.table_hints.setdefault(name, TableHints()).early = early
        query_run.note_compacted_early(name)
    assert [name for name, hints in query_run.table_hints.items() if hints.early] == ["a", "d"]


def test_what_was_compacted_is_left_where_the_batch_has_another_chain(job: Job, spark: SparkSession) -> None:
    """One that replaces all rows, spreads them anew, drops the table, or leaves it alone."""

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        if batch_id % 4 == 3:
            return
        partitions = 4 if batch_id < 8 else 3
        table = state.table("t", ["id"], num_partitions=partitions, combine={"n": "sum"})
        if batch_id % 6 == 4:
            if batch_id % 4 == 0:  # The objects are being written when their chains go.
                table.upsert(batch.sparkSession.range(1000).withColumn("n", F.lit(1)))
            table.replace(batch.sparkSession.range(1000).withColumn("n", F.lit(100 * batch_id)))
        elif batch_id == 9:
            state.drop("t")
            table = state.table("t", ["id"], num_partitions=partitions, combine={"n": "sum"})
        table.upsert(batch.sparkSession.range(1000).withColumn("n", F.lit(1)))

    run(job, body, 20)
    expected = 0
    for batch_id in range(20):
        if batch_id % 4 != 3:
            expected = 100 * batch_id if batch_id % 6 == 4 else 0 if batch_id == 9 else expected
            expected += 1
    assert {row.n for row in read_state(spark, job.root, "t").collect()} == {expected}


def packs(*contents: tuple[int, int]) -> Place:
    """Return a table of one partition with a delta for each row."""
    place = Place(SIMPLE)
    for row in contents:
        place.pack({0: [(MERGE, row)]})
    return place


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the write of a compacted object never end; the event tells that it has begun."""
    begun = threading.Event()

    async def forever(*_: Any) -> None:
        begun.set()
        await asyncio.sleep(60)

    monkeypatch.setattr(Compacted, "write", forever)
    return begun


def test_a_forked_process_waits_for_nothing(endless: threading.Event) -> None:
    place = packs((1, 1), (1, 2))
    early = EarlyCompaction(place.session, place.version, {0: 1})
    early.begin_write(place.chains, place.writer, Traffic())
    try:
        assert endless.wait(20)
        child = os.fork()
        if not child:
            has_waited = True
            signal.alarm(20)
            try:
                has_waited = run_sync(early.finish_write(place.chains)) != {}
            finally:
                os._exit(has_waited)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        # The parent goes on with its work.
        assert early._writing is not None
        assert not early._writing.done()
    finally:
        early.cancel()


def test_a_run_that_ends_stops_the_write(endless: threading.Event) -> None:
    place, traffic = packs((1, 1), (1, 2)), Traffic()
    early = EarlyCompaction(place.session, place.version, {0: 1})
    hints = TableHints(early=early)
    early.begin_write(place.chains, place.writer, traffic)
    assert endless.wait(20)
    hints.cancel_early()
    assert run_sync(early.finish_write(place.chains)) == {}
    assert early._writing is not None
    assert early._writing.cancelled()
    assert traffic.requests["get"] == 2, "what it has read counts for the batch all the same"


def test_no_write_begins_once_the_run_has_ended() -> None:
    """A thread of a batch that failed may go on for a while."""
    place = packs((1, 1), (1, 2))
    early = EarlyCompaction(place.session, place.version, {0: 1})
    assert early._encoding is not None
    early._encoding.result(20)
    early.cancel()
    early.begin_write(place.chains, place.writer, Traffic())
    assert not early.has_begun_write


def test_a_write_is_begun_and_counted_once() -> None:
    place, traffic = packs((1, 1), (1, 2)), Traffic()
    early = EarlyCompaction(place.session, place.version, {0: 1})
    for _ in range(2):
        early.begin_write(place.chains, place.writer, traffic)
    assert [len(chain) for chain in run_sync(early.finish_write(place.chains)).values()] == [2]
    assert (traffic.requests["put"], traffic.requests["get"]) == (1, 2)


@pytest.mark.parametrize("ends", ["upsert", "compact", "replace", "drop", "drop and open", "fail"])
def test_a_batch_ends_with_the_write_of_what_was_compacted_for_it(
    job: Job, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """The write is done, or nobody waits for it any more: two writes of one path never meet."""
    write, submit = Compacted.write, runtime.submit
    under_way, releases = threading.Event(), [threading.Event()]
    writes: list[Future[Any]] = []
    acted: list[int] = []

    async def held(self: Compacted, writer: TableWriter) -> dict[int, Chain]:
        if is_early_write():
            release = releases[-1]
            under_way.set()
            # At most 20 seconds: a write that nobody cancels ends, and the test fails.
            for _ in range(2000):
                if release.is_set():
                    break
                await asyncio.sleep(0.01)
        return await write(self, writer)

    def noted(coro: Any) -> Any:
        future = submit(coro)
        if coro.__qualname__ == EarlyCompaction._write.__qualname__:
            writes.append(future)
        return future

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        assert all(write.done() for write in writes)
        under_way.clear()
        releases.append(threading.Event())
        rows = batch.sparkSession.range(1000).withColumn("n", F.lit(1))
        table = state.table("t", ["id"], num_partitions=4, combine={"n": "sum"})
        table.upsert(rows)
        if not under_way.is_set():
            releases[-1].set()
            return
        acted.append(batch_id)
        if ends in ("upsert", "compact", "replace"):
            threading.Timer(0.3, releases[-1].set).start()
        if ends == "compact":
            table.compact()
        elif ends == "replace":
            table.replace(rows)
        elif ends.startswith("drop"):
            state.drop("t")
        if ends == "drop and open":
            state.table("t", ["id"], num_partitions=4, combine={"n": "sum"}).upsert(rows)
        if ends == "fail":
            raise ValueError("the batch fails")

    monkeypatch.setattr(Compacted, "write", held)
    monkeypatch.setattr(early_compaction.runtime, "submit", noted)
    if ends == "fail":
        with pytest.raises(StreamingQueryException, match="the batch fails"):
            run(job, body, 8)
    else:
        run(job, body, 8)
    assert acted
    assert all(write.done() for write in writes)
    assert any(write.cancelled() for write in writes) == (ends not in ("upsert", "compact", "replace"))


def test_what_was_compacted_goes_with_its_table_that_no_batch_opened(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    hints: list[TableHints] = []
    compact_early = TableChanges.compact_early

    def noted(self: TableChanges, most: int) -> int:
        hints.append(self._hints)
        return compact_early(self, most)

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        if batch_id < 6:
            add(batch, batch_id, state)
        else:
            assert hints[-1].early is not None
            state.drop("t")
            assert hints[-1].early is None

    monkeypatch.setattr(TableChanges, "compact_early", noted)
    run(job, body, 7)
    assert hints


def test_a_batch_that_compacts_everything_leaves_no_early_compaction(
    job: Job, spark: SparkSession, compacted: list[dict[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their chains are read again by the batch itself, so the work is stopped, and nothing of it is written."""
    stopped: list[bool] = []
    finish = TableChanges.finish

    def noted(self: TableChanges) -> None:
        early = self._hints.early
        finish(self)
        if self._compacts_all and early is not None:
            stopped.append(early._is_cancelled and not early.has_begun_write)

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        if batch_id % 6 == 5:
            state.table("t", ["id"], num_partitions=4, combine={"n": "sum"}).compact()
        else:
            add(batch, batch_id, state)

    monkeypatch.setattr(TableChanges, "finish", noted)
    run(job, body)
    assert any(compacted)
    assert stopped == [True, True]
    check(job, spark, BATCHES - 2)


def test_a_partition_of_which_no_row_is_left_shares_no_object_with_others() -> None:
    place = Place(SIMPLE)
    for change in ((MERGE, (1, 1)), (DELETE, (1, None))):
        place.pack({0: [change], 1: [(MERGE, (1, 5))], 2: [change]})
    early = EarlyCompaction(place.session, place.version, {0: 1, 1: 1, 2: 1})
    place.pack({1: [(MERGE, (1, 1))], 2: [(MERGE, (1, 7))]})
    place.chains |= written(early, place)
    assert {partition: len(chain) for partition, chain in place.chains.items()} == {0: 0, 1: 3, 2: 2}
    assert {partition: place.rows(partition) for partition in place.chains} == {0: [], 1: [(1, 11)], 2: [(1, 7)]}


def test_work_that_was_cancelled_leaves_the_chains_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends cancels it, and its zombie is to be told by the commit that it is one."""
    place = Place(SIMPLE)
    for n in range(2):
        place.pack({0: [(MERGE, (1, n))]})

    async def forever(*_: Any) -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(EarlyCompaction, "_encode", forever)
    early = EarlyCompaction(place.session, place.version, {0: 1})
    early.cancel()
    assert written(early, place) == {}


@pytest.mark.parametrize("work", ["reads", "writes"])
def test_a_process_that_ends_does_not_wait_for_it(work: str) -> None:
    """No batch will use it any more."""
    program = f"""if True:
        import asyncio, threading
        from pyspark_checkpointer.spark import early_compaction
        from pyspark_checkpointer.storage.request_path import Traffic
        from tests.spark.test_early_compaction import packs
        begun = threading.Event()
        async def sleep():
            begun.set()
            await asyncio.sleep(40)
        async def reads(*_):
            await sleep()
            yield
        async def writes(*_):
            await sleep()
        if {work!r} == "reads":
            early_compaction.encode_compacted = reads
        else:
            early_compaction.Compacted.write = writes
        place = packs((1, 1), (1, 2))
        early = early_compaction.EarlyCompaction(place.session, place.version, {{0: 1}})
        early.begin_write(place.chains, place.writer, Traffic())
        print(begun.wait(30))
    """
    begun = time.monotonic()
    assert run_python(program) == "True\n"
    assert time.monotonic() - begun < 30


def written(early: EarlyCompaction, place: Place) -> dict[int, Chain]:
    """Write what was compacted, and return the shorter chains."""
    early.begin_write(place.chains, place.writer, Traffic())
    return run_sync(early.finish_write(place.chains))


PARTITION = st.integers(0, 1)
FEW = st.lists(
    st.tuples(st.sampled_from([MERGE, DELETE]), st.tuples(st.integers(0, 1), st.integers(1, 9))), min_size=1, max_size=2
)
WRITES = st.lists(st.dictionaries(PARTITION, FEW, min_size=1), max_size=4)
BEFORE = st.lists(st.dictionaries(PARTITION, FEW, min_size=2), min_size=2, max_size=4)


@settings(max_examples=80)
@given(
    BEFORE, st.dictionaries(PARTITION, st.sampled_from([1, 1, 0, 2, 3]), min_size=1), WRITES, WRITES, st.sets(PARTITION)
)
def test_whatever_is_written_meanwhile_the_rows_are_those_of_a_dict(
    before: list[dict[int, list[Change]]],
    keep: dict[int, int],
    meanwhile: list[dict[int, list[Change]]],
    beside: list[dict[int, list[Change]]],
    replaced: set[int],
) -> None:
    """`meanwhile` before the objects are written, `beside` while they are; chains of `replaced` begin anew then."""
    place, model = Place(SIMPLE), {0: Model(SIMPLE), 1: Model(SIMPLE)}

    def write(steps: list[dict[int, list[Change]]]) -> None:
        for changes in steps:
            place.pack({partition: standing_alone(SIMPLE, some) for partition, some in changes.items()})
            for partition, some in changes.items():
                model[partition].do(some)

    write(before)
    keep = {partition: kept for partition, kept in keep.items() if kept < len(place.chains.get(partition, ()))}
    early = EarlyCompaction(place.session, place.version, keep)
    write(meanwhile)
    early.begin_write(place.chains, place.writer, Traffic())
    for partition in replaced & place.chains.keys():
        del place.chains[partition]
        model[partition] = Model(SIMPLE)
    write(beside)
    place.chains |= run_sync(early.finish_write(place.chains))
    assert {partition: place.rows(partition) for partition in model} == {n: model[n].rows() for n in model}


def test_tables_share_what_the_driver_may_hold_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text is stored once, and each row has it in memory."""
    monkeypatch.setattr(compaction, "DRIVER_BYTES", 2_000_000)
    client, draw = Checkpointer(f"memory://{uuid.uuid4().hex}", max_chain=4), random.Random(1)
    hints: dict[str, TableHints] = {}
    wide = pa.table({"k": range(2000), "text": ["x" * 1000] * 2000})
    with plain_spark(draw):
        for number in range(3):
            state = new_state(client, client.restore(), number, hints=hints)
            for name in ("t", "other"):
                state.table(name, ["k"], num_partitions=1).upsert(PlainFrame(draw, [wide]))  # type: ignore[arg-type]
            state._attempt.commit()
    begun = {name: bool(one.early and one.early._keep) for name, one in hints.items()}
    assert begun == {"t": True, "other": False}
