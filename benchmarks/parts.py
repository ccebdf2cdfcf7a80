"""The parts of the benchmarks. Measurements that are compared belong to one part.

How to add a row:

1. Return a `Target` (`benchmarks/measure.py`) from the `run` of a part, or of a new part that is added to `PARTS`
   below. Its question is the key of the row: results of earlier runs are found by it.
2. Run the part: `scripts/run python -m benchmarks --only PART`. It writes the results and `docs/performance.md`.
3. Where README shall quote it, write the line there by hand, and add it to `FIGURES` in `benchmarks/quotes.py`.
4. If it misses its limit, say why in `docs/performance.md`, under "What misses its target, and why".
"""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial

from benchmarks import (
    cleanup,
    consumers,
    distance,
    driver_peers,
    driver_state,
    encryption,
    growth,
    lakes,
    limits,
    operations,
    operators,
    spark_versions,
    streaming,
    table_peers,
    table_state,
)
from benchmarks.measure import Finding
from tests import jvm

PARTS: dict[str, Callable[[bool], Sequence[Finding]]] = {
    "lake-delta": partial(lakes.run, "delta"),
    "lake-iceberg": partial(lakes.run, "iceberg"),
    "driver": driver_state.run,
    "driver-peers": driver_peers.run,
    "table": table_state.run,
    "table-peers": table_peers.run,
    "spark-versions": spark_versions.run,
    "streaming": streaming.run,
    "operators": operators.run,
    "cleanup": cleanup.run,
    "operations": operations.run,
    "consumers": consumers.run,
    "distance": distance.run,
    "encryption": encryption.run,
    "growth": growth.run,
    "limits": limits.run,
}


def measure(name: str, quick: bool) -> tuple[Sequence[Finding], float]:
    """Return the findings of a part, and the seconds that it took."""
    start = time.perf_counter()
    found = PARTS[name](quick)
    return found, time.perf_counter() - start


def measure_at_once(names: Iterable[str]) -> Iterator[tuple[str, Sequence[Finding], float]]:
    """Measure the parts of a quick run, two at a time, and yield what each found.

    Most of the time Spark starts. A process has one Spark, so that each part has a process, which no other one forked.
    Java compiles less well here, as in tests, since no figure counts.
    """
    os.environ["JDK_JAVA_OPTIONS"] = jvm.options()
    processes = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, processes, max_tasks_per_child=1) as pool:
        running = {pool.submit(measure, name, True): name for name in names}
        try:
            for done in as_completed(running):
                yield (running[done], *done.result())
        finally:
            # After an error nobody waits for the parts that have not begun.
            pool.shutdown(cancel_futures=True)
