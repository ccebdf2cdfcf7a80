"""The interpreters that this library works on."""

import sys


def require_gil() -> None:
    """Raise `ImportError` if CPython runs without its global interpreter lock.

    Only a free-threaded CPython can run so.

    A keyed state decides by reference counts whether a value may still be changed by somebody else, and sets and dicts
    are shared between threads without locks: a wrong answer would leave changes out of a checkpoint unnoticed.
    Python 3.12 and older always have the lock.
    """
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise ImportError(
            "pyspark_checkpointer needs the global interpreter lock, and this free-threaded Python runs without it: "
            "start it with PYTHON_GIL=1 or -X gil=1, or use a standard build"
        )
