"""Keep expensive objects for the next caller.

Such an object serves one caller at a time.
"""

from collections import deque
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
        # Each of its methods is one step. With a lock, a signal handler could wait for the thread that it interrupts.
        self._unused: deque[T] = deque(maxlen=MAX_IDLE)
        self.put_back: Callable[[T], None] = self._unused.append
        """Put an object back. If the pool is full, the one that was put back first is dropped."""

    def take(self) -> T:
        """Take an object out of the pool, or make one."""
        try:
            return self._unused.pop()
        except IndexError:
            return self._make()
