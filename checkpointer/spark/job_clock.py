"""Keep the clock of a job during one batch.

Rows of the job's tables and entries of its maps expire by it. The clock is part of each checkpoint, so a repeated batch
sees the same rows expire. The clock never goes back.
"""

import logging
import threading
from datetime import UTC, datetime, timedelta

from pyspark_checkpointer.checkpoint.save import CheckpointAttempt
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Clock

logger = logging.getLogger("pyspark_checkpointer")

BEGINNING = datetime.min.replace(tzinfo=UTC) + timedelta(days=1)
"""The time of a clock that a job moves itself before it knows a time.

Nothing expires by it. It is a day later than the first time of Python, so that it is a time in every zone.
"""


MAX_AHEAD = timedelta(days=1)
"""How far the clock of a job may be ahead of the time of a batch before somebody is told.

The clocks of machines differ by less, and an operator can wait so long.
"""


class JobClock:
    """The clock of a job during one batch.

    It follows the time that Spark recorded for each batch, until the job moves it itself for the first time. A job that
    never asks for the clock has none.
    """

    def __init__(self, attempt: CheckpointAttempt, batch_time: datetime | None) -> None:
        self._attempt = attempt
        self._batch_time = batch_time
        self._lock = threading.RLock()
        """Threads of the callback may open tables while another one moves the clock."""
        self._is_used = False
        """True once something of this batch was decided by the clock."""
        self._is_advanced = False
        """True once the job has called `advance` in this batch, also without a time."""
        self._held_by: str | None = None
        """Names what must not see another time in this batch; None if the clock may still move."""

    def now(self) -> datetime:
        """Return the time, in UTC. The checkpoint will record it.

        Raises `InvalidStateError` where neither Spark nor the job says what time it is.
        """
        with self._lock:
            self._is_used = True
            known = self._known()
        if known is None:
            raise InvalidStateError(
                "the job has no clock, since Spark did not tell the time of this batch: call state.advance_clock(time) "
                "before a table with expire= is opened"
            )
        return known.at

    def _known(self) -> Clock | None:
        """Return the clock in this batch, if there is one."""
        last = self._attempt.clock
        if self._batch_time is None or (last is not None and last.source == "job"):
            return last
        return Clock(self._batch_time if last is None else max(last.at, self._batch_time), "batch")

    def warn_if_ahead(self, root: str) -> bool:
        """Log a warning, and return true, if the times of batches went back far.

        The driver's clock was wrong then or is wrong now. The clock of the job waits for the later time, with no error.
        """
        last, now = self._attempt.clock, self._batch_time
        if last is None or now is None or last.source != "batch" or last.at - now <= MAX_AHEAD:
            return False
        logger.warning(
            "%s: the job's clock is at %s, which Spark gave an earlier batch as its time, and this batch has the time "
            "%s. The clock does not go back. Until Spark's times have passed it, rows of tables with expire= that are "
            "older expire as soon as they are written, and entries of maps with expire_after do not expire. "
            "Correct the driver's clock if it is wrong now. If it was wrong then: stop the query, and go back to a "
            "checkpoint before that batch with `checkpointer rewind %s CHECKPOINT`",
            root,
            last.at.isoformat(),
            now.isoformat(),
            root,
        )
        return True

    def warn_if_left(self, root: str) -> bool:
        """Return whether the batch has used the clock, and warn if it left it.

        It left it if it did not move the clock as batches before did. Nothing would expire any more, with no error, as
        after a rollback to code that does not move the clock.
        """
        last = self._attempt.clock
        if self._is_used and not self._is_advanced and last is not None and last.source == "job":
            logger.warning(
                "%s: batches before this one moved the job's clock themselves, and this one did not call "
                "state.advance_clock: the clock stays at %s, and nothing expires any more. Call it in each batch, with "
                "None where there is no time. If the clock is to follow Spark's batches again: stop the query, and go "
                "back to a checkpoint before the first such call with `checkpointer rewind %s CHECKPOINT`",
                root,
                last.at.isoformat(),
                root,
            )
        return self._is_used

    def advance(self, to: datetime | None) -> None:
        """Move the clock, which the job moves itself from now on.

        A time before that of the clock changes nothing, and None changes nothing. If the job has no clock, None gives
        it one, which is at `BEGINNING`. Both are refused once the batch has used the clock at Spark's time.
        """
        at = _in_utc(to)
        with self._lock:
            self._is_advanced = True
            known = self._known() if self._is_used else self._attempt.clock
            # Not where nothing of this batch was decided yet: a job that takes the clock over from Spark mostly gives
            # the time of an event, which is before that of the last batch. None has no time to compare, and would give
            # the clock to the job at Spark's time for good.
            uses_batch_time = self._is_used and known is not None and known.source == "batch"
            if uses_batch_time and known is not None and (at is None or at < known.at):
                raise InvalidStateError(
                    f"advance_clock({None if at is None else at.isoformat()}): this batch has used the clock already, "
                    f"at {known.at.isoformat()}, which Spark gave as its time, and the clock does not go back: call "
                    "advance_clock before a table with expire= is opened and before state.clock is read"
                )
            if at is None:
                self._attempt.clock = Clock(BEGINNING if known is None else known.at, "job")
                return
            if self._held_by is not None and known is not None and at > known.at:
                raise InvalidStateError(
                    f"advance_clock({at.isoformat()}): {self._held_by} in this batch, with the clock at "
                    f"{known.at.isoformat()}. What expires between the two times would be lost or counted twice: "
                    "call advance_clock before that"
                )
            self._attempt.clock = Clock(at if known is None else max(at, known.at), "job")

    def hold(self, reason: str) -> None:
        """Refuse to move the clock for the rest of the batch.

        Something that happened depends on the time.
        """
        with self._lock:
            self._held_by = self._held_by or reason

    def move_to_batch(self) -> None:
        """Record the time of this batch for the checkpoint, if the job has a clock."""
        with self._lock:
            if self._is_used or self._attempt.clock is not None:
                self._attempt.clock = self._known()

    @property
    def is_at_beginning(self) -> bool:
        """Return whether the job moves the clock itself, and has given no time yet."""
        known = self._known()
        return known is not None and known.at <= BEGINNING


def _in_utc(to: datetime | None) -> datetime | None:
    """Return a time of a user in UTC; None for None.

    Returns None also for `NaT`, which pandas has in place of None.
    """
    if to is None or to != to:  # NaT of pandas is a datetime, and not equal to itself.
        return None
    if not isinstance(to, datetime):
        raise IllegalArgumentError(f"advance_clock({to!r:.80}): expected a datetime")
    try:
        # PySpark returns timestamps without a zone, in local time. The class of pandas takes only times with a zone.
        at = datetime.combine(to.date(), to.time(), to.tzinfo).astimezone(UTC)
    except (OverflowError, ValueError) as error:
        raise IllegalArgumentError(f"advance_clock({to!r:.80}): is no time in UTC: give another one") from error
    if at < BEGINNING:
        raise IllegalArgumentError(f"advance_clock({to!r:.80}): expected a time from {BEGINNING.date()} on")
    return at
