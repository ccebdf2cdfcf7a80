"""A query over a Kafka topic that counts the values of its records, in a process of its own.

`python -m tests.spark.kafka_job ROOT SPARK_CHECKPOINT BOOTSTRAP TOPIC MAX_OFFSETS_PER_TRIGGER` reads what there is,
prints the counts as one JSON line, and ends. Tests with a session of their own call `run`.
"""

import json
import sys
from collections.abc import Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pyspark_checkpointer.spark import State, stateful
from tests.kafka import spark_jars
from tests.spark.conftest import new_session

COUNTS = "counts"


def source(bootstrap: str, topic: str, max_offsets: int) -> dict[str, str]:
    """Options of Spark's Kafka source: all of a topic, so many records a batch."""
    return {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(max_offsets),
    }


def run(spark: SparkSession, root: str, location: str, options: Mapping[str, str]) -> dict[str, int]:
    """Read everything that is there. Returns how often each value was counted."""

    @stateful(root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        counts = state.map(COUNTS)
        for row in batch.groupBy(F.col("value").cast("string").alias("value")).count().collect():
            counts[row.value] = counts.get(row.value, 0) + row["count"]

    records = spark.readStream.format("kafka").options(**options).load()
    query = records.writeStream.foreachBatch(update).option("checkpointLocation", location)
    query.trigger(availableNow=True).start().awaitTermination()
    restored = update.checkpointer.restore()
    return dict(restored.keyed(COUNTS)) if restored else {}


def main(root: str, location: str, bootstrap: str, topic: str, max_offsets: str) -> None:
    spark = new_session(**{"spark.jars": ",".join(map(str, spark_jars()))})
    print(json.dumps(run(spark, root, location, source(bootstrap, topic, int(max_offsets)))))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
