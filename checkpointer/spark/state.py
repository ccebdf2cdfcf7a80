"""The state a foreachBatch callback is handed: it begins with what is committed and becomes the next checkpoint."""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.client._sync_checkpoint import Checkpoint, Restored
from pyspark_checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.keyed.state import PARTITIONS, KeyedState
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.model import CheckpointId, Job, Json
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.runtime.not_picklable import NotPicklable
from pyspark_checkpointer.spark import maps
from pyspark_checkpointer.spark.batch import Token
from pyspark_checkpointer.spark.batch_offsets import QueryProgress
from pyspark_checkpointer.spark.operations import Operations
from pyspark_checkpointer.spark.raw_partitions import Write, partitioning, write_partitions
from pyspark_checkpointer.spark.table import TableState
from pyspark_checkpointer.table.schema import Combine

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger("pyspark_checkpointer")


class QueryRun:
    """What one run of a query carries from batch to batch: the last checkpoint, and the maps as they are in memory."""

    def __init__(self, client: Checkpointer, restored: Restored | None, progress: QueryProgress) -> None:
        self.client = client
        self.progress = progress
        self.restored = restored
        self.last: Job | None = restored.job if restored else None
        self.maps: dict[str, KeyedState] = {}
        self.dropped: set[str] = set()
        self.gathered: set[str] = set()
        """Tables whose last changes were many."""
        self.begun = False

    def wake(self) -> None:
        """Begin a batch: its maps can be changed."""
        for state in self.maps.values():
            maps.wake(state)

    def rest(self) -> None:
        """End a batch: what is changed from now on would reach no checkpoint."""
        for state in self.maps.values():
            maps.rest(state)

    def end(self) -> None:
        """End the run: nothing can be done with its maps any more."""
        for state in self.maps.values():
            maps.end(state)


