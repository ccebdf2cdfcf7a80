"""Compact chains of a table.

Deltas are folded into one, or a snapshot replaces a chain. `compaction.py` decides which chains. Encoding needs no
checkpoint. So it may be done before the checkpoint begins for which the objects are written.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_checkpointer.manifests.model import SNAPSHOT, Chain
from pyspark_checkpointer.table import kept_columns
from pyspark_checkpointer.table.combine import SumOverflowError
from pyspark_checkpointer.table.encoder import EncodedObject, TableEncoder
from pyspark_checkpointer.table.reader import TableReader
from pyspark_checkpointer.table.schema import CHANGE, DELETE
from pyspark_checkpointer.table.writer import TableWriter, on_top


@dataclass(frozen=True, slots=True)
class Compacted:
    """An object that takes the place of artifacts of some partitions.

    `kept` has the artifacts below it, by partition: of each partition that has rows in it, and of no other. Without an
    object nothing comes on top of them.
    """

    content: EncodedObject | None
    kept: Mapping[int, Chain]

    async def write(self, writer: TableWriter) -> dict[int, Chain]:
        """Write the object, and return the chain of each partition."""
        if self.content is None:
            return dict(self.kept)
        artifacts = await writer.put(self.content)
        if self.content.kind == SNAPSHOT:
            return {partition: (artifact,) for partition, artifact in artifacts.items()}
        return {partition: on_top(self.kept[partition], artifact) for partition, artifact in artifacts.items()}


async def compact_chains(
    reader: TableReader, writer: TableWriter, chains: Mapping[int, Chain], keep: Mapping[int, int]
) -> dict[int, Chain]:
    """Compact the chains of some partitions and return them.

    `keep` says how many artifacts of each stay. If none stays, the partition gets a snapshot of its own. The folded
    deltas of all others share one pack. A chain without artifacts means that no row is left.
    """
    written: dict[int, Chain] = {}
    async for compacted in encode_compacted(reader, writer.encoder, chains, keep):
        written |= await compacted.write(writer)
        del compacted  # before the next snapshot is made: each may be large
    # A partition that gets no chain here would keep its long one, or lose its rows, and nobody would notice.
    if lost := sorted(keep.keys() - written.keys()):
        raise AssertionError(f"partitions {lost} were to be compacted, and nothing was written for them")
    return written


async def encode_compacted(
    reader: TableReader, encoder: TableEncoder, chains: Mapping[int, Chain], keep: Mapping[int, int]
) -> AsyncIterator[Compacted]:
    """Yield the objects that compact the chains of some partitions, one by one.

    They are those that `compact_chains` writes.
    """
    reader.packs.expect(
        artifact for partition, count in keep.items() for artifact in chains[partition][max(count, 1) :]
    )
    folded: list[pa.Table] = []
    kept: dict[int, Chain] = {}
    for partition, count in keep.items():
        chain = chains[partition]
        changes = await _fold(reader, partition, chain, count)
        if changes is None:
            pieces = reader.pieces(partition, ordered=True)
            yield Compacted(await encoder.snapshot_of(partition, pieces), {partition: ()})
            continue
        below = chain[:count]
        if count == 1 and chain[0].length == 0:
            # The chain begins anew: the old empty snapshot names the old pack, which would stay live for it alone. And
            # the changes are the rows: there is nothing to delete, and what has expired can go.
            below = ()
            changes = reader.version.living(changes.filter(pc.not_equal(changes[CHANGE], DELETE)))
        if changes.num_rows == 0:
            yield Compacted(None, {partition: below})
            continue
        kept[partition] = below
        folded.append(changes)
    if folded:
        rows = await encoder.in_order(kept_columns.concat(folded))
        del folded  # before the rows are encoded: they were copied
        yield Compacted(await encoder.pack(rows), kept)


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
    except SumOverflowError:
        return None


__all__ = ["Compacted", "compact_chains", "encode_compacted"]
