"""`python -m benchmarks [--quick]`: run everything, print the table, write `benchmarks/results/`.

Exit status 1 if a target does not hold.
"""

import argparse
import json
import platform
import sys
from pathlib import Path

from benchmarks import cleanup, driver_state, operations, progress, table_state
from benchmarks.measure import Target

RESULTS = Path(__file__).parent / "results"

PARTS = {
    "driver": driver_state.run,
    "table": table_state.run,
    "cleanup": cleanup.run,
    "operations": operations.run,
    "progress": progress.run,
}


def markdown(targets: list[Target]) -> str:
    lines = ["| question | ratio | target | holds | detail |", "|---|---|---|---|---|"]
    for target in targets:
        limit = "" if target.limit is None else f"≤ {target.limit:.2f}"
        holds = "" if target.limit is None else "yes" if target.holds else "**no**"
        lines.append(f"| {target.question} | {target.ratio:.3f} | {limit} | {holds} | {target.detail} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Ratios against the limit, in one run.")
    parser.add_argument("--quick", action="store_true", help="a fifth of the size, fewer repetitions")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part alone; its results are not written")
    arguments = parser.parse_args()
    quick = arguments.quick
    targets = [target for name, run in PARTS.items() if arguments.only in (None, name) for target in run(quick)]
    table = markdown(targets)
    print(table)
    if arguments.only:
        return 0 if all(target.holds for target in targets) else 1
    RESULTS.mkdir(exist_ok=True)
    name = "quick" if quick else "full"
    machine = f"{platform.python_implementation()} {platform.python_version()}, {platform.machine()}"
    rows = [{"question": t.question, "ratio": t.ratio, "limit": t.limit, "detail": t.detail} for t in targets]
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine, "targets": rows}, indent=1) + "\n")
    (RESULTS / f"{name}.md").write_text(table)
    return 0 if all(target.holds for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
