"""Store a root in a container of Azure Blob Storage, through adlfs.

Conditions are ETags on blob requests; versions are ETags. Every request is one attempt: the SDK's own retries are off,
since after a lost answer only the layers above can tell what happened.
"""

import base64
import io
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark_checkpointer.errors import CheckpointError, DependencyError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.azure.client import AzureClient, account_of, close_client, environment, open_client
from pyspark_checkpointer.storage.azure.container import read_rules
from pyspark_checkpointer.storage.azure.errors import (
    REFUSED,
    code_of,
    is_missing,
    is_past_the_end,
    is_refused_condition,
    meaning,
    status_of,
)
from pyspark_checkpointer.storage.azure.listed_copies import listed_blob, metadata_of
from pyspark_checkpointer.storage.base import (
    Blob,
    BucketRule,
    ListedObject,
    ListingPage,
    ObjectExistsError,
    PreconditionFailedError,
    S,
    Settings,
)
from pyspark_checkpointer.storage.cloud_store import CloudStore
from pyspark_checkpointer.storage.url import Location

_DELETE_BATCH = 256
"""Blobs that one request of the store deletes.

Each blob takes a request of its own to the service.
"""

_PAGE_SIZE = 5000
"""Blobs in one page of a listing, at most: a limit of the service."""

_MAX_BLOCKS = 50_000
"""Blocks of one blob, at most: a limit of the service."""


