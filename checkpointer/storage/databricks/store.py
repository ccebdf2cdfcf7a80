"""Store a root in a volume of Unity Catalog, through the Files API 3.0.

Conditions are `If-Match` and `If-None-Match`; versions are ETags, which are kept as the service gives them. The API
lists one directory at a time, so a listing visits one after the other.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_checkpointer.errors import CheckpointError, DependencyError, IllegalArgumentError, StoreNotFoundError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.base import (
    Blob,
    BucketRule,
    ListedObject,
    ListingPage,
    ObjectExistsError,
    ObjectNotFoundError,
    PreconditionFailedError,
    S,
)
from pyspark_checkpointer.storage.cloud_store import CloudStore
from pyspark_checkpointer.storage.databricks.client import VolumesClient, close_client, open_client
from pyspark_checkpointer.storage.databricks.errors import AnswerError, meaning
from pyspark_checkpointer.storage.http import AS_STORED, document, pieces, pour_object, read_object, slices

_LARGEST = 5000 << 20
"""Bytes that one request uploads, at most: a limit of the service."""

_DELETE_BATCH = 256
"""Objects that one request of the store deletes. Each takes a request of its own to the service."""

_LISTED_AT_ONCE = 8
"""Directories that are listed at the same time."""

_MISSING = {"If-None-Match": "*"}
"""The condition that there is no object."""

# With a star, or with several in one text, a condition would hold for other versions too.
_ETAG = re.compile(r'(W/)?"[^",*\s]+"|[^",*\s]+')
"""One version of an object. The service puts it into quotation marks; what stands between them is its own affair."""

_Directory = tuple[str, str | None]
"""A directory that is still to be listed, relative to the root, and which page of it."""


class VolumeStore(CloudStore[VolumesClient]):
    """The store of the files of a volume below a directory."""

    _close_client = staticmethod(close_client)
    _delete_batch = _DELETE_BATCH

    @property
    def lists_whole_folders(self) -> bool:
        return True

    async def _open_client(self) -> VolumesClient:
        return await open_client(self._url, self._options, self._concurrency, self._timeout)

    async def _bucket_rules(self) -> Sequence[BucketRule]:
        """Return nothing: the API tells no settings of the bucket behind a volume."""
        return ()

    async def _get(self, path: str, limit: int | None) -> Blob:
        client, name = await self._connection.get(), self._name(path)
        async with client.ask("GET", "files", self._at(path), headers=AS_STORED) as answer:
            data = await read_object(answer, name, limit)
            return Blob(data, _etag(answer, name), cloud.server_time(answer.headers.get("Date")))

    async def _read_into(self, path: str, sink: S, limit: int | None) -> S:
        client = await self._connection.get()
        async with client.ask("GET", "files", self._at(path), headers=AS_STORED) as answer:
            return await pour_object(answer, sink, self._name(path), limit)

    async def _get_range(self, path: str, offset: int, length: int) -> bytes:
        client = await self._connection.get()
        span = {**AS_STORED, "Range": f"bytes={offset}-{offset + length - 1}"}
        try:
            async with client.ask("GET", "files", self._at(path), headers=span) as answer:
                data = await cloud.gather_pieces(pieces(answer))
                # A server may answer with the whole object, and says so with its status.
                return data if answer.status == 206 else data[offset : offset + length]
        except AnswerError as error:
            # The service refuses a range that starts after the end, where the contract asks for no bytes.
            if error.status != 416:
                raise
            return b""

    async def _put(self, path: str, data: Bytes) -> None:
        await self._write(path, data, _MISSING if self._fencing else {})

    async def _swap(self, path: str, data: bytes, expected: str | None) -> str:
        if not self._fencing:
            return await self._write(path, data, {})
        if expected is None:
            return await self._write(path, data, _MISSING)
        changed = PreconditionFailedError(f"{self._name(path)}: was changed by somebody else")
        if not _ETAG.fullmatch(expected):
            raise changed
        try:
            return await self._send(path, data, {"If-Match": expected})
        except AnswerError as error:
            # The manual does not say with which status a version of a missing file is refused.
            if not error.is_missing_object:
                raise
        raise changed

    async def _write(self, path: str, data: Bytes, condition: Mapping[str, str]) -> str:
        """Write an object and return its version.

        Make its directory if the service does not.
        """
        try:
            return await self._send(path, data, condition)
        except AnswerError as error:
            if not error.is_missing_object:
                raise
        # The request was refused and did nothing, so it can be sent again. The manual does not say whether a file makes
        # the directories above it.
        client = await self._connection.get()
        async with client.ask("PUT", "directories", self._at(path).rpartition("/")[0]) as answer:
            await answer.read()
        return await self._send(path, data, condition)

    async def _send(self, path: str, data: Bytes, condition: Mapping[str, str]) -> str:
        """Write an object in one request, and return its version."""
        name = self._name(path)
        if len(data) > _LARGEST:
            raise IllegalArgumentError(f"{name}: {len(data)} bytes; a file of a volume has at most {_LARGEST} here")
        client = await self._connection.get()
        # The service refuses a body without its length.
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(len(data)), **condition}
        async with client.ask("PUT", "files", self._at(path), headers=headers, body=slices(data)) as answer:
            await answer.read()
            return _etag(answer, name)

    async def _list_page(self, prefix: str, more: object | None) -> ListingPage:
        # The directory that the prefix names; what comes after it is the beginning of names inside.
        first: list[_Directory] = [(prefix.rpartition("/")[0], None)]
        todo: list[_Directory] = first if more is None else more  # type: ignore[assignment]
        now, later = todo[:_LISTED_AT_ONCE], todo[_LISTED_AT_ONCE:]
        found: list[ListedObject] = []
        for (directory, _), page in zip(now, await asyncio.gather(*(self._list(*one) for one in now)), strict=True):
            for entry in page.get("contents", []):
                path = f"{directory}/{entry['name']}" if directory else str(entry["name"])
                if not path.startswith(prefix):
                    continue
                if entry.get("is_directory"):
                    later.append((path, None))
                else:
                    found.append(ListedObject(path, int(entry.get("file_size", 0))))
            if page.get("next_page_token"):
                later.append((directory, page["next_page_token"]))
        return ListingPage(found, later or None)

    async def _folders(self, prefix: str) -> Sequence[str]:
        found: set[str] = set()
        more: str | None = None
        while True:
            page = await self._list(prefix.rstrip("/"), more)
            inside = (entry for entry in page.get("contents", []) if entry.get("is_directory"))
            found.update(f"{prefix}{entry['name']}/" for entry in inside)
            more = page.get("next_page_token")
            if not more:
                return sorted(found)

    async def _list(self, directory: str, more: str | None) -> dict[str, Any]:
        """Return a page of a directory; an empty one if there is no such directory."""
        client, key = await self._connection.get(), self._key(directory).rstrip("/")
        try:
            async with client.ask(
                "GET", "directories", key, query=None if more is None else {"page_token": more}
            ) as answer:
                return await document(answer, self._name(directory))
        except AnswerError as error:
            if not error.is_missing_object:
                raise
            return {}

    async def _delete(self, paths: list[str]) -> None:
        await cloud.delete_each(paths, self._delete_one)

    async def _delete_one(self, path: str) -> None:
        client = await self._connection.get()
        try:
            async with client.ask("DELETE", "files", self._at(path)) as answer:
                await answer.read()
        except AnswerError as error:
            if not error.is_missing_object:
                raise

    def _error(self, error: Exception, name: str) -> CheckpointError:
        return meaning(error, name, self._url, self._options)

    def _put_error(self, error: Exception, name: str) -> CheckpointError:
        if isinstance(error, AnswerError) and error.is_unmet_condition:
            return ObjectExistsError(f"{name}: exists already")
        return self._write_error(error, name)

    def _swap_error(self, error: Exception, name: str) -> CheckpointError:
        if isinstance(error, AnswerError) and error.is_unmet_condition:
            return PreconditionFailedError(f"{name}: was changed by somebody else")
        return cloud.with_swap_pause(self._write_error(error, name))

    def _write_error(self, error: Exception, name: str) -> CheckpointError:
        found = self._error(error, name)
        if isinstance(found, ObjectNotFoundError):
            return StoreNotFoundError(f"{name}: the service finds no directory for it, and makes none; check the root")
        return found


def _etag(answer: Any, label: str) -> str:
    """Return the version of the object of an answer.

    Raises `DependencyError` where the answer does not tell it.
    """
    etag = answer.headers.get("ETag")
    if not etag:
        raise DependencyError(f"{label}: the answer has no ETag")
    return str(etag)
