"""Values are written once, the latest of each key, whatever fails and whoever puts them."""

import asyncio
import gc
import logging
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from pyspark_checkpointer.consumers import write_behind as module
from pyspark_checkpointer.consumers.write_behind import (
    MAX_TRIES_WHEN_DROPPED,
    PERMANENT_ERRORS,
    WriteBehind,
    write_each,
)
from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    FencedError,
    IllegalArgumentError,
    InvalidStateError,
    LeaseLostError,
    MalformedError,
)
from pyspark_checkpointer.runtime import on_loop, run_sync
from tests.consumers.world import eventually

NEVER = 3600.0
SOON = 0.01


class Target:
    """Notes what is written; fails as often as it is told to; waits at the gate while that is closed.

    Of the keys in `bad` it writes nothing, and says why.
    """

    def __init__(self, failures: int = 0) -> None:
        self.failures = failures
        self.bad: dict[str, Exception] = {}
        self.tries = 0
        self.batches: list[dict[str, int]] = []
        self.now = self.most = 0
        self.open = True

    async def write(self, batch: Mapping[str, int]) -> Mapping[str, Exception]:
        assert on_loop()
        self.tries += 1
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            batch = dict(batch)
            await asyncio.sleep(0)
            while not self.open:  # noqa: ASYNC110 - opened by another thread
                await asyncio.sleep(0.001)
            if self.failures:
                self.failures -= 1
                raise DependencyError("failed by the test")
            self.batches.append({key: value for key, value in batch.items() if key not in self.bad})
            return {key: error for key, error in self.bad.items() if key in batch}
        finally:
            self.now -= 1

    def write_behind(self, max_updates: int = 1000, interval: float = NEVER) -> WriteBehind[str, int]:
        return WriteBehind(self.write, max_updates=max_updates, interval=interval, name="positions")


@pytest.fixture
def target() -> Target:
    return Target()


def put(write_behind: WriteBehind[str, int], **values: int) -> None:
    for key, value in values.items():
        write_behind.put(key, value)


def test_the_latest_value_of_each_key_is_written(target: Target) -> None:
    write_behind = target.write_behind()
    put(write_behind, a=1, b=1)
    put(write_behind, a=2)
    assert write_behind.pending == {"a": 2, "b": 1}
    assert target.batches == []
    run_sync(write_behind.flush())
    assert target.batches == [{"a": 2, "b": 1}]
    assert write_behind.pending == {}
    run_sync(write_behind.flush())
    assert target.tries == 1


def test_enough_values_are_written_without_waiting(target: Target) -> None:
    write_behind = target.write_behind(max_updates=3)
    put(write_behind, a=1)
    put(write_behind, a=2)
    assert target.tries == 0
    put(write_behind, a=3)  # three values for one key are three
    eventually(lambda: target.batches == [{"a": 3}])
    put(write_behind, a=4, b=5)
    run_sync(asyncio.sleep(0.01))
    assert target.tries == 1
    put(write_behind, c=6)
    eventually(lambda: target.batches[1:] == [{"a": 4, "b": 5, "c": 6}])


def test_each_value_is_written_where_one_is_enough(target: Target) -> None:
    write_behind = target.write_behind(max_updates=1)
    for number in range(3):
        put(write_behind, a=number)
        eventually(lambda number=number: target.batches[number:] == [{"a": number}])


def test_time_writes_what_did_not_become_enough(target: Target) -> None:
    write_behind = target.write_behind(interval=SOON)
    for number in range(3):
        put(write_behind, a=number)
        eventually(lambda number=number: target.batches[number:] == [{"a": number}])


def test_values_that_come_during_a_write_are_written_after_it(target: Target) -> None:
    write_behind = target.write_behind(max_updates=2)
    target.open = False
    put(write_behind, a=1, b=1)
    eventually(lambda: target.now)
    put(write_behind, a=2)
    assert write_behind.pending == {"a": 2, "b": 1}
    put(write_behind, c=2)
    target.open = True
    eventually(lambda: target.batches == [{"a": 1, "b": 1}, {"a": 2, "c": 2}])
    assert target.most == 1


def test_flush_waits_for_the_write_under_way(target: Target) -> None:
    write_behind = target.write_behind(max_updates=1)
    target.open = False
    put(write_behind, a=1)
    eventually(lambda: target.now)
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(run_sync, write_behind.flush()) for _ in range(3)]
        assert not any(flush.done() for flush in waiting)
        target.open = True
        for flush in waiting:
            flush.result(30)
    assert target.batches == [{"a": 1}]