class AzureStore(CloudStore[AzureClient]):
    """The store of the blobs of a container below a prefix."""

    _close_client = staticmethod(close_client)
    _delete_batch = _DELETE_BATCH

    def __init__(self, location: Location, options: Mapping[str, Any], settings: Settings) -> None:
        super().__init__(location, account_of(location) | dict(options), settings)
        timeout = settings.timeout
        self._limits = {"retry_total": 0, "connection_timeout": min(timeout, 10.0), "read_timeout": timeout}
        self._renewed = -math.inf
        """When other credentials were found in the environment, by the monotonic clock."""

    async def _open_client(self) -> AzureClient:
        return await open_client(self._url, self._options)

    async def _blob(self, path: str) -> Any:
        """Return the SDK's client of a blob, after a check of its path."""
        client = await self._connection.get()
        return client.service.get_blob_client(self._bucket, self._at(path))

    async def _get(self, path: str, limit: int | None) -> Blob:
        stream, etag, at = await self._open_blob(path, limit)
        return Blob(b"" if stream is None else await _read(stream), etag, at)

    async def _read_into(self, path: str, sink: S, limit: int | None) -> S:
        stream, _, _ = await self._open_blob(path, limit)
        if stream is not None:
            _check_whole(stream, await cloud.pour(stream.chunks(), sink))
        return sink

    async def _open_blob(self, path: str, limit: int | None) -> tuple[Any | None, str, float | None]:
        """Begin a download. Return it, the ETag, and when the server answered.

        The download is None where the blob is empty.
        """
        blob, clock = await self._blob(path), _ServerClock()
        # Asking for no more than the limit keeps a larger object out of memory. The answer says how large it is.
        # A range cannot be empty, so a limit of 0 asks for one byte. Without any range, the SDK would call a blob empty
        # that was empty a request before.
        span = {"offset": 0} if limit is None else {"offset": 0, "length": max(limit, 1)}
        try:
            stream = await blob.download_blob(
                **span, max_concurrency=cloud.PARALLEL_PARTS, raw_response_hook=clock, **self._limits
            )
        except Exception as error:
            if not is_past_the_end(error):
                raise
            # An empty blob has no range to read. Its ETag is still needed, for a swap on it.
            properties = await blob.get_blob_properties(raw_response_hook=clock, **self._limits)
            # Somebody has written since. No bytes with the ETag of theirs would let a swap overwrite them unseen.
            if properties.size:
                raise DependencyError(f"{self._name(path)}: was empty, and written while it was read") from None
            return None, properties.etag, clock.at
        size = int(stream.properties.content_range.rpartition("/")[2])
        if limit is not None and size > limit:
            raise cloud.too_large(self._name(path), limit, size)
        return stream, stream.properties.etag, clock.at

    async def _get_range(self, path: str, offset: int, length: int) -> bytes:
        blob = await self._blob(path)
        try:
            stream = await blob.download_blob(
                offset=offset, length=length, max_concurrency=cloud.PARALLEL_PARTS, **self._limits
            )
        except Exception as error:
            if not is_past_the_end(error):
                raise
            return b""
        return await _read(stream)

    async def _put(self, path: str, data: Bytes) -> None:
        write = self._put_one if len(data) <= cloud.MAX_SINGLE_PUT else self._put_blocks
        await write(path, data)

    async def _put_one(self, path: str, data: Bytes) -> None:
        blob, whole = await self._blob(path), bytes(data)
        await blob.upload_blob(whole, length=len(whole), overwrite=not self._fencing, **self._limits)

    async def _put_blocks(self, path: str, data: Bytes) -> None:
        """Upload the blocks of a large blob, then commit them. Nothing is visible before."""
        from azure.core import MatchConditions
        from azure.storage.blob import BlobBlock

        blob = await self._blob(path)

        async def send(number: int, part: io.BytesIO) -> Any:
            # All block ids of a blob must have the same length.
            block = BlobBlock(base64.b64encode(b"%08d" % number).decode())
            await blob.stage_block(block.id, part, length=len(part.getbuffer()), **self._limits)
            return block

        blocks = await cloud.upload_parts(data, cloud.part_size(len(data), _MAX_BLOCKS), send)
        absent = {"match_condition": MatchConditions.IfMissing} if self._fencing else {}
        await blob.commit_block_list(blocks, **absent, **self._limits)

    async def _swap(self, path: str, data: bytes, expected: str | None) -> str:
        from azure.core import MatchConditions

        # A swapped object is mostly swapped again, and soon.
        blob = (await self._connection.get()).kept_blob(self._bucket, self._at(path))
        # overwrite=False sends If-None-Match: *, so that the blob must not exist.
        condition: dict[str, Any] = {"overwrite": not (self._fencing and expected is None)}
        if self._fencing and expected is not None:
            condition |= {"etag": expected, "match_condition": MatchConditions.IfNotModified}
        metadata = metadata_of(path, data)
        reply = await blob.upload_blob(data, length=len(data), metadata=metadata, **condition, **self._limits)
        return str(reply["etag"])

    async def _list_page(self, prefix: str, more: object | None) -> ListingPage:
        container = await self._containers()
        entries, inside, clock = [], len(self._key("")), _ServerClock()
        found = container.list_blobs(
            name_starts_with=self._key(prefix) or None,
            include=["metadata"],
            results_per_page=_PAGE_SIZE,
            raw_response_hook=clock,
            **self._limits,
        )
        pages = found.by_page(continuation_token=more)
        async for blob in await anext(pages):
            # Accounts with a hierarchical namespace list their folders as blobs too.
            if (blob.metadata or {}).get("hdi_isfolder") != "true" and not blob.name.endswith("/"):
                entries.append(ListedObject(blob.name[inside:], blob.size, listed_blob(blob, clock.at)))
        return ListingPage(entries, pages.continuation_token or None)

    async def _folders(self, prefix: str) -> Sequence[str]:
        container = await self._containers()
        inside = len(self._key(""))
        found = container.walk_blobs(name_starts_with=self._key(prefix) or None, delimiter="/", **self._limits)
        return sorted([item.name[inside:] async for item in found if item.name.endswith("/")])

    async def _delete(self, paths: list[str]) -> None:
        await cloud.delete_each(paths, self._delete_one)

    async def _delete_one(self, path: str) -> None:
        # The service's request for many blobs fails with some credentials and some names.
        blob = await self._blob(path)
        try:
            await blob.delete_blob(**self._limits)
        except Exception as error:
            if not is_missing(error):
                raise

    async def _bucket_rules(self) -> Sequence[BucketRule]:
        client = await self._connection.get()
        container = client.service.get_container_client(self._bucket)
        return await read_rules(client.service, container, self._limits)

    async def _containers(self) -> Any:
        client = await self._connection.get()
        return client.service.get_container_client(self._bucket)

    def _error(self, error: Exception, name: str) -> CheckpointError:
        if status_of(error) not in REFUSED:
            return meaning(error, name, self._url, self._options)
        client = self._connection.current
        if client is not None and client.environment != environment():
            self._connection.replace(client, after=self._timeout)
            self._renewed = time.monotonic()
        # Also the requests that were under way with the old credentials. A refused request did nothing, so whoever sent
        # it sends it again.
        if time.monotonic() - self._renewed < self._timeout:
            return DependencyError(
                f"{name}: {code_of(error)}: the credentials in the environment have changed, and the new ones are "
                "used from now on; correct them if this error stays"
            )
        return meaning(error, name, self._url, self._options)

    def _put_error(self, error: Exception, name: str) -> CheckpointError:
        if is_refused_condition(error):
            return ObjectExistsError(f"{name}: exists already")
        return self._error(error, name)

    def _swap_error(self, error: Exception, name: str) -> CheckpointError:
        # A condition on the ETag of a missing blob may be answered with 404.
        if is_refused_condition(error) or is_missing(error):
            return PreconditionFailedError(f"{name}: was changed by somebody else")
        return cloud.with_swap_pause(self._error(error, name))


class _ServerClock:
    """The time of the latest answer, by the server's clock.

    The SDK shows answers only to a hook.
    """

    at: float | None = None

    def __call__(self, answer: Any) -> None:
        self.at = cloud.server_time(answer.http_response.headers.get("Date"))


async def _read(stream: Any) -> bytes:
    """Return a whole download.

    Its pieces are written into a buffer, which becomes the result without a copy.
    """
    buffer = io.BytesIO()
    await stream.readinto(buffer)
    data = buffer.getvalue()
    _check_whole(stream, len(data))
    return data


def _check_whole(stream: Any, found: int) -> None:
    """Raise `DependencyError` where the download ended early."""
    # A connection that breaks off can look like the end of the answer.
    if found != stream.size:
        raise DependencyError(f"{stream.name}: the answer broke off after {found} of {stream.size} bytes")
