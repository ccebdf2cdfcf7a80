"""One small object that many processes change, by compare-and-swap alone.

    read      GET, decode                      never from memory
    change    plan on what is known, swap      where that is old: GET, plan again, swap

What is remembered of an object only saves a request: a swap is conditioned on its version, and whatever is refused
because of it is looked at again first.
"""

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, OutcomeUnknownError, ThrottlingError
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Blob, Store
from pyspark_checkpointer.storage.compare_and_swap import UndecidedError, decide, find
from pyspark_checkpointer.storage.conditional_write_check import probe

T = TypeVar("T")
C = TypeVar("C")

ROUNDS = 100
"""How often a change is planned again because others were faster. Each round means that somebody's change succeeded."""

_FIRST_WAIT, _LONGEST_WAIT = 0.005, 0.5
"""Bounds of the random wait, in seconds, after a round that somebody else won."""

Plan = Callable[[T | None, datetime], T | None]
"""What to write where the object says this (None: there is none), at this time by the store's clock; None to leave it.

It may be called several times, also after its own change took effect. It raises to give up.
"""


class Space:
    """A root as all users of it in one process see it."""

    def __init__(self, store: Store, host: Host) -> None:
        self.store, self.host = store, host
        self._proving = asyncio.Lock()
        self._proved = False

    async def prove(self) -> None:
        """Refuse a store that does not keep conditions, before the first object is made in it."""
        async with self._proving:
            if not self._proved:
                await probe(self.store)
                self._proved = True


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How an object becomes bytes, and back. `encode` takes a nonce, `decode` the path to name in errors.

    `empty` is what to make first where there is none, for those who need the store's clock from the beginning. A
    `large` one is encoded and decoded where it holds up nobody.
    """

    encode: Callable[[T, str], bytes]
    decode: Callable[[str, bytes], T]
    limit: int
    empty: T | None = None
    large: bool = False


@dataclass(frozen=True, slots=True)
class _Known(Generic[T]):
    """An object as it was read or written last. `at` is the store's time, if it tells, at the host's clock `clock`."""

    value: T | None
    version: str | None
    at: float | None
    clock: int


class Document(Generic[T]):
    """The object at `path`. Its users in one process take turns, so that they do not outrun each other."""

    def __init__(self, space: Space, path: str, form: Form[T]) -> None:
        self._space, self._path, self._form = space, path, form
        self._turn = asyncio.Lock()
        self._last: _Known[T] | None = None
        self._doubtful = False  # what was written last may not have reached the disk

    async def read(self) -> T | None:
        """Return what it says now; None where there is none."""
        async with self._turn:
            self._last = await self._get()
            return self._last.value

    async def change(self, plan: Plan[T], *, fresh: bool = False) -> T | None:
        """Write what `plan` makes of it, and return what stands then. Raises what `plan` raises.

        `fresh` reads it first, where the plan needs to see what stands. `OutcomeUnknownError` where nothing proves
        whether it was written.
        """
        async with self._turn:
            return await self._change(plan, fresh)

    async def delete(self) -> None:
        """Remove it. What is not there is no error."""
        async with self._turn:
            self._last = None
            await self._space.store.delete([self._path])

    async def _change(self, plan: Plan[T], fresh: bool) -> T | None:
        known, self._last = None if fresh else self._last, None
        remembered = known is not None
        for number in range(ROUNDS):
            if known is None:
                known, remembered = await self._get(), False
            try:
                planned = plan(known.value, self._time(known))
            except CheckpointError:
                if not remembered:
                    raise
                planned = None
            if planned is None and remembered:
                known = None
                continue
            if planned is None and self._doubtful:
                planned = known.value  # as it stands, but durably
            if planned is None:
                self._last = known
                return known.value
            if known.value is None and self._form.empty is not None:
                await self._swap(known, self._form.empty)
                known = None
                continue
            found = await self._swap(known, planned)
            if found.value is planned:
                self._last, self._doubtful = found, False
                return planned
            known, remembered = found, False
            await asyncio.sleep(random.uniform(0, min(_FIRST_WAIT * 2 ** min(number, 10), _LONGEST_WAIT)))
        raise ThrottlingError(f"{self._name}: others changed it {ROUNDS} times in a row: try again later")

    async def _swap(self, known: _Known[T], planned: T) -> _Known[T]:
        """What the object says once the swap was decided: `planned` itself, or what somebody else wrote."""
        nonce = self._space.host.token(32)
        data = await self._compute(lambda: self._form.encode(planned, nonce))
        if len(data) > self._form.limit:
            raise IllegalArgumentError(
                f"{self._name}: would have {len(data)} bytes, at most {self._form.limit} can be read back: record less"
            )
        if known.version is None:
            await self._space.prove()
        try:
            blob = await decide(self._space.store, self._path, data, known.version, self._form.limit)
        except UndecidedError as error:
            self._doubtful = isinstance(error.__cause__, OutcomeUnknownError)
            raise OutcomeUnknownError(
                f"{self._name}: a change was sent and nothing proves whether it took effect: look, and try again"
            ) from error.__cause__
        if blob is not None and blob.data == data:
            return replace(known, value=planned, version=blob.version)
        return await self._decode(blob)

    async def _get(self) -> _Known[T]:
        return await self._decode(await find(self._space.store, self._path, self._form.limit))

    async def _decode(self, blob: Blob | None) -> _Known[T]:
        clock = self._space.host.clock()
        if blob is None:
            return _Known(None, None, None, clock)
        data = blob.data
        value = await self._compute(lambda: self._form.decode(self._name, data))
        return _Known(value, blob.version, blob.at, clock)

    async def _compute(self, work: Callable[[], C]) -> C:
        return await self._space.host.run(work) if self._form.large else work()

    def _time(self, known: _Known[T]) -> datetime:
        if known.at is None:
            return self._space.host.now()
        passed = timedelta(microseconds=(self._space.host.clock() - known.clock) // 1000)
        return datetime.fromtimestamp(known.at, UTC) + passed

    @property
    def _name(self) -> str:
        return f"{self._space.store.url}/{self._path}"