def test_threads_and_loops_may_put_and_flush_at_once(target: Target) -> None:
    write_behind = target.write_behind(max_updates=7, interval=SOON)

    def work(number: int) -> None:
        for value in range(200):
            write_behind.put(f"k{number}", value)
            if value % 50 == 0:
                asyncio.run(write_behind.flush())
                assert write_behind.pending.get(f"k{number}") is None

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(work, range(8))]
    asyncio.run(write_behind.close())
    last: dict[str, int] = {}
    for batch in target.batches:
        assert all(last.get(key, -1) < value for key, value in batch.items()), "an older value came later"
        last.update(batch)
    assert last == {f"k{number}": 199 for number in range(8)}
    assert target.most == 1


def at_each_step(work: Callable[[], Any], disturb: Callable[[], None], at: int) -> tuple[Any, bool]:
    """Return what `work` returns when `disturb` runs before its step `at`, and whether it has so many steps."""
    steps, disturbed = iter(range(1, at + 1)), False

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal disturbed
        frame.f_trace_opcodes = True
        if event == "opcode" and not disturbed and next(steps, None) == at:
            disturbed = True
            sys.settrace(None)
            disturb()
        return trace

    sys.settrace(trace)
    try:
        return work(), disturbed
    finally:
        sys.settrace(None)


def test_a_value_is_pending_at_each_moment_while_its_write_fails() -> None:
    """Whoever looks sees it, or the end of the interpreter would not write it."""
    at, disturbed = 0, True
    while disturbed:
        at += 1
        one = Target(failures=1)
        one.open = False
        write_behind = one.write_behind()
        put(write_behind, a=1)
        with ThreadPoolExecutor(1) as pool:
            flush = pool.submit(run_sync, write_behind.flush())
            eventually(lambda one=one: one.now)

            def fail(one: Target = one, flush: Any = flush) -> None:
                one.open = True
                flush.exception(30)

            pending, disturbed = at_each_step(lambda write_behind=write_behind: write_behind.pending, fail, at)
            one.open = True
        assert pending == {"a": 1}, f"missed at step {at}"
        run_sync(write_behind.close())
    assert at > 10


def test_a_put_that_is_refused_while_it_closes_writes_nothing() -> None:
    """Whoever closes it meanwhile: either the value is taken and written, or `put` raises and it is not."""
    at, disturbed = 0, True
    while disturbed:
        at += 1
        entered, resume, one = threading.Event(), threading.Event(), Target()

        def accept(key: str, value: int, entered: Any = entered, resume: Any = resume) -> bool:
            entered.set()
            return bool(resume.wait(30))

        closed_by = WriteBehind(one.write, max_updates=1000, interval=NEVER, name="positions", accept=accept)
        with ThreadPoolExecutor(1) as pool:

            def close(closed_by: Any = closed_by, entered: Any = entered, pool: Any = pool) -> None:
                closing = pool.submit(run_sync, closed_by.close())
                eventually(lambda: closing.done() or entered.is_set())

            def work(closed_by: Any = closed_by) -> bool:
                try:
                    closed_by.put("a", 1)
                except InvalidStateError:
                    return False
                return True

            taken, disturbed = at_each_step(work, close, at)
            resume.set()
        run_sync(closed_by.close())
        assert one.batches == ([{"a": 1}] if taken else []), f"at step {at}"
    assert at > 10


def test_a_failed_flush_says_so_and_keeps_the_values(target: Target) -> None:
    write_behind = target.write_behind()
    target.failures = 1
    put(write_behind, a=1, b=1)
    with pytest.raises(DependencyError, match="by the test"):
        run_sync(write_behind.flush())
    put(write_behind, a=2)
    run_sync(write_behind.flush())
    assert target.batches == [{"a": 2, "b": 1}]


def test_a_newer_value_that_came_while_a_write_failed_is_not_undone(target: Target) -> None:
    write_behind = target.write_behind()
    target.failures, target.open = 1, False
    put(write_behind, a=1, b=1)
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(run_sync, write_behind.flush())
        eventually(lambda: target.now)
        put(write_behind, a=2)
        target.open = True
        assert isinstance(flush.exception(30), DependencyError)
    assert write_behind.pending == {"a": 2, "b": 1}


def test_what_could_not_be_written_is_kept_and_the_rest_is_not(target: Target) -> None:
    write_behind = target.write_behind()
    target.bad["b"] = MalformedError("b is damaged")
    put(write_behind, a=1, b=1)
    for _ in range(2):
        with pytest.raises(MalformedError, match="b is damaged"):
            run_sync(write_behind.flush())
    assert write_behind.pending == {"b": 1}
    target.bad.clear()
    run_sync(write_behind.flush())
    assert target.batches == [{"a": 1}, {}, {"b": 1}]


