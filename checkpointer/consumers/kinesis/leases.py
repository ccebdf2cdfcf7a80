"""The leases of one worker, for programs."""

import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark_checkpointer import runtime
from pyspark_checkpointer.consumers.cas_object import Space
from pyspark_checkpointer.consumers.kinesis.checkpointer import RecordCheckpointer, in_contract
from pyspark_checkpointer.consumers.kinesis.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from pyspark_checkpointer.consumers.kinesis.shards import Balance, Shards
from pyspark_checkpointer.consumers.store_context import Client, Closing, Root
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.positions_json import Row
from pyspark_checkpointer.storage import Fencing


class ShardLeases(Client[Shards], Closing):
    """Which shards of an application this worker reads. Any thread may call it; each verb is in `Leases`' words.

    A lease is held until it is released, or taken by another worker, who may once it was not renewed for `duration`
    seconds. With a lease comes the `RecordCheckpointer` of the shard; another lease on it brings another one.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        application: str,
        worker: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        *,
        initial: ExtendedSequenceNumber = TRIM_HORIZON,
        duration: float = 10.0,
        max_updates: int = 1,
        interval: float = 1.0,
        fencing: Fencing = "required",
        concurrency: int = 16,
        timeout: float = 60.0,
    ) -> None:
        """Check the configuration; nothing is connected before the first call.

        Args:
            root: A folder, `s3://bucket/path`, `abfs://container/path`, … It may be the root of a job's state too.
            application: Workers of one application share the shards of one stream.
            worker: A name that no other worker has; by default one that is new in each process. Two that share a name,
                as a copy or a forked child has the one that is given here, take everything from each other, each round.
            storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
            initial: Where a shard begins of which nothing was checkpointed: TRIM_HORIZON, LATEST or AT_TIMESTAMP. From
                LATEST on, what a worker reads and does not live to checkpoint for the first time, nobody reads again.
            duration: Seconds after which a lease that is not renewed is free for others.
            max_updates: Checkpoints after which the latest of each shard are written. With 1 each is durable on
                return. Those at a shard's end and prepared ones always are, and a release writes what waits first.
            interval: With more than 1: seconds after which what was checkpointed is written anyway.
            fencing: "required" refuses a store that cannot swap atomically; "none" does without, and then two workers
                can own one shard.
            concurrency: Requests under way at once, not counting small reads: of these sixteen times as many.
            timeout: Seconds after which a request counts as unanswered.
        """
        if not isinstance(initial, ExtendedSequenceNumber) or not initial.is_start:
            raise IllegalArgumentError(f"initial={initial!r:.60}: expected TRIM_HORIZON, LATEST or AT_TIMESTAMP")
        self._application, self._worker, self._initial = application, worker, initial
        self._duration, self._max_updates, self._interval = duration, max_updates, interval
        super().__init__(Root(root, storage_options, fencing, concurrency, timeout))

    def _make(self, space: Space) -> Shards:
        worker = self._worker
        if worker is None:
            worker = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        return Shards(
            space, self._application, worker, self._initial, self._duration, self._max_updates, self._interval
        )

    @property
    def worker(self) -> str:
        return self._core.leases.worker

    @property
    def duration(self) -> float:
        return self._core.leases.duration

    def clock(self) -> float:
        """Seconds since some moment, by the clock that leases go by."""
        return self._core.host.clock() / 1e9

    @property
    def held(self) -> Mapping[str, RecordCheckpointer]:
        """The checkpointers of the shards whose leases are not known to be lost, by shard."""
        return {name: one for name, one in dict(self._core.checkpointers).items() if not one.lost}

    def rows(self) -> Mapping[str, Row]:
        """Return every shard of the application, with its owner. One read."""
        return in_contract(self._core.leases.rows())

    def create(self, shards: Iterable[str]) -> None:
        """Make these shards known, for any worker to take. Those that are known stay as they are."""
        in_contract(self._core.leases.create(shards))

    def take(self, shard_id: str, *, force: bool = False) -> RecordCheckpointer | None:
        """Take a shard that is free, expired, or this worker's already; None where it is not. `force` takes any.

        Only shards that were created can be taken.
        """
        return in_contract(self._core.take(shard_id, force))

    def deliver(self, checkpointer: RecordCheckpointer, records: Iterable[Any]) -> None:
        """Note that these records are about to be handed to who processes them, and may be checkpointed from now on.

        For those who read without a `Worker`; from one thread.
        """
        checkpointer._deliver(records)

    def end(self, checkpointer: RecordCheckpointer) -> None:
        """Note that everything in the shard was delivered: from now on its last record stands for its end.

        For those who read without a `Worker`; from the thread that delivers.
        """
        checkpointer._end()

    def renew(self) -> tuple[RecordCheckpointer, ...]:
        """Renew everything held, in one swap. Those that are lost, each told once, here or by `balance()`."""
        return in_contract(self._core.renew())

    def claim(self, shard_id: str) -> bool:
        """Ask the owner of a shard for it. Whether this worker is the one that it will go to.

        The owner learns of it by `balance()`, and is to release it; one length of a lease later it can be taken.
        """
        return in_contract(self._core.leases.ask(shard_id))

    def release(self, checkpointer: RecordCheckpointer) -> None:
        """Give a shard back, once what waits is written. Where its end was checkpointed, nobody takes it again.

        Where what waits cannot be written, the lease is held as before. Where giving it back fails, the lease has ended
        here all the same: for others it expires, and this worker can take the shard anew.
        """
        in_contract(self._core.release(checkpointer))

    def let_go(self, checkpointer: RecordCheckpointer) -> None:
        """Hold a shard no more, and tell nobody. What waits is given up, and the lease expires."""
        in_contract(self._core.let_go(checkpointer))

    def finish(self, checkpointer: RecordCheckpointer) -> None:
        """Give back a shard that has ended; `IllegalArgumentError` where its end was not checkpointed."""
        if isinstance(checkpointer, RecordCheckpointer) and checkpointer.position != SHARD_END:
            raise IllegalArgumentError(
                f"shard {checkpointer.shard_id!r:.60}: has ended, and its checkpoint is {checkpointer.position}: call "
                "checkpoint() in shard_ended(); until its end is recorded it is not finished, and is read again"
            )
        self.release(checkpointer)

    def forget(self, shard_id: str) -> None:
        """Remove the row of a shard that is no more, so that rounds need not look at it, whoever has it.

        What was recorded of it stays: a shard that is created again goes on from there, or has ended.
        """
        in_contract(self._core.forget(shard_id))

    def balance(self) -> Balance:
        """Return one round: renew what is held, take what is free, claim what this worker has too few of."""
        return in_contract(self._core.balance())

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Renew leases in the background meanwhile, whenever `renew()` and `balance()` are late."""
        work = runtime.submit(self._core.keep_renewing())
        try:
            yield
        finally:
            work.cancel()

    def flush(self) -> None:
        """Make durable what was checkpointed, of all shards; of those that are lost, it is given up.

        Raises why one shard was not written, whatever became of the others. It is kept and tried again, and raised
        again until then; but what no try can mend is given up, and raised once.
        """
        in_contract(self._core.flush())

    def close(self) -> None:
        """Write what is not written yet, and release connections; what `flush()` raises, this does too.

        Checkpoints are refused afterwards, with `InvalidStateError`. Everything else still works, and connects again:
        leases are not released, and expire.
        """
        in_contract(self._core.close())
