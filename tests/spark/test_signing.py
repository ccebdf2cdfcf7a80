"""Queries on a signed root: maps, tables, reads, the data source and cleanups; only the driver has a key."""

import pickle
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer, RetentionPolicy
from pyspark_checkpointer.errors import UnsupportedFormatError
from pyspark_checkpointer.spark import State, diff, read_changes, read_state, stateful
from pyspark_checkpointer.spark.cleanup import clean
from pyspark_checkpointer.spark.task_client import TaskRoot
from tests.signing_keys import make_keys
from tests.spark.conftest import Job
from tests.spark.needs import DATA_SOURCES, needs_spark

Options = dict[str, Any]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    make_keys(*(folder / f"{name}.pem" for name in ("owner", "driver", "cleaner")))
    (folder / "state.key").write_text(secrets.token_hex(32))
    return folder


@pytest.fixture(scope="module", params=["plain", "encrypted"])
def reads(request: pytest.FixtureRequest, keys: Path) -> Options:
    encryption = {"encryption": f"key-file:{keys / 'state.key'}"} if request.param == "encrypted" else {}
    return {"signing": f"trust:{keys / 'owner.pub'}", **encryption}


def signed_by(reads: Options, keys: Path, name: str) -> Options:
    return reads | {"signing": f"{reads['signing']},sign:{keys / name}.pem"}


@pytest.fixture(scope="module")
def job(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, reads: Options, keys: Path) -> Job:
    """A query that has made three batches; it was started twice."""
    job = Job(spark, tmp_path_factory.mktemp("signed"))
    client = Checkpointer(job.root, encryption=reads.get("encryption"))
    client.change_signers(keys / "owner.pem", allow={keys / "driver.pub": "commit", keys / "cleaner.pub": "clean"})
    for batch in range(3):
        job.feed(("alice", batch), ("bob", 10), *((f"user-{n}", n) for n in range(200)))
        if batch != 1:
            continue
        job.run(sink(job, signed_by(reads, keys, "driver")))
    job.run(sink(job, signed_by(reads, keys, "driver")))
    return job


def sink(job: Job, given: Options) -> Any:
    @stateful(job.root, **given)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("batches")["alice"] = batch_id
        totals = state.table("totals", key=["key"], num_partitions=4, combine={"total": "sum"})
        totals.upsert(batch.groupBy("key").agg(F.sum("amount").alias("total")))
        assert totals.lookup(batch.select("key").distinct()).where("key = 'alice'").count() == 1

    return update


def rows(frame: DataFrame) -> dict[str, int]:
    return {row.key: row.total for row in frame.where("key in ('alice', 'bob')").collect()}


def test_the_state_is_exact_and_signed(spark: SparkSession, job: Job, reads: Options) -> None:
    assert rows(read_state(spark, job.root, "totals", **reads)) == {"alice": 3, "bob": 30}
    client = Checkpointer(job.root, **reads)
    restored = client.restore()
    assert restored is not None
    assert restored.keyed("batches").to_dict() == {"alice": 2}
    found = client.verify()
    assert found.findings == ()
    assert found.signed is not None
    assert found.signed.signer.startswith("'driver' (")
    assert [path for path in Path(job.root).glob("manifests/*.json*") if ".signed" not in path.name] == []


def test_reads_of_all_kinds(spark: SparkSession, job: Job, reads: Options) -> None:
    wanted = spark.createDataFrame([("alice",), ("bob",)], "key string")
    assert rows(read_state(spark, job.root, "totals", keys=wanted, **reads)) == {"alice": 3, "bob": 30}
    changed = diff(spark, job.root, "epoch=0", "latest", "totals", **reads)
    assert changed.where("key = 'alice'").select("before.total", "after.total").first() == (0, 3)
    feed = read_changes(spark, job.root, "totals", after="epoch=1", **reads)
    assert feed.where("key = 'alice'").count() == 2  # before and after
    with pytest.raises(UnsupportedFormatError, match=r"is (signed|encrypted)"):
        read_state(spark, job.root, "totals")


@needs_spark("4.0", DATA_SOURCES)
def test_the_data_source(spark: SparkSession, job: Job, reads: Options) -> None:
    reader = spark.read.format("checkpointer").options(**reads)
    assert rows(reader.option("operator", "totals").load(job.root)) == {"alice": 3, "bob": 30}
    views = spark.read.format("checkpointer").options(**reads).option("view", "checkpoints")
    assert views.load(job.root).count() == 3
    plain = {name: value for name, value in reads.items() if name != "signing"}
    with pytest.raises(Exception, match="is signed: say whom to trust"):
        spark.read.format("checkpointer").options(**plain).option("operator", "totals").load(job.root).count()


def test_tasks_get_no_key(spark: SparkSession, job: Job, reads: Options, keys: Path) -> None:
    client = Checkpointer(job.root, **signed_by(reads, keys, "driver"))
    given = [TaskRoot.of(client, spark).client, pickle.dumps(client)]
    private = (keys / "driver.pem").read_bytes()
    assert b"driver.pem" not in given[0]
    assert b"driver.pem" in given[1]
    for pickled in given:
        assert not [line for line in private.splitlines() if line in pickled]


