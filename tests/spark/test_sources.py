"""Going back and forking over sources that are no files: what is read again is what was read the first time.

Each source gives the numbers 0, 1, 2 … once. So however often a query was killed, rewound or forked, its state is exact
if it counted as many numbers as the largest of them says, and they add up.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import State, stateful
from tests.spark.conftest import Job
from tests.spark.needs import DATA_SOURCES, needs_spark
from tests.spark.test_kafka import Stream, job, stream

__all__ = ["job", "stream"]

SECONDS = 240


def numbers(root: str, factor: int = 1) -> Any:
    """A sink that sums up column `value`; a wrong one, with another `factor`."""

    @stateful(root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        seen = state.map("seen")
        row = batch.agg(
            F.count("*").alias("count"), F.sum("value").alias("sum"), F.max("value").alias("max")
        ).collect()[0]
        seen["count"] = seen.get("count", 0) + factor * row["count"]
        seen["sum"] = seen.get("sum", 0) + factor * (row["sum"] or 0)
        if row["max"] is not None:
            seen["max"] = max(seen.get("max", -1), row["max"])

    return update


def counted(root: str) -> int:
    """How many numbers a state has counted, each once and none left out."""
    restored = Checkpointer(root).restore()
    assert restored is not None
    seen = restored.keyed("seen")
    count = seen.get("max", -1) + 1
    assert (seen["count"], seen["sum"]) == (count, count * (count - 1) // 2)
    return int(count)


def epoch(root: str) -> int:
    restored = Checkpointer(root).restore()
    return -1 if restored is None or restored.epoch is None else restored.epoch


class RateBatches:
    """A rate source, so many rows a batch; its queries run until they are stopped."""

    def __init__(self, spark: SparkSession, kind: str, **options: Any) -> None:
        self.spark, self.kind, self.options = spark, kind, options

    def run(self, root: str, location: Path, factor: int = 1) -> None:
        """Some batches more, and stopped wherever it is."""
        wanted = epoch(root) + 3
        frame = self.spark.readStream.format(self.kind).options(**self.options).load()
        writer = frame.writeStream.foreachBatch(numbers(root, factor)).option("checkpointLocation", str(location))
        query = writer.trigger(processingTime="0 seconds").start()
        until = time.monotonic() + SECONDS
        while epoch(root) < wanted and query.isActive and time.monotonic() < until:
            time.sleep(0.1)
        query.stop()
        assert query.exception() is None
        assert epoch(root) >= wanted


def _length(path: str) -> int:
    return int(Path(path).read_text())


class PythonBatches:
    """A data source written in Python that reads as far as a file says."""

    def __init__(self, spark: SparkSession, path: Path, *, simple: bool) -> None:
        self.spark, self.path, self.name = spark, path, f"counting{simple}"
        spark.dataSource.register(_source(self.name, simple))

    def run(self, root: str, location: Path, factor: int = 1) -> None:
        for _ in range(2):
            self.path.write_text(str(10 + (_length(str(self.path)) if self.path.exists() else 0)))
            frame = self.spark.readStream.format(self.name).option("path", str(self.path)).load()
            writer = frame.writeStream.foreachBatch(numbers(root, factor)).option("checkpointLocation", str(location))
            writer.trigger(availableNow=True).start().awaitTermination()


def _source(label: str, simple: bool) -> Any:
    """Made in a function, so that workers get it by value."""
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition, SimpleDataSourceStreamReader

    class Reader(DataSourceStreamReader):
        def __init__(self, path: str) -> None:
            self.path = path

        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"n": 0}

        def latestOffset(self, *_: Any) -> dict[str, int]:  # noqa: N802
            from pathlib import Path

            return {"n": int(Path(self.path).read_text())}

        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
            return [InputPartition((start["n"], end["n"]))]

        def read(self, partition: Any) -> Iterator[tuple[int]]:
            yield from ((n,) for n in range(*partition.value))

    class Simple(SimpleDataSourceStreamReader):
        def __init__(self, path: str) -> None:
            self.path = path

        def initialOffset(self) -> dict[str, int]:  # noqa: N802
            return {"n": 0}

        def read(self, start: dict[str, int]) -> Any:
            from pathlib import Path

            end = {"n": max(start["n"], int(Path(self.path).read_text()))}
            return self.readBetweenOffsets(start, end), end

        def readBetweenOffsets(self, start: dict[str, int], end: dict[str, int]) -> Iterator[tuple[int]]:  # noqa: N802
            return iter([(n,) for n in range(start["n"], end["n"])])

    class Counting(DataSource):
        @classmethod
        def name(cls) -> str:
            return label

        def schema(self) -> str:
            return "value long"

        def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802
            return Reader(self.options["path"])

        def simpleStreamReader(self, schema: Any) -> SimpleDataSourceStreamReader:  # noqa: N802
            return Simple(self.options["path"])

    if simple:
        del Counting.streamReader
    return Counting


class KafkaBatches:
    def __init__(self, spark: SparkSession, stream: Stream) -> None:
        self.spark, self.stream, self.fed = spark, stream, 0

    def run(self, root: str, location: Path, factor: int = 1) -> None:
        self.stream.feed(*map(str, range(self.fed, self.fed + 60)))
        self.fed += 60
        options = {"kafka.bootstrap.servers": self.stream.broker.bootstrap, "subscribe": self.stream.topic}
        options |= {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "20"}
        frame = self.spark.readStream.format("kafka").options(**options).load()
        values = frame.select(F.col("value").cast("string").cast("long").alias("value"))
        writer = values.writeStream.foreachBatch(numbers(root, factor)).option("checkpointLocation", str(location))
        writer.trigger(availableNow=True).start().awaitTermination()


in_python = needs_spark("4.0", DATA_SOURCES)

PYTHON = pytest.param("python", marks=in_python)
SIMPLE = pytest.param("python-simple", marks=[pytest.mark.prove, in_python])  # Spark reads it as it reads "python"


@pytest.fixture(params=["rate", "rate-micro-batch", PYTHON, SIMPLE, "kafka"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    kind = request.param
    if kind == "kafka":
        job: Job = request.getfixturevalue("job")
        return KafkaBatches(job.spark, request.getfixturevalue("stream"))
    spark: SparkSession = request.getfixturevalue("spark")
    if kind == "rate":
        return RateBatches(spark, kind, rowsPerSecond=50)
    if kind == "rate-micro-batch":
        return RateBatches(spark, kind, rowsPerBatch=10)
    return PythonBatches(spark, tmp_path / "length", simple=kind == "python-simple")


def test_after_going_back_a_source_is_read_again_exactly(source: Any, tmp_path: Path) -> None:
    root, location = str(tmp_path / "state"), tmp_path / "spark"
    source.run(root, location)
    right, last = counted(root), epoch(root)
    source.run(root, location, factor=3)  # the deploy that was wrong
    with pytest.raises(AssertionError):
        counted(root)
    Checkpointer(root).rewind(to=f"epoch={last}")
    assert counted(root) == right
    source.run(root, location)
    assert counted(root) > right


@pytest.mark.parametrize(
    "source", ["rate-micro-batch", PYTHON, pytest.param("kafka", marks=pytest.mark.prove)], indirect=True
)
def test_a_fork_reads_the_same_source_on_its_own(source: Any, tmp_path: Path) -> None:
    root, location = str(tmp_path / "state"), tmp_path / "spark"
    copy, beside = str(tmp_path / "copy"), tmp_path / "copy-spark"
    source.run(root, location)
    made = Checkpointer(root).fork("epoch=0", copy, beside)
    assert json.loads((beside / "metadata").read_text())["id"] == made.query_id
    one, other = counted(root), counted(copy)
    source.run(copy, beside)
    assert counted(root) == one
    assert counted(copy) > other
    other = counted(copy)
    source.run(root, location)
    assert counted(root) > one
    assert counted(copy) == other


@in_python
def test_two_lines_of_batches_are_not_mixed(spark: SparkSession, tmp_path: Path) -> None:
    """Back, replayed in other batches, over to the first line, further back, undone, over to the second: all exact."""
    source, root, location = PythonBatches(spark, tmp_path / "length", simple=False), str(tmp_path / "state"), tmp_path
    client = Checkpointer(root)
    for _ in range(2):
        source.run(root, location)
    first = counted(root)
    left = client.rewind(to="epoch=0").savepoint
    source.run(root, location)
    second = counted(root)
    for path in (location / "commits").glob(f"*{epoch(root)}*"):  # as if killed between the state's commit and Spark's
        path.unlink()
    aside = client.rewind(to=str(left)).savepoint
    client.rewind(to="epoch=2")
    client.undo_rewind()
    assert counted(root) == first
    client.rewind(to=str(aside))
    assert counted(root) == second
    source.run(root, location)
    third = counted(root)
    client.rewind(to=str(left))
    client.undo_rewind()
    assert counted(root) == third
    source.run(root, location)
    assert counted(root) > third > second > first
