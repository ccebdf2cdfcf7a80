"""Put a layer of memory over a store.

Writes stay in memory, and reads look there first.
"""

from collections.abc import Callable, Sequence

from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage.base import Blob, ListingPage, S, Store, WrappedStore, WriteLeftover


# A migrated checkpoint stands in memory until somebody commits it. Making one only puts objects, so the operations that
# would change or remove what `inner` has are missing on purpose.
class OverlayStore(WrappedStore):
    """`inner` with additional objects, which nobody else sees.

    Only reads reach `inner`.
    """

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.objects: dict[str, bytes] = {}
        """The objects written, by path."""

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        data = self.objects.get(path)
        return await self.inner.get(path, limit=limit) if data is None else Blob(data)

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        data = self.objects.get(path)
        if data is None:
            return await self.inner.read_into(path, make, limit=limit)
        sink = make()
        sink.update(data)
        return sink

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        data = self.objects.get(path)
        return await self.inner.get_range(path, offset, length) if data is None else data[offset : offset + length]

    async def put(self, path: str, data: Bytes) -> None:
        self.objects[path] = bytes(data)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        raise NotImplementedError

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        return await self.inner.list_page(prefix, more)

    async def folders(self, prefix: str) -> Sequence[str]:
        return await self.inner.folders(prefix)

    async def delete(self, paths: Sequence[str]) -> None:
        raise NotImplementedError

    async def leftovers(self) -> Sequence[WriteLeftover]:
        return await self.inner.leftovers()

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        """Do nothing: `inner` belongs to whoever opened it."""
