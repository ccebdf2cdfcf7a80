"""Measure commits and restores, and hand over the records.

Decorate every function that blocks a caller with `blocking`: it is the only way into a meter. The records are in
`metrics.py`.
"""

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

from pyspark_checkpointer import runtime
from pyspark_checkpointer.checkpoint.attempt_state import proves_failure
from pyspark_checkpointer.checkpoint.metrics import (
    CommitMetrics,
    Metrics,
    MetricsCallback,
    OperatorMetrics,
    Requests,
    RestoreMetrics,
    contents,
)
from pyspark_checkpointer.manifests.model import CheckpointId, Cost, Manifest
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.runtime.user_functions import log_safely
from pyspark_checkpointer.storage.request_path import Traffic, counted

logger = logging.getLogger("pyspark_checkpointer")

R = TypeVar("R")

PATIENCE = 10.0
"""Seconds that `close()` waits for a callback."""

NANOSECONDS = 1_000_000_000


MOMENTS_ADDED_UP = 1000
"""Moments that become one, when a meter has twice as many."""


Moment = tuple[int, int, int]
"""A moment in nanoseconds; the calls that began there, -1 where one ended; the nanoseconds blocked before it."""


def _add_up(moments: list[Moment]) -> Moment:
    """Return one moment for several. The first of them stands for earlier ones."""
    (at, calls, blocked), *later = moments
    for moment, change, _ in sorted(later):
        # One that was appended too late counts as if it were later.
        now = max(at, moment)
        # The time up to now belongs to the number of calls until now.
        blocked += now - at if calls > 0 else 0
        at, calls = now, calls + change
    return at, calls, blocked


class Meter:
    """The cost of one attempt or one restore, from the moment this is made."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self.traffic = Traffic()
        self.operators: Mapping[str, OperatorMetrics] = {}
        self._clock = clock
        self._began = clock()
        # No lock guards these: a signal handler that interrupts a thread inside it could call the library, and would
        # wait for ever for the thread that it has interrupted. To append, to copy and to replace a slice is one step.
        self._moments = [(self._began, 0, 0)]
        """The moments when calls began or ended. The first stands for all that were added up."""
        self._adding_up = threading.Lock()
        """Held by the thread that adds up. Nobody waits for it."""

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Count the time and the requests of a call. Only `blocking` enters this."""
        self._enter(1)
        try:
            with counted(self.traffic):
                yield
        finally:
            self._enter(-1)

    def _enter(self, calls: int) -> None:
        moments = self._moments
        moments.append((self._clock(), calls, 0))
        if len(moments) > 2 * MOMENTS_ADDED_UP and self._adding_up.acquire(blocking=False):
            try:
                # Others only append, so the slice is the one that was added up. The newest stay as they are, because a
                # thread may read the clock, and append later than others.
                moments[:MOMENTS_ADDED_UP] = [_add_up(moments[:MOMENTS_ADDED_UP])]
            finally:
                self._adding_up.release()

    @property
    def blocked(self) -> int:
        """Nanoseconds in which calls blocked their callers, up to now."""
        moments = self._moments[:]
        return _add_up([*moments, (self._clock(), 0, 0)])[2]

    @property
    def elapsed(self) -> int:
        """Nanoseconds since the meter was made."""
        return self._clock() - self._began

    @property
    def requests(self) -> Requests:
        return Requests(**self.traffic.requests)

    @property
    def objects(self) -> int:
        return sum(part.objects for part in self.operators.values())

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.operators.values())

    def cost(self, *, unsent: int = 0) -> Cost:
        """Return the cost for the manifest.

        It counts `unsent` PUTs, the manifest's own PUT and the swap as already sent.
        """
        return Cost(
            self.traffic.requests.total() + unsent + 2,
            self.objects,
            self.bytes,
            self.elapsed // 1000,
            self.blocked // 1000,
        )


class Metered(Protocol):
    """An object whose calls a meter counts."""

    @property
    def meter(self) -> Meter: ...


Call = TypeVar("Call", bound=Callable[..., Any])


def blocking(call: Call) -> Call:
    """Count the time and the requests of a call that its caller waits for.

    The first argument says which meter counts them: it is the meter, or has one as its `meter`. A call within a call,
    or beside one in another thread, does not count its time again. A coroutine or generator counts until it ends, so
    the block of a `contextmanager` counts too.
    """

    @wraps(call)
    def called(first: Meter | Metered, /, *args: Any, **kwargs: Any) -> Any:
        with _meter_of(first)._running():
            return call(first, *args, **kwargs)

    @wraps(call)
    async def awaited(first: Meter | Metered, /, *args: Any, **kwargs: Any) -> Any:
        with _meter_of(first)._running():
            return await call(first, *args, **kwargs)

    @wraps(call)
    def generated(first: Meter | Metered, /, *args: Any, **kwargs: Any) -> Any:
        with _meter_of(first)._running():
            return (yield from call(first, *args, **kwargs))

    # To call a coroutine or a generator only makes it: its work comes later, and would not be counted.
    if inspect.iscoroutinefunction(call):
        return cast("Call", awaited)
    return cast("Call", generated if inspect.isgeneratorfunction(call) else called)


