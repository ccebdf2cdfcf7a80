"""`@stateful` over real Kafka: every record of a topic counts once."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark.versions import is_at_least
from tests.kafka import Broker, spark_jars
from tests.spark import kafka_job
from tests.spark.conftest import Job

PROJECT = Path(__file__).parents[2]
PARTITIONS = 3


@dataclass
class Stream:
    """A topic, and a query over it that can be run again and again."""

    broker: Broker
    topic: str
    root: str
    location: str

    def feed(self, *values: str) -> None:
        """One record for each value, spread over the partitions in turn."""
        self.broker.produce(self.topic, [(n % PARTITIONS, value) for n, value in enumerate(values)])

    def run(self, max_offsets: int) -> dict[str, int]:
        """Process everything that is there, in a Spark of its own. Returns how often each value was counted."""
        command = [sys.executable, "-m", kafka_job.__name__, self.root, self.location]
        command += [self.broker.bootstrap, self.topic, str(max_offsets)]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=480)
        assert done.returncode == 0, done.stderr[-4000:]
        counts: dict[str, int] = json.loads(done.stdout.strip().splitlines()[-1])
        return counts

    def run_here(self, spark: SparkSession, max_offsets: int) -> dict[str, int]:
        """The same in a session that is there, without the seconds that a Spark takes to start."""
        options = kafka_job.source(self.broker.bootstrap, self.topic, max_offsets)
        return kafka_job.run(spark, self.root, self.location, options)

    def checkpoints(self) -> int:
        """How many there are: one for each batch."""
        return len(Checkpointer(self.root).list_checkpoints())


@pytest.fixture
def stream(kafka_server: Broker, tmp_path: Path) -> Stream:
    kafka_server.create_topic(tmp_path.name, PARTITIONS)
    return Stream(kafka_server, tmp_path.name, str(tmp_path / "root"), str(tmp_path / "spark-checkpoint"))


@pytest.fixture
def job(kafka_server: Broker, job: Job) -> Job:
    """In the folders of `stream`, with the session that tests share, which can then read Kafka too."""
    for jar in spark_jars():
        job.spark.sql(f"ADD JAR '{jar}'")
    return job


@pytest.mark.parametrize("at_first", ["in the same Spark", pytest.param("in another", marks=pytest.mark.prove)])
def test_every_record_of_a_topic_counts_once(at_first: str, stream: Stream, job: Job) -> None:
    """In batches that each take some of every partition, and in another run, which takes what is new."""
    old, new = [f"old-{n}" for n in range(90)], [f"new-{n}" for n in range(30)]
    stream.feed(*old)
    counted = stream.run_here(job.spark, max_offsets=30) if "same" in at_first else stream.run(max_offsets=30)
    assert counted == dict.fromkeys(old, 1)
    assert stream.checkpoints() == 3

    stream.feed(*new, old[0])
    assert stream.run_here(job.spark, max_offsets=300) == dict.fromkeys(old + new, 1) | {old[0]: 2}
    assert stream.checkpoints() == 4
    assert stream.broker.ends(stream.topic) == {0: 41, 1: 40, 2: 40}


def test_a_batch_that_spark_repeats_counts_once(stream: Stream, job: Job) -> None:
    values = [f"value-{n}" for n in range(90)]
    stream.feed(*values)
    assert stream.run_here(job.spark, max_offsets=30) == dict.fromkeys(values, 1)

    job.forget_commit(2)
    stream.feed("value-0")
    if is_at_least("4.1") and not is_at_least("4.2"):
        # After a repeated batch its source for Kafka ends the query, once (SPARK-57438).
        with pytest.raises(StreamingQueryException):
            stream.run_here(job.spark, max_offsets=30)
    assert stream.run_here(job.spark, max_offsets=30) == dict.fromkeys(values, 1) | {"value-0": 2}
    assert (job.location / "commits" / "2").exists()  # it was repeated
    assert stream.checkpoints() == 4
