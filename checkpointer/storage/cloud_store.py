"""Define the base class of stores in a cloud.

It gives each operation of the contract the name of the object for errors, and the store's translation of the cloud's
errors. A store adds the requests themselves.

    get ──> cloud.answer(_get, _error)      put ──> cloud.answer(_put, _put_error)      and so on
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from pyspark_checkpointer.errors import CheckpointError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.base import (
    Blob,
    BucketRule,
    ListingPage,
    PagedStore,
    S,
    Settings,
    WriteLeftover,
    check_path,
    check_swap_size,
)
from pyspark_checkpointer.storage.connection import Connection
from pyspark_checkpointer.storage.url import Location

C = TypeVar("C")
"""The client by which a store sends its requests."""


class CloudStore(ABC, PagedStore, Generic[C]):
    """A store of the objects of a bucket below a prefix.

    A container of Azure is a bucket here.
    """

    _close_client: ClassVar["staticmethod[[Any], Coroutine[Any, Any, None]]"]
    """Function that closes what `_open_client` returned."""
    _delete_batch: ClassVar[int]
    """Objects that one request of the store deletes, at most."""

    def __init__(self, location: Location, options: Mapping[str, Any], settings: Settings) -> None:
        self._url, self._bucket, self._root = location.url, location.host, location.path
        self._options = dict(options)
        self._fencing, self._timeout = settings.fencing, settings.timeout
        self._concurrency = settings.concurrency
        self._connection: Connection[C] = Connection(self._connect, self._close_client)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._url}>"

    @property
    def url(self) -> str:
        return self._url

    @property
    def fencing(self) -> bool:
        return self._fencing

    async def get(self, path: str, *, limit: int | None = None) -> Blob:
        return await cloud.answer(self._get(path, limit), partial(self._error, name=self._name(path)))

    async def read_into(self, path: str, make: Callable[[], S], *, limit: int | None = None) -> S:
        request = self._read_into(path, make(), limit)
        return await cloud.answer(request, partial(self._error, name=self._name(path)))

    async def get_range(self, path: str, offset: int, length: int) -> bytes:
        request = self._get_range(path, offset, length)
        return await cloud.answer(request, partial(self._error, name=self._name(path)))

    async def put(self, path: str, data: Bytes) -> None:
        await cloud.answer(self._put(path, data), partial(self._put_error, name=self._name(path)))

    async def compare_and_swap(self, path: str, data: bytes, expected: str | None) -> str:
        name = self._name(path)
        check_swap_size(name, data)
        if not self._fencing:
            await cloud.check_version(self, path, expected)
        return await cloud.answer(self._swap(path, data, expected), partial(self._swap_error, name=name))

    async def list_page(self, prefix: str, more: object | None = None) -> ListingPage:
        return await cloud.answer(self._list_page(prefix, more), partial(self._error, name=self._name(prefix)))

    async def folders(self, prefix: str) -> Sequence[str]:
        return await cloud.answer(self._folders(prefix), partial(self._error, name=self._name(prefix)))

    async def delete(self, paths: Sequence[str]) -> None:
        for some in cloud.batches([*paths], self._delete_batch):
            await cloud.answer(self._delete(some), partial(self._error, name=f"{self._url}: delete"))

    async def leftovers(self) -> Sequence[WriteLeftover]:
        """Return nothing: the service drops and does not list unfinished uploads."""
        return []

    async def discard(self, leftovers: Sequence[WriteLeftover]) -> None:
        pass

    async def bucket_rules(self) -> Sequence[BucketRule]:
        return await cloud.answer(self._bucket_rules(), partial(self._error, name=self._url))

    async def close(self) -> None:
        await self._connection.close()

    async def _connect(self) -> C:
        return await cloud.answer(self._open_client(), partial(self._error, name=self._url))

    def _at(self, path: str) -> str:
        """Return the name of an object in the bucket, after a check of its path."""
        return self._key(check_path(path))

    def _key(self, path: str) -> str:
        return f"{self._root}/{path}" if self._root else path

    def _name(self, path: str) -> str:
        return f"{self._url}/{path}"

    # --- what a store adds: requests, of which each is one attempt, and errors ---

    @abstractmethod
    async def _open_client(self) -> C: ...

    @abstractmethod
    async def _get(self, path: str, limit: int | None) -> Blob: ...

    @abstractmethod
    async def _read_into(self, path: str, sink: S, limit: int | None) -> S: ...

    @abstractmethod
    async def _get_range(self, path: str, offset: int, length: int) -> bytes:
        """Return bytes of an object; none for a range that starts after its end."""

    @abstractmethod
    async def _put(self, path: str, data: Bytes) -> None:
        """Write an object; with fencing, on the condition that it is missing."""

    @abstractmethod
    async def _swap(self, path: str, data: bytes, expected: str | None) -> str:
        """Write an object and return its version.

        With fencing, write it only if it has the expected version.
        """

    @abstractmethod
    async def _list_page(self, prefix: str, more: object | None) -> ListingPage: ...

    @abstractmethod
    async def _folders(self, prefix: str) -> Sequence[str]: ...

    @abstractmethod
    async def _delete(self, paths: list[str]) -> None:
        """Delete at most `_delete_batch` objects."""

    @abstractmethod
    async def _bucket_rules(self) -> Sequence[BucketRule]: ...

    @abstractmethod
    def _error(self, error: Exception, name: str) -> CheckpointError: ...

    @abstractmethod
    def _put_error(self, error: Exception, name: str) -> CheckpointError: ...

    @abstractmethod
    def _swap_error(self, error: Exception, name: str) -> CheckpointError: ...
