"""A count of forks: a child shares with its parent everything that was open before."""

import os

_count = 0


def fork_count() -> int:
    """Return how often this process was forked; a child process counts on from its parent's number."""
    return _count


def _count_fork() -> None:
    global _count
    _count += 1


os.register_at_fork(after_in_parent=_count_fork)
