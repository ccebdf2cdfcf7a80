"""Counting what is asked of a store, for whoever asks: one count for each context that wants one.

The count is found by a context variable, which asyncio hands down to every task that is started meanwhile. So a commit
in the background and a restore beside it are told apart, and no store has to know who is asking.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Traffic:
    """Requests that were sent, by kind (get, put, swap, list, delete), each try counting; bytes that were answered."""

    requests: Counter[str] = field(default_factory=Counter)
    bytes_read: int = 0


_current: ContextVar[Traffic | None] = ContextVar("checkpointer-traffic", default=None)


@contextmanager
def counted(traffic: Traffic) -> Iterator[None]:
    """Count what is sent within, and by the tasks that are started within, in `traffic`."""
    token = _current.set(traffic)
    try:
        yield
    finally:
        _current.reset(token)


def sent(kind: str) -> None:
    """A request goes out now."""
    traffic = _current.get()
    if traffic is not None:
        traffic.requests[kind] += 1


def received(size: int) -> None:
    """An answer brought `size` bytes of an object."""
    traffic = _current.get()
    if traffic is not None:
        traffic.bytes_read += size
