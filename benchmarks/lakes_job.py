"""Merge each batch into a table: `python -m benchmarks.lakes_job LAKE KEYS CHANGED TURNS BATCHES EVERY`.

It works in the current folder, with two cores, on the Spark of the lake. The first batch has KEYS keys, each later one
CHANGED of them. A batch is counted and summed per key. `noop` stops there, `ours` adds that to its table with `upsert`,
and each table of the lake with the MERGE of its users. In every batch whose number EVERY divides, the small files of a
table are compacted, within the batch. For each contender it prints, as JSON, the seconds of its batches and those of
its compactions. Each table is compared with the sums of all rows.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.lake_sparks import LAKES
from benchmarks.micro_batches import Feed, fingerprint, in_turns, session
from benchmarks.operators_job import make_part, noop, totals, upsert
from pyspark_checkpointer.spark import read_state, stateful

SETTINGS = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "2"}

COLUMNS = "(key BIGINT, n BIGINT, amount BIGINT)"

MERGE = """
MERGE INTO {table} AS t USING batch AS s ON t.key = s.key
WHEN MATCHED THEN UPDATE SET n = t.n + s.n, amount = t.amount + s.amount
WHEN NOT MATCHED THEN INSERT *
"""


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table of a lake, and the statement that compacts it.

    Old files and versions stay, as those of this library do: neither VACUUM nor `expire_snapshots` nor a cleanup runs.
    """

    name: str
    create: str
    compact: str | None = None
    compacted: list[float] = field(default_factory=list)

    def merge(self, every: int, batch: DataFrame, batch_id: int) -> None:
        spark = batch.sparkSession
        totals(batch).createOrReplaceTempView("batch")
        spark.sql(MERGE.format(table=self.name))
        if self.compact and batch_id and batch_id % every == 0:
            start = time.perf_counter()
            spark.sql(self.compact)
            self.compacted.append(time.perf_counter() - start)

    def read(self, spark: SparkSession) -> DataFrame:
        spark.sql(f"REFRESH TABLE {self.name}")  # Iceberg's catalog keeps what this session saw when it made the table
        return spark.table(self.name)


def delta(deletion_vectors: bool) -> LakeTable:
    """Return a table of Delta. Without deletion vectors each batch rewrites all files: there are none to compact."""
    path = f"delta.`{Path.cwd() / f'delta-{deletion_vectors}'}`"
    properties = f"'delta.enableDeletionVectors' = '{str(deletion_vectors).lower()}'"
    return LakeTable(
        path,
        f"CREATE TABLE {path} {COLUMNS} USING delta TBLPROPERTIES ({properties})",
        f"OPTIMIZE {path}" if deletion_vectors else None,
    )


def iceberg() -> LakeTable:
    """Return a table of Iceberg that merges on read, in format 3, whose deletion vectors are faster than delete files.

    It has a bucket for each core. Eight buckets were slower.
    """
    properties = "'format-version' = '3', 'write.merge.mode' = 'merge-on-read'"
    options = "map('min-input-files', '2', 'delete-file-threshold', '1')"
    return LakeTable(
        "lake.db.t",
        f"CREATE TABLE lake.db.t {COLUMNS} USING iceberg PARTITIONED BY (bucket(2, key)) TBLPROPERTIES ({properties})",
        f"CALL lake.system.rewrite_data_files(table => 'db.t', options => {options})",
    )


TABLES: Mapping[str, Mapping[str, Callable[[], LakeTable]]] = {
    "delta": {"Delta": partial(delta, False), "Delta with deletion vectors": partial(delta, True)},
    "iceberg": {"Iceberg": iceberg},
}
"""The tables of each lake, by the name of the contender."""


def main(lake: str, keys: str, changed: str, turns: str, batches: str, every: str) -> None:
    folder = Path.cwd()
    with session("local[2]", SETTINGS | LAKES[lake].session_settings()) as spark:
        feed = Feed(spark, folder / "input", partial(make_part, int(keys), int(changed)))
        tables = {name: make() for name, make in TABLES[lake].items()}
        for table in tables.values():
            spark.sql(table.create)
        updates: dict[str, Callable[[DataFrame, int], None]] = {
            "noop": noop,
            "ours": stateful(folder / "ours")(upsert),
            **{name: partial(table.merge, int(every)) for name, table in tables.items()},
        }
        queries = {name: partial(_query, feed, update) for name, update in updates.items()}
        times = in_turns(feed, queries, folder, int(turns), int(batches))
        kept = {name: table.read(spark) for name, table in tables.items()}
        _check(feed, {"ours": read_state(spark, folder / "ours", "t")} | kept)
        compacted = {name: table.compacted for name, table in tables.items()}
        print(json.dumps({name: [found.seconds, compacted.get(name, [])] for name, found in times.items()}))


def _query(feed: Feed, update: Callable[[DataFrame, int], None]) -> DataStreamWriter:
    return feed.stream().writeStream.foreachBatch(update)


def _check(feed: Feed, kept: Mapping[str, DataFrame]) -> None:
    """Compare what each contender keeps with the sums of all rows."""
    given = totals(feed.read())
    sums = fingerprint(given)
    for name, rows in kept.items():
        if fingerprint(rows.select(given.columns)) != sums:
            raise AssertionError(f"{name}: the running sums are not the sums")


if __name__ == "__main__":
    main(*sys.argv[1:])