def test_who_flushes_some_keys_hears_of_no_others(target: Target) -> None:
    write_behind = target.write_behind()
    target.bad["b"] = MalformedError("b is damaged")
    put(write_behind, a=1, b=1, c=1)
    run_sync(write_behind.flush({"a"}.__contains__))
    assert target.batches == [{"a": 1}]
    with pytest.raises(MalformedError):
        run_sync(write_behind.flush({"b"}.__contains__))
    assert write_behind.pending == {"b": 1, "c": 1}
    run_sync(write_behind.flush({"c", "d"}.__contains__))
    assert write_behind.pending == {"b": 1}


def test_a_flush_of_some_keys_leaves_the_others_their_time_and_number(target: Target) -> None:
    soon, many = target.write_behind(interval=SOON), target.write_behind(max_updates=3)
    put(soon, a=1, b=1)
    run_sync(soon.flush({"a"}.__contains__))
    eventually(lambda: not soon.pending)
    put(many, a=2, b=2)
    run_sync(many.flush({"a"}.__contains__))
    put(many, c=2)
    eventually(lambda: not many.pending)


def test_some_keys_are_never_written_twice_at_once(target: Target) -> None:
    write_behind = target.write_behind(max_updates=2)
    target.open = False
    put(write_behind, a=1, b=1)
    eventually(lambda: target.now)
    put(write_behind, a=2)
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(run_sync, write_behind.flush({"a"}.__contains__))
        run_sync(asyncio.sleep(0.01))
        assert not flush.done()
        target.open = True
        flush.result(30)
    assert (target.batches, target.most) == ([{"a": 1, "b": 1}, {"a": 2}], 1)


@pytest.mark.parametrize("final", [LeaseLostError, IllegalArgumentError])
def test_what_no_try_can_mend_is_given_up_and_told_once(target: Target, final: type[Exception]) -> None:
    write_behind = target.write_behind()
    target.bad.update(a=final("a is lost"), b=final("b is lost"), c=DependencyError("c waits"))
    put(write_behind, a=1, b=1, c=1, d=1)
    with pytest.raises(DependencyError, match="c waits"):  # first what is to be tried again
        run_sync(write_behind.flush())
    assert write_behind.pending == {"c": 1}
    target.bad.clear()
    run_sync(write_behind.flush_for_read({"a"}.__contains__))
    with pytest.raises(final, match="b is lost"):
        run_sync(write_behind.flush({"b", "c"}.__contains__))
    with pytest.raises(final, match="a is lost"):
        run_sync(write_behind.close())
    run_sync(write_behind.close())
    assert target.batches == [{"d": 1}, {"c": 1}]


def test_what_is_given_up_in_the_background_is_logged_and_told(
    target: Target, caplog: pytest.LogCaptureFixture
) -> None:
    write_behind = target.write_behind(max_updates=3)
    target.bad.update(a=LeaseLostError("a is lost"), b=LeaseLostError("b is lost"))
    with caplog.at_level(logging.INFO, "pyspark_checkpointer"):
        put(write_behind, a=1, b=1, c=1)
        eventually(lambda: caplog.records)
    assert caplog.messages == ["positions: could not be written, given up: a is lost (and 1 more)"]
    for name in "ab":
        with pytest.raises(LeaseLostError, match=f"{name} is lost"):
            run_sync(write_behind.flush())
    run_sync(write_behind.flush())


def test_a_write_that_raises_loses_nothing_whatever_it_raises(target: Target) -> None:
    async def write(batch: Mapping[str, int]) -> Mapping[str, Exception]:
        raise FencedError("not ours")

    assert issubclass(FencedError, PERMANENT_ERRORS)
    write_behind = WriteBehind(write, max_updates=1000, interval=NEVER, name="x")
    put(write_behind, a=1)
    for _ in range(2):
        with pytest.raises(FencedError):
            run_sync(write_behind.close())
    assert write_behind.pending == {"a": 1}


def test_a_key_that_keeps_failing_silences_no_other(target: Target, caplog: pytest.LogCaptureFixture) -> None:
    write_behind = target.write_behind(max_updates=2)
    with caplog.at_level(logging.INFO, "pyspark_checkpointer"):
        for name in ("a", "b"):
            target.bad[name] = MalformedError(f"{name} is damaged")
            for _ in range(2):
                tries = target.tries
                put(write_behind, a=1, b=1)
                eventually(lambda tries=tries: target.tries > tries and not target.now)
        eventually(lambda: len(caplog.records) > 1)
    assert [message.rpartition(": ")[2] for message in caplog.messages] == ["a is damaged", "b is damaged"]


