"""A table on a store that is farther away, for `distance.py`: a batch, its commit, and a lookup of some keys."""

import random
import time
from concurrent.futures import wait
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.measure import timed
from benchmarks.stores import Trips, move_away
from benchmarks.table_state import rows
from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint.metrics import CommitMetrics, Metrics
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.compaction import DRIVER_BYTES
from pyspark_checkpointer.spark.arguments import TableDefinition
from pyspark_checkpointer.spark.table_changes import TableChanges
from pyspark_checkpointer.spark.table_hints import TableHints
from pyspark_checkpointer.storage.request_path import Traffic, counted

SIZE, PARTITIONS, CHANGED, SOUGHT = 100_000, 4, 1000, 20
DELTAS = 3
"""Upserts before the lookups, which have to look into each of them."""


class TableJob:
    """A job with a table, each of whose requests takes some seconds more."""

    def __init__(self, spark: SparkSession, root: str, options: dict[str, Any] | None, seconds: float) -> None:
        self._spark = spark
        self._hints = TableHints()
        self._records: list[Metrics] = []
        self._looked_up = Traffic()
        self._client = Checkpointer(root, options, metrics=self._records.append)
        far = move_away(self._client, 0.0)
        self.trips = Trips(far)
        self._upsert(SIZE)
        for _ in range(DELTAS):
            self.commit()
        restored = self._client.restore()
        assert restored is not None
        self._restored: Restored = restored
        self._keys = [{"key": key} for key in random.Random(1).sample(range(SIZE), SOUGHT)]
        self.lookup()  # From now on it is warm: the process remembers where the blocks of each file are.
        far.seconds, self.trips = seconds, Trips(far)

    def _upsert(self, count: int) -> float:
        """Write some rows in a batch, and return the seconds of its commit.

        The callback's own work does not count.
        """
        with self._client.begin() as checkpoint:
            self._table = TableChanges(
                self._spark,
                self._client,
                checkpoint.attempt,
                "t",
                TableDefinition(["key"], PARTITIONS),
                hints=self._hints,
            )
            self._table.upsert(rows(self._spark, count))

            def commit() -> None:
                self._table.finish()
                checkpoint.commit()

            with self.trips.counted("commit"):
                return timed(commit)

    def _rest(self) -> None:
        """Let the table be compacted for the next batch, as a query does between two."""
        self._table.compact_early(DRIVER_BYTES)
        if self._hints.early is not None and (work := self._hints.early._encoding) is not None:
            wait([work])

    def commit(self) -> float:
        seconds = self._upsert(CHANGED)
        self._rest()
        return seconds

    def batch(self) -> float:
        """Return the seconds of a whole batch, from before the callback until it is committed."""
        with self.trips.counted("batch"):
            seconds = timed(lambda: self._upsert(CHANGED))
        self._rest()
        return seconds

    def lookup(self) -> float:
        self._looked_up = Traffic()
        with counted(self._looked_up), self.trips.counted("lookup"):
            start = time.perf_counter()
            found = self._restored.table("t", keys=self._keys).num_rows
            seconds = time.perf_counter() - start
        if found != SOUGHT:
            raise AssertionError(f"{SOUGHT} keys were written, {found} found")
        return seconds

    def close(self) -> dict[str, int]:
        """Return the requests of the last commit, batch and lookup."""
        self._client.close()
        commits = [record.requests.total for record in self._records if isinstance(record, CommitMetrics)]
        looked_up = sum(self._looked_up.requests.values())
        return {"commit": commits[-1], "batch": self.trips.requests["batch"], "lookup": looked_up}
