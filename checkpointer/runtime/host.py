"""Give the core its clock, its randomness and its executor.

The machine gives them. They are handed in as one `Host`, so that a test can decide each of them and replay a history
exactly.
"""

import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Protocol, TypeVar

from pyspark_checkpointer.manifests.errors import IllegalArgumentError
from pyspark_checkpointer.runtime.pools import cpu_pool
from pyspark_checkpointer.runtime.user_functions import call_alone, runs_nothing

T = TypeVar("T")

HASH_INLINE = 256 << 10
"""Bytes that are hashed sooner than a thread is woken."""

Progress = Callable[[int, int], None]
"""Called with how much of a long operation is done, and how much there is of it.

The calls come from threads of the library, several at the same time where the operation runs in parallel.
"""


class Host(Protocol):
    """Clock, randomness and executor of the machine."""

    def now(self) -> datetime:
        """Return the time, in UTC. It is recorded for people; nothing is decided by it."""

    def clock(self) -> int:
        """Return nanoseconds since some moment, for durations. Never goes back."""

    def token(self, digits: int) -> str:
        """Return random hexadecimal digits, never the same twice."""

    async def run(self, compute: Callable[[], T]) -> T:
        """Return the result of a long computation; other coroutines go on meanwhile."""

    async def call(self, function: Callable[[], T]) -> T:
        """Return the result of a user's function.

        The function may do anything; nothing else waits for it.
        """


class SystemHost:
    """The real clock, the system's randomness, and threads for computations."""

    # The functions themselves and no methods around them: measuring reads the clock a dozen times in each save.
    clock = staticmethod(time.monotonic_ns)
    run = staticmethod(cpu_pool.run)
    call = staticmethod(call_alone)

    def now(self) -> datetime:
        return datetime.now(UTC)

    def token(self, digits: int) -> str:
        return secrets.token_hex((digits + 1) // 2)[:digits]


async def tell(host: Host, progress: Progress | None, done: int, total: int) -> None:
    """Report how far an operation is, if anybody asked to be told."""
    if progress is not None:
        await host.call(lambda: progress(done, total))


def check_progress(progress: object) -> None:
    """Refuse what is no function to report progress to.

    The first report comes after the first writes.
    """
    if progress is not None and (not callable(progress) or runs_nothing(progress)):
        raise IllegalArgumentError(f"progress={progress!r:.60}: expected a function of two integers, or None")
