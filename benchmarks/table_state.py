"""Measure table state on the local store: a full write, a change and a read.

The peers in the same run are Spark's own Parquet writer and reader, which verify nothing, and a merge by delta-rs.
"""

import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, reduce
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.contenders import Synced, merge
from benchmarks.measure import Target, Times, alternate, rotated, timed
from benchmarks.micro_batches import fingerprint
from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.spark import read_state
from pyspark_checkpointer.spark.arguments import TableDefinition
from pyspark_checkpointer.spark.read import version_of
from pyspark_checkpointer.spark.table_changes import TableChanges
from pyspark_checkpointer.table import object_files
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.opening import key_table
from pyspark_checkpointer.table.parquet_encode import ZSTD_LEVEL
from pyspark_checkpointer.table.reader import TableReader

PARTITIONS = 8
CORES = 2
CHANGED = 100_000
WARM = 2
"""Upserts, and merges, that do not count."""

SCHEMA = "key long, n long, amount double, carrier string"


def session(folder: Path) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.master": f"local[{CORES}]",
        "spark.driver.memory": "6g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": str(CORES),  # more would only cost: Spark's own state has a store for each
        "spark.sql.parquet.compression.codec": "zstd",
        "spark.hadoop.parquet.compression.codec.zstd.level": str(ZSTD_LEVEL),
        "spark.local.dir": str(folder / "spark"),
    }
    builder = SparkSession.builder.appName("benchmarks")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def rows(spark: SparkSession, count: int, seed: int = 0) -> DataFrame:
    """Return rows of a key, a number, a random amount and one of 31 texts."""
    return spark.range(count).select(
        F.col("id").alias("key"),
        (F.col("id") % 977 + seed).alias("n"),
        (F.rand(seed) * 1000).alias("amount"),
        F.concat(F.lit("C"), F.col("id") % 31).alias("carrier"),
    )


