"""Change a table in one batch.

Tasks write the rows, and the driver collects the new chains.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from pyspark_checkpointer.spark.arguments import (
    check_combine,
    check_frame,
    check_key,
    check_names,
    check_num_partitions,
    check_schema,
)
from pyspark_checkpointer.spark.dataframes import Work, fields_of, has_unique_keys, keys_of, map_batches, rows_of
from pyspark_checkpointer.spark.scan import group_by_bytes, lookup, scan, task_numbers
from pyspark_checkpointer.spark.task_client import TaskRoot
from pyspark_checkpointer.spark.write_tasks import OUTPUT_SCHEMA, CompactTask, TaskOutput, WriteTask
from pyspark_checkpointer.table import kept_columns, large_rows, merge, row_order
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import DELETE, MERGE, PARTITION, Combine, TableSchema
from pyspark_checkpointer.table.schema_evolution import extended_schema, first_schema, needs_rescale, next_schema
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top, rewrite

DEFAULT_PARTITIONS = 16

DRIVER_BYTES = 16 << 20
"""Stored bytes that the driver reads to compact chains itself.

Tasks compact the other chains. The driver also writes changes of a batch itself, up to a quarter of this, as Arrow.
"""


class TableChanges:
    """The version of one table that a batch is making.

    Invariants, between two calls:
        * `version` is what a read returns now: what is committed, with all changes of this batch. It is None while
          nothing says which columns the table has.
        * Every object that `version` names is in the store. Nothing else names the objects of this batch until
          `finish` hands the version to the checkpoint, so a batch that fails leaves the table as it was.
        * Until the first write (or `finish`) moves the rows, `version` keeps the old number of partitions.
    """

    def __init__(
        self,
        spark: SparkSession,
        client: Checkpointer,
        writer: CheckpointWriter,
        name: str,
        key: Sequence[str],
        num_partitions: int | None,
        combine: Mapping[str, Combine] | None,
        schema: StructType | str | None,
        *,
        shuffle_first: bool = False,
    ) -> None:
        self._spark = spark
        self._client = client
        self._checkpoint = writer
        self._is_dropped = False
        self.shuffle_first = shuffle_first
        """True if changes are so large that each task should get whole partitions.

        This takes one more shuffle.
        """
        self._name = name
        self._key = check_key(name, key)
        self._combine = check_combine(name, combine)
        if num_partitions is not None:
            check_num_partitions(f"table {name!r}", num_partitions)
        # Of the attempt and not of its parent: the name may have been dropped earlier in this batch.
        known = writer.operator(name)
        self.version = None if known is None else TableVersion.of(name, known)
        before = DEFAULT_PARTITIONS if self.version is None else self.version.partitions
        self._partitions = before if num_partitions is None else num_partitions
        if self.version is not None and self.version.schema.key != self._key:
            raise IllegalArgumentError(
                f"table {name!r}: its key is {', '.join(self.version.schema.key)}, not {', '.join(self._key)}: "
                f"{how_to_keep(name)}"
            )
        self._has_changed = False
        if self.version is None and schema is not None:
            fields = [field.jsonValue() for field in check_schema(name, schema).fields]
            self.version = TableVersion(
                name, first_schema(name, fields, self._key, self._combine), self._partitions, {}
            )

    # ---- what the callback asks for ------------------------------------------------------------------------------

    def upsert(self, rows: DataFrame) -> None:
        """Add or combine rows, and keep the columns that they do not have."""
        self._write(self._check_frame("upsert", rows), self._accept(rows, extended_schema), MERGE, clear=False)

    def replace(self, rows: DataFrame) -> None:
        """Make these rows the whole table."""
        self._write(self._check_frame("replace", rows), self._accept(rows, next_schema), MERGE, clear=True)

    def delete(self, keys: DataFrame) -> None:
        """Remove the rows with these keys."""
        self._check_frame("delete", keys)
        if self.version is not None:
            schema = self.version.schema
            wanted = keys_of(self._name, keys, schema)
            if self.version.chains:  # A table without rows has nothing to delete.
                self._write(wanted, schema, DELETE, clear=False)

    def drop_columns(self, columns: Sequence[str]) -> None:
        """Leave columns out of the schema; no object is written again."""
        version = self._known_version()
        names = check_names(f"table {self._name!r}: drop_columns(): columns", columns)
        schema = version.schema.without(self._name, names)
        if schema != version.schema:
            self.version, self._has_changed = replace(version, schema=schema), True

    def read(self, columns: Sequence[str] | None) -> DataFrame:
        """Return all rows as they are now."""
        return scan(self._spark, self._client, self._parent, self._known_version(), columns)

    def lookup(self, keys: DataFrame, columns: Sequence[str] | None) -> DataFrame:
        """Return the rows with these keys."""
        wanted = self._check_frame("lookup", keys)
        return lookup(self._spark, self._client, self._parent, self._known_version(), wanted, columns)

    def compact(self) -> None:
        """Replace every chain that has deltas with a snapshot."""
        chains = self._known_version().chains
        self._rewrite({partition: 0 for partition, chain in chains.items() if len(chain) > 1})

    # ---- how a batch ends ----------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Finish the changes of the batch, and hand the table to the checkpoint.

        This first brings the rows into their partitions and compacts some chains.
        """
        if self.version is None:
            return
        # Nothing was written in this batch, or the rows would have been moved then.
        if self.version.partitions != self._partitions:
            self._rescale(self.version.schema)
        max_chain = self._client.session.max_chain
        # So few snapshots in a batch that each partition has its turn within `max_chain` batches: all at once would
        # make one batch much slower.
        turn = math.ceil(self.version.partitions / max_chain)
        self._rewrite(table_rewrites(self.version.chains, max_chain, turn))
        if self._has_changed:
            self._checkpoint.put_operator(self._name, self.version.operator())

    def close(self) -> None:
        """Refuse further operations: the table was dropped."""
        self._is_dropped = True

    def check_open(self) -> None:
        """Raise `InvalidStateError` once the table was dropped."""
        if self._is_dropped:
            raise InvalidStateError(f"table {self._name!r}: was dropped in this batch: open it again")

    # ---- schema and version --------------------------------------------------------------------------------------

    @property
    def _parent(self) -> CheckpointId | None:
        """Return the checkpoint that this batch goes on from.

        It keeps the objects alive that are read.
        """
        manifest = self._checkpoint.base.manifest
        return None if manifest is None else manifest.id

    def _check_frame(self, verb: str, given: object) -> DataFrame:
        return check_frame(f"table {self._name!r}: {verb}()", given)

    def _known_version(self) -> TableVersion:
        if self.version is None:
            raise IllegalArgumentError(
                f"table {self._name!r}: nothing was written to it yet: its columns are not known: open it with schema=…"
            )
        return self.version

    def _accept(self, rows: DataFrame, evolve: Callable[..., TableSchema]) -> TableSchema:
        """Return the schema of the table once these rows are in it.

        Raises `IllegalArgumentError` before anything is written, where the rows do not fit.
        """
        fields = fields_of(rows)
        if self.version is None:
            return first_schema(self._name, fields, self._key, self._combine)
        return evolve(self._name, self.version.schema, fields, self._key, self._combine)

    # ---- writing -------------------------------------------------------------------------------------------------

    def _write(self, rows: DataFrame, schema: TableSchema, change: int, *, clear: bool) -> None:
        """Write rows as changes of one kind.

        With `clear`, they go on top of nothing and take the place of all rows of the table.
        """
        version = self.version or TableVersion(self._name, schema, self._partitions, {})
        # Readers look for a key only in the partition that its hash says, so rows of two numberings must not meet.
        if not clear and (needs_rescale(version.schema, schema) or version.partitions != self._partitions):
            self._rescale(schema)
            version = self._known_version()
        chains: dict[int, Chain] = {} if clear else dict(version.chains)
        keyed = rows_of(rows, schema, self._partitions)
        # Tasks that get all rows of a partition can write snapshots, and see every duplicate.
        is_whole = not chains and change != DELETE
        # Rows of one key may lie in different tasks only where their order does not matter, or where there is but one.
        may_split_keys = not is_whole and (change == DELETE or schema.combines or has_unique_keys(rows, schema.key))
        placed = keyed if may_split_keys and not self.shuffle_first else keyed.repartition(PARTITION)
        root, inline = self._root, DRIVER_BYTES // 4
        task = WriteTask(root, self._checkpoint.id, self._name, schema, self._partitions, change, is_whole, inline)
        outputs = self._run(placed, task.run)
        # Each pack makes the chains of all partitions in it longer: one from each of many tasks is too much.
        self.shuffle_first = sum(bool(output.deltas) for output in outputs) > (0 if self.shuffle_first else 1)
        for output in outputs:
            chains |= {partition: (snapshot,) for partition, snapshot in output.snapshots.items()}
        # A deletion from a partition without rows would be a chain that says nothing.
        only = set(chains) if change == DELETE else None
        for deltas in (*(output.deltas for output in outputs), self._pack(outputs, schema, only)):
            for partition, delta in deltas.items():
                if only is None or partition in only:
                    chains[partition] = on_top(chains.get(partition, ()), delta)
        self.version = TableVersion(self._name, schema, self._partitions, chains)
        self._has_changed = True

    def _pack(self, outputs: list[TaskOutput], schema: TableSchema, only: set[int] | None) -> dict[int, Artifact]:
        """Write the rows that tasks left to the driver as one object.

        With `only`, only rows of those partitions are written.
        """
        parts = [pa.ipc.open_stream(output.rows).read_all() for output in outputs if output.rows]
        if not parts:
            return {}
        with large_rows.explain_arrow_errors(self._name):
            return self._pack_parts(parts, schema, only)

    def _pack_parts(self, parts: list[pa.Table], schema: TableSchema, only: set[int] | None) -> dict[int, Artifact]:
        rows = kept_columns.concat(parts)
        if only is not None:
            rows = rows.filter(pc.is_in(rows[PARTITION], pa.array(sorted(only), pa.int32())))
        if rows.num_rows == 0:
            return {}
        # Each task folded and sorted its own rows, so that one part needs neither.
        if len(parts) > 1:
            rows = merge.consolidate(rows, schema, self._name)
            rows = row_order.in_order(rows, schema.key)
        with self._checkpoint.meter.blocking():
            return run_sync(self._table_writer(schema).pack(rows))

    def _rewrite(self, keep: Mapping[int, int]) -> None:
        """Compact chains.

        `keep` says how many artifacts of each partition stay as they are. The driver does it while few bytes have to be
        read for it, and the executors do the rest.
        """
        version = self._known_version()
        # A Spark job costs more than reading a few bytes, and much state does not fit into the driver.
        here, there = _split_by_bytes(version.chains, keep, DRIVER_BYTES)
        chains = dict(version.chains)
        if here:
            session = self._client.session
            reader = TableReader(session.store, session.host, version.only(here))
            keep_here = {partition: keep[partition] for partition in here}
            with self._checkpoint.meter.blocking():
                chains |= run_sync(rewrite(reader, self._table_writer(version.schema), version.chains, keep_here))
        if there:
            sizes = version.sizes({partition: keep[partition] for partition in there})
            groups = group_by_bytes(sizes, max(self._spark.sparkContext.defaultParallelism, len(there) // 8))
            task = CompactTask(self._root, self._checkpoint.id, version.only(there), groups, dict(keep))
            for output in self._run(task_numbers(self._spark, len(groups)), task.run):
                chains |= output.chains
        if keep:
            # A partition of which no row is left has no chain (SPEC, Manifests).
            chains = {partition: chain for partition, chain in chains.items() if chain}
            self.version = TableVersion(self._name, version.schema, version.partitions, chains)
            self._has_changed = True

    def _rescale(self, schema: TableSchema) -> None:
        """Bring every row into the partition that its key belongs to now."""
        version = replace(self._known_version(), schema=schema)
        # Without rows there is nothing to move, and no Spark job is needed.
        if version.chains:
            rows = scan(self._spark, self._client, self._parent, version)
            self._write(rows, schema, MERGE, clear=True)
        else:
            self.version, self._has_changed = replace(version, partitions=self._partitions), True

    def _table_writer(self, schema: TableSchema) -> TableWriter:
        session = self._client.session
        return TableWriter(session.store, session.host, self._checkpoint.id, self._name, schema)

    @property
    def _root(self) -> TaskRoot:
        return TaskRoot.of(self._client, self._spark)

    def _run(self, frame: DataFrame, work: Work) -> list[TaskOutput]:
        """Run tasks over a DataFrame, and return what each wrote.

        Raises what a task refused.
        """
        results = map_batches(frame, work, OUTPUT_SCHEMA).collect()
        outputs = [TaskOutput.load(bytes(row["written"])) for row in results]
        for output in outputs:
            # A refusal comes back as a value, since Spark would repeat a task that raises it.
            if output.refused is not None:
                raise output.refused
            # The driver has to find what the task wrote before it reads any of it to compact chains.
            if (first := output.first(self._checkpoint.id)) is not None:
                run_sync(self._checkpoint.prove(output.place, first))
        # Two snapshots of one partition mean that its rows were split over tasks: one of them would be lost.
        counts = Counter(partition for output in outputs for partition in output.snapshots)
        twice = [partition for partition, count in counts.items() if count > 1]
        if twice:
            raise InvalidStateError(f"table {self._name!r}: partition {twice[0]} was written by two tasks")
        return outputs


def _split_by_bytes(chains: Mapping[int, Chain], keep: Mapping[int, int], most: int) -> tuple[list[int], list[int]]:
    """Return the partitions that can be compacted cheaply, and the others.

    Rewriting the first ones reads at most `most` bytes. An object that several partitions share counts once. In memory
    the rows may take four times as much.
    """
    read: dict[str, int] = {}
    here, there, in_memory = [], [], 0
    for partition, count in sorted(keep.items()):
        artifacts = chains[partition][count:]
        # Partitions that share an object are read by one request, so its bytes count once.
        read_with = read | {artifact.path: artifact.length for artifact in artifacts if artifact.length}
        in_memory_with = in_memory + sum(artifact.raw_size for artifact in artifacts)
        if max(sum(read_with.values()), in_memory_with // 4) <= most:
            here.append(partition)
            read, in_memory = read_with, in_memory_with
        else:
            there.append(partition)
    return here, there
