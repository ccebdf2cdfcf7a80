"""The operations of one batch, from whichever threads of the callback they come."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from pyspark_checkpointer.errors import InvalidStateError


class Operations:
    """Bring the operations on one name of a batch into an order, and end them all with the batch.

    An operation that failed spoils the batch, even where the callback swallows the error: `failure` is the first one.
    """

    def __init__(self, batch_id: int) -> None:
        self.failure: Exception | None = None
        self._batch_id = batch_id
        self._changed = threading.Condition()
        self._ended = False
        self._abandoned = False
        self._active = 0
        self._locks: dict[str, threading.RLock] = {}

    @contextmanager
    def one(self, name: str, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Run one operation on `name`, after those that other threads began, and after `check`."""
        with self._changed:
            self._refuse_if(self._ended)
            self._active += 1
            lock = self._locks.setdefault(name, threading.RLock())
        try:
            with lock:
                self._refuse_if(self._abandoned)  # the batch may have failed while this one waited
                try:
                    check()
                    yield
                except Exception as error:
                    self.failure = self.failure or error
                    raise
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def check(self) -> None:
        """Raise `InvalidStateError` once the batch has ended."""
        self._refuse_if(self._ended)

    def end(self) -> None:
        """Take no more operations, and wait for those that have begun."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._active)

    def abandon(self) -> None:
        """Take no more operations, nor those that still wait for others. Nothing comes of those that run."""
        self._ended = self._abandoned = True

    def _refuse_if(self, over: bool) -> None:
        if over:
            raise InvalidStateError(f"batch {self._batch_id} has ended: use the state of the current callback")
