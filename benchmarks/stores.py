"""Stores to measure: filled fast, in a folder or on a real S3 server, with any added latency."""

import asyncio
import random
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.client.base import Client
from pyspark_checkpointer.runtime import run_sync
from pyspark_checkpointer.storage import Store, open_store
from tests.servers import Server, start_azurite, start_minio


@contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def s3_server() -> Iterator[Server]:
    """Start a MinIO server with an empty bucket. Raises `ServerUnavailableError`."""
    with folder() as path:
        server = start_minio(path)
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def azure_server() -> Iterator[Server]:
    """Start an Azurite server with an empty container. Raises `ServerUnavailableError`."""
    with folder() as path:
        server = start_azurite(path)
        try:
            yield server
        finally:
            server.stop()


def random_bytes(sizes: Sequence[int]) -> list[bytes]:
    source = random.Random(0)
    return [source.randbytes(size) for size in sizes]


def fill(client: Checkpointer, contents: Sequence[bytes]) -> None:
    """Commit a checkpoint of one operator, with a partition for each value. A value above 256 KiB is an object."""
    with client.begin() as checkpoint:
        for partition, content in enumerate(contents):
            checkpoint.snapshot("operator", partition, content)


def history(url: str, options: dict[str, Any] | None, checkpoints: int) -> None:
    """Make a root with many checkpoints. They are committed in memory and then copied, which is much faster."""
    source = Checkpointer(f"memory://history-{checkpoints}-{secrets.token_hex(4)}")
    for _ in range(checkpoints):
        with source.begin():
            pass
    run_sync(_copy(open_store(source.root), open_store(url, options)))


async def _copy(source: Store, target: Store) -> None:
    async def copy(path: str) -> None:
        await target.put(path, (await source.get(path)).data)

    await asyncio.gather(*(copy(entry.path) for entry in await source.list("")))


class Far:
    """A store that delays every answer by `seconds`, and notes when each request began and ended."""

    def __init__(self, inner: Store, seconds: float) -> None:
        self._inner, self.seconds = inner, seconds
        self.spans: list[tuple[float, float]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not asyncio.iscoroutinefunction(found):
            return found

        async def request(*arguments: Any, **named: Any) -> Any:
            begin = time.perf_counter()
            try:
                await asyncio.sleep(self.seconds)
                return await found(*arguments, **named)
            finally:
                self.spans.append((begin, time.perf_counter()))

        return request


def backend(client: Client) -> Any:
    """Return the store below the retries and limits of a client."""
    return _turns(client).inner


def move_away(client: Client, seconds: float) -> Far:
    """Delay every request of a client by `seconds`, after it has waited for its turn."""
    far = Far(backend(client), seconds)
    _turns(client).inner = far
    return far


class Trips:
    """The requests of each verb to a distant store, and the most of them in a row.

    `requests` has those of the last repetition, and `in_a_row` those of each.
    """

    def __init__(self, store: Far) -> None:
        self._store = store
        self.requests: dict[str, int] = {}
        self.in_a_row: dict[str, list[int]] = {}

    @contextmanager
    def counted(self, verb: str) -> Iterator[None]:
        """Count the requests within the block."""
        before = len(self._store.spans)
        yield
        found = self._store.spans[before:]
        self.requests[verb] = len(found)
        self.in_a_row.setdefault(verb, []).append(most_in_a_row(found))


def most_in_a_row(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many requests followed one another: each began after the one before had ended."""
    count, last = 0, 0.0
    for begin, end in sorted(spans, key=lambda span: span[1]):
        if begin >= last:
            count, last = count + 1, end
    return count


def _turns(client: Client) -> Any:
    return client.session.store.inner  # type: ignore[attr-defined]  # RetryingStore, then LimitedStore
