"""Calls of users' functions."""

import threading

from pyspark_checkpointer import runtime
from pyspark_checkpointer.runtime import run_sync


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
