"""Fetch the objects of a table, whole or in parts, and verify what was fetched."""

import asyncio

from pyspark_checkpointer.checkpoint import download
from pyspark_checkpointer.manifests.digest import verify
from pyspark_checkpointer.manifests.model import Artifact
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage.base import Store
from pyspark_checkpointer.table import parquet_decode
from pyspark_checkpointer.table.schema import TableSchema


class ObjectFiles:
    """The files of a table in the store, and how many bytes of them were read.

    `schema` has the columns that their row groups are decoded as.
    """

    def __init__(self, store: Store, host: Host, schema: TableSchema) -> None:
        self._store = store
        self.host = host
        self.schema = schema
        self.bytes_read = 0

    async def data(self, artifact: Artifact) -> bytes:
        """Fetch and verify a whole file."""
        data = await download.read_artifact(self._store, self.host, artifact)
        self.bytes_read += len(data)
        return data

    async def open(self, artifact: Artifact) -> parquet_decode.RowGroups:
        """Fetch and verify the tail of a file, and return its row groups.

        None of the row groups is fetched yet.
        """
        assert artifact.tail is not None
        path, length = artifact.path, artifact.tail.length
        tail = await self._store.get_range(path, artifact.size - length, length)
        self.bytes_read += len(tail)
        verify(f"{path} (tail)", tail, size=length, digest=artifact.tail.digest)
        return await self.host.run(lambda: parquet_decode.RowGroups(path, artifact.size, tail, self.schema))

    async def fetch(self, artifact: Artifact, groups: parquet_decode.RowGroups, wanted: list[int]) -> dict[int, bytes]:
        """Return the stored bytes of some row groups."""
        ranges = [groups.ranges[group] for group in wanted]
        found = await asyncio.gather(*(self._store.get_range(artifact.path, start, size) for start, size, _ in ranges))
        self.bytes_read += sum(map(len, found))
        return dict(zip(wanted, found, strict=True))


__all__ = ["ObjectFiles"]
