"""Count forks.

The number of forks matters because a child shares with its parent everything that was open before the fork.

`fork_count` tells a writer that this process was forked after it began, so that the error of a fenced writer can say so
(`checkpoint/fencing.py`). Other modules handle a child that uses objects of its parent. `checkpoint/save.py` refuses an
attempt that was begun before the fork. `checkpoint/prepared.py` refuses a handle of a checkpoint that was prepared
before the fork. `client/base.py` gives a client in a child its own session. Each module with threads, locks or open
files resets them with `os.register_at_fork`.
"""

import os

_count = 0


def fork_count() -> int:
    """Return how often this process was forked.

    A child process counts on from its parent's number.
    """
    return _count


def _count_fork() -> None:
    global _count
    _count += 1


# In the parent only: what counts for a writer is whether a copy of it exists somewhere else.
os.register_at_fork(after_in_parent=_count_fork)
