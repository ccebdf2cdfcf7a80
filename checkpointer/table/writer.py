"""Write objects of a table for one checkpoint."""

import pyarrow as pa

from pyspark_checkpointer.checkpoint import upload
from pyspark_checkpointer.manifests import codecs, object_paths
from pyspark_checkpointer.manifests.model import SNAPSHOT, Artifact, Chain, CheckpointId
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.table.encoder import EncodedObject, TableEncoder
from pyspark_checkpointer.table.schema import TableSchema
from pyspark_checkpointer.table.version import empty_base


class TableWriter:
    """Write objects of one table for one checkpoint, in the driver or in a task."""

    def __init__(self, store: Store, host: Host, owner: CheckpointId, table: str, schema: TableSchema) -> None:
        self.encoder = TableEncoder(host, table, schema)
        self._store = store
        self._owner = owner
        self._table = table

    async def snapshot(self, partition: int, rows: pa.Table) -> Artifact:
        """Write all rows of a partition, in order of their key, as a snapshot."""
        return (await self.put(await self.encoder.snapshot(partition, rows)))[partition]

    async def pack(self, rows: pa.Table) -> dict[int, Artifact]:
        """Write changes of any partitions, in order, as one object.

        Return the artifact of each partition.
        """
        return await self.put(await self.encoder.pack(rows))

    async def put(self, encoded: EncodedObject) -> dict[int, Artifact]:
        """Write an object, and return the artifact of each of its partitions."""
        kind, file, parts = encoded
        if kind == SNAPSHOT:
            (partition,) = parts
            path = object_paths.artifact(self._table, partition, self._owner, kind, file.digest, codecs.PARQUET.name)
        else:
            path = object_paths.pack(self._table, self._owner, file.digest, codecs.PARQUET.name)
        await upload.put_once(self._store, path, file.data)
        size = len(file.data)
        return {
            partition: Artifact(path, kind, 0, size, size, part.raw_size, part.records, file.digest, file.tail)
            for partition, part in parts.items()
        }


def on_top(chain: Chain, delta: Artifact) -> Chain:
    """Return a chain with one more delta. A new chain begins with an empty snapshot."""
    return (*(chain or (empty_base(delta),)), delta)


__all__ = ["TableWriter", "on_top"]
