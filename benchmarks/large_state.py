"""Run a job with a large table: `python -m benchmarks.large_state BYTES STEP`.

It works in the current folder. It builds a table of BYTES stored bytes, STEP bytes a batch, changes rows, looks keys up
and reads everything. Each read is compared with what was written. It prints the peak resident memory of its processes
as JSON.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.micro_batches import fingerprint, session
from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.spark import State, read_state, stateful
from pyspark_checkpointer.spark.read import version_of

COLUMNS = 32
"""Columns of random bytes, 8 in each row, which no codec can compress."""

PARTITIONS_OF_STEP = 10
"""The number of partitions that hold the rows of one step. More state means more partitions, not larger ones."""

CHANGES, CHANGED = 3, 100_000
LOOKED_UP = 1_000

SETTINGS = {"spark.driver.memory": "4g", "spark.sql.shuffle.partitions": "16"}

PAGE = os.sysconf("SC_PAGE_SIZE")


class Watch(threading.Thread):
    """The peak resident memory of this process, its JVM and the largest Python worker, and of all at once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = dict.fromkeys(("together", "driver", "jvm", "worker"), 0)
        self._done = threading.Event()
        self._failure: Exception | None = None

    def run(self) -> None:
        try:
            self._watch()
        except Exception as error:
            self._failure = error

    def _watch(self) -> None:
        while not self._done.wait(0.1):
            found = _resident(os.getpid())
            now = {"together": sum(size for _, size in found)}
            for kind, size in found:
                now[kind] = max(now.get(kind, 0), size)
            self.most = {kind: max(size, now.get(kind, 0)) for kind, size in self.most.items()}

    def stop(self) -> dict[str, int]:
        self._done.set()
        self.join()
        if self._failure is not None:
            raise self._failure
        return self.most


def _resident(driver: int) -> list[tuple[str, int]]:
    """Return the kind and bytes of a process and all below it. Pages that several share count for each."""
    processes: dict[int, tuple[str, int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().rpartition(")")
            except OSError:  # it has ended
                continue
            fields = rest.split()
            processes[int(entry.name)] = (name.partition("(")[2], int(fields[1]), int(fields[21]) * PAGE)
    found, waiting = [], [driver]
    while waiting:
        this = waiting.pop()
        name, _, size = processes[this]
        found.append(("driver" if this == driver else "jvm" if name == "java" else "worker", size))
        waiting += [number for number, (_, parent, _) in processes.items() if parent == this]
    return found


class Job:
    """A table of random rows, with the content it must have."""

    def __init__(self, spark: SparkSession, size: int, step: int) -> None:
        self._spark = spark
        self._step = step // (8 * COLUMNS)
        self._steps = size // step
        self._total = self._step * self._steps
        self._changed = min(CHANGED, self._step // 20)
        self._stride = self._total // self._changed
        self._root = Path.cwd() / "root"

    def run(self) -> None:
        """Run one micro-batch for each step, then one for each change."""

        @stateful(self._root)
        def update(batch: DataFrame, batch_id: int, state: State) -> None:
            table = state.table("rows", ["key"], num_partitions=PARTITIONS_OF_STEP * self._steps)
            change = batch_id - self._steps
            if change < 0:
                keys = self._spark.range(batch_id * self._step, (batch_id + 1) * self._step, 1, 16)
                table.upsert(_rows(keys.withColumnRenamed("id", "key"), F.lit(0)))
            else:
                keys = self._spark.range(self._changed).select((F.col("id") * self._stride + change).alias("key"))
                table.upsert(_rows(keys, F.lit(change + 1)))

        source = Path.cwd() / "input"
        source.mkdir()
        for batch in range(self._steps + CHANGES):
            (source / f"{batch:03d}.txt").write_text(f"{batch}\n")
        stream = self._spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
        writer = stream.writeStream.foreachBatch(update).option("checkpointLocation", str(Path.cwd() / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    def look_up(self) -> None:
        keys = self._spark.range(LOOKED_UP).select((F.col("id") * (self._total // LOOKED_UP)).alias("key"))
        _compare(read_state(self._spark, self._root, "rows", keys=keys), _rows(keys, self._change()))

    def read(self) -> None:
        keys = self._spark.range(self._total).withColumnRenamed("id", "key")
        _compare(read_state(self._spark, self._root, "rows"), _rows(keys, self._change()))

    def stored(self) -> int:
        """Return the bytes of the objects that the last checkpoint names."""
        restored = Checkpointer(self._root).restore()
        assert restored is not None
        return version_of(restored, "rows").size

    def _change(self) -> Column:
        """Return the number of the last change of each key, 0 if there was none."""
        number, place = F.col("key") % self._stride, F.floor(F.col("key") / self._stride)
        return F.when((number < CHANGES) & (place < self._changed), (number + 1).cast("int")).otherwise(0)


def _rows(keys: DataFrame, change: Column) -> DataFrame:
    columns = [F.xxhash64("key", change, F.lit(number)).alias(f"random{number}") for number in range(COLUMNS)]
    return keys.select("key", *columns)


def _compare(found: DataFrame, expected: DataFrame) -> None:
    if fingerprint(found) != fingerprint(expected):
        raise AssertionError("what was read is not what was written")


def main(size: str, step: str) -> None:
    watch = Watch()
    watch.start()
    with session("local[2]", SETTINGS) as spark:
        job = Job(spark, int(size), int(step))
        start = time.perf_counter()
        for work in (job.run, job.look_up, job.read):
            work()
            told = f"{time.perf_counter() - start:.0f} s, a worker {watch.most['worker'] / 2**20:,.0f} MiB at most"
            print(f"{int(size) / 1e9:g} GB, until the end of {work.__name__}: {told}", file=sys.stderr)
        stored = job.stored()
        if stored < int(size):
            raise AssertionError(f"the table is {stored:,} bytes, not {int(size):,}")
    print(json.dumps(watch.stop() | {"stored": stored}))


if __name__ == "__main__":
    main(*sys.argv[1:])
