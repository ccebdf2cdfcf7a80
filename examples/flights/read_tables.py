"""Read the tables of a root in another Spark, which has nothing from the job that wrote them.

It prints how many flights each checkpoint has, and writes the tables of the last one as plain Parquet.
"""

import argparse

from pyspark.sql import functions as F

from examples.flights.data import KEYS
from examples.flights.events import emit
from examples.flights.stream import start_spark
from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import read_state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", required=True, help="where the state is kept")
    parser.add_argument("--output", required=True, help="the folder to write to, one folder for each table")
    arguments = parser.parse_args()
    with Checkpointer(arguments.root) as checkpointer:
        checkpoints = checkpointer.list_checkpoints()
    spark = start_spark()
    emit("started")
    for checkpoint in checkpoints:
        flights = {}
        for name in KEYS:
            rows = read_state(spark, arguments.root, name, id=checkpoint, columns=["flights"])
            flights[name] = rows.agg(F.sum("flights")).collect()[0][0]
        emit("restored", checkpoint=str(checkpoint), flights=flights)
    for name in KEYS:
        read_state(spark, arguments.root, name).write.parquet(f"{arguments.output}/{name}")
    spark.stop()


if __name__ == "__main__":
    main()
