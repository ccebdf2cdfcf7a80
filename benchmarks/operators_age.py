"""Compare an old state with a young one: `python -m benchmarks.operators_age KEYS CHANGED TURNS BATCHES`.

It works in the current folder, with two cores. Two queries apply the same function. One has run `AGES["old"]` batches
when the other has run `AGES["young"]`; then they take turns in one process, so that what the process has compiled and
what the machine does beside them is the same for both. Both get older while they are measured. For each it prints, as
JSON, the seconds of its batches.
"""

import json
import sys
from functools import partial
from pathlib import Path

from benchmarks.measure import rotated
from benchmarks.micro_batches import WARM, Feed, location, session, timed_batches
from benchmarks.operators_job import SETTINGS, check_sums, make_part, query_of
from pyspark_checkpointer.spark import read_state

AGES = {"old": 100, "young": 10}
"""The batches of each query before the first that counts."""


def main(keys: str, changed: str, turns: str, batches: str) -> None:
    folder = Path.cwd()
    with session("local[2]", SETTINGS) as spark:
        part = partial(make_part, int(keys), int(changed))
        feeds = {age: Feed(spark, folder / f"input-{age}", part) for age in AGES}
        queries = {age: query_of(feed, folder / age, "apply") for age, feed in feeds.items()}
        seconds: dict[str, list[float]] = {age: [] for age in AGES}
        for age, number in AGES.items():
            feeds[age].add(number)
            timed_batches(queries[age](), location(folder, age))
        for turn in range(int(turns)):
            for age in rotated(queries, turn):
                feeds[age].add(WARM + int(batches))
                seconds[age] += timed_batches(queries[age](), location(folder, age))[WARM:]
        for age, feed in feeds.items():
            check_sums(feed, read_state(spark, folder / age, "t"), "apply")
        print(json.dumps(seconds))


if __name__ == "__main__":
    main(*sys.argv[1:])
