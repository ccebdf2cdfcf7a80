"""Call functions at the end of the process, and finish work before it."""

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401  # registers its own end first, so that threads still work during ours
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from pyspark_checkpointer.runtime.event_loop import submit

logger = logging.getLogger("pyspark_checkpointer")

FINISH_SECONDS = 300.0
"""Seconds that a process waits at its end for work that nobody waits for any more."""

SILENT_SECONDS = 5.0
"""Seconds that a process waits before it logs what it waits for."""


def at_exit(function: Callable[[], None], *, while_threads_work: bool = False) -> bool:
    """Call a function when the interpreter ends.

    If there are several functions, the last one registered is called first. With `while_threads_work` the call comes
    before executors refuse new work, so before any exit handler, and also in a child of multiprocessing, which runs no
    exit handlers. Returns False where the interpreter is past that point: then nothing promises that the function is
    called.
    """
    # The standard library's own pools learn of the end in this way; it has no public name.
    register = getattr(threading, "_register_atexit", None) if while_threads_work else None
    try:
        (register or atexit.register)(function)
    except RuntimeError:  # the interpreter has stopped waiting for threads
        atexit.register(function)
        return False
    return True


class UnfinishedWork:
    """Tasks whose callers did not wait for them.

    The process finishes them before it ends, or logs what was lost.

    Each task is in one state, and leaves it as described:

        running   in `_running`. Ends, or is still running when the process ends: an error is logged.
        failed    in `_failed`, by weak reference: holding the task would keep its client alive. Somebody is told of
                  the failure, or the process ends: an error is logged.
        settled   in neither. It succeeded, was cancelled, or somebody was told of its failure.

    Tasks that nobody needs once the process ends are cancelled instead.
    """

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[Any], str] = {}
        self._failed: dict[weakref.ref[asyncio.Task[Any]], tuple[str, str]] = {}
        """Name and error of each failed task."""
        self._unneeded = weakref.WeakSet[asyncio.Task[Any]]()
        self.exiting = False
        """True if the process has begun to end: work that is added now is not waited for."""

    def add(self, task: "asyncio.Task[Any]", name: str) -> None:
        """Finish `task` before the process ends; the log calls it `name`."""
        self._running[task] = name
        task.add_done_callback(self._ended)

    def add_unneeded(self, task: "asyncio.Task[Any]") -> None:
        """Cancel `task` before the process ends."""
        self._unneeded.add(task)

    async def _cancel_unneeded(self) -> None:
        for task in (tasks := [*self._unneeded]):
            task.cancel()
        if tasks:  # `wait` refuses to wait for nothing
            await asyncio.wait(tasks, timeout=SILENT_SECONDS)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        name = self._running.pop(task, None)  # None where somebody was told already
        if name is None or task.cancelled():
            return
        # The text and not the error, whose traceback would keep the task's client alive.
        if (error := task.exception()) is not None:
            self._failed[weakref.ref(task)] = name, f"{type(error).__name__}: {error}"

    def forget_task(self, task: "asyncio.Task[Any]") -> None:
        """Forget a task whose outcome its caller has learned."""
        self._running.pop(task, None)
        self._failed.pop(weakref.ref(task), None)

    def forget(self) -> None:
        """Forget everything: in a forked child these tasks are the parent's."""
        self._running, self._failed = {}, {}
        self._unneeded = weakref.WeakSet()
        self.exiting = False

    def finish(self) -> None:
        """Wait for all tasks before the process ends, and log what was lost.

        It runs in the main thread.
        """
        # Before the waiting: work that is added from here on is not in the list below, and its caller has to wait for
        # it.
        self.exiting = True
        # Ctrl-C ends the waiting, and what is unfinished is logged all the same.
        with contextlib.suppress(KeyboardInterrupt):
            if self._unneeded:
                submit(self._cancel_unneeded()).result()
            if not self._wait(SILENT_SECONDS):
                names = ", ".join(self._running.values())
                logger.warning("the process waits for this before it ends, for at most %g s: %s", FINISH_SECONDS, names)
                self._wait(FINISH_SECONDS)
        # Copies are iterated over, because the loop's thread removes tasks meanwhile.
        for task, name in [*self._running.items()]:
            if task.done():
                self._ended(task)  # the loop has not called back yet
            elif self._running.pop(task, None) is not None:
                logger.error(
                    "%s: was not finished when the process ended; it is not known whether it took effect", name
                )
        for reference in [*self._failed]:
            if (failure := self._failed.pop(reference, None)) is not None:
                logger.error("%s: failed, and no call reported it before the process ended: %s", *failure)

    def _wait(self, seconds: float) -> bool:
        """Return whether all tasks end within `seconds`."""
        left = [task for task in [*self._running] if not task.done()]
        if left:
            # On the loop, because tasks can be awaited there only. With a timeout `wait` cancels nothing.
            submit(asyncio.wait(left, timeout=seconds)).result()
        return all(task.done() for task in left)


_unfinished = UnfinishedWork()
# Imported by an exit handler, the library comes too late to be called: then it counts as ending from the start.
_unfinished.exiting = not at_exit(_unfinished.finish, while_threads_work=True)
os.register_at_fork(after_in_child=_unfinished.forget)


def finish_at_exit(task: "asyncio.Task[Any]", name: str) -> bool:
    """Finish a task that nobody waits for before the process ends.

    `name` says in the log what it is.

    Returns False where the process is ending already: then the caller has to wait.
    """
    _unfinished.add(task, name)
    return not _unfinished.exiting


def cancel_at_exit(task: "asyncio.Task[Any]") -> bool:
    """Cancel a task before the process ends.

    Nobody needs what it does after that. What it runs in a thread of the library is finished all the same. Returns
    False where the process is ending already: then the caller has to stop.
    """
    _unfinished.add_unneeded(task)
    return not _unfinished.exiting


def forget_outcome(task: "asyncio.Task[Any]") -> None:
    """Note that somebody knows the outcome of a task.

    The task was handed to `finish_at_exit`.
    """
    _unfinished.forget_task(task)
