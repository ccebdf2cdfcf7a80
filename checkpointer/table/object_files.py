"""Fetch the objects of a table, whole or in parts, and verify what was fetched."""

from collections.abc import Sequence

from pyspark_checkpointer.checkpoint import download
from pyspark_checkpointer.manifests.digest import verify
from pyspark_checkpointer.manifests.model import Artifact
from pyspark_checkpointer.runtime.host import Host
from pyspark_checkpointer.storage import ranges
from pyspark_checkpointer.storage.base import Range, Store
from pyspark_checkpointer.table.local_copies import name_of
from pyspark_checkpointer.table.row_groups import RowGroups
from pyspark_checkpointer.table.schema import TableSchema

MAX_OPENED_BYTES = 128 << 20
"""The most bytes in memory, about, of the tails and filters that a process remembers."""

TAIL_MEMORY = 10
"""The bytes in memory that Arrow and an index make of a byte of a tail. A filter takes no more than its own."""

_opened: dict[tuple[str, int, str, str], RowGroups] = {}
"""The files that were opened, by path, size, the verified digest of the tail, and the schema.

The objects of a table are the same in many batches, and none of them ever changes. So a lookup that opened them before
fetches only the rows.
"""

_opened_bytes = 0
"""The bytes in memory of these files, about. To add them up each time takes longer than to open a file."""


class ObjectFiles:
    """The files of a table in the store, and how many bytes of them were read.

    `schema` has the columns that their row groups are decoded as.
    """

    def __init__(self, store: Store, host: Host, schema: TableSchema) -> None:
        self._store = store
        self.host = host
        self.schema = schema
        self.bytes_read = 0
        # Once for all files: it takes longer than to find one of them.
        self._schema_name = name_of("", schema, schema.names)

    async def data(self, artifact: Artifact) -> bytes:
        """Fetch and verify a whole file."""
        data = await download.read_artifact(self._store, self.host, artifact)
        self.bytes_read += len(data)
        return data

    async def open(self, artifact: Artifact) -> RowGroups:
        """Fetch and verify the tail of a file, and return its row groups.

        The tail is not fetched if this process remembers it. None of the row groups is fetched yet.
        """
        assert artifact.tail is not None
        path, length = artifact.path, artifact.tail.length
        name = path, artifact.size, artifact.tail.digest, self._schema_name
        if (known := _opened.get(name)) is not None:
            return known
        tail = await self._store.get_range(path, artifact.size - length, length)
        self.bytes_read += len(tail)
        verify(f"{path} (tail)", tail, size=length, digest=artifact.tail.digest)
        found = await self.host.run(lambda: RowGroups(path, artifact.size, tail, self.schema))
        _make_room(TAIL_MEMORY * length)
        _opened[name] = found
        return found

    async def open_filter(self, artifact: Artifact) -> RowGroups:
        """Open a file, and fetch and verify its filter.

        The filter is not fetched if the file has none, or if this process remembers it.
        """
        groups = await self.open(artifact)
        if (unread := groups.unread_filter) is not None:
            (data,) = await self.fetch(artifact, [unread])
            await self.host.run(lambda: groups.read_filter(data))
            _make_room(len(data))
        return groups

    async def fetch(self, artifact: Artifact, chosen: Sequence[Range]) -> list[bytes]:
        """Return the bytes of some ranges of a file."""
        found, read = await ranges.get_ranges(self._store, artifact.path, chosen)
        self.bytes_read += read
        return found


def _make_room(size: int) -> None:
    """Count the bytes of a file, and forget all files if there are too many of them."""
    global _opened_bytes
    if _opened_bytes + size > MAX_OPENED_BYTES:
        _opened.clear()
        _opened_bytes = 0
    _opened_bytes += size


__all__ = ["ObjectFiles"]
