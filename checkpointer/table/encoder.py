"""Encode rows of a table as objects, which have neither a name nor a place yet.

An object is a snapshot of one partition, or a pack with deltas of several. `writer.py` writes it.
"""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Kind
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.table import kept_columns, large_rows, parquet_encode
from pyspark_checkpointer.table.row_order import in_order, split_partitions
from pyspark_checkpointer.table.schema import CHANGE, DELETE, KEPT, PARTITION, TableSchema

MAX_PARTITION_BYTES = 4 << 30
"""The most bytes in memory of the rows of a partition.

As one object they still fit into one request.
"""


class PartSize(NamedTuple):
    """The rows of one partition in an object: how many, and their bytes in memory."""

    records: int
    raw_size: int


class EncodedObject(NamedTuple):
    """A snapshot of one partition, or a pack with deltas of several.

    `parts` is by partition.
    """

    kind: Kind
    file: parquet_encode.EncodedFile
    parts: Mapping[int, PartSize]


class TableEncoder:
    """Encode objects of one table, in the driver or in a task."""

    def __init__(self, host: Host, table: str, schema: TableSchema) -> None:
        self._host = host
        self._table = table
        self._schema = schema

    async def in_order(self, rows: pa.Table) -> pa.Table:
        def work() -> pa.Table:
            with large_rows.explain_arrow_errors(self._table):
                return in_order(rows, self._schema.key)

        return await self._host.run(work)

    async def snapshot(self, partition: int, rows: pa.Table) -> EncodedObject:
        """Encode all rows of a partition as a snapshot.

        The rows are in order of their key, and lack the columns of a delta.
        """
        assert CHANGE not in rows.column_names or DELETE not in rows[CHANGE].to_numpy(), "a deletion in a snapshot"
        # Before the bytes are encoded and sent, as a later task might not be able to read them.
        self._check_size(partition, rows.nbytes)

        def encode() -> parquet_encode.EncodedFile:
            with large_rows.explain_arrow_errors(self._table, partition):
                return parquet_encode.encode(self._stored(rows), self._schema.key)

        file = await self._host.run(encode)
        return EncodedObject(SNAPSHOT, file, {partition: PartSize(rows.num_rows, file.raw_size)})

    async def snapshot_of(self, partition: int, pieces: AsyncIterator[pa.Table]) -> EncodedObject | None:
        """Encode the rows of a partition, piece by piece in order of their key.

        Returns None without rows.
        """
        encoder = parquet_encode.Encoder(self._schema.arrow(), self._schema.key)

        def add(rows: pa.Table) -> None:
            with large_rows.explain_arrow_errors(self._table, partition):
                encoder.add(self._stored(rows))

        # Piece by piece, so that only the encoded bytes of a large partition are in memory as a whole.
        async for rows in pieces:
            await self._host.run(partial(add, rows))
            self._check_size(partition, encoder.raw_size)
        if encoder.num_rows == 0:
            return None
        file = await self._host.run(encoder.finish)
        return EncodedObject(SNAPSHOT, file, {partition: PartSize(encoder.num_rows, file.raw_size)})

    async def pack(self, rows: pa.Table) -> EncodedObject:
        """Encode changes of any partitions, in order, as one object.

        The raw size of a part is that of its own rows, not of the pack. So it stays right when other partitions stop
        naming the pack.
        """

        def encode() -> EncodedObject:
            # Readers merge faster without the column, and the format has it only where some row keeps one.
            changes = kept_columns.without_need(rows)
            stored = self._schema.arrow_delta(kept=KEPT in changes.column_names)
            with large_rows.explain_arrow_errors(self._table):
                changes = changes.select(stored.names).cast(stored)
                # The size of a part counts these columns, as the rows have them in the memory of a reader.
                file = parquet_encode.encode(self._without_nulls(changes), self._schema.key, pack=True)
            of_rows = rows[PARTITION].to_numpy()
            assert (of_rows[1:] >= of_rows[:-1]).all(), "changes that are not in order"
            return EncodedObject(
                DELTA, file, {p: PartSize(part.num_rows, part.nbytes) for p, part in split_partitions(changes)}
            )

        return await self._host.run(encode)

    def _stored(self, rows: pa.Table) -> pa.Table:
        return rows.select(self._schema.names).cast(self._schema.arrow())

    def _without_nulls(self, changes: pa.Table) -> pa.Table:
        """Return the changes without the columns of values that are null in all of them.

        Readers take them for nulls (SPEC, Tables). An upsert may give few of many columns, and a deletion gives none,
        but in a file even nulls would have a page of each column in each row group.
        """
        values = [column.name for column in self._schema.values]
        return changes.drop_columns([name for name in values if changes[name].null_count == changes.num_rows])

    def _check_size(self, partition: int, size: int) -> None:
        """Raise `InvalidStateError` for a partition that is too large.

        A later task might not be able to read it. The error comes before the commit: the last checkpoint stays as it
        is, and can still be read.
        """
        if size > MAX_PARTITION_BYTES:
            raise InvalidStateError(
                f"table {self._table!r}, partition {partition}: would have {size} bytes of rows or more, and reading "
                f"may fail above {MAX_PARTITION_BYTES}: the batch was not committed; open the table with more "
                "partitions (num_partitions=), which spreads its rows again"
            )


__all__ = ["MAX_PARTITION_BYTES", "EncodedObject", "PartSize", "TableEncoder"]
