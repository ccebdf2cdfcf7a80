"""Where the demo keeps its files, and what it saw the job do."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from examples.flights.data import Day
from examples.flights.events import Event
from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.base import ListedObject

Stop = tuple[str, int]
"""Where the job is killed: a point of `pauses.POINTS`, and a batch."""


@dataclass(frozen=True, slots=True)
class Places:
    """The folders of one job."""

    folder: Path
    flights: Path
    """The input, which all jobs share: one file a day."""
    root: str | None = None
    """The root of the state, if it is elsewhere; else it is in the folder."""

    @property
    def state(self) -> str:
        """The root of the state."""
        return self.root or str(self.folder / "state")

    @property
    def spark(self) -> Path:
        """Spark's own checkpoint of the query."""
        return self.folder / "spark"

    @property
    def copy(self) -> Path:
        """The last state as plain Parquet files, if the job keeps tables."""
        return self.folder / "copy"

    def log(self, life: int | str) -> Path:
        """The standard error of one run of the job, or of the process that read its state at the end."""
        return self.folder / f"job-{life}.log"

    def state_batch(self) -> int | None:
        """Return the batch of the state, as a new process finds it."""
        with Checkpointer(self.state) as checkpointer:
            latest = checkpointer.read_latest()
            return None if latest is None else checkpointer.load_manifest(latest).epoch

    def spark_batches(self) -> list[int]:
        """Return the batches that Spark has recorded as done."""
        return sorted(int(path.name) for path in (self.spark / "commits").glob("[0-9]*"))

    def listed(self, prefix: str) -> list[ListedObject]:
        """Return the objects of the state whose paths begin with `prefix`."""
        with Checkpointer(self.state) as checkpointer:
            return run_sync(checkpointer.session.store.list(prefix))

    def uploaded(self, batch: int) -> list[int]:
        """Return the sizes of the objects that all attempts at a batch uploaded."""
        mark = f"/{batch + 1:010d}-"
        return [found.size for found in self.listed(object_paths.ARTIFACTS) if mark in found.path]

    def unfinished(self, batch: int) -> list[int]:
        """Return the sizes of what interrupted uploads of a batch left in a folder. A server shows nothing of them."""
        if self.root is not None:
            return []
        found = (self.folder / "state" / "artifacts").rglob(f".{batch + 1:010d}-*")
        return [path.stat().st_size for path in sorted(found)]


@dataclass(frozen=True, slots=True)
class Finished:
    """A batch that Spark has finished: how many flights and aircraft `update` saw, or None if it was not called."""

    batch: int
    seconds: float
    seen: tuple[int, int] | None


@dataclass(slots=True)
class Outcomes:
    """What is planned, and what has happened so far."""

    batches: list[list[Day]]
    stops: list[Stop]
    calls: Counter[int] = field(default_factory=Counter)
    skipped: list[int] = field(default_factory=list)
    miscounted: list[int] = field(default_factory=list)
    _seen: dict[int, tuple[int, int]] = field(default_factory=dict)

    def started(self) -> None:
        """Note that the job begins another run."""
        self._seen.clear()

    def computed(self, event: Event) -> None:
        """Note that `update` was called for a batch and has its numbers. Nothing of the batch is committed yet."""
        batch, flights = event["batch"], event["flights"]
        self.calls[batch] += 1
        self._seen[batch] = flights, event["aircraft"]
        if flights != sum(len(day.lines) for day in self.batches[batch]):
            self.miscounted.append(batch)

    def finished(self, event: Event) -> Finished:
        """Note that Spark has recorded a batch."""
        batch = event["batch"]
        if batch not in self._seen:
            self.skipped.append(batch)
        return Finished(batch, event["milliseconds"] / 1000, self._seen.get(batch))

    def seen(self, batch: int) -> tuple[int, int]:
        """Return the flights and aircraft that `update` saw in a batch, in this run of the job."""
        return self._seen[batch]