def _operation(
    method: "Callable[Concatenate[State, P], T]",
) -> "Callable[Concatenate[State, P], T]":
    """Make a method of a map, table or operator, whose name comes first, one operation of the batch."""

    @functools.wraps(method)
    def call(self: "State", /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._operations.one(str(args[0] if args else kwargs.get("name"))):
            return method(self, *args, **kwargs)

    return call


class State(NotPicklable):
    """The state of a job during one batch: durable before Spark counts the batch as done, or not changed at all.

    Threads of the callback may use it together; those that outlive the callback are refused.
    """

    _instead = (
        "it lives on the driver. Send plain values, such as state.map(name).to_dict(); for what tasks read or write "
        "there are state.table(…).lookup(keys) and upsert(rows), joins with table.read(), and state.write_partitions(…)"
    )

    def __init__(self, spark: SparkSession, line: QueryRun, job: Job, checkpoint: Checkpoint) -> None:
        self._spark = spark
        self._line = line
        self._job = job
        self._checkpoint = checkpoint
        self._operations = Operations(job.batch_id)
        self._tables: dict[str, TableState] = {}
        self._used: set[str] = set()
        """What the callback opened, wrote or dropped, by name."""

    @property
    def token(self) -> Token:
        """Query id and batch id: store it with what the callback writes elsewhere, to write each batch once."""
        return Token(self._job.query_id, self._job.batch_id)

    @property
    def id(self) -> CheckpointId:
        """The id of the checkpoint that this batch will be."""
        return self._checkpoint.id

    @property
    def restored(self) -> Restored | None:
        """The checkpoint this run began with; None if the root was empty."""
        return self._line.restored

    @property
    def positions(self) -> dict[str, Json]:
        """Source positions to be recorded with the checkpoint, those of the last one to begin with. JSON values."""
        self._operations.check()
        return self._checkpoint.positions

    @property
    def properties(self) -> dict[str, Json]:
        """Properties to be recorded with the checkpoint, those of the last one to begin with. JSON values."""
        self._operations.check()
        return self._checkpoint.properties

    @_operation
    def map(self, name: str, *, partitions: int | None = None) -> KeyedState:
        """A mapping on the driver, with what the last batch left in it. Its changes are saved when the callback ends.

        `partitions` is how many parts a new mapping is saved in; another number for an old one spreads it anew.
        """
        object_paths.encode_name("map", name)
        if name in self._tables:
            raise IllegalArgumentError(f"map {name!r}: a table of this job has that name")
        self._used.add(name)
        state = self._line.maps.get(name)
        known = self._checkpoint.writer.operator(name)
        if state is None and known is not None and known.codec == codecs.PARQUET.name:
            raise IllegalArgumentError(
                f"map {name!r}: the state has a table of that name: state.table({name!r}, key=…)"
            )
        if state is None:
            restored = self._line.restored
            if restored is not None and name in restored.operators and name not in self._line.dropped:
                state = restored.keyed(name, partitions)
            else:
                state = KeyedState(partitions=PARTITIONS if partitions is None else partitions)
            self._line.maps[name] = state
        elif partitions not in (None, state.partitions):
            raise IllegalArgumentError(
                f"map {name!r}: is in use with {state.partitions} partitions, not {partitions!r}"
            )
        return state

    @_operation
    def table(
        self,
        name: str,
        key: Sequence[str],
        *,
        num_partitions: int | None = None,
        combine: Mapping[str, Combine] | None = None,
        schema: StructType | str | None = None,
    ) -> TableState:
        """Return a distributed table, with what the last batch left in it. What is written to it is part of this batch.

        Args:
            name: Of the table, among the job's maps, tables and operators.
            key: Columns that tell one row from another, in the order in which they are hashed.
            num_partitions: Parts in which the rows are kept. Another number than before brings every row to its new
                part with this batch. By default what it was, 16 for a new table.
            combine: For columns whose new value does not simply replace the old one: "sum", "min" or "max" of both.
                Nulls are left out. Sums of integers and decimals are exact; those of floats depend on the order.
            schema: Columns of a table that nothing was written to yet, so that it can be read before that.
        """
        object_paths.encode_name("table", name)
        if name in self._line.maps:
            raise IllegalArgumentError(f"table {name!r}: a map of this job has that name")
        if name in self._tables:
            raise IllegalArgumentError(f"table {name!r}: was opened in this batch already: use what that returned")
        self._used.add(name)
        draft = self._checkpoint.writer
        found = TableState(
            self._spark,
            self._line.client,
            draft,
            name,
            key,
            num_partitions,
            combine,
            schema,
            functools.partial(self._table_operation, name),
            gather=name in self._line.gathered,
        )
        self._tables[name] = found
        return found

    @contextmanager
    def _table_operation(self, name: str, check: Callable[[], None]) -> Iterator[None]:
        """Be around an operation of an open table. The batch waits for it, so its time counts as blocked."""
        with self._checkpoint.writer.meter.blocking(), self._operations.one(name, check):
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
        """Run `write(partition, batches)` on the executors, over the partitions of a DataFrame; keep what it returns.

        `write` gets the partition's number and its rows as Arrow record batches, and returns `Snapshot(bytes)`,
        `Delta(bytes)` or None to leave the partition as it is. With `key` and `num_partitions` the rows are brought
        together by `pmod(hash(key), num_partitions)`, the same in every batch; without, a partition is whatever Spark
        made of the DataFrame, by index.
        """
        object_paths.encode_name("operator", name)
        self._used.add(name)
        draft = self._checkpoint.writer
        draft.declare(name, partitioning(name, key, num_partitions))
        with draft.meter.blocking():
            wrote = write_partitions(self._line.client, self.id, name, frame, write, key, num_partitions)
            for artifact, place in wrote:
                run_sync(draft.attach(artifact, place))

    @_operation
    def partition(self, name: str, partition: int) -> list[bytes]:
        """Return a partition's snapshot and deltas, as of the last committed batch. Empty where it has none."""
        object_paths.encode_name("operator", name)
        object_paths.check_partition(partition)
        self._used.add(name)
        committed = self._checkpoint.parent
        if committed is None or name not in committed.operators:
            return []
        operator = committed.operator(name)
        return operator.partition(partition) if partition in operator.partitions else []

    @_operation
    def drop(self, name: str) -> None:
        """Leave a map or operator out, from this batch on."""
        object_paths.encode_name("operator", name)
        self._used.add(name)
        known = name in self._line.maps or name in self._tables
        if (dropped := self._line.maps.pop(name, None)) is not None:
            maps.end(dropped)
        if (table := self._tables.pop(name, None)) is not None:
            table._close()
        self._line.dropped.add(name)
        try:
            self._checkpoint.drop(name)
        except IllegalArgumentError:
            if not known:
                raise

    def _commit(self) -> None:
        """Make the batch's state the committed checkpoint. Called once the callback has returned."""
        self._operations.end()
        if (failure := self._operations.failure) is not None:
            raise InvalidStateError(
                f"batch {self._job.batch_id}: a state call failed and the callback went on, so the state may not "
                f"be whole and was not committed: {type(failure).__name__}: {failure}"
            ) from failure
        if not self._line.begun:
            self._name_forgotten()
        self._line.rest()  # what a thread that outlives the callback changes from now on would miss this checkpoint
        for name, state in self._line.maps.items():
            self._checkpoint.save(name, state)
        with self._checkpoint.writer.meter.blocking():
            for table in self._tables.values():
                table._finish()
        self._checkpoint.commit()
        self._line.gathered = {name for name, table in self._tables.items() if table._gather}
        self._line.last, self._line.begun = self._job, True

    def _name_forgotten(self) -> None:
        """Log what the last checkpoint has and the first batch of a run did not use: it may have been renamed."""
        restored = self._line.restored
        if restored is None:
            return
        forgotten, began = set(restored.operators) - self._used, self._used - set(restored.operators)
        if forgotten:
            logger.warning(
                "%s: %s has %s, which the first batch of this run neither opened nor dropped; it stays as it was. %sIf "
                "that is a new name for it: stop the query, rewind(to=%r), then restore(rename={old: new}) and `with "
                "begin(): pass` keep its content. If it is not needed any more: state.drop(name)",
                self._line.client.root,
                restored.id,
                ", ".join(map(repr, sorted(forgotten))),
                f"{', '.join(map(repr, sorted(began)))} began empty. " if began else "",
                str(restored.id),
            )

    def _abort(self) -> None:
        self._operations.abandon()
        self._line.end()
        try:
            self._checkpoint.abort()
        except CheckpointError:  # the batch's own error is the one to report; nothing of it is visible
            return


Callback = Callable[[DataFrame, int, State], Any]
