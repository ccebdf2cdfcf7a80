"""Handle requests and bodies of HTTP, for stores that send requests of their own.

Sessions and answers are those of aiohttp. `label` names the object in errors.
"""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pyspark_checkpointer.errors import DependencyError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage import cloud
from pyspark_checkpointer.storage.base import S

AS_STORED = {"Accept-Encoding": "identity"}
"""Header that forbids compression on the way, so that the length is that of the object."""

_PIECE = 1 << 20
"""Bytes of a body that are read or sent at a time, at most."""


def time_limits(aiohttp: Any, timeout: float) -> Any:
    """Return the time limits of a request.

    There is none for the whole of it, since an object may be large.
    """
    return aiohttp.ClientTimeout(total=None, sock_connect=min(timeout, 10.0), sock_read=timeout)


def never_repeat(session: Any) -> None:
    """Let a session send each request once.

    aiohttp repeats a request whose connection was closed by the server: what it did with the first one is unknown.
    """
    session._retry_connection = False


def send(session: Any, method: str, url: str, headers: Mapping[str, str], body: Any, limits: Any) -> Any:
    """Send a request, and return a context manager that gives its answer.

    The URL is sent as it is.
    """
    from yarl import URL

    return session.request(
        method,
        URL(url, encoded=True),  # a name of an object may hold what looks like an escape
        headers=headers,
        data=body,
        timeout=limits,
        allow_redirects=False,  # credentials must not go to another server
    )


async def document(answer: Any, label: str) -> dict[str, Any]:
    """Return the JSON object of an answer.

    Raises `DependencyError` for anything else, since it does not tell what the service did.
    """
    try:
        found = json.loads(await answer.read())
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise DependencyError(f"{label}: the answer is no JSON object")
    return found


async def read_object(answer: Any, label: str, limit: int | None) -> bytes:
    """Return the object of an answer.

    Raises `CorruptionError` above `limit` before the body is read, and `DependencyError` where the body ended early.
    """
    size = _size(answer, label, limit)
    data = await cloud.gather_pieces(pieces(answer))
    _check_whole(label, len(data), size)
    return data


async def pour_object(answer: Any, sink: S, label: str, limit: int | None) -> S:
    """Feed the object of an answer to `sink`, and return the sink.

    Raises as `read_object` does.
    """
    size = _size(answer, label, limit)
    _check_whole(label, await cloud.pour(pieces(answer), sink), size)
    return sink


async def pieces(answer: Any) -> AsyncIterator[bytes]:
    """Yield the body of an answer piece by piece."""
    async for piece in answer.content.iter_chunked(_PIECE):
        yield piece


async def slices(data: Bytes) -> AsyncIterator[bytes]:
    """Yield a body piece by piece, so that no second copy of it is in memory.

    A request with such a body needs the header `Content-Length`.
    """
    view = memoryview(data).cast("B")
    for start in range(0, len(view), _PIECE):
        yield bytes(view[start : start + _PIECE])


def _size(answer: Any, label: str, limit: int | None) -> int:
    size = answer.content_length
    if size is None:
        raise DependencyError(f"{label}: the answer does not tell its length")
    if limit is not None and size > limit:
        answer.close()  # drops the connection in place of reading the rest
        raise cloud.too_large(label, limit, size)
    return int(size)


def _check_whole(label: str, found: int, size: int) -> None:
    if found != size:
        raise DependencyError(f"{label}: the answer broke off after {found} of {size} bytes")
