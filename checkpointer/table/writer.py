"""Write rows of a table as objects.

An object is a snapshot of one partition, or a pack with deltas of several.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer.checkpoint import upload
from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.model import DELTA, SNAPSHOT, Artifact, Chain, CheckpointId
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.table import kept_columns, large_rows, parquet_encode
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.row_order import in_order
from pyspark_checkpointer.table.schema import CHANGE, DELETE, KEPT, PARTITION, TableSchema
from pyspark_checkpointer.table.version import empty_base

MAX_PARTITION_BYTES = 4 << 30
"""The most bytes in memory of the rows of a partition.

As one object they still fit into one request.
"""


class TableWriter:
    """Write objects of one table for one checkpoint, in the driver or in a task."""

    def __init__(self, store: Store, host: Host, owner: CheckpointId, table: str, schema: TableSchema) -> None:
        self._store = store
        self._host = host
        self._owner = owner
        self._table = table
        self._schema = schema

    async def in_order(self, rows: pa.Table) -> pa.Table:
        def work() -> pa.Table:
            with large_rows.explain_arrow_errors(self._table):
                return in_order(rows, self._schema.key)

        return await self._host.run(work)

    async def snapshot(self, partition: int, rows: pa.Table) -> Artifact:
        """Write all rows of a partition as a snapshot.

        The rows are in order of their key, and lack the columns of a delta.
        """
        assert CHANGE not in rows.column_names or DELETE not in rows[CHANGE].to_numpy(), "a deletion in a snapshot"
        # Before the bytes are encoded and sent, as a later task might not be able to read them.
        self._check_size(partition, rows.nbytes)

        def encode() -> parquet_encode.EncodedFile:
            with large_rows.explain_arrow_errors(self._table, partition):
                return parquet_encode.encode(self._stored(rows))

        return await self._put_snapshot(partition, await self._host.run(encode), rows.num_rows)

    async def snapshot_of(self, partition: int, pieces: AsyncIterator[pa.Table]) -> Chain:
        """Write the rows of a partition, piece by piece in order of their key.

        Returns the chain of the partition, which is empty without rows.
        """
        encoder = parquet_encode.Encoder(self._schema.arrow())

        def add(rows: pa.Table) -> None:
            with large_rows.explain_arrow_errors(self._table, partition):
                encoder.add(self._stored(rows))

        # Piece by piece, so that only the encoded bytes of a large partition are in memory as a whole.
        async for rows in pieces:
            await self._host.run(partial(add, rows))
            self._check_size(partition, encoder.raw_size)
        if encoder.num_rows == 0:
            return ()
        return (await self._put_snapshot(partition, await self._host.run(encoder.finish), encoder.num_rows),)

    def _stored(self, rows: pa.Table) -> pa.Table:
        return rows.select(self._schema.names).cast(self._schema.arrow())

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

    async def _put_snapshot(self, partition: int, encoded: parquet_encode.EncodedFile, records: int) -> Artifact:
        path = object_paths.artifact(self._table, partition, self._owner, SNAPSHOT, encoded.digest, codecs.PARQUET.name)
        await upload.put_once(self._store, path, encoded.data)
        size = len(encoded.data)
        return Artifact(path, SNAPSHOT, 0, size, size, encoded.raw_size, records, encoded.digest, encoded.tail)

    async def pack(self, rows: pa.Table) -> dict[int, Artifact]:
        """Write changes of any partitions, in order, as one object.

        Return the artifact of each partition.

        The raw size of an artifact is that of its own rows, not of the pack. So it stays right when other partitions
        stop naming the pack.
        """

        def encode() -> tuple[parquet_encode.EncodedFile, dict[int, tuple[int, int]]]:
            # Readers merge faster without the column, and the format has it only where some row keeps one.
            changes = kept_columns.without_need(rows)
            stored = self._schema.arrow_delta(kept=KEPT in changes.column_names)
            with large_rows.explain_arrow_errors(self._table):
                changes = changes.select(stored.names).cast(stored)
                encoded = parquet_encode.encode(changes)
            of_rows = rows[PARTITION].to_numpy()
            assert (of_rows[1:] >= of_rows[:-1]).all(), "changes that are not in order"
            return encoded, {partition: (part.nbytes, part.num_rows) for partition, part in split(changes)}

        encoded, parts = await self._host.run(encode)
        path = object_paths.pack(self._table, self._owner, encoded.digest, codecs.PARQUET.name)
        await upload.put_once(self._store, path, encoded.data)
        size = len(encoded.data)
        return {
            partition: Artifact(path, DELTA, 0, size, size, raw_size, records, encoded.digest, encoded.tail)
            for partition, (raw_size, records) in parts.items()
        }


def split(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield each partition with its rows.

    The rows come in order of their partitions.
    """
    if rows.num_rows == 0:
        return
    numbers, starts = np.unique(rows[PARTITION].to_numpy(), return_index=True)
    for number, start, end in zip(numbers.tolist(), starts, [*starts[1:], rows.num_rows], strict=True):
        yield number, rows.slice(start, end - start)


