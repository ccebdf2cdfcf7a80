"""Order the operations of the threads of one batch, and end them with it.

The threads belong to the callback of the batch.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from pyspark_checkpointer.errors import InvalidStateError
from pyspark_checkpointer.spark.executors import collecting_broadcasts

logger = logging.getLogger("pyspark_checkpointer")


class _Stage(IntEnum):
    """The phase of a batch.

    Each stage refuses more than the one before it.
    """

    OPEN = 0
    ENDED = 1
    """The batch has ended: new operations are refused.

    Those that have begun go on, also those that wait for another one.
    """
    ABANDONED = 2
    """The batch was abandoned: operations that wait for another are refused too."""


class Operations:
    """The operations of one batch: one at a time on each name.

    After the batch there are none. An operation that failed makes the batch fail, even where the callback swallows the
    error: `failure` is the first such error. So does one that is refused before the commit, unless it only reads: its
    thread outlived the callback, and nobody may ask for its error.
    """

    def __init__(self, root: str, batch_id: int) -> None:
        self.failure: BaseException | None = None
        self.broadcasts: list[Any] = []
        """Broadcasts that operations made for DataFrames, which are read until the batch ends."""
        self._root = root
        self._batch_id = batch_id
        self._has_told_of_late = False
        self._changed = threading.Condition()
        """Guards the fields below; notified when an operation ends."""
        self._stage = _Stage.OPEN
        self._active = 0
        """The number of operations that have begun and not ended.

        Those that wait for another one are included.
        """
        self._locks: dict[str, threading.RLock] = {}

    @contextmanager
    def one(self, name: str, check: Callable[[], None] = lambda: None, *, only_reads: bool = False) -> Iterator[None]:
        """Run one operation on `name`, after earlier ones and after `check`.

        Earlier ones are those that other threads began. An operation that `only_reads` is refused without a trace once
        the batch has ended.
        """
        with self._changed:
            if only_reads:
                self.check()
            else:
                self._refuse_late()
            # Counted before the wait for the lock, so that `end` waits also for those that wait here.
            self._active += 1
            lock = self._locks.setdefault(name, threading.RLock())
        try:
            with lock:
                if self._stage is _Stage.ABANDONED:  # The batch may have failed while this one waited.
                    raise self._ended()
                # The check is inside: what it refuses makes the batch fail too, even where the callback swallows the
                # error. So does an interrupt that it swallows.
                try:
                    check()
                    with collecting_broadcasts(self.broadcasts):
                        yield
                except BaseException as error:
                    self.fail(error)
                    raise
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify_all()

    def check(self) -> None:
        """Raise `InvalidStateError` once the batch has ended.

        A thread that only looks, such as one that logs the clock each second, leaves nothing out of the state.
        """
        if self._stage is not _Stage.OPEN:
            raise self._ended()

    def fail(self, error: BaseException) -> None:
        """Let the batch fail because of an error that the callback may have swallowed."""
        self.failure = self.failure or error

    def end(self) -> None:
        """Take no more operations, and wait for those that have begun."""
        with self._changed:
            self._stage = _Stage.ENDED
            self._changed.wait_for(lambda: not self._active)

    def abandon(self) -> None:
        """Refuse new and waiting operations, without waiting.

        No checkpoint holds what the running ones still do.
        """
        self._stage = _Stage.ABANDONED

    def _refuse_late(self) -> None:
        """Raise `InvalidStateError` once the batch has ended, and note the refusal."""
        if self._stage is _Stage.OPEN:
            return
        error = self._ended()
        # Of a batch that was abandoned nothing is committed, and its own failure is the one to report.
        if self._stage is _Stage.ENDED:
            self.fail(error)
            if not self._has_told_of_late:
                self._has_told_of_late = True
                logger.error("%s: batch %d: a state call was refused: %s", self._root, self._batch_id, error)
        raise error

    def _ended(self) -> InvalidStateError:
        return InvalidStateError(
            f"batch {self._batch_id} has ended: use the state of the current callback, and join threads before the "
            "callback returns"
        )
