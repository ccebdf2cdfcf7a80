"""Wrap a store so that its requests meet faults."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage.base import Blob, ListingPage, S, Store, WrappedStore, WriteLeftover
from pyspark_checkpointer.testing.faults import Faults
from pyspark_checkpointer.testing.requests import Request

T = TypeVar("T")


class FaultyStore(WrappedStore):
    """`inner` with faults: any store, from `open_store` or one of your own.

    Args:
        inner: The store.
        faults: The faults; by default none, until you tell `faults` of the store.

    Examples:
        >>> from pyspark_checkpointer import runtime
        >>> from pyspark_checkpointer.storage import open_store
        >>> from pyspark_checkpointer.testing import Faults, FaultyStore
        >>> store = FaultyStore(open_store("state/orders"), Faults())
        >>> runtime.run_sync(store.put("totals", b"1"))
        >>> store.faults.counts
        Counter({'put': 1})
    """

    def __init__(self, inner: Store, faults: Faults | None = None) -> None:
        super().__init__(inner)
        self.faults = faults or Faults()

    def __repr__(self) -> str:
        return f"<FaultyStore {self.inner.url}>"

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return await self._send("get", path, lambda _: self.inner.get(path, limit=limit))

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        """Read as `get` does, in one piece, so that a fault can change it."""
        sink = make()
        sink.update((await self.get(path, limit=limit)).data)
        return sink

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        return await self._send("get_range", path, lambda _: self.inner.get_range(path, offset, length))

    async def put(self, path: str, data: Bytes) -> None:
        # The bytes of the request that arrives, which a fault may have cut, and not those that were given.
        await self._send("put", path, lambda asked: self.inner.put(path, asked.data), data)

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        def swap(asked: Request) -> Awaitable[str]:
            return self.inner.compare_and_swap(path, bytes(asked.data), expected)

        return await self._send("swap", path, swap, data, expected)

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        return await self._send("list", prefix, lambda _: self.inner.list_page(prefix, more))

    async def folders(self, prefix: str) -> Sequence[str]:
        asked = Request("list", prefix, 0, lists_folders=True)
        found: Sequence[str] = await self.faults.serve(asked, lambda _: self.inner.folders(prefix))
        return found

    async def delete(self, paths: Sequence[str]) -> None:
        await self._send("delete", " ".join(paths), lambda _: self.inner.delete(paths))

    async def leftovers(self) -> Sequence[WriteLeftover]:
        return await self._send("leftovers", "", lambda _: self.inner.leftovers())

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        await self._send("discard", "", lambda _: self.inner.discard(leftovers))

    async def _send(
        self,
        kind: str,
        path: str,
        send: Callable[[Request], Awaitable[T]],
        data: Bytes = b"",
        expected: str | None = None,
    ) -> T:
        answer: T = await self.faults.serve(Request(kind, path, 0, len(data), data, expected), send)
        return answer
