"""Which query calls a function in Spark Connect, told by files alone. `test_connect.py` does it with a real server."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyspark_checkpointer.admin.streaming import offset_log
from pyspark_checkpointer.admin.streaming.file_source_log import digest
from pyspark_checkpointer.checkpoint.liveness import is_running
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Job
from pyspark_checkpointer.spark import connect_query
from pyspark_checkpointer.spark.connect_query import ConnectQuery, FileOffsets
from pyspark_checkpointer.storage import open_files

QUERY = "5f3c9a1e-2b7d-4d6a-9f5e-0c1b2a3d4e5f"
OFFSETS = 'v1\n{{"batchTimestampMs":1}}\n{{"logOffset":{}}}'


class Spark:
    """A query of Spark: its checkpointLocation, and a batch of it."""

    def __init__(self, folder: Path, *active: str) -> None:
        self.folder = folder
        self.batch: Any = SimpleNamespace(sparkSession=SimpleNamespace(streams=self))
        self.active = active

    def get(self, query_id: str) -> Any:
        return SimpleNamespace(runId="run") if query_id in self.active else None

    def write(self, path: str, text: str) -> None:
        file = self.folder / "spark" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def begin(self, batch_id: int) -> None:
        self.write("metadata", json.dumps({"id": QUERY}))
        self.write(f"offsets/{batch_id}", OFFSETS.format(batch_id))

    def query(self, root: str | None = None) -> ConnectQuery:
        return ConnectQuery(root or str(self.folder / "root"), str(self.folder / "spark"), None)


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is one that calls functions, and has called none before."""
    monkeypatch.setenv("SPARK_CONNECT_LOCAL_URL", "sc://localhost")
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    yield
    connect_query._served.clear()


def entry(number: int, *paths: str) -> str:
    lines = [json.dumps({"path": path, "timestamp": 7, "batchId": number}, separators=(",", ":")) for path in paths]
    return "\n".join(["v1", *lines])


def test_files_and_the_session_tell_query_run_and_batch(called: None, tmp_path: Path) -> None:
    spark = Spark(tmp_path, QUERY)
    spark.begin(0)
    query = spark.query()
    job = query.identify(spark.batch, 0)
    assert (job.query_id, job.run_id, job.batch_id) == (QUERY, "run", 0)
    spark.write("commits/0", "v1\n{}")
    spark.begin(1)
    assert query.identify(spark.batch, 1).batch_id == 1
    assert query.begin_run(spark.batch, job).add_to(job, None).spark is not None


def test_a_query_that_is_not_within_the_batch_is_another_one(called: None, tmp_path: Path) -> None:
    spark = Spark(tmp_path, QUERY)
    spark.begin(0)
    with pytest.raises(InvalidStateError, match="Spark begins batch 1 of the query that calls this function"):
        spark.query().identify(spark.batch, 1)
    spark.write("commits/0", "v1\n{}")
    with pytest.raises(InvalidStateError, match="begins batch 0"):
        spark.query().identify(spark.batch, 0)
    (tmp_path / "spark" / "commits" / "0").unlink()
    spark.begin(1)
    with pytest.raises(InvalidStateError, match="begins batch 0"):
        spark.query().identify(spark.batch, 0)


def test_what_does_not_tell_the_query_is_refused(called: None, tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    with pytest.raises(InvalidStateError, match=r"spark/metadata: is not there, or names no query"):
        spark.query().identify(spark.batch, 0)
    spark.begin(0)
    with pytest.raises(InvalidStateError, match=rf"of query {QUERY}, which is not active in the session"):
        spark.query().identify(spark.batch, 0)
    with pytest.raises(IllegalArgumentError, match=r"give stateful\(…, checkpoint_location=…\)"):
        ConnectQuery(str(tmp_path / "root"), None, None).identify(spark.batch, 0)
    with pytest.raises(InvalidStateError, match=r"memory://root: .* whose memory ends with the query"):
        spark.query("memory://root").identify(spark.batch, 0)


def test_a_call_outside_of_a_query_is_refused(tmp_path: Path) -> None:
    spark = Spark(tmp_path)
    spark.begin(0)
    with pytest.raises(IllegalArgumentError, match="not called from a streaming query"):
        spark.query().identify(spark.batch, 0)


def test_the_query_of_this_process_runs_for_a_rewind(called: None, tmp_path: Path) -> None:
    spark = Spark(tmp_path, QUERY)
    spark.begin(0)
    job = Job(QUERY, "run", 0)
    assert is_running(job)[0] == "unknown"
    spark.query().identify(spark.batch, 0)
    assert is_running(job) == ("yes", "it is active in this process")


def test_the_session_that_started_a_query_does_not_travel(
    called: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the process that calls the function has the session that is active when it is unpickled."""
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: "here")
    data = pickle.dumps(Spark(tmp_path).query())
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: "there")
    assert pickle.loads(data)._starter == "there"


def test_lists_of_files_are_read_whether_compacted_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = Spark(tmp_path)
    spark.write("sources/0/1", entry(1, "a", "b"))
    spark.write("sources/0/2.compact", entry(1, "a", "b") + "\n" + entry(2, "c").partition("\n")[2])
    offsets = FileOffsets(open_files(tmp_path / "spark", None))
    assert offsets._digest("0", 1) == digest(entry(1, "b", "a"), 1)
    assert offsets._digest("0", 2) == digest(entry(2, "c"), 2)
    assert offsets._digest("0", 3) is None
    monkeypatch.setattr(offset_log, "MAX_FILE", 10)
    assert offsets._digest("0", 2) is None
