"""Write each batch to a database once, although a batch may run twice.

State that `stateful` keeps is exact. Rows that a callback writes elsewhere may be written twice: if a job dies after it
wrote them and before its checkpoint, Spark runs the batch again. So the callback records the token of the batch (query
id and batch id) in the same transaction as the rows, and skips a batch whose token is there.

Each row has its token too. After a `checkpointer rewind` the batches above its target come again with the same tokens,
and `take_back` removes what they had written.

    python -m examples.idempotent_sink [--folder FOLDER]

runs a small job over files of orders that fails at the worst moment, runs it again, and counts. A customer who has
ordered for 100 in all gets one voucher, which is a row in SQLite.
"""

import argparse
import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import State, Token, stateful

BATCHES = 6
CUSTOMERS = 40
VOUCHER = 100

TABLES = """
    CREATE TABLE IF NOT EXISTS batches (query TEXT, batch INTEGER, PRIMARY KEY (query, batch));
    CREATE TABLE IF NOT EXISTS vouchers (query TEXT, batch INTEGER, customer TEXT, total INTEGER);
"""


def write_once(database: Path, token: Token, vouchers: Iterable[tuple[str, int]]) -> bool:
    """Write a batch's vouchers and its token in one transaction. Return False if they were written before."""
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript(TABLES)
        with connection:  # one transaction: all of it, or nothing
            if connection.execute("INSERT OR IGNORE INTO batches VALUES (?, ?)", token).rowcount == 0:
                return False
            connection.executemany("INSERT INTO vouchers VALUES (?, ?, ?, ?)", ((*token, *row) for row in vouchers))
            return True


def take_back(database: Path, last: Token) -> int:
    """Remove what was written in batches after `last`, to which the job was rewound. Return how many vouchers went."""
    with closing(sqlite3.connect(database)) as connection, connection:
        gone = connection.execute("DELETE FROM vouchers WHERE query = ? AND batch > ?", last).rowcount
        connection.execute("DELETE FROM batches WHERE query = ? AND batch > ?", last)
        return gone


def start(spark: SparkSession, folder: Path, fail_in: int | None = None) -> StreamingQuery:
    """Start the query: one file a batch. In batch `fail_in` it fails after the sink and before the checkpoint."""

    @stateful(folder / "state")
    def update(batch: DataFrame, batch_id: int, state: State) -> None:
        totals = state.map("totals")
        vouchers = []
        for row in batch.groupBy("customer").agg(F.sum("amount").alias("amount")).collect():
            before = totals.get(row.customer, 0)
            totals[row.customer] = before + row.amount
            if before < VOUCHER <= totals[row.customer]:
                vouchers.append((row.customer, totals[row.customer]))
        written = write_once(folder / "vouchers.db", state.token, vouchers)
        print(f"batch {batch_id}: {len(vouchers)} vouchers, {'written' if written else 'had been written before'}")
        if batch_id == fail_in:
            raise RuntimeError("the sink has the batch, and the state does not")

    orders = spark.readStream.schema("customer STRING, amount INT").option("maxFilesPerTrigger", 1)
    writer = orders.json(str(folder / "orders")).writeStream.foreachBatch(update)
    return writer.option("checkpointLocation", str(folder / "spark")).trigger(availableNow=True).start()


def write_orders(folder: Path) -> dict[str, int]:
    """Write a file of orders for each batch. Return what each customer orders in all."""
    folder.mkdir(parents=True)
    totals: dict[str, int] = {}
    for batch in range(BATCHES):
        orders = [(f"customer-{n:02}", (7 * n + 11 * batch) % 40) for n in range(CUSTOMERS)]
        lines = [json.dumps({"customer": customer, "amount": amount}) for customer, amount in orders]
        path = folder / f"{batch}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (batch + 1, batch + 1))  # Spark takes files by time of modification
        for customer, amount in orders:
            totals[customer] = totals.get(customer, 0) + amount
    return totals


def read_vouchers(database: Path) -> list[str]:
    """Return the customers of all vouchers, with duplicates."""
    with closing(sqlite3.connect(database)) as connection:
        return [customer for (customer,) in connection.execute("SELECT customer FROM vouchers ORDER BY customer")]


def run(folder: Path, fail_in: int = 4) -> bool:
    """Run the job, let it fail, and run it again. Return whether the state and the vouchers are right."""
    totals = write_orders(folder / "orders")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("idempotent-sink")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .config("spark.sql.shuffle.partitions", 2)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    try:
        start(spark, folder, fail_in).awaitTermination()
    except StreamingQueryException:
        print("The job failed after it wrote that, and before its checkpoint. Again:")
    start(spark, folder).awaitTermination()
    spark.stop()

    restored = Checkpointer(folder / "state").restore()
    assert restored is not None
    found = read_vouchers(folder / "vouchers.db")
    due = sorted(customer for customer, total in totals.items() if total >= VOUCHER)
    print(f"{len(found)} vouchers for {len(set(found))} customers; {len(due)} are due")
    return found == due and dict(restored.keyed("totals")) == totals


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.idempotent_sink")
    parser.add_argument("--folder", type=Path, help="an empty folder to work in; else a temporary one")
    arguments = parser.parse_args()
    if arguments.folder is not None:
        right = run(arguments.folder.resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="idempotent-sink-") as folder:
            right = run(Path(folder))
    print("Right: each voucher once." if right else "WRONG")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
