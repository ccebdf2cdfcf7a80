"""Upload to Google Cloud Storage: small objects at once, large ones in chunks.

`query` names the object and the condition, `label` is the object in messages.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from pyspark_checkpointer.errors import DependencyError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.gcs.client import GOES_ON, GCSClient
from pyspark_checkpointer.storage.gcs.errors import AnswerError
from pyspark_checkpointer.storage.http import document

# A multiple of 256 KiB, as the service demands of all chunks but the last one.
_CHUNK = 16 << 20
"""Bytes of one chunk. Chunks of an object are sent one after the other."""

_BINARY = {"Content-Type": "application/octet-stream"}

_GONE = (404, 410)
"""Statuses for an upload that the server knows no more."""


async def send_whole(client: GCSClient, query: Mapping[str, str], data: Bytes, label: str) -> str:
    """Write an object in one request, and return its generation."""
    async with client.upload(cloud.body_of(data), {"uploadType": "media", **query}, _BINARY) as answer:
        return await _written(answer, label)


async def send_chunks(client: GCSClient, query: Mapping[str, str], data: Bytes, label: str) -> str:
    """Write an object in chunks, and return its generation.

    Nothing is visible before the last chunk.
    """
    async with client.upload(b"", {"uploadType": "resumable", **query}) as answer:
        upload = answer.headers.get("Location")
    if upload is None:
        raise DependencyError(f"{label}: the answer does not tell where to send the object")
    try:
        return await _send_each(client, upload, memoryview(data).cast("B"), label)
    except BaseException:
        # It is shielded, because a caller whose time is over would cancel this too. If the last chunk took effect
        # unseen, there is nothing left to cancel and the object stays.
        await asyncio.shield(asyncio.ensure_future(cloud.clean_up(_cancel(client, upload))))
        raise


async def _send_each(client: GCSClient, upload: str, view: memoryview, label: str) -> str:
    """Send chunk after chunk, from where the server says that it has come."""
    start = 0
    while True:
        chunk = view[start : start + _CHUNK]
        headers = {"Content-Range": f"bytes {start}-{start + len(chunk) - 1}/{len(view)}", **_BINARY}
        try:
            async with client.continue_upload("PUT", upload, cloud.body_of(chunk), headers) as answer:
                if answer.status != GOES_ON:
                    return await _written(answer, label)
                # The server may have kept less than it was sent. It names the last byte, or nothing if it has none.
                _, _, last = answer.headers.get("Range", "").rpartition("-")
        except AnswerError as error:
            if error.status not in _GONE:
                raise
            # Another upload can be begun.
            raise DependencyError(f"{label}: the upload is gone ({error.status})") from None
        if not last.isdecimal() or not start <= int(last) < min(start + len(chunk), len(view) - 1):
            raise DependencyError(f"{label}: the upload does not go on after {start} of {len(view)} bytes")
        start = int(last) + 1


async def _cancel(client: GCSClient, upload: str) -> None:
    async with client.continue_upload("DELETE", upload, None, {"Content-Length": "0"}):
        pass


async def _written(answer: Any, label: str) -> str:
    """Return the generation of the object that was written.

    Raises `DependencyError` where the answer does not tell it.
    """
    generation = (await document(answer, label)).get("generation")
    if generation is None:
        raise DependencyError(f"{label}: the answer names no generation")
    return str(generation)
