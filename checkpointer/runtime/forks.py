"""Tell a process from those that it was forked from, and count forks.

A child shares with its parent everything that was open before the fork.

`fork_count` tells a writer that this process was forked after it began, so that the error of a fenced writer can say so
(`checkpoint/fencing.py`). `current` and `per_process` are for the objects that must not be used in a child.
`checkpoint/save.py` refuses an attempt that was begun before the fork. `checkpoint/prepared.py` refuses a handle of a
checkpoint that was prepared before the fork. `client/base.py` gives a client in a child its own session. Each module
with threads, locks or open files resets them with `os.register_at_fork`.
"""

import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Process:
    """One process.

    Unlike its id, which another process may get later, it never comes again.
    """


_count = 0

current = Process()
"""This process, to be compared with `is`.

A child has another one, so it is read as `forks.current`, and not imported.
"""


def fork_count() -> int:
    """Return how often this process was forked.

    A child process counts on from its parent's number.
    """
    return _count


def per_process(made: dict[Process, T], make: Callable[[], T]) -> T:
    """Return the object of this process from `made`, which the first call makes.

    A forked child inherits its parent's entries and uses none of them: loops and connections do not survive a fork.
    Two threads that make one at the same moment get the same object, since `setdefault` is atomic.
    """
    process = current
    return made[process] if process in made else made.setdefault(process, make())


def _count_fork() -> None:
    global _count
    _count += 1


def _begin_process() -> None:
    global current
    current = Process()


# In the parent only: what counts for a writer is whether a copy of it exists somewhere else.
os.register_at_fork(after_in_parent=_count_fork, after_in_child=_begin_process)
