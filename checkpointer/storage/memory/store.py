"""Store a root in the memory of this process, for tests and for trying it out.

Nothing survives the process.
"""

import heapq
import itertools
import os
import threading
from collections.abc import Callable, Sequence

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import CorruptionError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage.base import (
    Blob,
    ListedObject,
    ListingPage,
    ObjectExistsError,
    ObjectNotFoundError,
    PagedStore,
    PreconditionFailedError,
    Range,
    S,
    WriteLeftover,
    check_path,
    check_swap_size,
)

_PAGE_SIZE = 1000
"""Objects in one page of a listing."""


class _MemoryRoot:
    """The objects of one root, shared by every store of this process that names it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, Blob] = {}


_roots: dict[str, _MemoryRoot] = {}


def _renew_locks() -> None:
    for root in _roots.values():
        root.lock = threading.Lock()


# The loop's thread, which is not in the child, may have held one.
os.register_at_fork(after_in_child=_renew_locks)
# One count for all roots: a root that was forgotten and made again never has a version that it had before.
_versions = itertools.count(1)


def forget(url: str) -> None:
    """Drop the objects of a root, and free their memory."""
    _roots.pop(url, None)


class MemoryStore(PagedStore):
    """The store of a root that its URL names. `fencing="none"` changes nothing here."""

    def __init__(self, url: str, *, fencing: bool = True) -> None:
        self._url = url
        self._fencing = fencing
        self._root = _roots.setdefault(url, _MemoryRoot())

    def __repr__(self) -> str:
        return f"<MemoryStore {self._url}>"

    @property
    def url(self) -> str:
        return self._url

    @property
    def objects(self) -> dict[str, Blob]:
        """Return the objects by path, for tests, which may change them."""
        return self._root.objects

    @property
    def fencing(self) -> bool:
        return self._fencing

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        blob = self._find(path)
        if limit is not None and len(blob.data) > limit:
            raise CorruptionError(f"{self._url}/{path}: expected at most {limit} bytes, found {len(blob.data)}")
        return blob

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        sink = make()
        await runtime.on_cpu(sink.update, (await self.get(path, limit=limit)).data)
        return sink

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return (await self.get_ranges(path, [(offset, length)]))[0]

    @property
    def reads_ranges(self) -> bool:
        return True

    async def get_ranges(self, path: str, ranges: Sequence[Range]) -> list[bytes]:
        data = self._find(path).data
        return [data[offset : offset + length] for offset, length in ranges]

    async def put(self, path: str, data: Bytes) -> None:
        check_path(path)
        with self._root.lock:
            if path in self._root.objects:
                raise ObjectExistsError(f"{self._url}/{path}: exists already")
            self._root.objects[path] = Blob(bytes(data), str(next(_versions)))

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        check_path(path)
        check_swap_size(f"{self._url}/{path}", data)
        # Under the lock, comparing and writing are one step for all threads.
        with self._root.lock:
            found = self._root.objects.get(path)
            if (None if found is None else found.tag) != expected:
                raise PreconditionFailedError(f"{self._url}/{path}: was changed by somebody else")
            version = str(next(_versions))
            self._root.objects[path] = Blob(bytes(data), version)
        return version

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        with self._root.lock:
            found = [path for path in self._root.objects if path.startswith(prefix) and path > str(more or "")]
            # A page begins after the last path of the one before, and not at a number, since objects come and go
            # between two pages.
            page = heapq.nsmallest(_PAGE_SIZE, found)
            entries = [ListedObject(path, len(self._root.objects[path].data)) for path in page]
        return ListingPage(entries, page[-1] if len(found) > _PAGE_SIZE else None)

    async def folders(self, prefix: str) -> Sequence[str]:
        with self._root.lock:
            inside = [path.removeprefix(prefix) for path in self._root.objects if path.startswith(prefix)]
        return sorted({f"{prefix}{rest.partition('/')[0]}/" for rest in inside if "/" in rest})

    async def delete(self, paths: Sequence[str]) -> None:
        with self._root.lock:
            for path in paths:
                self._root.objects.pop(path, None)

    async def leftovers(self) -> Sequence[WriteLeftover]:
        return []

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        pass

    async def close(self) -> None:
        pass

    def _find(self, path: str) -> Blob:
        with self._root.lock:
            blob = self._root.objects.get(check_path(path))
        if blob is None:
            raise ObjectNotFoundError(f"{self._url}/{path}: not found")
        return blob
