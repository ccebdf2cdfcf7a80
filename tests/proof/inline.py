"""Do all work of the library in the thread that asks for it: waking threads takes half of a small history's time."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import fsspec.asyn
import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.runtime import event_loop
from pyspark_checkpointer.runtime.host import SystemHost

T = TypeVar("T")


@contextmanager
def in_one_thread() -> Iterator[None]:
    """Run coroutines to their end in the calling thread, one after the other, on a loop of their own."""
    loop, lock = asyncio.new_event_loop(), threading.RLock()

    def prepare(
        coro: Coroutine[Any, Any, T], done: Callable[["asyncio.Task[T]"], None]
    ) -> tuple[Callable[[], None], Callable[[], None]]:
        def start() -> None:
            with lock:
                task = loop.create_task(coro)
                # The caller raises it, from the task.
                with suppress(Exception):
                    loop.run_until_complete(task)
            done(task)

        return start, lambda: None

    async def compute(host: SystemHost, work: Callable[[], T]) -> T:
        return work()

    async def on_cpu(work: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        return work(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        # A store refuses to be used on any loop but this one.
        patch.setattr(fsspec.asyn, "loop", [loop])
        # It has no thread, and is not one whose thread could not be started.
        patch.setattr(fsspec.asyn, "iothread", [threading.current_thread()])
        patch.setattr(event_loop, "_prepare", prepare)
        patch.setattr(SystemHost, "run", compute)
        patch.setattr(runtime, "on_cpu", on_cpu)
        # Hypothesis ends some runs with an exception of its own.
        try:
            yield
        finally:
            loop.close()
