"""Keep two pools of threads beside the event loop: for files and computations."""

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

FILE_THREADS = 16
"""Threads that wait for files at the same time."""


class ThreadPool:
    """A pool whose threads are started by its first use, in the process that uses it."""

    def __init__(self, name: str, workers: int) -> None:
        self._name = name
        self.workers = workers
        self.reset()

    def reset(self) -> None:
        """Forget threads and locks, in a forked child.

        There the threads do not exist, and may have held the locks.
        """
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    async def run(self, call: Callable[[], T]) -> T:
        """Return the result of a call made in one of the threads."""
        try:
            work = self._started().submit(call)
        except RuntimeError:
            # The interpreter is shutting down and starts no threads. Called here, a last save from an exit handler
            # still works.
            return call()
        return await asyncio.wrap_future(work)

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.workers, thread_name_prefix=self._name)
            return self._executor


file_pool = ThreadPool("checkpointer-file", FILE_THREADS)
# Apart from the files' pool: slow files must not keep processors idle, and long computations must not hold up reads.
cpu_pool = ThreadPool("checkpointer-cpu", os.cpu_count() or 1)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call (files, imports) in the file pool.

    Cancelling the waiter does not stop the call.
    """
    return await file_pool.run(lambda: function(*args, **kwargs))


async def on_cpu(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run work that keeps a processor busy: encoding, compression, digests.

    There is one thread for each processor.
    """
    return await cpu_pool.run(lambda: function(*args, **kwargs))


os.register_at_fork(after_in_child=file_pool.reset)
os.register_at_fork(after_in_child=cpu_pool.reset)
