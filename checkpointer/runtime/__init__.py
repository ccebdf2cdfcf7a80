"""Where work runs: one event loop for everything that talks to a store, and two pools of threads beside it.

The loop is fsspec's own, in a background thread, because s3fs and adlfs keep their connections there.
Synchronous callers block on it (`run_sync`), asynchronous callers of any loop await it (`bridge`), and
neither ever starts a loop of its own. Everything here is armed again after a fork: a child starts with no
loop and no threads.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import queue
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import fsspec.asyn

from pyspark_checkpointer.manifests.errors import IllegalArgumentError

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("pyspark_checkpointer")

FILE_THREADS = 16

MAX_CALLBACKS = 1000
"""Calls of users' functions that may wait for those before; more are dropped."""

EXIT_SECONDS = 2.0

FINISH_SECONDS = 300.0
"""Seconds that a process waits at its end for work that nobody waits for any more."""

_SILENT_SECONDS = 5.0
"""Seconds of that before it says what it waits for."""


def at_exit(function: Callable[[], None], *, while_threads_work: bool = False) -> bool:
    """Call a function when the interpreter ends; of several, what was handed over last comes first.

    With `while_threads_work` that is before executors refuse new work, so before any exit handler, and also in a child
    of multiprocessing, which runs no exit handlers. False where the interpreter is past that: then nothing promises
    that the function is called.
    """
    # The standard library's own pools learn of the end in this way; it has no public name.
    register = getattr(threading, "_register_atexit", None) if while_threads_work else None
    try:
        (register or atexit.register)(function)
    except RuntimeError:  # threads are not waited for any more
        atexit.register(function)
        return False
    return True


class _Pool:
    """Threads made when first needed, in the process that needs them."""

    def __init__(self, name: str, workers: int) -> None:
        self._name = name
        self._workers = workers
        self.rearm()

    def rearm(self) -> None:
        """Forget everything. In a forked child the old threads are gone and the old locks may be held by
        them."""
        self._lock = threading.Lock()
        self._executor: ThreadPoolExecutor | None = None

    def get(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self._workers, thread_name_prefix=self._name)
            return self._executor


_files = _Pool("checkpointer-file", FILE_THREADS)
_cpu = _Pool("checkpointer-cpu", os.cpu_count() or 1)


class _Callbacks:
    """A thread that calls users' functions one after the other. The interpreter does not wait for it to end."""

    def __init__(self) -> None:
        self.rearm()

    def rearm(self) -> None:
        self._lock = threading.Lock()
        self._waiting: queue.Queue[tuple[Callable[[], None], Future[None]]] | None = None

    def add(self, function: Callable[[], None]) -> "Future[None] | None":
        with self._lock:
            if self._waiting is None:
                self._waiting = queue.Queue(MAX_CALLBACKS)
                threading.Thread(
                    target=self._work, args=(self._waiting,), name="checkpointer-callback", daemon=True
                ).start()
        done: Future[None] = Future()
        try:
            self._waiting.put_nowait((function, done))
        except queue.Full:
            return None
        return done

    @staticmethod
    def _work(waiting: "queue.Queue[tuple[Callable[[], None], Future[None]]]") -> None:
        while True:
            function, done = waiting.get()
            function()
            done.set_result(None)

    def drain(self) -> None:
        """When the interpreter ends: give what is waiting a moment."""
        last = self.add(lambda: None) if self._waiting is not None else None
        if last is not None:
            with contextlib.suppress(TimeoutError):
                last.result(EXIT_SECONDS)


