"""The lock of a local root belongs to its holder alone, whatever processes fork, are killed or stopped."""

import ctypes
import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import DependencyError, OutcomeUnknownError, SwapNotSentError
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.local import files, locks
from pyspark_checkpointer.storage.local.locks import locked
from pyspark_checkpointer.storage.local.store import LocalStore
from tests.world import latest, put

PROJECT = str(Path(__file__).parents[3] / "src")


@pytest.fixture
def lock(tmp_path: Path) -> str:
    return str(tmp_path / files.LOCK)


def is_free(lock: str) -> bool:
    try:
        with locked(lock, 0.3):
            return True
    except DependencyError:
        return False


@contextmanager
def idle_child() -> Iterator[int]:
    """Return a forked child that does nothing for long."""
    child = os.fork()
    if not child:
        time.sleep(60)
        os._exit(0)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@contextmanager
def program(lock: str, *lines: str) -> Iterator[subprocess.Popen[str]]:
    """Start a process that runs `lines` while it has the lock, and wait until it has it. The lines may fork a child."""
    begin = ["import os, sys, time, signal", f"sys.path.insert(0, {PROJECT!r})"]
    begin += ["from pyspark_checkpointer.storage.local.locks import locked", f"with locked({lock!r}, 5):"]
    source = "\n".join([*begin, textwrap.indent("\n".join([*lines, "print(os.getpid(), flush=True)"]), "    ")])
    command = [sys.executable, "-c", source + "\n    time.sleep(60)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_an_error_when_the_lock_is_closed_fails_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pointer is moved by then, and whoever took that for a refusal would delete what it names."""
    client = Checkpointer(str(tmp_path))
    put(client, b"before")
    close, closed = os.close, []

    def close_on_a_full_disk(fd: int) -> None:
        is_lock = os.readlink(f"/proc/self/fd/{fd}").endswith(files.LOCK)
        close(fd)
        if is_lock:
            closed.append(fd)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(locks.os, "close", close_on_a_full_disk)
    put(client, b"after")
    monkeypatch.undo()
    assert closed
    assert latest(Checkpointer(str(tmp_path))) == b"after"


def test_a_child_that_is_forked_under_the_lock_does_not_keep_it(lock: str) -> None:
    with locked(lock, 1.0):
        with idle_child():
            assert not is_free(lock), "the child gave the parent's lock away"
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    assert is_free(lock)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_child_of_a_library_that_forks_by_itself_does_not_keep_it(lock: str) -> None:
    """Python's hooks do not run in such a child, so all depends on the holder that unlocks explicitly."""
    with locked(lock, 1.0):
        child = ctypes.PyDLL(None).fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        assert is_free(lock)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_child_that_is_forked_before_the_lock_is_taken_does_not_keep_it(lock: str) -> None:
    """The fork comes between opening the file and locking it, so the child has the open file that is then locked."""
    fd = locks._open(lock)
    with idle_child():
        assert locks._try_lock(fd, lock)
        assert not is_free(lock)
        locks._close(fd)
        assert is_free(lock)


def test_a_child_that_ends_under_the_lock_does_not_give_it_away(lock: str) -> None:
    with locked(lock, 1.0):
        child = os.fork()
        if not child:
            os._exit(0)
        os.waitpid(child, 0)
        assert not is_free(lock)


def test_a_child_that_leaves_the_block_of_its_parent_does_not_give_the_lock_away(lock: str) -> None:
    child = -1
    with locked(lock, 1.0):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            assert not is_free(lock)
    if not child:
        os._exit(0)
    assert is_free(lock)


@pytest.mark.parametrize("how", ["fork", "fork after fork", "multiprocessing"])
def test_a_parent_that_is_killed_under_the_lock_leaves_it_free_while_its_child_lives(how: str, lock: str) -> None:
    child = {
        "fork": ["if not os.fork(): time.sleep(60)"],
        "fork after fork": ["if not os.fork():", "    os.fork(); time.sleep(60)"],
        "multiprocessing": [
            "import multiprocessing",
            "multiprocessing.get_context('fork').Process(target=time.sleep, args=(60,)).start()",
        ],
    }[how]
    with program(lock, *child) as parent:
        assert not is_free(lock)
        os.kill(parent.pid, signal.SIGKILL)
        parent.wait()
        assert is_free(lock)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_commits_go_on_beside_children_of_any_kind(method: str, tmp_path: Path) -> None:
    """Children are started all the time while a thread commits. They idle, and nobody waits for the lock."""
    client = Checkpointer(tmp_path / "root", timeout=5.0)
    put(client, b"first")
    context, children = multiprocessing.get_context(method), []
    stop = threading.Event()
    failed: list[BaseException] = []

    def commit() -> None:
        while not stop.is_set():
            try:
                put(client, b"x")
            except BaseException as error:
                failed.append(error)
                return

    writer = threading.Thread(target=commit)
    writer.start()
    try:
        for _ in range(30 if method == "fork" else 2):
            child = context.Process(target=time.sleep, args=(60,), daemon=True)
            child.start()
            children.append(child)
            time.sleep(0.01)
        stop.set()
        writer.join(60)
        assert not failed, failed
        started = time.monotonic()
        put(Checkpointer(tmp_path / "root", timeout=5.0), b"another client")
        assert time.monotonic() - started < 4
    finally:
        stop.set()
        for child in children:
            child.kill()
            child.join()


def test_forks_beside_the_lock(lock: str, effort: Callable[[int, int], int]) -> None:
    """At whichever step of locking a thread is when the process forks, the child keeps no lock."""
    stop = threading.Event()

    def use() -> None:
        while not stop.is_set():
            with locked(lock, 5.0):
                pass

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    held = 0
    try:
        for _ in range(effort(30, 2000)):
            child = os.fork()
            if not child:
                links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
                os._exit(lock in links)
            held += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert held == 0


# ---- a process that is stopped ---------------------------------------------------------------------------------------


def test_a_stopped_holder_is_named_with_what_to_do(lock: str, tmp_path: Path) -> None:
    with program(lock) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        store = LocalStore(str(tmp_path), timeout=0.5)
        with pytest.raises(SwapNotSentError) as refused:
            run_sync(store.compare_and_swap("_latest", b"1", None))
        assert type(refused.value).__module__ == "pyspark_checkpointer.errors", "what a traceback shows can be imported"
        said = str(refused.value)
        assert f"process {holder.pid} of " in said
        assert f"is stopped: continue it (kill -CONT {holder.pid}) or end it" in said
        assert "nothing was written" in said
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        run_sync(store.compare_and_swap("_latest", b"1", None))


def test_a_commit_waits_once_for_a_stopped_process_and_is_no_unknown_outcome(tmp_path: Path) -> None:
    """The swap was never sent: the same client goes on without a restore, and nothing lands later."""
    client = Checkpointer(tmp_path / "root", timeout=1.0)
    put(client, b"first")
    before = latest(client)
    with program(str(tmp_path / "root" / files.LOCK)) as holder:
        os.kill(holder.pid, signal.SIGSTOP)
        started = time.monotonic()
        with pytest.raises(DependencyError, match="is stopped: continue it") as refused:
            put(client, b"second")
        assert not isinstance(refused.value, OutcomeUnknownError)
        assert time.monotonic() - started < 2.5, "one wait, not one for each time that a swap is sent"
    time.sleep(1.5)
    assert latest(client) == before
    put(client, b"third")


def test_reading_does_not_wait_for_the_lock(tmp_path: Path) -> None:
    client = Checkpointer(tmp_path / "root", timeout=5.0)
    put(client, b"first")
    with program(str(tmp_path / "root" / files.LOCK)):
        started = time.monotonic()
        assert client.restore() is not None
        assert client.list_checkpoints()
        assert time.monotonic() - started < 3


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"no number", b"99999999 somewhere\n", b"x" * 1000])
def test_whatever_the_lock_file_holds_the_error_is_the_same_kind(content: bytes, lock: str) -> None:
    with program(lock):
        Path(lock).write_bytes(content)
        with pytest.raises(SwapNotSentError, match=r"nothing was written: .*end it"), locked(lock, 0.1):
            pass


def test_a_full_disk_does_not_keep_anybody_from_the_lock(lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with locked(lock, 1.0):
        assert not is_free(lock)
