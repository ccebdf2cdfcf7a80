"""Read the shards of one worker in a loop.

The loop calls a record processor for each shard.
"""

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
"""Function that returns the next records of a shard after a sequence number.

The records are in order. It also returns whether the shard ends with them. The function should not wait long if there
are no records. After LATEST and AT_TIMESTAMP it is called until there are records: then it must keep the iterator of
its first call, or take the time of that call. A new iterator at LATEST would miss what came since.
"""


@dataclass(frozen=True, slots=True)
class _Reader:
    """A shard that is being read."""

    checkpointer: RecordCheckpointer
    processor: RecordProcessor


class _Flag:
    """A flag that a signal handler may set while its own thread waits for it.

    A `threading.Event` could deadlock, because its lock is not reentrant. The `put` of a `SimpleQueue` is reentrant.
    """

    def __init__(self) -> None:
        self._set = False
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        """Return whether the flag is set."""
        return self._set

    def set(self) -> None:
        """Set the flag, and wake the thread that waits."""
        # The flag is set before the wake-up. A thread that was woken before it would find the flag unset, and wait
        # again.
        self._set = True
        self._wakes.put(None)

    def clear(self) -> None:
        """Clear the flag, and forget earlier wake-ups."""
        self._set = False
        with suppress(queue.Empty):
            while True:
                self._wakes.get_nowait()

    def wait(self, seconds: float) -> None:
        """Return when the flag is set, or after `seconds`."""
        if not self._set:
            with suppress(queue.Empty):
                self._wakes.get(timeout=seconds)


