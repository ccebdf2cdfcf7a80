"""Work that nobody waits for is kept while it runs; of work that failed nothing is kept but what to say of it."""

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.runtime import process_exit, run_sync
from pyspark_checkpointer.runtime.process_exit import UnfinishedWork
from pyspark_checkpointer.storage.local.store import LocalStore


async def _fail() -> None:
    raise OSError(28, "No space left on device")


async def _ended(unfinished: UnfinishedWork, *, tell: bool) -> None:
    task = asyncio.ensure_future(_fail())
    unfinished.add(task, "the commit of 7")
    await asyncio.wait([task])
    if tell:
        unfinished.forget_task(task)


def test_a_dropped_client_whose_commit_failed_is_freed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    unfinished = UnfinishedWork()
    monkeypatch.setattr(process_exit, "_unfinished", unfinished)
    client = Checkpointer(tmp_path / "root")
    monkeypatch.setattr(LocalStore, "_put", full)
    with client.begin(background=True) as cp:
        cp.snapshot("op", 0, b"data")
    task = client.session._background
    assert task is not None
    run_sync(asyncio.wait_for(asyncio.wait([task]), 30))
    kept = [weakref.ref(one) for one in (client.session, cp.attempt, task)]
    del client, cp, task
    gc.collect()
    assert [one() for one in kept] == [None] * 3
    (failure,) = unfinished._failed.values()
    assert "the commit of 0000000001-" in failure[0]


def test_a_failure_that_nobody_was_told_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    unfinished = UnfinishedWork()
    run_sync(_ended(unfinished, tell=False))
    for _ in range(2):
        unfinished.finish()
    assert caplog.messages == [
        "the commit of 7: failed, and no call reported it before the process ended: "
        "OSError: [Errno 28] No space left on device"
    ]


def test_a_failure_that_somebody_was_told_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    unfinished = UnfinishedWork()
    run_sync(_ended(unfinished, tell=True))
    unfinished.finish()
    assert caplog.messages == []


def test_a_failure_told_before_the_loop_noted_it_is_not_said(caplog: pytest.LogCaptureFixture) -> None:
    async def tell_at_once(unfinished: UnfinishedWork) -> None:
        task = asyncio.ensure_future(_fail())
        task.add_done_callback(unfinished.forget_task)
        unfinished.add(task, "the commit of 7")
        await asyncio.gather(task, return_exceptions=True)

    unfinished = UnfinishedWork()
    run_sync(tell_at_once(unfinished))
    unfinished.finish()
    assert caplog.messages == []


def test_work_cancelled_just_now_does_not_break_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """The task is done before the loop calls what was to be called then."""

    async def cancelled() -> "asyncio.Task[None]":
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await asyncio.wait([task])
        return task

    unfinished = UnfinishedWork()
    unfinished._running[run_sync(cancelled())] = "the commit of 7"
    unfinished.finish()
    assert caplog.messages == []
