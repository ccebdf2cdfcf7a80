"""Read and write the checkpoints of one group.

A marker says that their store was created, and each partition has a position.

update    the lease is renewed if that is due ─> position: only while this lease stands in it, and only forwards
delete    all positions ─> the marker: the store exists until the last position is deleted
"""

from collections.abc import Iterable

from pyspark_checkpointer.consumers.cas_object import CasObject, Serializer
from pyspark_checkpointer.consumers.eventprocessorhost.checkpoint_info import CheckpointInfo, advancing, decode
from pyspark_checkpointer.consumers.eventprocessorhost.leases import CompleteLease
from pyspark_checkpointer.consumers.group import Group, check_names
from pyspark_checkpointer.consumers.store_context import StoreContext
from pyspark_checkpointer.consumers.write_behind import WriteBehind, write_each
from pyspark_checkpointer.errors import IllegalArgumentError, StoreNotFoundError
from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.positions_json import MAX_MARKER, Marker, decode_marker, encode_marker

_MARKER = Serializer(encode_marker, decode_marker, MAX_MARKER)


class Checkpoints:
    """The checkpoints of one group, on the library's event loop.

    A *holder* is the position of a partition, with or without a checkpoint in it.
    """

    def __init__(self, context: StoreContext, folder: str, max_updates: int, interval: float) -> None:
        self.store, self._group = context.store, Group(context, folder)
        self._marker = CasObject(context, object_paths.store(folder), _MARKER)
        self._store_seen = False  # whether the marker was there when it was read last
        self._write_behind: WriteBehind[CompleteLease, CheckpointInfo] = WriteBehind(
            write_each(self._write), max_updates=max_updates, interval=interval, name=f"{context.store.url}/{folder}"
        )

    async def store_exists(self) -> bool:
        """Return whether the checkpoint store was created."""
        return await self._marker.read() is not None

    async def create_store(self) -> None:
        """Create the checkpoint store, unless it exists."""
        await self._marker.change(lambda found, now: Marker(now) if found is None else None)

    async def delete_store(self) -> None:
        """Delete all holders, then the store. A call that was interrupted may be repeated."""
        await self._group.clear()
        # The marker goes last: a deletion that was interrupted leaves a store that exists, and can be deleted again.
        await self._marker.delete()
        self._store_seen = False

    async def create(self, partition_ids: Iterable[str]) -> None:
        """Create holders for the partitions that have none."""
        wanted = check_names(partition_ids)
        await self._expect_store()
        await self._group.create(wanted)

    async def get(self, partition_id: str) -> CheckpointInfo | None:
        """Return the checkpoint of a partition; None if there is none.

        Checkpoints that were recorded here are written first.
        """
        # A host must not read a checkpoint from before its own last update.
        await self._write_behind.flush_for_read(lambda lease: lease.partition_id == partition_id)
        position = await self._group.position(partition_id).read()
        if position is None:
            return None
        self._group.check_place(partition_id, position)
        return decode(self._group.position_url(partition_id), partition_id, position.value)

    async def delete(self, partition_id: str) -> None:
        """Delete the holder of a partition."""
        await self._group.delete([partition_id])

    async def update(self, lease: CompleteLease, new: CheckpointInfo) -> None:
        """Record a checkpoint under a lease.

        It is written at once, or in the background if updates may wait for others.
        """
        if not isinstance(new, CheckpointInfo):
            raise IllegalArgumentError(f"{new!r:.60}: expected a CheckpointInfo")
        if not isinstance(lease, CompleteLease) or not lease.is_of(self._group):
            raise IllegalArgumentError(f"{lease!r:.100}: expected a lease that a lease manager of this group gave")
        if lease.partition_id != new.partition_id:
            raise IllegalArgumentError(
                f"partition {new.partition_id!r}: expected a lease of it, got the one of {lease.partition_id!r}"
            )
        # A lease that is known to be lost is refused before any request.
        lease.hold.check()
        # Once the store was seen, updates do not look again: each would cost one more request.
        if not self._store_seen:
            await self._expect_store()
        self._write_behind.check_open()
        if not self._write_behind.coalesces:
            await self._write(lease, new)
            return
        # The write may come later than the lease lasts. Before the update is accepted, so that it can be made again if
        # the renewal fails.
        await lease.renew_if_due()
        hold = lease.hold  # raises if the renewal found the lease lost
        if lease.accept(new):
            # Releasing the lease first writes what was updated under it.
            hold.flush = lambda: self._write_behind.flush(lambda other: other is lease)
            hold.flush_kept = lambda: self._write_behind.flush_for_read(lambda other: other is lease)
            self._write_behind.put(lease, new)

    async def flush(self) -> None:
        """Write the updates that wait; raise the reason if one was not written."""
        await self._write_behind.flush()

    async def close(self) -> None:
        """Write the updates that wait, refuse others, and release connections."""
        try:
            await self._write_behind.close()
        finally:
            await self.store.close()

    async def _write(self, lease: CompleteLease, new: CheckpointInfo) -> None:
        # The renewal comes first: it may find the lease lost, and then `hold` raises.
        await lease.renew_if_due()
        await lease.hold.write(advancing(self._group.position_url(new.partition_id), new))

    async def _expect_store(self) -> None:
        """Raise `StoreNotFoundError` if the checkpoint store was not created."""
        self._store_seen = await self.store_exists()
        if not self._store_seen:
            raise StoreNotFoundError(
                f"{self._group.context.store.url}/{self._group.folder}: there is no checkpoint store: "
                "create_checkpoint_store_if_not_exists() makes it"
            )