class Worker(NotPicklable):
    """The reader of the shards that one worker has leases on.

    It reads them one after the other, in the thread that calls `run()`.

    Leases are renewed in the background, however long a processor takes. An error of `fetch` or of a processor ends
    `run()`. The leases are then given back with the checkpoints made, `lease_lost` is called, and the next owners read
    the rest again. A `ShutdownError` ends only the reading of its shard, if the lease is really lost.

    Args:
        leases: The leases of this worker.
        fetch: A function that returns the next records of a shard after a sequence number, and whether the shard ends
            with them.
        make_processor: A function that returns a new `RecordProcessor`, for one shard.
        idle: Seconds to wait after a round in which no shard had records.

    Raises:
        IllegalArgumentError: `idle` is out of its range.

    Examples:
        The examples of the methods go on from here. `fetch` would ask Kinesis.

        >>> from pyspark_checkpointer.consumers.kinesis import RecordProcessor, ShardLeases, Worker
        >>> class Processor(RecordProcessor):
        ...     def process_records(self, given):
        ...         print([record["data"] for record in given.records])
        ...         given.checkpointer.checkpoint()
        >>> records = [{"sequence_number": "41", "data": "a"}, {"sequence_number": "42", "data": "b"}]
        >>> def fetch(shard_id, after):
        ...     return ([], False) if after.is_record else (records, False)
        >>> leases = ShardLeases("state/positions", "orders", "worker-1")
        >>> leases.create(["shard-0"])
        >>> worker = Worker(leases, fetch, Processor)
    """

    _instead = "make one in each process; the ShardLeases that it takes may be pickled"

    def __init__(
        self, leases: ShardLeases, fetch: Fetch, make_processor: Callable[[], RecordProcessor], *, idle: float = 1.0
    ) -> None:
        if not 0 <= idle <= threading.TIMEOUT_MAX:
            raise IllegalArgumentError(f"idle={idle!r:.40}: expected seconds, at least 0")
        self._leases, self._fetch, self._make_processor, self._idle = leases, fetch, make_processor, idle
        self._readers: dict[str, _Reader] = {}
        self._balanced_at: float | None = None
        self._stop = _Flag()
        self._running: dict[str, object] = {}
        """The run that is under way, if there is one."""

    def run(self) -> None:
        """Read until `stop()` is called.

        Then ask the processors to shut down, and release what is held.

        Raises:
            InvalidStateError: The worker runs already, in another thread or in a call of a processor.
            Exception: `fetch` or a processor raised it.

        Examples:
            >>> class Last(Processor):
            ...     def process_records(self, given):
            ...         super().process_records(given)
            ...         worker.stop()
            >>> worker = Worker(leases, fetch, Last)
            >>> worker.run()
            ['a', 'b']
        """
        with self._reading():
            while not self._stop.is_set():
                if not self._round(self._stop.is_set):
                    self._stop.wait(self._idle)
            for shard_id in list(self._readers):
                self._hand_over(shard_id)
            self._balanced_at = None
            # Not after an error: whoever runs again after one must not lose the stop that came meanwhile.
            self._stop.clear()

    def stop(self) -> None:
        """End `run()` after the present call of a processor.

        Any thread or signal handler may call it. It ends one run: the present one, or the next one if none is under way
        or if the present one fails. `run_once()` does not count as a run.

        Examples:
            >>> worker.stop()  # none is under way, so this ends the next run
            >>> worker.run()
        """
        self._stop.set()

    def run_once(self) -> bool:
        """Balance if that is due, and read each shard once.

        Leases are not renewed between calls: call it again within the length of a lease.

        Returns:
            Whether there were records.

        Raises:
            InvalidStateError: The worker runs already, in another thread or in a call of a processor.
            Exception: `fetch` or a processor raised it.

        Examples:
            >>> worker.run_once()
            ['a', 'b']
            True
            >>> worker.run_once()
            False
        """
        with self._reading():
            return self._round(lambda: False)

    # ---- steps ---------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Allow one run at a time, and renew leases meanwhile.

        Give everything back after an error.
        """
        # An interrupt may come after any call, before its result is noted. So the dictionary tells whose run it is.
        run = object()
        try:
            # Never wait here: a processor that calls `run()` would wait for itself.
            if self._running.setdefault("run", run) is not run:
                raise InvalidStateError(
                    f"worker {self._leases.worker}: is running already, in another thread or in a call of a processor "
                    "that has not returned: make another Worker, on ShardLeases of its own"
                )
            # Renewing goes on while leases are given back after an error, since that may take long too.
            with self._leases.renewing():
                try:
                    yield
                except BaseException:
                    self._abandon()
                    raise
        finally:
            if self._running == {"run": run}:
                self._running.clear()

    def _round(self, is_stopped: Callable[[], bool]) -> bool:
        """Read each shard once, and return whether there were records.

        End early once `is_stopped` returns True.
        """
        self._balance()
        busy = False
        for shard_id in list(self._readers):
            if is_stopped():
                break
            self._balance()  # The processors before may have taken long.
            # While the store cannot be reached, another worker may have taken the shards and read them too.
            if shard_id in self._readers and not self._leases.may_have_expired:
                busy |= self._read(shard_id)
        return busy

    def _balance(self) -> None:
        """Balance if a third of a lease has passed.

        Then begin and end the reading of shards accordingly.
        """
        now = self._leases.clock()
        if self._balanced_at is not None and now - self._balanced_at < self._leases.duration / 3:
            return
        # Set before the request: while the store is away, it is asked again after a third of a lease, and not in each
        # round.
        self._balanced_at = now
        asked: Sequence[RecordCheckpointer] = ()
        try:
            change = self._leases.balance()
        except RetryableError as error:
            logger.warning("worker %s could not balance, and tries again: %s", self._leases.worker, error)
        else:
            asked = change.asked
            for shard_id, failure in change.failed.items():
                logger.error("shard %r could not be read, and is tried again: %s", shard_id, failure)
        # Lost shards end first: one that was lost and taken again has another checkpointer below, and needs another
        # processor.
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
        """Start a processor for a shard.

        Raise `InvalidStateError` if records were delivered without one.
        """
        if checkpointer.seen != checkpointer.position:
            raise InvalidStateError(
                f"shard {checkpointer.shard_id!r:.60}: records up to {checkpointer.seen} were already delivered "
                f"under this lease, but only {checkpointer.position} is checkpointed: call run() again, to "
                "continue from there with a new lease"
            )
        # The last owner ended between recording the end of the shard and releasing it.
        if checkpointer.position == SHARD_END:
            self._give_back(self._leases.finish, checkpointer)
            return
        processor = self._make_processor()
        # Noted before `initialize`, so that `lease_lost` is called even if that raises.
        self._readers[checkpointer.shard_id] = _Reader(checkpointer, processor)
        has_lease = self._call(checkpointer, processor.initialize, _initialization_of(checkpointer))
        # The processor made a checkpoint that an earlier owner had prepared at the end of the shard. Nothing may come
        # before `shard_ended`: to release the shard would finish it, and its children would never be read.
        if has_lease and checkpointer.position == SHARD_END:
            self._read(checkpointer.shard_id)

    def _read(self, shard_id: str) -> bool:
        """Hand the next records of a shard to its processor.

        Return whether there were any.
        """
        checkpointer, processor = self._readers[shard_id].checkpointer, self._readers[shard_id].processor
        records: Sequence[Any] = ()
        # The end is recorded already if the processor made a checkpoint that an earlier owner prepared there.
        ended = checkpointer.position == SHARD_END
        if not ended:
            records, ended = self._fetch(shard_id, checkpointer.seen)
        if records:
            # Delivered before the call, in which the processor may checkpoint these records.
            self._leases.deliver(checkpointer, records)
            self._call(checkpointer, processor.process_records, ProcessRecordsInput(records, checkpointer))
            ended = ended or checkpointer.position == SHARD_END
        # The lease may have been lost during the call; then the end is the next owner's to record.
        if ended and shard_id in self._readers:
            self._leases.end(checkpointer)
            if self._call(checkpointer, processor.shard_ended, ShardEndedInput(checkpointer)):
                self._give_back(self._leases.finish, checkpointer)
                # `shard_ended` was the last call, so `lease_lost` does not follow.
                del self._readers[shard_id]
        return bool(records)

    def _call(self, checkpointer: RecordCheckpointer, method: Callable[[Any], None], message: object) -> bool:
        """Call a processor if it has its lease.

        Return whether the processor still has its lease, as far as is known.
        """
        if not checkpointer.lost:
            try:
                method(message)
            except ShutdownError:
                # The error then comes from something else of the processor's, and must not pass for a lost shard.
                if not self._is_lost(checkpointer):
                    raise
        if checkpointer.lost:
            self._lose(checkpointer.shard_id)
        return not checkpointer.lost

    def _lose(self, shard_id: str) -> None:
        """Stop reading a shard whose lease is lost or released."""
        self._readers.pop(shard_id).processor.lease_lost(LeaseLostInput())

    def _hand_over(self, shard_id: str) -> None:
        """Let the processor of a shard checkpoint, then release the shard."""
        checkpointer, processor = self._readers[shard_id].checkpointer, self._readers[shard_id].processor
        if not self._call(checkpointer, processor.shutdown_requested, ShutdownRequestedInput(checkpointer)):
            return
        if checkpointer.position == SHARD_END:
            self._read(shard_id)
            return
        self._give_back(self._leases.release, checkpointer)
        self._lose(shard_id)

    def _give_back(self, verb: Callable[[RecordCheckpointer], None], checkpointer: RecordCheckpointer) -> None:
        """Release or finish a shard.

        If the store does not take the release, let the lease expire.
        """
        try:
            verb(checkpointer)
        # Nothing is lost by an expiry: the next owner goes on from what was checkpointed. Other errors, such as an end
        # that was not checkpointed, end the run.
        except (RetryableError, ShutdownError) as error:
            self._let_go(checkpointer, error)

    def _let_go(self, checkpointer: RecordCheckpointer, error: CheckpointError) -> None:
        """Drop a lease that could not be released.

        Its processor had its last call, so it must not be used again.
        """
        logger.warning("%r could not be released, and will expire: %s", checkpointer, error)
        self._leases.let_go(checkpointer)

    def _is_lost(self, checkpointer: RecordCheckpointer) -> bool:
        """Return whether a lease is lost; look at the ownership if that is not known.

        A processor with a store of its own may be fenced there by the shard's next owner before this worker notices
        that the lease is lost.
        """
        if not checkpointer.lost:
            try:
                self._leases.renew()
            except RetryableError as error:
                logger.warning("worker %s could not renew its leases: %s", self._leases.worker, error)
        return checkpointer.lost

    def _abandon(self) -> None:
        """Give all leases back after an error, and tell all processors."""
        # Forgotten first: the next run begins with new leases and new processors, and balances at once.
        readers, self._readers, self._balanced_at = self._readers, {}, None
        for checkpointer in self._leases.held.values():
            try:
                self._leases.release(checkpointer)
            except CheckpointError as error:
                self._let_go(checkpointer, error)
        for shard_id, reader in readers.items():
            try:
                reader.processor.lease_lost(LeaseLostInput())
            except Exception:  # The other processors are told too, and the first error is the one that is raised.
                logger.exception("shard %r: lease_lost() failed", shard_id)


def _initialization_of(checkpointer: RecordCheckpointer) -> InitializationInput:
    """Return the first message of a shard, as its checkpointer knows it."""
    pending = checkpointer.pending
    number = None if pending is None else pending.pending_checkpoint
    return InitializationInput(
        checkpointer.shard_id, checkpointer.position, number, checkpointer.pending_state, checkpointer
    )
