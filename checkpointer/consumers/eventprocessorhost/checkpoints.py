"""The checkpoints of one group: a marker that says that their store was created, and a position for each partition.

update    the lease is renewed where that is due ─> position: only where this lease stands in it, and only forwards
delete    all positions ─> the marker: as long as there is anything to delete, the store is there
"""

from collections.abc import Iterable

from pyspark_checkpointer.consumers.cas_object import Document, Form, Space
from pyspark_checkpointer.consumers.eventprocessorhost.checkpoint import CheckpointInfo, advancing, decode
from pyspark_checkpointer.consumers.eventprocessorhost.leases import CompleteLease, names
from pyspark_checkpointer.consumers.group import Group
from pyspark_checkpointer.consumers.write_behind import Coalescer, each
from pyspark_checkpointer.errors import IllegalArgumentError, StoreNotFoundError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.positions_json import MAX_MARKER, Marker, decode_marker, encode_marker

_MARKER = Form(encode_marker, decode_marker, MAX_MARKER)


class Checkpoints:
    """The checkpoints of one group, on the library's loop."""

    def __init__(self, space: Space, folder: str, max_updates: int, interval: float) -> None:
        self.store, self._group = space.store, Group(space, folder)
        self._marker = Document(space, object_paths.store(folder), _MARKER)
        self._store_seen = False
        self._waiting: Coalescer[CompleteLease, CheckpointInfo] = Coalescer(
            each(self._write), max_updates=max_updates, interval=interval, name=f"{space.store.url}/{folder}"
        )

    async def store_exists(self) -> bool:
        return await self._marker.read() is not None

    async def create_store(self) -> None:
        await self._marker.change(lambda found, now: Marker(now) if found is None else None)

    async def delete_store(self) -> None:
        await self._group.clear()
        await self._marker.delete()
        self._store_seen = False

    async def create(self, partition_ids: Iterable[str]) -> None:
        wanted = names(partition_ids)
        await self._expect_store()
        await self._group.create(wanted)

    async def get(self, partition_id: str) -> CheckpointInfo | None:
        await self._waiting.settle(lambda lease: lease.partition_id == partition_id)
        position = await self._group.position(partition_id).read()
        return None if position is None else decode(self._group.name(partition_id), partition_id, position.value)

    async def delete(self, partition_id: str) -> None:
        await self._group.delete([partition_id])

    async def update(self, lease: CompleteLease, new: CheckpointInfo) -> None:
        if not isinstance(new, CheckpointInfo):
            raise IllegalArgumentError(f"{new!r:.60}: expected a CheckpointInfo")
        if not isinstance(lease, CompleteLease) or not lease.is_of(self._group):
            raise IllegalArgumentError(f"{lease!r:.100}: expected a lease that a lease manager of this group gave")
        if lease.partition_id != new.partition_id:
            raise IllegalArgumentError(
                f"partition {new.partition_id!r}: expected a lease of it, got the one of {lease.partition_id!r}"
            )
        hold = lease.hold
        if not self._store_seen:
            await self._expect_store()
        self._waiting.check_open()
        if not self._waiting.coalesces:
            await self._write(lease, new)
        elif lease.accept(new):
            hold.flush = lambda: self._waiting.flush(lambda other: other is lease)
            self._waiting.put(lease, new)

    async def flush(self) -> None:
        await self._waiting.flush()

    async def close(self) -> None:
        try:
            await self._waiting.close()
        finally:
            await self.store.close()

    async def _write(self, lease: CompleteLease, new: CheckpointInfo) -> None:
        await lease.keep()
        await lease.hold.write(advancing(self._group.name(new.partition_id), new))

    async def _expect_store(self) -> None:
        self._store_seen = await self.store_exists()
        if not self._store_seen:
            raise StoreNotFoundError(
                f"{self._group.space.store.url}/{self._group.folder}: there is no checkpoint store: "
                "create_checkpoint_store_if_not_exists() makes it"
            )
