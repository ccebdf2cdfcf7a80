"""Define the class `State`, which a foreachBatch callback is given.

It has the maps, tables and partitions of a batch.
"""

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_checkpointer.checkpoint import save_bytes
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.keyed.state import KeyedState
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Json
from pyspark_checkpointer.runtime.not_picklable import NotPicklable
from pyspark_checkpointer.spark.arguments import TableDefinition
from pyspark_checkpointer.spark.batch import Token
from pyspark_checkpointer.spark.batch_attempt import BatchAttempt
from pyspark_checkpointer.spark.other_state import OnRetired, OtherState
from pyspark_checkpointer.spark.raw_partitions import Write, partitioning, write_partitions
from pyspark_checkpointer.spark.table import TableState
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption
from pyspark_checkpointer.table.expiry import Expire
from pyspark_checkpointer.table.schema import Combine

P = ParamSpec("P")
T = TypeVar("T")

_ONLY_READ = {"other", "partition"}
"""Operations that leave nothing out of the state where they are refused."""


def _operation(
    method: "Callable[Concatenate[State, P], T]",
) -> "Callable[Concatenate[State, P], T]":
    """Make a method one operation of the batch.

    Operations with the same first argument wait for each other. It is a name in the state, or the root of another job.
    """

    @functools.wraps(method)
    def call(self: "State", /, *args: P.args, **kwargs: P.kwargs) -> T:
        first = args[0] if args else kwargs.get("name", kwargs.get("root"))
        with self._attempt.operations.one(str(first), only_reads=method.__name__ in _ONLY_READ):
            return method(self, *args, **kwargs)

    return call


