"""Measure how much longer a commit and a restore take on a store that is farther away.

The slope of time over added latency, in seconds per second, is the number of round trips that wait for one another. A
commit of 200 partitions, and a restore of them, may need four, wherever the store is. A commit needs two: first the
objects and the manifest, then the pointer. A restore needs three. The latency is added to each call of a store.

A table sends few requests, so that those of each batch are counted: two are in a row if one began after the other had
ended. The commit of a batch may need two after the callback's own work, and a lookup one, once the process has opened
the files of the table. Chains are compacted between two batches, as in a query, and each batch writes what was
compacted for it. The median of the batches counts: such a write may still go on when a short batch commits. The slope
is more than that by the work that takes longer while requests wait.

A partition above 256 KiB becomes an object of its own. Here small objects are kept out of packs instead, so that the
latency is measured, and not the bandwidth of the server.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmarks.measure import Finding, Note, Plot, Target, Times, alternate, timed
from benchmarks.stores import azure_server, folder, move_away, s3_server
from benchmarks.table_distance import CHANGED, PARTITIONS, SOUGHT, TableJob
from benchmarks.table_state import session
from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.checkpoint import upload
from pyspark_checkpointer.checkpoint.metrics import CommitMetrics, Metrics, RestoreMetrics
from pyspark_checkpointer.storage.request_path import Traffic, counted
from tests.servers import ServerUnavailableError

LATENCIES = (0.0, 0.02, 0.05)
"""Seconds that are added to each request. A quick run leaves out the middle one."""

ROUND_TRIPS = 4.0
"""The most round trips of a commit, and of a restore, that may follow one another."""

Place = tuple[int, int]
"""The number of an operator, and of a partition."""


@dataclass(frozen=True, slots=True)
class Case:
    """The content of a checkpoint: how many partitions each operator has, and whether they are packed."""

    name: str
    what: str
    verbs: tuple[str, ...]
    operators: int
    partitions: int
    alone: bool = False
    most: Mapping[str, float | None] = field(default_factory=dict)
    """The most round trips in a row of a verb, if they are not `ROUND_TRIPS`."""
    are_counted: bool = False
    """True if the round trips are counted. Else they are the slope."""


CASES = (
    Case("packed", "200 small partitions", ("commit", "restore"), 1, 200),
    Case("operators", "200 small partitions of 8 operators", ("commit",), 8, 25),
    Case("objects", "200 objects", ("commit", "restore"), 1, 200, alone=True),
)
"""The cases. A quick run has only the first, because 200 requests keep a processor busy for long."""


class Job:
    """A writer and a reader of one root, with the same latency to it."""

    def __init__(self, case: Case, root: str, options: dict[str, Any] | None, seconds: float) -> None:
        self._case = case
        self._records: list[Metrics] = []
        self._loaded = Traffic()
        told = self._records.append
        self._writer, self._reader = (Checkpointer(root, options, metrics=told) for _ in range(2))
        for client in (self._writer, self._reader):
            move_away(client, seconds)
        self._commits = 0
        self._saved: dict[Place, bytes] = {}
        self.commit()  # which creates the root
        if "restore" in case.verbs:
            self.restore()

    def commit(self) -> float:
        case = self._case
        self._commits += 1
        places = [(o, p) for o in range(case.operators) for p in range(case.partitions)]
        self._saved = {(o, p): b"%d, partition %d of %d" % (self._commits, p, o) for o, p in places}
        with patch.object(upload, "SMALL", 0 if case.alone else upload.SMALL):
            return timed(self._commit)

    def _commit(self) -> None:
        with self._writer.begin() as checkpoint:
            for (operator, partition), data in self._saved.items():
                checkpoint.snapshot(f"operator-{operator}", partition, data)

    def restore(self) -> float:
        self._loaded = Traffic()
        with counted(self._loaded):  # but for what the restore counts itself
            start = time.perf_counter()
            found = self._restore()
            seconds = time.perf_counter() - start
        if found != self._saved:
            raise AssertionError("what was restored is not what was saved")
        return seconds

    def _restore(self) -> dict[Place, bytes]:
        restored = self._reader.restore()
        assert restored is not None
        operators = {number: restored.operator(f"operator-{number}").read() for number in range(self._case.operators)}
        return {(number, partition): data for number, read in operators.items() for partition, [data] in read.items()}

    def close(self) -> dict[str, int]:
        """Return the requests of the last commit and of the last restore.

        If nothing was restored, restore and compare now.
        """
        if "restore" not in self._case.verbs:
            self.restore()
        self._writer.close()
        self._reader.close()
        commits = [record.requests.total for record in self._records if isinstance(record, CommitMetrics)]
        restores = [record.requests.total for record in self._records if isinstance(record, RestoreMetrics)]
        return {"commit": commits[-1], "restore": restores[-1] + sum(self._loaded.requests.values())}


TABLE = Case(
    "table",
    f"a table, {CHANGED:,} rows changed, {SOUGHT} keys sought",
    ("commit", "batch", "lookup"),
    1,
    PARTITIONS,
    most={"commit": 2.0, "batch": None, "lookup": 1.0},
    are_counted=True,
)
"""A table on Spark. Of a batch, the callback's own work is measured too."""

