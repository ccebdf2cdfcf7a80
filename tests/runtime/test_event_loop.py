"""The event loop: from any caller, through cancellation and interrupts."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.runtime import run_sync
from tests.programs import run_python


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


INTERRUPTED_FIRST_USE = """if True:
    import asyncio, signal, threading
    from pyspark_checkpointer.runtime import run_sync

    async def work():
        return 7

    answers, left = [], [1]
    signal.signal(signal.SIGUSR1, lambda *_: answers.append(run_sync(work())))

    def interrupt():
        if left and left.pop():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    new, start = asyncio.new_event_loop, threading.Thread.start

    def new_interrupted():
        if AT == "new":
            interrupt()
        return new()

    def start_interrupted(thread):
        if AT == "start" and thread.name == "fsspecIO":
            interrupt()
        start(thread)

    asyncio.new_event_loop, threading.Thread.start = new_interrupted, start_interrupted
    answers.append(run_sync(work()))
    print(answers)
"""


@pytest.mark.parametrize("at", ["new", "start"])
def test_a_signal_handler_may_interrupt_the_first_use(at: str) -> None:
    assert run_python(INTERRUPTED_FIRST_USE.replace("AT", repr(at))) == "[7, 7]\n"


class Work:
    """Slow work that notes how it ended."""

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
    assert run_python(program).split() == ["interrupted", "cancelled"]


@pytest.mark.parametrize("queued", [False, True])
def test_an_interrupt_while_work_is_handed_over_cancels_it(queued: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    work, loop = Work(), runtime.loop()
    hand_over = loop.call_soon_threadsafe

    def interrupted(*given: object) -> None:
        if threading.current_thread() is not threading.main_thread():  # a pool that has just finished something
            return hand_over(*given)  # type: ignore[arg-type,return-value]
        monkeypatch.setattr(loop, "call_soon_threadsafe", hand_over)
        if queued:
            hand_over(*given)  # type: ignore[arg-type]
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_sync(work.run())
    run_sync(asyncio.sleep(0.3))
    assert work.outcome != "finished"


def test_work_is_cancelled_with_a_waiter_that_is_closed() -> None:
    work = Work()

    async def close() -> None:
        waiting = runtime.bridge(work.run(), shield=False)
        waiting.send(None)
        assert await asyncio.to_thread(work.started.wait, 5)
        waiting.close()

    asyncio.run(close())
    assert work.ended.wait(5)
    assert work.outcome == "cancelled"


def test_a_loop_that_could_not_be_started_is_started_by_the_next_call() -> None:
    program = """if True:
        import threading
        from pyspark_checkpointer.runtime import run_sync
        start, refused = threading.Thread.start, []

        def start_second(thread):
            if thread.name == "fsspecIO" and not refused:
                refused.append(thread)
                raise RuntimeError("can't start new thread")
            start(thread)

        async def work():
            return 7

        threading.Thread.start = start_second
        for _ in range(2):
            try:
                print(run_sync(work()))
            except RuntimeError as error:
                print(error)
    """
    assert run_python(program).splitlines() == ["can't start new thread", "7"]
