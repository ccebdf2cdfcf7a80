"""Calls of users' functions."""

import logging
import sys
import threading

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.runtime import run_sync, user_functions


async def where() -> int:
    return threading.get_ident()


def test_users_functions_run_one_after_the_other_in_a_thread_of_their_own() -> None:
    seen: list[tuple[int, int]] = []
    for number in range(50):
        last = runtime.call_later(lambda n=number: seen.append((n, threading.get_ident())))  # type: ignore[misc]
    last.result(30)
    assert [number for number, _ in seen] == list(range(50))
    (thread,) = {thread for _, thread in seen}
    assert thread not in (threading.get_ident(), run_sync(where()))


def test_a_call_is_dropped_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = user_functions.CallQueue()

    def refuse(thread: threading.Thread) -> None:  # as Python 3.12 does in exit handlers
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert [calls.add(lambda: None) for _ in range(2)] == [None, None]
    done = calls.add(lambda: None)
    assert done is not None
    done.result(30)


def test_a_log_handler_that_ends_the_program_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaving(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            sys.exit(3)

    monkeypatch.setattr(user_functions.logger, "handlers", [Leaving()])
    user_functions.log_safely(logging.WARNING, "%s", "something")


def test_a_function_is_called_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """A last save from an exit handler asks for its keys."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    run_sync(where())  # starts the loop
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        assert run_sync(user_functions.call_alone(lambda: 1)) == 1