def on_top(chain: Chain, delta: Artifact) -> Chain:
    """Return a chain with one more delta. A new chain begins with an empty snapshot."""
    return (*(chain or (empty_base(delta),)), delta)


# ---- compaction ------------------------------------------------------------------------------------------------------


async def rewrite(
    reader: TableReader, writer: TableWriter, chains: Mapping[int, Chain], keep: Mapping[int, int]
) -> dict[int, Chain]:
    """Compact the chains of some partitions and return them.

    `keep` says how many artifacts of each stay. If none stays, the partition gets a snapshot of its own. The folded
    deltas of all others share one pack. A chain without artifacts means that no row is left.
    """
    written: dict[int, Chain] = {}
    folded: list[pa.Table] = []
    for partition, count in keep.items():
        changes = await _fold(reader, partition, chains[partition], count)
        if changes is None:
            written[partition] = await writer.snapshot_of(partition, reader.pieces(partition, ordered=True))
            continue
        if _is_whole(chains[partition], count):
            changes = changes.filter(pc.not_equal(changes[CHANGE], DELETE))  # The base is empty: nothing to delete.
            if changes.num_rows == 0:
                written[partition] = ()
        folded.append(changes)
    if any(changes.num_rows for changes in folded):
        for partition, artifact in (await writer.pack(await writer.in_order(kept_columns.concat(folded)))).items():
            chain, count = chains[partition], keep[partition]
            # On an empty base the chain begins anew: the old empty snapshot names the old pack, which would stay live
            # for it alone.
            written[partition] = on_top(() if _is_whole(chain, count) else chain[:count], artifact)
    # A partition that gets no chain here would keep its long one, or lose its rows, and nobody would notice.
    if lost := sorted(keep.keys() - written.keys()):
        raise AssertionError(f"partitions {lost} were to be compacted, and nothing was written for them")
    return written


async def _fold(reader: TableReader, partition: int, chain: Chain, count: int) -> pa.Table | None:
    """Return the changes of the artifacts above the first `count`, one for each key.

    None means that the whole chain has to become a snapshot: because no artifact stays, or because a sum fits into its
    type only together with the rows below.
    """
    if count == 0:
        return None
    try:
        return await reader.changes(partition, chain[count:])
    # The sum of the deltas exceeds its type. With the rows below it may fit, and then only a snapshot can hold it.
    except InvalidStateError:
        return None


def _is_whole(chain: Chain, count: int) -> bool:
    """Return whether the deltas above the first `count` artifacts are everything.

    They are the whole content if the base is empty.
    """
    return count == 1 and chain[0].length == 0


__all__ = ["MAX_PARTITION_BYTES", "TableWriter", "on_top", "rewrite", "split"]
