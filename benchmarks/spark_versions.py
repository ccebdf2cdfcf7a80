"""Measure the running sum of `table_peers.py` on an older Spark too, beside no state at all.

A process has one Spark. So each version has processes of its own, which take the same files in turn.
"""

from collections.abc import Iterator

from benchmarks.measure import Finding, Note, Target, Times, rotated
from benchmarks.streaming import job
from tests.servers import ServerUnavailableError
from tests.sparks import SUPPORTED, install_spark

OLDER, NEWER = "4.0", "4.3"

LIMIT = 1.1
"""Limit the time of a batch on the older Spark, as a multiple of that on the newer one."""


def run(quick: bool) -> list[Finding]:
    if quick:
        return [Note(f"Spark {OLDER} and {NEWER} are compared in a full run: `table-peers` runs the same query")]
    return list(_measure(3, 10))


def _measure(rounds: int, batches: int) -> Iterator[Finding]:
    versions = {line: version for line in (OLDER, NEWER) for version in SUPPORTED if version.startswith(f"{line}.")}
    try:
        sparks = {line: install_spark(version) for line, version in versions.items()}
    except ServerUnavailableError as unavailable:
        yield Note(f"{unavailable}: the running sum was not measured on Spark {OLDER}")
        return
    seconds: dict[str, dict[str, list[float]]] = {line: {} for line in sparks}
    for number in range(rounds):
        for line in rotated(sparks, number):
            for name, found in job("spark_versions_job", batches, spark=sparks[line]).items():
                seconds[line].setdefault(name, []).extend(found)
    times = {line: {name: Times(tuple(some)) for name, some in found.items()} for line, found in seconds.items()}
    on = f"on Spark {OLDER} / on {NEWER}"
    for name, limit in (("ours", LIMIT), ("noop", None)):
        older, newer = (times[line][name] for line in (OLDER, NEWER))
        what = "a running sum" if name == "ours" else "only aggregating"
        detail = f"{older.mean:.2f} / {newer.mean:.2f} s, spread {older.spread:.0%} / {newer.spread:.0%}"
        yield Target(f"table: micro-batch of {what}, {on}", older.mean / newer.mean, limit, detail)
