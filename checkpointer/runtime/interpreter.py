"""Refuse interpreters on which this library does not work."""

import sys


def require_gil() -> None:
    """Raise `ImportError` if CPython runs without its global interpreter lock.

    Only a free-threaded CPython can run so.

    A keyed state decides by reference counts whether somebody else may still change a value. Threads also share sets
    and dicts without locks. Without the lock of the interpreter, changes could be missing in a checkpoint, unnoticed.
    Python 3.12 and older always have the lock.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError(
            "pyspark_checkpointer needs the global interpreter lock, and this free-threaded Python runs without it: "
            "start it with PYTHON_GIL=1 or -X gil=1, or use a standard build"
        )