def _meter_of(first: Meter | Metered) -> Meter:
    return first if isinstance(first, Meter) else first.meter


@blocking
async def _restore_within(meter: Meter, work: Awaitable[R]) -> R:
    return await work


class Found(Protocol):
    """The result of a restore, as far as metering needs it."""

    @property
    def manifest(self) -> Manifest | None: ...


F = TypeVar("F", bound=Found)


class Reports:
    """The receivers of one root's records: the log, and the user's callback."""

    def __init__(self, root: str, host: Host, callback: MetricsCallback | None) -> None:
        self._root = root
        self._host = host
        self._callback = callback
        self._last: Future[None] | None = None

    def meter(self) -> Meter:
        return Meter(self._host.clock)

    @contextmanager
    def committing(self, meter: Meter, checkpoint: CheckpointId, epoch: int | None) -> Iterator[None]:
        """Measure a commit, and hand over its record however the commit ends."""
        with self.preparing(meter, checkpoint, epoch):
            yield
        self._hand_over(self._commit(meter, checkpoint, epoch, None))

    @contextmanager
    def preparing(self, meter: Meter, checkpoint: CheckpointId, epoch: int | None) -> Iterator[None]:
        """Measure the steps before a commit, and hand over a record if they fail."""
        try:
            yield
        except BaseException as error:
            outcome = "was not committed" if proves_failure(error) else "may have been committed or not"
            # As text: a record that a handler keeps would keep the traceback, and with it the client and its data.
            log_safely(
                logging.WARNING, "%s: %s %s: %s: %s", self._root, checkpoint, outcome, type(error).__name__, str(error)
            )
            self._hand_over(self._commit(meter, checkpoint, epoch, type(error).__name__))
            raise

    async def restoring(self, work: Awaitable[F | None]) -> F | None:
        """Await a restore, and report its record whether it succeeds or fails."""
        meter = self.meter()
        try:
            found = await _restore_within(meter, work)
        except BaseException as error:
            self._hand_over(self._restore(meter, None, type(error).__name__))
            raise
        manifest = None if found is None else found.manifest
        # Adding up all chains takes long for many partitions, and is for nothing where nobody reads the record.
        if manifest is not None and self._is_heard:
            meter.operators = await self._host.run(lambda: contents(manifest))
        self._hand_over(self._restore(meter, manifest, None))
        return found

    async def delivered(self) -> None:
        """Wait until the callback has every record, at most `PATIENCE` seconds."""
        if self._last is not None:
            await asyncio.wait([asyncio.wrap_future(self._last)], timeout=PATIENCE)

    def _commit(self, meter: Meter, checkpoint: CheckpointId, epoch: int | None, error: str | None) -> CommitMetrics:
        return CommitMetrics(
            root=self._root,
            id=checkpoint,
            epoch=epoch,
            error=error,
            bytes_written=meter.bytes,
            objects=meter.objects,
            bytes_read=meter.traffic.bytes_read,
            requests=meter.requests,
            blocked_seconds=meter.blocked / NANOSECONDS,
            total_seconds=meter.elapsed / NANOSECONDS,
            operators=meter.operators,
        )

    def _restore(self, meter: Meter, manifest: Manifest | None, error: str | None) -> RestoreMetrics:
        return RestoreMetrics(
            root=self._root,
            id=None if manifest is None else manifest.id,
            epoch=None if manifest is None else manifest.epoch,
            error=error,
            bytes_read=meter.traffic.bytes_read,
            requests=meter.requests,
            blocked_seconds=meter.blocked / NANOSECONDS,
            # Not `elapsed`, which would go on while `contents` counts for the record.
            total_seconds=meter.blocked / NANOSECONDS,
            operators=meter.operators,
        )

    @property
    def _is_heard(self) -> bool:
        return self._callback is not None or logger.isEnabledFor(logging.DEBUG)

    def _hand_over(self, record: Metrics) -> None:
        if logger.isEnabledFor(logging.DEBUG):
            log_safely(logging.DEBUG, "%s", record)
        callback = self._callback
        if callback is not None:
            last = runtime.call_later(lambda: _call(callback, record))
            if last is None:
                log_safely(logging.WARNING, "%s: the metrics callback is too slow, so a record is lost", self._root)
            # The one before is still waited for where this record was dropped.
            self._last = last or self._last


def _call(callback: MetricsCallback, record: Metrics) -> None:
    try:
        callback(record)
    except BaseException:  # one that wants to end the process would only end this thread
        log_safely(
            logging.WARNING, "%s: the metrics callback failed, so its record is lost", record.root, exc_info=True
        )
