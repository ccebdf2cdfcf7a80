"""Write rows of tables and entries of maps as plain Parquet files.

The files are for programs without this library.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import BinaryIO, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from pyspark_checkpointer.checkpoint.map_entries import living_entries
from pyspark_checkpointer.checkpoint.restore import CheckpointReader
from pyspark_checkpointer.errors import IllegalArgumentError
from pyspark_checkpointer.manifests.msgpack_values import unpack
from pyspark_checkpointer.manifests.tagged_json import to_json
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage.local import files
from pyspark_checkpointer.table.opening import partition_reader, table_version

RowKind = Literal["table", "map"]
"""Kinds of operators that can be written as rows."""

MAP_ENTRIES_SCHEMA = pa.schema(
    [pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string(), nullable=False)]
)
"""The schema of a map.

Both columns are JSON text, as `checkpointer cat` shows it. So the types never depend on the content of the map.
"""


class PlainRows:
    """A table or map that is read partition by partition.

    Its rows have plain columns, without this library's metadata.
    """

    def __init__(self, reader: CheckpointReader, name: str, kind: RowKind, partitions: Sequence[int]) -> None:
        self._reader = reader
        self._name = name
        self._table = partition_reader(reader, name, partitions) if kind == "table" else None
        columns = table_version(reader, name).schema.arrow() if kind == "table" else MAP_ENTRIES_SCHEMA
        # Field ids mean nothing to other programs, and a snapshot as it is stored has them.
        self.schema = pa.schema([field.remove_metadata() for field in columns])

    async def read(self, partition: int, limit: int | None = None) -> pa.Table:
        """Return the rows of a partition, or the first `limit` of them.

        If it is a map, no more entries than these are decoded.
        """
        if self._table is not None:
            return (await self._table(partition)).slice(0, limit).cast(self.schema)
        if partition not in self._reader.operator(self._name).chains:
            return self.schema.empty_table()
        entries = await living_entries(self._reader, self._name, partition)

        def build() -> pa.Table:
            # Values are unpacked here and not before, so that a limit saves the work for all others.
            some = list(islice(entries.items(), limit))
            columns = [[_text(key) for key, _ in some], [_text(unpack(value)) for _, value in some]]
            return pa.table(columns, schema=self.schema)

        return await self._reader.session.host.run(build)


def _text(value: object) -> str:
    return json.dumps(to_json(value), ensure_ascii=False)


def open_writer(sink: BinaryIO, schema: pa.Schema) -> pq.ParquetWriter:
    """Return a writer of a plain Parquet file."""
    return pq.ParquetWriter(sink, schema, compression="zstd")


def write_file(rows: PlainRows, partitions: Sequence[int], limit: int | None, output: Path) -> int:
    """Write one file, partition by partition, and return its number of rows.

    If that fails, an older file stays. A symbolic link stays too: what it leads to is written.
    """
    target = os.path.realpath(output)
    with _explaining(output):
        temporary, fd = files.create_temporary(target)
    written = 0
    try:
        with os.fdopen(fd, "wb") as file:
            with _explaining(output):
                writer = open_writer(file, rows.schema)
            try:
                for table in _tables(rows, partitions, limit):  # Errors of the store are not about the output.
                    with _explaining(output):
                        writer.write_table(table)
                    written += table.num_rows
            finally:
                with _explaining(output):
                    writer.close()
            # Without this fsync a power failure after the rename could leave a file without its bytes under the final
            # name.
            with _explaining(output):
                file.flush()
                os.fsync(file.fileno())
        with _explaining(output):
            files.put_in_place(temporary, target)
    # Also on Ctrl-C: nobody would know what the temporary file was for.
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return written


def _tables(rows: PlainRows, partitions: Sequence[int], limit: int | None) -> Iterator[pa.Table]:
    left = limit
    for partition in partitions:
        # Before the read: the next partition would be fetched for no rows.
        if left == 0:
            return
        table = run_sync(rows.read(partition, left))
        left = None if left is None else left - table.num_rows
        yield table


@contextmanager
def _explaining(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise IllegalArgumentError(f"{output}: {why}: the file cannot be written there") from None
