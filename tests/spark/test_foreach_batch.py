"""The cases of PySpark's own tests of foreachBatch: a function that `stateful` wraps does what it did without."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import State, stateful
from pyspark_checkpointer.spark.versions import is_at_least

Function = Callable[[DataFrame, int], Any]

LINES = ["again", "hello", "this"]


class Streams:
    """Queries over a folder of text, whose function is wrapped or not, and the table that they write."""

    def __init__(self, spark: SparkSession, folder: Path, wrapped: bool) -> None:
        self.spark, self.folder, self.wrapped = spark, folder, wrapped
        self.root = str(folder / "root")
        self.table = f"foreach_batch_{'wrapped' if wrapped else 'plain'}"
        self.text = str(folder / "text")
        (folder / "text").mkdir()
        (folder / "text" / "one.txt").write_text("hello\nthis\n")
        (folder / "text" / "two.txt").write_text("again\n")

    def start(self, function: Function, source: str = "text") -> StreamingQuery:
        def call(batch: DataFrame, batch_id: int, state: State) -> Any:
            return function(batch, batch_id)

        reader = self.spark.readStream.format(source)
        frame = reader.load(self.text).select("value") if source == "text" else reader.load()
        sink = stateful(self.root)(call) if self.wrapped else function
        return frame.writeStream.foreachBatch(sink).option("checkpointLocation", f"{self.folder}/spark").start()

    def run(self, function: Function, source: str = "text") -> None:
        query = self.start(function, source)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        restored = Checkpointer(self.root).restore() if self.wrapped else None
        assert self.wrapped == (restored is not None)

    def save(self, frame: DataFrame) -> None:
        frame.write.mode("append").option("path", f"{self.folder}/table").saveAsTable(self.table)

    def saved(self) -> list[Any]:
        return sorted(row[0] for row in self.spark.read.table(self.table).collect())


@pytest.fixture(params=["plain", "wrapped"])
def streams(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Streams]:
    made = Streams(spark, tmp_path, request.param == "wrapped")
    yield made
    spark.sql(f"DROP TABLE IF EXISTS {made.table}")


def test_a_batch_is_saved_as_a_table(streams: Streams) -> None:
    streams.run(lambda batch, _: streams.save(batch))
    assert streams.saved() == LINES


def test_a_view_of_the_batch_is_found_by_the_session_of_the_batch(streams: Streams) -> None:
    def function(batch: DataFrame, batch_id: int) -> None:
        batch.createOrReplaceTempView("updates")
        streams.save(batch.sparkSession.sql("SELECT * FROM updates"))

    streams.run(function)
    assert streams.saved() == LINES


def test_an_error_of_the_function_is_the_error_of_the_query(streams: Streams) -> None:
    def function(batch: DataFrame, batch_id: int) -> None:
        raise RuntimeError("this should fail the query")

    with pytest.raises(StreamingQueryException) as caught:
        streams.run(function)
    assert "RuntimeError: this should fail the query" in str(caught.value)
    if is_at_least("4.0"):
        assert "FOREACH_BATCH_USER_FUNCTION_ERROR" in str(caught.value)


def test_a_query_that_is_stopped_in_the_middle_of_a_batch_has_no_error(streams: Streams) -> None:
    called: list[int] = []

    def function(batch: DataFrame, batch_id: int) -> None:
        called.append(batch_id)
        batch.sparkSession._jvm.java.lang.Thread.sleep(30_000)

    query = streams.start(function)
    while not called:
        time.sleep(0.05)
    query.stop()
    assert query.exception() is None
    if streams.wrapped:
        assert Checkpointer(streams.root).restore() is None, "the batch did not come to its end"


def test_the_session_of_a_batch_makes_frames(streams: Streams) -> None:
    def function(batch: DataFrame, batch_id: int) -> None:
        streams.save(batch.sparkSession.createDataFrame([("structured",), ("streaming",)]).union(batch))

    streams.run(function)
    assert streams.saved() == sorted([*LINES, "structured", "streaming"])


def test_the_session_of_a_batch_reads_files(streams: Streams) -> None:
    def function(batch: DataFrame, batch_id: int) -> None:
        read = batch.sparkSession.read.format("text").load(streams.text).select("value")
        streams.save(read.union(batch))

    streams.run(function)
    assert streams.saved() == sorted(LINES * 2)


def of_the_module() -> int:
    return 1


def test_the_function_calls_others_of_its_module_its_class_and_its_own(streams: Streams) -> None:
    class Other:
        @staticmethod
        def number() -> int:
            return 2

    def inner() -> int:
        return 3

    def function(batch: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            numbers = [(of_the_module(),), (Other.number(),), (inner(),)]
            streams.save(batch.sparkSession.createDataFrame(numbers, "n long"))

    streams.run(function, "rate")
    assert streams.saved() == [1, 2, 3]


def test_the_function_imports_what_it_needs(streams: Streams) -> None:
    def function(batch: DataFrame, batch_id: int) -> None:
        import colorsys  # which nothing else has imported

        streams.save(batch.withColumn("value", F.lit(str(colorsys.rgb_to_hsv(0, 0, 0)))).limit(1))

    streams.run(function)
    assert streams.saved() == ["(0.0, 0.0, 0)"]


def test_a_column_made_outside_of_the_function_is_one_of_the_batch(streams: Streams) -> None:
    column = F.col("value")
    streams.run(lambda batch, _: streams.save(batch.select(column.alias("result"))))
    assert streams.saved() == LINES
