"""Queries on an encrypted root: maps, tables, reads and the data source; nothing of it is readable in the store."""

import pickle
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.errors import InvalidStateError, UnsupportedFormatError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import State, diff, read_changes, read_state, stateful
from pyspark_checkpointer.spark.cleanup import clean
from pyspark_checkpointer.spark.task_client import TaskRoot
from pyspark_checkpointer.storage.encryption.root_keys import keys_of
from tests.spark.conftest import Job
from tests.spark.needs import DATA_SOURCES, needs_spark

SECRETS = (b"alice", b"bob-secret", b"total_of_secret")


@pytest.fixture(scope="module", params=["", "hide-names:"])
def key(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("keys") / "state.key"
    path.write_text(secrets.token_hex(32))
    return f"{request.param}key-file:{path}"


@pytest.fixture(scope="module")
def job(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, key: str) -> Job:
    """A query that has made three batches; it was started twice."""
    job = Job(spark, tmp_path_factory.mktemp("encrypted"))
    for batch in range(3):
        job.feed(("alice", batch), ("bob-secret", 10), *((f"user-{n}", n) for n in range(200)))
        if batch != 1:
            continue
        job.run(sink(job, key))
    job.run(sink(job, key))
    return job


def sink(job: Job, key: str | None) -> Any:
    @stateful(job.root, encryption=key)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("batches")["alice"] = batch_id
        totals = state.table("totals", key=["key"], num_partitions=4, combine={"total_of_secret": "sum"})
        totals.upsert(batch.groupBy("key").agg(F.sum("amount").alias("total_of_secret")))

    return update


def rows(frame: DataFrame) -> dict[str, int]:
    return {row.key: row.total_of_secret for row in frame.where("key in ('alice', 'bob-secret')").collect()}


def test_the_state_is_exact_and_nothing_of_it_is_in_the_store(spark: SparkSession, job: Job, key: str) -> None:
    assert rows(read_state(spark, job.root, "totals", encryption=key)) == {"alice": 3, "bob-secret": 30}
    restored = Checkpointer(job.root, encryption=key).restore()
    assert restored is not None
    assert restored.keyed("batches").to_dict() == {"alice": 2}
    files = [path for path in Path(job.root).rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        data = path.read_bytes()
        assert not [word for word in SECRETS if word in data], path
        assert path.suffix == ".enc" or path.name in ("_latest", "_keys", ".lock"), path
    stored = str([path.relative_to(job.root) for path in files])
    assert ("totals" in stored, "batches" in stored) == (not key.startswith("hide-names:"),) * 2
    assert Checkpointer(job.root, encryption=key).verify().findings == ()


def test_reads_of_all_kinds(spark: SparkSession, job: Job, key: str) -> None:
    wanted = spark.createDataFrame([("alice",), ("bob-secret",)], "key string")
    assert rows(read_state(spark, job.root, "totals", keys=wanted, encryption=key)) == {"alice": 3, "bob-secret": 30}
    changed = diff(spark, job.root, "epoch=0", "latest", "totals", encryption=key)
    assert changed.where("key = 'alice'").select("before.total_of_secret", "after.total_of_secret").first() == (0, 3)
    feed = read_changes(spark, job.root, "totals", after="epoch=1", encryption=key)
    assert feed.where("key = 'alice'").count() == 2  # before and after
    with pytest.raises(UnsupportedFormatError, match="is encrypted"):
        read_state(spark, job.root, "totals")


@needs_spark("4.0", DATA_SOURCES)
def test_the_data_source_opens_the_keys_once_and_shows_them_nowhere(
    spark: SparkSession, job: Job, key: str, capfd: pytest.CaptureFixture[str]
) -> None:
    reader = spark.read.format("checkpointer").option("operator", "totals").option("encryption", key)
    frame = reader.load(job.root)
    assert rows(frame) == {"alice": 3, "bob-secret": 30}
    frame.explain(extended=True)
    keys = run_sync(keys_of(Checkpointer(job.root, encryption=key).session.store))
    shown = capfd.readouterr().out
    assert "totals" in shown or "checkpointer" in shown
    assert keys.key.hex() not in shown
    views = spark.read.format("checkpointer").option("view", "checkpoints").option("encryption", key)
    assert views.load(job.root).count() == 3


def test_tasks_get_opened_keys_and_not_what_opens_them(spark: SparkSession, job: Job, key: str) -> None:
    client = Checkpointer(job.root, encryption=key)
    root = TaskRoot.of(client, spark)
    assert key.partition(":")[2].encode() not in root.client
    keys = run_sync(keys_of(client.session.store))
    assert keys.key in root.client
    assert keys.key.hex() not in repr(root)
    restored = pickle.loads(root.client).restore()
    assert restored.keyed("batches").to_dict() == {"alice": 2}
    # A pickle of the client itself has the path alone.
    assert keys.key not in pickle.dumps(client)


def test_a_query_without_the_key_or_on_a_plain_root_is_refused(
    spark: SparkSession, job: Job, key: str, tmp_path: Path
) -> None:
    job.feed(("alice", 1))
    with pytest.raises(Exception, match="is encrypted: say what opens its keys"):
        job.run(sink(job, None))
    plain = Job(spark, tmp_path)
    plain.feed(("alice", 1))
    plain.run(sink(plain, None))
    plain.feed(("alice", 2))
    with pytest.raises(Exception, match="is not encrypted"):
        plain.run(sink(plain, key))
    with pytest.raises(InvalidStateError, match="is not encrypted"):
        Checkpointer(plain.root, encryption=key).restore()
    assert rows(read_state(spark, plain.root, "totals")) == {"alice": 1}


def test_a_cleanup_on_executors_deletes_what_nothing_names(spark: SparkSession, job: Job, key: str) -> None:
    client = Checkpointer(job.root, encryption=key)
    before = len([*Path(job.root).rglob("*.enc")])
    clean(spark, job.root, RetentionPolicy(keep_last=1, grace=timedelta(0)), encryption=key)
    assert len([*Path(job.root).rglob("*.enc")]) < before
    assert client.verify().findings == ()
    assert rows(read_state(spark, job.root, "totals", encryption=key)) == {"alice": 3, "bob-secret": 30}


def test_the_command_of_a_refusal_is_said_with_the_options_that_it_needs(
    spark: SparkSession, tmp_path: Path, key: str
) -> None:
    job = Job(spark, tmp_path)
    job.feed(("alice", 1))
    job.run(sink(job, key))
    job.reset()
    job.feed(("alice", 2))
    with pytest.raises(StreamingQueryException, match="The command needs --encryption as the job has it"):
        job.run(sink(job, key))
