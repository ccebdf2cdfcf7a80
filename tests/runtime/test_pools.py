"""The threads beside the event loop."""

import asyncio
import os
import threading
import time
from collections.abc import Callable

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.runtime.pools import ThreadPool


def test_threads_for_files_and_for_processors_are_bounded_and_apart() -> None:
    lock, names, most, now = threading.Lock(), set[str](), 0, 0

    def work() -> None:
        nonlocal most, now
        with lock:
            now += 1
            most = max(most, now)
            names.add(threading.current_thread().name.rpartition("_")[0])
        time.sleep(0.01)
        with lock:
            now -= 1

    async def many(run: Callable[..., object]) -> None:
        await asyncio.gather(*(run(work) for _ in range(50)))  # type: ignore[call-overload]

    run_sync(many(runtime.in_thread))
    assert (names, most) == ({"checkpointer-file"}, runtime.FILE_THREADS)
    names.clear()
    most = 0
    run_sync(many(runtime.on_cpu))
    assert (names, most) == ({"checkpointer-cpu"}, os.cpu_count())


def test_arguments_results_and_errors_of_threads() -> None:
    assert run_sync(runtime.in_thread(int, "ff", base=16)) == 255
    with pytest.raises(ValueError, match="invalid literal"):
        run_sync(runtime.on_cpu(int, "x"))


def test_a_call_is_made_once_where_the_system_starts_no_more_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor has queued the call by then, so that a thread that is busy now finds it later."""
    pool, entered, leave, calls = ThreadPool("test", 2), threading.Event(), threading.Event(), list[int]()

    def hold() -> None:
        entered.set()
        assert leave.wait(30)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def run() -> None:
        first = asyncio.ensure_future(pool.run(hold))
        await asyncio.to_thread(entered.wait)
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            assert await pool.run(lambda: calls.append(1) or 7) == 7  # type: ignore[func-returns-value]
            leave.set()
            await first
            with pytest.raises(ZeroDivisionError):
                await pool.run(lambda: 1 // 0)

    run_sync(run())
    pool._started().shutdown(wait=True)
    assert calls == [1]