class Root:
    """A table without a query: each call is a checkpoint."""

    def __init__(self, spark: SparkSession, path: Path, partitions: int = PARTITIONS, max_chain: int = 10) -> None:
        self._spark = spark
        self._partitions = partitions
        self.path = path
        self._client = Checkpointer(path, max_chain=max_chain)

    @contextmanager
    def batch(self) -> Iterator[TableChanges]:
        with self._client.begin() as checkpoint:
            table = TableChanges(
                self._spark, self._client, checkpoint.attempt, "t", TableDefinition(["key"], self._partitions)
            )
            yield table
            table.finish()

    def upsert(self, changed: DataFrame) -> None:
        with self.batch() as table:
            table.upsert(changed)

    def upsert_file(self, path: str) -> None:
        self.upsert(self._spark.read.schema(SCHEMA).parquet(path))

    def compact(self) -> None:
        with self.batch() as table:
            table.compact()

    def lookup_bytes(self, size: int) -> list[tuple[float, float]]:
        """Return the shares of all bytes that lookups read: of neighbours, of random keys and of one key.

        The first share is that of a process which has opened no file of the table, and the second that of the next
        lookup of the same keys.
        """
        restored = self._client.restore()
        assert restored is not None
        session, version = self._client.session, version_of(restored, "t")
        shares = []
        some = random.Random(1).sample(range(size), 1000)
        for keys in (range(size // 2, size // 2 + 1000), some, some[:1]):
            wanted = key_table(version, [{"key": key} for key in keys])
            numbers = np.array(partitions_of(wanted, version.schema, version.partitions))
            of = {number: wanted.filter(pa.array(numbers == number)) for number in sorted(set(numbers.tolist()))}
            readers = [TableReader(session.store, session.host, version.only([*of]), keys=wanted) for _ in range(2)]
            forget_files()
            for reader in readers:
                found = run_sync(reader.rows_of(of)).num_rows
                if found != len(keys):
                    raise AssertionError(f"{len(keys)} keys were written, {found} found")
            cold, warm = (reader.bytes_read / version.size for reader in readers)
            shares.append((cold, warm))
        return shares

    def lookup_times(self, size: int, repetitions: int) -> dict[str, Times]:
        """Measure a lookup of random keys and a read of all rows, both without Spark and in this process.

        The first lookup of a process opens the files of the table.
        """
        restored = self._client.restore()
        assert restored is not None
        keys = [{"key": key} for key in random.Random(1).sample(range(size), 1000)]

        def read(sought: list[dict[str, int]] | None, expected: int) -> float:
            start = time.perf_counter()
            found = restored.table("t", keys=sought).num_rows
            seconds = time.perf_counter() - start
            if found != expected:
                raise AssertionError(f"{expected} rows were written, {found} found")
            return seconds

        def first() -> float:
            forget_files()
            return read(keys, len(keys))

        return alternate(repetitions, first=first, some=lambda: read(keys, len(keys)), all=lambda: read(None, size))

    def read(self) -> None:
        consume(read_state(self._spark, str(self.path), "t"))

    def totals(self) -> tuple[Any, ...]:
        return fingerprint(read_state(self._spark, str(self.path), "t"))


def forget_files() -> None:
    """Forget the files that this process has opened, as a new process has opened none."""
    object_files._opened.clear()


def consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def run(quick: bool) -> list[Target]:
    folder = Path(tempfile.mkdtemp(prefix="bench-tables-"))
    spark = session(folder)
    try:
        count, repetitions = (100_000, 1) if quick else (4_000_000, 5)
        sizes = [150_000, 200_000, 400_000] if quick else [1_000_000, 10_000_000, 40_000_000]
        return [
            *_full(spark, folder, count, repetitions),
            *_chain(spark, folder, count, repetitions),
            *_upserts(spark, folder, sizes, *((1, 1) if quick else (60, 5))),
        ]
    finally:
        spark.stop()
        shutil.rmtree(folder)


def _against(question: str, mine: Times, other: Times, limit: float | None) -> Target:
    detail = f"{mine.median:.2f} / {other.median:.2f} s, spread {mine.spread:.0%} / {other.spread:.0%}"
    return Target(question, mine.median / other.median, limit, detail)


def _full(spark: SparkSession, folder: Path, count: int, repetitions: int) -> list[Target]:
    source, plain, by_key = (str(folder / name) for name in ("source", "plain", "by-key"))
    rows(spark, count).write.parquet(source)
    frame = spark.read.parquet(source)
    roots = (Root(spark, folder / f"full-{number}") for number in range(1000))
    last: list[Root] = []

    def ours() -> float:
        for old in last:
            shutil.rmtree(old.path)
        last[:] = [next(roots)]
        return timed(lambda: last[0].upsert(frame))

    def parquet(data: DataFrame, path: str) -> float:
        shutil.rmtree(path, ignore_errors=True)
        return timed(lambda: data.write.parquet(path))

    written = alternate(
        repetitions,
        ours=ours,
        by_key=lambda: parquet(frame.repartition(PARTITIONS, "key"), by_key),
        parquet=lambda: parquet(frame, plain),
    )
    read = alternate(
        repetitions,
        ours=lambda: timed(last[0].read),
        parquet=lambda: timed(lambda: consume(spark.read.schema(frame.schema).parquet(by_key))),
    )
    if {last[0].totals(), *(fingerprint(spark.read.parquet(path)) for path in (by_key, plain))} != {fingerprint(frame)}:
        raise AssertionError("what was read is not what was written")
    what = "table: full snapshot / Spark's Parquet, which does not sync"
    return [
        _against(f"{what}, partitioned by key", written["ours"], written["by_key"], 1.2),
        _against(f"{what}, rows as they come", written["ours"], written["parquet"], None),
        _against("table: full read, verified / Spark's Parquet", read["ours"], read["parquet"], 1.2),
    ]


def _chain(spark: SparkSession, folder: Path, count: int, repetitions: int) -> list[Target]:
    chained, compacted = (Root(spark, folder / name, max_chain=30) for name in ("chained", "compacted"))
    changes = [rows(spark, count, step + 1).where(F.col("key") % 100 == step) for step in range(10)]
    for root in (chained, compacted):
        root.upsert(rows(spark, count))
        for change in changes:
            root.upsert(change)
    compacted.compact()
    expected = fingerprint(
        reduce(DataFrame.union, changes, rows(spark, count).where(F.col("key") % 100 >= len(changes)))
    )
    if chained.totals() != expected or compacted.totals() != expected:
        raise AssertionError("what was read is not what was written")
    read = alternate(repetitions, chained=lambda: timed(chained.read), compacted=lambda: timed(compacted.read))
    question = "table: read with 10 deltas of 1 % each / compacted"
    return [_against(question, read["chained"], read["compacted"], 1.25)]


def _upserts(spark: SparkSession, folder: Path, sizes: list[int], rounds: int, merges: int) -> list[Target]:
    """Return the mean of many batches. Except in the largest table, every partition is rewritten once in them."""
    roots = {size: Root(spark, folder / f"upserts-{size}", partitions=32) for size in sizes}
    for size, root in roots.items():
        root.upsert(rows(spark, size))
    fresh = roots[sizes[-1]].lookup_bytes(sizes[-1])
    middle, peer = sizes[1], str(folder / "delta")
    looked_up = roots[middle].lookup_times(middle, 10)
    write_deltalake(peer, rows(spark, middle).toArrow())
    synced, merged = Synced(Path(peer)), list[float]()
    paths: dict[int, list[str]] = {size: [] for size in sizes}
    seconds: dict[int, list[float]] = {size: [] for size in sizes}
    for number in range(WARM + rounds):
        for size in rotated(sizes, number):
            paths[size].append(_changes(folder, size, number))
            seconds[size].append(timed(partial(roots[size].upsert_file, paths[size][-1])))
        if number < WARM + merges:
            merged.append(timed(partial(_merge, peer, paths[middle][-1], synced)))
    for size, root in roots.items():
        _check(spark, size, paths[size], root.totals())
    _check(spark, middle, paths[middle][: len(merged)], fingerprint(spark.read.parquet(*DeltaTable(peer).file_uris())))
    changed = roots[sizes[-1]].lookup_bytes(sizes[-1])
    means = {size: statistics.mean(seconds[size][WARM:]) for size in sizes}
    by_peer = statistics.mean(merged[WARM:])
    detail = ", ".join(f"{size / 1e6:g} M: {mean:.2f} s" for size, mean in means.items())
    spread = Times(tuple(seconds[middle][WARM:])).spread, Times(tuple(merged[WARM:])).spread

    def bytes_of(what: str, kind: int, limit: float | None) -> Iterator[Target]:
        question = f"table: bytes read for {what} of {sizes[-1]:,} rows"
        for when, (cold, warm) in (("", fresh[kind]), (f" after {WARM + rounds} upserts", changed[kind])):
            detail = f"verified; {warm:.3f} once the files were opened"
            yield Target(f"{question}{when}, no file opened before / all", cold, limit, detail)

    key_times = f"table: 1,000 random keys of {middle:,} rows / all rows, time"
    return [
        Target(
            f"table: upsert of {CHANGED:,} into {middle:,} / delta-rs merge",
            means[middle] / by_peer,
            0.4,
            f"mean of {rounds}: {means[middle]:.2f} s; of {merges}: {by_peer:.2f} s; "
            f"spread {spread[0]:.0%} / {spread[1]:.0%}",
        ),
        Target(
            "table: slowest / fastest of three sizes, same upsert",
            max(means.values()) / min(means.values()),
            1.3,
            f"{detail}; of the largest no partition is written anew yet",
        ),
        *bytes_of("1,000 neighbours", 0, 0.02),
        *bytes_of("1,000 random keys", 1, 0.02),
        *bytes_of("1 key", 2, None),
        _against(key_times, looked_up["some"], looked_up["all"], 0.15),
        _against(f"{key_times}, files not opened before", looked_up["first"], looked_up["all"], None),
    ]


def _changes(folder: Path, size: int, number: int) -> str:
    """Write a file with random rows, which all contenders read."""
    draw = np.random.default_rng((size, number))
    keys = draw.choice(size, CHANGED, replace=False)
    carrier = np.char.add("C", (keys % 31).astype(str))
    table = {"key": keys, "n": keys % 977, "amount": draw.random(CHANGED), "carrier": carrier}
    path = str(folder / f"change-{size}-{number}.parquet")
    pq.write_table(pa.table(table), path)
    return path


def _check(spark: SparkSession, size: int, paths: list[str], found: tuple[Any, ...]) -> None:
    """Check that the table holds the last value of each row."""
    number = F.regexp_extract(F.input_file_name(), r"-(\d+)\.parquet", 1).cast("int")
    given = spark.read.schema(SCHEMA).parquet(*paths).withColumn("number", number)
    last = given.groupBy("key").agg(F.max_by(F.struct("n", "amount", "carrier"), "number").alias("row"))
    expected = rows(spark, size).join(last.select("key"), "key", "left_anti").union(last.select("key", "row.*"))
    if fingerprint(expected) != found:
        raise AssertionError("what was read is not what was written")


def _merge(path: str, changed: str, synced: Synced) -> None:
    merge(path, pq.read_table(changed))
    synced()
