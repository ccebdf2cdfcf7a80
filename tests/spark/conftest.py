"""Real Spark, classic PySpark, small enough for two cores; queries read files that the test puts there."""

import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from pyspark_checkpointer.spark.versions import is_at_least
from tests.proof.plain_spark import plain_spark
from tests.spark.expiring import Place

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

CHECKPOINTING = "org.apache.spark.sql.execution.streaming" + (".checkpointing" if is_at_least("4.1") else "")

QUICK = {
    # Most plans of tests run once, over some rows. To compile each of them takes a sixth of the time of a test.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # The manager that Spark takes by itself starts `readlink` thirty times in a batch on a local folder, where Hadoop
    # has no native library. Programs of the docs and examples run with it.
    "spark.sql.streaming.checkpointFileManagerClass": f"{CHECKPOINTING}.FileSystemBasedCheckpointFileManager",
}
"""Settings with which Spark does the same in less time. Nothing of this library depends on them."""


WORKERS = Path(__file__).with_name("workers")
"""Where Spark's Python workers find `sitecustomize`."""


def new_session(master: str = "local[2]", **conf: str) -> SparkSession:
    builder = SparkSession.builder.master(master).appName("tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.python.daemon.module": "pyspark_checkpointer.spark.daemon",  # workers that start in no time
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        **QUICK,
    } | conf
    for key, value in settings.items():
        builder = builder.config(key, value)
    with pytest.MonkeyPatch.context() as patch:  # Java and Spark's Python workers take the path of this moment
        patch.setenv("PYTHONPATH", str(WORKERS), prepend=os.pathsep)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = new_session()
    yield session
    session.stop()


@dataclass
class Job:
    """A streaming query over a folder of CSV files, one file a batch, that can be restarted and tampered with."""

    spark: SparkSession
    folder: Path
    checkpoint: str = "spark-checkpoint"
    root_name: str = "root"
    _days: "itertools.count[int]" = field(default_factory=itertools.count)

    @property
    def root(self) -> str:
        return str(self.folder / self.root_name)

    @property
    def location(self) -> Path:
        return self.folder / self.checkpoint

    def feed(self, *rows: tuple[str, int]) -> None:
        """One more file, so one more batch."""
        source = self.folder / "input"
        source.mkdir(exist_ok=True)
        day = next(self._days)
        target = source / f"{day:04d}.csv"
        hidden = self.folder / f"{day:04d}.tmp"
        hidden.write_text("".join(f"{key},{amount}\n" for key, amount in rows))
        os.utime(hidden, (1_700_000_000 + day, 1_700_000_000 + day))
        hidden.rename(target)

    def source(self) -> DataFrame:
        (self.folder / "input").mkdir(exist_ok=True)
        reader = self.spark.readStream.schema("key string, amount long").option("maxFilesPerTrigger", 1)
        return reader.csv(str(self.folder / "input"))

    def start(self, sink: Any, frame: DataFrame | None = None, mode: str = "append") -> StreamingQuery:
        writer = (frame if frame is not None else self.source()).writeStream.outputMode(mode).foreachBatch(sink)
        return writer.option("checkpointLocation", str(self.location)).trigger(availableNow=True).start()

    def run(self, sink: Any, frame: DataFrame | None = None, mode: str = "append") -> None:
        """Process everything that is there; raises what the query failed with."""
        self.start(sink, frame, mode).awaitTermination()

    def forget_commit(self, batch_id: int) -> None:
        """As if the driver had died after the callback returned and before Spark recorded the batch."""
        for name in (str(batch_id), f".{batch_id}.crc"):
            (self.location / "commits" / name).unlink(missing_ok=True)

    def reset(self) -> None:
        """As if somebody had deleted Spark's checkpoint."""
        shutil.rmtree(self.location)


@pytest.fixture
def job(spark: SparkSession, tmp_path: Path) -> Job:
    return Job(spark, tmp_path)


@pytest.fixture
def new_job(spark: SparkSession, tmp_path: Path) -> Callable[[str], Job]:
    def make(name: str) -> Job:
        folder = tmp_path / name
        folder.mkdir()
        return Job(spark, folder)

    return make


@pytest.fixture
def place() -> Iterator[Place]:
    """A root in memory whose tables expire."""
    place = Place()
    with plain_spark(place.draw):
        yield place
