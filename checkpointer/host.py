"""What the core takes from the machine it runs on: time, randomness, and somewhere to compute.

It is handed in, so that a test can decide each of them and replay a history exactly.
"""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from checkpointer import runtime

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""Told how much of something long is done and how much there is of it, from a thread of the library's own."""


class Host(Protocol):
    def now(self) -> datetime:
        """The time, in UTC. Recorded for people; nothing is decided by it."""

    def clock(self) -> int:
        """Nanoseconds since some moment, for durations. Never goes back."""

    def token(self, digits: int) -> str:
        """Random hexadecimal digits, never the same twice."""

    async def run(self, compute: Callable[[], T]) -> T:
        """The result of a computation that may take long, without holding up other coroutines."""


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
