"""Objects in the memory of this process: for tests, and for trying things out. Nothing survives the
process."""

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage.base import (
    SWAP_LIMIT,
    Blob,
    Entry,
    Leftover,
    Listing,
    ObjectExistsError,
    ObjectNotFoundError,
    Page,
    PreconditionFailedError,
    S,
    check_path,
)

_PAGE = 1000


class _Space:
    """The objects of one root, shared by every store of this process that names it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.objects: dict[str, Blob] = {}


_spaces: dict[str, _Space] = {}
_versions = itertools.count(1)


def forget(url: str) -> None:
    """Give the memory of a root back."""
    _spaces.pop(url, None)


class MemoryStore(Listing):
    """A root named by its URL; `fencing="none"` changes nothing here."""

    def __init__(self, url: str, *, fencing: bool = True) -> None:
        self._url = url
        self._fencing = fencing
        self._space = _spaces.setdefault(url, _Space())

    def __repr__(self) -> str:
        return f"<MemoryStore {self._url}>"

    @property
    def url(self) -> str:
        return self._url

    @property
    def objects(self) -> dict[str, Blob]:
        """What is there, by path: for tests, which may look at it and change it."""
        return self._space.objects

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
        return self._find(path).data[offset : offset + length]

    async def put(self, path: str, data: Bytes) -> None:
        check_path(path)
        with self._space.lock:
            if path in self._space.objects:
                raise ObjectExistsError(f"{self._url}/{path}: exists already")
            self._space.objects[path] = Blob(bytes(data), str(next(_versions)))

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        check_path(path)
        if len(data) > SWAP_LIMIT:
            raise IllegalArgumentError(f"{self._url}/{path}: {len(data)} bytes are too many to swap")
        with self._space.lock:
            found = self._space.objects.get(path)
            if (None if found is None else found.version) != expected:
                raise PreconditionFailedError(f"{self._url}/{path}: was changed by somebody else")
            blob = Blob(bytes(data), str(next(_versions)))
            self._space.objects[path] = blob
        return blob.version

    async def list_page(self, prefix: str, more: object | None = None) -> Page:
        with self._space.lock:
            found = [path for path in self._space.objects if path.startswith(prefix) and path > str(more or "")]
            page = heapq.nsmallest(_PAGE, found)
            entries = [Entry(path, len(self._space.objects[path].data)) for path in page]
        return Page(entries, page[-1] if len(found) > _PAGE else None)

    async def folders(self, prefix: str) -> Sequence[str]:
        with self._space.lock:
            inside = [path.removeprefix(prefix) for path in self._space.objects if path.startswith(prefix)]
        return sorted({f"{prefix}{rest.partition('/')[0]}/" for rest in inside if "/" in rest})

    async def delete(self, paths: Sequence[str]) -> None:
        with self._space.lock:
            for path in paths:
                self._space.objects.pop(path, None)

    async def leftovers(self) -> Sequence[Leftover]:
        return []

    async def discard(self, leftovers: Sequence[Leftover]) -> None:
        pass

    async def close(self) -> None:
        pass

    def _find(self, path: str) -> Blob:
        with self._space.lock:
            blob = self._space.objects.get(check_path(path))
        if blob is None:
            raise ObjectNotFoundError(f"{self._url}/{path}: not found")
        return blob
