"""A count of forks.

It matters because a child shares with its parent everything that was open before the fork.

`fork_count` tells a writer that this process was forked after it began, so that the error of a fenced writer can say
so (`checkpoint/fencing.py`). A child that uses what its parent began is met elsewhere: `checkpoint/save.py` refuses an
attempt that was begun before the fork, `checkpoint/prepared.py` a handle of a checkpoint that was prepared before it,
`client/base.py` gives a client in a child a session of its own, and each module with threads, locks or open files
resets them with `os.register_at_fork`.
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
