"""Functions that tests run in other processes, and in many threads at the same time."""

import multiprocessing
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

from pyspark_checkpointer.errors import RetryableError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import ObjectExistsError, PreconditionFailedError, Store, open_store

COUNTER = "_latest"
WRITERS = 16
"""Threads that write one object."""

PROCESSES = 8
"""Processes that do. They meet as well as more would."""


def processes() -> ProcessPoolExecutor:
    """Return an executor with a process for each writer, forked from a server that has imported slow packages."""
    pool = ProcessPoolExecutor(PROCESSES, mp_context=multiprocessing.get_context("forkserver"))
    list(pool.map(time.sleep, [0.2] * PROCESSES))  # all of them run, so that one does not end before the next begins
    return pool


def threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(WRITERS)


def increment(store: Store, times: int) -> int:
    """Add one to a counter, `times` times, by compare-and-swap. Return how often another writer was faster."""
    refused = 0
    for _ in range(times):
        pause = 0.1
        while True:
            blob = run_sync(store.get(COUNTER))
            number, _, _ = blob.data.partition(b" ")
            # Each value is unique: a version may be no more than a hash of the content.
            value = b"%d %d" % (int(number) + 1, random.getrandbits(64))
            try:
                run_sync(store.compare_and_swap(COUNTER, value, blob.version))
                break
            except (PreconditionFailedError, RetryableError):
                refused += 1
                time.sleep(random.uniform(0, pause))
                pause = min(pause * 2, 1.0)
    return refused


def increment_at(url: str, options: dict[str, Any], fencing: Any, times: int) -> int:
    return increment(open_store(url, options, fencing=fencing), times)


def count(store: Store) -> int:
    return int(run_sync(store.get(COUNTER)).data.split()[0])


def create(store: Store, path: str, data: bytes) -> bool:
    try:
        run_sync(store.put(path, data))
    except ObjectExistsError:
        return False
    return True


def create_at(url: str, options: dict[str, Any], path: str, data: bytes) -> bool:
    return create(open_store(url, options), path, data)


def swap_for_ever(url: str, options: dict[str, Any]) -> None:
    """Swap whole values until somebody kills the process."""
    store = open_store(url, options)
    while True:
        blob = run_sync(store.get(COUNTER))
        letter = random.choice(b"abcdefgh")
        run_sync(store.compare_and_swap(COUNTER, bytes([letter]) * 200_000, blob.version))


def together(pool: Any, function: Callable[..., Any], arguments: list[tuple[Any, ...]]) -> list[Any]:
    with pool:
        return [future.result() for future in [pool.submit(function, *one) for one in arguments]]
