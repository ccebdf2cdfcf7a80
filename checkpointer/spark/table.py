"""`state.table(…)`: state as big as the cluster, in DataFrames, of which each batch writes what it changes.

upsert   rows → partition of each → tasks combine and pack → driver or tasks PUT → chains of the next checkpoint
read     chains → tasks GET, verify and merge → rows
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_checkpointer.checkpoint.migrated import how_to_keep
from pyspark_checkpointer.checkpoint.save import CheckpointWriter
from pyspark_checkpointer.client._sync import Checkpointer
from pyspark_checkpointer.compaction import table_rewrites
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Artifact, Chain, CheckpointId
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.runtime.not_picklable import NotPicklable
from pyspark_checkpointer.spark.arguments import (
    check_combine,
    check_frame,
    check_key,
    check_names,
    check_num_partitions,
    check_schema,
)
from pyspark_checkpointer.spark.dataframes import Work, fields_of, has_unique_keys, keys_of, map_batches, rows_of
from pyspark_checkpointer.spark.scan import each, lookup, scan, spread
from pyspark_checkpointer.spark.task_client import TaskRoot
from pyspark_checkpointer.spark.write_tasks import RESULT, CompactTask, TaskOutput, WriteTask
from pyspark_checkpointer.table import kept_columns, large_rows, merge, row_order
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import DELETE, MERGE, PARTITION, Combine, TableSchema
from pyspark_checkpointer.table.schema_evolution import extended_schema, first_schema, needs_rescale, next_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top, rewrite

PARTITIONS = 16
"""Partitions of a table unless told otherwise."""

DRIVER_BYTES = 16 << 20
"""Stored bytes that the driver reads to shorten chains itself. A quarter of it: changes of a batch, as Arrow, that it
writes itself. The tasks do whatever is more."""


Operation = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""Made around each call of a table: calls of other threads wait, then what it is given may refuse this one."""


