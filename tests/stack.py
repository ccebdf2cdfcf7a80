"""Call a function with little of the stack left."""

import sys
from collections.abc import Callable
from typing import Any


def outcomes(call: Callable[[], Any]) -> set[Any]:
    """Return what a call returns, however many frames are left: `RecursionError` where they are too few."""
    found: set[Any] = set()
    for frames in range(sys.getrecursionlimit()):
        try:
            found.add(_deeper(frames, call))
        except RecursionError:
            found.add(RecursionError)
    return found


def _deeper(frames: int, call: Callable[[], Any]) -> Any:
    return call() if frames == 0 else _deeper(frames - 1, call)
