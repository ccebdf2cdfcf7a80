"""Torn, blanked and flipped files are found and named, and the version before is used; what others wrote is bounded."""

import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_checkpointer.consumers.journal.yaml_format import (
    MAX_FILE_BYTES,
    EventLogState,
    JournalContent,
    check_state,
    decode,
    encode,
    max_entry_bytes,
)
from pyspark_checkpointer.errors import CorruptionError, IllegalArgumentError, MalformedError
from pyspark_checkpointer.runtime import run_sync
from tests.consumers.journal.journals import AT, LATER, Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A file that says a=2, and the version before it, which says a=1."""
    place = Place(str(tmp_path))
    with place.open() as journal:
        for number in (1, 2):
            journal.persist("a", number, AT)
            journal.flush()
    return place


CONTENT = JournalContent(
    {"a": EventLogState("a", 2, AT), "b": EventLogState("b", 2**64 - 1, LATER, {"bookmark": "x"})}, {}
)
DATA = encode(CONTENT, AT, "0123456789abcdef")


def is_found_or_harmless(data: bytes) -> bool:
    try:
        return decode("journal.yml", data) == CONTENT
    except CorruptionError as error:
        return "journal.yml" in str(error)


def test_every_flip_and_every_cut_is_found_or_harmless() -> None:
    assert decode("journal.yml", DATA) == CONTENT
    for offset in range(len(DATA)):
        with pytest.raises(CorruptionError):
            decode("journal.yml", DATA[:offset])
        for mask in [*(1 << bit for bit in range(8)), 0xFF, DATA[offset]]:
            assert is_found_or_harmless(DATA[:offset] + bytes([DATA[offset] ^ mask]) + DATA[offset + 1 :]), offset


@given(st.integers(0, len(DATA)), st.integers(0, len(DATA)), st.sampled_from([b"\0", b"", b"\xff", b" ", b"\n"]))
def test_what_is_overwritten_or_taken_out_is_found_or_harmless(start: int, end: int, by: bytes) -> None:
    if end > start:
        assert is_found_or_harmless(DATA[:start] + by * (end - start) + DATA[end:])


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "NUL-filled": lambda data: bytes(len(data)),
    "torn": lambda data: data[:-3],
    "torn where it still parses": lambda data: data[: data.index(b"- name")].replace(b"event_logs:", b"event_logs: []"),
    "flipped": lambda data: data.replace(b"record_number: 2", b"record_number: 3"),
    "other bytes": lambda data: b"\xff\xfe garbage",
    "too large": lambda data: data + b"#" * MAX_FILE_BYTES,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_version_before_is_used(place: Place, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    before = place.read("journal.yml.previous")
    bad = DAMAGES[damage](place.read())
    place.write(bad)
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"):
        journal = place.open()
    assert journal.states() == {"a": EventLogState("a", 1, AT)}
    assert journal.recovered_from == f"{place.file}.previous"
    (record,) = caplog.records
    assert f"{place.file}" in record.getMessage()
    assert f"{place.file}.previous" in record.getMessage()
    # The damaged file did not become the previous version, and is there to be looked at.
    kept = place.everything()
    assert kept["journal.yml.previous"] == before
    aside = [name for name in kept if name.startswith("journal.yml.damaged-")]
    assert [kept[name] for name in aside] == ([bad] if bad else [])
    assert all(name in record.getMessage() for name in aside)
    journal.persist("a", 5, AT)
    journal.shutdown()
    with place.open() as again:
        assert again.states() == {"a": EventLogState("a", 5, AT)}
        assert again.recovered_from is None


def test_a_file_that_is_gone_is_no_new_beginning(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    Path(place.file).unlink()
    with caplog.at_level(logging.WARNING, "pyspark_checkpointer"), place.open() as journal:
        assert journal.states() == {"a": EventLogState("a", 1, AT)}
        assert journal.recovered_from == f"{place.file}.previous"
    assert "is not there" in caplog.text
    assert "to begin without states, remove it too" in caplog.text


def test_a_damaged_previous_version_is_no_matter(place: Place) -> None:
    place.write(b"garbage", "journal.yml.previous")
    with place.open() as journal:
        assert journal.states() == {"a": EventLogState("a", 2, AT)}
        assert journal.recovered_from is None
    assert decode("x", place.read("journal.yml.previous")).states["a"].record_number == 2


@pytest.mark.parametrize("previous", [b"", b"\0\0", None])
def test_where_neither_can_be_read_nothing_is_written(place: Place, previous: bytes | None) -> None:
    place.write(bytes(100))
    place.write(previous or b"", "journal.yml.previous")
    if previous is None:
        Path(f"{place.file}.previous").unlink()
    before = place.everything()
    with pytest.raises(CorruptionError) as caught:
        place.open()
    assert f"{place.file}: " in str(caught.value)
    assert f"{place.file}.previous: " in str(caught.value)
    assert "remove both" in str(caught.value)
    assert place.everything() == before


def test_a_hand_that_edits_the_file_is_told_how(place: Place) -> None:
    seal, _, rest = place.read().replace(b"record_number: 2", b"record_number: 7").partition(b"\n")
    assert b"take this line away" in seal
    place.write(rest)
    with place.open() as journal:
        assert journal.states()["a"].record_number == 7
        assert journal.recovered_from is None


# --- what others wrote ---

GOOD = (
    "update_time: 2026-01-01T00:00:00Z\nevent_logs:\n- {name: a, record_number: 1, timestamp: 2026-01-01T00:00:00Z}\n"
)
BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(25)
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# only a comment\n",
        "[]",
        "text",
        "{",
        GOOD[: GOOD.index("- {")],
        GOOD.replace("update_time", "date"),
        GOOD.replace("2026-01-01T00:00:00Z\ne", "yesterday\ne"),
        GOOD.replace("record_number: 1, ", ""),
        GOOD.replace("name: a, ", ""),
        GOOD + "- {name: b, timestamp: 2026-01-01T00:00:00Z}\n",
        GOOD + "- {name: b, record_number: 1}\n",
        GOOD + "- {name: a, record_number: -1, timestamp: 2026-01-01T00:00:00Z}\n",
        (GOOD + "- name: b\n  record_number: 1\n  timestamp: 2026-01-0"),
        GOOD.replace("name: a", "name: a, name: b"),
        GOOD + "- {name: a, record_number: 2, timestamp: 2026-01-01T00:00:00Z}\n",
        GOOD + "- 1\n",
        GOOD + "event_logs: []\n",
        GOOD + "---\n" + GOOD,
        GOOD + BOMB,
        GOOD + "more: !!python/object/apply:os.getcwd []\n",
        GOOD + "more: !!timestamp soon\n",
        GOOD + "more: !!bool maybe\n",
        GOOD + "more: !!int ''\n",
        GOOD + "? [1]\n: {[]: 2}\n",
        GOOD + "more: " + "[" * 100_000,
        GOOD + "more: " + "9" * 10_000 + "\n",
        GOOD + "more: 0x" + "f" * 5_000 + "\n",
        GOOD + "more: 1" + ":1" * 100_000 + "\n",
        GOOD + "more: !!omap [a: 1]\n",
        GOOD + "more: !!pairs [a: 1]\n",
        GOOD + "more: !!set {a, b}\n",
        GOOD + "- {name: b, record_number: !!set {a, b}, timestamp: 2026-01-01T00:00:00Z}\n",
        GOOD + "more: \0\n",
        GOOD + "#" * MAX_FILE_BYTES,
    ],
    ids=range(35),
)
def test_what_is_no_journal_is_refused(text: str) -> None:
    with pytest.raises(MalformedError, match=r"^journal\.yml: expected YAML with update_time and event_logs") as caught:
        decode("journal.yml", text.encode())
    assert len(str(caught.value)) < 500


def test_times_as_go_and_people_write_them() -> None:
    for text, at in {
        "2026-01-01T00:00:00.123456789Z": datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=UTC),
        "2026-01-01T02:00:00+02:00": datetime(2026, 1, 1, tzinfo=UTC),
        "2026-01-01 00:00:00": datetime(2026, 1, 1, tzinfo=UTC),
        '"2026-01-01T00:00:00.5Z"': datetime(2026, 1, 1, 0, 0, 0, 500000, tzinfo=UTC),
    }.items():
        data = GOOD.replace("timestamp: 2026-01-01T00:00:00Z", f"timestamp: {text}").encode()
        assert decode("x", data).states["a"].timestamp == at


@pytest.mark.parametrize("text", ["=", "<<", "yes", "1", "1:30", "0x1f", "2026-01-01", "1.5", "null and void"])
def test_a_name_is_the_text_that_stands_there(text: str) -> None:
    """Go writes some of these without quotes, and reads all of them so: the field is text there."""
    content = decode("x", GOOD.replace("name: a", f"name: {text}").encode())
    assert [*content.states] == [text]
    assert decode("x", encode(content, AT, "0" * 16)) == content


def test_marks_of_old_yaml_are_text() -> None:
    more = "more: [=, <<, {<<: {a: 1}, =: 2}]\n"
    content = decode("x", (GOOD + more).encode())
    assert content.other == {"more": ["=", "<<", {"<<": {"a": 1}, "=": 2}]}
    assert decode("x", encode(content, AT, "0" * 16)) == content


TIMES = ["0000-01-01T00:00:00Z", "10000-01-01T00:00:00Z", "-0001-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"]
"""Times that Go has, and Python has not, in UTC."""


@pytest.mark.parametrize("time", [*TIMES, "2026-13-01T00:00:00Z"])
def test_a_time_that_python_does_not_have_is_kept_where_nobody_needs_it(time: str) -> None:
    content = decode("x", (GOOD.replace("2026-01-01T00:00:00Z\ne", f"{time}\ne") + f"more: {time}\n").encode())
    assert content.states["a"].timestamp == datetime(2026, 1, 1, tzinfo=UTC)
    assert content.other == {"more": time}


@pytest.mark.parametrize(
    ("name", "number", "time"),
    [
        *(("b", "7", time) for time in [*TIMES, "soon", "2026-13-01T00:00:00Z", "2026-01-01"]),
        *(("b", number, "2026-01-01T00:00:00Z") for number in ["-1", "18446744073709551616", "true", "1.0", "'1'"]),
        *((name, "7", "2026-01-01T00:00:00Z") for name in ["''", "~", "[b]"]),
    ],
)
@pytest.mark.parametrize("first", [False, True])
def test_an_entry_that_cannot_be_read_costs_no_other(
    tmp_path: Path, name: str, number: str, time: str, first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    place = Place(str(tmp_path))
    bad = f"- {{name: {name}, record_number: {number}, timestamp: {time}, bookmark: mine}}\n"
    head, _, entry = GOOD.rpartition("- ")
    place.write((head + bad + "- " + entry if first else GOOD + bad).encode())
    for number_of_opening in range(2):  # what was read is written, and read again
        caplog.clear()
        with caplog.at_level(logging.WARNING, "pyspark_checkpointer"), place.open() as journal:
            assert [*journal.states()] == ["a"]
            assert journal.recovered_from is None
            (why,) = journal.unreadable
            journal.persist("a", 2 + number_of_opening, AT)
        (record,) = caplog.records
        assert why in record.getMessage()
        assert place.file in record.getMessage()
        assert ("event log 'b'" if name == "b" else "name: expected text") in why
        assert [log["bookmark"] for log in place.document()["event_logs"] if "bookmark" in log] == ["mine"]
    with place.open() as journal:
        journal.persist("b", 8, AT)
        if name == "b":
            assert journal.unreadable == ()
    with place.open() as journal:
        assert {log: state.record_number for log, state in journal.states().items()} == {"a": 3, "b": 8}
        assert len(journal.unreadable) == (name != "b")


def test_a_file_without_any_entry_that_can_be_read_gives_way_to_the_version_before(place: Place) -> None:
    place.write(GOOD.replace("record_number: 1", "record_number: -1").encode())
    with place.open() as journal:
        assert journal.states() == {"a": EventLogState("a", 1, AT)}
        assert journal.recovered_from == f"{place.file}.previous"


@pytest.mark.parametrize(
    "text",
    [
        GOOD.replace("record_number: 1", "record_number: -1"),
        GOOD.replace("record_number: 1", "record_number: 18446744073709551616"),
        GOOD.replace("record_number: 1", "record_number: true"),
        GOOD.replace("record_number: 1", "record_number: 1.0"),
        GOOD.replace("record_number: 1", "record_number: '1'"),
        GOOD.replace("name: a", "name: ''"),
        GOOD.replace("name: a", "name: ~"),
        GOOD.replace("timestamp: 2026-01-01T00:00:00Z", "timestamp: 2026-01-01"),
        GOOD.replace("timestamp: 2026-01-01T00:00:00Z", "timestamp: 0001-01-01T00:00:00+01:00"),
    ],
)
def test_an_only_entry_that_cannot_be_read_is_kept_where_the_file_is_whole(text: str) -> None:
    content = decode("x", text.encode())
    assert (content.states, len(content.unreadable)) == ({}, 1)
    sealed = encode(content, AT, "0" * 16)
    assert decode("x", sealed) == content
    with pytest.raises(MalformedError):
        decode("x", text.rstrip("\n").encode())


WHOLE = GOOD.replace("record_number: 1", "record_number: -1")
"""A file with one entry, which says no state."""


@pytest.mark.parametrize("previous", [None, b"", b"torn", WHOLE.encode()])
def test_a_whole_file_whose_only_entry_cannot_be_read_can_be_started_from(
    place: Place, previous: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named, and kept until its event log is persisted; nobody has to remove the file by hand."""
    place.write(WHOLE.encode())
    run_sync(place.store().delete(["journal.yml.previous"]))
    if previous is not None:
        place.write(previous, "journal.yml.previous")
    for _ in range(2):  # as it was written, and sealed by this library
        caplog.clear()
        with caplog.at_level(logging.WARNING, "pyspark_checkpointer"), place.open() as journal:
            assert (journal.states(), journal.recovered_from) == ({}, None)
            (why,) = journal.unreadable
        assert "event log 'a', entry 1 of event_logs: record_number" in why
        (record,) = caplog.records
        assert why in record.getMessage()
        assert [log["record_number"] for log in place.document()["event_logs"]] == [-1]
    with place.open() as journal:
        journal.persist("b", 7, AT)
    assert [log["record_number"] for log in place.document()["event_logs"]] == [7, -1]
    with place.open() as journal:
        journal.persist("a", 8, AT)
        assert journal.unreadable == ()
    with place.open() as journal:
        assert {log: state.record_number for log, state in journal.states().items()} == {"a": 8, "b": 7}


