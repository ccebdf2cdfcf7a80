"""Read the state of another job in a batch, pinned to one of its checkpoints.

Which checkpoint a batch reads has to be known before the batch begins. Otherwise a batch that died before its commit
would read something else when Spark repeats it. So a batch reads the checkpoint whose id the checkpoint below it
recorded. For the next batch, its own checkpoint records the id that is the newest at its commit. This id is part of the
state. So a replay, and the first batch after a rewind or in a fork, find the same checkpoint. Nothing else is written,
and a zombie cannot change the id. The cost: a batch sees the other job as it was at the commit of the batch before.
Only the first batch that asks has no recorded id. It begins with the checkpoint that the job names, by default the
newest one.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal, TypeVar

from pyspark.sql import DataFrame, SparkSession

from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.client._sync_checkpoint import Restored
from pyspark_checkpointer.errors import (
    CheckpointError,
    CheckpointNotFoundError,
    CorruptionError,
    IllegalArgumentError,
    InvalidStateError,
    OperatorNotFoundError,
    RetiredError,
)
from pyspark_checkpointer.manifests import codecs
from pyspark_checkpointer.manifests.model import CheckpointId, Json
from pyspark_checkpointer.runtime.not_picklable import NotPicklable
from pyspark_checkpointer.spark.arguments import check_frame
from pyspark_checkpointer.spark.read import restore, version_of
from pyspark_checkpointer.spark.scan import lookup, scan
from pyspark_checkpointer.storage import EncryptionOption, Fencing, SigningOption

logger = logging.getLogger("pyspark_checkpointer")

T = TypeVar("T")

OnRetired = Literal["error", "newest"]

PREFIX = "checkpointer:"
"""The beginning of the name of a position, before the root."""

MAX_CLIENTS = 16
"""The most roots whose clients a run keeps: a job may read another root each day, for years."""

Operation = Callable[[str], AbstractContextManager[None]]
"""A function that makes its block one operation of the batch, on a name."""


class OtherState(NotPicklable):
    """The state of another job, as one of its checkpoints has it.

    `state.other(root)` returns it.

    Examples:
        The examples of the methods run in a function that `stateful` decorates. `state/shop` is the root of another
        job.

        >>> @stateful("state/report")
        ... def update(batch, batch_id, state):
        ...     shop = state.other("state/shop")
        ...     print(shop.epoch, shop.table("totals").count(), shop.map("batches"))
        >>> numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        >>> writer = numbers.writeStream.option("checkpointLocation", "state/report-spark")
        >>> query = writer.foreachBatch(update).trigger(availableNow=True).start()
        >>> query.awaitTermination()
        0 2 {0: 10}
    """

    _instead = "it lives on the driver. Send what table(…) or map(…) return"

    def __init__(self, spark: SparkSession, client: Checkpointer, restored: Restored, operation: Operation) -> None:
        self._spark = spark
        self._client = client
        self._restored = restored
        self._operation = operation

    @property
    def id(self) -> CheckpointId:
        """The id of the checkpoint that this batch reads."""
        assert self._restored.id is not None
        return self._restored.id

    @property
    def epoch(self) -> int | None:
        """The epoch of that checkpoint, such as the batch id of the other job."""
        return self._restored.epoch

    @property
    def operators(self) -> list[str]:
        """The names of its maps, tables and other operators."""
        return self._restored.operators

    def table(self, name: str, *, columns: list[str] | None = None, keys: DataFrame | None = None) -> DataFrame:
        """Return the rows of a table.

        Read the DataFrame within the batch, as with `read` of a table of the job.

        Args:
            name: The name of the table.
            columns: The columns to read; by default all.
            keys: Rows with the key columns: only rows with these keys are returned, and only partitions and row groups
                that may hold them are read.

        Raises:
            OperatorNotFoundError: The checkpoint has no table of this name. The message names those it has.

        Examples:
            >>> state.other("state/shop").table("totals").orderBy("digit").collect()
            [Row(digit=0, n=5), Row(digit=1, n=5)]
        """
        with self._operation(name):
            if keys is not None:
                check_frame(f"table({name!r}) of {self._client.root}: keys", keys)
            version = self._find(lambda restored: version_of(restored, name))
            if keys is None:
                return scan(self._spark, self._client, self.id, version, columns)
            return lookup(self._spark, self._client, self.id, version, keys, columns)

    def map(self, name: str) -> dict[Any, Any]:
        """Return a map as a dict of one's own.

        Args:
            name: The name of the map.

        Raises:
            OperatorNotFoundError: The checkpoint has no map of this name. The message names those it has.

        Examples:
            >>> state.other("state/shop").map("batches")
            {0: 10}
        """
        with self._operation(name):
            self._find(lambda restored: self._check_map(restored, name))
            return self._restored.keyed(name).to_dict()

    def _check_map(self, restored: Restored, name: str) -> None:
        if name not in restored.operators or not _is_map(restored, name):
            held = ", ".join(n for n in restored.operators if _is_map(restored, n)) or "none"
            raise OperatorNotFoundError(f"map {name!r}: {self._client.root}: {restored.id} has {held}")

    def _find(self, find: Callable[[Restored], T]) -> T:
        """Return what a function finds in the checkpoint that this batch reads.

        Raises `OperatorNotFoundError`. The error says so where the newest checkpoint has it: each repetition of the
        batch reads the same older one, and would be refused too.
        """
        try:
            return find(self._restored)
        except OperatorNotFoundError as error:
            try:
                newest = restore(self._client, None)
                find(newest)
            except CheckpointError:
                raise error from None
            raise OperatorNotFoundError(
                f"{error}. {newest.id}, the newest checkpoint, has it, and this batch has to read {self.id}, which the "
                f"batch before recorded or start= names. Set state.positions[{PREFIX + self._client.root!r}] = "
                f"{{'next': '{newest.id}'}} before state.other(…) until one batch is committed: it reads that one"
            ) from None

    def __repr__(self) -> str:
        return f"OtherState({self._client.root!r}, {self.id}, epoch {self.epoch})"


def _is_map(restored: Restored, name: str) -> bool:
    assert restored.manifest is not None
    return codecs.kind_of(restored.manifest.operators[name]) == "map"


class OtherStates:
    """The states of other jobs that one batch reads, by root.

    `clients` are those that the run keeps, by root, the last used one at the end.
    """

    def __init__(self, own_root: str, positions: dict[str, Json], clients: dict[str, Checkpointer]) -> None:
        self._own_root = own_root
        self._positions = positions
        self._clients = clients
        self._pinned: dict[str, tuple[Checkpointer, Restored]] = {}
        self._lock = threading.Lock()

    def pin(
        self,
        root: Any,
        options: Mapping[str, Any] | None,
        encryption: EncryptionOption,
        signing: SigningOption,
        start: CheckpointId | str,
        on_retired: OnRetired,
        fencing: Fencing,
    ) -> tuple[Checkpointer, Restored]:
        """Return the checkpoint of another root that this batch reads.

        Raises `RetiredError` where it is gone, and `StoreNotFoundError` where there was never one.
        """
        if on_retired not in ("error", "newest"):
            raise IllegalArgumentError(f"on_retired={on_retired!r:.40}: expected 'error' or 'newest'")
        # Checks the arguments, and connects to nothing.
        client = Checkpointer(root, options, fencing=fencing, encryption=encryption, signing=signing)
        if client.root == self._own_root:
            raise IllegalArgumentError(
                f"other({client.root!r}): is the root of this job: use state.table(…) and state.map(…)"
            )
        # Two threads may ask for the same root, perhaps in two spellings: both have to read the same checkpoint.
        with self._lock:
            if client.root not in self._pinned:
                self._pinned[client.root] = self._pin(client, start, on_retired)
            return self._pinned[client.root]

    def _pin(
        self, made: Checkpointer, start: CheckpointId | str, on_retired: OnRetired
    ) -> tuple[Checkpointer, Restored]:
        client = self._kept(made)
        try:
            return client, self._restore(client, start, on_retired)
        except (CorruptionError, InvalidStateError):
            if client is made:
                raise
        # The root may have got another data key, or have begun anew, since the kept client opened its keys.
        self._clients[made.root] = made
        return made, self._restore(made, start, on_retired)

    def _kept(self, made: Checkpointer) -> Checkpointer:
        """Return the client that the run keeps for a root, if its options are these.

        A kept client has its connections, and the opened keys of an encrypted root: the service that opens them may be
        away by now.
        """
        kept = self._clients.pop(made.root, None)
        # A pickle has the configuration alone, with dicts and lists of its own: the caller's may have changed since.
        client = kept if kept is not None and kept.__getstate__() == made.__getstate__() else made
        self._clients[made.root] = client
        while len(self._clients) > MAX_CLIENTS:
            # Nothing is closed here: a DataFrame may still use it. Its connections are closed once nobody has it.
            del self._clients[next(iter(self._clients))]
        return client

    def _restore(self, client: Checkpointer, start: CheckpointId | str, on_retired: OnRetired) -> Restored:
        recorded = _recorded(client.root, self._positions.get(PREFIX + client.root))
        if recorded is None:
            return restore(client, start)
        try:
            return restore(client, recorded)
        except (CheckpointNotFoundError, RetiredError) as error:
            if on_retired == "error":
                raise RetiredError(
                    f"{client.root}: {recorded} is not live any more, and this batch has to read it, since the "
                    "checkpoint before recorded it: keep the checkpoints of that job for longer (RetentionPolicy), "
                    "and go on once with state.other(…, on_retired='newest')"
                ) from error
        logger.warning("%s: %s is not live any more; this batch reads the newest checkpoint", client.root, recorded)
        return restore(client, None)

    def record(self) -> None:
        """Record, before the commit, what this batch read and the next one will read."""
        for root, (client, restored) in self._pinned.items():
            following = restored.id
            try:
                following = client.read_latest() or following
            except CheckpointError as error:
                # A batch must not fail for what it has read already. Which one is recorded counts, not how new it is.
                logger.warning("%s: the next batch reads %s again: %s", root, following, error)
            self._positions[PREFIX + root] = {"read": str(restored.id), "next": str(following)}


def _recorded(root: str, position: Json) -> CheckpointId | None:
    """Return the checkpoint that was recorded for this batch; None if there is none.

    The checkpoint below this batch recorded it.
    """
    if position is None:
        return None
    try:
        return CheckpointId.parse(position["next"])
    except (TypeError, KeyError, ValueError):
        raise InvalidStateError(
            f"positions[{PREFIX + root!r}] is {position!r:.80}: expected what state.other(…) records: set it to "
            "{'next': id}, an id of that root, before state.other(…) is called; or call state.positions.pop(…): the "
            "batch then reads what start= names, by default the newest checkpoint"
        ) from None
