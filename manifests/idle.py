"""Keep what is expensive to make, and can serve one caller at a time, for whoever needs it next."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_IDLE = 16
"""Things of one kind that are kept for later."""


class Idle(Generic[T]):
    """Things that nobody uses.

    Whoever needs one takes it out, in one step that nothing interrupts, and puts it back when all is done. What comes
    in between (a signal handler, a `__del__`, another greenlet) cannot find it meanwhile. After an exception it is not
    put back.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._unused: list[T] = []

    def take(self) -> T:
        """Return one that nobody uses, made now where there is none."""
        try:
            return self._unused.pop()
        except IndexError:
            return self._make()

    def put_back(self, thing: T) -> None:
        """Keep one for later, unless there are enough."""
        if len(self._unused) < MAX_IDLE:
            self._unused.append(thing)
