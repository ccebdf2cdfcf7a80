"""The contract of an event-log journal, over every kind of store; the implementation is a parameter."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import yaml

from pyspark_checkpointer.consumers.journal import EventLogState
from pyspark_checkpointer.errors import FencedError, IllegalArgumentError, InvalidStateError
from tests.conftest import Root
from tests.consumers.journal.journals import AT, IMPLEMENTATIONS, LATER, Place
from tests.consumers.world import eventually


@pytest.fixture(params=IMPLEMENTATIONS, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def implementation(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def place(any_root: Root, implementation: Any) -> Place:
    return Place(any_root.url, any_root.storage_options or None, implementation)


@pytest.fixture
def local(tmp_path: Path, implementation: Any) -> Place:
    return Place(str(tmp_path), None, implementation)


def test_opening_proves_that_the_file_can_be_written(place: Place) -> None:
    with place.open() as journal:
        assert journal.states() == {}
        document = place.document()
        assert document["event_logs"] == []
        assert datetime.now(UTC) - document["update_time"] < timedelta(minutes=5)
        assert [*document] == ["update_time", "event_logs"]


def test_what_was_persisted_is_there_after_shutdown(place: Place) -> None:
    journal = place.open()
    journal.persist("Security", 2**64 - 1, AT)
    journal.persist("Application", 0, LATER)
    journal.persist("Security", 2**64 - 1, LATER)
    expected = {
        "Security": EventLogState("Security", 2**64 - 1, LATER),
        "Application": EventLogState("Application", 0, LATER),
    }
    assert journal.states() == expected
    assert place.document()["event_logs"] == []  # neither enough nor long enough
    journal.shutdown()
    assert [log["name"] for log in place.document()["event_logs"]] == ["Application", "Security"]
    with place.open() as again:
        assert again.states() == expected
        assert again.recovered_from is None
        again.states().clear()
        assert again.states() == expected


class Log(str, Enum):  # noqa: UP042  # A StrEnum would be its text also by `str`.
    SECURITY = "Security"


def test_a_name_that_is_a_member_of_an_enum_is_its_text(local: Place) -> None:
    with local.open() as journal:
        journal.persist(Log.SECURITY, 7, AT)
        assert journal.states()[Log.SECURITY] == EventLogState("Security", 7, AT)
    assert local.numbers() == {"Security": 7}


def test_enough_updates_are_written_without_waiting(place: Place) -> None:
    with place.open(max_updates=3) as journal:
        journal.persist("a", 1, AT)
        journal.persist("a", 2, AT)
        assert place.numbers() == {}
        journal.persist("b", 1, AT)
        eventually(lambda: place.numbers() == {"a": 2, "b": 1})


def test_flush_writes_now(place: Place) -> None:
    with place.open() as journal:
        journal.persist("a", 1, AT)
        journal.flush()
        assert place.numbers() == {"a": 1}
        before = place.read()
        journal.flush()
        assert place.read() == before  # nothing came since


def test_time_writes_what_did_not_become_enough(local: Place) -> None:
    with local.open(interval=0) as journal:  # clamped to a second
        journal.persist("a", 1, AT)
        assert local.numbers() == {}
        eventually(lambda: local.numbers() == {"a": 1})


def test_shutdown_takes_no_more_and_may_come_again(place: Place) -> None:
    journal = place.open()
    journal.persist("a", 1, AT)
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(journal.shutdown) for _ in range(2)]:
            done.result(30)
            assert place.numbers() == {"a": 1}
    journal.shutdown()
    for number in (2, 1):  # even one that would change nothing
        with pytest.raises(InvalidStateError, match="was closed"):
            journal.persist("a", number, AT)
    assert journal.states() == {"a": EventLogState("a", 1, AT)}


def test_the_version_before_is_kept_beside_the_file(place: Place) -> None:
    with place.open() as journal:
        for number in range(3):
            before = place.read()
            journal.persist("a", number, AT)
            journal.flush()
            assert place.read("journal.yml.previous") == before


def test_another_journal_on_the_file_ends_the_first(place: Place) -> None:
    first = place.open()
    first.persist("a", 1, AT)
    first.flush()
    first.persist("a", 2, AT)
    second = place.open()
    assert second.states() == {"a": EventLogState("a", 1, AT)}
    second.persist("b", 1, AT)
    second.flush()
    whole = place.read()
    for _ in range(2):
        with pytest.raises(FencedError, match=r"journal\.yml: was written by somebody else"):
            first.flush()
        with pytest.raises(FencedError, match=r"journal\.yml"):
            first.persist("a", 3, AT)
        with pytest.raises(FencedError, match=r"journal\.yml"):
            first.shutdown()  # what it holds is nowhere, and that is not kept quiet
    assert place.read() == whole
    second.shutdown()


def test_a_file_that_was_removed_is_not_written_again_unasked(local: Place) -> None:
    journal = local.open()
    journal.persist("a", 1, AT)
    os.unlink(local.file)
    with pytest.raises(FencedError, match="was removed by somebody else"):
        journal.shutdown()
    assert not os.path.exists(local.file)


def test_of_journals_opened_at_once_one_goes_on(place: Place) -> None:
    with ThreadPoolExecutor(4) as pool:
        journals = [opened.result(60) for opened in [pool.submit(place.open) for _ in range(4)]]
    alive = []
    for number, journal in enumerate(journals):
        journal.persist(f"log {number}", number, AT)
        try:
            journal.shutdown()
        except FencedError:
            continue
        alive.append(f"log {number}")
    assert len(alive) == 1
    assert [*place.numbers()] == alive


def test_threads_may_persist_at_once(place: Place) -> None:
    journal = place.open(max_updates=20)
    barrier = threading.Barrier(8)

    def work(number: int) -> None:
        barrier.wait(30)
        for record in range(100):
            journal.persist(f"log {number}", record, AT)
            journal.persist("shared", number * 1000 + record, AT)

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(work, range(8))]
    journal.shutdown()
    assert place.numbers() == {**{f"log {number}": 99 for number in range(8)}, "shared": 7099}


@pytest.mark.parametrize(
    ("number", "at", "taken"),
    [
        (6, AT, True),
        (6, AT - timedelta(days=1), True),  # a clock that was set back
        (5, LATER, True),
        (5, AT, False),
        (4, AT, False),
        (4, AT - timedelta(seconds=1), False),
        (1, LATER, True),  # the log was cleared
    ],
)
def test_a_stale_update_changes_nothing(local: Place, number: int, at: datetime, taken: bool) -> None:
    with local.open() as journal:
        journal.persist("a", 5, AT)
        journal.persist("a", number, at)
        assert journal.states()["a"] == EventLogState("a", *((number, at) if taken else (5, AT)))
    assert local.numbers() == {"a": number if taken else 5}


def test_updates_that_are_passed_over_are_told_once(local: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A log that was cleared while the clock was behind is not recorded for as long: nobody else would say so."""
    with caplog.at_level("WARNING", "pyspark_checkpointer"), local.open() as journal:
        journal.persist("a", 5000, LATER)
        for number in (5000, 1, 2, 3):
            journal.persist("a", number, LATER if number == 5000 else AT)
            journal.persist("b", 7, AT)
        journal.flush()
        (record,) = caplog.records
        assert "event log 'a': record 1 of" in record.getMessage()
        assert "after record 5000" in record.getMessage()
        journal.persist("a", 4, LATER + timedelta(seconds=1))
        journal.persist("a", 1, AT)
        journal.flush()
        assert len(caplog.records) == 2


