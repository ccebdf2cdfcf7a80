"""Store a root in a bucket of Google Cloud Storage, through gcsfs.

Conditions are `ifGenerationMatch`; versions are generations. Every request is one attempt: the calls of gcsfs, which
repeat requests, are not used, since after a lost answer only the layers above can tell what happened.
"""

from collections.abc import Sequence
from typing import Any

from pyspark_checkpointer.errors import CheckpointError, DependencyError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.base import (
    Blob,
    BucketRule,
    ListedObject,
    ListingPage,
    ObjectExistsError,
    PreconditionFailedError,
    S,
)
from pyspark_checkpointer.storage.cloud_store import CloudStore
from pyspark_checkpointer.storage.gcs.bucket import rules_of
from pyspark_checkpointer.storage.gcs.client import GCSClient, close_client, open_client
from pyspark_checkpointer.storage.gcs.errors import AnswerError, meaning, status_of
from pyspark_checkpointer.storage.gcs.upload import send_chunks, send_whole
from pyspark_checkpointer.storage.http import AS_STORED, document, pieces, pour_object, read_object

_PAGE_SIZE = 1000
"""Objects in one page of a listing, at most: a limit of the service."""

_DELETE_BATCH = 256
"""Objects that one request of the store deletes. Each takes a request of its own to the service."""

_CONTENT = {"alt": "media"}
"""The parameter that asks for the bytes of an object, and not for its metadata."""


class GCSStore(CloudStore[GCSClient]):
    """The store of the objects of a bucket below a prefix."""

    _close_client = staticmethod(close_client)
    _delete_batch = _DELETE_BATCH

    async def _open_client(self) -> GCSClient:
        return await open_client(self._url, self._bucket, self._options, self._concurrency, self._timeout)

    async def _bucket_rules(self) -> Sequence[BucketRule]:
        client = await self._connection.get()
        try:
            async with client.ask_bucket() as answer:
                return rules_of(await document(answer, self._url), self._root)
        except AnswerError as error:
            if error.status not in (401, 403):
                raise
            # The roles for objects do not have this right.
            return [BucketRule("bucket", "not known: needs storage.buckets.get")]

    async def _get(self, path: str, limit: int | None) -> Blob:
        client = await self._connection.get()
        async with client.ask("GET", self._at(path), _CONTENT, AS_STORED) as answer:
            data = await read_object(answer, self._name(path), limit)
            generation = answer.headers.get("x-goog-generation")
            if generation is None:
                raise DependencyError(f"{self._name(path)}: the answer names no generation")
            return Blob(data, generation, cloud.server_time(answer.headers.get("Date")))

    async def _read_into(self, path: str, sink: S, limit: int | None) -> S:
        client = await self._connection.get()
        async with client.ask("GET", self._at(path), _CONTENT, AS_STORED) as answer:
            return await pour_object(answer, sink, self._name(path), limit)

    async def _get_range(self, path: str, offset: int, length: int) -> bytes:
        client = await self._connection.get()
        span = f"bytes={offset}-{offset + length - 1}"
        try:
            async with client.ask("GET", self._at(path), _CONTENT, {**AS_STORED, "Range": span}) as answer:
                return await cloud.gather_pieces(pieces(answer))
        except AnswerError as error:
            # The service refuses a range that starts after the end, where the contract asks for no bytes.
            if error.status != 416:
                raise
            return b""

    async def _put(self, path: str, data: Bytes) -> None:
        client = await self._connection.get()
        condition = {"ifGenerationMatch": "0"} if self._fencing else {}
        upload = send_whole if len(data) <= cloud.MAX_SINGLE_PUT else send_chunks
        await upload(client, {"name": self._at(path), **condition}, data, self._name(path))

    async def _swap(self, path: str, data: bytes, expected: str | None) -> str:
        name, condition = self._name(path), {}
        if self._fencing:
            condition = {"ifGenerationMatch": "0" if expected is None else _generation(expected, name)}
        client = await self._connection.get()
        return await send_whole(client, {"name": self._at(path), **condition}, data, name)

    async def _list_page(self, prefix: str, more: object | None) -> ListingPage:
        page = await self._list(prefix, more, fields="items(name,size),nextPageToken")
        entries, inside = [], len(self._key(""))
        for found in page.get("items", []):
            # A name that ends with a slash is a folder, as consoles make them.
            if not found["name"].endswith("/"):
                entries.append(ListedObject(found["name"][inside:], int(found["size"])))
        return ListingPage(entries, page.get("nextPageToken"))

    async def _folders(self, prefix: str) -> Sequence[str]:
        found: set[str] = set()
        inside, more = len(self._key("")), None
        while True:
            page = await self._list(prefix, more, fields="prefixes,nextPageToken", delimiter="/")
            found.update(folder[inside:] for folder in page.get("prefixes", []))
            more = page.get("nextPageToken")
            if more is None:
                return sorted(found)

    async def _list(self, prefix: str, more: object | None, **query: str) -> dict[str, Any]:
        """Return a page of a listing as the service tells it."""
        after = {} if more is None else {"pageToken": str(more)}
        client = await self._connection.get()
        page = {"prefix": self._key(prefix), "maxResults": str(_PAGE_SIZE), **query, **after}
        async with client.ask("GET", "", page) as answer:
            return await document(answer, self._name(prefix))

    async def _delete(self, paths: list[str]) -> None:
        await cloud.delete_each(paths, self._delete_one)

    async def _delete_one(self, path: str) -> None:
        client = await self._connection.get()
        try:
            async with client.ask("DELETE", self._at(path), {}):
                pass
        except AnswerError as error:
            if not error.is_missing_object:
                raise

    def _error(self, error: Exception, name: str) -> CheckpointError:
        return meaning(error, name, self._url, self._options)

    def _put_error(self, error: Exception, name: str) -> CheckpointError:
        if status_of(error) == 412:
            return ObjectExistsError(f"{name}: exists already")
        return self._error(error, name)

    def _swap_error(self, error: Exception, name: str) -> CheckpointError:
        if status_of(error) == 412:
            return PreconditionFailedError(f"{name}: was changed by somebody else")
        return cloud.with_swap_pause(self._error(error, name))


def _generation(expected: str, name: str) -> str:
    """Return a version as a condition.

    Raises `PreconditionFailedError` for a text that cannot be a generation. The service would refuse it with another
    error, and 0 means that there is no object.
    """
    if not (expected.isascii() and expected.isdecimal()) or not int(expected):
        raise PreconditionFailedError(f"{name}: was changed by somebody else")
    return expected
