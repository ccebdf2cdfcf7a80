"""Run either job: a small Spark, the stream of flights, and lines of JSON that tell the demo what happens.

Nothing here knows what a job does with a batch.
"""

import argparse
import os
import sys
from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener
from pyspark.sql.streaming.listener import QueryProgressEvent

from examples.flights import pauses
from examples.flights.events import emit

COLUMNS = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "air_time INT, distance INT, hour INT, minute INT, time_hour STRING"
)

Sink = Callable[[DataFrame, int], None]
"""The function that foreachBatch calls."""


def start(spark: SparkSession, sink: Sink, flights: str, days: int, checkpoint: str) -> StreamingQuery:
    """Start the query: `days` files a batch, until all files that are there now are done."""
    stream = (
        spark.readStream.schema(COLUMNS)
        .option("header", True)
        .option("nullValue", "NA")
        .option("maxFilesPerTrigger", days)
        .csv(flights)
    )
    writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


class Progress(StreamingQueryListener):
    """A listener that tells the demo which batches Spark has finished, even if `update` was not called for them."""

    def onQueryStarted(self, event: object) -> None:  # noqa: N802  # Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        emit("finished", batch=event.progress.batchId, milliseconds=event.progress.batchDuration)

    def onQueryTerminated(self, event: object) -> None:  # noqa: N802
        pass


def start_spark() -> SparkSession:
    """Start a small Spark on this machine, with few messages."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.sql.adaptive.enabled", False)  # for so little data, planning again costs more than it saves
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(sink: Callable[[str], Sink]) -> None:
    """Run a job from the command line. `sink` makes its foreachBatch function from the root of its state."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True, help="where the state is kept")
    parser.add_argument("--input", required=True, help="the folder of flights, one CSV file a day")
    parser.add_argument("--days", type=int, required=True, help="how many days, so files, make a batch")
    parser.add_argument("--checkpoint", required=True, help="Spark's own checkpoint folder")
    parser.add_argument("--stop-at", type=pauses.parse, help="POINT:BATCH where to stop and wait for the kill")
    arguments = parser.parse_args()
    if arguments.stop_at is not None:
        pauses.install(*arguments.stop_at)
    spark = start_spark()
    spark.streams.addListener(Progress())
    emit("started")
    query = start(spark, sink(arguments.root), arguments.input, arguments.days, arguments.checkpoint)
    query.awaitTermination()
    spark.stop()
