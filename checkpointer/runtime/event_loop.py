"""Run the event loop for everything that talks to a store.

Other threads and loops start their work on it from here.

The loop is fsspec's own, in a background thread, because s3fs and adlfs keep their connections there. Synchronous
callers block on it (`run_sync`), asynchronous callers of any loop await it (`bridge`), and neither ever starts a loop
of its own.
"""

import asyncio
import contextlib
import os
import queue
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import fsspec.asyn

from pyspark_checkpointer.manifests.errors import IllegalArgumentError, InvalidStateError

T = TypeVar("T")


def loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process; start it if it is not running yet.

    Raises:
        InvalidStateError: The interpreter is ending, and its threads have stopped: the caller would wait for ever.
    """
    if sys.is_finalizing():
        raise InvalidStateError(
            "the interpreter is ending, and no store can be asked any more: make this call before the program ends"
        )
    running = _begun()
    if running.is_running():
        return running
    creating = fsspec.asyn.get_lock()
    # Not by waiting for the lock: this may be a signal handler that has interrupted whoever starts the loop.
    if creating.acquire(blocking=False):
        try:
            # fsspec keeps a loop whose thread could not be started, and everybody would wait for it for ever.
            if fsspec.asyn.loop[0] is running and fsspec.asyn.iothread[0] is None and not _is_starting():
                running.close()
                fsspec.asyn.loop[0] = None
        finally:
            creating.release()
    return _begun()


def _begun() -> asyncio.AbstractEventLoop:
    """Return fsspec's loop; let fsspec begin it if there is none."""
    found: asyncio.AbstractEventLoop | None = fsspec.asyn.loop[0]
    if found is not None:
        return found
    answers: queue.SimpleQueue[asyncio.AbstractEventLoop | BaseException] = queue.SimpleQueue()

    def begin() -> None:
        try:
            answers.put(fsspec.asyn.get_loop())
        except BaseException as error:
            answers.put(error)

    if threading.current_thread() is threading.main_thread():
        # fsspec holds a lock meanwhile. A signal handler, which always runs in the main thread, would wait for it for
        # ever if it had interrupted its holder.
        threading.Thread(target=begin, name="checkpointer-begin", daemon=True).start()
    else:
        begin()
    answer = answers.get()
    if isinstance(answer, BaseException):
        raise answer
    return answer


def _is_starting() -> bool:
    """Return whether the loop has a thread after all.

    An interrupt may have kept fsspec from noting it.
    """
    return any(thread.name == "fsspecIO" for thread in threading.enumerate())


def on_loop() -> bool:
    """Return whether the caller is on the loop's own thread.

    Blocking there would stop everything.
    """
    # fsspec's note of the thread is of no use here: it is made after the thread has begun to run work of others.
    try:
        return asyncio.get_running_loop() is fsspec.asyn.loop[0]
    except RuntimeError:
        return False


def submit(coro: Coroutine[Any, Any, T]) -> "Future[T]":
    """Start `coro` on the loop and return its future at once.

    Cancelling the future cancels the work.
    """
    return asyncio.run_coroutine_threadsafe(coro, loop())


def run_sync(coro: Coroutine[Any, Any, T]) -> T:
    """Run `coro` on the loop and wait for its result.

    The caller may be in any thread but the loop's own. It may be called while another event loop runs in the calling
    thread; that loop then stands still. An interrupt (Ctrl-C) cancels the work.

    Raises:
        IllegalArgumentError: The caller is on the loop's own thread, and would wait for itself.
    """
    if on_loop():
        # Python would warn of a coroutine that was never awaited.
        coro.close()
        raise IllegalArgumentError(
            "a blocking call was made on the event loop that must do its work: use the asynchronous interface"
        )
    # SimpleQueue may be used again by a signal handler that interrupts it; a lock of ours would block for ever then.
    answers: queue.SimpleQueue[asyncio.Task[T]] = queue.SimpleQueue()
    start, cancel = _prepare(coro, answers.put)
    try:
        start()
        return answers.get().result()
    except asyncio.CancelledError:
        # asyncio's own would cancel the task of another loop that may run in this thread.
        raise CancelledError from None
    except BaseException:  # an interrupt in this thread
        cancel()
        raise


async def bridge(coro: Coroutine[Any, Any, T], *, shield: bool = True) -> T:
    """Run `coro` on the loop and await its result from any running event loop.

    With `shield`, cancelling the waiter leaves the work running to its end; without, it cancels the work too.
    """
    here = asyncio.get_running_loop()
    waiter: asyncio.Future[T] = here.create_future()

    def tell(work: "asyncio.Task[T]") -> None:
        with contextlib.suppress(RuntimeError):  # the waiter's loop was closed before the work ended
            here.call_soon_threadsafe(_pass_on_outcome, waiter, work)

    start, cancel = _prepare(coro, tell)
    try:
        start()
        return await waiter
    except BaseException:  # cancelled, or closed together with the waiter's loop
        if not shield:
            cancel()
        raise


def _prepare(
    coro: Coroutine[Any, Any, T], done: Callable[["asyncio.Task[T]"], None]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """Return a function that starts `coro` on the loop, and one that cancels it.

    It is cancelled whether it was started or not. At the end of `coro`, `done` is called on the loop.

    The calling thread shares no lock with the loop's thread. With a `concurrent.futures.Future` it would share one. But
    a signal handler may interrupt the caller at any step, call the library again, and wait for the loop.
    """
    try:
        running = loop()
    except BaseException:
        coro.close()  # Python would warn of a coroutine that was never awaited
        raise
    tasks: list[asyncio.Task[T]] = []
    is_begun = False

    def begin() -> None:
        nonlocal is_begun
        is_begun = True
        task = running.create_task(coro)
        # The loop calls in the order in which it was asked to, so `stop` always finds the task here, or that it has
        # ended.
        tasks.append(task)
        task.add_done_callback(finish)

    def finish(task: "asyncio.Task[T]") -> None:
        tasks.clear()  # the task's exception refers to the caller's frame, and through it to this list
        if not task.cancelled():
            task.exception()  # marks it as retrieved: asyncio would log it if nobody waits any more
        done(task)

    def stop() -> None:
        if not is_begun:  # the caller was interrupted before it asked for it
            coro.close()
        for task in tasks:
            task.cancel()

    def cancel() -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed
            # Tasks may be cancelled on the thread of their loop only.
            running.call_soon_threadsafe(stop)

    def start() -> None:
        running.call_soon_threadsafe(begin)

    return start, cancel


def _pass_on_outcome(waiter: "asyncio.Future[T]", work: "asyncio.Task[T]") -> None:
    """Pass the outcome of `work` on to `waiter`.

    This does nothing if the waiter was cancelled meanwhile.
    """
    # A result for a future that was cancelled would raise on the waiter's loop.
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


# fsspec registers a hook of its own, which does not replace the lock that guards the creation of the loop.
os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)
