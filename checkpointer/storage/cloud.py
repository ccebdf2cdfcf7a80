"""Share functions of all cloud stores: one way to fail, transfers in parts."""

import asyncio
import io
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import (
    CheckpointError,
    CorruptionError,
    RetryableError,
    StoreRefusedError,
    ThrottlingError,
)
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage.base import UNFENCED, ByteSink, ObjectNotFoundError, PreconditionFailedError, Store
from pyspark_checkpointer.storage.request_path import SMALL_SLOTS

T = TypeVar("T")

# Less than 64 MiB, from which on the SDK of Azure would split an upload by itself.
MAX_SINGLE_PUT = 32 << 20
"""Largest object, in bytes, that is uploaded in one request."""

# S3 refuses parts of less than 5 MiB, but for the last one.
PART_SIZE = 8 << 20
"""Bytes of one part of a larger upload, at least."""

# More cost memory: reading 300 MiB took 65 MiB besides the object with 4 parts, and 602 MiB with the defaults of s3fs.
PARALLEL_PARTS = 4
"""Parts of one object that are transferred at the same time."""

MAX_PAUSE = 30.0
"""Seconds that a server may make a request wait, at most."""

# Google takes one write of an object in a second.
SWAP_PAUSE = 1.0
"""Seconds between two attempts at a swap where the server asked for less, and did not say for how long."""

_PARALLEL_DELETES = 16
"""Objects that are deleted at the same time, where each takes a request of its own."""

_FEED_SIZE = 4 << 20
"""Bytes that are worth waking a thread for."""

_CLEANUP_SECONDS = 10.0


async def answer(request: Awaitable[T], translate: Callable[[Exception], CheckpointError]) -> T:
    """Return the answer to a request, or raise an error of the tree.

    The error replaces the cloud's error, and keeps nothing of it, since a cloud's exception may hold credentials. An
    error that is raised inside the handler would have the cloud's exception as its context.
    """
    try:
        return await request
    # Errors of the tree, such as that of a body that broke off, hold no credentials and need no translation.
    except CheckpointError:
        raise
    except Exception as error:
        failure = translate(error)
    raise failure


async def check_version(store: Store, path: str, expected: str | None) -> None:
    """Check that an object has the expected version (None: that it is missing).

    Raises `PreconditionFailedError` if it has not.

    With `fencing="none"` this check takes the place of a condition on the write. It detects a change before the check,
    but not a change between the check and the write.
    """
    try:
        found: str | None = (await store.get(path)).version
    except ObjectNotFoundError:
        found = None
    if found != expected:
        raise PreconditionFailedError(f"{store.url}/{path}: was changed by somebody else")


def too_large(name: str, limit: int, size: int) -> CorruptionError:
    """Return the error for an object of more than `limit` bytes."""
    return CorruptionError(f"{name}: expected at most {limit} bytes, found {size}")


def unsupported(name: str, said: str) -> StoreRefusedError:
    """Return the error for a request that a store does not know.

    It may be one with a condition.
    """
    return StoreRefusedError(
        f"{name}: {said}; this store does not support the request. If it is a conditional write, {UNFENCED} works "
        "without"
    )


def server_time(date: str | None) -> float | None:
    """Return the `Date` header of an answer in seconds since the epoch.

    None if it is unreadable.
    """
    try:
        told = parsedate_to_datetime(date or "")
    except (ValueError, OverflowError):
        return None
    # HTTP knows no other zone than UTC; a time without a zone would be read as local time.
    return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()


def asked_pause(retry_after: str | None) -> float | None:
    """Return the `Retry-After` header of an answer in seconds, at most `MAX_PAUSE`.

    Returns None if it is unreadable.
    """
    text = (retry_after or "").strip()
    if text.isdecimal():
        return min(float(text), MAX_PAUSE)
    at = server_time(text)
    return None if at is None else min(max(at - time.time(), 0.0), MAX_PAUSE)


def with_pause(error: CheckpointError, pause: float | None) -> CheckpointError:
    """Return `error`, which says how long to wait if trying again can help."""
    if isinstance(error, RetryableError) and error.pause is None:
        error.pause = pause
    return error


