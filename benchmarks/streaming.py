"""Measure a streaming job: how long its state blocks a micro-batch, and how much memory its state needs.

Each job is a process with a JVM of its own. Blocking is measured with one and with two real executor processes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import Finding, Target, Times
from benchmarks.stores import folder

PROJECT = Path(__file__).parents[1]


def run(quick: bool) -> list[Finding]:
    return [*_blocking(quick), *([] if quick else _large())]  # a small state is outweighed by any JVM


def _blocking(quick: bool) -> list[Target]:
    turns, batches, divisor = (1, 1, 10) if quick else (3, 10, 1)
    targets = []
    for executors in (2,) if quick else (1, 2):
        found = job("streaming_job", f"local-cluster[{executors},1,512]", turns, batches, divisor)
        for change, seconds in found.items():
            plain, ours, blocked = (Times(tuple(seconds[name])) for name in ("plain", "ours", "blocked"))
            added = f"{ours.median - plain.median:+.3f} s on {plain.median:.3f} s"
            detail = (
                f"{added}, the checkpoint blocked for {blocked.median:.3f} s; "
                f"spread {ours.spread:.0%} / {plain.spread:.0%}"
            )
            several = "executor" if executors == 1 else "executors"
            question = f"streaming, {executors} {several}: batch with {change} / the same without state"
            targets.append(Target(question, ours.median / plain.median, None, detail))
    return targets


def _large() -> list[Target]:
    """Measure a large state. The limits are for 10 GB beside a JVM with 4 GiB of heap."""
    step, size = 1_000_000_000, 10_000_000_000
    large = job("large_state", size, step)
    each = ", ".join(f"{name} {large[name] / 2**20:,.0f}" for name in ("driver", "jvm", "worker"))
    together = Target(
        f"streaming: resident memory of all processes of a job / its {size / 1e9:g} GB of table state",
        large["together"] / size,
        0.6,
        f"{large['together'] / 2**20:,.0f} MiB at once; the most of each kind of process: {each} MiB; "
        f"{large['stored'] / 1e9:.1f} GB stored",
    )
    small = job("large_state", step, step)
    worker = Target(
        f"streaming: resident memory of a Python worker, {size / 1e9:g} GB of table state / {step / 1e9:g} GB",
        large["worker"] / small["worker"],
        1.3,
        f"{large['worker'] / 2**20:,.0f} / {small['worker'] / 2**20:,.0f} MiB, partitions of the same size",
    )
    return [together, worker]


def job(module: str, *arguments: object, spark: Path | None = None) -> Any:
    """Return what a job prints as its last line. It works in a folder that is removed afterwards.

    `spark` is a folder with another PySpark than that of `.venv`.
    """
    paths = [*([spark] if spark else []), PROJECT / "src", PROJECT]
    with folder() as path:
        command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, arguments)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),  # for executors, which start elsewhere
            "PYTHONHASHSEED": "0",  # as `spark-submit` sets it
        }
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=path, check=True)
        return json.loads(done.stdout.strip().splitlines()[-1])
