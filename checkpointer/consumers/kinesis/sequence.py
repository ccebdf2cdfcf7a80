"""Where one is in a shard: after a record, at one of the places to begin, or at the end."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, Self

from pyspark_checkpointer.errors import IllegalArgumentError

MAX_DIGITS = 129
"""The longest sequence number that Kinesis gives."""

_RECORD, _END = 3, 4
_RANKS = {"AT_TIMESTAMP": 0, "TRIM_HORIZON": 1, "LATEST": 2, "SHARD_END": _END}
_DIGITS = re.compile(rf"0|[1-9][0-9]{{0,{MAX_DIGITS - 1}}}")


@total_ordering
@dataclass(frozen=True, slots=True)
class ExtendedSequenceNumber:
    """A sequence number, in digits or by one of four names, and the number of a record within an aggregated one.

    AT_TIMESTAMP < TRIM_HORIZON < LATEST < any number, as integers < SHARD_END; then the sub-sequence number decides.
    `IllegalArgumentError` for anything else, other ways to write the same number included.
    """

    sequence_number: str
    sub_sequence_number: int = 0

    def __post_init__(self) -> None:
        number, sub = self.sequence_number, self.sub_sequence_number
        if not isinstance(number, str) or (number not in _RANKS and not _DIGITS.fullmatch(number)):
            raise IllegalArgumentError(
                f"sequence number {number!r:.60}: expected text of 1 to {MAX_DIGITS} decimal digits, or one of "
                f"{', '.join(_RANKS)}"
            )
        if isinstance(sub, bool) or not isinstance(sub, int) or not 0 <= sub < 2**63:
            raise IllegalArgumentError(f"sub-sequence number {sub!r:.60}: expected an integer from 0 to {2**63 - 1}")
        if sub and number in _RANKS:
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
        """Return what `str()` made of one."""
        number, colon, sub = text.partition(":") if isinstance(text, str) else (text, "", "")
        if colon and (sub == "0" or not _DIGITS.fullmatch(sub)):
            raise IllegalArgumentError(f"{text!r:.200}: expected a sequence number, or one with `:` and a sub-sequence")
        return cls(number, int(sub) if colon else 0)

    @property
    def is_start(self) -> bool:
        """Whether it is a place to begin, where no record was read yet."""
        return self._key[0] < _RECORD

    @property
    def is_record(self) -> bool:
        """Whether a record may have it."""
        return self._key[0] == _RECORD

    @property
    def _key(self) -> tuple[int, int, int]:
        rank = _RANKS.get(self.sequence_number, _RECORD)
        return rank, int(self.sequence_number) if rank == _RECORD else 0, self.sub_sequence_number


AT_TIMESTAMP = ExtendedSequenceNumber("AT_TIMESTAMP")
TRIM_HORIZON = ExtendedSequenceNumber("TRIM_HORIZON")
LATEST = ExtendedSequenceNumber("LATEST")
SHARD_END = ExtendedSequenceNumber("SHARD_END")


def number_of(record: Any) -> ExtendedSequenceNumber:
    """That of a record: an object with `sequence_number`, or a mapping with that key or boto3's `SequenceNumber`.

    `sub_sequence_number` (`SubSequenceNumber`) may be missing or None.
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