class _Unfinished:
    """Work on the loop whose caller went on: a process that ends finishes it first, or says aloud what was lost."""

    def __init__(self) -> None:
        self._work: dict[asyncio.Task[Any], str] = {}
        self._failed: dict[weakref.ref[asyncio.Task[Any]], tuple[str, str]] = {}
        """Names and errors of work that failed, until somebody was told: a task would keep its client alive."""
        self.exiting = False

    def add(self, task: "asyncio.Task[Any]", name: str) -> None:
        self._work[task] = name
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        name = self._work.pop(task, None)  # None where somebody was told already
        if name is None or task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._failed[weakref.ref(task)] = name, f"{type(error).__name__}: {error}"

    def told(self, task: "asyncio.Task[Any]") -> None:
        """Forget work whose outcome its caller has learned."""
        self._work.pop(task, None)
        self._failed.pop(weakref.ref(task), None)

    def forget(self) -> None:
        """Forget everything: in a forked child this work is the parent's."""
        self._work, self._failed = {}, {}
        self.exiting = False

    def finish(self) -> None:
        """Wait until all work has ended, in the main thread of a process that ends."""
        self.exiting = True
        with contextlib.suppress(KeyboardInterrupt):
            if not self._wait(_SILENT_SECONDS):
                names = ", ".join(self._work.values())
                logger.warning("the process ends once this is done, in %g s at most: %s", FINISH_SECONDS, names)
                self._wait(FINISH_SECONDS)
        for task, name in [*self._work.items()]:
            if task.done():
                self._ended(task)  # before the loop came to it
            elif self._work.pop(task, None) is not None:
                logger.error("%s: was not done when the process ended; nothing proves whether it took effect", name)
        for reference in [*self._failed]:
            if (failure := self._failed.pop(reference, None)) is not None:
                logger.error("%s: failed, and nobody was told before the process ended: %s", *failure)

    def _wait(self, seconds: float) -> bool:
        """Return whether all work has ended before so many seconds have passed."""
        left = [task for task in [*self._work] if not task.done()]
        if left:
            submit(asyncio.wait(left, timeout=seconds)).result()
        return all(task.done() for task in left)


_unfinished = _Unfinished()
_unfinished.exiting = not at_exit(_unfinished.finish, while_threads_work=True)

_callbacks = _Callbacks()
at_exit(_callbacks.drain)


def _after_fork() -> None:
    # fsspec registers a hook of its own, which forgets to replace the lock that guards the loop's creation.
    fsspec.asyn.reset_lock()
    _files.rearm()
    _cpu.rearm()
    _callbacks.rearm()
    _unfinished.forget()


_fork_count = 0


def forks() -> int:
    """How often this process was forked; a child process counts on from its parent's number."""
    return _fork_count


def _count_fork() -> None:
    global _fork_count
    _fork_count += 1


os.register_at_fork(after_in_parent=_count_fork, after_in_child=_after_fork)


def loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process, started if need be."""
    running: asyncio.AbstractEventLoop = fsspec.asyn.get_loop()
    return running


def on_loop() -> bool:
    """Return whether the caller is on the event loop's own thread, where blocking would stop everything."""
    # Not by fsspec's note of the thread: that is made once the thread runs, when work of others may be there already.
    try:
        return asyncio.get_running_loop() is fsspec.asyn.loop[0]
    except RuntimeError:
        return False


def submit(coro: Coroutine[Any, Any, T]) -> "Future[T]":
    """Start `coro` on the loop; do not wait. Cancelling the future cancels the work."""
    return asyncio.run_coroutine_threadsafe(coro, loop())


def run_sync(coro: Coroutine[Any, Any, T]) -> T:
    """Run `coro` on the loop and wait for its result, from any thread but the loop's own.

    May be called while another event loop runs in the calling thread; that loop then stands still
    meanwhile. An interrupt (Ctrl-C) cancels the work.
    """
    if on_loop():
        coro.close()
        raise IllegalArgumentError(
            "a blocking call was made on the event loop that has to serve it: use the asynchronous interface"
        )
    answers: queue.SimpleQueue[asyncio.Task[T]] = queue.SimpleQueue()
    cancel = _begin(coro, answers.put)
    try:
        return answers.get().result()
    except asyncio.CancelledError:
        raise CancelledError from None
    except BaseException:
        cancel()
        raise