class State(NotPicklable):
    """The state of a query during one batch.

    It is the third argument of the function that `stateful` decorates. Its changes are durable before Spark counts the
    batch as done. If the batch fails, nothing changes. Threads of the function may use it together: join them before
    the function returns. After that this object refuses them, and a batch that is not committed yet fails if a call
    that changes state was refused. But a map is the same object in all batches of a run, and a thread that still runs
    changes it in the batch that is running then.

    Examples:
        The examples of the methods run in such a function. `batch`, `batch_id` and `state` are its arguments.

        >>> @stateful("state/shop")
        ... def update(batch, batch_id, state):
        ...     state.map("batches", partitions=1)[batch_id] = batch.count()
        ...     totals = state.table("totals", ["digit"], num_partitions=2, combine={"n": "sum"})
        ...     digits = batch.selectExpr("value % 2 AS digit")
        ...     totals.upsert(digits.groupBy("digit").count().withColumnRenamed("count", "n"))
        ...     state.properties["token"] = str(state.token)
        >>> numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        >>> writer = numbers.writeStream.option("checkpointLocation", "state/shop-spark")
        >>> query = writer.foreachBatch(update).trigger(availableNow=True).start()
        >>> query.awaitTermination()
        >>> restored = update.checkpointer.restore()
        >>> restored.keyed("batches").to_dict(), restored.operators
        ({0: 10}, ['batches', 'totals'])
    """

    _instead = (
        "it lives on the driver. Send plain values, such as state.map(name).to_dict(); for what tasks read or write "
        "there are state.table(…).lookup(keys) and upsert(rows), joins with table.read(), and state.write_partitions(…)"
    )

    def __init__(self, spark: SparkSession, attempt: BatchAttempt) -> None:
        self._spark = spark
        self._attempt = attempt

    @property
    def token(self) -> Token:
        """The query id and the batch id.

        Store the token with what the function writes elsewhere, to write each batch once.
        """
        job = self._attempt.job
        return Token(job.query_id, job.batch_id)

    @property
    def id(self) -> CheckpointId:
        """The id of the checkpoint that this batch becomes."""
        return self._attempt.checkpoint.id

    @property
    def restored(self) -> Restored | None:
        """The checkpoint that this run began with; None if the root was empty."""
        return self._attempt.run.restored

    @property
    def positions(self) -> dict[str, Json]:
        """Source positions to record, as a dict of JSON values.

        At first the dict is that of the last checkpoint.
        """
        self._attempt.operations.check()
        return self._attempt.checkpoint.positions

    @property
    def properties(self) -> dict[str, Json]:
        """Properties to record, as a dict of JSON values of at most 250 levels.

        At first the dict is that of the last checkpoint.
        """
        self._attempt.operations.check()
        return self._attempt.checkpoint.properties

    @property
    def clock(self) -> datetime:
        """The job's clock in UTC, by which rows of tables expire.

        The clock is the time that Spark recorded for the batch. It is the same when Spark repeats the batch. A job that
        calls `advance_clock` moves the clock itself. The checkpoint records it.

        Raises:
            InvalidStateError: Spark did not tell the time, and the job did not either.
        """
        self._attempt.operations.check()
        return self._attempt.clock.now()

    def advance_clock(self, to: datetime | None) -> None:
        """Move the job's clock, as to the earliest event time of the batch.

        With a later time, rows expire before the older events of the same batch reach them.

        From the first call on, the times of Spark's batches do not count any more. Move the clock before you use a
        table with `expire=`.

        Args:
            to: A time. Without a zone it is in local time, as PySpark returns timestamps. Of a `timestamp_ntz` column,
                which counts as UTC, give `time.replace(tzinfo=UTC)`. A time before that of the clock changes nothing,
                and neither does None, as an empty batch gives it. If the job has no clock yet, None lets it begin in
                the year 1: nothing expires until a later call gives a time.

        Raises:
            IllegalArgumentError: It is no time.
            InvalidStateError: In this batch, at the time before, a table with `expire=` was used or a map with entries
                took its first `expire_after`; or the time is None or before that of Spark's batch, by which the clock
                was used.

        Examples:
            >>> from datetime import UTC, datetime
            >>> state.advance_clock(datetime(2024, 1, 2, tzinfo=UTC))
            >>> state.clock.isoformat()
            '2024-01-02T00:00:00+00:00'
        """
        attempt = self._attempt
        with attempt.operations.one("the clock"):
            attempt.advance_clock(to)

    @_operation
    def map(self, name: str, *, partitions: int | None = None, expire_after: timedelta | None = None) -> KeyedState:
        """Return a mapping on the driver, as the last batch left it.

        Its changes are saved when the function returns.

        Args:
            name: The name of the map, among the maps, tables and operators of the job.
            partitions: The number of parts that the map is saved in, from 1 to 131,072; 8 for a new one. Another number
                than before spreads all entries again.
            expire_after: When entries expire: once `state.clock` has reached the clock of the batch that last set or
                changed them plus this duration, they are in the map no more. Say it in every batch: without it entries
                do not expire. A map that takes a rule counts older entries from then on. Where entries are to live
                longer than before, the batch writes the partitions anew that have expired ones.

        Raises:
            IllegalArgumentError: A table or other operator has this name, or the map is in use with other partitions
                or another rule.
            InvalidStateError: The batch has ended; or the job has no clock, and `expire_after` needs one.

        Examples:
            >>> counts = state.map("counts", partitions=1)
            >>> counts["ann"] = counts.get("ann", 0) + 1
            >>> counts.to_dict()
            {'ann': 1}
        """
        return self._attempt.open_map(name, partitions, expire_after)

    @_operation
    def table(
        self,
        name: str,
        key: Sequence[str],
        *,
        num_partitions: int | None = None,
        combine: Mapping[str, Combine] | None = None,
        schema: StructType | str | None = None,
        expire: Expire | None = None,
    ) -> TableState:
        """Return a distributed table, as the last batch left it.

        All changes of the table are part of this batch.

        Args:
            name: The name of the table, among the maps, tables and operators of the job.
            key: The columns that tell one row from another, in the order in which they are hashed.
            num_partitions: The number of parts in which the rows are kept; 16 for a new table. Another number than
                before moves every row to its new part in this batch.
            combine: How the old and the new value of a column become one: "sum", "min" or "max". Other columns take the
                last value. Nulls are left out. Sums of integers and decimals are exact; those of floats depend on the
                order.
            schema: The columns of a table that nothing was written to yet, to read it before that: a `StructType`, or
                text such as "user string, n long". To a table that has columns already, `apply`, `apply_groups` and
                `first_seen` add those that it lacks, and they make its numbers wider. A type that is narrower than the
                table's changes nothing.
            expire: When rows expire: once `state.clock` has reached the time in a column plus a duration, a row is in
                no read any more. Compaction removes its bytes. Say it in every batch: without it rows do not expire.
                Where rows are to live longer than before, the batch writes the table anew.

        Raises:
            IllegalArgumentError: A map has this name, the table was opened in this batch already, or an argument does
                not fit the stored table. The message has both.
            InvalidStateError: The batch has ended.

        Examples:
            >>> totals = state.table("totals", ["digit"], combine={"n": "sum"}, schema="digit long, n long")
            >>> totals.read().columns
            ['digit', 'n']
        """
        definition = TableDefinition(key, num_partitions, combine, schema, expire)
        changes = self._attempt.open_table(self._spark, name, definition)
        return TableState(changes, functools.partial(self._attempt.table_operation, name))

    @_operation
    def other(
        self,
        root: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        start: CheckpointId | str = "latest",
        on_retired: OnRetired = "error",
        fencing: Fencing = "required",
        encryption: EncryptionOption = None,
        signing: SigningOption = None,
    ) -> OtherState:
        """Return the state of another job at one checkpoint.

        The checkpoint stays the same for the whole batch. A batch reads the checkpoint that the batch before it chose.
        At its commit, a batch records two ids in `positions["checkpointer:<root>"]`: "read", which it read, and "next",
        which was the newest one then. The next batch reads "next". So a batch that is repeated after a crash reads the
        same state again, although the other job has continued. The first batch after a rewind or in a fork does so,
        too. `read_state` reads the newest checkpoint of now, which may differ in a repeated batch.

        Args:
            root: The root of the other job: a folder or a URL.
            storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
            start: What the first batch reads that asks for this root, in any form that `Checkpointer.restore` takes.
                If that batch dies before its commit, its repetition reads "latest" anew. A savepoint, as in
                "savepoint=start", stays the same.
            on_retired: What to do if the other job does not keep the recorded checkpoint any more. "error" refuses the
                batch. "newest" reads the newest one, with a warning.
            fencing: As in `Checkpointer`. Nothing is written there, so "none" is safe to read any root.
            encryption: What opens the keys of that root, as in `Checkpointer`.
            signing: Whom to trust for that root, as in `Checkpointer`.

        Raises:
            RetiredError: The recorded checkpoint is not live any more.
            StoreNotFoundError: No checkpoint was committed there yet.
            IllegalArgumentError: It is the root of this job, or an argument is not what it must be.

        Examples:
            >>> shop = state.other("state/shop")
            >>> shop.operators, shop.epoch
            (['batches', 'totals'], 0)
        """
        attempt = self._attempt
        client, restored = attempt.others.pin(root, storage_options, encryption, signing, start, on_retired, fencing)
        return OtherState(self._spark, client, restored, functools.partial(attempt.operations.one, only_reads=True))

    @_operation
    def write_partitions(
        self,
        name: str,
        frame: DataFrame,
        write: Write,
        *,
        key: Sequence[str] | None = None,
        num_partitions: int | None = None,
    ) -> None:
        """Run a function on the executors for each partition of a DataFrame.

        The bytes that the function returns are saved.

        Args:
            name: The name of the operator.
            frame: The rows.
            write: A function `write(partition, batches)` of the number of a partition and its rows as Arrow record
                batches. It returns `Snapshot(bytes)`, `Delta(bytes)`, or None to leave the partition as it is.
            key: Columns by which rows are brought together: partition `pmod(hash(key), num_partitions)`, the same in
                every batch, so their types must stay. Without it the partitions are those of the DataFrame, by index;
                those that it does not have in this batch stay as they were. For those that it has without rows, `write`
                is called too: return None there to keep their state.
            num_partitions: The number of partitions, with `key`.

        Raises:
            IllegalArgumentError: Only one of `key` and `num_partitions` is given, or an argument is not what it must
                be.
            InvalidStateError: The batch has ended.

        Examples:
            >>> def write(partition, batches):
            ...     return Snapshot(b"%d rows" % sum(rows.num_rows for rows in batches))
            >>> state.write_partitions("sizes", batch, write, key=["value"], num_partitions=1)
        """
        object_paths.encode_name("operator", name)
        attempt = self._attempt
        attempt.refuse_open_name(name)
        attempt.used_names.add(name)
        made = attempt.checkpoint.attempt
        # Before the tasks run: another key, type of it or number of partitions is refused, and costs no work.
        save_bytes.declare(made, name, partitioning(name, frame, key, num_partitions))
        write_partitions(made, attempt.run.client, name, frame, write, key, num_partitions)

    @_operation
    def partition(self, name: str, partition: int) -> list[bytes]:
        """Return the snapshot of a partition, then its deltas.

        They are those of the last committed batch.

        Args:
            name: The name of the operator.
            partition: The number of the partition, from 0.

        Returns:
            A list of bytes; empty if the partition has no state.

        Raises:
            IllegalArgumentError: This is no name, or no number of a partition.
            CorruptionError: An object is missing or damaged.
            InvalidStateError: The batch has ended.

        Examples:
            >>> state.partition("sizes", 0)  # in the first batch
            []
        """
        object_paths.encode_name("operator", name)
        object_paths.check_partition(partition)
        self._attempt.used_names.add(name)
        committed = self._attempt.checkpoint.parent
        if committed is None or name not in committed.operators:
            return []
        operator = committed.operator(name)
        return operator.partition(partition) if partition in operator.partitions else []

    @_operation
    def drop(self, name: str) -> None:
        """Leave a map, table or operator out, from this batch on.

        A name that the state does not have is no error, because a function says the same in every batch. A run logs a
        WARNING once for a name that it never had. If a batch opens the name again, it begins empty: a function that
        drops and opens it in every batch has no more in it than what one batch wrote. A run logs a WARNING once then.

        Args:
            name: Its name.

        Raises:
            IllegalArgumentError: This is no name.
            InvalidStateError: The batch has ended.

        Examples:
            >>> state.map("old")["ann"] = 1
            >>> state.drop("old")
            >>> len(state.map("old"))
            0
        """
        self._attempt.drop(name)


Callback = Callable[[DataFrame, int, State], Any]
