"""The class `JobClock`: the clock of a job during one batch, by which rows of its tables expire.

The clock is part of each checkpoint, so a repeated batch sees the same rows expire. It never goes back.
"""

import threading
from datetime import UTC, datetime

from pyspark_checkpointer.checkpoint.save import CheckpointWriter
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Clock


class JobClock:
    """The clock of a job during one batch.

    It follows the time that Spark recorded for each batch, until the job moves it itself for the first time. A job that
    never asks for the clock has none.
    """

    def __init__(self, writer: CheckpointWriter, batch_time: datetime | None) -> None:
        self._writer = writer
        self._batch_time = batch_time
        self._lock = threading.RLock()
        """Threads of the callback may open tables while another one moves the clock."""
        self._is_held = False
        """True once the batch has asked which rows expire with it."""

    def now(self) -> datetime:
        """Return the time, in UTC, and let the checkpoint record it.

        Raises `InvalidStateError` where neither Spark nor the job says what time it is.
        """
        with self._lock:
            known = self._writer.clock
            if (known is None or known.source == "batch") and self._batch_time is not None:
                at = self._batch_time if known is None else max(known.at, self._batch_time)
                known = self._writer.clock = Clock(at, "batch")
        if known is None:
            raise InvalidStateError(
                "the job has no clock, since Spark did not tell the time of this batch: call state.advance_clock(time) "
                "before a table with expire= is opened"
            )
        return known.at

    def advance(self, to: datetime | None) -> None:
        """Move the clock, which the job moves itself from now on.

        A time before that of the clock leaves it as it is, and so does None.
        """
        if to is None:
            return
        if not isinstance(to, datetime):
            raise IllegalArgumentError(f"advance_clock({to!r:.80}): expected a datetime")
        # PySpark returns timestamps without a zone, in local time.
        at = to.astimezone(UTC)
        with self._lock:
            known = self._writer.clock
            if known is not None and known.source == "batch" and at < known.at:
                raise InvalidStateError(
                    f"advance_clock({at.isoformat()}): the clock is at {known.at.isoformat()} already, by the times of "
                    "Spark's batches, and does not go back: call advance_clock in the first batch, before a table with "
                    "expire= is opened and before state.clock is read"
                )
            if self._is_held and known is not None and at > known.at:
                raise InvalidStateError(
                    f"advance_clock({at.isoformat()}): expired() was called in this batch, with the clock at "
                    f"{known.at.isoformat()}: it would return the rows that expire after that in no batch: call "
                    "advance_clock before expired()"
                )
            self._writer.clock = Clock(at if known is None else max(at, known.at), "job")

    def hold(self) -> None:
        """Refuse to move the clock for the rest of the batch: it has asked which rows expire by it."""
        with self._lock:
            self._is_held = True

    def move_to_batch(self) -> None:
        """Move the clock of a job that has one to this batch, before the checkpoint is committed."""
        if self._writer.clock is not None:
            self.now()
