"""Model what Spark does with the files of its checkpoint."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path

from pyspark_checkpointer import Checkpointer, KeyedState
from pyspark_checkpointer.admin.streaming.alignment import compare
from pyspark_checkpointer.checkpoint.liveness import this_driver
from pyspark_checkpointer.errors import BatchGapError, BatchResetError
from pyspark_checkpointer.manifests.model import Job, SparkProgress

QUERY = "11111111-2222-4333-8444-555555555555"
METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
LAST = 4
"""The batch that `history` ends with."""


class Query:
    """A streaming query whose Spark is a model: it reads numbers, ten for each batch, and sums them up in its state."""

    def __init__(self, root: str, spark: str | None = None) -> None:
        self.root = root
        self.spark = Path(spark or f"{root}-spark")
        self.recording = True
        """Whether checkpoints say how far Spark was; those of old versions do not."""
        self.refusal: str | None = None
        """What the last start said that was refused."""

    def create(self) -> None:
        self.write("metadata", json.dumps({"id": QUERY}))
        self.write("sources/0/0", "v1\n0")

    def write(self, path: str, text: str) -> None:
        """Write a file with checksums beside it, as Hadoop's local file system does, and Spark does for files of state.

        The checksums must not be there already.
        """
        target = self.spark / path
        target.parent.mkdir(parents=True, exist_ok=True)
        checksum = target.with_name(f".{target.name}.crc")
        sparks_own = target.with_name(f"{target.name}.crc")
        assert not checksum.exists(), "what is left of another file"
        assert not sparks_own.exists(), "what is left of another file"
        target.write_text(text)
        sparks_own.write_text("{}")
        checksum.write_text(str(zlib.crc32(text.encode())))

    def delete(self, path: str) -> None:
        """Delete a file and its checksums, as Spark deletes old ones."""
        target = self.spark / path
        for name in (target.name, f".{target.name}.crc", f"{target.name}.crc"):
            target.with_name(name).unlink()

    def text(self, path: str) -> str:
        """Read a file as Spark does: compare it with its checksum, where there is one."""
        target = self.spark / path
        text, checksum = target.read_text(), target.with_name(f".{target.name}.crc")
        assert not checksum.exists() or checksum.read_text() == str(zlib.crc32(text.encode())), "damaged, says Spark"
        return text

    def numbers(self, folder: str) -> list[int]:
        return sorted(int(path.name) for path in (self.spark / folder).glob("*") if path.name.isdecimal())

    def offset(self, batch: int) -> int:
        return int(json.loads(self.text(f"offsets/{batch}").split("\n")[2])["at"])

    def begin(self, step: int = 10) -> tuple[Job, int, int]:
        """Start as Spark does: return the batch to run, and its part of the input."""
        offsets, commits = self.numbers("offsets"), self.numbers("commits")
        batch = offsets[-1] if offsets else 0
        if offsets and commits and offsets[-1] == commits[-1]:
            batch += 1
            if batch > 1:
                self.offset(batch - 2)  # Spark wants the last two
        start = self.offset(batch - 1) if batch else 0
        if batch not in offsets:
            self.write(f"offsets/{batch}", f'v1\n{METADATA}\n{{"at":{start + step}}}')
            if not (self.spark / f"sources/0/{batch + 1}").exists():  # what some note when they find more to read
                self.write(f"sources/0/{batch + 1}", f"v1\n{start}")
        lines = self.text(f"offsets/{batch}")
        before = (json.dumps({"at": start}),) if batch else ()
        query_id = json.loads(self.text("metadata"))["id"]
        progress = SparkProgress(str(self.spark), lines, before)
        driver = this_driver()
        return Job(query_id, "run", batch, driver, progress if self.recording else None), start, self.offset(batch)

    def run(self, step: int = 10, *, finish: bool = True) -> int | None:
        """Run one batch as `stateful` does. None where it was refused."""
        job, start, end = self.begin(step)
        with Checkpointer(self.root) as ck:
            restored = ck.restore()
            try:
                repeated = restored is not None and compare(self.root, restored.job, job) == "repeated"
            except (BatchGapError, BatchResetError) as error:
                self.refusal = str(error)
                return None
            state = restored.keyed("sum") if restored else KeyedState(partitions=1)
            if not repeated:
                assert state.get("read", 0) == start, "the state ends where Spark goes on"
                state["read"], state["total"] = end, state.get("total", 0) + sum(range(start, end))
                with ck.begin_batch(job.batch_id, job) as cp:
                    cp.save("sum", state)
            assert state["read"] == end
        if finish:
            self.write(f"commits/{job.batch_id}", 'v1\n{"nextBatchWatermarkMs":0}')
        return job.batch_id

    @property
    def read(self) -> int:
        return self._value("read")

    @property
    def total(self) -> int:
        """Return the sum of all numbers that were read, each as often as it was read."""
        return self._value("total")

    def _value(self, name: str) -> int:
        restored = Checkpointer(self.root).restore()
        assert restored is not None
        return int(restored.keyed("sum")[name])

    def files(self) -> dict[str, str]:
        return {
            str(path.relative_to(self.spark)): path.read_text()
            for folder in ("metadata", "offsets", "commits", "sources")
            for path in [self.spark / folder, *(self.spark / folder).rglob("*")]
            if path.is_file() and path.suffix != ".crc"
        }


Setup = Callable[[str], None]


def history(root: str) -> None:
    query = Query(root)
    query.create()
    for _ in range(LAST):
        query.run()
    query.run(finish=False)  # the state has this batch, Spark will repeat it
