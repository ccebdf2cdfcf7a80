"""Run streaming queries over the same files in turn: the cost of a micro-batch, as Spark reports it."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.measure import Times, rotated

FILES = 2
"""Files of a batch: enough work for two cores."""

WARM = 1
"""Batches at the start of each turn that do not count: a query that starts again has to open its files.

In it this library also does the compaction that was due when the query ended.
"""

FIRST = 3
"""Batches before all others that do not count, unless a benchmark says another number: new code is slow."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
}


@contextmanager
def session(master: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Start Spark in a process that has none yet. Its files are in the current folder."""
    builder = SparkSession.builder.master(master).appName("benchmarks").config("spark.local.dir", str(Path.cwd()))
    for name, value in (SETTINGS | dict(settings)).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    executors = Path(pyspark.__file__).parent / "work" / spark.sparkContext.applicationId
    try:
        yield spark
    finally:
        spark.stop()
        shutil.rmtree(executors, ignore_errors=True)


def fingerprint(frame: DataFrame) -> tuple[Any, ...]:
    """Return a number that depends on every column of every row, and not on their order."""
    found = frame.agg(F.count("*"), F.sum("key"), F.bit_xor(F.xxhash64(*sorted(frame.columns)))).first()
    assert found is not None
    return tuple(found)


class Feed:
    """A folder of files. Each query takes a few for a batch. `part` makes the rows of a batch."""

    def __init__(self, spark: SparkSession, folder: Path, part: Callable[[int], pa.Table]) -> None:
        self._spark = spark
        self._folder = folder
        self._part = part
        self._parts = 0
        folder.mkdir()

    def add(self, batches: int) -> None:
        for number in range(self._parts, self._parts + batches):
            rows = self._part(number)
            size = -(-rows.num_rows // FILES)
            for file in range(FILES):
                hidden = self._folder / f".{number:04d}-{file}"
                pq.write_table(rows.slice(file * size, size), hidden)
                hidden.rename(self._folder / f"{number:04d}-{file}.parquet")
        self._parts += batches

    def stream(self) -> DataFrame:
        reader = self._spark.readStream.schema(self.read().schema).option("maxFilesPerTrigger", FILES)
        return reader.parquet(str(self._folder))

    def read(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder))


Query = Callable[[], DataStreamWriter]


def in_turns(
    feed: Feed, queries: Mapping[str, Query], folder: Path, turns: int, batches: int, first: int = FIRST
) -> dict[str, Times]:
    """Return the seconds of the batches of each query. All queries take the same batches in turn.

    The first batches of all do not count, and neither does the first one of each turn.
    """
    found: dict[str, list[float]] = {name: [] for name in queries}
    for turn, (size, warm) in enumerate(((first, first), *[(WARM + batches, WARM)] * turns)):
        feed.add(size)
        for name in rotated(queries, turn):
            seconds = timed_batches(queries[name](), location(folder, name))
            if len(seconds) != size:
                raise AssertionError(f"{name}: {len(seconds)} batches were run, not {size}")
            found[name] += seconds[warm:]
    return {name: Times(tuple(seconds)) for name, seconds in found.items()}


def location(folder: Path, name: str) -> Path:
    """Return the folder where a query keeps its progress, and the state that Spark keeps for it."""
    return folder / f"checkpoint-{name}".replace(" ", "-")  # which some of Spark takes for %20


def timed_batches(writer: DataStreamWriter, checkpoint: Path) -> list[float]:
    """Return the seconds of every batch that is waiting, in their order."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    run = {p["batchId"]: p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress if p["numInputRows"]}
    return [run[batch] for batch in sorted(run)]