class TableState(NotPicklable):
    """A keyed table during one batch. What it wrote is visible to its own later reads, and to others once committed.

    Several threads may call it: one call is done after the other.
    """

    _instead = (
        "it lives on the driver, and writes of a copy would be lost. Use its DataFrames: read() or lookup(keys) joined "
        "with the batch, and upsert(rows) of what comes out"
    )

    def __init__(
        self,
        spark: SparkSession,
        client: Checkpointer,
        draft: CheckpointWriter,
        name: str,
        key: Sequence[str],
        num_partitions: int | None,
        combine: Mapping[str, Combine] | None,
        schema: StructType | str | None,
        operation: Operation,
        *,
        gather: bool = False,
    ) -> None:
        self._spark = spark
        self._client = client
        self._draft = draft
        self._operation = operation
        self._dropped = False
        self._gather = gather
        """Whether changes are so large that tasks should get all of a partition each, though that is a shuffle more."""
        self._name = name
        self._key = check_key(name, key)
        self._combine = check_combine(name, combine)
        if num_partitions is not None:
            check_num_partitions(f"table {name!r}", num_partitions)
        known = draft.operator(name)
        self._version = None if known is None else TableVersion.of(name, known)
        old = PARTITIONS if self._version is None else self._version.partitions
        self._partitions = old if num_partitions is None else num_partitions
        if self._version is not None and self._version.schema.key != self._key:
            raise IllegalArgumentError(
                f"table {name!r}: its key is {', '.join(self._version.schema.key)}, not {', '.join(self._key)}: "
                f"{how_to_keep(name)}"
            )
        self._changed = False
        if self._version is None and schema is not None:
            fields = [field.jsonValue() for field in check_schema(name, schema).fields]
            self._version = TableVersion(
                name, first_schema(name, fields, self._key, self._combine), self._partitions, {}
            )

    # ---- what the callback says ----------------------------------------------------------------------------------

    def upsert(self, rows: DataFrame) -> None:
        """Put rows in: new keys are added; for known ones each column is combined, as `combine` says, with what is
        there, and takes the new value where it is not named there. Columns that the rows do not have keep their values,
        and are null in new rows."""
        with self._operation(self._check):
            self._write(self._frame("upsert", rows), self._accept(rows, extended_schema), MERGE, clear=False)

    def replace(self, rows: DataFrame) -> None:
        """Make these rows, with their columns and no others, the whole table."""
        with self._operation(self._check):
            self._write(self._frame("replace", rows), self._accept(rows, next_schema), MERGE, clear=True)

    def delete(self, keys: DataFrame) -> None:
        """Remove the rows with these keys; keys that are not there are no error. Other columns are not looked at."""
        with self._operation(self._check):
            self._frame("delete", keys)
            if self._version is not None:
                schema = self._version.schema
                wanted = keys_of(self._name, keys, schema)
                if self._version.chains:  # else there is nothing to delete
                    self._write(wanted, schema, DELETE, clear=False)

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Leave columns out for good, with all their values. A column of the same name that comes later is another one.

        Nothing is written anew now: what is stored of them goes with later compactions. Columns that are not there are
        no error, since a callback says the same in every batch.
        """
        with self._operation(self._check):
            version = self._existing()
            names = check_names(f"table {self._name!r}: drop_columns(): columns", columns)
            schema = version.schema.without(self._name, names)
            if schema != version.schema:
                self._version, self._changed = replace(version, schema=schema), True

    def read(self, columns: Sequence[str] | None = None) -> DataFrame:
        """Return all rows as they are now. The DataFrame stays as it is, whatever is written later."""
        with self._operation(self._check):
            return scan(self._spark, self._client, self._parent, self._existing(), columns)

    def lookup(self, keys: DataFrame, columns: Sequence[str] | None = None) -> DataFrame:
        """Return the rows with these keys. Only partitions, and within them row groups, that may hold them are read."""
        with self._operation(self._check):
            wanted = self._frame("lookup", keys)
            return lookup(self._spark, self._client, self._parent, self._existing(), wanted, columns)

    def compact(self) -> None:
        """Write a snapshot of every partition that has deltas, now."""
        with self._operation(self._check):
            chains = self._existing().chains
            self._rewrite({partition: 0 for partition, chain in chains.items() if len(chain) > 1})

    # ---- how a batch ends ----------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Bring the state into the partitions asked for, shorten some chains, and hand it to the checkpoint."""
        if self._version is None:
            return
        if self._version.partitions != self._partitions:
            self._rescale(self._version.schema)
        max_chain = self._client._session.max_chain
        turn = math.ceil(self._version.partitions / max_chain)
        self._rewrite(table_rewrites(self._version.chains, max_chain, turn))
        if self._changed:
            self._draft.put_operator(self._name, self._version.operator())

    def _close(self) -> None:
        """The table was dropped: nothing more can be done with it."""
        self._dropped = True

    def _check(self) -> None:
        if self._dropped:
            raise InvalidStateError(f"table {self._name!r}: was dropped in this batch: open it again")

    # ---- within --------------------------------------------------------------------------------------------------

    @property
    def _parent(self) -> CheckpointId | None:
        manifest = self._draft.base.manifest
        return None if manifest is None else manifest.id

    def _frame(self, verb: str, given: object) -> DataFrame:
        return check_frame(f"table {self._name!r}: {verb}()", given)

    def _existing(self) -> TableVersion:
        if self._version is None:
            raise IllegalArgumentError(
                f"table {self._name!r}: nothing was written to it yet: its columns are not known: open it with schema=…"
            )
        return self._version

    def _accept(self, rows: DataFrame, go_on: Callable[..., TableSchema]) -> TableSchema:
        """Return the schema with these rows in it; refused before anything is written where they do not fit."""
        fields = fields_of(rows)
        if self._version is None:
            return first_schema(self._name, fields, self._key, self._combine)
        return go_on(self._name, self._version.schema, fields, self._key, self._combine)

    def _write(self, rows: DataFrame, schema: TableSchema, change: int, *, clear: bool) -> None:
        version = self._version or TableVersion(self._name, schema, self._partitions, {})
        if not clear and (needs_rescale(version.schema, schema) or version.partitions != self._partitions):
            self._rescale(schema)
            version = self._existing()
        chains: dict[int, Chain] = {} if clear else dict(version.chains)
        keyed = rows_of(rows, schema, self._partitions)
        # Tasks that have all the rows of a partition can write snapshots, and see every duplicate.
        whole = not chains and change != DELETE
        apart = not whole and (change == DELETE or schema.combines or has_unique_keys(rows, schema.key))
        tasks = keyed if apart and not self._gather else keyed.repartition(PARTITION)
        root, inline = self._root, DRIVER_BYTES // 4
        task = WriteTask(root, self._draft.id, self._name, schema, self._partitions, change, whole, inline)
        written = self._run(tasks, task.run)
        # Each pack makes the chains of all partitions in it longer: one from each of many tasks is too much.
        self._gather = sum(bool(found.deltas) for found in written) > (0 if self._gather else 1)
        for found in written:
            chains |= {partition: (snapshot,) for partition, snapshot in found.snapshots.items()}
        below = set(chains) if change == DELETE else None  # a deletion from an empty partition is nothing
        for deltas in (*(found.deltas for found in written), self._pack(written, schema, below)):
            for partition, delta in deltas.items():
                if below is None or partition in below:
                    chains[partition] = on_top(chains.get(partition, ()), delta)
        self._version = TableVersion(self._name, schema, self._partitions, chains)
        self._changed = True

    def _pack(self, written: list[TaskOutput], schema: TableSchema, only: set[int] | None) -> dict[int, Artifact]:
        """Write what the tasks left to the driver as one object, or what it has of some partitions only."""
        parts = [pa.ipc.open_stream(found.rows).read_all() for found in written if found.rows]
        if not parts:
            return {}
        with large_rows.explaining(self._name):
            return self._pack_parts(parts, schema, only)

    def _pack_parts(self, parts: list[pa.Table], schema: TableSchema, only: set[int] | None) -> dict[int, Artifact]:
        rows = kept_columns.concat(parts)
        if only is not None:
            rows = rows.filter(pc.is_in(rows[PARTITION], pa.array(sorted(only), pa.int32())))
        if rows.num_rows == 0:
            return {}
        if len(parts) > 1:
            rows = merge.consolidate(rows, schema, self._name)
            rows = row_order.in_order(rows, schema.key)
        with self._draft.meter.blocking():
            return run_sync(self._writer(schema).pack(rows))

    def _rewrite(self, keep: Mapping[int, int]) -> None:
        """Shorten chains: here while few bytes have to be read for it, on the executors whatever is more."""
        version = self._existing()
        here, there = _near(version.chains, keep, DRIVER_BYTES)
        chains = dict(version.chains)
        if here:
            session = self._client._session
            reader = TableReader(session.store, session.host, version.only(here))
            nearby = {partition: keep[partition] for partition in here}
            with self._draft.meter.blocking():
                chains |= run_sync(rewrite(reader, self._writer(version.schema), version.chains, nearby))
        if there:
            sizes = version.sizes({partition: keep[partition] for partition in there})
            groups = spread(sizes, max(self._spark.sparkContext.defaultParallelism, len(there) // 8))
            task = CompactTask(self._root, self._draft.id, version.only(there), groups, dict(keep))
            for found in self._run(each(self._spark, len(groups)), task.run):
                chains |= found.chains
        if keep:
            chains = {partition: chain for partition, chain in chains.items() if chain}
            self._version = TableVersion(self._name, version.schema, version.partitions, chains)
            self._changed = True

    def _rescale(self, schema: TableSchema) -> None:
        """Bring every row into the partition that its key belongs to now."""
        version = replace(self._existing(), schema=schema)
        if version.chains:
            rows = scan(self._spark, self._client, self._parent, version)
            self._write(rows, schema, MERGE, clear=True)
        else:
            self._version, self._changed = replace(version, partitions=self._partitions), True

    def _writer(self, schema: TableSchema) -> TableWriter:
        session = self._client._session
        return TableWriter(session.store, session.host, self._draft.id, self._name, schema)

    @property
    def _root(self) -> TaskRoot:
        return TaskRoot.of(self._client, self._spark)

    def _run(self, frame: DataFrame, work: Work) -> list[TaskOutput]:
        results = map_batches(frame, work, RESULT).collect()
        written = [TaskOutput.load(bytes(row["written"])) for row in results]
        for found in written:
            if found.refused is not None:
                raise found.refused
            if (first := found.first(self._draft.id)) is not None:
                run_sync(self._draft.prove(found.place, first))  # before anything of it is read to shorten chains
        twice = [p for p, count in Counter(p for found in written for p in found.snapshots).items() if count > 1]
        if twice:
            raise InvalidStateError(f"table {self._name!r}: partition {twice[0]} was written by two tasks")
        return written


def _near(chains: Mapping[int, Chain], keep: Mapping[int, int], most: int) -> tuple[list[int], list[int]]:
    """Return the partitions that can be rewritten while `most` bytes are read, and the others.

    An object that several share is read once. In memory the rows may take four times as much.
    """
    read: dict[str, int] = {}
    here, there, held = [], [], 0
    for partition, count in sorted(keep.items()):
        artifacts = chains[partition][count:]
        more = read | {artifact.path: artifact.length for artifact in artifacts if artifact.length}
        rows = held + sum(artifact.raw_size for artifact in artifacts)
        if max(sum(more.values()), rows // 4) <= most:
            here.append(partition)
            read, held = more, rows
        else:
            there.append(partition)
    return here, there
