"""The class `State`, which a foreachBatch callback is given.

It has the maps, tables and partitions of a batch.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.keyed.state import DEFAULT_PARTITIONS, KeyedState
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.map_expiry import micros
from pyspark_checkpointer.manifests.model import CheckpointId, Json
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.runtime.not_picklable import NotPicklable
from pyspark_checkpointer.spark import maps
from pyspark_checkpointer.spark.batch import Token
from pyspark_checkpointer.spark.batch_attempt import BatchAttempt
from pyspark_checkpointer.spark.other_state import OnRetired, OtherState
from pyspark_checkpointer.spark.raw_partitions import Write, partitioning, write_partitions
from pyspark_checkpointer.spark.table import TableState
from pyspark_checkpointer.spark.table_changes import TableChanges
from pyspark_checkpointer.table.expiry import Expire
from pyspark_checkpointer.table.schema import Combine

P = ParamSpec("P")
T = TypeVar("T")


def _operation(
    method: "Callable[Concatenate[State, P], T]",
) -> "Callable[Concatenate[State, P], T]":
    """Make a method one operation of the batch.

    Its first argument is the name of a map, table or operator.
    """

    @functools.wraps(method)
    def call(self: "State", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._attempt.operations.one(str(args[0] if args else kwargs.get("name"))):
            return method(self, *args, **kwargs)

    return call


class State(NotPicklable):
    """The state of a query during one batch.

    It is the third argument of the function that `stateful` decorates. It is durable before Spark counts the batch as
    done, or is not changed at all. Threads of the function may use it together. A thread that outlives the function is
    refused.

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
        """Properties to record, as a dict of JSON values.

        At first the dict is that of the last checkpoint.
        """
        self._attempt.operations.check()
        return self._attempt.checkpoint.properties

    @property
    def clock(self) -> datetime:
        """The job's clock in UTC, by which rows of tables expire.

        It is the time that Spark recorded for the batch, and the same when Spark repeats the batch. A job that calls
        `advance_clock` moves it itself. The checkpoint records it.

        Raises:
            InvalidStateError: Spark did not tell the time, and the job did not either.
        """
        self._attempt.operations.check()
        return self._attempt.clock.now()

    def advance_clock(self, to: datetime | None) -> None:
        """Move the job's clock, for instance to the latest event time of the batch.

        From the first call on, the times of Spark's batches do not count any more.

        Args:
            to: A time. Without a zone it is in local time, as PySpark returns timestamps. A time before that of the
                clock changes nothing, and neither does None.

        Raises:
            IllegalArgumentError: It is no time.
            InvalidStateError: Spark's batches have moved the clock beyond this time already.

        Examples:
            >>> from datetime import UTC, datetime
            >>> state.advance_clock(datetime(2024, 1, 2, tzinfo=UTC))
            >>> state.clock.isoformat()
            '2024-01-02T00:00:00+00:00'
        """
        attempt = self._attempt
        with attempt.operations.one("the clock"):
            attempt.clock.advance(to)
            # Not those that this batch has not opened: the rule of this batch may let their entries live longer.
            # A copy, and `get`: other threads may open and drop maps meanwhile.
            for name, after in list(attempt.map_rules.items()):
                keyed = attempt.run.maps.get(name)
                if after is not None and keyed is not None:
                    keyed.expire(micros(attempt.clock.now()))

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
        object_paths.encode_name("map", name)
        after = maps.check_expire_after(name, expire_after)
        attempt, run = self._attempt, self._attempt.run
        if name in attempt.tables:
            raise IllegalArgumentError(f"map {name!r}: a table of this job has that name")
        attempt.used_names.add(name)
        keyed = run.maps.get(name)
        # Maps and tables share their names, so a table must not be opened as a map.
        known = attempt.checkpoint.writer.operator(name)
        if keyed is None and known is not None and known.codec == codecs.PARQUET.name:
            raise IllegalArgumentError(
                f"map {name!r}: the state has a table of that name: state.table({name!r}, key=…)"
            )
        if keyed is None:
            restored = run.restored
            # A map that this run dropped begins empty, although the checkpoint that the run began with still has it.
            if restored is not None and name in restored.operators and name not in run.dropped:
                keyed = restored.keyed(name, partitions)
            else:
                keyed = KeyedState(partitions=DEFAULT_PARTITIONS if partitions is None else partitions)
            run.maps[name] = keyed
        elif partitions not in (None, keyed.partitions):
            raise IllegalArgumentError(
                f"map {name!r}: is in use with {keyed.partitions} partitions, not {partitions!r}"
            )
        if name not in attempt.map_rules:
            maps.set_rule(keyed, after, attempt.clock, attempt.checkpoint.writer.base.manifest)
            attempt.map_rules[name] = after
        elif after not in (None, attempt.map_rules[name]):
            raise IllegalArgumentError(
                f"map {name!r}: was opened in this batch with another expire_after: give {expire_after} there too"
            )
        return keyed

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

        What is written to it is part of this batch.

        Args:
            name: The name of the table, among the maps, tables and operators of the job.
            key: The columns that tell one row from another, in the order in which they are hashed.
            num_partitions: The number of parts in which the rows are kept; 16 for a new table. Another number than
                before moves every row to its new part in this batch.
            combine: How the old and the new value of a column become one: "sum", "min" or "max". Other columns take the
                last value. Nulls are left out. Sums of integers and decimals are exact; those of floats depend on the
                order.
            schema: The columns of a table that nothing was written to yet, to read it before that: a `StructType`, or
                text such as "user string, n long".
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
        object_paths.encode_name("table", name)
        attempt, run = self._attempt, self._attempt.run
        if name in run.maps:
            raise IllegalArgumentError(f"table {name!r}: a map of this job has that name")
        if name in attempt.tables:
            raise IllegalArgumentError(f"table {name!r}: was opened in this batch already: use what that returned")
        attempt.used_names.add(name)
        changes = TableChanges(
            self._spark,
            run.client,
            attempt.checkpoint.writer,
            name,
            key,
            num_partitions,
            combine,
            schema,
            expire,
            attempt.clock,
            shuffle_first=name in run.tables_to_shuffle,
        )
        attempt.tables[name] = changes
        return TableState(changes, functools.partial(self._table_operation, name))

    @_operation
    def other(
        self,
        root: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        start: CheckpointId | str = "latest",
        on_retired: OnRetired = "error",
    ) -> OtherState:
        """Return the state of another job, pinned to one of its checkpoints for this batch.

        It is the checkpoint that was its newest when the last batch that asked was committed: each checkpoint records
        in `positions["checkpointer:<root>"]` which one its batch read ("read"), and which one the next batch reads
        ("next"). So a batch that is repeated after a crash reads the same again, although the other job has gone on,
        and so does the first batch after a rewind or in a fork. For what is newest now, and may differ in a repeated
        batch, there is `read_state`.

        Args:
            root: The root of the other job: a folder or a URL.
            storage_options: What s3fs, adlfs or another fsspec file system takes. Never shown or logged.
            start: What the first batch reads that asks for this root, in any form that `Checkpointer.restore` takes.
                If that batch dies before its commit, its repetition reads "latest" anew. A savepoint, as in
                "savepoint=start", stays the same.
            on_retired: What to do if the other job does not keep the recorded checkpoint any more. "error" refuses the
                batch. "newest" reads the newest one, with a warning.

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
        client, restored = attempt.others.pin(root, storage_options, start, on_retired)
        return OtherState(self._spark, client, restored, attempt.operations.one)

    @contextmanager
    def _table_operation(self, name: str, check: Callable[[], None]) -> Iterator[None]:
        """Make the block one operation of an open table.

        The batch waits for it, so its time counts as blocked.
        """
        attempt = self._attempt
        with attempt.checkpoint.writer.meter.blocking(), attempt.operations.one(name, check):
            yield

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
                every batch. Without it the partitions are those of the DataFrame, by index.
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
        attempt.used_names.add(name)
        writer = attempt.checkpoint.writer
        # Before the tasks run: another key or number of partitions than before is refused, and costs no work.
        writer.declare(name, partitioning(name, key, num_partitions))
        with writer.meter.blocking():
            written = write_partitions(attempt.run.client, self.id, name, frame, write, key, num_partitions)
            for artifact, place in written:
                run_sync(writer.attach(artifact, place))

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

        Args:
            name: Its name.

        Raises:
            IllegalArgumentError: The state has no such map, table or operator.
            InvalidStateError: The batch has ended.

        Examples:
            >>> state.map("old")["ann"] = 1
            >>> state.drop("old")
            >>> len(state.map("old"))
            0
        """
        object_paths.encode_name("operator", name)
        attempt, run = self._attempt, self._attempt.run
        attempt.used_names.add(name)
        known = name in run.maps or name in attempt.tables
        if (dropped := run.maps.pop(name, None)) is not None:
            # The callback may keep the map, and a change of it would be in no checkpoint.
            maps.refuse_all(dropped)
            attempt.map_rules.pop(name, None)
        if (table := attempt.tables.pop(name, None)) is not None:
            table.close()
            attempt.dropped_tables.append(table)
        run.dropped.add(name)
        try:
            attempt.checkpoint.drop(name)
        except IllegalArgumentError:
            # The checkpoint does not know a map or table that this batch opened first: dropping it is no error.
            if not known:
                raise


Callback = Callable[[DataFrame, int, State], Any]
