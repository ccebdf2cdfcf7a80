"""Make queries and their state with the PySpark that is on the path: `python old_checkpoint_job.py FOLDER`."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from pyspark_checkpointer.spark import State, stateful
from tests.spark.conftest import Job, new_session
from tests.spark.test_sink import summing


def joined(job: Job) -> DataFrame:
    other = job.source().withColumnRenamed("amount", "other")
    return job.source().join(other, "key").select("key", "amount")


STATEFUL: dict[str, Callable[[Job], DataFrame]] = {
    "aggregated": lambda job: job.source().groupBy("key").sum("amount"),
    "deduplicated": lambda job: job.source().dropDuplicates(["key"]),
    "joined": joined,
}
"""Queries that hold state of Spark's own, by the names of their folders."""


def counting(root: str) -> Any:
    @stateful(root)
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        state.map("counts")[batch_id] = batch.count()

    return update


def main(folder: Path) -> None:
    spark = new_session(**{"spark.sql.shuffle.partitions": "2"})
    for name in ("plain", *STATEFUL):
        (folder / name).mkdir(parents=True)
        job = Job(spark, folder / name)
        for n in range(4):
            job.feed(("a", 10**n), ("b", 1))
        if name in STATEFUL:
            job.run(counting(job.root), STATEFUL[name](job), "update" if name == "aggregated" else "append")
        else:
            job.run(summing(job.root))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
