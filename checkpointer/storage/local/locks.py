"""Lock a local root: one holder among all processes of this host.

That holds whatever processes fork, and however they end.

The lock is `flock`, which belongs to the *open file*, and a forked child has that too. So a holder unlocks explicitly
before it closes the file, and a child closes the files that it inherited. Otherwise an idle child would hold the lock
of a parent that went on, or was killed, long ago. (POSIX record locks stay with the parent, but a process loses them
whenever any of its threads closes the file.)
"""

import fcntl
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from pyspark_checkpointer.errors import SwapNotSentError
from pyspark_checkpointer.runtime.processes import read_process_state
from pyspark_checkpointer.storage.local import files

MAX_PAUSE = 0.02
"""Seconds between two tries to take the lock, at most.

Each pause is longer or shorter by up to a half, at random.
"""

_open_files: set[int] = set()
"""Descriptors of the lock files that this process has open."""

_guard = threading.RLock()
"""Lock held while a lock file is opened or closed, and during a fork.

So a child finds every open lock file in `_open_files`.
"""


@contextmanager
def locked(path: str, timeout: float) -> Iterator[None]:
    """Hold an exclusive lock against every process of this host.

    The kernel frees it when its holder dies. The lock file is created if there is none, and never removed: another
    process may already wait for it, and would then lock a file without a name. Raises `SwapNotSentError` after
    `timeout` seconds, which says who has the lock.
    """
    deadline = time.monotonic() + timeout
    pause = 0.0005
    while True:
        process, fd = os.getpid(), _open(path)
        try:
            if _try_lock(fd, path):
                _sign(fd)
                yield
                return
            # A blocking `flock` would know no deadline, so the lock is tried again and again.
            if time.monotonic() >= deadline:
                # Known not to be sent, unlike a request without an answer: the caller may go on without a restore.
                raise SwapNotSentError(
                    f"{path}: not free for {timeout:g} s, so nothing was written: {_describe_holder(fd)}"
                )
        finally:
            # A child that was forked in the block has closed the file, and must not unlock it for its parent.
            if os.getpid() == process:
                _close(fd)
        # Each try opens the file anew, because it may have been removed and created again.
        # At random, so that waiters which began together do not meet again at each try.
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(pause * 2, MAX_PAUSE)


def _open(path: str) -> int:
    """Open the lock file, and return its descriptor.

    It is made where there is none.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    with _guard:
        while True:
            # It may be removed or made by others after each look.
            with suppress(FileNotFoundError):
                fd = os.open(path, flags)
                break
            with suppress(FileExistsError):
                fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
                files.give_away(fd, os.path.dirname(path))
                break
        _open_files.add(fd)
    return fd


def _close(fd: int) -> None:
    """Unlock the file for every process that has it open, then close it.

    An error of the file system is no error of what was done under the lock, and closing frees the lock in any case.
    """
    with _guard:
        try:
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_UN)
        finally:
            _open_files.discard(fd)
            with suppress(OSError):
                os.close(fd)


def _try_lock(fd: int, path: str) -> bool:
    """Take the lock if it is free, and return whether it is ours now."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # Somebody may have removed the file between open and flock: a lock on a file without a name excludes nobody.
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    return False


def _sign(fd: int) -> None:
    """Write into the lock file who has the lock.

    The error message of those who wait in vain shows it.
    """
    with suppress(OSError):  # a full disk
        os.ftruncate(fd, os.pwrite(fd, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0))


def _describe_holder(fd: int) -> str:
    """Say who has the lock, and the next step of a user."""
    try:
        process, host = os.pread(fd, 300, 0).decode().split()
        number = int(process)
    except (OSError, ValueError):
        return "another process holds the lock of this root; find it with `lslocks` or `fuser`, and end it if it hangs"
    who = f"process {number} of {host} took the lock of this root"
    if host != socket.gethostname():
        return f"{who}; end it if it hangs"
    if read_process_state(number) in ("T", "t"):
        return f"{who} and is stopped: continue it (kill -CONT {number}) or end it; the kernel then frees the lock"
    return f"{who}; if it hangs, end it: then the kernel frees the lock"


def _close_inherited() -> None:
    """Close the parent's lock files in a forked child.

    That unlocks nothing while the parent has them open.
    """
    global _guard
    # The hook before the fork took the old one, and nobody gives it back in the child.
    _guard = threading.RLock()
    for fd in _open_files:
        with suppress(OSError):
            os.close(fd)
    _open_files.clear()


os.register_at_fork(
    before=lambda: _guard.acquire() and None,
    after_in_parent=lambda: _guard.release(),
    after_in_child=_close_inherited,
)
