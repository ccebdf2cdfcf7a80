"""Hold many records in memory: `python -m benchmarks.map_memory KEYS KIND`.

KIND is `map` or `dict`. It works in the current folder. The records are saved, and then one of a hundred changes in
each of `DELTAS` saves; a dict is only changed. As JSON it prints the resident memory that this took, and its peak.
"""

import gc
import json
import os
import sys
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from benchmarks.driver_state import commit, keyed, plain, value
from pyspark_checkpointer import Checkpointer, KeyedState

DELTAS = 10


def main(keys: str, kind: str) -> None:
    count = int(keys)
    gc.collect()
    before = resident()
    with Checkpointer(Path.cwd() / "root") as client:
        state: MutableMapping[str, dict[str, Any]] = keyed(count) if kind == "map" else plain(count)
        for step in range(DELTAS + 1):
            if step:
                state.update({f"N{number:07d}": value(number + step) for number in range(step, count, 100)})
            if isinstance(state, KeyedState):
                commit(client, state)
        gc.collect()
        print(json.dumps({"resident": resident() - before, "peak": peak() - before}))


def resident() -> int:
    """Return the resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """Return the most resident bytes that this process had.

    `getrusage` would tell those of the process that started this one.
    """
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
