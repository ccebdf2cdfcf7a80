"""Change one small object from many processes, by compare-and-swap (CAS) alone.

    read      GET, decode                                       never from memory
    change    next value of the remembered one, swap            if that is outdated: GET, next value, swap again

The remembered value only saves a request. A swap has the condition that the object still has the version that was read,
so outdated memory can never overwrite anything. If an error or "no change" would rest on memory, the object is read
again first.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, OutcomeUnknownError, ThrottlingError
from pyspark_checkpointer.storage.base import Blob
from pyspark_checkpointer.storage.compare_and_swap import UndecidedError, find_object, swap_until_decided

T = TypeVar("T")
C = TypeVar("C")

MAX_ATTEMPTS = 100
"""Number of attempts to swap one change before it is given up.

Each attempt that fails means that somebody else's change succeeded.
"""

_MIN_BACKOFF_SECONDS, _MAX_BACKOFF_SECONDS = 0.005, 0.5
"""Bounds of the random wait after a swap that somebody else won."""

NextValue = Callable[[T | None, datetime], T | None]
"""Function that returns what to write over a value at this time of the store.

The value None means that the object is missing. The result None means no change. It is called once for each attempt,
and can see its own change if the answer to a swap was lost. It raises to give up.
"""


@dataclass(frozen=True, slots=True)
class Serializer(Generic[T]):
    """The encoding of a value as bytes, its decoding, and the maximum size.

    `encode` takes a nonce, which makes each version unique; `decode` takes the path that errors name. `limit` is in
    bytes. `empty` is written first if the object is missing, for values that need the store's time from the beginning.
    A `large` value is encoded and decoded in the thread pool, so that the event loop is not blocked.
    """

    encode: Callable[[T, str], bytes]
    decode: Callable[[str, bytes], T]
    limit: int
    empty: T | None = None
    large: bool = False


@dataclass(frozen=True, slots=True)
class _Known(Generic[T]):
    """A value as it was read or written last, with its version.

    `store_time` is the time of the store's server in seconds, if the store tells it; `clock` is the reading of the
    host's monotonic clock at that moment, in nanoseconds.
    """

    value: T | None
    version: str | None
    store_time: float | None
    clock: int


def _backoff(attempt: int) -> float:
    """Return a random wait in seconds before the next attempt.

    It is longer on average after each attempt, so that competitors spread out.
    """
    return random.uniform(0, min(_MIN_BACKOFF_SECONDS * 2 ** min(attempt, 10), _MAX_BACKOFF_SECONDS))


class CasObject(Generic[T]):
    """The object at `path`, which many processes change.

    Its users in one process take turns, so that they do not conflict with each other.
    """

    def __init__(self, context: StoreContext, path: str, serializer: Serializer[T]) -> None:
        self._context, self._path, self._serializer = context, path, serializer
        self._lock = asyncio.Lock()
        self._last_known: _Known[T] | None = None
        # Set if a swap of ours may be visible, or become so, and still be lost by a power failure.
        self._maybe_not_durable = False

    async def read(self) -> T | None:
        """Return the current value; None if the object is missing."""
        async with self._lock:
            self._last_known = await self._get()
            return self._last_known.value

    async def take_listed(self, blob: Blob) -> T | None:
        """Return the value of the object as a listing told it."""
        async with self._lock:
            # What this version holds is known if it was read or written here.
            if self._last_known is None or self._last_known.version != blob.version:
                self._last_known = await self._decode(blob)
            return self._last_known.value

    async def change(self, next_value: NextValue[T], *, fresh: bool = False, room: int = 0) -> T | None:
        """Write the value that `next_value` returns for the current value.

        Return the value that the object then has. Raise what `next_value` raises, and `OutcomeUnknownError` if nothing
        proves whether the value was written. With `fresh` the object is read first, for a decision that must not rest
        on remembered values. `room` are the bytes below the limit that the value leaves free, for changes that must not
        be refused later.
        """
        async with self._lock:
            return await self._change(next_value, fresh, room)

    async def settle(self) -> None:
        """Wait until the changes that were begun here before have ended."""
        async with self._lock:
            pass

    async def delete(self) -> None:
        """Remove the object. A missing object is no error."""
        async with self._lock:
            self._last_known = None
            await self._context.store.delete([self._path])

    async def _change(self, next_value: NextValue[T], fresh: bool, room: int) -> T | None:
        # Memory is empty until the outcome is known: after an error or a cancellation in between, nobody knows what the
        # object holds.
        known, self._last_known = None if fresh else self._last_known, None
        remembered = known is not None
        for attempt in range(MAX_ATTEMPTS):
            if known is None:
                known, remembered = await self._get(), False
            try:
                wanted = next_value(known.value, self._time(known))
            except CheckpointError:
                if not remembered:
                    raise
                wanted = None
            if wanted is None and remembered:
                # Memory may be outdated: refuse, or report "no change", only after a look at the store.
                known = None
                continue
            if wanted is None and self._maybe_not_durable:
                # Our last swap may not have reached the disk: write the same value again before anybody relies on it.
                wanted = known.value
            if wanted is None:
                self._last_known = known
                return known.value
            if known.value is None and self._serializer.empty is not None:
                # A missing object tells no store time. Write an empty one first, then plan with the time it tells.
                await self._swap(known, self._serializer.empty, room)
                known = None
                continue
            # Whatever lost is planned again on what is there now; the old plan may undo what somebody else has just
            # written.
            found = await self._swap(known, wanted, room)
            # Identity and not equality: somebody else may have written an equal value, and then this change has not
            # been made.
            if found.value is wanted:
                self._last_known, self._maybe_not_durable = found, False
                return wanted
            known, remembered = found, False
            await asyncio.sleep(_backoff(attempt))
        raise ThrottlingError(
            f"{self._name}: other processes changed it {MAX_ATTEMPTS} times in a row: try again later"
        )

    async def _swap(self, known: _Known[T], wanted: T, room: int) -> _Known[T]:
        """Swap the value, and return the value of the object afterwards.

        This is `wanted` itself if the swap won, else the value that somebody else wrote.
        """
        # A fresh nonce makes these bytes unlike any other version, so reading them back proves that this swap took
        # effect. It also keeps a version that is a content hash from coming back.
        nonce = self._context.host.token(32)
        data = await self._compute(lambda: self._serializer.encode(wanted, nonce))
        if len(data) > (limit := self._serializer.limit - room):
            raise IllegalArgumentError(
                f"{self._name}: would have {len(data)} bytes, at most {limit} can be written: record less"
            )
        if known.version is None:
            await self._context.check_conditional_writes()
        try:
            blob = await swap_until_decided(
                self._context.store, self._path, data, known.version, self._serializer.limit
            )
        except asyncio.CancelledError:
            self._maybe_not_durable = True  # a swap that has begun goes on in its thread, and nobody hears how it ends
            raise
        except UndecidedError as error:
            # Whatever went wrong last: an earlier request may have made the bytes visible without the disk's
            # confirmation, and one that timed out may still do so.
            self._maybe_not_durable = True
            raise OutcomeUnknownError(
                f"{self._name}: a change was sent, and it is not known whether it took effect: read the value, then "
                "try again"
            ) from error.__cause__
        # The value is not decoded again: these are the bytes that were encoded from it.
        if blob is not None and blob.data == data:
            return replace(known, value=wanted, version=blob.version)
        return await self._decode(blob)

    async def _get(self) -> _Known[T]:
        return await self._decode(await find_object(self._context.store, self._path, self._serializer.limit))

    async def _decode(self, blob: Blob | None) -> _Known[T]:
        # The clock is read before a large value is decoded, so that this time counts as passed since the store's
        # answer.
        clock = self._context.host.clock()
        if blob is None:
            return _Known(None, None, None, clock)
        data = blob.data
        value = await self._compute(lambda: self._serializer.decode(self._name, data))
        return _Known(value, blob.version, blob.at, clock)

    async def _compute(self, work: Callable[[], C]) -> C:
        """Run an encoding or decoding.

        It runs in the thread pool if values of this kind are large.
        """
        return await self._context.host.run(work) if self._serializer.large else work()

    def _time(self, known: _Known[T]) -> datetime:
        """Return the current time of the store.

        That is the store's last answer plus the time since then. If the store does not tell its time, it is the host's
        time.
        """
        if known.store_time is None:
            return self._context.host.now()
        # The host's monotonic clock only measures how much time has passed; a wrong wall clock does not matter.
        passed = timedelta(microseconds=(self._context.host.clock() - known.clock) // 1000)
        return datetime.fromtimestamp(known.store_time, UTC) + passed

    @property
    def _name(self) -> str:
        return f"{self._context.store.url}/{self._path}"
