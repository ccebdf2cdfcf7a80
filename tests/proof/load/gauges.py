"""What a process holds, read from the system and from the interpreter: for programs that measure themselves.

Peaks belong to a whole process, so each measurement is a program of its own, `python -m tests.proof.load.<module>`: it
takes its arguments as JSON on standard input, since they may hold a test server's credentials, and answers in JSON.
"""

import asyncio
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from pyspark_checkpointer import runtime

ROOT = Path(__file__).parents[3]
MIB = 1 << 20
PATIENCE = 6 * 3600

RETURNS_MEMORY = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "131072",
    "MALLOC_TRIM_THRESHOLD_": "131072",
}
"""Settings with which freed memory goes back to the system at once.

Otherwise a peak is what a program needs and what its allocators keep for later, which differs from run to run by as
much as the rows themselves.
"""

needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="/proc: measured on Linux only")


def measure(module: str, **arguments: Any) -> dict[str, Any]:
    """What a program of this folder reports, run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", f"tests.proof.load.{module}"],
            input=json.dumps(arguments),
            cwd=ROOT,
            env=os.environ | RETURNS_MEMORY | {"TMPDIR": folder},  # so that it can count its own files
            stdout=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
        )
    assert done.returncode == 0, f"tests.proof.load.{module} ended with {done.returncode}"
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def answer(program: Callable[..., dict[str, Any]]) -> None:
    """The main of such a program. It ends with a failure, whatever its threads are still waiting for."""
    try:
        print(json.dumps(program(**json.load(sys.stdin))), flush=True)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


# ---- memory --------------------------------------------------------------------------------------------------------


def resident(line: str = "VmRSS") -> int:
    """Bytes of memory of this process: `VmRSS` as it is now, `VmHWM` the most it was."""
    found = re.search(rf"{line}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def available() -> int:
    """Bytes of memory that this machine has left."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


@dataclass(slots=True)
class Peak:
    """Bytes above what was held when the block began."""

    bytes: int = 0


@contextmanager
def peak() -> Iterator[Peak]:
    """The most memory that the block took beyond what was there before."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, found = resident(), Peak()
    yield found
    found.bytes = resident("VmHWM") - before


# ---- everything that could leak ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process at rest holds."""

    memory: int
    blocks: int
    """Pieces of memory that the interpreter has handed out: a leaked value of any kind is some of them."""
    files: int
    threads: int
    tasks: int
    temporary: int
    """Files in the folder for temporary files, and those of writers in the roots."""
    objects: int
    """Objects in the roots."""


def sample(count_roots: Callable[[], tuple[int, int]]) -> Sample:
    """`count_roots` tells objects, and what interrupted writes left behind."""
    objects, leftovers = count_roots()
    gc.collect()

    async def tasks() -> int:
        return len(asyncio.all_tasks()) - 1  # without this one

    return Sample(
        memory=resident(),
        blocks=sys.getallocatedblocks(),
        files=len(os.listdir("/proc/self/fd")) - 1,  # without the one that reads
        threads=threading.active_count(),
        tasks=runtime.run_sync(tasks()),
        temporary=leftovers + sum(len(files) for _, _, files in os.walk(tempfile.gettempdir())),
        objects=objects,
    )


def growth(samples: Sequence[Sample]) -> dict[str, float]:
    """By how much each gauge grew once all was warm: the median of the last quarter above that of the second."""
    rows = [asdict(one) for one in samples]
    quarter = len(rows) // 4
    return {
        name: statistics.median(row[name] for row in rows[-quarter:])
        - statistics.median(row[name] for row in rows[quarter : 2 * quarter])
        for name in rows[0]
    }


def trend(samples: Sequence[Sample]) -> dict[str, float]:
    """What steady growth added after the first quarter: the Theil-Sen slope, which no outlier moves, times the rest."""
    rows = [asdict(one) for one in samples[len(samples) // 4 :]]
    pairs = [*combinations(range(len(rows)), 2)]
    return {
        name: statistics.median((rows[b][name] - rows[a][name]) / (b - a) for a, b in pairs) * (len(rows) - 1)
        for name in rows[0]
    }