Make = Callable[[str, dict[str, Any] | None, float], Any]
"""A function that makes the writer and reader of a root, with its options and the latency to it."""


def run(quick: bool) -> list[Finding]:
    cases, latencies, repetitions = (CASES[:1], LATENCIES[::2], 1) if quick else (CASES, LATENCIES, 3)
    notes: list[Finding] = []
    with ExitStack() as stack:
        stores: dict[str, tuple[str, dict[str, Any] | None]] = {"local": (str(stack.enter_context(folder())), None)}
        for name, serve in (("S3", s3_server), ("Azure", azure_server)):
            try:
                server = stack.enter_context(serve())
            except ServerUnavailableError as unavailable:
                notes.append(Note(f"{unavailable}: no distance was measured on {name}"))
            else:
                stores[name] = (server.url, server.storage_options)
        for case in cases:
            notes += _measure(case, partial(Job, case), stores, latencies, repetitions)
        spark = session(stack.enter_context(folder()))
        stack.callback(spark.stop)
        return notes + _measure(TABLE, partial(TableJob, spark), stores, latencies, repetitions)


def _measure(
    case: Case,
    make: Make,
    stores: Mapping[str, tuple[str, dict[str, Any] | None]],
    latencies: Sequence[float],
    repetitions: int,
) -> list[Finding]:
    times: dict[str, dict[str, Times]] = {}
    requests: dict[str, dict[str, int]] = {}
    in_a_row: dict[str, dict[str, list[int]]] = {}
    for name, (url, options) in stores.items():
        jobs = {s: make(f"{url}/{case.name}-{s}", options, s) for s in latencies}
        work = {f"{verb} {s}": getattr(job, verb) for s, job in jobs.items() for verb in case.verbs}
        times[name] = alternate(repetitions, **work)
        for what, found in times[name].items():
            if min(found.seconds) < float(what.split()[1]):
                raise AssertionError(f"{what}: {min(found.seconds):.3f} s: the store was not moved away")
        if case.are_counted:
            in_a_row[name] = jobs[latencies[-1]].trips.in_a_row  # where the requests take most of the time
        (requests[name], *_) = [job.close() for job in jobs.values()]
    findings: list[Finding] = []
    for verb in case.verbs:
        lines = {name: [(s, times[name][f"{verb} {s}"].median) for s in latencies] for name in stores}
        title = f"{verb} of {case.what}"
        plot = Plot(f"distance-{verb}-{case.name}", title, "added latency (s)", "time (s)", lines, logarithmic=False)
        findings.append(plot)
        for name, points in lines.items():
            seconds = " / ".join(f"{y * 1000:.0f}" for _, y in points)
            added = " / ".join(f"{x * 1000:.0f}" for x, _ in points)
            spread = max(times[name][f"{verb} {s}"].spread for s in latencies)
            detail = (
                f"{requests[name][verb]} requests; {seconds} ms with {added} ms more for each, "
                f"slope {plot.slope(name):.2f}, spread {spread:.0%}"
            )
            question = f"{title}, {name}: round trips in a row"
            trips = plot.slope(name)
            if case.are_counted:
                trips = statistics.median(in_a_row[name][verb])
                detail += f"; the most {max(in_a_row[name][verb])}"
            findings.append(Target(question, trips, case.most.get(verb, ROUND_TRIPS), detail))
    return findings