@pytest.mark.parametrize(
    ("name", "number", "at"),
    [
        ("", 1, AT),
        (None, 1, AT),
        (b"a", 1, AT),
        ("\ud800", 1, AT),
        ("a" * (1 << 20), 1, AT),
        ("a", -1, AT),
        ("a", 2**64, AT),
        ("a", True, AT),
        ("a", 1.0, AT),
        ("a", "1", AT),
        ("a", None, AT),
        ("a", 1, None),
        ("a", 1, "2026-03-01T12:30:15Z"),
        ("a", 1, 1772368215.0),
        ("a", 1, datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))),
    ],
)
def test_what_cannot_be_right_is_refused(local: Place, name: Any, number: Any, at: Any) -> None:
    with local.open() as journal:
        with pytest.raises(IllegalArgumentError):
            journal.persist(name, number, at)
        assert journal.states() == {}


def test_times_are_written_in_utc(local: Place) -> None:
    with local.open() as journal:
        journal.persist("zoned", 1, AT.astimezone(timezone(timedelta(hours=-7))))
        journal.persist("naive", 1, AT.replace(tzinfo=None))
    assert {log["timestamp"] for log in local.document()["event_logs"]} == {AT}
    assert local.read().count(b"timestamp: 2026-03-01T12:30:15.250000Z\n") == 2
    with local.open() as again:
        assert {state.timestamp for state in again.states().values()} == {AT}


