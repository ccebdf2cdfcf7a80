"""Spark's progress as older versions wrote it: a rewind and a fork know it, and real Spark goes on from there."""

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import InvalidStateError
from tests.servers import ServerUnavailableError
from tests.spark import old_checkpoint_job
from tests.spark.conftest import Job
from tests.spark.old_checkpoint_job import STATEFUL
from tests.spark.test_sink import summing, totals
from tests.sparks import SUPPORTED, environment, install_spark

PROJECT = Path(__file__).parents[2]
PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"


def rewrite(job: Job, folder: str, change: Callable[[list[str]], list[str]]) -> None:
    """Change the lines of each file of offsets or commits."""
    for path in (job.location / folder).iterdir():
        if path.name.isdecimal():
            path.write_text("\n".join(change(path.read_text().split("\n"))))
            path.with_name(f".{path.name}.crc").unlink()


def with_metadata(**conf: str) -> Callable[[list[str]], list[str]]:
    """Return the change to a line of metadata with these settings of Spark alone."""

    def change(lines: list[str]) -> list[str]:
        metadata = json.loads(lines[1])
        kept = {name: metadata[name] for name in ("batchWatermarkMs", "batchTimestampMs")}
        if conf:
            kept["conf"] = {f"spark.sql.{name.replace('_', '.')}": value for name, value in conf.items()}
        return [lines[0], json.dumps(kept, separators=(",", ":")), *lines[2:]]

    return change


def as_2_1(job: Job) -> None:
    rewrite(job, "offsets", with_metadata())
    rewrite(job, "commits", lambda _: ["v1", "{}"])


def as_2_3(job: Job) -> None:
    rewrite(job, "offsets", with_metadata(shuffle_partitions="5", streaming_stateStore_providerClass=PROVIDER))
    rewrite(job, "commits", lambda _: ["v1", "{}"])


def without_metadata(job: Job) -> None:
    rewrite(job, "offsets", lambda lines: [lines[0], "", *lines[2:]])
    rewrite(job, "commits", lambda _: ["v1"])


def without_commits(job: Job) -> None:
    for path in (job.location / "commits").iterdir():
        path.unlink()


def with_a_gap(job: Job) -> None:
    """As in the example of Spark's own tests whose offsets and commits do not fit."""
    for path in ("offsets/2", "offsets/.2.crc", "commits/3", "commits/.3.crc"):
        (job.location / path).unlink()


SHAPES = [
    as_2_1,
    without_metadata,
    *(pytest.param(shape, marks=pytest.mark.prove) for shape in (as_2_3, without_commits, with_a_gap)),
]


@pytest.mark.parametrize("shape", SHAPES)
def test_spark_goes_on_from_progress_of_an_old_shape(shape: Callable[[Job], None], job: Job) -> None:
    for n in range(4):
        job.feed(("a", 10**n))
    job.run(summing(job.root))
    shape(job)
    Checkpointer(job.root).fork("epoch=1", job.root + "-copy", job.folder / "spark-copy")
    Checkpointer(job.root).rewind(to="epoch=1")
    assert totals(job.root) == {"a": 11}
    copy = Job(job.spark, job.folder, "spark-copy", "root-copy")
    for there in (job, copy):
        there.run(summing(there.root))
        assert totals(there.root) == {"a": 1111}
    job.feed(("b", 1))
    for there in (job, copy):
        there.run(summing(there.root))
        assert totals(there.root) == {"a": 1111, "b": 1}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_state_is_brought_back_in_step_with_progress_of_an_old_shape(
    shape: Callable[[Job], None], job: Job
) -> None:
    for n in range(4):
        job.feed(("a", 10**n))
    job.run(summing(job.root))
    shape(job)
    Checkpointer(job.root).rewind(to="latest")
    job.feed(("a", 10_000))
    job.run(summing(job.root))
    assert totals(job.root) == {"a": 11111}


@pytest.mark.parametrize("name", STATEFUL)
def test_state_of_spark_without_names_of_its_operators_is_refused(name: str, job: Job) -> None:
    """PySpark 3.5 is the first that writes such names down."""
    job.feed(("a", 1))
    mode = "update" if name == "aggregated" else "append"
    job.run(old_checkpoint_job.counting(job.root), STATEFUL[name](job), mode)
    for path in (job.location / "state" / "0" / "_metadata").rglob("*"):
        if path.is_file():
            path.unlink()
    with pytest.raises(InvalidStateError, match=r"Spark itself holds state of this query \(operator 0\)"):
        Checkpointer(job.root).rewind(to="epoch=0")


@pytest.mark.prove  # it starts each of the older versions
@pytest.mark.parametrize("version", [version for version in SUPPORTED if version != pyspark.__version__])
def test_a_job_of_another_version_is_taken_back_and_goes_on_here(
    version: str, spark: SparkSession, tmp_path: Path
) -> None:
    try:
        environ = environment(Path(sys.executable), install_spark(version))
    except ServerUnavailableError as unavailable:
        pytest.skip(str(unavailable))
    made = [sys.executable, str(PROJECT / "tests" / "spark" / "old_checkpoint_job.py"), str(tmp_path)]
    done = subprocess.run(made, env=environ, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    job = Job(spark, tmp_path / "plain", _days=itertools.count(4))
    assert totals(job.root) == {"a": 1111, "b": 4}
    Checkpointer(job.root).fork("epoch=2", job.root + "-copy", job.folder / "spark-copy")
    Checkpointer(job.root).rewind(to="epoch=1")
    job.feed(("a", 10_000))
    for there in (job, Job(spark, job.folder, "spark-copy", "root-copy")):
        there.run(summing(there.root))
        assert totals(there.root) == {"a": 11111, "b": 4}
    for name in STATEFUL:
        root = tmp_path / name / "root"
        with pytest.raises(InvalidStateError, match="Spark itself holds state of this query"):
            Checkpointer(root).rewind(to="epoch=0")
        with pytest.raises(InvalidStateError, match="Spark itself holds state of this query"):
            Checkpointer(root).fork("latest", f"{root}-copy", f"{root}-copy-spark")
