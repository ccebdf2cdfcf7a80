"""The streaming job: totals for each aircraft, in all and by month, in a state that survives a kill at any moment.

The function `update` and its decorator are all that a job needs. The rest starts Spark and tells the demo, in lines
of JSON on the standard output, what happens.
"""

import argparse
import os
import sys
from collections.abc import Hashable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everybody calls it
from pyspark.sql.streaming import StreamingQuery, StreamingQueryListener
from pyspark.sql.streaming.listener import QueryProgressEvent

from checkpointer import KeyedState
from checkpointer.spark import State, stateful
from examples.flights import pauses
from examples.flights.data import BATCH, SUMS, Totals
from examples.flights.events import emit

COLUMNS = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, "
    "air_time INT, distance INT, hour INT, minute INT, time_hour STRING"
)


def start(spark: SparkSession, root: str, flights: str, checkpoint: str) -> StreamingQuery:
    """Start the query: `BATCH` files a batch, until every file that is there now is done."""

    @stateful(root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        aircraft, months = state.map("aircraft"), state.map("months")
        sums = [F.coalesce(F.sum(column), F.lit(0)).alias(name) for name, column in SUMS.items()]
        rows = batch.groupBy("tailnum", "month").agg(F.count("*").alias("flights"), *sums).collect()
        for row in rows:
            new = {name: row[name] for name in ("flights", *SUMS)}
            add(aircraft, row.tailnum, new)
            add(months, (row.tailnum, row.month), new)
        tails = {row.tailnum for row in rows}
        emit("computed", batch=batch_id, flights=sum(row.flights for row in rows), aircraft=len(tails))

    stream = (
        spark.readStream.schema(COLUMNS)
        .option("header", True)
        .option("nullValue", "NA")
        .option("maxFilesPerTrigger", BATCH)
        .csv(flights)
    )
    writer = stream.writeStream.foreachBatch(update).option("checkpointLocation", checkpoint)
    return writer.trigger(availableNow=True).start()


def add(totals: KeyedState, key: Hashable, new: Totals) -> None:
    """Add to the totals under a key, which begin at zero."""
    old = totals.get(key, {})
    totals[key] = {name: old.get(name, 0) + value for name, value in new.items()}


class Progress(StreamingQueryListener):
    """Tells the demo which batches Spark has finished, whether `update` was called for them or not."""

    def onQueryStarted(self, event: object) -> None:  # noqa: N802  # Spark's name
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        emit("finished", batch=event.progress.batchId, milliseconds=event.progress.batchDuration)

    def onQueryTerminated(self, event: object) -> None:  # noqa: N802
        pass


def start_spark() -> SparkSession:
    """A small, quiet Spark on this machine."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("flights")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.shuffle.partitions", 2)
        .config("spark.driver.memory", "1g")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main() -> None:
    parser = argparse.ArgumentParser(prog="examples.flights.job", description=__doc__)
    parser.add_argument("--root", required=True, help="where the state is kept")
    parser.add_argument("--input", required=True, help="the folder of flights, one CSV file a day")
    parser.add_argument("--checkpoint", required=True, help="Spark's own checkpoint folder")
    parser.add_argument("--stop-at", type=pauses.parse, help="POINT:BATCH where to stop and wait for the kill")
    arguments = parser.parse_args()
    if arguments.stop_at is not None:
        pauses.install(*arguments.stop_at)
    spark = start_spark()
    spark.streams.addListener(Progress())
    emit("started")
    start(spark, arguments.root, arguments.input, arguments.checkpoint).awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
