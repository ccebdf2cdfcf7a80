"""List and delete the objects of a signed root by their own paths.

This needs no key and no package for signatures, so tasks of Spark can do it.
"""

from collections.abc import Sequence
from dataclasses import replace

from pyspark_checkpointer.manifests import object_paths
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.manifests.signatures_json import LINE_SIZE, is_signed, logical_path, stored_path
from pyspark_checkpointer.storage.base import Blob, ListedObject, ListingPage, WrappedStore, WriteLeftover


class SignedPaths(WrappedStore):
    """`inner`, a signed root whose signatures nobody checks here.

    Contents pass as they are stored, so signed objects are not read or written through this.
    """

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return await self.inner.get(path, limit=limit)

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return await self.inner.get_range(path, offset, length)

    async def put(self, path: str, data: Bytes) -> None:
        await self.inner.put(path, data)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        return await self.inner.compare_and_swap(path, data, expected)

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        page = await self.inner.list_page(prefix, more)
        return ListingPage([found for entry in page.entries if (found := as_listed(entry)) is not None], page.more)

    async def folders(self, prefix: str) -> Sequence[str]:
        return await self.inner.folders(prefix)

    async def delete(self, paths: Sequence[str]) -> None:
        await self.inner.delete([stored_path(path) for path in paths])

    async def leftovers(self) -> Sequence[WriteLeftover]:
        found = await self.inner.leftovers()
        paths = ((left, _path_of_leftover(left.path)) for left in found)
        return [replace(left, path=path) for left, path in paths if path is not None]

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        await self.inner.discard([replace(left, path=stored_path(left.path)) for left in leftovers])


def _path_of_leftover(stored: str) -> str | None:
    # A listing does not show the list of signers, but a write of it may have been interrupted like any other.
    return stored if stored == object_paths.SIGNERS else logical_path(stored)


def as_listed(entry: ListedObject) -> ListedObject | None:
    """Return a listed object with its path and size without a signature.

    It has no content if it is signed.

    Return None for one that is not of a signed root.
    """
    path = logical_path(entry.path)
    if path is None:
        return None
    if object_paths.is_manifest(path):
        return ListedObject(path, entry.size - LINE_SIZE, None)
    return ListedObject(path, entry.size, None) if is_signed(path) else entry


__all__ = ["SignedPaths", "as_listed"]
