"""Send requests to a store: retried, limited and counted.

Limits are on the number of requests and on their time.

`open_store` puts two stores around the store that talks to the disk or the cloud. Each request goes through both:

    caller
      -> RetryingStore    sends it again after a `RetryableError`, with growing pauses; a swap is sent once
                          (where no key was given a `PlainStore`, which begins nothing in an encrypted root)
      -> LimitedStore     waits for a free slot, counts it in the `Traffic` of its context, and limits its time
      -> S3Store, ...     sends it once, and turns a failure into an error of the tree

So each attempt waits for a slot of its own, has the whole time limit, and counts as one request.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from pyspark_checkpointer.errors import (
    CheckpointError,
    DependencyError,
    IllegalArgumentError,
    RetryableError,
    UnsupportedFormatError,
)
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.runtime import on_loop
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.base import (
    Blob,
    BucketRule,
    ListingPage,
    ObjectExistsError,
    ObjectNotFoundError,
    Range,
    S,
    SinkRead,
    Store,
    WrappedStore,
    WriteLeftover,
    read_or_error,
)

T = TypeVar("T")

# ---- tried again -----------------------------------------------------------------------------------------------------

COMPARED_AT_ONCE = 8 << 20
"""Bytes of an object that are read at a time to compare them.

They are compared with the bytes that should have been written.
"""

FIRST_PAUSE = 0.1
"""Seconds, at most, before a failed request is sent again. The longest further pause is twice as long each time."""

QUIET_SECONDS = 5.0
"""Seconds for which a request fails before the log says so."""

TOLD_SECONDS = 60.0
"""Seconds for which one line in the log is enough, however many requests of a store fail."""


class RetryingStore(WrappedStore):
    """`inner`, with each request tried up to `attempts` times.

    After `patience` seconds no request is tried again. The pauses grow exponentially, at random, up to `longest`
    seconds; they are longer where the store asks for it. With the defaults a store that refuses at once is waited for
    half a minute on average, since a cloud throttles for tens of seconds. `compare_and_swap` is always one attempt:
    only its caller can judge a swap without an answer (`compare_and_swap.py`).
    """

    def __init__(
        self,
        inner: Store,
        *,
        attempts: int = 12,
        patience: float = 120.0,
        longest: float = 10.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(inner)
        self._attempts = attempts
        self._patience = patience
        self._longest = longest
        self._sleep = sleep
        self._clock = clock
        self._told = -TOLD_SECONDS

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return await self._retry(lambda: self.inner.get(path, limit=limit))

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        return await self._retry(lambda: self.inner.read_into(path, make, limit=limit))

    @property
    def reads_at_once(self) -> int:
        return self.inner.reads_at_once

    async def read_each_into(self, reads: Sequence[SinkRead[S]]) -> list[S | CheckpointError]:
        if len(reads) == 1:
            return [await read_or_error(self, reads[0])]
        try:
            found = await self.inner.read_each_into(reads)
        except RetryableError as error:
            found = [error] * len(reads)
        # Those that failed are tried again, each by itself.
        return [
            await read_or_error(self, read) if isinstance(answer, RetryableError) else answer
            for read, answer in zip(reads, found, strict=True)
        ]

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return await self._retry(lambda: self.inner.get_range(path, offset, length))

    @property
    def reads_ranges(self) -> bool:
        return self.inner.reads_ranges

    async def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        return await self._retry(lambda: self.inner.get_ranges(path, ranges))

    async def put(self, path: str, data: Bytes) -> None:
        failed = False

        async def attempt() -> None:
            nonlocal failed
            try:
                await self.inner.put(path, data)
            except RetryableError:
                failed = True
                raise
            except ObjectExistsError:
                # It may be our own object, from an attempt whose answer was lost.
                if not failed or not await self._holds(path, data):
                    raise

        await self._retry(attempt)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        return await self.inner.compare_and_swap(path, data, expected)

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        return await self._retry(lambda: self.inner.list_page(prefix, more))

    async def folders(self, prefix: str) -> Sequence[str]:
        return await self._retry(lambda: self.inner.folders(prefix))

    async def delete(self, paths: Sequence[str]) -> None:
        await self._retry(lambda: self.inner.delete(paths))

    async def leftovers(self) -> Sequence[WriteLeftover]:
        return await self._retry(self.inner.leftovers)

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        await self._retry(lambda: self.inner.discard(leftovers))

    async def bucket_rules(self) -> Sequence[BucketRule]:
        return await self._retry(self.inner.bucket_rules)

    async def _retry(self, request: Callable[[], Awaitable[T]]) -> T:
        """Return the answer to a request, repeated after each `RetryableError`.

        It is repeated until it is time to give up.
        """
        started = self._clock()
        try:
            return await request()
        except RetryableError as error:
            # Nearly all requests have returned by now, and have not paid for the machinery of retries below.
            first: list[RetryableError] = [error]

        # Made for each request, so that a store of a test has its pauses again when the test ends.
        growing = wait_random_exponential(multiplier=FIRST_PAUSE, max=self._longest, min=0.02)

        async def attempt() -> T:
            if first:
                raise first.pop()
            return await request()

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome is not None else None
            return max(growing(state), getattr(error, "pause", None) or 0.0)

        def is_over(state: RetryCallState) -> bool:
            # The coming pause counts too, so that no request is sent after the patience is over.
            spent = self._clock() - started + state.upcoming_sleep
            return state.attempt_number >= self._attempts or spent >= self._patience

        def tell(state: RetryCallState) -> None:
            now = self._clock()
            if now - started >= QUIET_SECONDS and now - self._told >= TOLD_SECONDS:
                self._told = now
                error = state.outcome.exception() if state.outcome is not None else None
                failed = state.attempt_number
                log_safely(logging.WARNING, "%s: failed %d times in %d s; trying again", error, failed, now - started)

        retrying = AsyncRetrying(
            retry=retry_if_exception_type(RetryableError),
            stop=is_over,
            wait=wait,
            sleep=self._sleep,
            before_sleep=tell,
            retry_error_callback=lambda state: self._give_up(state, self._clock() - started),
        )
        answer: T = await retrying(attempt)
        return answer

    @staticmethod
    def _give_up(state: RetryCallState, spent: float) -> None:
        """Raise the error of the last attempt, and add how many attempts took how long."""
        error = state.outcome.exception() if state.outcome is not None else None
        if error is None:
            raise AssertionError("gave up on an attempt that did not fail")
        if state.attempt_number == 1:
            raise error
        # Every error of the tree can be made of one message (`manifests/errors.py`), so its type can be kept.
        raise type(error)(f"{error} ({state.attempt_number} attempts in {spent:.1f} s)") from error

    async def _holds(self, path: str, data: Bytes) -> bool:
        """Return whether the object has exactly these bytes.

        A small object takes one request.
        """
        view, offset = memoryview(data).cast("B"), 0
        with suppress(ObjectNotFoundError):
            while True:
                mine = view[offset : offset + COMPARED_AT_ONCE]
                last = offset + COMPARED_AT_ONCE >= len(view)
                # One byte more than there should be shows an object that goes on.
                if await self.inner.get_range(path, offset, len(mine) + last) != mine:
                    return False
                if last:
                    return True
                offset += COMPARED_AT_ONCE
        return False


# ---- neither encrypted nor signed ------------------------------------------------------------------------------------

MARKERS = {
    object_paths.KEYS: f"is encrypted, as its {object_paths.KEYS} shows: say what opens its keys, with encryption= or "
    "--encryption",
    object_paths.SIGNERS: f"is signed, as its {object_paths.SIGNERS} shows: say whom to trust, with signing= or "
    "--signing",
}
"""The objects that mark a root which not every client can use, and what they say."""


class PlainStore(RetryingStore):
    """A store that begins nothing in a root that is encrypted or signed.

    An object that exists shows by its content that the root is one. Where it is missing, only the markers show it: the
    root has keys and no commit yet, has lost its `_latest`, or its first consumer comes without a key.

    `markers` are those that this client cannot do without.
    """

    def __init__(self, inner: Store, markers: Sequence[str]) -> None:
        super().__init__(inner)
        self._markers = markers

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        try:
            return await super().get(path, limit=limit)
        except ObjectNotFoundError:
            if path == object_paths.LATEST:
                await refuse_markers(self, self._markers)
            raise

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        # Asked each time: the root may have got keys since.
        if expected is None and object_paths.begins_state(path):
            await refuse_markers(self, self._markers)
        return await super().compare_and_swap(path, data, expected)


def unmarked(store: Store) -> Store:
    """Return a store that may begin anything, for the work that marks a root."""
    return RetryingStore(store.inner) if isinstance(store, PlainStore) else store


async def refuse_markers(store: Store, markers: Sequence[str]) -> None:
    """Raise `UnsupportedFormatError` where the root has one of these markers."""

    async def refuse(marker: str) -> None:
        try:
            await store.get_range(marker, 0, 1)
        except ObjectNotFoundError:
            return
        raise UnsupportedFormatError(f"{store.url}: {MARKERS[marker]}")

    await asyncio.gather(*map(refuse, markers))


# ---- limited ---------------------------------------------------------------------------------------------------------

MIN_BYTES_PER_SECOND = 1 << 20
"""The rate that a transfer must reach. A large object gets more time by this rate."""

ASSUMED_SIZE = 1 << 30
"""Bytes that the time limit assumes where the size of an answer is unknown."""

SMALL_READ = 256 << 10
"""Bytes up to which a read costs its round trip and little else."""

SMALL_WRITE = 1 << 20
"""Bytes up to which a write is small.