def with_swap_pause(error: CheckpointError) -> CheckpointError:
    """Return the error of a swap, with a pause if the server asked for less.

    The pause says how long to wait.
    """
    return with_pause(error, SWAP_PAUSE) if isinstance(error, ThrottlingError) else error


def connections(concurrency: int) -> int:
    """Return how many connections a store of this concurrency can use at a time."""
    # With fewer, a request that has its slot would wait again inside the client, where its time limit runs already.
    return concurrency * (PARALLEL_PARTS + SMALL_SLOTS)


async def gather_pieces(pieces: AsyncIterator[bytes]) -> bytes:
    """Return all pieces as one object.

    They are written into a buffer, which becomes the result without a copy.
    """
    buffer = io.BytesIO()
    async for piece in pieces:
        buffer.write(piece)
    return buffer.getvalue()


async def pour(pieces: AsyncIterator[bytes], sink: ByteSink) -> int:
    """Feed pieces to `sink` and return the number of bytes.

    A thread does this, with several pieces at a time.
    """
    total, batch, size = 0, [], 0
    async for piece in pieces:
        batch.append(piece)
        size += len(piece)
        if size >= _FEED_SIZE:
            # On the loop, hashing would hold up all other requests. No further piece is read meanwhile, so only one
            # batch is in memory.
            await runtime.on_cpu(_feed, sink, batch)
            total, batch, size = total + size, [], 0
    if batch:
        await runtime.on_cpu(_feed, sink, batch)
    return total + size


def _feed(sink: ByteSink, pieces: list[bytes]) -> None:
    for piece in pieces:
        sink.update(piece)


def batches(items: list[T], size: int) -> Iterator[list[T]]:
    """Yield the items in lists of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


async def delete_each(paths: list[str], delete: Callable[[str], Awaitable[None]]) -> None:
    """Delete objects with a request each, several at a time.

    The first failure is raised once all requests have ended: none may still be under way when the caller continues.
    """
    turns = asyncio.Semaphore(_PARALLEL_DELETES)

    async def remove(path: str) -> None:
        async with turns:
            await delete(path)

    results = await asyncio.gather(*(remove(path) for path in paths), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


def part_size(total: int, max_parts: int) -> int:
    """Return the part size in bytes for an upload of at most `max_parts` parts."""
    # Rounded up: the remainder would need one part more than is allowed.
    return max(PART_SIZE, -(-total // max_parts))


def body_of(data: Bytes) -> io.BytesIO:
    """Return `data` as a stream with a buffer of its own.

    aiohttp would copy a shared buffer again.
    """
    body = io.BytesIO()
    body.write(data)
    body.seek(0)
    return body


async def upload_parts(data: Bytes, size: int, upload: Callable[[int, io.BytesIO], Awaitable[T]]) -> list[T]:
    """Call `upload(number, body)` for each part and return the results in order.

    Numbers start at 1. `PARALLEL_PARTS` parts are under way at a time. The first failure stops the others, and is
    raised once they have stopped.
    """
    view = memoryview(data).cast("B")
    starts = iter(range(0, len(view), size))
    results: dict[int, T] = {}

    async def work() -> None:
        for start in starts:
            results[start] = await upload(start // size + 1, body_of(view[start : start + size]))

    # All workers take from one iterator, so each part is sent once, and a slow part holds up only its worker.
    workers = [asyncio.create_task(work()) for _ in range(PARALLEL_PARTS)]
    try:
        await asyncio.gather(*workers)
    # `gather` lets the others go on after a failure. Whoever aborts the upload must find no part under way, since S3
    # may keep a part that arrives after the abort.
    except BaseException:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    return [results[start] for start in sorted(results)]


async def clean_up(request: Coroutine[Any, Any, object]) -> None:
    """Undo something after a failure.

    An error of its own is dropped: the failure is what the caller must see.
    """
    # The caller is shielded from its own cancellation while this runs, so it has a time limit of its own.
    with suppress(Exception):
        async with asyncio.timeout(_CLEANUP_SECONDS):
            await request
