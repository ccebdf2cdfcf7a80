"""What the core takes from the machine it runs on: time, randomness, and somewhere to compute.

It is handed in, so that a test can decide each of them and replay a history exactly.
"""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from pyspark_checkpointer import runtime

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Told how much of something long is done and how much there is of it. Called in threads of the library's own, by
several at once where much is done at once."""


class Host(Protocol):
    def now(self) -> datetime:
        """Return the time, in UTC. Recorded for people; nothing is decided by it."""

    def clock(self) -> int:
        """Nanoseconds since some moment, for durations. Never goes back."""

    def token(self, digits: int) -> str:
        """Random hexadecimal digits, never the same twice."""

    async def run(self, compute: Callable[[], T]) -> T:
        """The result of a computation that may take long, without holding up other coroutines."""

    async def call(self, function: Callable[[], T]) -> T:
        """The result of a function of the user's, which may do anything, without holding up anything."""


class SystemHost:
    """The real clock, the system's randomness, and a thread for computations."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def clock(self) -> int:
        return time.monotonic_ns()

    def token(self, digits: int) -> str:
        return secrets.token_hex((digits + 1) // 2)[:digits]

    async def run(self, compute: Callable[[], T]) -> T:
        return await runtime.on_cpu(compute)

    async def call(self, function: Callable[[], T]) -> T:
        return await runtime.call_alone(function)


async def tell(host: Host, progress: Progress | None, done: int, total: int) -> None:
    """Let whoever asked to be told know how far it is."""
    if progress is not None:
        await host.call(lambda: progress(done, total))
