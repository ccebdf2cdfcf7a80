"""Keep a running sum on this Spark: `python -m benchmarks.spark_versions_job BATCHES`.

It works in the current folder. For `ours` and for `noop`, which has no state, it prints the seconds of the batches as
JSON. Before them Java compiles for `WARM_UP` batches. What the table holds is compared with the sums of all rows.
"""

import json
import sys
from pathlib import Path

from benchmarks.micro_batches import Feed, fingerprint, in_turns
from benchmarks.table_peers import aggregated, batch_part, noop, ours
from benchmarks.table_state import session

WARM_UP = 30


def main(batches: str) -> None:
    folder = Path.cwd()
    spark = session(folder)
    feed = Feed(spark, folder / "stream", batch_part)
    contenders = {"ours": ours(spark, feed, folder / "ours"), "noop": noop(feed)}
    times = in_turns(feed, {name: one.query for name, one in contenders.items()}, folder, 1, int(batches), WARM_UP)
    state = contenders["ours"].state
    assert state is not None
    if fingerprint(state()) != fingerprint(aggregated(feed.read())):
        raise AssertionError("the running sums are not the sums")
    print(json.dumps({name: found.seconds for name, found in times.items()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