def test_each_is_written_to_its_end_before_any_failure_is_told() -> None:
    ended: list[str] = []

    async def write(key: str, value: int) -> None:
        for _ in range(value):
            await asyncio.sleep(0)
        if value == 0:
            raise DependencyError(key)
        ended.append(key)

    failures = run_sync(write_each(write)({"a": 0, "b": 9, "c": 0, "d": 5}))
    assert {key: str(error) for key, error in failures.items()} == {"a": "a", "c": "c"}
    assert ended == ["d", "b"]


@pytest.mark.parametrize("again", ["time", "values"])
def test_a_failed_write_in_the_background_is_tried_again(
    target: Target, again: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_behind = target.write_behind(max_updates=2, interval=SOON if again == "time" else NEVER)
    for streak in range(2):
        target.failures = 3
        with caplog.at_level(logging.INFO, "pyspark_checkpointer"):
            for number in range(4):
                tries = target.tries
                put(write_behind, a=number, b=number)
                eventually(lambda tries=tries: target.tries > tries)
                eventually(lambda: not target.now)
            eventually(lambda: not write_behind.pending)
        assert [record.levelname for record in caplog.records] == ["WARNING"] * (streak + 1)
        assert "positions: could not be written" in caplog.text


def test_failing_writes_are_no_hot_loop(target: Target) -> None:
    write_behind = target.write_behind(max_updates=2)
    target.failures = 1000
    put(write_behind, a=1, b=1)
    eventually(lambda: target.tries == 1 and not target.now)
    run_sync(asyncio.sleep(0.05))
    assert target.tries == 1


def test_close_writes_what_is_held_and_takes_no_more(target: Target) -> None:
    write_behind = target.write_behind(interval=SOON)
    put(write_behind, a=1)
    run_sync(write_behind.close())
    assert target.batches == [{"a": 1}]
    with pytest.raises(InvalidStateError, match="positions: was closed"):
        write_behind.put("a", 2)
    run_sync(write_behind.close())
    assert target.tries == 1


def test_a_failed_close_keeps_the_values_and_lets_the_caller_decide(target: Target) -> None:
    write_behind = target.write_behind(interval=SOON)
    put(write_behind, a=1)
    target.failures = 2
    for _ in range(2):
        with pytest.raises(DependencyError):
            run_sync(write_behind.close())
        run_sync(asyncio.sleep(SOON * 5))
    assert target.tries == 2  # nothing in the background, which could come after what the caller did instead
    assert write_behind.pending == {"a": 1}
    with pytest.raises(InvalidStateError):
        write_behind.put("a", 2)
    run_sync(write_behind.close())
    assert target.batches == [{"a": 1}]


def give_up(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Wait for a moment only."""

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await work()

    asyncio.run(wait())


def test_a_cancelled_flush_loses_nothing(target: Target) -> None:
    write_behind = target.write_behind()
    target.open = False
    put(write_behind, a=1)
    give_up(write_behind.flush)
    target.open = True
    run_sync(write_behind.flush())
    assert target.batches == [{"a": 1}]


def test_an_interrupted_close_leaves_the_rest_to_the_end_of_the_process(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody was told what was not written."""
    write_behind = target.write_behind()
    target.open = False
    put(write_behind, a=1)
    give_up(write_behind.close)
    monkeypatch.setattr(module, "EXIT_FLUSH_SECONDS", 0.05)
    monkeypatch.setattr(module, "_all", {write_behind})
    module._first_at_exit()
    assert "updates could not be written (1)" in caplog.text
    target.open = True
    run_sync(write_behind.close())
    assert target.batches == [{"a": 1}]
    caplog.clear()
    module._last_at_exit()
    assert caplog.text == ""


def test_an_interrupt_at_the_end_of_the_process_keeps_nobody_else_from_finishing(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python calls no further function after one that raised, and another one waits for commits."""
    write_behind = target.write_behind()
    put(write_behind, a=1)

    def interrupted(work: Coroutine[Any, Any, Any]) -> None:
        work.close()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "_all", {write_behind})
        patch.setattr(module.runtime, "run_sync", interrupted)
        module._first_at_exit()
    run_sync(write_behind.close())
    assert target.batches == [{"a": 1}]


def test_what_failed_at_once_at_the_end_of_the_process_is_tried_again(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_behind = target.write_behind()
    target.failures = 1
    put(write_behind, a=1)
    monkeypatch.setattr(module, "_all", {write_behind})
    module._first_at_exit()
    module._last_at_exit()
    assert target.batches[-1] == {"a": 1}
    run_sync(write_behind.close())


def test_the_end_of_the_process_waits_once_and_tells_a_loss_once(
    target: Target, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hanging, late = target.write_behind(), target.write_behind()
    target.open = False
    put(hanging, a=1)
    monkeypatch.setattr(module, "EXIT_FLUSH_SECONDS", 1.0)
    monkeypatch.setattr(module, "_all", {hanging, late})
    module._first_at_exit()
    put(late, b=2)  # by another exit handler
    module._last_at_exit()
    assert caplog.text.count("updates could not be written (1)") == 2
    assert "no answer within 0.8 s" in caplog.text
    assert "no answer within 0.2 s" in caplog.text
    target.open = True
    for one in (hanging, late):
        run_sync(one.close())


def forgotten(make: Callable[[], WriteBehind[str, int]]) -> "weakref.ref[Any]":
    write_behind = make()
    write_behind.put("a", 1)
    return weakref.ref(write_behind)


def is_gone(reference: "weakref.ref[Any]") -> bool:
    gc.collect()
    return reference() is None


def test_a_dropped_one_goes_once_it_has_written(target: Target) -> None:
    reference = forgotten(lambda: target.write_behind(interval=SOON))
    eventually(lambda: is_gone(reference))
    assert target.batches == [{"a": 1}]


def test_a_dropped_one_goes_though_writing_fails(target: Target) -> None:
    target.failures = 1000
    reference = forgotten(lambda: target.write_behind(interval=SOON))
    eventually(lambda: is_gone(reference))
    assert target.tries >= MAX_TRIES_WHEN_DROPPED


def test_a_dropped_one_tries_what_is_new_beside_what_is_hopeless(target: Target) -> None:
    target.bad["b"] = MalformedError("b is damaged")

    def make() -> WriteBehind[str, int]:
        write_behind = target.write_behind(interval=SOON)
        put(write_behind, b=1)
        eventually(lambda: target.tries > MAX_TRIES_WHEN_DROPPED)
        return write_behind

    reference = forgotten(make)
    eventually(lambda: is_gone(reference))
    assert {"a": 1} in target.batches


def test_one_that_is_used_tries_on_for_ever(target: Target) -> None:
    target.failures = MAX_TRIES_WHEN_DROPPED + 3
    write_behind = target.write_behind(interval=SOON)
    put(write_behind, a=1)
    eventually(lambda: target.batches == [{"a": 1}])


def test_it_has_no_thread_of_its_own(target: Target) -> None:
    run_sync(asyncio.sleep(0))  # the library's loop runs
    before = threading.active_count()
    write_behinds = [target.write_behind(interval=SOON) for _ in range(20)]
    for write_behind in write_behinds:
        put(write_behind, a=1)
    assert threading.active_count() == before


def test_a_forked_child_begins_with_nothing_and_does_not_hang() -> None:
    program = """if True:
        import asyncio, os, threading
        from pyspark_checkpointer.consumers.write_behind import WriteBehind
        from pyspark_checkpointer.runtime import run_sync
        written = []
        async def write(batch):
            written.append(dict(batch))
            return {}
        write_behind = WriteBehind(write, max_updates=1000, interval=3600, name="x")
        write_behind.put("parent", 1)
        run_sync(asyncio.sleep(0))
        child = os.fork()
        if child == 0:
            write_behind.put("child", 2)
            run_sync(write_behind.close())
            print(written, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        run_sync(write_behind.close())
        print(written)
    """
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["[{'child': 2}]", "[{'parent': 1}]"]


@pytest.mark.parametrize(
    ("max_updates", "interval"),
    [
        *[(0, 1), (-1, 1), (True, 1), (1.0, 1), ("1", 1)],
        *[(1, 0), (1, -1), (1, True), (1, "1"), (1, float("nan")), (1, float("inf"))],
    ],
)
def test_arguments_are_checked(target: Target, max_updates: Any, interval: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="expected"):
        target.write_behind(max_updates, interval)
    assert issubclass(IllegalArgumentError, CheckpointError)


def test_what_is_put_while_other_values_are_dropped_is_written_in_time(target: Target) -> None:
    write_behind = target.write_behind(1000, SOON)

    async def put_and_drop() -> None:
        write_behind.put("b", 1)
        await write_behind._forget({"a"}.__contains__)

    run_sync(put_and_drop())
    eventually(lambda: target.batches == [{"b": 1}])
