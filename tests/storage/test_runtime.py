"""The event loop and the threads beside it: from any caller, through cancellation and fork."""

import asyncio
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.runtime import run_sync
from tests.storage.conftest import Place


async def where() -> int:
    return threading.get_ident()


async def failing() -> None:
    raise KeyError("this")


def test_every_caller_meets_on_one_loop() -> None:
    home = run_sync(where())
    assert home != threading.get_ident()
    with ThreadPoolExecutor(4) as pool:
        assert {pool.submit(run_sync, where()).result() for _ in range(8)} == {home}

    async def from_another_loop() -> tuple[int, int]:
        return await runtime.bridge(where()), run_sync(where())

    for _ in range(2):
        assert asyncio.run(from_another_loop()) == (home, home)
    assert runtime.submit(where()).result() == home
    assert run_sync(runtime.bridge(where())) == home


def test_errors_reach_the_caller() -> None:
    with pytest.raises(KeyError, match="this"):
        run_sync(failing())
    with pytest.raises(KeyError, match="this"):
        asyncio.run(runtime.bridge(failing()))
    with pytest.raises(KeyError, match="this"):
        runtime.submit(failing()).result()


def test_users_functions_run_one_after_the_other_in_a_thread_of_their_own() -> None:
    seen: list[tuple[int, int]] = []
    for number in range(50):
        last = runtime.call_later(lambda n=number: seen.append((n, threading.get_ident())))  # type: ignore[misc]
    last.result(30)
    assert [number for number, _ in seen] == list(range(50))
    (thread,) = {thread for _, thread in seen}
    assert thread not in (threading.get_ident(), run_sync(where()))


def test_a_blocking_call_on_the_loop_is_refused() -> None:
    async def block() -> None:
        run_sync(where())

    with pytest.raises(IllegalArgumentError, match="use the asynchronous interface"):
        run_sync(block())


FIRST_USE = """
import threading
from concurrent.futures import ThreadPoolExecutor
from pyspark_checkpointer.runtime import on_loop, run_sync

start, started, go_on = threading.Thread.start, threading.Event(), threading.Event()

def start_slowly(thread):
    start(thread)
    if thread.name == "fsspecIO":
        started.set()
        go_on.wait(30)

async def look():
    return on_loop()

threading.Thread.start = start_slowly
with ThreadPoolExecutor(2) as pool:
    first = pool.submit(lambda: run_sync(look()))
    started.wait(30)
    second = pool.submit(lambda: run_sync(look())).result(30)
    go_on.set()
    print(first.result(30), second, on_loop())
"""


def test_threads_that_use_it_first_at_the_same_time_find_it_whole() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_USE], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "True", "False"], done.stderr


class Work:
    """Something slow that notes how it ended."""

    def __init__(self) -> None:
        self.started, self.ended = threading.Event(), threading.Event()
        self.outcome = ""

    async def run(self) -> None:
        try:
            self.started.set()
            await asyncio.sleep(0.2)
            self.outcome = "finished"
        except asyncio.CancelledError:
            self.outcome = "cancelled"
            raise
        finally:
            self.ended.set()


@pytest.mark.parametrize(("shield", "outcome"), [(True, "finished"), (False, "cancelled")])
def test_a_shielded_work_outlives_its_waiter(shield: bool, outcome: str) -> None:
    work = Work()

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await runtime.bridge(work.run(), shield=shield)

    asyncio.run(give_up())  # this loop is closed before the work ends
    assert work.ended.wait(5)
    assert work.outcome == outcome


def test_an_interrupt_cancels_the_work() -> None:
    program = """if True:
        import asyncio, os, signal, threading
        from pyspark_checkpointer import runtime
        seen = []
        async def work():
            try:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                seen.append("cancelled")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
        try:
            runtime.run_sync(work())
        except KeyboardInterrupt:
            runtime.run_sync(asyncio.sleep(0.1))
            print("interrupted", *seen)
    """
    assert _python(program).split() == ["interrupted", "cancelled"]


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


