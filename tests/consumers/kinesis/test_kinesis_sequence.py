"""Sequence numbers: their order, what is none, their text."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_checkpointer.consumers.kinesis import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, ExtendedSequenceNumber
from pyspark_checkpointer.consumers.kinesis.sequence import MAX_DIGITS, number_of
from pyspark_checkpointer.consumers.kinesis.state import decode
from pyspark_checkpointer.errors import IllegalArgumentError, MalformedError

INTEGERS = st.one_of(st.integers(0, 200), st.integers(0, 10**MAX_DIGITS - 1))
SUBS = st.integers(0, 3) | st.integers(0, 2**63 - 1)
NUMBERS = st.builds(ExtendedSequenceNumber, INTEGERS.map(str), SUBS)
ANY = NUMBERS | st.sampled_from([AT_TIMESTAMP, TRIM_HORIZON, LATEST, SHARD_END])


def test_the_names_stand_round_all_numbers() -> None:
    numbers = [ExtendedSequenceNumber(text) for text in ("0", "9", "10", str(10**128))]
    in_order = [AT_TIMESTAMP, TRIM_HORIZON, LATEST, *numbers, SHARD_END]
    backwards = in_order[::-1]
    assert sorted(backwards) == in_order
    assert ExtendedSequenceNumber("9", 7) < ExtendedSequenceNumber("10") < ExtendedSequenceNumber("10", 1)


@given(INTEGERS, SUBS, INTEGERS, SUBS)
def test_numbers_are_ordered_as_integers(a: int, sub_a: int, b: int, sub_b: int) -> None:
    first, second = ExtendedSequenceNumber(str(a), sub_a), ExtendedSequenceNumber(str(b), sub_b)
    assert (first < second) == ((a, sub_a) < (b, sub_b))
    assert (first == second) == ((a, sub_a) == (b, sub_b))


@given(ANY, ANY, ANY)
def test_the_order_is_total(a: ExtendedSequenceNumber, b: ExtendedSequenceNumber, c: ExtendedSequenceNumber) -> None:
    assert [a < b, a == b, a > b].count(True) == 1
    assert (a <= b) == (a < b or a == b)
    assert not (a <= b <= c) or a <= c
    assert a != b or hash(a) == hash(b)


@given(ANY)
def test_the_text_says_it_all(number: ExtendedSequenceNumber) -> None:
    assert ExtendedSequenceNumber.parse(str(number)) == number


@pytest.mark.parametrize(
    "number",
    [
        *(None, 5, b"5", "", " 5", "5 ", "5\n", "+5", "-5", "05", "00", "5.0", "1e3", "0x5", "1_000"),
        *("\u0665", "5\u0665", "\uff15", "\u00b2", "latest", "MAX_VALUE", "9" * (MAX_DIGITS + 1)),
    ],
)
def test_what_is_no_sequence_number(number: Any) -> None:
    with pytest.raises(IllegalArgumentError, match=r"sequence number .*: expected text"):
        ExtendedSequenceNumber(number)


@pytest.mark.parametrize("name", ["AT_TIMESTAMP", "TRIM_HORIZON", "LATEST", "SHARD_END"])
def test_a_name_has_no_sub_sequence_number(name: str) -> None:
    with pytest.raises(IllegalArgumentError, match=f"sequence number {name} with sub-sequence number 42: expected 0"):
        ExtendedSequenceNumber(name, 42)


@pytest.mark.parametrize("place", ["checkpoint", "pending"])
def test_an_end_with_a_sub_sequence_number_is_damage(place: str) -> None:
    """Such an end would equal no other, and the shard would be read for good."""
    found = {"sequence_number": "SHARD_END", "sub_sequence_number": 42, "state": None}
    with pytest.raises(MalformedError, match=r"shard 's'.*SHARD_END with sub-sequence number 42"):
        decode("s", {"checkpoint": None, "pending": None, place: found}, TRIM_HORIZON)


@pytest.mark.parametrize("sub", [-1, None, "1", 1.0, True, 2**63])
def test_what_is_no_sub_sequence_number(sub: Any) -> None:
    with pytest.raises(IllegalArgumentError, match="sub-sequence number"):
        ExtendedSequenceNumber("5", sub)


@pytest.mark.parametrize("text", ["", ":", "5:", ":5", "5:0", "5:01", "5:-1", "5:1:1", "5: 1", None])
def test_what_is_no_text_of_one(text: Any) -> None:
    with pytest.raises(IllegalArgumentError):
        ExtendedSequenceNumber.parse(text)


@pytest.mark.parametrize(
    ("record", "number"),
    [
        ({"SequenceNumber": "5", "Data": b""}, ExtendedSequenceNumber("5")),
        ({"SequenceNumber": "5", "SubSequenceNumber": 2}, ExtendedSequenceNumber("5", 2)),
        ({"sequence_number": "5", "sub_sequence_number": None}, ExtendedSequenceNumber("5")),
        (SimpleNamespace(sequence_number="5"), ExtendedSequenceNumber("5")),
        (ExtendedSequenceNumber("5", 3), ExtendedSequenceNumber("5", 3)),
    ],
)
def test_the_number_of_a_record(record: Any, number: ExtendedSequenceNumber) -> None:
    assert number_of(record) == number


@pytest.mark.parametrize("record", [None, {}, {"SequenceNumber": None}, {"SequenceNumber": "SHARD_END"}, 5, "5"])
def test_what_is_no_record(record: Any) -> None:
    with pytest.raises(IllegalArgumentError):
        number_of(record)
