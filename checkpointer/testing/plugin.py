"""Provide fixtures for pytest.

In the `conftest.py` at the top: `pytest_plugins = ["pyspark_checkpointer.testing.plugin"]`.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pyspark_checkpointer.testing.crashes import CrashPoint, Job, crash_points, injected
from pyspark_checkpointer.testing.faults import Faults

CrashPoints = Callable[..., Iterator[CrashPoint]]


@pytest.fixture(name="checkpoint_root")
def _checkpoint_root(tmp_path: Path) -> str:
    """Return the path of a folder for a store. The folder does not exist yet."""
    return str(tmp_path / "root")


@pytest.fixture(name="checkpoint_faults")
def _checkpoint_faults() -> Iterator[Faults]:
    """Yield the faults that every root meets which this process opens during the test.

    A failed request is tried again: `checkpoint_faults.fail("put", times=100)` lets an operation fail.
    """
    with injected(Faults()) as faults:
        yield faults


@pytest.fixture(name="crash_points")
def _crash_points(tmp_path: Path) -> CrashPoints:
    """Return `crash_points` with a folder for each point.

    Use it as `for point in crash_points(job)`.
    """
    numbers = itertools.count(1)

    def play(run: Job, setup: Job | None = None) -> Iterator[CrashPoint]:
        return crash_points(run, lambda: str(tmp_path / f"root-{next(numbers)}"), setup)

    return play


__all__ = ["CrashPoint", "CrashPoints", "Faults"]
