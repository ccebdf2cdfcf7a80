"""Streaming queries over the same files, in turns: what a micro-batch costs, as Spark reports it."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from benchmarks.measure import Times, rotated

FILES = 2
"""Files of a batch, so that two cores have something to do."""

WARM = 1
"""Batches at the beginning of each turn that do not count: a query that starts again has to open what it left."""

FIRST = 3
"""Batches of a turn before all others, of which none counts: all that runs for the first time runs slowly."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
}


@contextmanager
def session(master: str, settings: Mapping[str, str]) -> Iterator[SparkSession]:
    """Spark in a process that had none yet. It keeps what it has to put somewhere in the current folder."""
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
    """Every column of every row has its part in it, wherever the row stands."""
    found = frame.agg(F.count("*"), F.sum("key"), F.bit_xor(F.xxhash64(*sorted(frame.columns)))).first()
    assert found is not None
    return tuple(found)


class Feed:
    """A folder of files, of which each query takes a few for a batch. `part` makes the rows of a batch."""

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


def in_turns(feed: Feed, queries: Mapping[str, Query], folder: Path, turns: int, batches: int) -> dict[str, Times]:
    """Seconds of the batches of each query; every query takes some batches, then the next one takes the same."""
    found: dict[str, list[float]] = {name: [] for name in queries}
    for turn, (size, warm) in enumerate(((FIRST, FIRST), *[(WARM + batches, WARM)] * turns)):
        feed.add(size)
        for name in rotated(queries, turn):
            seconds = _seconds(queries[name](), location(folder, name))
            if len(seconds) != size:
                raise AssertionError(f"{name}: {len(seconds)} batches were run, not {size}")
            found[name] += seconds[warm:]
    return {name: Times(tuple(seconds)) for name, seconds in found.items()}


def location(folder: Path, name: str) -> Path:
    """Where a query keeps its progress, and whatever state Spark keeps for it."""
    return folder / f"checkpoint-{name}".replace(" ", "-")  # which some of Spark takes for %20


def _seconds(writer: DataStreamWriter, checkpoint: Path) -> list[float]:
    """Seconds of every batch that is waiting, in their order."""
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()
    run = {p["batchId"]: p["durationMs"]["triggerExecution"] / 1000 for p in query.recentProgress if p["numInputRows"]}
    return [run[batch] for batch in sorted(run)]