def test_another_job_reads_the_state_it_trusts(spark: SparkSession, job: Job, reads: Options, tmp_path: Path) -> None:
    other, found = Job(spark, tmp_path), []

    @stateful(other.root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        found.append(rows(state.other(job.root, **reads).table("totals")))

    other.feed(("alice", 1))
    other.run(update)
    assert found == [{"alice": 3, "bob": 30}]


def test_a_query_without_trust_is_refused(spark: SparkSession, job: Job, reads: Options) -> None:
    job.feed(("alice", 1))
    with pytest.raises(Exception, match="is signed: say whom to trust"):
        job.run(sink(job, {name: value for name, value in reads.items() if name != "signing"}))
    with pytest.raises(Exception, match="this client was opened to read it"):
        job.run(sink(job, reads))


def test_a_cleanup_on_executors_with_a_key_that_may_clean(
    spark: SparkSession, job: Job, reads: Options, keys: Path
) -> None:
    def files() -> int:
        return len([path for path in Path(job.root).rglob("*") if path.is_file()])

    before, client = files(), Checkpointer(job.root, **reads)
    policy = RetentionPolicy(keep_last=1, grace=timedelta(0))
    clean(spark, job.root, policy, **signed_by(reads, keys, "cleaner"))
    assert files() < before
    assert client.verify().findings == ()
    assert rows(read_state(spark, job.root, "totals", **reads)) == {"alice": 3, "bob": 30}
    job.run(sink(job, signed_by(reads, keys, "driver")))
    assert rows(read_state(spark, job.root, "totals", **reads)) == {"alice": 4, "bob": 30}


def test_a_root_that_is_signed_under_a_running_query_loses_and_doubles_nothing(
    spark: SparkSession, keys: Path, tmp_path: Path
) -> None:
    job, signing = Job(spark, tmp_path), f"trust:{keys / 'owner.pub'},sign:{keys / 'driver.pem'}"
    signs: list[int] = []

    def sums(given: Options) -> Any:
        @stateful(job.root, **given)
        def update(batch: DataFrame, batch_id: int, state: State) -> None:
            totals = state.table("totals", key=["key"], num_partitions=2, combine={"total": "sum"})
            totals.upsert(batch.groupBy("key").agg(F.sum("amount").alias("total")))
            state.map("batches")["alice"] = batch_id
            if batch_id in signs:
                allow = {keys / "driver.pub": "commit", keys / "cleaner.pub": "clean"}
                Checkpointer(job.root).change_signers(keys / "owner.pem", allow=allow)

        return update

    job.feed(("alice", 1), ("bob", 1))
    job.run(sums({}))
    signs.append(1)
    job.feed(("alice", 10), ("bob", 10))
    with pytest.raises(Exception, match="is signed: say whom to trust"):
        job.run(sums({}))
    signs.clear()
    job.run(sums({"signing": signing}))
    job.feed(("alice", 100), ("bob", 100))
    job.run(sums({"signing": signing}))
    reads = {"signing": f"trust:{keys / 'owner.pub'}"}
    assert rows(read_state(spark, job.root, "totals", **reads)) == {"alice": 111, "bob": 111}
    client = Checkpointer(job.root, **reads)
    assert client.verify()
    cleaning = {"signing": f"{reads['signing']},sign:{keys / 'cleaner.pem'}"}
    clean(spark, job.root, RetentionPolicy(keep_last=1, grace=timedelta(0)), **cleaning)
    assert client.verify()
    assert rows(read_state(spark, job.root, "totals", **reads)) == {"alice": 111, "bob": 111}


def test_executors_clean_a_signed_root_whose_state_its_cleaner_cannot_read(
    spark: SparkSession, keys: Path, tmp_path: Path
) -> None:
    job, encryption = Job(spark, tmp_path), f"hide-names:key-file:{keys / 'state.key'}"
    cleaner = tmp_path / "cleaner.key"
    cleaner.write_text(secrets.token_hex(32))
    reads = {"signing": f"trust:{keys / 'owner.pub'}", "encryption": encryption}
    owner = Checkpointer(job.root, encryption=encryption)
    owner.change_signers(keys / "owner.pem", allow={keys / "driver.pub": "commit", keys / "cleaner.pub": "clean"})
    owner.change_cleaners(allow=[f"key-file:{cleaner}"])
    for batch in range(3):
        job.feed(("alice", batch), ("bob", 10))
        job.run(sink(job, signed_by(reads, keys, "driver")))
    cleaning = signed_by(reads, keys, "cleaner") | {"encryption": f"key-file:{cleaner}"}
    before = len([*Path(job.root).rglob("*.enc")])
    assert clean(spark, job.root, RetentionPolicy(keep_last=1, grace=timedelta(0)), **cleaning).deleted.objects > 0
    assert len([*Path(job.root).rglob("*.enc")]) < before
    assert Checkpointer(job.root, **cleaning).verify().unread
    assert Checkpointer(job.root, **reads).verify()
    assert rows(read_state(spark, job.root, "totals", **reads)) == {"alice": 3, "bob": 30}
