"""The state a foreachBatch callback is handed: it begins with what is committed and becomes the next checkpoint."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from checkpointer.errors import CheckpointError, IllegalArgumentError, InvalidStateError
from checkpointer.keyed import PARTITIONS, KeyedState
from checkpointer.spark.batch import Token
from checkpointer.spark.partitions import Write, write_partitions
from checkpointer.spark.progress import QueryProgress
from checkpointer.spark.table import TableState
from checkpointer.sync import Checkpointer
from checkpointer.sync_handles import Checkpoint, Restored
from checkpointer.table.schema import Combine
from manifests.model import CheckpointId, Job, Json

P = ParamSpec("P")
T = TypeVar("T")


class Line:
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


def _poisons(
    method: "Callable[Concatenate[State, P], T]",
) -> "Callable[Concatenate[State, P], T]":
    """A state call that failed spoils the batch, even where the callback swallows the error."""

    @functools.wraps(method)
    def call(self: "State", /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self._poison = self._poison or error
            raise

    return call


class State:
    """The state of a job during one batch: durable before Spark counts the batch as done, or not changed at all."""

    def __init__(self, spark: SparkSession, line: Line, job: Job, checkpoint: Checkpoint) -> None:
        self._spark = spark
        self._line = line
        self._job = job
        self._checkpoint = checkpoint
        self._poison: Exception | None = None
        self._ended = False
        self._tables: dict[str, TableState] = {}

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
        return self._checkpoint.positions

    @property
    def properties(self) -> dict[str, Json]:
        """Properties to be recorded with the checkpoint, those of the last one to begin with. JSON values."""
        return self._checkpoint.properties

    @_poisons
    def map(self, name: str, *, partitions: int | None = None) -> KeyedState:
        """A mapping on the driver, with what the last batch left in it. Its changes are saved when the callback ends.

        `partitions` is how many parts a new mapping is saved in; another number for an old one spreads it anew.
        """
        self._check_open()
        if name in self._tables:
            raise IllegalArgumentError(f"map {name!r}: a table of this job has that name")
        state = self._line.maps.get(name)
        if state is None:
            restored = self._line.restored
            if restored is not None and name in restored.operators and name not in self._line.dropped:
                state = restored.keyed(name, partitions)
            else:
                state = KeyedState(partitions=PARTITIONS if partitions is None else partitions)
            self._line.maps[name] = state
        elif partitions not in (None, state.partitions):
            raise IllegalArgumentError(f"map {name!r}: is in use with {state.partitions} partitions, not {partitions}")
        return state

    @_poisons
    def table(
        self,
        name: str,
        key: Sequence[str],
        *,
        num_partitions: int | None = None,
        combine: Mapping[str, Combine] | None = None,
        schema: StructType | str | None = None,
    ) -> TableState:
        """A distributed table, with what the last batch left in it. What is written to it is part of this batch.

        Args:
            name: Of the table, among the job's maps, tables and operators.
            key: Columns that tell one row from another, in the order in which they are hashed.
            num_partitions: Parts in which the rows are kept. Another number than before brings every row to its new
                part with this batch. By default what it was, 16 for a new table.
            combine: For columns whose new value does not simply replace the old one: "sum", "min" or "max" of both.
                Nulls are left out. Sums of integers and decimals are exact; those of floats depend on the order.
            schema: Columns of a table that nothing was written to yet, so that it can be read before that.
        """
        self._check_open()
        if name in self._line.maps:
            raise IllegalArgumentError(f"table {name!r}: a map of this job has that name")
        if name in self._tables:
            raise IllegalArgumentError(f"table {name!r}: was opened in this batch already: use what that returned")
        draft = self._checkpoint._draft
        found = TableState(
            self._spark,
            self._line.client,
            draft,
            name,
            key,
            num_partitions,
            combine,
            schema,
            self._guard,
            gather=name in self._line.gathered,
        )
        self._tables[name] = found
        return found

    @contextmanager
    def _guard(self) -> Iterator[None]:
        """Around everything that an open table does."""
        self._check_open()
        try:
            yield
        except Exception as error:
            self._poison = self._poison or error
            raise

    @_poisons
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
        self._check_open()
        by = None if key is None else {"key": list(key), "num_partitions": num_partitions}
        self._checkpoint._draft.declare(name, by)
        for artifact in write_partitions(self._line.client, self.id, name, frame, write, key, num_partitions):
            self._checkpoint.attach(artifact)

    @_poisons
    def partition(self, name: str, partition: int) -> list[bytes]:
        """A partition's snapshot and deltas, as of the last committed batch. Empty where it has none."""
        self._check_open()
        committed = self._checkpoint.parent
        if committed is None or name not in committed.operators:
            return []
        operator = committed.operator(name)
        return operator.partition(partition) if partition in operator.partitions else []

    @_poisons
    def drop(self, name: str) -> None:
        """Leave a map or operator out, from this batch on."""
        self._check_open()
        known = name in self._line.maps or name in self._tables
        self._line.maps.pop(name, None)
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
        if self._poison is not None:
            raise InvalidStateError(
                f"batch {self._job.batch_id}: a state call failed and the callback went on, so the state may not "
                f"be whole and was not committed: {type(self._poison).__name__}: {self._poison}"
            ) from self._poison
        for name, state in self._line.maps.items():
            self._checkpoint.save(name, state)
        for table in self._tables.values():
            table._finish()
        self._checkpoint.commit()
        self._line.gathered = {name for name, table in self._tables.items() if table._gather}
        self._ended = True
        self._line.last, self._line.begun = self._job, True

    def _abort(self) -> None:
        self._ended = True
        try:
            self._checkpoint.abort()
        except CheckpointError:  # the batch's own error is the one to report; nothing of it is visible
            return

    def _check_open(self) -> None:
        if self._ended:
            raise InvalidStateError(f"batch {self._job.batch_id} has ended: use the state of the current callback")


Callback = Callable[[DataFrame, int, State], Any]