def _python(program: str, **environment: str) -> str:
    """The output of a program; whatever it says to its standard error, or a hang, fails the test."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", program],
        capture_output=True,
        timeout=60,
        text=True,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_last_save_from_an_exit_handler(place_of: Callable[[str], Place]) -> None:
    place = place_of("local")
    program = f"""if True:
        import atexit
        from pyspark_checkpointer.runtime import run_sync
        from pyspark_checkpointer.storage import open_store
        store = open_store({place.url!r})
        atexit.register(lambda: run_sync(store.put("last", b"1")))
        run_sync(store.put("first", b"1"))
    """
    assert _python(program) == ""
    assert [entry.path for entry in run_sync(place.open().list(""))] == ["first", "last"]


FORK = """if True:
    import os, sys, threading, asyncio
    from pyspark_checkpointer import runtime
    from pyspark_checkpointer.storage import open_store
    store = open_store({url!r}, {options!r})
    async def all_threads():
        await asyncio.gather(*(runtime.in_thread(int) for _ in range(50)), *(runtime.on_cpu(int) for _ in range(50)))
        await asyncio.gather(*(store.put("a/%d-%d" % (os.getpid(), n), b"x") for n in range(20)))
    runtime.run_sync(all_threads())
    sys.stdout.flush()
    for end in (os._exit, sys.exit, os._exit, sys.exit):
        child = os.fork()
        if child == 0:
            if end is not sys.exit or {used}:
                runtime.run_sync(all_threads())
            end(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        runtime.run_sync(store.get("a/%d-0" % os.getpid()))
    print(len(runtime.run_sync(store.list("a/"))))
"""


@pytest.mark.parametrize("used", [True, False], ids=["used in the child", "unused in the child"])
@pytest.mark.parametrize("kind", ["local", "s3", "azure"])
def test_a_forked_child_works_and_ends(place_of: Callable[[str], Place], kind: str, used: bool) -> None:
    place = place_of(kind)
    output = _python(FORK.format(url=place.url, options=place.storage_options, used=used))
    assert output.split() == [str(20 * (5 if used else 3))]


def test_only_the_runtime_registers_what_is_called_at_the_end() -> None:
    """Its `at_exit` knows what to do where the interpreter is at its end by then."""
    package = Path(runtime.__file__).parents[1]
    own = re.compile(r"import atexit|atexit\.register|_register_atexit")
    found = [path.relative_to(package) for path in package.rglob("*.py") if own.search(path.read_text("utf-8"))]
    assert [str(path) for path in found] == ["runtime/process_exit.py"]


def test_the_package_can_be_imported_while_the_interpreter_ends() -> None:
    program = """if True:
        import atexit, concurrent.futures.thread  # which itself refuses to be imported at the end
        def last():
            import pyspark_checkpointer.consumers.journal
            from pyspark_checkpointer.runtime import process_exit
            assert process_exit._unfinished.exiting, "nobody would wait for what is handed over now"
            print("imported")
        atexit.register(last)
    """
    assert _python(program) == "imported\n"


def test_what_is_called_at_the_end_is_called_in_its_order() -> None:
    program = """if True:
        import atexit
        from pyspark_checkpointer import runtime
        atexit.register(lambda: print("a handler"))
        assert runtime.at_exit(lambda: print("at the end"))
        assert runtime.at_exit(lambda: print("while threads work", runtime.run_sync(runtime.on_cpu(int))),
            while_threads_work=True)
    """
    assert _python(program).splitlines() == ["while threads work 0", "at the end", "a handler"]


def test_a_python_without_its_lock_is_refused() -> None:
    program = "import sys; sys._is_gil_enabled = lambda: {}; import pyspark_checkpointer; print('imported')"
    refused = subprocess.run([sys.executable, "-c", program.format(False)], capture_output=True, text=True, timeout=60)
    assert refused.returncode == 1
    assert "ImportError: pyspark_checkpointer needs the global interpreter lock" in refused.stderr
    assert "PYTHON_GIL=1" in refused.stderr
    assert _python(program.format(True)) == "imported\n"
