"""The second job: a row for each aircraft and each route, in tables that Spark's own tasks write and merge.

The function `update` and its decorator are all that a job needs; `stream.py` runs it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.flights import stream
from examples.flights.data import KEYS
from examples.flights.events import emit
from pyspark_checkpointer.spark import Combine, State, stateful

PARTITIONS = 4

COMBINE: dict[str, Combine] = {
    "flights": "sum",
    "miles": "sum",
    "late": "sum",
    "first_day": "min",
    "last_day": "max",
    "quickest": "min",
    "longest": "max",
}
"""How a row of a table and a new row of the same key become one."""


def sink(root: str) -> stream.Sink:
    """Return the function for foreachBatch."""

    @stateful(root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        new = summarize(batch, "aircraft").persist()
        try:
            flights, tails = new.agg(F.sum("flights"), F.count("*")).collect()[0]
            emit("computed", batch=batch_id, flights=flights, aircraft=tails)
            aircraft = state.table("aircraft", key=KEYS["aircraft"], num_partitions=PARTITIONS, combine=COMBINE)
            routes = state.table("routes", key=KEYS["routes"], num_partitions=PARTITIONS, combine=COMBINE)
            aircraft.upsert(new)
            routes.upsert(summarize(batch, "routes"))
        finally:
            new.unpersist()

    return update


def summarize(batch: DataFrame, table: str) -> DataFrame:
    """Return the rows of one batch for either table: the same columns with another key."""
    day = F.make_date("year", "month", "day")
    return batch.groupBy(*KEYS[table]).agg(
        F.count("*").alias("flights"),
        F.sum("distance").alias("miles"),
        F.sum("arr_delay").alias("late"),
        F.min(day).alias("first_day"),
        F.max(day).alias("last_day"),
        F.min("air_time").alias("quickest"),
        F.max("air_time").alias("longest"),
    )


if __name__ == "__main__":
    stream.main(sink)
