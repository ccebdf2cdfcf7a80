"""Run all benchmarks: `python -m benchmarks [--quick]`.

It prints what was measured. It writes the results, `docs/performance.md`, and the figures that other pages quote.
Measurements that are compared belong to one part, so a part can be run again alone (`--only`). The exit status is 1 if
a target is missed at full size. The targets do not apply to a quick run.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
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
from benchmarks.measure import Finding, Target
from benchmarks.quotes import quote
from benchmarks.report import Results, tables

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


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Ratios against peers and limits, in one run.")
    parser.add_argument("--quick", action="store_true", help="small sizes, fewer repetitions")
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="one part: the others' results stay")
    arguments = parser.parse_args()
    results = Results("quick" if arguments.quick else "full", list(PARTS))
    findings: list[Finding] = []
    for name, run in PARTS.items():
        if not arguments.only or name in arguments.only:
            start = time.perf_counter()
            found = run(arguments.quick)
            print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
            results.write(name, found)
            findings += found
    print(tables(findings))
    if not arguments.quick:
        quote()
    missed = [finding for finding in findings if isinstance(finding, Target) and not finding.holds]
    return 1 if missed and not arguments.quick else 0


if __name__ == "__main__":
    sys.exit(main())
