"""Whoever has the key of a cleaner cleans a root with tables on executors, and reads none of its rows."""

import os
import pickle
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.admin.retention.classifier import PlanRow
from pyspark_checkpointer.errors import DependencyError
from pyspark_checkpointer.manifests.model import CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import State, clean, diff, plan_cleanup, read_changes, read_state, stateful
from pyspark_checkpointer.spark.cleaner import Cleaner
from pyspark_checkpointer.storage.encryption.root_keys import keys_of
from tests.spark.conftest import Job
from tests.spark.needs import DATA_SOURCES, needs_spark

NOW = RetentionPolicy(keep_last=1, grace=timedelta(0))
WORDS = ("alice", "bob-secret", "123456789")


class Keys:
    def __init__(self, folder: Path, hides: str) -> None:
        for name in ("owner", "cleaner"):
            (folder / f"{name}.key").write_text(secrets.token_hex(32))
        self.owner, self.cleaner = f"{hides}key-file:{folder / 'owner.key'}", f"key-file:{folder / 'cleaner.key'}"


@pytest.fixture(scope="module", params=["", "hide-names:"])
def keys(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Keys:
    return Keys(tmp_path_factory.mktemp("keys"), request.param)


@pytest.fixture(scope="module")
def job(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, keys: Keys) -> Job:
    """A query that has made three batches, with snapshots and deltas of a table, and a map."""
    job = Job(spark, tmp_path_factory.mktemp("cleaned"))
    for batch in range(3):
        job.feed(("alice", 123456789), ("bob-secret", batch), *((f"user-{n}", n) for n in range(200)))
        job.run(sink(job, keys.owner))
    Checkpointer(job.root, encryption=keys.owner).change_cleaners(allow=[keys.cleaner])
    return job


def sink(job: Job, key: str) -> Any:
    @stateful(job.root, encryption=key)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("batches")[WORDS[0]] = batch_id
        totals = state.table("totals", key=["key"], num_partitions=4, combine={"total": "sum"})
        totals.upsert(batch.groupBy("key").agg(F.sum("amount").alias("total")))

    return update


def refused(error: BaseException) -> None:
    said = str(error)
    assert "that of a cleaner" in said
    assert not [word for word in WORDS if word in said]


def test_a_cleaner_finds_what_the_owner_finds(job: Job, keys: Keys) -> None:
    owner, cleaner = (Checkpointer(job.root, encryption=key) for key in (keys.owner, keys.cleaner))
    assert cleaner.verify().objects == owner.verify().objects
    [damaged, *_] = [path for path in Path(job.root).rglob("artifacts/**/*.enc") if "snapshot" not in path.name]
    data = damaged.read_bytes()
    damaged.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    found = [{(one.path, one.checkpoints) for one in client.verify().findings} for client in (owner, cleaner)]
    assert found[0] == found[1] != set()
    damaged.write_bytes(data)


def test_no_row_is_read_and_no_batch_is_written(spark: SparkSession, job: Job, keys: Keys) -> None:
    wanted = spark.createDataFrame([("alice",)], "key string")
    latest = Checkpointer(job.root, encryption=keys.owner).read_latest()
    for read in (
        lambda: read_state(spark, job.root, "totals", encryption=keys.cleaner).collect(),
        lambda: read_state(spark, job.root, "totals", keys=wanted, encryption=keys.cleaner).collect(),
        lambda: read_state(spark, job.root, "totals", encryption=keys.cleaner).count(),
        lambda: diff(spark, job.root, "epoch=0", "latest", "totals", encryption=keys.cleaner).collect(),
        lambda: read_changes(spark, job.root, "totals", after="epoch=1", encryption=keys.cleaner).collect(),
    ):
        with pytest.raises(Exception, match="that of a cleaner") as caught:
            read()
        refused(caught.value)
    job.feed(("alice", 123456789))
    with pytest.raises(Exception, match="that of a cleaner") as caught:
        job.run(sink(job, keys.cleaner))
    refused(caught.value)
    assert Checkpointer(job.root, encryption=keys.owner).read_latest() == latest
    job.run(sink(job, keys.owner))
    row = read_state(spark, job.root, "totals", encryption=keys.owner).where("key = 'alice'").first()
    assert row is not None
    assert row.total == 4 * 123456789


@needs_spark("4.0", DATA_SOURCES)
def test_the_data_source_shows_checkpoints_and_no_rows(spark: SparkSession, job: Job, keys: Keys) -> None:
    source = spark.read.format("checkpointer").option("encryption", keys.cleaner)
    views = source.option("view", "checkpoints").load(job.root)
    assert views.count() == len(Checkpointer(job.root, encryption=keys.owner).list_checkpoints())
    with pytest.raises(Exception, match="that of a cleaner") as caught:
        spark.read.format("checkpointer").option("encryption", keys.cleaner).option("operator", "totals").load(
            job.root
        ).collect()
    refused(caught.value)


def test_executors_clean_with_the_key_of_a_cleaner(spark: SparkSession, job: Job, keys: Keys) -> None:
    owner, cleaner = (Checkpointer(job.root, encryption=key) for key in (keys.owner, keys.cleaner))
    plans = [
        {PlanRow(*row) for row in plan_cleanup(spark, job.root, NOW, encryption=key).collect()}
        for key in (keys.owner, keys.cleaner)
    ]
    assert plans[0] == plans[1] == {row for row in cleaner.plan(NOW) if "/" in row.path}
    assert run_sync(keys_of(owner.session.store)).key not in run_sync(keys_of(cleaner.session.store)).key
    done = clean(spark, job.root, NOW, encryption=keys.cleaner)
    assert done.deleted.objects > 0
    assert len(owner.list_checkpoints()) == 1
    assert owner.verify()
    assert cleaner.verify()
    assert read_state(spark, job.root, "totals", encryption=keys.owner).count() == 202


@pytest.mark.parametrize(("grace", "most"), [(timedelta(hours=1), 1), (timedelta(0), 10)])
def test_a_fast_job_is_cleaned_eight_times_in_a_grace_period(
    monkeypatch: pytest.MonkeyPatch, grace: timedelta, most: int
) -> None:
    """Skip a cleanup that comes sooner: it would retire nothing, and cost as much."""
    cleaned: list[float] = []
    now = [1000.0]

    async def clean(session: Any, policy: RetentionPolicy) -> str:
        cleaned.append(now[0])
        return "cleaned"

    monkeypatch.setattr(f"{Cleaner.__module__}.retire_and_sweep", clean)
    monkeypatch.setattr(f"{Cleaner.__module__}.time", SimpleNamespace(monotonic=lambda: now[0]))
    one = Cleaner(Checkpointer("memory://fast"), RetentionPolicy(keep_last=1, grace=grace), 100)
    for sequence in range(1, 1001):
        now[0] += 0.06
        one.after(CheckpointId(sequence, "0" * 8), sequence - 1)
        one.wait()
    assert len(cleaned) == most
    now[0] += 3600 / 8
    one.after(CheckpointId(1100, "0" * 8), 1099)
    one.wait()
    assert len(cleaned) == most + 1
    again = pickle.loads(pickle.dumps(one))
    again.after(CheckpointId(1200, "0" * 8), 1199)
    again.wait()
    assert len(cleaned) == most + 2, "another process has another clock"


@pytest.mark.parametrize(
    ("sequence", "batch_id"),
    [
        (lambda day: day, lambda day: day - 1),
        (lambda day: 2 * day - 1, lambda day: day - 1),  # with one commit by hand after each: none has an even number
        (lambda day: day, lambda day: 0),  # of another query each day
    ],
)
def test_a_job_of_one_batch_in_each_process_is_cleaned_up_in_whatever_rhythm(
    sequence: Callable[[int], int], batch_id: Callable[[int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[int] = []

    async def clean(session: Any, policy: RetentionPolicy) -> str:
        cleaned.append(day)
        return "cleaned"

    monkeypatch.setattr(f"{Cleaner.__module__}.retire_and_sweep", clean)
    for day in range(1, 301):
        one = Cleaner(Checkpointer("memory://each-day"), RetentionPolicy(keep_last=1), 100)
        one.after(CheckpointId(sequence(day), "0" * 8), batch_id(day))
        one.wait()
    assert cleaned == [100, 200, 300]


def test_a_cleanup_that_failed_is_begun_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[RetentionPolicy] = []

    async def fail(session: Any, policy: RetentionPolicy) -> str:
        tried.append(policy)
        raise DependencyError("no answer")

    monkeypatch.setattr(f"{Cleaner.__module__}.retire_and_sweep", fail)
    one = Cleaner(Checkpointer("memory://failing"), RetentionPolicy(keep_last=1), 100)
    for sequence in (100, 200):
        one.after(CheckpointId(sequence, "0" * 8), sequence - 1)
        one.wait()
    assert len(tried) == 2


JOB = """
import asyncio, logging, os, pickle, signal, sys, threading
from datetime import timedelta
from pyspark_checkpointer import Checkpointer, RetentionPolicy, runtime
runtime.at_exit(lambda: print("finished"), while_threads_work=True)
from pyspark_checkpointer.spark import cleaner

logging.basicConfig()
root, seconds = sys.argv[1], float(sys.argv[2])
retire_and_sweep = cleaner.retire_and_sweep
async def slowly(session, policy):
    await asyncio.sleep(seconds)
    return await retire_and_sweep(session, policy)
cleaner.retire_and_sweep, cleaner.EXIT_SECONDS = slowly, 5.0
client = Checkpointer(root)
for epoch in range(4):
    with client.begin(epoch) as cp:
        cp.snapshot("op", 0, b"x")
made = cleaner.Cleaner(client, RetentionPolicy(keep_last=1, grace=timedelta(0)), 4)
made.after(cp.id, epoch)
if sys.argv[3:] == ["terminate"]:
    os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[3:] == ["interrupt"]:
    interrupt = threading.Timer(1.0, lambda: os.kill(os.getpid(), signal.SIGINT))
    interrupt.daemon = True
    interrupt.start()
pickle.dumps(made)  # as in a function of Spark Connect: the thread stays here
"""


@pytest.mark.parametrize(("seconds", "left"), [(0.5, 1), (60, 4)])
def test_a_process_that_ends_waits_for_its_cleanup_for_a_while(tmp_path: Path, seconds: float, left: int) -> None:
    """A job of one batch in each process begins its cleanups when it has nothing else to do."""
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path / "root"), str(seconds)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert len(Checkpointer(tmp_path / "root").list_checkpoints()) == left
    assert ("the process ends before its cleanup" in done.stderr) == (left == 4)


def test_an_interrupt_ends_the_wait_for_a_cleanup_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path / "root"), "60", "interrupt"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "finished" in done.stdout, done.stderr
    assert "the process ends before its cleanup" in done.stderr


@pytest.mark.parametrize(("seconds", "left"), [(0.5, 1), (60, 4)])
def test_a_batch_of_spark_connect_waits_for_its_cleanup_for_a_while(tmp_path: Path, seconds: float, left: int) -> None:
    """Spark ends the process of the function by a signal, right after the last batch."""
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(tmp_path / "root"), str(seconds), "terminate"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "SPARK_CONNECT_LOCAL_URL": "sc://localhost:15002"},
    )
    assert done.returncode == -signal.SIGTERM, done.stderr
    assert len(Checkpointer(tmp_path / "root").list_checkpoints()) == left
    assert ("goes on beside the next batches" in done.stderr) == (left == 4)
