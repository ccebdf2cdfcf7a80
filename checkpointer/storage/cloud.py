"""What the stores in a cloud have in common: one way to fail, and uploads in parts."""

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from pyspark_checkpointer import runtime
from pyspark_checkpointer.errors import CheckpointError, CorruptionError, IllegalArgumentError
from pyspark_checkpointer.manifests.digest import Bytes
from pyspark_checkpointer.storage.base import SWAP_LIMIT, Sink
from pyspark_checkpointer.storage.limiting import SMALL_TURNS

T = TypeVar("T")

SINGLE = 32 << 20
"""Largest object that is uploaded in one request."""

PART = 8 << 20
_POURED = 4 << 20
PARALLEL_PARTS = 4
_CLEANUP_SECONDS = 10.0


async def answer(request: Awaitable[T], translate: Callable[[Exception], CheckpointError]) -> T:
    """Return the answer to a request, or an error of the tree that carries nothing of the original one.

    It is raised outside the handler: a cloud's exception may hold credentials, and would ride along as its
    context.
    """
    try:
        return await request
    except CheckpointError:
        raise
    except Exception as error:
        failure = translate(error)
    raise failure


def check_swap(name: str, data: bytes) -> None:
    if len(data) > SWAP_LIMIT:
        raise IllegalArgumentError(f"{name}: {len(data)} bytes are too many to swap")


def too_large(name: str, limit: int, size: int) -> CorruptionError:
    return CorruptionError(f"{name}: expected at most {limit} bytes, found {size}")


def server_time(date: str | None) -> float | None:
    """Return the `Date` header of an answer in seconds since the epoch, or None if it is missing or unreadable."""
    try:
        told = parsedate_to_datetime(date or "")
    except (ValueError, OverflowError):
        return None
    # HTTP knows no other zone; a time without one would be read as local.
    return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()


def connections(concurrency: int) -> int:
    """Connections that a store of this concurrency can use at once."""
    return concurrency * (PARALLEL_PARTS + SMALL_TURNS)


async def pour(pieces: AsyncIterator[bytes], sink: Sink) -> int:
    """Hand pieces over to `sink` in a thread, as many at a time as make that worth while. Return how many bytes."""
    total, some, size = 0, [], 0
    async for piece in pieces:
        some.append(piece)
        size += len(piece)
        if size >= _POURED:
            await runtime.on_cpu(_feed, sink, some)
            total, some, size = total + size, [], 0
    if some:
        await runtime.on_cpu(_feed, sink, some)
    return total + size


def _feed(sink: Sink, pieces: list[bytes]) -> None:
    for piece in pieces:
        sink.update(piece)


def batches(items: list[T], size: int) -> Iterator[list[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def part_size(total: int, most: int) -> int:
    """Return the size of a part when no more than `most` parts are allowed."""
    return max(PART, -(-total // most))


def body_of(data: Bytes) -> io.BytesIO:
    """`data` as a stream, which goes out in pieces. It owns its buffer: aiohttp would copy a shared one whole."""
    body = io.BytesIO()
    body.write(data)
    body.seek(0)
    return body


async def upload_parts(data: Bytes, size: int, upload: Callable[[int, io.BytesIO], Awaitable[T]]) -> list[T]:
    """Call `upload(number, body)` for each part, numbered from 1, a few at a time. Results in order.

    The first failure stops the others and is raised once they have stopped.
    """
    view = memoryview(data).cast("B")
    starts = iter(range(0, len(view), size))
    results: dict[int, T] = {}

    async def work() -> None:
        for start in starts:
            results[start] = await upload(start // size + 1, body_of(view[start : start + size]))

    workers = [asyncio.create_task(work()) for _ in range(PARALLEL_PARTS)]
    try:
        await asyncio.gather(*workers)
    except BaseException:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        raise
    return [results[start] for start in sorted(results)]


async def clean_up(request: Coroutine[Any, Any, object]) -> None:
    """Undo something after a failure, as far as that works; the failure is what matters."""
    with suppress(Exception):
        async with asyncio.timeout(_CLEANUP_SECONDS):
            await request