A save makes more writes than reads, and limits the sum of their bytes.
"""

# With the usual 16 slots for others, a listing of the history fetches 256 manifests at a time.
SMALL_SLOTS = 16
"""Small-request slots per ordinary slot. Each may hold a connection."""


class LimitedStore(WrappedStore):
    """`inner`, with at most `concurrency` requests at a time, each of limited time.

    A small request has `timeout` seconds; a large one has more. Reads that are known to be small, and small writes,
    have their own slots, and more of them. The time limit does not count the wait for a slot. A request without an
    answer in time raises `DependencyError`, and may still take effect.
    """

    def __init__(self, inner: Store, *, concurrency: int, timeout: float) -> None:
        super().__init__(inner)
        self._concurrency = concurrency
        self._timeout = timeout
        self._loop: asyncio.AbstractEventLoop | None = None

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        blob = await self._read(path, self.inner.get(path, limit=limit), limit)
        _count_received(len(blob.data))
        return blob

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        # The answer is a sink, which does not tell how many bytes went into it, so they are counted on the way.
        counting = await self._read(path, self.inner.read_into(path, lambda: _CountingSink(make()), limit=limit), limit)
        _count_received(counting.size)
        return counting.sink

    @property
    def reads_at_once(self) -> int:
        return self.inner.reads_at_once

    async def read_each_into(self, reads: Sequence[SinkRead[S]]) -> list[S | CheckpointError]:
        request = self.inner.read_each_into([_counting(read) for read in reads])
        size = sum(read.limit for read in reads)
        small = size <= SMALL_READ
        found = await self._send("get", reads[0].path, request, size, small=small, count=len(reads))
        _count_received(sum(answer.size for answer in found if isinstance(answer, _CountingSink)))
        return [answer.sink if isinstance(answer, _CountingSink) else answer for answer in found]

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        data = await self._read(path, self.inner.get_range(path, offset, length), length)
        _count_received(len(data))
        return data

    @property
    def reads_ranges(self) -> bool:
        return self.inner.reads_ranges

    async def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        wanted = sum(length for _, length in ranges)
        found = await self._read(path, self.inner.get_ranges(path, ranges), wanted)
        _count_received(sum(map(len, found)))
        return found

    async def put(self, path: str, data: Bytes) -> None:
        await self._send("put", path, self.inner.put(path, data), len(data), small=len(data) <= SMALL_WRITE)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        return await self._send("swap", path, self.inner.compare_and_swap(path, data, expected), len(data))

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        page = await self._send("list", prefix, self.inner.list_page(prefix, more), ASSUMED_SIZE)
        _count_received(sum(len(entry.blob.data) for entry in page.entries if entry.blob is not None))
        return page

    async def folders(self, prefix: str) -> Sequence[str]:
        return await self._send("list", prefix, self.inner.folders(prefix), ASSUMED_SIZE)

    async def delete(self, paths: Sequence[str]) -> None:
        await self._send("delete", f"{len(paths)} objects", self.inner.delete(paths), ASSUMED_SIZE)

    async def leftovers(self) -> Sequence[WriteLeftover]:
        return await self._send("list", "leftovers", self.inner.leftovers(), ASSUMED_SIZE)

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        await self._send("delete", "leftovers", self.inner.discard(leftovers), ASSUMED_SIZE)

    async def bucket_rules(self) -> Sequence[BucketRule]:
        return await self._send("get", "bucket", self.inner.bucket_rules(), 0)

    async def _read(self, path: str, request: Coroutine[Any, Any, T], size: int | None) -> T:
        """Send a request whose answer has at most `size` bytes (None: unknown)."""
        small = size is not None and size <= SMALL_READ
        return await self._send("get", path, request, ASSUMED_SIZE if size is None else size, small=small)

    async def _send(
        self, kind: str, path: str, request: Coroutine[Any, Any, T], size: int, *, small: bool = False, count: int = 1
    ) -> T:
        """Return the answer to a request that transfers about `size` bytes.

        It counts as `count` requests.
        """
        try:
            if (loop := asyncio.get_running_loop()) is not self._loop:
                self._enter(loop)
            async with self._small_slots if small else self._slots:
                # Counted when it is sent: a request that is cancelled while it waits for a slot costs the store
                # nothing.
                _count_sent(kind, count)
                # The time begins here, after the wait for a slot.
                allowed = self._timeout + size / MIN_BYTES_PER_SECOND
                async with asyncio.timeout(allowed) as deadline:
                    return await request
        except TimeoutError:
            if not deadline.expired():  # the store's own error, and not ours
                raise
            # A retryable error: reads and puts are sent again, and the caller of a swap reads back what became of it.
            raise DependencyError(f"{self.url}: {kind} {path}: no answer within {allowed:g} s") from None
        finally:
            request.close()  # does nothing once it has run; one that never ran would be reported as not awaited

    def _enter(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make slots on the library's loop, on which a request comes for the first time.

        A semaphore of asyncio belongs to one loop, and so do the connections below. A forked child has another loop:
        there, the slots that the parent had taken would never be given back.

        Raises `IllegalArgumentError` for any other loop.
        """
        if not on_loop():
            raise IllegalArgumentError(
                "a store was used outside its event loop: use pyspark_checkpointer.runtime.run_sync"
            )
        self._slots = asyncio.Semaphore(self._concurrency)
        self._small_slots = asyncio.Semaphore(self._concurrency * SMALL_SLOTS)
        self._loop = loop


