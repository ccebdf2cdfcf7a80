"""The job's clock: what moves it, when it stands, and what it refuses."""

from datetime import UTC, datetime, timedelta
from time import tzset
from types import SimpleNamespace
from typing import Any

import pandas
import pytest
from pyspark.errors.exceptions.captured import StreamingQueryException
from pyspark.sql import DataFrame

from pyspark_checkpointer import Checkpointer
from pyspark_checkpointer.errors import IllegalArgumentError, InvalidStateError
from pyspark_checkpointer.manifests.model import Clock
from pyspark_checkpointer.manifests.model import Job as BatchJob
from pyspark_checkpointer.spark import Expire, State
from pyspark_checkpointer.spark.batch_attempt import BatchAttempt
from pyspark_checkpointer.spark.query_run import QueryRun
from tests.proof.plain_spark import new_state
from tests.spark.conftest import Job
from tests.spark.expiring import COLUMNS, DAY, RULE, START, Place, given, keys
from tests.spark.tables import once


def test_the_clock_follows_sparks_batches_and_never_goes_back(place: Place) -> None:
    seen = []
    for day in (3, 2, 5):
        state = place.begin(time=START + day * DAY)
        seen.append(state.clock)
        place.commit(state)
    assert [at.day for at in seen] == [4, 4, 6]
    # What never asks for the time has the clock of before, moved.
    place.commit(place.begin(time=START + 7 * DAY))
    restored = place.client.restore()
    assert restored is not None
    assert restored.clock == START + 7 * DAY
    with place.client.begin():  # a commit by hand keeps it
        pass
    again = place.client.restore()
    assert again is not None
    assert again.clock == START + 7 * DAY


