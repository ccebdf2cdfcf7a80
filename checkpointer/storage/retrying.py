"""A store that tries again where that can help, and never where it could hurt."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from pyspark_checkpointer.errors import RetryableError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage.base import (
    Blob,
    Leftover,
    Listing,
    ObjectExistsError,
    ObjectNotFoundError,
    Page,
    S,
    Store,
)

T = TypeVar("T")

_COMPARED = 8 << 20


class RetryingStore(Listing):
    """`inner`, each request tried up to `attempts` times and not begun again after `patience` seconds.

    The pauses grow exponentially, at random, up to `longest` seconds. `compare_and_swap` is one attempt,
    always: only its caller can judge an unanswered swap.
    """

    def __init__(
        self,
        inner: Store,
        *,
        attempts: int = 6,
        patience: float = 120.0,
        longest: float = 10.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._inner = inner
        self._attempts = attempts
        self._patience = patience
        self._wait = wait_random_exponential(multiplier=0.1, max=longest, min=0.02)
        self._sleep = sleep
        self._clock = clock

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def fencing(self) -> bool:
        return self._inner.fencing

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return await self._retry(lambda: self._inner.get(path, limit=limit))

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        return await self._retry(lambda: self._inner.read_into(path, make, limit=limit))

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return await self._retry(lambda: self._inner.get_range(path, offset, length))

    async def put(self, path: str, data: Bytes) -> None:
        failed = False

        async def attempt() -> None:
            nonlocal failed
            try:
                await self._inner.put(path, data)
            except RetryableError:
                failed = True
                raise
            except ObjectExistsError:
                # It may be our own, from an attempt whose answer was lost.
                if not failed or not await self._holds(path, data):
                    raise

        await self._retry(attempt)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        return await self._inner.compare_and_swap(path, data, expected)

    async def list_page(self, prefix: str, more: object | None = None) -> Page:
        return await self._retry(lambda: self._inner.list_page(prefix, more))

    async def folders(self, prefix: str) -> Sequence[str]:
        return await self._retry(lambda: self._inner.folders(prefix))

    async def delete(self, paths: Sequence[str]) -> None:
        await self._retry(lambda: self._inner.delete(paths))

    async def leftovers(self) -> Sequence[Leftover]:
        return await self._retry(self._inner.leftovers)

    async def discard(self, leftovers: Sequence[Leftover]) -> None:
        await self._retry(lambda: self._inner.discard(leftovers))

    async def close(self) -> None:
        await self._inner.close()

    async def _retry(self, request: Callable[[], Awaitable[T]]) -> T:
        started = self._clock()
        try:
            return await request()
        except RetryableError as error:
            first: list[RetryableError] = [error]  # the usual case is done; what follows may cost what it likes

        async def attempt() -> T:
            if first:
                raise first.pop()
            return await request()

        def is_over(state: RetryCallState) -> bool:
            spent = self._clock() - started + state.upcoming_sleep
            return state.attempt_number >= self._attempts or spent >= self._patience

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RetryableError),
            stop=is_over,
            wait=self._wait,
            sleep=self._sleep,
            retry_error_callback=lambda state: self._give_up(state, self._clock() - started),
        )
        answer: T = await retrying(attempt)
        return answer

    @staticmethod
    def _give_up(state: RetryCallState, spent: float) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        if error is None:
            raise AssertionError("gave up on an attempt that did not fail")
        if state.attempt_number == 1:
            raise error
        raise type(error)(f"{error} ({state.attempt_number} attempts in {spent:.1f} s)") from error

    async def _holds(self, path: str, data: Bytes) -> bool:
        """Return whether the object has just these bytes, compared in pieces; one request where it is small."""
        view, offset = memoryview(data).cast("B"), 0
        with suppress(ObjectNotFoundError):
            while True:
                mine = view[offset : offset + _COMPARED]
                last = offset + _COMPARED >= len(view)
                # One byte more than there should be shows an object that goes on.
                if await self._inner.get_range(path, offset, len(mine) + last) != mine:
                    return False
                if last:
                    return True
                offset += _COMPARED
        return False