@pytest.mark.parametrize("arguments", [(True,), ("10",), (1.5,), (10, True), (10, "5"), (10, None), (10, float("nan"))])
def test_settings_of_the_wrong_type_are_refused(local: Place, arguments: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="expected"):
        local.implementation(local.file, *arguments)
    assert not os.path.exists(local.folder)


@pytest.mark.parametrize(
    ("given", "clamped"),
    [
        ((0, 0.0), (1, 1.0)),
        ((-5, -1), (1, 1.0)),
        ((7, 2.5), (7, 2.5)),
        ((7, timedelta(minutes=2)), (7, 120.0)),
        ((7, timedelta(milliseconds=1)), (7, 1.0)),
    ],
)
def test_settings_are_clamped(local: Place, monkeypatch: pytest.MonkeyPatch, given: Any, clamped: Any) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(
        "pyspark_checkpointer.consumers.journal.WriteBehind",
        lambda write, **settings: seen.append(settings) or settings,
    )
    local.implementation(local.file, *given)
    assert (seen[0]["max_updates"], seen[0]["interval"]) == clamped


@pytest.mark.parametrize("file", ["", "s3://bucket", "s3://bucket/", "memory://name", "dir/", "/", "s3://b/../x.yml"])
def test_what_names_no_file_is_refused(implementation: Any, tmp_path: Path, file: str) -> None:
    with pytest.raises(IllegalArgumentError):
        implementation(file and f"{tmp_path}/{file}" if file == "dir/" else file)
    assert [*tmp_path.iterdir()] == []


# --- files of Winlogbeat's own ---

WINLOGBEAT = b"""\
update_time: 2026-02-03T04:05:06.123456789Z
event_logs:
- name: Application
  record_number: 18446744073709551615
  timestamp: 2026-02-03T04:05:05.987654321Z
  bookmark: "<BookmarkList>\\r\\n  <Bookmark Channel='Application' RecordId='7' IsCurrent='true'/>\\r\\n</BookmarkList>"
- name: Microsoft-Windows-Sysmon/Operational
  record_number: 2
  timestamp: "2026-02-03T05:05:05+01:00"
  bookmark: ""
- name: Security
  record_number: 3
  timestamp: 0001-01-01T00:00:00Z
version: [1, {deep: yes}]
"""


def test_winlogbeats_own_file_is_read_and_what_it_added_is_kept(place: Place) -> None:
    place.write(WINLOGBEAT)
    before = yaml.safe_load(WINLOGBEAT)
    with place.open() as journal:
        states = journal.states()
        assert states["Application"].record_number == 2**64 - 1
        assert states["Application"].timestamp == datetime(2026, 2, 3, 4, 5, 5, 987654, tzinfo=UTC)
        assert states["Security"].timestamp == datetime(1, 1, 1, tzinfo=UTC)
        sysmon = states["Microsoft-Windows-Sysmon/Operational"]
        assert sysmon.timestamp == datetime(2026, 2, 3, 4, 5, 5, tzinfo=UTC)
        journal.persist(sysmon.name, sysmon.record_number, sysmon.timestamp)  # the same event: nothing changes
        journal.persist("Security", 4, AT)
    after = place.document()
    assert after["version"] == before["version"]
    logs = {log["name"]: log for log in after["event_logs"]}
    assert logs["Application"] == before["event_logs"][0]
    assert logs[sysmon.name]["bookmark"] == ""
    assert logs["Security"] == {"name": "Security", "record_number": 4, "timestamp": AT}


def test_a_bookmark_goes_with_its_event(local: Place) -> None:
    local.write(WINLOGBEAT)
    with local.open() as journal:
        journal.persist("Application", 8, AT)
    assert b"bookmark: <" not in local.read()
    assert b"bookmark: ''" in local.read()  # that of another log