def test_a_clock_that_ran_far_ahead_is_told_once_in_a_run(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """One batch was planned while the clock of the driver was years ahead."""

    def commit(day: float) -> list[str]:
        caplog.clear()
        state = place.begin(time=START + day * DAY)
        _ = state.clock
        place.commit(state)
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    for day in (0, 30_000, 29_999.99, 30_000, 29_999):  # steps back of minutes, and of a day, pass
        assert commit(day) == []
    (said,) = commit(1)
    assert "2106-02-20T00:00:00+00:00" in said
    assert "2024-01-02T00:00:00+00:00" in said
    assert f"`checkpointer rewind {place.client.root} CHECKPOINT`" in said
    state = place.begin(time=START + 2 * DAY)
    attempt = state._attempt
    caplog.clear()
    BatchAttempt(attempt.run, attempt.job, attempt.checkpoint)  # a later batch of this run
    assert caplog.records == []
    assert len(commit(3)) == 1, "each run tells it"
    place.client.rollback(to="epoch=0")
    assert commit(4) == []


def test_a_clock_that_the_job_moves_may_be_far_ahead(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.commit(place.begin(30_000, time=START))
    place.commit(place.begin(time=START + DAY))
    assert caplog.records == []


def warned(place: Place, state: State, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Commit a batch, and return the warnings of a clock that stands."""
    caplog.clear()
    place.commit(state)
    return [message for message in caplog.messages if "did not call state.advance_clock" in message]


@pytest.mark.parametrize("kind", ["table", "map"])
def test_a_job_that_no_longer_moves_its_clock_is_told_once_in_a_run(
    place: Place, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Warn after a rollback to code that does not know of the clock yet: nothing would ever expire again."""

    def use(state: State) -> None:
        if kind == "table":
            state.table("t", ["k"], num_partitions=2, schema=COLUMNS, expire=RULE)
        else:
            state.map("m", expire_after=DAY)

    for time in (None, START, None):  # an empty batch has no time
        state = place.begin()
        state.advance_clock(time)
        use(state)
        assert warned(place, state, caplog) == []
    assert warned(place, place.begin(time=START + DAY), caplog) == [], "nothing is asked of the clock"
    state = place.begin(time=START + 2 * DAY)
    use(state)
    state.advance_clock(START)  # may come later in the batch
    assert warned(place, state, caplog) == []
    state = place.begin(time=START + 3 * DAY)
    use(state)
    (said,) = warned(place, state, caplog)
    assert "2024-01-01T00:00:00+00:00" in said
    assert f"`checkpointer rewind {place.client.root} CHECKPOINT`" in said


def test_only_the_first_batch_of_a_run_that_uses_the_clock_tells_that_it_stands(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.commit(place.begin(0))
    run = QueryRun(place.client, place.client.restore(), SimpleNamespace())  # type: ignore[arg-type]
    told = []
    for uses in (False, True, True):
        place.number += 1
        job = BatchJob("query", "run", place.number)
        attempt = BatchAttempt(run, job, place.client.begin_batch(place.number, job))
        if uses:
            attempt.open_map("m", None, DAY)
        told.append(len(warned(place, State(SimpleNamespace(), attempt), caplog)))  # type: ignore[arg-type]
    assert told == [0, 1, 0]


def test_a_job_whose_clock_was_sparks_can_move_it_from_there(place: Place) -> None:
    """The earliest event of a batch is mostly older than the time of the batch before."""
    place.commit(place.begin(time=START))
    for time in (START, START + DAY):
        state = place.begin(time=time)
        _ = state.clock
        place.commit(state)
    state = place.begin(time=START + 2 * DAY)
    _ = state.clock  # this batch has used the time that Spark gave it
    with pytest.raises(InvalidStateError, match="does not go back: call advance_clock before a table"):
        state.advance_clock(START)
    state._attempt.abort()
    for day, expected in ((None, 1.0), (0.0, 1.0), (0.5, 1.0), (1.5, 1.5)):
        state = place.begin(time=START + 3 * DAY)
        # As PySpark returns it: without a zone, in local time; None of an empty batch.
        state.advance_clock(None if day is None else (START + day * DAY).astimezone().replace(tzinfo=None))
        assert state.clock == START + expected * DAY
        place.commit(state)
        restored = place.client.copy().restore()
        assert restored is not None
        assert restored.manifest is not None
        assert restored.manifest.clock == Clock(START + expected * DAY, "job")


def test_a_rollback_takes_the_clock_back_with_the_rows(place: Place) -> None:
    place.batch(0, given((1, 0)))
    place.batch(10)
    assert keys(place.rows()) == []
    place.client.rollback(to="epoch=0")
    assert keys(place.rows()) == [1]
    place.client.restore()
    state = new_state(place.client, place.client.restore(), 1)
    assert state.clock == START


def test_a_job_without_expiry_has_no_clock(place: Place) -> None:
    state = place.begin(time=START)
    state.table("t", ["k"]).upsert(place.frame(given((1, 0))))
    place.commit(state)
    restored = place.client.restore()
    assert restored is not None
    assert restored.clock is None


def test_a_job_that_moves_its_clock_is_not_moved_by_spark(place: Place) -> None:
    state = place.begin(1, time=START + 100 * DAY)
    state.advance_clock(None)
    state.advance_clock(START)
    assert state.clock == START + DAY
    place.commit(state)
    state = place.begin(time=START + 200 * DAY)
    assert state.clock == START + DAY
    # As PySpark returns it: without a zone, in local time.
    state.advance_clock((START + 2 * DAY).astimezone().replace(tzinfo=None))
    assert state.clock == START + 2 * DAY


def test_a_clock_that_is_asked_too_late_or_not_known_is_refused(place: Place) -> None:
    state = place.begin(time=START + DAY)
    state.table("t", ["k"], expire=RULE).upsert(place.frame(given((1, 0))))
    with pytest.raises(InvalidStateError, match="does not go back: call advance_clock before a table"):
        state.advance_clock(START)
    with pytest.raises(InvalidStateError, match=r"call state\.advance_clock"):
        _ = Place().begin().clock
    with pytest.raises(IllegalArgumentError, match="expected a datetime"):
        state.advance_clock(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("use", ["table", "map", "clock"])
def test_no_time_does_not_give_the_job_the_clock_that_spark_has_moved(place: Place, use: str) -> None:
    """Refuse also the call of an empty batch: all events would be too late, in each batch after it."""
    state = place.begin(time=START + 400 * DAY)
    if use == "table":
        state.table("t", ["k"], num_partitions=2, schema=COLUMNS, expire=RULE)
    elif use == "map":
        state.map("m", expire_after=DAY)
    else:
        _ = state.clock
    with pytest.raises(InvalidStateError, match=r"advance_clock\(None\).*call advance_clock before a table"):
        state.advance_clock(None)


@pytest.mark.parametrize("use", ["upsert", "delete", "lookup", "read", "apply", "expired", "first_seen"])
def test_the_clock_stands_once_a_table_was_used(place: Place, use: str) -> None:
    """Refuse a later clock: it would return as expired what was combined with a row, or took its place."""
    place.batch(0, given((1, 0)))
    state = place.begin(1)
    table = state.table("t", ["k"], num_partitions=2, expire=RULE)
    rows = place.frame(given((1, 11)))
    if use in ("read", "expired"):
        getattr(table, use)()
    elif use == "apply":
        table.apply(rows, lambda rows, state: rows)
    else:
        getattr(table, use)(rows if use in ("upsert", "first_seen") else place.frame(given((1, 11)).select(["k"])))
    state.advance_clock(START + DAY)  # No other time, so nothing is refused.
    with pytest.raises(InvalidStateError, match=r"table 't' was (used|changed) in this batch.*2024-01-02T"):
        state.advance_clock(START + 11 * DAY)


def test_a_job_by_event_time_may_begin_with_empty_batches(place: Place) -> None:
    """The clock must not begin at Spark's time, beyond all times of events."""
    for _ in range(2):
        state = place.begin(time=START + 400 * DAY)
        state.advance_clock(None)
        assert state.clock.year == 1
        table = state.table("t", ["k"], num_partitions=2, schema=COLUMNS, expire=RULE)
        assert table.expired().rows.num_rows == 0
        state.map("m", expire_after=DAY)
        place.commit(state)
    place.batch(0, given((1, 0), (2, 5)))
    state = place.begin(12, time=START + 400 * DAY)
    assert keys(state.table("t", ["k"], num_partitions=2, expire=RULE).expired().rows.to_pylist()) == [1]


def test_entries_of_maps_wait_for_the_first_time_of_a_clock(place: Place) -> None:
    state = place.begin()
    state.advance_clock(None)
    state.map("m", expire_after=DAY)["a"] = 1
    with pytest.raises(InvalidStateError, match=r"map 'm'.*clock has no time yet.*advance_clock\(time\) before"):
        place.commit(state)
    assert place.client.copy().restore() is None


@pytest.mark.parametrize("time", [datetime.min, datetime.min.replace(tzinfo=UTC), datetime.max])
def test_times_that_are_none_in_every_zone_are_refused(place: Place, time: datetime, monkeypatch: Any) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    tzset()
    try:
        with pytest.raises(IllegalArgumentError, match="advance_clock"):
            place.begin().advance_clock(time)
    finally:
        monkeypatch.undo()
        tzset()


def test_the_missing_time_of_pandas_moves_no_clock(place: Place) -> None:
    state = place.begin(1)
    state.advance_clock(pandas.NaT)  # what pandas gives for the largest of no times
    assert state.clock == START + DAY


def test_a_time_of_pandas_without_a_zone_is_local(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    tzset()
    try:
        state = place.begin()
        state.advance_clock(pandas.Timestamp("2024-01-02 00:00:00.000001500"))
        assert state.clock == START + DAY + timedelta(hours=5, microseconds=1)
    finally:
        monkeypatch.undo()
        tzset()


def test_the_clock_stands_once_a_batch_has_asked_what_expires(job: Job) -> None:
    """Rows that expire by a later time of this batch would be returned in no batch."""
    caught: list[str] = []

    def body(batch: DataFrame, batch_id: int, state: State) -> None:
        state.advance_clock(START)
        table = state.table("t", ["k"], schema="k long, at timestamp", expire=Expire("at", after=DAY))
        table.expired()
        state.advance_clock(START)
        with pytest.raises(InvalidStateError, match=r"table 't' was used in this batch.* call adv") as error:
            state.advance_clock(START + DAY)
        caught.append(str(error.value))
        raise error.value

    with pytest.raises(StreamingQueryException):
        once(job, body)
    assert len(caught) == 1
    assert Checkpointer(job.root).restore() is None
