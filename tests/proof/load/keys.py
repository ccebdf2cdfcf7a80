"""What a map of very many keys takes: to fill, to save, to change a little, and to restore."""

import gc
import time
from pathlib import Path
from typing import Any

from pyspark_checkpointer import Checkpointer, KeyedState
from tests.proof.load.gauges import answer, resident

CHANGED = 1000


def value(key: int) -> int:
    return key * 7 + 1


def measure_keys(url: str, count: int, partitions: int, step: str) -> dict[str, Any]:
    """Return the peak of this whole process, as a user's system counts it, and what was held when it was done.

    `fill` is the map alone; `save` fills it, saves, changes a few keys and saves again; `restore` is the next run.
    """
    began = time.monotonic()
    with Checkpointer(url) as client:
        if step == "restore":
            restored = client.restore()
            assert restored is not None
            state = restored.keyed("keys")
            right = len(state) == count and all(state[key] == value(key) for key in range(0, count, count // CHANGED))
            right &= state[1] == -1
        else:
            state = KeyedState(partitions=partitions)
            state.update((key, value(key)) for key in range(count))
            right = len(state) == count
        if step == "save":
            with client.begin() as cp:
                cp.save("keys", state)
            state.update((key, -1) for key in range(1, count, count // CHANGED))
            with client.begin() as cp:
                cp.save("keys", state)
    gc.collect()
    size = sum(path.stat().st_size for path in Path(url).rglob("*") if path.is_file()) if Path(url).exists() else 0
    peak, held = resident("VmHWM"), resident()
    return {"peak": peak, "held": held, "seconds": time.monotonic() - began, "stored": size, "right": right}


if __name__ == "__main__":
    answer(measure_keys)
