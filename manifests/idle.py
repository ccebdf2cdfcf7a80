"""Keep expensive objects for the next caller.

Such an object serves one caller at a time.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_IDLE = 16
"""Objects of one kind that are kept for later, at most."""


class Idle(Generic[T]):
    """A pool of objects that nobody uses.

    A caller takes one out, in one step that nothing interrupts, and puts it back when it is done. Meanwhile a signal
    handler, a `__del__` or another greenlet cannot find it. After an exception it is not put back: it may be in the
    middle of its work.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._unused: list[T] = []

    def take(self) -> T:
        """Take an object out of the pool, or make one."""
        try:
            return self._unused.pop()
        except IndexError:
            return self._make()

    def put_back(self, thing: T) -> None:
        """Put an object back, unless the pool has enough."""
        # Two threads may both find room here: one object too many does no harm. With a lock, a signal handler could
        # wait for the very thread that it interrupts.
        if len(self._unused) < MAX_IDLE:
            self._unused.append(thing)
