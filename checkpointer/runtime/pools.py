"""Keep two pools of threads beside the event loop: for files and computations."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
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
        """Return the result of a call made once, in one of the threads."""
        outcome = Future[T]()
        once = partial(_call_once, threading.Lock(), outcome, call)
        try:
            self._started().submit(once)
        except RuntimeError:
            # The interpreter is shutting down, or the system starts no more threads. Called here, a last save from an
            # exit handler still works. The executor may have queued the call before it found that it cannot start a
            # thread: then a thread that it has makes the call too, unless the call is claimed.
            once()
        return await asyncio.wrap_future(outcome)

    def _started(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.workers, thread_name_prefix=self._name)
            return self._executor


def _call_once(claim: threading.Lock, outcome: Future[T], call: Callable[[], T]) -> None:
    """Make a call and set its outcome.

    Nothing is done if another thread has claimed the call, or its waiter was cancelled.
    """
    if not claim.acquire(blocking=False) or not outcome.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        outcome.set_exception(error)
        # The traceback of the error has this frame, which must not keep what was called and what failed.
        del outcome, call
    else:
        outcome.set_result(result)


file_pool = ThreadPool("checkpointer-file", FILE_THREADS)
# Apart from the files' pool: slow files must not keep processors idle, and long computations must not hold up reads.
cpu_pool = ThreadPool("checkpointer-cpu", os.cpu_count() or 1)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call (files, imports) in the file pool.

    Cancelling the waiter does not stop the call.
    """
    return await file_pool.run(lambda: function(*args, **kwargs))


@contextmanager
def set_when_cancelled() -> Iterator[threading.Event]:
    """Yield an event that is set when the block is cancelled.

    A call in a thread goes on then: it looks at the event before it does what nobody expects any more.
    """
    cancelled = threading.Event()
    try:
        yield cancelled
    except asyncio.CancelledError:
        cancelled.set()
        raise


async def on_cpu(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run work that keeps a processor busy: encoding, compression, digests.

    There is one thread for each processor.
    """
    return await cpu_pool.run(lambda: function(*args, **kwargs))


os.register_at_fork(after_in_child=file_pool.reset)
os.register_at_fork(after_in_child=cpu_pool.reset)
