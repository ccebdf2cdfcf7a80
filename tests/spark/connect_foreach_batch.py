"""The cases of PySpark's own tests of foreachBatch in Spark Connect, each with a function that is wrapped or not.

A client of Spark Connect: `python connect_foreach_batch.py URL`. See `connect_client.py`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import State, stateful
from tests.spark.connect_client import serve

spark: SparkSession
Function = Callable[[DataFrame, int], Any]


class Streams:
    """Queries over a folder of text, and the table that their function writes."""

    def __init__(self, folder: Path, wrapped: bool) -> None:
        self.folder, self.wrapped = folder, wrapped
        self.root, self.location, self.text = (str(folder / name) for name in ("root", "spark", "text"))
        self.table = f"connect_{'wrapped' if wrapped else 'plain'}"
        (folder / "text").mkdir(parents=True)
        (folder / "text" / "one.txt").write_text("hello\nthis\n")
        (folder / "text" / "two.txt").write_text("again\n")

    def start(self, function: Function, source: str = "text") -> Any:
        def call(batch: DataFrame, batch_id: int, state: State) -> Any:
            return function(batch, batch_id)

        reader = spark.readStream.format(source)
        frame = reader.load(self.text).select("value") if source == "text" else reader.load()
        sink = stateful(self.root, checkpoint_location=self.location)(call) if self.wrapped else function
        return frame.writeStream.foreachBatch(sink).option("checkpointLocation", self.location).start()

    def run(self, function: Function, source: str = "text") -> None:
        query = self.start(function, source)
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        restored = Checkpointer(self.root).restore() if self.wrapped else None
        assert self.wrapped == (restored is not None)

    def saver(self) -> Callable[[DataFrame], None]:
        """Return a function that appends rows to the table. It travels to the server, so it is small."""
        table, path = self.table, str(self.folder / "table")

        def save(frame: DataFrame) -> None:
            frame.write.mode("append").option("path", path).saveAsTable(table)

        return save

    def saved(self) -> list[Any]:
        return sorted(row[0] for row in spark.read.table(self.table).collect())


def saved_as_a_table(streams: Streams) -> Any:
    save = streams.saver()
    streams.run(lambda batch, _: save(batch))
    return streams.saved()


def view_of_the_batch(streams: Streams) -> Any:
    save = streams.saver()

    def function(batch: DataFrame, batch_id: int) -> None:
        batch.createOrReplaceTempView("updates")
        save(batch.sparkSession.sql("SELECT * FROM updates"))

    streams.run(function)
    return streams.saved()


def error_of_the_function(streams: Streams) -> Any:
    def function(batch: DataFrame, batch_id: int) -> None:
        raise RuntimeError("this should fail the query")

    streams.run(function)


def frames_of_the_session_of_a_batch(streams: Streams) -> Any:
    save = streams.saver()

    def function(batch: DataFrame, batch_id: int) -> None:
        save(batch.sparkSession.createDataFrame([("structured",), ("streaming",)], "value string").union(batch))

    streams.run(function)
    return streams.saved()


def files_read_by_the_session_of_a_batch(streams: Streams) -> Any:
    save, text = streams.saver(), streams.text

    def function(batch: DataFrame, batch_id: int) -> None:
        save(batch.sparkSession.read.format("text").load(text).select("value").union(batch))

    streams.run(function)
    return streams.saved()


def of_the_module() -> int:
    return 1


class Other:
    @staticmethod
    def number() -> int:
        return 2


def functions_that_it_calls(streams: Streams) -> Any:
    save = streams.saver()

    def inner() -> int:
        return 3

    def function(batch: DataFrame, batch_id: int) -> None:
        if batch_id == 0:
            save(batch.sparkSession.createDataFrame([(of_the_module(),), (Other.number(),), (inner(),)], "n long"))

    streams.run(function, "rate")
    return streams.saved()


def import_within_the_function(streams: Streams) -> Any:
    save = streams.saver()

    def function(batch: DataFrame, batch_id: int) -> None:
        import colorsys  # which nothing else has imported

        save(batch.withColumn("value", F.lit(str(colorsys.rgb_to_hsv(0, 0, 0)))).limit(1))

    streams.run(function)
    return streams.saved()


def column_of_outside(streams: Streams) -> Any:
    save, column = streams.saver(), F.col("value")
    streams.run(lambda batch, _: save(batch.select(column.alias("result"))))
    return streams.saved()


def frame_of_outside(streams: Streams) -> Any:
    name, other = f"view_{streams.table}", spark.createDataFrame([("client",)], "value string")
    streams.run(lambda batch, _: other.createOrReplaceTempView(name))
    return sorted(row[0] for row in spark.table(name).collect())


def session_of_outside(streams: Streams) -> Any:
    name, session = f"view_{streams.table}", spark

    def function(batch: DataFrame, batch_id: int) -> None:
        session.createDataFrame([("you",), ("can",)], "value string").createOrReplaceTempView(name)

    streams.run(function)
    return sorted(row[0] for row in spark.table(name).collect())


class NotPickled:
    def __reduce__(self) -> NoReturn:
        raise ValueError("no pickle")


def what_cannot_be_pickled(streams: Streams) -> Any:
    held = NotPickled()
    streams.run(lambda batch, _: print(held))


class NotUnpickled:
    def __reduce__(self) -> Any:
        def fail() -> NoReturn:
            raise ValueError("it cannot be unpickled")

        return fail, ()


def what_cannot_be_unpickled(streams: Streams) -> Any:
    held = NotUnpickled()
    streams.run(lambda batch, _: print(held))


def outcome(folder: Path, case: str, wrapped: bool) -> Any:
    """Return what a case returns, or the name of its error and its text."""
    streams = Streams(folder, wrapped)
    try:
        return globals()[case](streams)
    except AssertionError:
        raise
    except Exception as error:
        return [type(error).__name__, str(error)]
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {streams.table}")


if __name__ == "__main__":
    spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
    serve(globals())