def _begin(coro: Coroutine[Any, Any, T], done: Callable[["asyncio.Task[T]"], None]) -> Callable[[], None]:
    """Start `coro` on the loop, and call `done` there once it has ended. Returns what cancels it.

    The calling thread shares no lock with the loop's, as it would by a `concurrent.futures.Future`: a signal handler
    may interrupt the caller at any step, call the library again, and wait for the loop.
    """
    running = loop()
    tasks: list[asyncio.Task[T]] = []

    def start() -> None:
        task = running.create_task(coro)
        tasks.append(task)
        task.add_done_callback(finish)

    def finish(task: "asyncio.Task[T]") -> None:
        tasks.clear()  # what it raised refers to the caller's frame, and through that to here
        if not task.cancelled():
            task.exception()  # counts as looked at, if nobody waits any more
        done(task)

    def stop() -> None:
        for task in tasks:
            task.cancel()

    def cancel() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            running.call_soon_threadsafe(stop)

    running.call_soon_threadsafe(start)
    return cancel


async def bridge(coro: Coroutine[Any, Any, T], *, shield: bool = True) -> T:
    """Run `coro` on the loop and await its result from any running event loop.

    With `shield`, cancelling the waiter leaves the work running to its end; without, it cancels the work too.
    """
    here = asyncio.get_running_loop()
    waiter: asyncio.Future[T] = here.create_future()

    def tell(work: "asyncio.Task[T]") -> None:
        with contextlib.suppress(RuntimeError):  # the waiter's loop was closed before the work ended
            here.call_soon_threadsafe(_settle, waiter, work)

    cancel = _begin(coro, tell)
    try:
        return await waiter
    except asyncio.CancelledError:
        if not shield:
            cancel()
        raise


def _settle(waiter: "asyncio.Future[T]", work: "asyncio.Task[T]") -> None:
    if waiter.done():
        return
    if work.cancelled():
        waiter.cancel()
        return
    error = work.exception()
    if error is None:
        waiter.set_result(work.result())
    else:
        waiter.set_exception(error)


def finish_at_exit(task: "asyncio.Task[Any]", name: str) -> bool:
    """Keep work that nobody waits for from being lost when the process ends. `name` says what it is, for the log.

    False where the process is ending already: then the caller has to wait.
    """
    _unfinished.add(task, name)
    return not _unfinished.exiting


def was_told(task: "asyncio.Task[Any]") -> None:
    """Note that somebody was told what became of work that was handed to `finish_at_exit`."""
    _unfinished.told(task)


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a blocking call (files, imports) in the file pool. Cancelling the waiter does not stop the call."""
    return await _in_pool(_files, lambda: function(*args, **kwargs))


async def on_cpu(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run work that keeps a processor busy (encoding, compression, digests), one thread per processor."""
    return await _in_pool(_cpu, lambda: function(*args, **kwargs))


def call_later(function: Callable[[], None]) -> "Future[None] | None":
    """Run a user's function after those handed over before, one at a time, in a thread of their own; do not wait.

    `function` must not raise. However slow it is, nothing of the library's waits for it; None where too many wait
    already, and it will not be called.
    """
    return _callbacks.add(function)


async def call_alone(function: Callable[[], T]) -> T:
    """Return the result of a user's function, called in a new thread: it may take long, and call this library itself.

    An exception that means something to an event loop (to end it, a task, or an iteration) is refused with
    `IllegalArgumentError`: whoever waits would wait for good.
    """
    done: Future[T] = Future()

    def work() -> None:
        if not done.set_running_or_notify_cancel():  # from now on it cannot be cancelled
            return
        try:
            done.set_result(function())
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError):
                done.set_exception(error)
                return
            refused = IllegalArgumentError(
                f"a function of yours raised {type(error).__name__}: raise another exception"
            )
            refused.__cause__ = error
            done.set_exception(refused)

    threading.Thread(target=work, name="checkpointer-user", daemon=True).start()
    return await asyncio.wrap_future(done)


async def _in_pool(pool: _Pool, call: Callable[[], T]) -> T:
    try:
        work = pool.get().submit(call)
    except RuntimeError:
        # The interpreter is shutting down and takes no new threads; a last save from an exit handler still
        # works.
        return call()
    return await asyncio.wrap_future(work)


__all__ = [
    "FILE_THREADS",
    "at_exit",
    "bridge",
    "call_alone",
    "call_later",
    "finish_at_exit",
    "in_thread",
    "loop",
    "on_cpu",
    "on_loop",
    "run_sync",
    "submit",
    "was_told",
]
