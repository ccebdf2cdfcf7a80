"""A table for a new version of its job: each partition by a function of Arrow tables."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from checkpointer.errors import IllegalArgumentError
from checkpointer.migration import Transform, call
from checkpointer.restore import Snapshot
from checkpointer.store.overlay import OverlayStore
from checkpointer.table.hashing import partitions_of
from checkpointer.table.merge import check_unique, in_order, show_key
from checkpointer.table.opening import partition_reader
from checkpointer.table.schema import TableSchema, migrated_schema
from checkpointer.table.types import spark_type
from checkpointer.table.version import Version
from checkpointer.table.write import Writer
from manifests.model import Chain, CheckpointId, Operator


async def transform(
    snapshot: Snapshot, old: str, new: str, function: Transform, store: OverlayStore, owner: CheckpointId
) -> Operator:
    """The operator of another name, its partitions written to `store` as snapshots.

    A table without rows is transformed once all the same, for its columns.
    """
    operator, host = snapshot.operator(old), snapshot.session.host
    version = Version.of(old, operator)
    task = _Task(new, version, function)
    rows = partition_reader(snapshot, old, sorted(version.chains))
    chains: dict[int, Chain] = {}
    for partition in sorted(version.chains):
        given = await rows(partition)
        made = await host.call(lambda p=partition, g=given: task.run(p, g))  # type: ignore[misc]
        if made.num_rows:
            writer = Writer(store, host, owner, new, task.schema)
            chains[partition] = (await writer.snapshot(partition, made),)
    if not version.chains:
        await host.call(lambda: task.run(None, version.schema.arrow().empty_table()))
    return Operator(
        version.partitions, operator.partitioner, operator.codec, chains, task.schema.to_json(), extra=operator.extra
    )


class _Task:
    """One table: what its first partition became says how all have to be."""

    def __init__(self, name: str, version: Version, function: Transform) -> None:
        self._name = name
        self._version = version
        self._function = function
        self._fields: list[tuple[str, pa.DataType]] | None = None
        self.schema = version.schema

    def run(self, partition: int | None, given: pa.Table) -> pa.Table:
        """The new rows of a partition, in order, as they are stored; None for a table that has no rows."""
        where = f"operator {self._name!r}" + ("" if partition is None else f", partition {partition}")
        made = call(where, self._function, given)
        if not isinstance(made, pa.Table):
            raise IllegalArgumentError(
                f"{where}: its transform has to return a pyarrow.Table, not {type(made).__name__}"
            )
        self._learn(where, made.schema)
        rows = self._stored(where, made)
        if partition is not None:
            self._check_place(where, partition, rows, given)
        check_unique(rows, self.schema, self._name)
        return rows

    def _learn(self, where: str, schema: pa.Schema) -> None:
        fields = list(zip(schema.names, schema.types, strict=True))
        if self._fields is None:
            self.schema = self._new_schema(where, schema)
            self._fields = fields
        elif fields != self._fields:
            raise IllegalArgumentError(
                f"{where}: its transform returned the columns {_show(fields)}, but {_show(self._fields)} before: "
                "all partitions have to have the same"
            )

    def _new_schema(self, where: str, schema: pa.Schema) -> TableSchema:
        try:
            fields = [(field.name, self._type(field)) for field in schema]
            return migrated_schema(self._name, self._version.schema, fields)
        except IllegalArgumentError as error:
            raise IllegalArgumentError(
                f"{where}: its transform returned columns that cannot be stored: {error}"
            ) from None

    def _type(self, field: pa.Field) -> object:
        """The type in Spark's words: those of the column of this name, if that is still what it holds."""
        for column in self._version.schema.columns:
            if column.name == field.name and column.field().type.equals(field.type):
                return column.type
        try:
            return spark_type(field.type)
        except IllegalArgumentError as error:
            raise IllegalArgumentError(f"column {field.name!r}: {error}") from None

    def _stored(self, where: str, made: pa.Table) -> pa.Table:
        arrow = self.schema.arrow()
        try:
            made.validate()  # not of each text: Spark has such that is no UTF-8
            rows = made.select(arrow.names).cast(arrow)
        except (pa.ArrowException, ValueError) as error:
            raise IllegalArgumentError(f"{where}: its transform returned rows that cannot be stored: {error}") from None
        for index, field in enumerate(arrow):
            if field.name in self.schema.key and pa.types.is_floating(field.type):
                rows = rows.set_column(index, field, pc.add(rows[field.name], 0))  # no zero below zero in a key
        return in_order(rows, self.schema.key)

    def _check_place(self, where: str, partition: int, rows: pa.Table, given: pa.Table) -> None:
        """Nobody would look for a key in another partition than the one that it hashes to."""
        keys = rows.select(self.schema.key)
        if keys.equals(in_order(given, self.schema.key).select(self.schema.key)):
            return  # hashing takes some microseconds for each
        places = partitions_of(keys, self.schema, self._version.partitions)
        for row, place in enumerate(places):
            if place != partition:
                raise IllegalArgumentError(
                    f"{where}: its transform returned the key {show_key(keys, self.schema.key, row)}, which hashes to "
                    f"partition {place}: keys have to stay in their partition"
                )


def _show(fields: Sequence[tuple[str, pa.DataType]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in fields)