class _CountingSink(Generic[S]):
    """A sink that counts the bytes which it hands on to another."""

    def __init__(self, sink: S) -> None:
        self.sink, self.size = sink, 0

    def update(self, piece: bytes, /) -> None:
        self.sink.update(piece)
        self.size += len(piece)


def _counting(read: SinkRead[S]) -> SinkRead[_CountingSink[S]]:
    return SinkRead(read.path, lambda: _CountingSink(read.make()), read.limit)


# ---- counted ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Traffic:
    """The bytes and requests sent to a store, and received from it."""

    requests: Counter[str] = field(default_factory=Counter)
    """Requests by kind: get, put, swap, list, delete. Each attempt counts."""
    bytes_read: int = 0
    """Bytes of objects received."""

    def add(self, other: "Traffic") -> None:
        """Add the counts of another `Traffic`."""
        self.requests.update(other.requests)
        self.bytes_read += other.bytes_read


_traffic: ContextVar[Traffic | None] = ContextVar("checkpointer-traffic", default=None)


@contextmanager
def counted(traffic: Traffic) -> Iterator[None]:
    """Count in `traffic` the requests sent within.

    Requests of the tasks that are started within count too. asyncio hands a context variable down to every task. So a
    commit in the background and a restore at the same time are counted separately, and no store has to know who is
    asking.
    """
    token = _traffic.set(traffic)
    try:
        yield
    finally:
        _traffic.reset(token)


def _count_sent(kind: str, count: int) -> None:
    traffic = _traffic.get()
    if traffic is not None:
        traffic.requests[kind] += count


def _count_received(size: int) -> None:
    traffic = _traffic.get()
    if traffic is not None:
        traffic.bytes_read += size
