"""Many writers of one object, in threads and in processes, on every store with conditional writes."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import ObjectNotFoundError, Store
from tests.storage import workers
from tests.storage.conftest import CONDITIONAL, Place
from tests.storage.workers import PROCESSES, WRITERS, together

SEVERAL = ["local", "s3", "azure", "gcs", "databricks"]


@pytest.mark.kinds(*CONDITIONAL)
def test_no_swap_of_many_threads_is_lost(place: Place) -> None:
    times = 10
    stores = [place.open() for _ in range(4)]
    run_sync(stores[0].put(workers.COUNTER, b"0 0"))
    arguments = [(stores[number % 4], times) for number in range(WRITERS)]
    refused = sum(together(workers.threads(), workers.increment, arguments))
    assert workers.count(stores[0]) == WRITERS * times
    assert refused > 0, "the writers never met: this proves nothing"


@pytest.mark.kinds(*SEVERAL)
def test_no_swap_of_many_processes_is_lost(place: Place) -> None:
    times = 40 if place.kind == "local" else 5  # so long that they meet
    store = place.open()
    run_sync(store.put(workers.COUNTER, b"0 0"))
    arguments = [(place.url, place.storage_options, "required", times) for _ in range(PROCESSES)]
    refused = sum(together(workers.processes(), workers.increment_at, arguments))
    assert workers.count(store) == PROCESSES * times
    assert refused > 0, "the writers never met: this proves nothing"


@pytest.mark.kinds("local", "s3")
def test_without_fencing_swaps_are_lost(place: Place) -> None:
    """Control: without conditions on writes, the same test fails."""
    store = place.open(fencing="none")
    run_sync(store.compare_and_swap(workers.COUNTER, b"0 0", None))
    arguments = [(place.open(fencing="none"), 8) for _ in range(WRITERS)]
    for done in range(1, 21):  # on a fast disk they may miss each other
        together(workers.threads(), workers.increment, arguments)
        if workers.count(store) < WRITERS * 8 * done:
            return
    pytest.fail("no swap was lost: the writers never met, and the test above proves nothing")


@pytest.mark.kinds(*CONDITIONAL)
def test_of_many_threads_one_creates_the_object(place: Place) -> None:
    one_creates_the_object(place.open())


def test_of_many_threads_one_creates_the_object_where_files_cannot_be_linked(
    place_of: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is renamed there, which would replace another one. Each takes so long that all have looked meanwhile."""
    rename = os.rename

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    def slow(*arguments: Any) -> None:
        time.sleep(0.02)
        rename(*arguments)

    monkeypatch.setattr(os, "link", refused)
    monkeypatch.setattr(os, "rename", slow)
    one_creates_the_object(place_of("local").open())


def one_creates_the_object(store: Store) -> None:
    for attempt in range(3):
        path = f"manifests/{attempt}"
        arguments = [(store, path, b"%d" % number * 10_000) for number in range(WRITERS)]
        won = together(workers.threads(), workers.create, arguments)
        assert sum(won) == 1
        assert run_sync(store.get(path)).data == b"%d" % won.index(True) * 10_000


@pytest.mark.kinds(*SEVERAL)
def test_of_many_processes_one_creates_the_object(place: Place) -> None:
    arguments = [
        (place.url, place.storage_options, "manifests/1", b"%d" % number * 10_000) for number in range(PROCESSES)
    ]
    won = together(workers.processes(), workers.create_at, arguments)
    assert sum(won) == 1
    assert run_sync(place.open().get("manifests/1")).data == b"%d" % won.index(True) * 10_000


@pytest.mark.kinds(*CONDITIONAL)
def test_a_reader_never_sees_half_an_object(place: Place) -> None:
    store, seen = place.open(), set()
    run_sync(store.compare_and_swap(workers.COUNTER, b"z" * 100_000, None))
    stop = threading.Event()

    def read() -> None:
        reader = place.open()
        while not stop.is_set():
            for path in (workers.COUNTER, "created"):
                try:
                    data = run_sync(reader.get(path)).data
                except ObjectNotFoundError:
                    continue
                assert len(data) == 100_000
                assert len(set(data)) == 1
                seen.add(data[0])

    def write() -> None:
        for number in range(25):
            version = run_sync(store.get(workers.COUNTER)).version
            run_sync(store.compare_and_swap(workers.COUNTER, b"abcdefgh"[number % 8 :][:1] * 100_000, version))
            run_sync(store.put("created", b"x" * 100_000))
            run_sync(store.delete(["created"]))

    with workers.threads() as pool:
        readers = [pool.submit(read) for _ in range(3)]
        pool.submit(write).result()
        stop.set()
        for reader in readers:
            reader.result()
    assert len(seen) > 3, "the readers never met the writer: this proves nothing"


def test_a_killed_writer_leaves_the_lock_free_and_the_object_whole(place_of: Callable[[str], Place]) -> None:
    place = place_of("local")
    store = place.open(timeout=5.0)
    run_sync(store.compare_and_swap(workers.COUNTER, b"a" * 200_000, None))
    program = f"from tests.storage import workers; workers.swap_for_ever({place.url!r}, {{}})"
    for _ in range(4):
        writer = subprocess.Popen([sys.executable, "-c", program])
        before = run_sync(store.get(workers.COUNTER)).version
        while run_sync(store.get(workers.COUNTER)).version == before:
            assert writer.poll() is None, "the writer ended by itself"
            time.sleep(0.001)
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
        blob = run_sync(store.get(workers.COUNTER))
        assert len(blob.data) == 200_000
        assert len(set(blob.data)) == 1
        run_sync(store.compare_and_swap(workers.COUNTER, b"i" * 200_000, blob.version))
    assert [entry.path for entry in run_sync(store.list(""))] == [workers.COUNTER]
    run_sync(store.discard(run_sync(store.leftovers())))
    assert list(run_sync(store.leftovers())) == []
