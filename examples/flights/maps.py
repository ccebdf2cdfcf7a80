"""The first job: totals for each aircraft, in all and by month, in mappings that survive any kill.

The function `update` and its decorator are all that a job needs; `stream.py` runs it.
"""

from collections.abc import Hashable

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from examples.flights import stream
from examples.flights.data import SUMS, Totals
from examples.flights.events import emit
from pyspark_checkpointer import KeyedState
from pyspark_checkpointer.spark import State, stateful


def sink(root: str) -> stream.Sink:
    """Return the function for foreachBatch."""

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

    return update


def add(totals: KeyedState, key: Hashable, new: Totals) -> None:
    """Add to the totals of a key, which begin at zero."""
    old = totals.get(key, {})
    totals[key] = {name: old.get(name, 0) + value for name, value in new.items()}


if __name__ == "__main__":
    stream.main(sink)
