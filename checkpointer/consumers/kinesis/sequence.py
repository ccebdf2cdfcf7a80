"""Define a place in a shard: at a record, where a reader can begin, or its end."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import total_ordering
from typing import Any, Self

from pyspark_checkpointer.errors import IllegalArgumentError

MAX_DIGITS = 129
"""Maximum number of decimal digits of a sequence number that Kinesis gives."""


class _Kind(IntEnum):
    """The kinds of sequence number, in their order."""

    AT_TIMESTAMP = 0
    TRIM_HORIZON = 1
    LATEST = 2
    RECORD = 3
    SHARD_END = 4


_NAMED = {kind.name: kind for kind in _Kind if kind is not _Kind.RECORD}
"""The kinds that are written as a name. A record's number is written in digits."""

_DIGITS = re.compile(rf"0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}}")


@total_ordering
@dataclass(frozen=True, slots=True)
class ExtendedSequenceNumber:
    """A sequence number, and the number of a record within an aggregated one.

    The sequence number is in digits, or one of four names. AT_TIMESTAMP < TRIM_HORIZON < LATEST < any number <
    SHARD_END. Numbers compare as integers, and equal ones by their sub-sequence numbers.

    Args:
        sequence_number: The number in digits, without leading zeros, or one of the four names.
        sub_sequence_number: The number of the record within an aggregated one, from 0.

    Raises:
        IllegalArgumentError: It is something else, or another spelling of the same number.

    Examples:
        >>> from pyspark_checkpointer.consumers.kinesis import ExtendedSequenceNumber
        >>> ExtendedSequenceNumber("9") < ExtendedSequenceNumber("41", 2) < ExtendedSequenceNumber("SHARD_END")
        True
    """

    sequence_number: str
    sub_sequence_number: int = 0

    def __post_init__(self) -> None:
        number, sub = self.sequence_number, self.sub_sequence_number
        if not isinstance(number, str) or (number not in _NAMED and not _DIGITS.fullmatch(number)):
            raise IllegalArgumentError(
                f"sequence number {number!r:.60}: expected text of 1 to {MAX_DIGITS} decimal digits, or one of "
                f"{', '.join(_NAMED)}"
            )
        # Python counts a bool as an int, but here it is most likely a mistake.
        if isinstance(sub, bool) or not isinstance(sub, int) or not 0 <= sub < 2**63:
            raise IllegalArgumentError(f"sub-sequence number {sub!r:.60}: expected an integer from 0 to {2**63 - 1}")
        if sub and number in _NAMED:
            raise IllegalArgumentError(
                f"sequence number {number} with sub-sequence number {sub}: expected 0, since {number} is no record: "
                f"leave the sub-sequence number out"
            )

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, ExtendedSequenceNumber):
            return NotImplemented
        return self._key < other._key

    def __str__(self) -> str:
        sub = self.sub_sequence_number
        return f"{self.sequence_number}:{sub}" if sub else self.sequence_number

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the sequence number that `str()` wrote as this text.

        Args:
            text: The text.

        Raises:
            IllegalArgumentError: The text is no sequence number, or another spelling of one.

        Examples:
            >>> from pyspark_checkpointer.consumers.kinesis import ExtendedSequenceNumber
            >>> ExtendedSequenceNumber.parse("41:2")
            ExtendedSequenceNumber(sequence_number='41', sub_sequence_number=2)
        """
        number, colon, sub = text.partition(":") if isinstance(text, str) else (text, "", "")
        # `str()` leaves out a zero, and each number has one spelling only.
        if colon and (sub == "0" or not _DIGITS.fullmatch(sub)):
            raise IllegalArgumentError(f"{text!r:.200}: expected a sequence number, or one with `:` and a sub-sequence")
        return cls(number, int(sub) if colon else 0)

    @property
    def is_start(self) -> bool:
        """Return whether it is a place to begin, before any record was read."""
        return self._kind < _Kind.RECORD

    @property
    def is_record(self) -> bool:
        """Return whether it is the number of a record."""
        return self._kind == _Kind.RECORD

    @property
    def _key(self) -> tuple[int, int, int]:
        kind = self._kind
        # As text, "9" would come after "10".
        return kind, int(self.sequence_number) if kind == _Kind.RECORD else 0, self.sub_sequence_number

    @property
    def _kind(self) -> _Kind:
        return _NAMED.get(self.sequence_number, _Kind.RECORD)


AT_TIMESTAMP = ExtendedSequenceNumber("AT_TIMESTAMP")
TRIM_HORIZON = ExtendedSequenceNumber("TRIM_HORIZON")
LATEST = ExtendedSequenceNumber("LATEST")
SHARD_END = ExtendedSequenceNumber("SHARD_END")


def number_of(record: Any) -> ExtendedSequenceNumber:
    """Return the number of a record.

    The record is an object or mapping with `sequence_number`, or with boto3's `SequenceNumber`. `sub_sequence_number`
    (`SubSequenceNumber`) may be missing or None.
    """
    if record is None:
        raise IllegalArgumentError("record None: expected a record that was delivered")
    sub = _field(record, "sub_sequence_number", "SubSequenceNumber")
    number = ExtendedSequenceNumber(_field(record, "sequence_number", "SequenceNumber"), 0 if sub is None else sub)
    if not number.is_record:
        raise IllegalArgumentError(f"record {record!r:.60}: its sequence number is {number}, expected digits")
    return number


def _field(record: Any, name: str, key: str) -> Any:
    if isinstance(record, Mapping):
        return record.get(name, record.get(key))
    return getattr(record, name, None)
