"""Rows of a table as objects of an attempt: a snapshot for one partition, a pack for the deltas of several."""

from collections.abc import Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkpointer import objects
from checkpointer.codecs.fold import fold_start
from checkpointer.errors import InvalidStateError
from checkpointer.host import Host
from checkpointer.store.base import Store
from checkpointer.table import parquet
from checkpointer.table.merge import in_order
from checkpointer.table.schema import CHANGE, DELETE, PARTITION, TableSchema
from checkpointer.table.version import Reader, Version, empty_base
from manifests import layout
from manifests.model import DELTA, SNAPSHOT, Artifact, Chain, CheckpointId

SMALL_PARTITION = 4096
"""Rows below which a partition shares an object with others, even if it is whole."""

COMPACT_ROWS = 65_536
"""Changed rows of a partition below which merging them while reading costs less than a snapshot."""


class Writer:
    """Writes the objects of one attempt at a checkpoint, in the driver or in any task."""

    def __init__(self, store: Store, host: Host, owner: CheckpointId, table: str, schema: TableSchema) -> None:
        self._store = store
        self._host = host
        self._owner = owner
        self._table = table
        self._schema = schema

    async def in_order(self, rows: pa.Table) -> pa.Table:
        return await self._host.run(lambda: in_order(rows, self._schema.key))

    async def snapshot(self, partition: int, rows: pa.Table) -> Artifact:
        """All the rows of a partition, in order of their key; what else a delta has is left out."""

        def encode() -> parquet.Encoded:
            return parquet.encode(rows.select(self._schema.names).cast(self._schema.arrow()))

        encoded = await self._host.run(encode)
        path = layout.artifact(self._table, partition, self._owner, SNAPSHOT, encoded.digest, layout.PARQUET)
        await objects.put(self._store, path, encoded.data)
        size = len(encoded.data)
        return Artifact(path, SNAPSHOT, 0, size, size, encoded.raw_size, rows.num_rows, encoded.digest, encoded.tail)

    async def pack(self, rows: pa.Table) -> dict[int, Artifact]:
        """Changes of any partitions, in order, as one object. For each partition that has some, where they are."""

        def encode() -> tuple[parquet.Encoded, dict[int, int]]:
            stored = self._schema.arrow_delta()
            encoded = parquet.encode(rows.select(stored.names).cast(stored))
            of_rows = rows[PARTITION].to_numpy()
            assert (of_rows[1:] >= of_rows[:-1]).all(), "changes that are not in order"
            numbers, counts = np.unique(of_rows, return_counts=True)
            return encoded, dict(zip(numbers.tolist(), counts.tolist(), strict=True))

        encoded, counts = await self._host.run(encode)
        path = layout.pack(self._table, self._owner, encoded.digest, layout.PARQUET)
        await objects.put(self._store, path, encoded.data)
        size = len(encoded.data)
        return {
            partition: Artifact(path, DELTA, 0, size, size, encoded.raw_size, records, encoded.digest, encoded.tail)
            for partition, records in counts.items()
        }


def split(rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Rows that are in order of their partitions, partition by partition."""
    if rows.num_rows == 0:
        return
    numbers, starts = np.unique(rows[PARTITION].to_numpy(), return_index=True)
    for number, start, end in zip(numbers.tolist(), starts, [*starts[1:], rows.num_rows], strict=True):
        yield number, rows.slice(start, end - start)


def on_top(chain: Chain, delta: Artifact) -> Chain:
    """A chain with one more delta; above nothing it begins with an empty snapshot."""
    return (*(chain or (empty_base(delta),)), delta)


# ---- compaction ------------------------------------------------------------------------------------------------------


def rewrites(version: Version, max_chain: int, snapshots: int) -> dict[int, int]:
    """For each partition whose chain should be shorter: how many of its artifacts stay. None of them: a snapshot.

    As everywhere, a chain that is too long ends in a snapshot if its deltas outweigh half of the old one, else its
    newest deltas become one. The limit is up to a third lower for some partitions than for others, as all of them would
    reach it in the same batch. Deltas that outweigh the snapshot by many rows do not wait for the limit: of those
    partitions at most `snapshots` are rewritten in a batch, the ones that are due most.
    """
    found, outweighed = {}, []
    steps = max(1, max_chain // 3)
    for partition, (base, *deltas) in version.chains.items():
        sizes = [artifact.records for artifact in deltas]
        changed = sum(sizes)
        outweighs = 2 * changed > base.records
        limit = max_chain - 1 - partition % steps
        if len(deltas) > limit:
            small = base.records + changed < SMALL_PARTITION  # such a one shares an object with others
            found[partition] = 0 if outweighs and not small else 1 + fold_start(sizes, limit)
        elif outweighs and changed >= COMPACT_ROWS:
            outweighed.append((changed, partition))
    return found | {partition: 0 for _, partition in sorted(outweighed, reverse=True)[:snapshots]}


async def rewrite(
    reader: Reader, writer: Writer, chains: Mapping[int, Chain], keep: Mapping[int, int]
) -> dict[int, Chain]:
    """The shorter chains of some partitions: own snapshots, and one pack for all the deltas that were folded."""
    written: dict[int, Chain] = {}
    folded: list[pa.Table] = []
    for partition, kept in keep.items():
        changes = await _fold(reader, partition, chains[partition], kept)
        if changes is None:
            rows = await writer.in_order(await reader.rows(partition))
            written[partition] = (await writer.snapshot(partition, rows),) if rows.num_rows else ()
            continue
        if _is_whole(chains[partition], kept):
            changes = changes.filter(pc.not_equal(changes[CHANGE], DELETE))  # nothing is below that could be deleted
        written[partition] = ()
        folded.append(changes)
    if any(changes.num_rows for changes in folded):
        for partition, artifact in (await writer.pack(await writer.in_order(pa.concat_tables(folded)))).items():
            chain, kept = chains[partition], keep[partition]
            written[partition] = on_top(() if _is_whole(chain, kept) else chain[:kept], artifact)
    return written


async def _fold(reader: Reader, partition: int, chain: Chain, kept: int) -> pa.Table | None:
    """What the artifacts above `kept` do together. None where all of the chain has to become a snapshot: because that
    is asked for, or because a sum fits into its type only together with what is below."""
    if kept == 0:
        return None
    try:
        return await reader.changes(partition, chain[kept:])
    except InvalidStateError:
        return None


def _is_whole(chain: Chain, kept: int) -> bool:
    """Whether the deltas above `kept` artifacts are all there is: the base is empty."""
    return kept == 1 and chain[0].length == 0


__all__ = ["COMPACT_ROWS", "SMALL_PARTITION", "Writer", "on_top", "rewrite", "rewrites", "split"]
