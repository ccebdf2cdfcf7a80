"""Run all benchmarks: `python -m benchmarks [--quick]`.

It prints what was measured. It writes the results, `docs/performance.md`, and the figures that other pages quote.
Measurements that are compared belong to one part, so a part can be run again alone (`--only`). A run takes hours: the
next one goes on where it was interrupted, unless what is measured was changed since. The exit status is 1 if a target
is missed at full size. The targets do not apply to a quick run, which shows that most of the benchmarks work:
two of its parts run at the same time, each in a process of its own.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from benchmarks.measure import Finding
from benchmarks.parts import PARTS, measure, measure_at_once
from benchmarks.quotes import quote
from benchmarks.report import Results, tables


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks", description="Ratios against peers and limits, in one run.")
    parser.add_argument("--quick", action="store_true", help="small sizes, fewer repetitions")
    parser.add_argument("--only", choices=sorted(PARTS), action="append", help="one part: the others' results stay")
    arguments = parser.parse_args()
    start = time.perf_counter()
    results = Results("quick" if arguments.quick else "full", list(PARTS))
    names = [*PARTS] if arguments.quick else results.left()
    if arguments.only:
        names = [name for name in PARTS if name in arguments.only]
    elif len(names) < len(PARTS):
        print(f"goes on with the parts that are left of this commit: {', '.join(names)}", file=sys.stderr)
    measured = measure_at_once(names) if arguments.quick else ((name, *measure(name, False)) for name in names)
    by_part: dict[str, Sequence[Finding]] = {}
    for name, found, seconds in measured:
        print(f"{name}: {seconds:.0f} s", file=sys.stderr)
        results.write(name, found)
        by_part[name] = found
    print(f"all parts: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    findings = [finding for name in names for finding in by_part[name]]
    print(tables(findings))
    if not arguments.quick:
        quote()
        # A run that goes on counts what the interrupted one has missed.
        return 1 if results.missed(arguments.only) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