def test_a_file_that_may_have_been_cut_off_in_its_only_entry_is_malformed() -> None:
    for text in (WHOLE.rstrip("\n"), WHOLE.replace(", timestamp: 2026-01-01T00:00:00Z", "")):
        with pytest.raises(MalformedError):
            decode("journal.yml", text.encode())


# --- round trips ---

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@st.composite
def contents(draw: Any) -> JournalContent:
    known = {"name", "record_number", "timestamp", "update_time", "event_logs"}
    other = st.dictionaries(TEXT.filter(lambda key: key not in known), VALUES, max_size=2)
    states = [
        check_state(name, draw(st.integers(0, 2**64 - 1)), draw(st.datetimes(timezones=st.just(UTC))), draw(other))
        for name in draw(st.sets(TEXT, max_size=4))
    ]
    return JournalContent({state.name: state for state in states}, draw(other))


def test_no_two_writes_are_alike() -> None:
    assert encode(CONTENT, AT, "0" * 16) != encode(CONTENT, AT, "1" * 16)


@settings(max_examples=150)
@given(contents())
def test_what_is_written_is_read_again(content: JournalContent) -> None:
    assert decode("x", encode(content, AT, "0" * 16)) == content


@given(st.sets(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1, max_size=5))
def test_a_state_takes_no_more_than_is_reckoned(names: set[str]) -> None:
    states = {name: check_state(name, 2**64 - 1, LATER, {}) for name in names}
    empty = len(encode(JournalContent({}, {}), AT, "0" * 16))
    assert len(encode(JournalContent(states, {}), AT, "0" * 16)) - empty <= sum(map(max_entry_bytes, states.values()))


def test_the_file_never_outgrows_what_is_read(tmp_path: Path) -> None:
    place = Place(str(tmp_path))
    big = "é\x01" * (MAX_FILE_BYTES // 40)
    with place.open() as journal:
        with pytest.raises(IllegalArgumentError, match="might not fit"):
            for number in range(10):
                journal.persist(f"{number}{big}", 1, AT)
        taken = len(journal.states())
        journal.persist(f"0{big}", 2, AT)
    assert taken > 0
    with place.open() as again:
        assert len(again.states()) == taken
        assert again.states()[f"0{big}"].record_number == 2
        assert again.recovered_from is None
