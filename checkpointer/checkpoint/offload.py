"""Work on bytes, in a thread if it is large.

Meanwhile the event loop serves others.
"""

from collections.abc import Callable
from typing import TypeVar

from pyspark_checkpointer.manifests.digest import Bytes, sha256, verify
from pyspark_checkpointer.runtime.host import Host

T = TypeVar("T")

LARGE = 256 << 10
"""Bytes from which on hashing takes longer than waking a thread."""


async def compute(host: Host, work: Callable[[], T], *, small: bool) -> T:
    """Return the result of `work`, from a thread unless it is `small`.

    Small work is done sooner than a thread would answer.
    """
    return work() if small else await host.run(work)


async def hash_of(host: Host, data: Bytes) -> str:
    """Return the SHA-256 of `data` in hex."""
    return await compute(host, lambda: sha256(data), small=len(data) <= LARGE)


async def verify_bytes(host: Host, name: str, data: Bytes, size: int, digest: str) -> None:
    """Raise an error unless `data` has this size and this SHA-256.

    The error names the object. The size is checked first.
    """
    await compute(host, lambda: verify(name, data, size=size, digest=digest), small=len(data) <= LARGE)
