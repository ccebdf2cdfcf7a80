"""A loop that leads record processors through their life, for the shards that this worker has."""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyspark_checkpointer.consumers.kinesis.checkpointer import RecordCheckpointer
from pyspark_checkpointer.consumers.kinesis.leases import ShardLeases
from pyspark_checkpointer.consumers.kinesis.processor import (
    InitializationInput,
    LeaseLostInput,
    ProcessRecordsInput,
    RecordProcessor,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from pyspark_checkpointer.consumers.kinesis.sequence import SHARD_END, ExtendedSequenceNumber
from pyspark_checkpointer.errors import (
    CheckpointError,
    IllegalArgumentError,
    InvalidStateError,
    RetryableError,
    ShutdownError,
)
from pyspark_checkpointer.runtime.not_picklable import NotPicklable

logger = logging.getLogger("pyspark_checkpointer")

Fetch = Callable[[str, ExtendedSequenceNumber], tuple[Sequence[Any], bool]]
"""The next records of a shard after a sequence number, in order, and whether there will never be more after them.

It should not wait long where there are none. After LATEST, and AT_TIMESTAMP, it is called until there are some.
"""


@dataclass(frozen=True, slots=True)
class _Reader:
    checkpointer: RecordCheckpointer
    processor: RecordProcessor


class _Flag:
    """A flag that a signal handler may set while its own thread waits for it; a `threading.Event` may lock up then."""

    def __init__(self) -> None:
        self._set = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._wakes.put(None)

    def clear(self) -> None:
        self._set = False
        with suppress(queue.Empty):
            while True:
                self._wakes.get_nowait()

    def wait(self, seconds: float) -> None:
        """Return once it is set, or after `seconds`."""
        if not self._set:
            with suppress(queue.Empty):
                self._wakes.get(timeout=seconds)


class Worker(NotPicklable):
    """Reads the shards that it gets a lease on, one after the other, in the thread that calls `run()`.

        leases.create(shard_ids)
        Worker(leases, fetch, Processor).run()

    Leases are renewed in the background, however long a processor takes. What `fetch` or a processor raises, ends
    `run()`: the leases are given back with what was checkpointed, `lease_lost` is called, and the rest is read again by
    who gets them. Only a `ShutdownError` ends no more than the reading of its shard, where the lease is found lost.
    """

    _instead = "make one in each process; the ShardLeases that it takes may be pickled"

    def __init__(
        self, leases: ShardLeases, fetch: Fetch, make_processor: Callable[[], RecordProcessor], *, idle: float = 1.0
    ) -> None:
        """`idle` is the pause, in seconds, after a round in which no shard had records."""
        if not 0 <= idle <= threading.TIMEOUT_MAX:
            raise IllegalArgumentError(f"idle={idle!r:.40}: expected seconds, at least 0")
        self._leases, self._fetch, self._make_processor, self._idle = leases, fetch, make_processor, idle
        self._readers: dict[str, _Reader] = {}
        self._balanced: float | None = None
        self._stop = _Flag()
        self._running = threading.Lock()

    def run(self) -> None:
        """Read until `stop()` is called; then ask the processors to shut down, and release what is held."""
        with self._reading():
            while not self._stop.is_set():
                if not self._round():
                    self._stop.wait(self._idle)
            for shard_id in list(self._readers):
                self._hand_over(shard_id)
            self._balanced = None

    def stop(self) -> None:
        """Let `run()` end after the call of a processor that is under way. From any thread, or a signal handler.

        It ends one run: where none is under way, the next.
        """
        self._stop.set()

    def run_once(self) -> bool:
        """Balance if that is due, and read each shard once. Whether there were records.

        Between calls nothing is renewed: call it again within the length of a lease.
        """
        with self._reading():
            return self._round()

    # ---- steps ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[None]:
        if not self._running.acquire(blocking=False):
            raise InvalidStateError(
                f"worker {self._leases.worker}: is running already, in another thread or in a call of a processor that "
                "has not returned: make another Worker, on ShardLeases of its own"
            )
        try:
            with self._leases.renewing():
                try:
                    yield
                    self._stop.clear()
                except BaseException:
                    self._abandon()
                    raise
        finally:
            self._running.release()

    def _round(self) -> bool:
        self._balance()
        busy = False
        for shard_id in list(self._readers):
            if self._stop.is_set():
                break
            self._balance()  # those before may have taken long
            if shard_id in self._readers:
                busy |= self._read(shard_id)
        return busy

    def _balance(self) -> None:
        now = self._leases.clock()
        if self._balanced is not None and now - self._balanced < self._leases.duration / 3:
            return
        self._balanced = now
        asked: Sequence[RecordCheckpointer] = ()
        try:
            change = self._leases.balance()
        except RetryableError as error:
            logger.warning("worker %s could not balance, tries again: %s", self._leases.worker, error)
        else:
            asked = change.asked
            for shard_id, failure in change.failed.items():
                logger.error("shard %r is not read, which is tried again: %s", shard_id, failure)
        for shard_id, reader in list(self._readers.items()):
            if reader.checkpointer.lost:
                self._lose(shard_id)
        for shard_id, checkpointer in self._leases.held.items():
            if shard_id not in self._readers:
                self._begin(checkpointer)
        for checkpointer in asked:
            if checkpointer.shard_id in self._readers:
                self._hand_over(checkpointer.shard_id)

    def _begin(self, checkpointer: RecordCheckpointer) -> None:
        if checkpointer.seen != checkpointer.position:
            raise InvalidStateError(
                f"shard {checkpointer.shard_id!r:.60}: records up to {checkpointer.seen} were delivered under this "
                f"lease already, and {checkpointer.position} is checkpointed: run again, a new lease goes on from there"
            )
        if checkpointer.position == SHARD_END:  # its last owner ended between recording that and releasing it
            self._give_back(self._leases.finish, checkpointer)
            return
        processor = self._make_processor()
        self._readers[checkpointer.shard_id] = _Reader(checkpointer, processor)
        self._call(checkpointer, processor.initialize, InitializationInput.of(checkpointer))

    def _read(self, shard_id: str) -> bool:
        checkpointer, processor = self._readers[shard_id].checkpointer, self._readers[shard_id].processor
        records: Sequence[Any] = ()
        ended = checkpointer.position == SHARD_END  # what an earlier owner prepared
        if not ended:
            records, ended = self._fetch(shard_id, checkpointer.seen)
        if records:
            self._leases.deliver(checkpointer, records)
            self._call(checkpointer, processor.process_records, ProcessRecordsInput(records, checkpointer))
        if ended and shard_id in self._readers:
            self._leases.end(checkpointer)
            if self._call(checkpointer, processor.shard_ended, ShardEndedInput(checkpointer)):
                self._give_back(self._leases.finish, checkpointer)
                del self._readers[shard_id]
        return bool(records)

    def _call(self, checkpointer: RecordCheckpointer, method: Callable[[Any], None], message: object) -> bool:
        """Call a processor that has a lease. Whether it has it still, as far as is known."""
        if not checkpointer.lost:
            try:
                method(message)
            except ShutdownError:
                if not self._is_lost(checkpointer):
                    raise
        if checkpointer.lost:
            self._lose(checkpointer.shard_id)
        return not checkpointer.lost

    def _lose(self, shard_id: str) -> None:
        self._readers.pop(shard_id).processor.lease_lost(LeaseLostInput())

    def _hand_over(self, shard_id: str) -> None:
        checkpointer, processor = self._readers[shard_id].checkpointer, self._readers[shard_id].processor
        if not self._call(checkpointer, processor.shutdown_requested, ShutdownRequestedInput(checkpointer)):
            return
        self._give_back(self._leases.release, checkpointer)
        self._lose(shard_id)

    def _give_back(self, verb: Callable[[RecordCheckpointer], None], checkpointer: RecordCheckpointer) -> None:
        try:
            verb(checkpointer)
        except (RetryableError, ShutdownError) as error:
            self._let_go(checkpointer, error)

    def _let_go(self, checkpointer: RecordCheckpointer, error: CheckpointError) -> None:
        """Its processor has had its last call: what that one left is for the next, under another lease."""
        logger.warning("%r was not released, and will expire: %s", checkpointer, error)
        self._leases.let_go(checkpointer)

    def _is_lost(self, checkpointer: RecordCheckpointer) -> bool:
        """By the rows, where it is not known: a processor's state may meet the shard's next owner before its lease."""
        if not checkpointer.lost:
            try:
                self._leases.renew()
            except RetryableError as error:
                logger.warning("worker %s could not renew its leases: %s", self._leases.worker, error)
        return checkpointer.lost

    def _abandon(self) -> None:
        readers, self._readers, self._balanced = self._readers, {}, None
        for checkpointer in self._leases.held.values():
            try:
                self._leases.release(checkpointer)
            except CheckpointError as error:
                self._let_go(checkpointer, error)
        for shard_id, reader in readers.items():
            try:
                reader.processor.lease_lost(LeaseLostInput())
            except Exception:  # one of many, and not the one that is raised
                logger.exception("shard %r: lease_lost() failed", shard_id)
