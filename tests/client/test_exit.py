"""A process that ends after a commit in the background finishes it, or says that it could not."""

import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_checkpointer import Checkpointer

PROJECT = str(Path(__file__).parents[2] / "src")

BEGIN = f"""
import asyncio, atexit, multiprocessing, os, signal, sys, threading, time
sys.path.insert(0, {PROJECT!r})
from pyspark_checkpointer import AsyncCheckpointer, Checkpointer
from pyspark_checkpointer.runtime import process_exit
from pyspark_checkpointer.storage.local.store import LocalStore

put = LocalStore._put

def slow(self, *given):
    time.sleep(0.3)
    put(self, *given)

LocalStore._put = slow
ROOT = sys.argv[1]

def save(content=b"kept", root=ROOT):
    client = Checkpointer(root)
    with client.begin(background=True) as cp:
        cp.snapshot("op", 0, content * 100_000)
    return client

async def asave():
    async with AsyncCheckpointer(ROOT).begin(background=True) as cp:
        await cp.snapshot("op", 0, b"kept" * 100_000)
"""

ENDS = {
    "the last line": ("save()", 0),
    "sys.exit": ("save(); sys.exit(3)", 3),
    "an exception": ("save(); raise RuntimeError('of the user')", 1),
    "a thread that ends": ("t = threading.Thread(target=save); t.start(); t.join()", 0),
    "a client that is dropped": ("save(); import gc; gc.collect()", 0),
    "the asynchronous client": ("asyncio.run(asave())", 0),
    "an exit handler": ("atexit.register(save)", 0),
    "SIGTERM as an exception": (
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5)); save(); os.kill(os.getpid(), signal.SIGTERM)",
        5,
    ),
    "a child of multiprocessing": (
        "p = multiprocessing.get_context('fork').Process(target=save); p.start(); p.join(); sys.exit(p.exitcode)",
        0,
    ),
    "a spawned child": (
        "if __name__ == '__main__':\n"
        "    p = multiprocessing.get_context('spawn').Process(target=save); p.start(); p.join(); sys.exit(p.exitcode)",
        0,
    ),
}


def end(tmp_path: Path, *lines: str) -> subprocess.CompletedProcess[str]:
    program = tmp_path / "program.py"
    program.write_text("\n".join([BEGIN, *lines]))
    return subprocess.run(
        [sys.executable, str(program), str(tmp_path / "root")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def kept(tmp_path: Path, name: str = "root") -> bytes | None:
    restored = Checkpointer(tmp_path / name).restore()
    return None if restored is None else restored.operator("op").partition(0)[0][:4]


@pytest.mark.parametrize("how", ENDS)
def test_however_a_process_ends_its_commit_is_finished(how: str, tmp_path: Path) -> None:
    lines, status = ENDS[how]
    done = end(tmp_path, lines)
    assert done.returncode == status, done.stderr
    assert kept(tmp_path) == b"kept"


def test_two_commits_of_two_clients_are_both_finished(tmp_path: Path) -> None:
    done = end(tmp_path, "save(); save(root=ROOT + '2')")
    assert done.returncode == 0
    assert (kept(tmp_path), kept(tmp_path, "root2")) == (b"kept", b"kept")


def test_a_forked_child_does_not_wait_for_the_commit_of_its_parent(tmp_path: Path) -> None:
    done = end(
        tmp_path,
        "save()",
        "child = os.fork()",
        "if not child: sys.exit(0)",
        "os.waitpid(child, 0)",
    )
    assert done.returncode == 0, done.stderr  # a child that waits for it would wait longer than `end` does
    assert kept(tmp_path) == b"kept"


def test_a_commit_that_fails_after_the_last_line_is_said_aloud(tmp_path: Path) -> None:
    done = end(
        tmp_path,
        "def full(self, *given):",
        "    time.sleep(0.5)",
        "    raise OSError(28, 'No space left on device')",
        "LocalStore._put = full",
        "save()",
    )
    assert f"{tmp_path / 'root'}: the commit of 0000000001-" in done.stderr
    assert "failed, and no call reported it before the process ended" in done.stderr
    assert "No space left on device" in done.stderr
    assert kept(tmp_path) is None


def test_a_commit_that_takes_too_long_is_said_aloud(tmp_path: Path) -> None:
    done = end(
        tmp_path,
        "process_exit.FINISH_SECONDS, process_exit.SILENT_SECONDS = 0.5, 0.1",
        "LocalStore._put = lambda self, *given: time.sleep(3)",
        "save()",
    )
    assert "the process waits for this before it ends, for at most 0.5 s: " in done.stderr
    assert "was not finished when the process ended; it is not known whether it took effect" in done.stderr


def test_what_the_caller_was_told_is_not_said_again(tmp_path: Path) -> None:
    done = end(
        tmp_path,
        "def full(self, *given): raise OSError(28, 'No space left on device')",
        "LocalStore._put = full",
        "client = save()",
        "try: client.close()",
        "except Exception as error: print(type(error).__name__)",
    )
    assert done.stdout.strip() == "StoreRefusedError"
    assert "no call reported it" not in done.stderr


def test_a_process_without_such_a_commit_ends_at_once_and_says_nothing(tmp_path: Path) -> None:
    done = end(tmp_path, "save().close()")
    assert (done.returncode, done.stderr) == (0, "")
    assert kept(tmp_path) == b"kept"


AFTER_THE_END = {
    "an object that closes a client": (
        "class Job:",
        "    def __init__(self): self.client = save()",
        "    def __del__(self): self.client.close()",
        "job = Job()",
    ),
    "a first call": (
        "class Job:",
        "    def __del__(self, client=Checkpointer(ROOT + '2')): client.restore()",
        "job = Job()",
        "save()",
    ),
    "the asynchronous client": (
        "class Job:",
        "    def __del__(self, run=asyncio.run, close=AsyncCheckpointer(ROOT).close): run(close())",
        "job = Job()",
        "save()",
    ),
}


@pytest.mark.parametrize("how", AFTER_THE_END)
def test_a_call_after_the_end_is_refused_and_does_not_hang(how: str, tmp_path: Path) -> None:
    """The threads of an interpreter that has ended never run again."""
    done = end(tmp_path, *AFTER_THE_END[how])
    assert done.returncode == 0
    assert "InvalidStateError: the interpreter is ending" in done.stderr
    assert kept(tmp_path) == b"kept"


def test_a_block_that_is_left_after_the_end_is_not_committed_and_does_not_hang(tmp_path: Path) -> None:
    done = end(
        tmp_path,
        "def work(client):",
        "    with client.begin() as cp:",
        "        cp.snapshot('op', 0, b'never')",
        "        yield cp",
        "generator = work(save())",
        "next(generator)",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert kept(tmp_path) == b"kept"
