"""`python -m benchmarks [--quick]`: run everything, print what was found, write `benchmarks/results/`.

Exit status 1 if a target does not hold: at full size, for which the targets are.
"""

import argparse
import json
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path

from benchmarks import (
    cleanup,
    distance,
    driver_peers,
    driver_state,
    growth,
    limits,
    operations,
    progress,
    streaming,
    table_peers,
    table_state,
)
from benchmarks.draw import draw, grid_table, plots_table, targets_table
from benchmarks.measure import Finding, Grid, Plot, Target

RESULTS = Path(__file__).parent / "results"

PARTS = {
    "driver": driver_state.run,
    "driver-peers": driver_peers.run,
    "table": table_state.run,
    "table-peers": table_peers.run,
    "streaming": streaming.run,
    "cleanup": cleanup.run,
    "operations": operations.run,
    "progress": progress.run,
    "distance": distance.run,
    "growth": growth.run,
    "limits": limits.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Ratios against peers and limits, in one run.")
    parser.add_argument("--quick", action="store_true", help="small sizes, fewer repetitions")
    parser.add_argument(
        "--only", choices=sorted(PARTS), action="append", help="one part; the results of some parts are not written"
    )
    arguments = parser.parse_args()
    findings: list[Finding] = []
    for name, run in PARTS.items():
        if not arguments.only or name in arguments.only:
            start = time.perf_counter()
            findings += run(arguments.quick)
            print(f"{name}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    targets = [finding for finding in findings if isinstance(finding, Target)]
    plots = [finding for finding in findings if isinstance(finding, Plot)]
    grids = [finding for finding in findings if isinstance(finding, Grid)]
    tables = [targets_table(targets), *map(grid_table, grids), *([plots_table(plots)] if plots else [])]
    print("\n".join(tables))
    if not arguments.only:
        name = "quick" if arguments.quick else "full"
        _write(name, findings, "\n".join(tables))
        for plot in plots:
            draw(plot, RESULTS / name)
    return 0 if arguments.quick or all(target.holds for target in targets) else 1


def _write(name: str, findings: list[Finding], text: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    machine = f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}"
    found = {
        f"{kind.__name__.lower()}s": [asdict(finding) for finding in findings if isinstance(finding, kind)]
        for kind in (Target, Grid, Plot)
    }
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine} | found, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(text)


if __name__ == "__main__":
    sys.exit(main())
