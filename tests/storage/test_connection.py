"""The connection that all requests of a process share."""

import asyncio

import pytest

from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.connection import Connection


class Made:
    """Counts how often it was opened and closed."""

    def __init__(self, *, fails_first: bool = False) -> None:
        self.opened, self.closed, self._fails_first = 0, 0, fails_first
        self.opening = asyncio.Event()

    async def connect(self) -> "Made":
        self.opened += 1
        self.opening.set()
        for _ in range(5):
            await asyncio.sleep(0)
        if self.opened == 1 and self._fails_first:
            raise OSError("not the first time")
        return self

    async def close(self) -> None:
        self.closed += 1


async def _close(made: Made) -> None:
    await made.close()


def test_callers_at_the_same_time_share_one_attempt() -> None:
    made = Made()

    async def work() -> None:
        connection = Connection(made.connect, _close)
        assert not connection.is_open
        assert await asyncio.gather(*(connection.get() for _ in range(9))) == [made] * 9
        assert connection.is_open
        await connection.close()

    run_sync(work())
    assert (made.opened, made.closed) == (1, 1)


def test_an_attempt_that_failed_is_made_again() -> None:
    made = Made(fails_first=True)

    async def work() -> None:
        connection = Connection(made.connect, _close)
        with pytest.raises(OSError, match="not the first time"):
            await connection.get()
        assert await connection.get() is made
        await connection.close()

    run_sync(work())
    assert made.opened == 2


def test_a_caller_that_is_cancelled_when_it_opens_leaves_it_to_the_others() -> None:
    made = Made()

    async def work() -> None:
        connection = Connection(made.connect, _close)
        first = asyncio.ensure_future(connection.get())
        await made.opening.wait()
        opening = connection._task
        assert opening is not None
        opening.add_done_callback(lambda _: first.cancel())  # when the caller has not gone on yet
        with pytest.raises(asyncio.CancelledError):
            await first
        assert await connection.get() is made
        await connection.close()

    run_sync(work())
    assert (made.opened, made.closed) == (1, 1)


def test_a_failure_that_came_after_its_caller_gave_up_is_no_answer_to_the_next_one() -> None:
    made = Made(fails_first=True)

    async def work() -> None:
        connection = Connection(made.connect, _close)
        first = asyncio.ensure_future(connection.get())
        await made.opening.wait()
        first.cancel()
        opening = connection._task
        assert opening is not None
        await asyncio.wait([first, opening])
        assert await connection.get() is made
        await connection.close()

    run_sync(work())
    assert made.opened == 2


class Numbered:
    """Opens one number after the other, and notes which were closed."""

    def __init__(self) -> None:
        self.opened, self.closed = 0, list[int]()

    async def connect(self) -> int:
        self.opened += 1
        return self.opened

    async def close(self, number: int) -> None:
        self.closed.append(number)


def test_a_connection_that_is_replaced_is_closed_later() -> None:
    """Requests of others may be under way on it."""
    made = Numbered()

    async def work() -> None:
        connection = Connection(made.connect, made.close)
        first = await connection.get()
        connection.replace(first, after=0.05)
        connection.replace(first, after=0.05)  # by somebody else, who saw the same
        assert await connection.get() == 2
        connection.replace(first, after=0.05)
        assert (await connection.get(), made.closed) == (2, [])
        await asyncio.sleep(0.1)
        assert made.closed == [1]
        connection.replace(2, after=0.05)
        assert connection.is_open
        await connection.close()
        assert made.closed == [1, 2]
        await asyncio.sleep(0.1)
        assert made.closed == [1, 2]

    run_sync(work())
