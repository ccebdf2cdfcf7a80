"""Read a table of a restored checkpoint without Spark."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import Table

from pyspark_checkpointer import display
from pyspark_checkpointer.checkpoint.restore import CheckpointReader, explaining
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.tagged_json import to_json
from pyspark_checkpointer.table import large_rows, row_order
from pyspark_checkpointer.table.conform import exact_array
from pyspark_checkpointer.table.hashing import partitions_of
from pyspark_checkpointer.table.key_floats import canonical
from pyspark_checkpointer.table.lookup_steps import lookup_steps
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import missing
from pyspark_checkpointer.table.version import TableVersion

HELD_BYTES = 256 << 20
"""Decoded bytes of deltas that are held while a table is read partition by partition."""

Keys = Sequence[Mapping[str, Any]]
"""Keys as rows: the value of each key column, by its name."""

__all__ = ["Keys", "Table", "key_table", "partition_reader", "read", "table_version"]


def table_version(reader: CheckpointReader, name: str) -> TableVersion:
    """Return a table as a checkpoint has it."""
    manifest = reader.manifest
    return TableVersion.of(name, reader.operator(name), None if manifest is None else manifest.clock)


async def read(reader: CheckpointReader, name: str, columns: Sequence[str] | None, keys: Keys | None) -> Table:
    """Return all rows of a table, or those with the keys given, merged and verified."""
    version = table_version(reader, name)
    session = reader.session
    checkpoint = None if reader.manifest is None else reader.manifest.id
    if keys is not None:
        sought = row_order.in_order(key_table(version, keys), version.schema.key)
        # Each key once: the steps of a lookup have no key in common.
        sought = sought.take(pa.array(row_order.key_starts(sought, version.schema.key)))
        numbers = pa.array(partitions_of(sought, version.schema, version.partitions), pa.int32())
        # A key can only be in the partition that its hash says, so no other one is read.
        wanted = {p: sought.filter(pc.equal(numbers, p)) for p in sorted(version.chains.keys() & numbers.to_pylist())}
        steps, reads = lookup_steps(version, wanted)
        table = TableReader(reader.store, session.host, version.only(list(reads)), columns, sought, reads=reads)
        found = [await explaining(session, partial(table.rows_of, step), checkpoint) for step in steps]
        return pa.concat_tables([table.empty(), *found])
    table = TableReader(reader.store, session.host, version, columns)

    async def load() -> list[pa.Table]:
        # A table may have up to 2**31 partitions, so time and memory go to those that have rows.
        return await asyncio.gather(*map(table.rows, sorted(version.chains)))

    found = await explaining(session, load, checkpoint)
    return pa.concat_tables(found) if found else table.empty()


def partition_reader(
    reader: CheckpointReader, name: str, partitions: Sequence[int]
) -> Callable[[int], Coroutine[Any, Any, Table]]:
    """Return a function that reads one partition.

    An object that several partitions share is fetched once for each run of partitions with `HELD_BYTES` of deltas.
    """
    session = reader.session
    version = table_version(reader, name).only(partitions)
    checkpoint = reader.manifest.id if reader.manifest else None
    without_rows = TableReader(reader.store, session.host, version.only([]))
    tables: dict[int, TableReader] = {}
    for run in large_rows.runs(sorted(version.chains), partial(_delta_bytes, version), HELD_BYTES):
        # `TableReader` counts how many of its partitions share an object, so it must know which ones will be read. It
        # holds the deltas of all of them in a pack, until the last one is read.
        tables |= dict.fromkeys(run, TableReader(reader.store, session.host, version.only(run)))

    async def rows(partition: int) -> Table:
        return await explaining(session, lambda: tables.get(partition, without_rows).rows(partition), checkpoint)

    return rows


def _delta_bytes(version: TableVersion, partition: int) -> int:
    """Return the decoded bytes of the deltas of a partition."""
    return sum(artifact.raw_size for artifact in version.chains[partition][1:])


def key_table(version: TableVersion, keys: Keys) -> pa.Table:
    """Return keys as an Arrow table in the types of the key columns.

    Values are never rounded.
    """
    fields = [version.schema.arrow().field(name) for name in version.schema.key]
    if not isinstance(keys, Sequence) or not all(isinstance(row, Mapping) for row in keys):
        example = dict.fromkeys(version.schema.key, "…")
        raise IllegalArgumentError(
            f"table {version.name!r}: keys={keys!r:.80}: expected a list of rows such as {example}"
        )
    for row in keys:
        for field in fields:
            if field.name not in row:
                raise IllegalArgumentError(f"table {version.name!r}: keys: {missing(field.name, [*row])}")
    try:
        columns = [exact_array([row[field.name] for row in keys], field.type) for field in fields]
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise IllegalArgumentError(
            f"table {version.name!r}: keys: expected rows with {display.names(version.schema.key)}: {error}"
            f"{_time_hint(fields, keys)}"
        ) from None
    return pa.table([canonical(column) for column in columns], schema=pa.schema(fields))


def _time_hint(fields: Sequence[pa.Field], keys: Keys) -> str:
    """Return how to give a date or time, where a key has another value for one.

    The other value is a text or anything else.
    """
    for field in fields:
        is_date, zone = pa.types.is_date(field.type), getattr(field.type, "tz", None)
        if not is_date and not pa.types.is_timestamp(field.type):
            continue
        wanted = date if is_date else datetime
        shown = to_json(date(2024, 1, 2) if is_date else datetime(2024, 1, 2, 6, tzinfo=UTC if zone else None))
        for row in keys:
            if field.name in row and not (row[field.name] is None or type(row[field.name]) is wanted):
                return (
                    f": column {field.name!r} takes datetime.{wanted.__name__}, on the command line written as "
                    f"{json.dumps(shown)}, and not {row[field.name]!r:.40}"
                )
    return ""
