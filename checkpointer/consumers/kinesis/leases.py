"""Offer `ShardLeases`: the leases of one worker on an application's shards.

`ShardLeases` is a public class.
"""

import os
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark_checkpointer import runtime
from pyspark_checkpointer.consumers.kinesis.checkpointer import RecordCheckpointer, deliver, end, run_in_contract
from pyspark_checkpointer.consumers.kinesis.sequence import SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from pyspark_checkpointer.consumers.kinesis.shards import Balance, Shards
from pyspark_checkpointer.consumers.store_client import ClosingContext, StoreClient, StoreConfig
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.positions_json import Row
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption


class ShardLeases(StoreClient[Shards], ClosingContext):
    """The shards of an application that this worker reads. Any thread may call it.

    A lease is held until it is released, or another worker takes it, which is possible once it was not renewed for
    `duration` seconds. Each lease comes with a `RecordCheckpointer` of its own for the shard.

    Examples:
        The examples of the methods go on from here.

        >>> from pyspark_checkpointer.consumers.kinesis import ShardLeases
        >>> leases = ShardLeases("state/positions", "orders", "worker-1")
        >>> leases.create(["shard-0", "shard-1"])
        >>> checkpointer = leases.take("shard-0")
        >>> leases.deliver(checkpointer, [{"sequence_number": "41"}, {"sequence_number": "42"}])
        >>> checkpointer.checkpoint()
        >>> str(checkpointer.position)
        '42'
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
        encryption: EncryptionOption = None,
        signing: SigningOption = None,
    ) -> None:
        """Check the configuration; nothing is connected before the first call.

        Args:
            root: A folder, `s3://bucket/path`, `abfs://container/path`, … It may be the root of a job's state too.
            application: A name. Workers of one application share the shards of one stream.
            worker: A name that no other worker has; by default a new one in each process. Two workers of one name take
                all shards from each other in each round; so do copies and forked children of a worker named here.
            storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
            initial: The place where a shard without a checkpoint begins: TRIM_HORIZON, LATEST or AT_TIMESTAMP.
                With LATEST a shard loses records until it has its first checkpoint: those that come while it changes
                hands, and those that were delivered and not checkpointed. If all count, take one of the others. Shards
                that are created later begin at TRIM_HORIZON: see `create`.
            duration: Seconds after which a lease that is not renewed is free for others.
            max_updates: Checkpoints after which the latest of each shard are written. With 1 each is durable on
                return. Prepared checkpoints, and those at a shard's end, always are. A release first writes what waits.
            interval: Seconds after which checkpoints are written anyway, if `max_updates` is more than 1.
            fencing: "required" refuses a store without atomic compare-and-swap; "none" works on any store, and then
                two workers can own one shard.
            concurrency: Maximum number of concurrent requests; of small reads sixteen times as many.
            timeout: Seconds after which a request counts as unanswered.
            encryption: What opens the keys of an encrypted root, as in `pyspark_checkpointer.Checkpointer`.
            signing: Whom to trust and what to sign with, as in `pyspark_checkpointer.Checkpointer`.

        Raises:
            IllegalArgumentError: `initial` is no place to begin, or another argument is not what it must be.
        """
        if not isinstance(initial, ExtendedSequenceNumber) or not initial.is_start:
            raise IllegalArgumentError(f"initial={initial!r:.60}: expected TRIM_HORIZON, LATEST or AT_TIMESTAMP")
        self._application, self._worker, self._initial = application, worker, initial
        self._duration, self._max_updates, self._interval = duration, max_updates, interval
        super().__init__(StoreConfig(root, storage_options, fencing, concurrency, timeout, encryption, signing))

    def _make_core(self, context: StoreContext) -> Shards:
        worker = self._worker
        if worker is None:
            # Drawn here and not in `__init__`: a copy in another process is another worker.
            worker = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        return Shards(
            context, self._application, worker, self._initial, self._duration, self._max_updates, self._interval
        )

    @property
    def worker(self) -> str:
        """The name of this worker, as others see it."""
        return self._core.leases.worker

    @property
    def duration(self) -> float:
        """Seconds that a lease lasts unless it is renewed."""
        return self._core.leases.duration

    def clock(self) -> float:
        """Return a time in seconds, by the monotonic clock that leases are measured with.

        Examples:
            >>> leases.clock() <= leases.clock()
            True
        """
        return self._core.host.clock() / 1e9

    @property
    def held(self) -> Mapping[str, RecordCheckpointer]:
        """The checkpointers of the leases that are not known to be lost, by shard."""
        # A copy first: the event loop changes the dictionary while this thread iterates.
        return {name: one for name, one in dict(self._core.checkpointers).items() if not one.lost}

    def rows(self) -> Mapping[str, Row]:
        """Return all shards of the application, with their owners. One read.

        Raises:
            InvalidStateError: What is stored is damaged.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.

        Examples:
            >>> {shard_id: row.owner for shard_id, row in leases.rows().items()}
            {'shard-0': 'worker-1', 'shard-1': ''}
        """
        return run_in_contract(self._core.leases.rows())

    def create(self, shards: Iterable[str]) -> None:
        """Add these shards, for any worker to take.

        Shards that are known already stay as they are. With `initial=LATEST`, give all shards of the stream in the
        first call: those that are added later came from shards that were split or merged, so they are read from their
        first record.

        Args:
            shards: The ids of the shards.

        Raises:
            IllegalArgumentError: This is no list of names.
            InvalidStateError: What is stored is damaged.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.

        Examples:
            >>> leases.create(["shard-1", "shard-2"])
            >>> sorted(leases.rows())
            ['shard-0', 'shard-1', 'shard-2']
        """
        run_in_contract(self._core.create(shards))

    def take(self, shard_id: str, *, force: bool = False) -> RecordCheckpointer | None:
        """Take a shard that is free, expired, or this worker's already.

        In the last case its delayed checkpoints are written first.

        Args:
            shard_id: The id of the shard.
            force: Whether to take any shard that was created.

        Returns:
            Its checkpointer, or None if the shard was not taken.

        Raises:
            IllegalArgumentError: This is no name of a shard.
            InvalidStateError: What is stored is damaged.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.

        Examples:
            >>> second = leases.take("shard-1")
            >>> sorted(leases.held)
            ['shard-0', 'shard-1']
        """
        return run_in_contract(self._core.take(shard_id, force))

    def deliver(self, checkpointer: RecordCheckpointer, records: Iterable[Any]) -> None:
        """Note that these records are about to be processed.

        From now on they may be checkpointed. Call it if you read without a `Worker`, always from one thread.

        Args:
            checkpointer: The checkpointer of the shard.
            records: The records, objects or mappings with `sequence_number`.

        Raises:
            IllegalArgumentError: A record has no sequence number, or the end of the shard was announced by `end`.

        Examples:
            >>> leases.deliver(checkpointer, [{"sequence_number": "43"}])
            >>> str(checkpointer.seen)
            '43'
        """
        deliver(checkpointer, records)

    def end(self, checkpointer: RecordCheckpointer) -> None:
        """Note that everything in the shard was delivered.

        A checkpoint at its last record is then one at its end. Call it if you read without a `Worker`, from the thread
        that delivers.

        Args:
            checkpointer: The checkpointer of the shard.

        Examples:
            >>> leases.end(checkpointer)
            >>> checkpointer.checkpoint()
            >>> str(checkpointer.position)
            'SHARD_END'
        """
        end(checkpointer)

    def renew(self) -> tuple[RecordCheckpointer, ...]:
        """Renew all leases in one swap, and return those that are lost.

        Each lost lease is returned once, here or by `balance()`.

        Raises:
            InvalidStateError: What is stored is damaged.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.

        Examples:
            >>> leases.renew()
            ()
        """
        return run_in_contract(self._core.renew())

    def claim(self, shard_id: str) -> bool:
        """Ask the owner of a shard for it.

        The owner finds the request by `balance()`, and should release the shard. One length of a lease later it can be
        taken from the owner.

        Args:
            shard_id: The id of the shard.

        Returns:
            Whether this worker's request is the one that stands.

        Raises:
            InvalidStateError: What is stored is damaged.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.

        Examples:
            >>> other = ShardLeases("state/positions", "orders", "worker-2")
            >>> other.claim("shard-0")
            True
        """
        return run_in_contract(self._core.leases.ask(shard_id))

    def release(self, checkpointer: RecordCheckpointer) -> None:
        """Give a shard back after its delayed checkpoints were written.

        If its end was checkpointed, the shard is finished, and nobody takes it again. If a delayed checkpoint cannot be
        written, the lease is held as before. If giving back fails, the lease has still ended for this worker: it
        expires for others, and this worker can take the shard again.

        Args:
            checkpointer: The checkpointer of the shard.

        Raises:
            IllegalArgumentError: The checkpointer did not come with one of these leases.
            InvalidStateError: What is stored is damaged.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.

        Examples:
            >>> leases.release(checkpointer)
            >>> leases.rows()["shard-0"].owner
            ''
        """
        run_in_contract(self._core.release(checkpointer))

    def let_go(self, checkpointer: RecordCheckpointer) -> None:
        """Drop a shard without a request.

        Its delayed checkpoints are given up, and the lease expires.

        Args:
            checkpointer: The checkpointer of the shard.

        Raises:
            IllegalArgumentError: The checkpointer did not come with one of these leases.

        Examples:
            >>> leases.let_go(checkpointer)
            >>> dict(leases.held)
            {}
        """
        run_in_contract(self._core.let_go(checkpointer))

    def finish(self, checkpointer: RecordCheckpointer) -> None:
        """Give back a shard that has ended.

        Args:
            checkpointer: The checkpointer of the shard.

        Raises:
            IllegalArgumentError: The end of the shard was not checkpointed.
            InvalidStateError: What is stored is damaged.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.

        Examples:
            >>> leases.end(checkpointer)
            >>> checkpointer.checkpoint()
            >>> leases.finish(checkpointer)
            >>> leases.take("shard-0") is None
            True
        """
        # An object of another type is refused by `release()` below.
        if isinstance(checkpointer, RecordCheckpointer) and checkpointer.position != SHARD_END:
            raise IllegalArgumentError(
                f"shard {checkpointer.shard_id!r:.60}: has ended, and its checkpoint is {checkpointer.position}: call "
                "checkpoint() in shard_ended(); until its end is recorded it is not finished, and is read again"
            )
        self.release(checkpointer)

    def forget(self, shard_id: str) -> None:
        """Remove the row of a shard that does not exist any more.

        Balancing then ignores the shard. The row is removed even if another worker has the shard. The position of the
        shard stays. A shard that is created again continues from this position, or has ended.

        Args:
            shard_id: The id of the shard.

        Raises:
            InvalidStateError: What is stored is damaged.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.

        Examples:
            >>> leases.forget("shard-1")
            >>> list(leases.rows())
            ['shard-0']
        """
        run_in_contract(self._core.forget(shard_id))

    @property
    def may_have_expired(self) -> bool:
        """True if no renewal succeeded for the length of a lease.

        Other workers may have taken the shards by now, although nobody could tell this one.

        Examples:
            >>> leases.may_have_expired
            False
        """
        return self._core.may_have_expired

    def balance(self) -> Balance:
        """Run one round of balancing, and return what changed.

        It renews the leases that are held, takes free shards, and asks for missing ones.

        Raises:
            InvalidStateError: What is stored is damaged.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.

        Examples:
            >>> [gained.shard_id for gained in leases.balance().gained]
            ['shard-1']
        """
        return run_in_contract(self._core.balance())

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """Renew leases in the background during the `with` block.

        They are renewed whenever `renew()` and `balance()` are late.

        Examples:
            >>> with leases.renewing():
            ...     checkpointer.checkpoint()  # after hours of work
        """
        # The library's loop renews, so a processor that blocks its own thread for long keeps its leases.
        wanted, work = [True], None
        try:
            # An interrupt may come before the future is known. Then the task finds that it is not wanted any more.
            work = runtime.submit(self._core.keep_renewing(lambda: bool(wanted)))
            yield
        finally:
            wanted.clear()
            if work is not None:
                work.cancel()

    def flush(self) -> None:
        """Write the delayed checkpoints of all shards. Those of lost leases are given up.

        If a checkpoint was not written, its error is raised, after the others were written. The checkpoint is kept and
        tried again, and each flush raises its error until it succeeds. If no try can succeed, it is given up, and its
        error is raised once.

        Raises:
            InvalidStateError: What is stored is damaged.
            ThrottlingError, DependencyError: The store did not take it, or did not answer. Call again.

        Examples:
            >>> waiting = ShardLeases("state/positions", "orders", "worker-2", max_updates=100)
            >>> second = waiting.take("shard-1")
            >>> waiting.deliver(second, [{"sequence_number": "51"}])
            >>> second.checkpoint()
            >>> waiting.flush()
            >>> leases.take("shard-1", force=True).position == second.position
            True
        """
        run_in_contract(self._core.flush())

    def close(self) -> None:
        """Write the delayed checkpoints, and release connections.

        Leases are not released, and expire. Later checkpoints raise `InvalidStateError`. Everything else still works,
        and connects again.

        Raises:
            CheckpointError: As in `flush`.

        Examples:
            >>> leases.close()
            >>> leases.rows()["shard-0"].owner  # connects again
            'worker-1'
        """
        run_in_contract(self._core.close())
