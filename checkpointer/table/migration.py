"""Migrate a table for a new version of its job.

A function transforms the rows of each partition.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer import display
from pyspark_checkpointer.checkpoint.migration import Transform, call
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.compaction import is_small_partition
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.json_text import format_time
from pyspark_checkpointer.manifests.model import Chain, CheckpointId, Clock, Json, Operator
from pyspark_checkpointer.storage.overlay import OverlayStore
from pyspark_checkpointer.table import large_rows
from pyspark_checkpointer.table.conform import check_values
from pyspark_checkpointer.table.expiry import is_expired, limit
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.key_floats import canonical_rows
from pyspark_checkpointer.table.opening import partition_reader, table_version
from pyspark_checkpointer.table.row_order import check_unique, in_order, show_key
from pyspark_checkpointer.table.schema import CHANGE, DELTA_COLUMNS, FIELD_ID, MERGE, PARTITION, Column, TableSchema
from pyspark_checkpointer.table.schema_evolution import migrated_schema
from pyspark_checkpointer.table.types import hold_the_same, spark_type
from pyspark_checkpointer.table.version import TableVersion
from pyspark_checkpointer.table.writer import TableWriter, on_top

COMBINE = b"combine"
"""Key of the metadata by which a transform sets how a column is combined.

The new way holds from then on.
"""

MIGRATION_PACK_BYTES = 32 << 20
"""Bytes in memory of small partitions that share one pack."""


async def transform(
    reader: CheckpointReader, old: str, new: str, function: Transform, store: OverlayStore, owner: CheckpointId
) -> Operator:
    """Return the operator `new`, with the transformed partitions of `old`.

    The partitions are written to `store`. Large partitions become snapshots, small ones share packs. The transform of a
    table without rows is called once, for its columns.
    """
    operator, host = reader.operator(old), reader.session.host
    version = table_version(reader, old)
    task = _TableTransform(new, version, function, reader.manifest.clock if reader.manifest else None)
    rows = partition_reader(reader, old, sorted(version.chains))
    chains: dict[int, Chain] = {}
    small: list[pa.Table] = []
    size = 0

    async def write_small() -> None:
        if small:
            packed = await TableWriter(store, host, owner, new, task.schema).pack(pa.concat_tables(small))
            chains.update((partition, on_top((), delta)) for partition, delta in packed.items())
            small.clear()

    # In ascending order, so that what is put together for a pack is in order of its partitions.
    for partition in sorted(version.chains):
        given = await rows(partition)
        # `call` and not `run`: the function is the user's, and must not hold a thread that other work waits for.
        made = await host.call(lambda p=partition, g=given: task.run(p, g))  # type: ignore[misc]
        if not is_small_partition(made.num_rows, made.nbytes):
            writer = TableWriter(store, host, owner, new, task.schema)
            chains[partition] = (await writer.snapshot(partition, made),)
        elif made.num_rows:
            small.append(_as_changes(made, partition))
            size += made.nbytes
        # Small partitions wait in memory for their pack, so that a table of many does not become an object for each.
        if size >= MIGRATION_PACK_BYTES:
            await write_small()
            size = 0
    await write_small()
    if not version.chains:
        await host.call(lambda: task.run(None, version.schema.arrow().empty_table()))
    return Operator(
        version.partitions, operator.partitioner, operator.codec, chains, task.schema.to_json(), extra=operator.extra
    )


def _as_changes(rows: pa.Table, partition: int) -> pa.Table:
    """Return all rows of a partition as changes on top of an empty one."""
    for name, value in ((PARTITION, partition), (CHANGE, MERGE)):
        rows = rows.append_column(name, pa.repeat(pa.scalar(value, DELTA_COLUMNS[name]), rows.num_rows))
    return rows


class _TableTransform:
    """The transform of one table.

    All partitions have to return the same columns as the first one.
    """

    def __init__(self, name: str, version: TableVersion, function: Transform, clock: Clock | None) -> None:
        self._name = name
        self._clock = clock
        self._version = version
        self._function = function
        self._columns: list[tuple[str, pa.DataType, str]] | None = None
        self.schema = version.schema

    def run(self, partition: int | None, given: pa.Table) -> pa.Table:
        """Return the new rows of a partition, in order and in the stored types.

        `partition` is None for a table without rows.
        """
        where = f"operator {self._name!r}" + ("" if partition is None else f", partition {partition}")
        made = call(where, self._function, given)
        if not isinstance(made, pa.Table):
            raise IllegalArgumentError(
                f"{where}: its transform has to return a pyarrow.Table, not {type(made).__name__}"
            )
        # The first partition decides the schema, which the rows are then cast to.
        self._learn(where, _storable(made.schema))
        rows = self._stored(where, made)
        if partition is not None:
            self._check_place(where, partition, rows, given)
        self._check_living(where, rows)
        check_unique(rows, self.schema, self._name)
        return rows

    def _learn(self, where: str, schema: pa.Schema) -> None:
        combine = self._combine(schema)
        fields = [(field.name, field.type, combine.get(field.name, "")) for field in schema]
        if self._columns is None:
            self.schema = self._new_schema(where, schema, combine)
            self._columns = fields
        elif fields != self._columns:
            raise IllegalArgumentError(
                f"{where}: its transform returned the columns {_show(fields)}, but {_show(self._columns)} before: "
                "all partitions must have the same columns"
            )

    def _new_schema(self, where: str, schema: pa.Schema, combine: dict[str, str]) -> TableSchema:
        try:
            before = self._before(schema)
            fields = [_described(field, before.get(field.name)) for field in schema]
            return migrated_schema(self._name, self._version.schema, fields, combine)
        except IllegalArgumentError as error:
            raise IllegalArgumentError(
                f"{where}: its transform returned columns that cannot be stored: {error}"
            ) from None

    def _before(self, schema: pa.Schema) -> dict[str, Column]:
        """Return the old columns, by the names that they have now.

        A column that was renamed is recognized by its id.
        """
        old = {column.name: column for column in self._version.schema.columns}
        # Arrow hands the field id through a rename, so it leads to the old column, unless another column has taken
        # its name.
        known = {str(column.id).encode(): column for name, column in old.items() if name not in schema.names}
        found = {
            field.name: old.get(field.name) or known.get((field.metadata or {}).get(FIELD_ID, b"")) for field in schema
        }
        return {name: column for name, column in found.items() if column is not None}

    def _combine(self, schema: pa.Schema) -> dict[str, str]:
        """Return how columns are combined: as their metadata says, else as before."""
        before = {name: column.role.encode() for name, column in self._before(schema).items()}
        found = {}
        for field in schema:
            said = (field.metadata or {}).get(COMBINE, before.get(field.name, b""))
            role = said.decode(errors="replace") or "last"
            if role not in ("key", "last"):
                found[field.name] = role
        return found

    def _stored(self, where: str, made: pa.Table) -> pa.Table:
        arrow = self.schema.arrow()
        try:
            made.validate()  # Not `full`: Spark has strings that are not UTF-8.
            rows = made.select(arrow.names).cast(arrow)
            for values in rows.columns:
                check_values(values)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise IllegalArgumentError(f"{where}: its transform returned rows that cannot be stored: {error}") from None
        return in_order(canonical_rows(rows, self.schema), self.schema.key)

    def _check_place(self, where: str, partition: int, rows: pa.Table, given: pa.Table) -> None:
        """Raise `IllegalArgumentError` for a key in a wrong partition.

        No reader would find the key there.
        """
        keys = rows.select(self.schema.key)
        if keys.equals(in_order(given, self.schema.key).select(self.schema.key)):
            return  # The transform kept the keys, and hashing them would take some microseconds for each.
        places = partitions_of(keys, self.schema, self._version.partitions)
        for row, place in enumerate(places):
            if place != partition:
                raise IllegalArgumentError(
                    f"{where}: its transform returned the key {show_key(keys, self.schema.key, row)}, which hashes to "
                    f"partition {place}: keys have to stay in their partition"
                )

    def _check_living(self, where: str, rows: pa.Table) -> None:
        """Raise `IllegalArgumentError` for rows that are expired by the rule of the table.

        They would be gone without a word: a batch returns a row as expired if it was living before or wrote it.
        """
        rule = self.schema.expire
        if rule is None or self._clock is None:
            return
        count = pc.sum(is_expired(rows[rule.column], limit(rule, self._clock.at))).as_py() or 0
        if count:
            raise IllegalArgumentError(
                f"{where}: its transform returned rows that are expired, {rule}, at the job's clock, "
                f"{format_time(self._clock.at)}: {count:,} of {rows.num_rows:,}. No batch would return them as "
                "expired: leave them out, or give them a later time"
            )


def _storable(schema: pa.Schema) -> pa.Schema:
    """Return the columns in the forms of Arrow that are stored.

    Polars and pandas return text with 64-bit offsets, and categories: they hold the same values.
    """
    fields = [f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema]
    return large_rows.narrow(pa.schema(fields).empty_table()).schema


def _described(field: pa.Field, before: Column | None) -> Json:
    """Return a returned column in Spark's JSON.

    It has the type of the old column, if its Arrow type holds the same: several Spark types share one.
    """
    if before is not None and hold_the_same(before.field().type, field.type):
        kind = before.type
    else:
        try:
            kind = spark_type(field.type)
        except IllegalArgumentError as error:
            raise IllegalArgumentError(f"column {field.name!r}: {error}") from None
    metadata = None if before is None or before.type != kind else before.renamed(field.name).metadata
    return {"name": field.name, "type": kind, "metadata": metadata or {}}


def _show(fields: Sequence[tuple[str, pa.DataType, str]]) -> str:
    return ", ".join(f"{display.cut(name)} {display.cut(kind)} {combine}".rstrip() for name, kind, combine in fields)
